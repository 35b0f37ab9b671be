"""What `claw export TREE` is asked for, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from clawcli.errors import UsageError
from clawcli.sampling import parse_amount
from clawcli.store.units import Unit

_Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""Tokens and updates are counted in int32."""
_Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_NotNegative = Annotated[float, Meta(ge=0, le=1e6)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Part = Annotated[float, Meta(gt=0, le=1)]
ALL = "all"
"""Value of sample that takes every unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How priorities become chances, and chances weights."""

    alpha: _NotNegative = 1.0
    """Exponent of priority + epsilon. 0 = all alike."""
    epsilon: _NotNegative = 0.0
    """Added to each priority. 0 = a unit of priority 0 is drawn by the uniform share alone."""
    uniform_share: _Share = 0.1
    """Share of the chance that is spread evenly: no weight exceeds 1 / share by much."""
    staleness_decay: _Part = 1.0
    """Factor on the chance for each version that a policy is behind the newest. 1 = off."""
    beta: _Share = 1.0
    """How far weights make up for the draw. 1 = in full, 0 = not at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageConfig:
    """One stage of a curriculum. Null = as for all stages."""

    where: str | None = None
    """Boolean SQL expression over the steps of a unit; null = all units."""
    priority: str | None = None
    """Numeric SQL expression, in place of priority."""
    share: _Part = 1.0
    """Share of sample that the stage takes; of all or of a share it takes that of its own units."""
    phases: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Phases that the updates of one order are divided into; null = by updates_per_phase."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportShardsConfig:
    """What `claw export TREE` is asked for."""

    input: str
    """Tree that claw merge-prefixes made."""
    output: str
    """Directory of the shards."""
    merge: Literal["tree", "chain", "none"] = "tree"
    """tree: shared tokens are computed once; chain: once along a path; none: for each step."""
    max_tokens_per_row: _Size | None = None
    """Packing target in tokens; None = 99th percentile of row lengths, up to a power of two."""
    max_step_tokens: _Size = 131_072
    """Longer steps are left out, counted and named."""
    sample: str = ALL
    """How many units to draw: a number, a share such as 0.1, or all."""
    unit: Unit = "trajectory"
    """What is drawn: whole trajectories, or steps."""
    priority: str | None = None
    """Numeric SQL expression over the steps of a unit, in which the chance to be drawn rises."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How priorities become chances."""
    stages: tuple[StageConfig, ...] = ()
    """Stages of a curriculum, in order, each with a draw of its own; none = one of all units."""
    epochs: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Orders over the rows of each stage."""
    ranks: Annotated[int, Meta(ge=1, le=65_536)] = 1
    """Processes that the rows of an update are split over; any other number can read them too."""
    tokens_per_update: _Size | None = None
    """Computed tokens of an update, about; None = one packing target for each rank."""
    updates_per_phase: _Size = 8
    """Updates for which old log-probs and advantages stay frozen."""
    whole_trajectories: bool = False
    """All rows of a trajectory are read in one phase, as advantages from later steps need it."""
    seed: _Seed = 0
    """Of draws and orders."""
    reward_expr: str | None = None
    """Numeric SQL expression over the steps that were merged, which becomes the reward of each
    attempt in place of the tree's; null = rewards are the tree's."""
    where_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """Seconds after which an expression is given up."""
    force: bool = False
    """Replace shards that are there."""
    dry_run: bool = False
    """Do and report everything, write nothing."""

    def amount(self) -> tuple[float, bool]:
        """How many units are drawn: an amount, and whether it is a share.

        Raises:
            UsageError: sample is neither, or there are priorities though all are taken.
        """
        amount = (1.0, True) if self.sample.strip() == ALL else parse_amount(self.sample)
        asked = [(f"stages[{n}].", stage) for n, stage in enumerate(self.stages)]
        for name, stage in asked or [("", StageConfig())]:
            text = stage.priority or self.priority
            if text is not None and amount == (1.0, True) and stage.share == 1:
                flag = f"{name}priority" if stage.priority else "--priority"
                raise UsageError(
                    f"{flag} says which units are drawn first, but all of them are taken.",
                    "Give --sample, such as --sample 0.5, or a share to the stage.",
                )
        return amount


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportShardsReport:
    """What `claw export TREE` did."""

    steps: int
    """Trained steps in the shards; one that two stages drew counts twice."""
    trajectories: int
    """Trajectories of these steps, each counted once."""
    steps_left_out_by_reason: dict[str, int]
    """too_long: over max_step_tokens. not_in_stage: no stage's where is true of its unit.
    not_drawn: its unit was in no sample."""
    left_out: dict[str, str]
    """step_uid -> too_long."""
    units_by_stage: dict[str, int]
    """Units that each stage drew, by its number."""
    priorities_by_kind: dict[str, int]
    """Units whose priority was missing (the highest known counts, or 1), or zero; all stages."""
    importance_weight_max: float
    """Largest factor on the loss of a step that makes up for the draw; their mean is 1."""
    importance_weight_bound: float
    """Largest factor that any unit could have got."""
    rows: int
    """Packed rows."""
    shards: int
    """Parquet files."""
    tokens: int
    """Tokens that one pass computes."""
    logical_tokens: int
    """Tokens of the step rows, each counted whole."""
    max_tokens_per_row: int
    """The packing target."""
    padding_frac: float
    """Padding if every row were filled up to the target; rows are stored and run without."""
    merge_kept_frac: float
    """Logical per computed token, over the same where every shared token is computed once."""
    phases: int
    """Phases of the plan."""
    updates: int
    """Updates of the plan."""
    epochs: int
    """Orders over the rows."""
    ranks: int
    """Processes that the plan is for."""
    fillers: int
    """Rows of the plan that run again without weight, so that all ranks have as many."""
    rank_imbalance_frac: float
    """How much more the dearest rank computes than the mean of all, mean over updates."""
