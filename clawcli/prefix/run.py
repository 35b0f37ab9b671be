"""`claw merge-prefixes`: a data directory to a token tree.

Every step is rendered and proved, links are checked, steps of weight 0 stay where a trained row
holds all of their tokens, and the rows are merged on token ids alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from clawcli import config as configs
from clawcli import cost, schema
from clawcli.engine import processors
from clawcli.errors import DataError, UsageError
from clawcli.pack import Ordered
from clawcli.prefix import advice, build, gather, links, make, savings, template
from clawcli.prefix import report as reports
from clawcli.prefix.config import MergeConfig
from clawcli.prefix.exclude import Excluded
from clawcli.prefix.render import Renderer
from clawcli.prefix.report import MergeReport
from clawcli.store import artefact, location, query, registry, sidecars, tokenizers, trees
from clawcli.store import table as steps_table

_STEPS_FOR_WORKERS = 20_000
"""Fewer steps are rendered before other processes have started."""
_EXAMPLES = 3
"""Excluded steps of each reason that the manifest names."""


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
    shape = _shape(config.model_size)
    tokenizer = tokenizers.load(config.tokenizer)
    chat = template.load(tokenizer, file=config.chat_template, kwargs=config.template_kwargs)
    renderer = Renderer(chat, tokenizer, reasoning=config.reasoning)
    table = query.load_steps(location.Location(place.path, version))
    trained = np.nan_to_num(table["loss_weight"].to_numpy()) > 0
    with TemporaryDirectory(prefix="claw-") as scratch:
        settings = make.Settings(eos_when_unknown=config.eos_when_unknown, prove=config.prove)
        rows = Path(scratch) / "rows"
        workers = config.workers or (processors() if len(table) >= _STEPS_FOR_WORKERS else 1)
        made = gather.gather(table, tokenizer, renderer, settings, rows, workers=workers)
        with made.spool:
            ordered = _order(made, trained, keep_context=config.keep_context, workers=workers)
            if not len(ordered.order):
                raise _nothing_left(trained, made.excluded)
            forest, ends = build.assemble(made.spool, ordered, file=Path(scratch) / "tokens")
        kept = made.places[ordered.order]
        in_table = np.argsort(kept)
        kept, ends = kept[in_table], ends[in_table]
        facts = [made.facts[row] for row in kept.tolist()]
        spans = np.array([[fact.response_start, fact.response_end] for fact in facts])
        saved = savings.measure(forest, ends, spans, trained[kept], shape)
        report = reports.report(
            made,
            facts,
            trained[kept],
            forest,
            saved,
            steps_in=len(table),
            model_size=config.model_size,
        )
        advice.warn(made.links, table, tokenizer, renderer, config)
        if not config.dry_run:
            with artefact.create(
                output,
                kind=trees.KIND,
                force=config.force,
                config=configs.to_dict(config),
                inputs=[sidecars.describe(place, version)],
            ) as draft:
                trees.write(draft.path, forest, _paths(table, kept, facts, ends), tokenizer)
                draft.manifest.update(
                    _describe(tokenizer, renderer, config),
                    excluded_examples=_examples(made.excluded),
                    prefix_break_examples=_break_examples(made.links),
                    decoded_frac_by_model=made.judged.decoded_frac_by_model,
                    counts=configs.to_dict(report),
                )
            registry.add(place, output, kind=trees.KIND, version=version)
    return report


def _order(
    made: gather.Gathered, trained: np.ndarray, *, keep_context: bool, workers: int
) -> Ordered:
    """Sort the rows that have a path: trained ones, and context that a trained row holds whole."""
    ordered = build.sort_rows(made.spool, workers=workers)
    is_trained = trained[made.places]
    if not is_trained.any():
        return ordered.only(is_trained)
    if is_trained.all() or keep_context:
        return ordered
    return ordered.only(build.contained(ordered, is_trained))


def _shape(name: str) -> cost.Shape:
    if name not in cost.SIZES:
        raise UsageError(f"There is no model size {name}.", f"Choose of {', '.join(cost.SIZES)}.")
    return cost.SIZES[name]


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


def _break_examples(found: links.Links) -> dict[str, list[dict[str, str | None]]]:
    return {
        cause: [
            {
                "step_uid": each.step_uid,
                "parent_step_uid": each.parent_step_uid,
                "parent_text": each.parent_text,
                "child_text": each.child_text,
            }
            for each in examples
        ]
        for cause, examples in sorted(found.examples_by_cause.items())
    }


def _paths(
    table: pa.Table, kept: np.ndarray, facts: Sequence[gather.Fact], ends: np.ndarray
) -> pa.Table:
    steps = table.take(pa.array(kept))
    mu_valid = steps["mu_valid"].to_pylist()
    mu_reason = steps["mu_invalid_reason"].to_pylist()
    for place, fact in enumerate(facts):
        if mu_valid[place] and fact.logprobs is None:
            mu_valid[place], mu_reason[place] = False, "tokens_from_text"
    own = {
        "end_node_id": ends,
        "row_tokens": [fact.row_tokens for fact in facts],
        "row_hash": [fact.row_hash for fact in facts],
        "response_start": [fact.response_start for fact in facts],
        "response_end": [fact.response_end for fact in facts],
        "rollout_logprobs": [fact.logprobs for fact in facts],
        "is_last": [left == 0 for left in steps["steps_to_end"].to_pylist()],
        "token_provenance": [fact.provenance for fact in facts],
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


def _describe(
    tokenizer: tokenizers.Tokenizer, renderer: Renderer, config: MergeConfig
) -> dict[str, Any]:
    ends = renderer.habits.turn_ends
    return {
        "tokenizer": tokenizer.name,
        "vocab_hash": tokenizer.vocab_hash,
        "vocab_size": tokenizer.vocab_size,
        "template_hash": renderer.template.template_hash,
        "template_kwargs": config.template_kwargs,
        "eos_token_id": ends[0].token_id,
        "turn_end_ids": [end.token_id for end in ends],
    }
