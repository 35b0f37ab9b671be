"""`claw merge-prefixes`: a data directory to a token tree.

Every step is rendered and proved, links are checked, steps of weight 0 stay where a trained row
holds all of their tokens, and the rows are merged on token ids alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from clawcli import config as configs
from clawcli import schema
from clawcli.errors import DataError
from clawcli.prefix import build, links, logged, rows, template
from clawcli.prefix.rows import Row, RowMaker
from clawcli.store import artefact, location, query, state, tokenizers, trees
from clawcli.tree import Forest


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeConfig:
    """What `claw merge-prefixes` is asked for."""

    data: str
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
    force: bool = False
    """Replace a tree that is there."""
    dry_run: bool = False
    """Do and report everything, write nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeReport:
    """What `claw merge-prefixes` did. steps_in = steps + excluded + steps_context_without_path."""

    steps_in: int
    """Steps of the data directory."""
    steps: int
    """Steps with a path."""
    steps_trained: int
    """Those of them with a weight above 0."""
    steps_context_without_path: int
    """Steps of weight 0 whose tokens no trained row holds."""
    steps_excluded_by_reason: dict[str, int]
    """Steps without a true row, by reason."""
    logical_tokens: int
    """Tokens of all trained rows."""
    chain_tokens: int
    """Tokens of the rows that no other row continues."""
    unique_tokens: int
    """Tokens of the tree."""
    predicted_speedup: float | None
    """Null: not predicted yet."""
    roots: int
    """Nodes without a parent."""
    leaves: int
    """Nodes without a child."""
    links: int
    """Steps whose parent is in the data."""
    links_unbroken: int
    """Links on which the parent's whole row is a prefix of the child's prompt."""
    prefix_breaks_by_cause: dict[str, int]
    """The other links, by cause."""
    steps_by_provenance: dict[str, int]
    """Steps with a path by where their token ids come from."""
    logged_ids_by_verdict: dict[str, int]
    """Steps with logged ids: used, text_differs, other_tokenizer."""
    end_tokens_by_cause: dict[str, int]
    """Steps by what decided whether their end token is trained."""
    prompts_proved: int
    """Prompts whose ids equal those of apply_chat_template."""
    prompts_logged: int
    """Prompts taken from the log as ids."""
    prompts_logged_equal: int
    """Those of them that apply_chat_template gives too."""
    prompts_continued: int
    """Prompts that continue logged ids by rendered text."""


def merge_prefixes(config: MergeConfig) -> MergeReport:
    """Render every step of a data directory, prove it, and write the tree of all prefixes.

    Raises:
        UsageError: the tokenizer has no chat template.
        NotFoundError: data, tokenizer or template is missing.
        OutputExistsError: the output exists and force is off.
        DataError: no step could be rendered, or none has a weight above 0.
    """
    output = Path(config.output)
    artefact.check_free(output, force=config.force)
    place = location.existing(config.data)
    tokenizer = tokenizers.load(config.tokenizer)
    chat = template.load(tokenizer, file=config.chat_template, kwargs=config.template_kwargs)
    table = query.load_steps(place)
    maker = RowMaker(table, tokenizer, chat, eos_when_unknown=config.eos_when_unknown)
    made, excluded = _make_rows(maker, len(table))
    weights = np.nan_to_num(table["loss_weight"].to_numpy())
    kept, ordered = _select(made, weights)
    _refuse_nothing(weights, kept, excluded, chat)
    forest, ends = build.merge([made[row].tokens for row in kept]) if kept else _nothing()
    found = links.check(table, made, maker)
    report = _report(made, kept, weights, forest, ends, excluded, found, maker)
    if not config.dry_run:
        _write(config, table, made, kept, forest, ends, maker, report)
    return report
