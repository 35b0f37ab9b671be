"""`claw export TREE`: a token tree to packed training rows with a plan.

Step rows in depth-first order are cut into packed rows, the packed rows shuffled by the seed, and
the shuffled order cut into updates and phases. The plan stands in the manifest, so training needs
no sampler: it reads rows in file order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from msgspec import Meta

from clawcli import config as configs
from clawcli import pack, schema
from clawcli.errors import DataError
from clawcli.store import arrow, artefact, rewards, shards, sidecars, tokenizers, trees, uids
from clawcli.store.expressions import Expression
from clawcli.store.frame import Frame
from clawcli.store.manifest import load_tokenizer
from clawcli.store.shards import PackedRow
from clawcli.store.trees import Tree

_Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""Tokens and updates are counted in int32."""
_Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]


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
    tokens_per_update: _Size | None = None
    """Computed tokens of an update, about; None = one packing target."""
    updates_per_phase: _Size = 8
    """Updates for which old log-probs and advantages stay frozen."""
    seed: _Seed = 0
    """Of the shuffle."""
    reward_expr: str | None = None
    """Numeric SQL expression over the steps that were merged, which becomes the reward of each
    attempt in place of the tree's; null = rewards are the tree's."""
    where_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """Seconds after which the expression is stopped."""
    force: bool = False
    """Replace shards that are there."""
    dry_run: bool = False
    """Do and report everything, write nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportShardsReport:
    """What `claw export TREE` did."""

    steps: int
    """Trained steps in the shards."""
    steps_left_out_by_reason: dict[str, int]
    """too_long: over max_step_tokens."""
    left_out: dict[str, str]
    """step_uid -> reason."""
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which packed row is trained when."""

    order: np.ndarray
    """int64 [rows]: run at each place of the shard order."""
    rows_per_update: list[int]
    updates_per_phase: int

    @property
    def num_updates(self) -> int:
        return len(self.rows_per_update)

    @property
    def num_phases(self) -> int:
        return -(-self.num_updates // self.updates_per_phase)

    def update_of_rows(self) -> np.ndarray:
        """int64 [rows] in shard order."""
        return np.repeat(np.arange(self.num_updates), self.rows_per_update)


def export_shards(config: ExportShardsConfig) -> ExportShardsReport:
    """Pack the trained steps of a tree into shards.

    Raises:
        UsageError: the output is the input, or touches an artefact.
        NotFoundError: the tree is missing.
        DataError: the input is no tree, a damaged one, or no step is left.
        OutputExistsError: the output exists and force is off.
    """
    source, output = Path(config.input), Path(config.output)
    artefact.check_output(output, kind=shards.KIND, force=config.force, inputs=[source])
    tree = trees.read(source)
    tokenizer = load_tokenizer(source, tree.manifest)
    layout = pack.Layout(config.merge)
    inputs = [artefact.describe_input(tree.path)]
    if config.reward_expr is not None:
        tree, origin = _with_rewards(tree, config.reward_expr, config.where_timeout_s)
        inputs.append(origin)
    steps, left_out = _choose(tree, config.max_step_tokens)
    ends = steps["end_node_id"].to_numpy()
    rows = pack.depth_first(tree.forest, ends)
    target = config.max_tokens_per_row or pack.target_tokens(rows.lengths)
    groups = steps["group_uid"].to_numpy(zero_copy_only=False)
    runs = pack.cut(rows, layout=layout, max_tokens=target, groups=groups)
    packed = [pack.lay_out(tree.forest, ends, rows, run, layout=layout) for run in runs]
    sizes = np.array([len(forest.token_ids) for forest, _ in packed])
    plan = _plan(sizes, config, config.tokens_per_update or target)
    computed, logical = int(sizes.sum()), int(rows.lengths.sum())
    report = ExportShardsReport(
        steps=len(steps),
        steps_left_out_by_reason={"too_long": len(left_out)} if left_out else {},
        left_out=dict.fromkeys(left_out, "too_long"),
        rows=len(runs),
        shards=plan.num_phases,
        tokens=computed,
        logical_tokens=logical,
        max_tokens_per_row=target,
        padding_frac=1 - computed / int(np.maximum(sizes, target).sum()),
        # (logical / computed) / (logical / unique), where unique is the tree of these steps alone
        merge_kept_frac=int((rows.lengths - rows.lcps).sum()) / computed,
        phases=plan.num_phases,
        updates=plan.num_updates,
    )
    if not config.dry_run:
        placed = _place_steps(steps, rows, runs, packed, plan)
        with artefact.create(
            output,
            kind=shards.KIND,
            force=config.force,
            config=configs.to_dict(config),
            inputs=inputs,
        ) as draft:
            for phase, group in _phases(plan, packed, placed):
                shards.write_phase(draft.path, phase, group)
            tokenizer.to_file(draft.path / tokenizers.FILE)
            draft.manifest.update(_describe(tree, config, plan, report))
    return report


def _with_rewards(tree: Tree, text: str, timeout_s: float) -> tuple[Tree, dict[str, Any]]:
    """Let an expression over the data that was merged be the reward of each attempt.

    Returns:
        The tree with other rewards, returns and group statistics; and the data, as an input.

    Raises:
        DataError: the data is gone, or is not what was merged.
        WhereError: the text is no numeric expression over one step.
    """
    origins = artefact.read_manifest(tree.path)["inputs"]
    origin = next((one for one in origins if one.get("kind") == "data"), None)
    if origin is None:
        raise DataError(f"{tree.path} does not say what it was merged from.", "Merge again.")
    place = rewards.opened(origin, f"{tree.path} was merged", "Bring it back.")
    frame = Frame(place)
    expression = Expression(text=text, flag="--reward-expr", timeout_s=timeout_s)
    rewards.choose(frame, lambda steps: rewards.by_attempt(steps, expression), at_hand=False)
    places = arrow.index_in(uids.binary(tree.paths["step_uid"]), frame.keys["step_uid"])
    if places.null_count:
        raise DataError(
            f"{places.null_count:,} steps of {tree.path} are not in {origin['path']}.",
            "Merge again.",
        )
    paths = tree.paths
    for number, field in enumerate(paths.schema):
        if field.name == "reward" or field.name in schema.FROZEN_NAMES:
            values = frame.column(field.name).take(places).cast(field.type)
            paths = paths.set_column(number, field, values)
    return replace(tree, paths=paths), sidecars.describe(place, frame.version)


def _choose(tree: Tree, max_step_tokens: int) -> tuple[pa.Table, list[str]]:
    """Take the steps that are trained and not too long; name those that are."""
    weights = np.nan_to_num(tree.paths["loss_weight"].to_numpy())
    fits = tree.paths["row_tokens"].to_numpy() <= max_step_tokens
    trained = weights > 0
    left_out = tree.paths["step_uid"].filter(pa.array(trained & ~fits)).to_pylist()
    steps = tree.paths.filter(pa.array(trained & fits))
    if not len(steps):
        long = f" and {len(left_out)} are longer than --max-step-tokens" if left_out else ""
        raise DataError(
            f"{tree.path} has no step to export: none has a weight above 0{long}.",
            "Raise --max-step-tokens." if left_out else "Merge data with steps to train.",
        )
    return steps, left_out


def _plan(sizes: np.ndarray, config: ExportShardsConfig, tokens_per_update: int) -> _Plan:
    # PCG64 is specified, and permutation kept stable by numpy, so a seed means the same everywhere
    order = np.random.Generator(np.random.PCG64(config.seed)).permutation(len(sizes))
    counts: list[int] = []
    room = 0
    for size in sizes[order].tolist():
        if size > room or not counts:
            counts.append(0)
            room = tokens_per_update
        counts[-1] += 1
        room -= size
    return _Plan(order, counts, config.updates_per_phase)


def _place_steps(
    steps: pa.Table,
    rows: pack.Ordered,
    runs: list[tuple[int, int]],
    packed: list[tuple[Any, np.ndarray]],
    plan: _Plan,
) -> list[list[dict[str, Any]]]:
    """Build the step entries of each run, with the place of the trajectory's next step."""
    names = {column.name for column in schema.SHARD_STEP} & set(steps.column_names)
    values = steps.select([*names, "loss_weight"]).to_pylist()
    row_ids = np.empty(len(runs), np.int64)
    row_ids[plan.order] = np.arange(len(runs))
    entries: list[list[dict[str, Any]]] = []
    places: dict[tuple[str, int], tuple[int, int]] = {}
    for (start, end), row_id, (_, segments) in zip(runs, row_ids.tolist(), packed, strict=True):
        entry = []
        for index, (step, segment) in enumerate(
            zip(rows.order[start:end].tolist(), segments.tolist(), strict=True)
        ):
            value = values[step]
            weight = value.pop("loss_weight")
            entry.append({**value, "segment": segment, "pi": 1.0, "weight": weight})
            places[value["trajectory_uid"], value["step_index"]] = row_id, index
        entries.append(entry)
    for entry in entries:
        for value in entry:
            following = places.get((value["trajectory_uid"], value["step_index"] + 1))
            value["next_row"], value["next_step"] = following or (None, None)
    return entries


def _phases(
    plan: _Plan, packed: list[tuple[Any, np.ndarray]], placed: list[list[dict[str, Any]]]
) -> Iterator[tuple[int, list[PackedRow]]]:
    updates = plan.update_of_rows()
    phases = updates // plan.updates_per_phase
    for phase in range(plan.num_phases):
        yield (
            phase,
            [
                PackedRow(
                    row_id=row_id,
                    phase=phase,
                    update=int(updates[row_id]),
                    forest=packed[plan.order[row_id]][0],
                    steps=placed[plan.order[row_id]],
                )
                for row_id in np.flatnonzero(phases == phase).tolist()
            ],
        )


def _describe(
    tree: Tree, config: ExportShardsConfig, plan: _Plan, report: ExportShardsReport
) -> dict[str, Any]:
    carried = ("tokenizer", "vocab_hash", "vocab_size", "template_hash", "eos_token_id")
    return {
        **{key: getattr(tree.manifest, key) for key in carried},
        "tokenizer_file": tokenizers.FILE,
        "merge": config.merge,
        "num_phases": plan.num_phases,
        "num_updates": plan.num_updates,
        "updates_per_phase": plan.updates_per_phase,
        "rows": report.rows,
        "steps": report.steps,
        "tokens": report.tokens,
        "left_out": report.left_out,
        "counts": configs.to_dict(report),
        "plan": {
            "seed": config.seed,
            "rows_per_update": plan.rows_per_update,
            "phase_of_update": [u // plan.updates_per_phase for u in range(plan.num_updates)],
        },
    }
