"""Clauses about trajectories and groups: limits and draws.

A trajectory takes part with the steps of it that are left, and stays or goes with all of them. What
is drawn depends on the seed and on uids alone, never on the order of rows or on threads.
"""

from __future__ import annotations

import numpy as np

from clawcli import sampling
from clawcli.store.frame import Frame
from clawcli.store.units import Members


def best(
    units: Members, left: np.ndarray, ranked: np.ndarray, num: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the units with the highest scores; of equal ones the lowest uids.

    Returns:
        bool [U]: chosen; and those that have a score.
    """
    is_known = ~np.isnan(ranked)
    places = np.flatnonzero(left & is_known)
    order = np.lexsort((units.keys[places, 1], units.keys[places, 0], -ranked[places]))
    chosen = np.zeros(len(left), bool)
    chosen[places[order[:num]]] = True
    return chosen, is_known


def drawn(
    units: Members, left: np.ndarray, amount: float, seed: int, *, is_share: bool
) -> np.ndarray:
    """Draw units: a share of them, each by itself, or a number of them.

    Returns:
        bool [U].
    """
    keys = sampling.uniform_keys(units.keys, seed, "sample")
    if is_share:
        return keys < amount
    places = np.flatnonzero(left)
    order = np.lexsort((units.keys[places, 1], units.keys[places, 0], keys[places]))
    chosen = np.zeros(len(left), bool)
    chosen[places[order[: int(amount)]]] = True
    return chosen


def at_most(
    units: Members, left: np.ndarray, frame: Frame, num: int, rank: np.ndarray
) -> np.ndarray:
    """Choose at most a number of units of each group, those that come first by rank.

    Args:
        units: what is chosen among.
        left: bool [U].
        frame: the steps of the units.
        num: how many of each group.
        rank: float64 [U], low comes first; NaN last.
    """
    group = np.zeros(len(left), np.int64)
    group[units.of_step] = frame.groups
    places = np.flatnonzero(left)
    keys = units.keys[places]
    order = places[np.lexsort((keys[:, 1], keys[:, 0], rank[places], group[places]))]
    sizes = np.bincount(group[order], minlength=int(group.max(initial=-1)) + 1)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.zeros(len(left), bool)
    chosen[order[np.arange(len(order)) - starts < num]] = True
    return chosen


def draws(units: Members, seed: int) -> np.ndarray:
    """Draw the order of units where nothing ranks them: float64 [U]."""
    return sampling.uniform_keys(units.keys, seed, "limit_per_group")
