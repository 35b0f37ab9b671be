"""`claw merge-prefixes`: a data directory to a token tree.

Every step is rendered and proved, links are checked, steps of weight 0 stay where a trained row
holds all of their tokens, and the rows are merged on token ids alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from clawcli import config as configs
from clawcli import schema
from clawcli.errors import DataError
from clawcli.prefix import build, links, rows, template
from clawcli.prefix.exclude import Excluded
from clawcli.prefix.render import Renderer
from clawcli.prefix.rows import Row, RowMaker
from clawcli.store import artefact, location, query, registry, sidecars, tokenizers, trees
from clawcli.store import table as steps_table
from clawcli.tree import Forest

logger = logging.getLogger(__name__)

_EXAMPLES = 3
"""Excluded steps of each reason that the manifest names."""


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
    """Rendered steps by what decided whether their end token is trained."""
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
        UsageError: the tokenizer has no chat template, or the output touches the input.
        NotFoundError: data, tokenizer or template is missing.
        OutputExistsError: the output exists and force is off.
        DataError: no step could be rendered, or none has a weight above 0.
    """
    output = Path(config.output)
    source = location.parse(config.input).on_disk
    artefact.check_output(output, kind=trees.KIND, force=config.force, inputs=source)
    place = location.existing(config.input)
    version = steps_table.open_table(place.steps, place.version).version()
    tokenizer = tokenizers.load(config.tokenizer)
    chat = template.load(tokenizer, file=config.chat_template, kwargs=config.template_kwargs)
    renderer = Renderer(chat, tokenizer)
    table = query.load_steps(location.Location(place.path, version))
    maker = RowMaker(table, tokenizer, renderer, eos_when_unknown=config.eos_when_unknown)
    made, excluded = _make_rows(maker, table["step_uid"].to_pylist())
    trained = np.nan_to_num(table["loss_weight"].to_numpy()) > 0
    kept = _select(made, trained)
    if not kept:
        raise _nothing_left(trained, excluded)
    reasons = Counter(error.reason.value for error in excluded.values())
    forest, ends = build.merge([row.tokens for row in kept.values()])
    found = links.check(table, made, maker)
    counts = _count(kept, trained, forest)
    report = MergeReport(
        steps_in=len(table),
        steps=len(kept),
        steps_trained=int(trained[list(kept)].sum()),
        steps_context_without_path=sum(row is not None for row in made) - len(kept),
        steps_excluded_by_reason=_sorted(reasons),
        predicted_speedup=None,
        links=found.links,
        links_unbroken=found.links_unbroken,
        prefix_breaks_by_cause=_sorted(found.breaks_by_cause),
        steps_by_provenance=_sorted(Counter(row.provenance for row in kept.values())),
        logged_ids_by_verdict=_sorted(maker.logged.steps_by_verdict),
        end_tokens_by_cause=_sorted(maker.proof.end_tokens_by_cause),
        prompts_proved=maker.proof.prompts_proved,
        prompts_logged=maker.proof.prompts_logged,
        prompts_logged_equal=maker.proof.prompts_logged_equal,
        prompts_continued=maker.proof.prompts_continued,
        **counts,
    )
    if not config.dry_run:
        with artefact.create(
            output,
            kind=trees.KIND,
            force=config.force,
            config=configs.to_dict(config),
            inputs=[sidecars.describe(place, version)],
        ) as draft:
            trees.write(draft.path, forest, _paths(table, kept, ends), tokenizer)
            draft.manifest.update(
                _describe(maker, config),
                excluded_examples=_examples(excluded),
                decoded_frac_by_model=maker.logged.decoded_frac_by_model,
                counts=configs.to_dict(report),
            )
        registry.add(place, output, kind=trees.KIND, version=version)
    return report


def _make_rows(
    maker: RowMaker, uids: Sequence[str]
) -> tuple[list[Row | None], dict[str, Excluded]]:
    made: list[Row | None] = [None] * len(uids)
    excluded: dict[str, Excluded] = {}
    for row in rows.parents_first(maker.parents):
        parent = maker.parents[row]
        try:
            made[row] = maker.row(row, None if parent is None else made[parent])
        except Excluded as error:
            excluded[uids[row]] = error
            logger.info("step %s: %s: %s", uids[row], error.reason.value, error.detail)
    return made, excluded


def _select(made: Sequence[Row | None], trained: np.ndarray) -> dict[int, Row]:
    """Keep trained rows, and those of weight 0 that a trained row contains whole."""
    present = {place: row for place, row in enumerate(made) if row is not None}
    is_trained = trained[list(present)]
    if is_trained.all():
        return present
    ordered = build.sort_rows([row.tokens for row in present.values()])
    inside = build.contained(ordered, is_trained)
    return {place: row for (place, row), keep in zip(present.items(), inside, strict=True) if keep}


def _nothing_left(trained: np.ndarray, excluded: dict[str, Excluded]) -> DataError:
    if not trained.any():
        return DataError(
            "No step has a loss_weight above 0, so there is nothing to train.",
            "Curate with another expression.",
        )
    counts = Counter(error.reason.value for error in excluded.values())
    found = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    example = next(iter(excluded.values()))
    return DataError(
        f"No step that is to be trained could be rendered: {found}. The first of them: "
        f"{example.detail or example.reason.value}.",
        "Give another --chat-template or --template-kwargs; -v names each step.",
    )


def _examples(excluded: dict[str, Excluded]) -> dict[str, dict[str, str]]:
    """Keep the first steps of each reason for the manifest: reason -> step_uid -> detail."""
    examples: dict[str, dict[str, str]] = {}
    for uid, error in excluded.items():
        found = examples.setdefault(error.reason.value, {})
        if len(found) < _EXAMPLES:
            found[uid] = error.detail
    return examples


def _count(kept: dict[int, Row], trained: np.ndarray, forest: Forest) -> dict[str, int]:
    has_child = np.zeros(len(forest.segment_starts), bool)
    has_child[forest.segment_parents[forest.segment_parents >= 0]] = True
    ends = forest.row_lengths()
    return {
        "logical_tokens": sum(len(row.tokens) for place, row in kept.items() if trained[place]),
        "chain_tokens": int(ends[~has_child].sum(dtype=np.int64)),
        "unique_tokens": len(forest.token_ids),
        "roots": int((forest.segment_parents < 0).sum()),
        "leaves": int((~has_child).sum()),
    }


def _paths(table: pa.Table, kept: dict[int, Row], ends: np.ndarray) -> pa.Table:
    steps = table.take(pa.array(list(kept)))
    made = list(kept.values())
    mu_valid = steps["mu_valid"].to_pylist()
    mu_reason = steps["mu_invalid_reason"].to_pylist()
    for place, row in enumerate(made):
        if mu_valid[place] and row.logprobs is None:
            mu_valid[place], mu_reason[place] = False, "tokens_from_text"
    own = {
        "end_node_id": ends,
        "row_tokens": [len(row.tokens) for row in made],
        "row_hash": [trees.row_hash(row.tokens) for row in made],
        "response_start": [row.response_start for row in made],
        "response_end": [row.response_end for row in made],
        "rollout_logprobs": [row.logprobs for row in made],
        "is_last": [left == 0 for left in steps["steps_to_end"].to_pylist()],
        "token_provenance": [row.provenance for row in made],
        "mu_valid": mu_valid,
        "mu_invalid_reason": mu_reason,
    }
    return pa.table(
        {
            column.name: pa.array(own[column.name], column.type)
            if column.name in own
            else steps[column.name].cast(column.type)
            for column in schema.PATHS
        },
        schema=schema.arrow_schema(schema.PATHS),
    )


def _describe(maker: RowMaker, config: MergeConfig) -> dict[str, Any]:
    ends = maker.renderer.habits.turn_ends
    return {
        "tokenizer": maker.tokenizer.name,
        "vocab_hash": maker.tokenizer.vocab_hash,
        "vocab_size": maker.tokenizer.vocab_size,
        "template_hash": maker.renderer.template.template_hash,
        "template_kwargs": config.template_kwargs,
        "eos_token_id": ends[0].token_id,
        "turn_end_ids": [end.token_id for end in ends],
    }


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
