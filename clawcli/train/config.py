"""Settings of `claw train`: flags for what changes from run to run, --set for the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from clawcli.gate import Objective
from clawcli.train.losses import Aggregation

if TYPE_CHECKING:
    _Trained = Objective
else:
    # of the gate's objectives those that have a loss here; msgspec refuses the others
    _Trained = Literal["sft", "ppo"]

_Positive = Annotated[float, Meta(gt=0)]
_NotNegative = Annotated[float, Meta(ge=0)]
_Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Fraction = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """AdamW and its learning rate."""

    learning_rate: _Positive = 1e-5
    """After warm-up it is constant. 1e-5 suits full fine-tuning of pretrained models."""
    warmup_updates: Annotated[int, Meta(ge=0)] = 5
    """Updates over which the learning rate rises linearly. 0 = off."""
    weight_decay: _NotNegative = 0.0
    """Decoupled decay per update, times the learning rate. 0 = off."""
    beta1: _Fraction = 0.9
    """Decay of the mean of gradients."""
    beta2: _Fraction = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: _Positive = 1e-8
    """Added to the root of the squared gradients."""
    max_grad_norm: _NotNegative = 1.0
    """Norm to which the gradient of an update is clipped. 0 = off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PpoConfig:
    """The loss of --objective ppo."""

    clip_low: _Fraction = 0.2
    """How far below 1 the ratio current / old counts."""
    clip_high: _NotNegative = 0.2
    """How far above 1 the ratio current / old counts."""
    kl_coef: _NotNegative = 0.1
    """Factor on the KL to the starting model, in the loss. 0 = off."""
    importance_cap: _Positive = 2.0
    """Largest weight old / behaviour of a token."""
    scale_by_std: bool = False
    """Divide advantages by the group's standard deviation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Everything that decides what a run does."""

    shards: str
    """Directory written by `claw export --merge`."""
    output: str
    """Run directory to create."""
    model: str
    """`tiny`, or a local Hugging Face causal LM directory."""
    objective: _Trained
    """sft or ppo."""
    allow_off_policy: bool = False
    """Let ppo train on steps whose behaviour policy is not known."""
    own_policy: tuple[str, ...] = ()
    """Values of policy that are the model itself, by the user's word."""
    aggregation: Aggregation = Aggregation.TRAJECTORY
    """Whose mean the loss of an update is."""
    seed: _Seed = 0
    """Of torch's generator. The order of rows is the shards' own."""
    force: bool = False
    """Replace a run directory that is there."""
    dry_run: bool = False
    """Read and check everything, train and write nothing."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """AdamW."""
    ppo: PpoConfig = field(default_factory=PpoConfig)
    """The loss of ppo."""

    def __post_init__(self) -> None:
        """Make the objective, which msgspec leaves as text, a member of the enumeration."""
        object.__setattr__(self, "objective", Objective(self.objective))
