"""What `claw verify` compares of shards: rows, steps, links, costs, and the draw that weighs them.

That files are those of the manifest, and that rows stand where the plan wants them and are read
once in each epoch, was checked when the shards were opened.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from clawcli import cost, ranks, sampling
from clawcli.store import shards, uids
from clawcli.store.manifest import Plan
from clawcli.store.shard_cache import Group, PackedRow
from clawcli.tree import Forest, is_action_span

_SAME = 1e-9
"""Relative difference by which sums in another order may differ."""
_COLUMNS = ("step_uid", "trajectory_uid", "loss_weight", "sampling_weight", "pi", "weight")


def check_shards(opened: shards.Shards) -> list[str]:
    """Read all packed rows and say what is wrong with them."""
    found = _Found()
    tokens = 0
    for group in shards.read_groups(opened.path, opened.manifest):
        for place in range(group.num_rows):
            row = group.row(place)
            found.problems += [f"row {row.row_id}: {what}" for what in _check_row(row, opened)]
            found.links(row, int(opened.stages[row.row_id]))
            tokens += len(row.forest.token_ids)
        found.add(group)
    if found.problems:
        return found.problems
    if tokens != opened.manifest.tokens:
        found.problems.append(f"tokens is {tokens}, the manifest says {opened.manifest.tokens}")
    found.problems += found.broken_links()
    found.problems += _check_draws(found.steps(), opened.manifest.plan)
    found.problems += _check_balance(opened)
    found.problems += _check_counts(found.steps(), opened)
    if opened.manifest.plan.whole_trajectories:
        found.problems += _check_phases(found.rows_of_trajectories(), opened.manifest.plan)
    return found.problems


@dataclass(slots=True)
class _Found:
    """What is collected over all rows."""

    problems: list[str] = field(default_factory=list)
    _places: dict[tuple[int, str, int], tuple[int, int]] = field(default_factory=dict)
    """Stage, trajectory_uid and step_index -> row_id and place in its list."""
    _links: list[tuple[str, tuple[int, str, int], tuple[int, int]]] = field(default_factory=list)
    """step_uid, what its next step is, and where that is said to be; -1 = nowhere."""
    _tables: list[pa.Table] = field(default_factory=list)

    def links(self, row: PackedRow, stage: int) -> None:
        """Remember where steps stand, and where the next of each is said to be."""
        trajectories, names = row.steps.texts("trajectory_uid"), row.steps.texts("step_uid")
        indices, next_rows, next_steps = (
            row.steps.integers(name).tolist() for name in ("step_index", "next_row", "next_step")
        )
        for place, (trajectory, index) in enumerate(zip(trajectories, indices, strict=True)):
            if index >= 0:
                self._places[stage, trajectory, index] = row.row_id, place
            following = stage, trajectory, index + 1 if index >= 0 else -1
            self._links.append((names[place], following, (next_rows[place], next_steps[place])))

    def broken_links(self) -> list[str]:
        """Name the steps whose next one is not where they say."""
        return [
            f"step {name}: its next step is not at {at}"
            for name, following, at in self._links
            if self._places.get(following, (-1, -1)) != at
        ]

    def rows_of_trajectories(self) -> dict[tuple[int, str], set[int]]:
        """Find the rows of each trajectory, stage by stage."""
        rows = defaultdict(set)
        for (stage, trajectory, _), (row, _) in self._places.items():
            rows[stage, trajectory].add(row)
        return rows

    def add(self, group: Group) -> None:
        """Keep the columns that draws are checked by."""
        counts = np.diff(group.step_edges)
        columns = {name: group.columns.steps.field(name) for name in _COLUMNS}
        columns["stage"] = pa.array(np.repeat(group.stages, counts))
        self._tables.append(pa.table(columns))

    def steps(self) -> pa.Table:
        """All steps, with their stage."""
        return pa.concat_tables(self._tables)


def _check_row(row: PackedRow, opened: shards.Shards) -> Iterator[str]:
    problems = check_forest(row.forest, siblings=False)
    if problems:
        yield from problems
        return
    vocab_size = opened.manifest.vocab_size
    lengths = row.forest.row_lengths().astype(np.int64)
    names = row.steps.texts("step_uid")
    segments, starts, ends = (
        row.steps.integers(name) for name in ("segment", "response_start", "response_end")
    )
    if not 0 <= row.forest.token_ids.min() <= row.forest.token_ids.max() < vocab_size:
        yield f"it holds token ids beyond the {vocab_size} of the vocabulary"
    exists = (segments >= 0) & (segments < len(lengths))
    for place in np.flatnonzero(~exists):
        yield f"step {names[place]} names segment {segments[place]}"
    if not exists.all():
        return
    _, counts = row.steps.rollout_logprobs()
    has_logprobs = row.steps.has_logprobs
    for place in range(len(names)):
        tokens = int(lengths[segments[place]])
        span = int(starts[place]), int(ends[place])
        for what in check_span(*span, tokens, int(counts[place]) if has_logprobs[place] else None):
            yield f"step {names[place]}: {what}"
    begins = lengths - (row.forest.segment_ends - row.forest.segment_starts)
    work = cost.Work(
        tokens=len(row.forest.token_ids),
        head_tokens=int((ends - starts).sum()),
        pairs=int((cost.causal_pairs(lengths) - cost.causal_pairs(begins)).sum()),
    )
    computed = cost.SIZES[cost.DEFAULT_SIZE].multiply_adds(work)
    if computed != opened.costs[row.row_id]:
        yield f"its cost is {computed}, not {opened.costs[row.row_id]}"


def check_forest(forest: Forest, *, siblings: bool = True) -> list[str]:
    """Say what is wrong with the segments of a forest; siblings = none of them may start alike."""
    starts, parents = forest.segment_starts, forest.segment_parents
    if not len(starts) or starts[0] != 0 or np.any(np.diff(starts) <= 0):
        return ["the segments are not cut in order"]
    if starts[-1] >= len(forest.token_ids) or not _is_pre_order(parents.tolist()):
        return ["the segments are not in depth-first pre-order"]
    if siblings:
        begins = np.stack([parents, forest.token_ids[starts]], axis=1)
        if len(np.unique(begins, axis=0)) < len(begins):
            return ["two siblings start with the same token"]
    return []


def _is_pre_order(parents: list[int]) -> bool:
    """Tell whether each segment continues one on the path to the segment before it."""
    path: list[int] = []
    for segment, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        if not path and parent != -1:
            return False
        path.append(segment)
    return True


def check_span(start: int, end: int, row_tokens: int, num_logprobs: int | None) -> list[str]:
    """Say what is wrong with the span of an action; num_logprobs = None where there are none."""
    problems = []
    if not is_action_span(start, end, row_tokens):
        problems.append(f"its span {start}..{end} is not inside its {row_tokens} tokens")
    if num_logprobs is not None and num_logprobs != end - start:
        problems.append(f"it has {num_logprobs} log-probs for {end - start} tokens")
    return problems


def _check_draws(steps: pa.Table, plan: Plan) -> Iterator[str]:
    """Draw and weigh the steps of each stage again, from their keys."""
    stage_of_step = steps["stage"].to_numpy()
    for number, draw in enumerate(plan.stages):
        mine = steps.filter(pa.array(stage_of_step == number))
        names = mine["step_uid"].to_pylist()
        for name, count in Counter(names).items():
            if count != 1:
                yield f"step {name} stands {count} times in stage {number}"
        name = "trajectory_uid" if plan.unit == "trajectory" else "step_uid"
        keys = uids.binary(mine[name])
        if len(keys.unique()) != draw.units:
            yield f"stage {number} holds {len(keys.unique())} units, the plan says {draw.units}"
        weights, pi = mine["sampling_weight"].to_numpy(), mine["pi"].to_numpy()
        for place in np.flatnonzero(~(np.isfinite(weights) & (weights > 0))):
            yield f"step {names[place]}: sampling_weight is {weights[place]}"
            return
        threshold = np.inf if draw.threshold is None else draw.threshold
        uniform = sampling.uniform_keys(uids.halves(keys), plan.seed, sampling.stage_name(number))
        for place in np.flatnonzero(~(sampling.exponential_keys(weights, uniform) < threshold)):
            yield f"step {names[place]} was not drawn in stage {number} with seed {plan.seed}"
        expected = sampling.inclusion(weights, threshold)
        factors = sampling.importance(pi, plan.beta)
        total = mine["loss_weight"].to_numpy() * factors
        for column, found, want in (
            ("pi", pi, expected),
            ("weight", mine["weight"].to_numpy(), total),
        ):
            for place in np.flatnonzero(~(np.abs(found - want) <= _SAME * np.abs(want))):
                yield f"step {names[place]}: {column} is {found[place]}, not {want[place]}"
        if factors.max() > draw.importance_weight_bound * (1 + _SAME):
            yield f"a weight of stage {number} exceeds its bound"


def _check_balance(opened: shards.Shards) -> Iterator[str]:
    """Compare the work of ranks with what the plan says of it."""
    plan = opened.manifest.plan
    uneven = [ranks.imbalance(opened.costs, update.rows) for update in plan.updates]
    if abs(float(np.mean(uneven)) - plan.rank_imbalance_frac) > _SAME:
        yield f"rank_imbalance_frac is {np.mean(uneven)}, not {plan.rank_imbalance_frac}"


def _check_counts(steps: pa.Table, opened: shards.Shards) -> Iterator[str]:
    """Compare the report in the manifest with what the files hold."""
    manifest, plan = opened.manifest, opened.manifest.plan
    importance = steps["weight"].to_numpy() / steps["loss_weight"].to_numpy()
    found = {
        "steps": len(steps),
        "trajectories": len(steps["trajectory_uid"].unique()),
        "rows": len(opened.costs),
        "shards": len(opened.first_rows),
        "tokens": manifest.tokens,
        "phases": manifest.num_phases,
        "updates": len(plan.updates),
        "fillers": sum(update.fillers for update in plan.updates),
        "epochs": plan.epochs,
        "ranks": plan.ranks,
    }
    for key, count in found.items():
        if getattr(manifest.counts, key) != count:
            yield f"{key} is {count}, the report in the manifest says {getattr(manifest.counts, key)}"
    if abs(importance.max() - manifest.counts.importance_weight_max) > _SAME * importance.max():
        yield f"importance_weight_max is {importance.max()}, not as the report in the manifest says"


def _check_phases(trajectories: dict[tuple[int, str], set[int]], plan: Plan) -> Iterator[str]:
    """Name trajectories that are read in several phases of an epoch, where none may be."""
    for epoch in range(plan.epochs):
        phase_of_row = {
            row: update.phase
            for update in plan.updates
            if update.epoch == epoch
            for row in update.row_ids
        }
        for (_, trajectory), rows in trajectories.items():
            if len({phase_of_row[row] for row in rows}) > 1:
                yield f"trajectory {trajectory} is read in several phases of epoch {epoch}"
