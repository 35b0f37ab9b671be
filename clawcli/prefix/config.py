"""What `claw merge-prefixes` is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from clawcli import cost
from clawcli.prefix.make import Prove
from clawcli.prefix.render import Reasoning


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeConfig:
    """What `claw merge-prefixes` is asked for."""

    input: str
    """Data directory, or data@N."""
    output: str
    """Directory of the tree."""
    tokenizer: str
    """`tiny`, a directory with a tokenizer.json, or a hub id in the local cache."""
    chat_template: str | None = None
    """Jinja file to use instead of the tokenizer's own template."""
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Variables for the template, such as {"enable_thinking": false}."""
    eos_when_unknown: Literal["include", "exclude"] = "include"
    """Train the end token of a turn whose finish reason is unknown but that was closed."""
    reasoning: Reasoning = "keep"
    """keep = hand the log's reasoning to the template; drop = do not; require = leave out steps
    whose action has none."""
    prove: Prove = "sample"
    """Prompts compared with apply_chat_template: of the last step of each trajectory and 2% of
    the others, or all."""
    keep_context: bool = False
    """Steps of weight 0 have a path even where no trained row holds their tokens."""
    model_size: str = cost.DEFAULT_SIZE
    """Dense model for which the speed-up is predicted: 0.6b, 1.7b, 4b, 8b, 14b, 32b, 70b."""
    workers: Annotated[int, Meta(ge=0)] = 0
    """Processes that render and sort; 0 = one for each processor where there is enough to do."""
    force: bool = False
    """Replace a tree that is there."""
    dry_run: bool = False
    """Do and report everything, write nothing."""
