"""The plan: which packed row is read in which update of which phase, and by which rank.

The rows of a stage are shuffled by the seed, once for each epoch, and each order is cut into
updates and phases. An update has a multiple of --ranks rows, so that no rank waits, as far as the
end of an order allows. Stages follow each other, each with all its epochs.

Shapes: R packed rows of one stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from clawcli import ranks
from clawcli.export.config import ExportShardsConfig
from clawcli.store.manifest import Update


@dataclass(frozen=True, slots=True)
class StageRows:
    """What is planned of the packed rows of a stage."""

    number: int
    num_phases: int | None
    """Phases of one order; None = by updates_per_phase."""
    tokens: np.ndarray
    """int64 [R]."""
    costs: np.ndarray
    """int64 [R], multiply-adds."""
    blocks: np.ndarray
    """int64 [R]: rows of one block are read in one phase."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All updates, and the rows in the order in which they are stored: that of the first epochs."""

    updates: list[Update]
    order: list[np.ndarray]
    """For each stage int64 [R]: its rows in the order in which they are stored."""
    imbalance: float
    """Mean over updates of how much more the dearest rank computes than the mean of all."""


def make(stages: Sequence[StageRows], config: ExportShardsConfig, tokens_per_update: int) -> Plan:
    """Plan all stages.

    Args:
        stages: their packed rows.
        config: seed, epochs, ranks and phases.
        tokens_per_update: computed tokens of an update, about.
    """
    updates: list[Update] = []
    orders, uneven = [], []
    first_row = first_phase = 0
    for stage in stages:
        row_ids = np.empty(len(stage.tokens), np.int64)
        for epoch in range(config.epochs):
            phases = _phases(stage, epoch, config, tokens_per_update)
            if not epoch:
                order = np.concatenate([update for phase in phases for update in phase])
                row_ids[order] = first_row + np.arange(len(order))
                orders.append(order)
            for number, phase in enumerate(phases):
                for rows in phase:
                    mine = rows[np.argsort(row_ids[rows])]
                    found = ranks.split(stage.costs[mine], config.ranks)
                    uneven.append(ranks.imbalance(stage.costs[mine], found))
                    of_ranks = [row_ids[mine[places]].tolist() for places in found]
                    phase_number = first_phase + number
                    updates.append(Update(phase_number, stage.number, epoch, of_ranks))
            first_phase += len(phases)
        first_row += len(row_ids)
    return Plan(updates, orders, float(np.mean(uneven)))


def _phases(
    stage: StageRows, epoch: int, config: ExportShardsConfig, tokens_per_update: int
) -> list[list[np.ndarray]]:
    """Order the rows of a stage and cut the order into updates and phases."""
    # PCG64 is specified, and permutation kept stable by numpy, so a seed means the same everywhere
    seed = np.random.SeedSequence([config.seed, stage.number, epoch])
    generator = np.random.Generator(np.random.PCG64(seed))
    order = _shuffled(stage.blocks, generator)
    if not config.whole_trajectories:
        updates = _updates(order, stage.tokens, config.ranks, tokens_per_update)
        return _divided(updates, stage.num_phases, config.updates_per_phase)
    own = stage.blocks[order]
    starts = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    if stage.num_phases is None:
        wanted = tokens_per_update * config.updates_per_phase
        parts = _cut(order, starts, stage.tokens, wanted)
    else:
        parts = _cut_into(order, starts, stage.tokens, stage.num_phases)
    phases = []
    for rows in parts:
        mixed = rows[generator.permutation(len(rows))]
        phases.append(_updates(mixed, stage.tokens, config.ranks, tokens_per_update))
    return phases


def _shuffled(blocks: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Shuffle blocks, and keep the rows of each side by side: int64 [R]."""
    place = generator.permutation(int(blocks.max(initial=-1)) + 1)
    return np.argsort(place[blocks], kind="stable")


def _updates(
    rows: np.ndarray, tokens: np.ndarray, num_ranks: int, tokens_per_update: int
) -> list[np.ndarray]:
    """Cut rows into updates of about as many tokens, each of a multiple of num_ranks rows."""
    starts = np.arange(0, len(rows), num_ranks)
    return _cut(rows, starts, tokens, tokens_per_update)


def _divided(
    updates: list[np.ndarray], num_phases: int | None, updates_per_phase: int
) -> list[list[np.ndarray]]:
    """Cut updates into phases: of so many updates each, or into so many."""
    count = len(updates)
    if num_phases is None:
        edges = [*range(0, count, updates_per_phase), count]
    else:
        parts = min(num_phases, count)
        edges = [count * part // parts for part in range(parts + 1)]
    return [updates[a:b] for a, b in pairwise(edges)]


def _cut(
    rows: np.ndarray, starts: np.ndarray, tokens: np.ndarray, most_tokens: int
) -> list[np.ndarray]:
    """Cut rows at some of the places where they may be cut, so that no more tokens are together.

    Args:
        rows: int64, in order.
        starts: int64, ascending from 0: where a part may begin.
        tokens: int64 [R], of each row by its number.
        most_tokens: of a part, unless it cannot be cut.
    """
    sizes = np.add.reduceat(tokens[rows], starts).tolist()
    edges, room = [0], most_tokens
    for start, size in zip(starts.tolist(), sizes, strict=True):
        if start > edges[-1] and size > room:
            edges.append(start)
            room = most_tokens
        room -= size
    return [rows[a:b] for a, b in pairwise([*edges, len(rows)])]


def _cut_into(
    rows: np.ndarray, starts: np.ndarray, tokens: np.ndarray, num_parts: int
) -> list[np.ndarray]:
    """Cut rows at some of the places where they may be cut, into parts of about as many tokens.

    Returns:
        num_parts of them, or one for each place where there are fewer.
    """
    before = np.cumsum(tokens[rows]) - tokens[rows]
    num_parts = min(num_parts, len(starts))
    total = int(tokens[rows].sum())
    places = [0]
    for part in range(1, num_parts):
        place = int(np.searchsorted(before[starts], total * part / num_parts))
        # each part keeps a place, those that follow too
        places.append(min(max(place, places[-1] + 1), len(starts) - num_parts + part))
    return [rows[a:b] for a, b in pairwise([*starts[places].tolist(), len(rows)])]


def blocks(row_of_step: np.ndarray, trajectories: np.ndarray, num_rows: int) -> np.ndarray:
    """Join rows that hold steps of one trajectory.

    Args:
        row_of_step: int64 [S].
        trajectories: int64 [S], number of each step's trajectory.
        num_rows: R.

    Returns:
        int64 [R]: rows of equal numbers, from 0, have to stay together.

    Example:
        >>> blocks(np.array([0, 1, 1, 2]), np.array([7, 7, 8, 9]), 4).tolist()
        [0, 0, 1, 2]
    """
    lowest = np.arange(num_rows)
    while True:
        of_trajectory = np.full(int(trajectories.max(initial=-1)) + 1, num_rows)
        np.minimum.at(of_trajectory, trajectories, lowest[row_of_step])
        joined = lowest.copy()
        np.minimum.at(joined, row_of_step, of_trajectory[trajectories])
        joined = joined[joined]
        if (joined == lowest).all():
            return np.unique(lowest, return_inverse=True)[1]
        lowest = joined
