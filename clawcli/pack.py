"""Pack step rows into training rows: consecutive rows of the tree's order, cut at a token target.

In depth-first order the rows that share most stand side by side, so cutting that order into runs
loses little: only the path across a cut is computed twice. Where to cut is chosen so that no other
cuts of that order cost less. A run is laid out in one of three ways (layout.py):

    tree   one forest; a token that rows share is computed once
    chain  one causal row per leaf; a row that a leaf continues is trained on the leaf
    none   one causal row per step

Pure numpy. R step rows in depth-first order, each with its length and what it shares with the row
before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from clawcli import cost
from clawcli.tree import Forest

MIN_TARGET_TOKENS = 2048
"""A smaller target would cut short rows apart without saving memory that matters."""


class Layout(StrEnum):
    """How shared tokens are used (--merge)."""

    TREE = "tree"
    """Computed once for all rows that share them."""
    CHAIN = "chain"
    """Computed once for all steps along one path."""
    NONE = "none"
    """Computed for each step."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """Step rows in depth-first order."""

    order: np.ndarray
    """int64 [R]: place of each row in the input; equal rows keep input order."""
    lengths: np.ndarray
    """int64 [R]: tokens of each row."""
    lcps: np.ndarray
    """int64 [R]: tokens shared with the row before; 0 for the first."""

    def only(self, keep: np.ndarray) -> Ordered:
        """Leave out rows.

        Args:
            keep: bool, by place in the input.
        """
        places = np.flatnonzero(keep[self.order])
        lcps = np.zeros(len(places), np.int64)
        if len(places) > 1:
            # two rows share what the least of the steps between them leaves
            lcps[1:] = np.minimum.reduceat(self.lcps[: places[-1] + 1], places[:-1] + 1)
        return Ordered(self.order[places], self.lengths[places], lcps)

    def computed_tokens(self, starts: Sequence[int]) -> int:
        """Count the tokens that runs compute as trees.

        Args:
            starts: where the runs begin, the first at 0.
        """
        # the first row of a run is computed whole, of the others what each adds
        return int((self.lengths - self.lcps).sum() + self.lcps[starts].sum())


def depth_first(forest: Forest, ends: np.ndarray) -> Ordered:
    """Order rows of a forest depth-first and measure what neighbours share.

    Between two neighbours the path leaves at the shallowest segment that begins after the first
    row's end, so a minimum over segments replaces any comparison of tokens.

    Args:
        forest: the forest.
        ends: int [R], the segment at whose end each row ends.

    Example:
        >>> forest = Forest(np.int32([1, 2, 3, 4]), np.int32([0, 1, 3]), np.int32([-1, 0, 0]))
        >>> rows = depth_first(forest, np.int32([2, 0, 1]))
        >>> rows.order.tolist(), rows.lengths.tolist(), rows.lcps.tolist()
        ([1, 2, 0], [1, 3, 2], [0, 1, 1])
    """
    depths = forest.segment_depths().astype(np.int64)
    order = np.argsort(ends, kind="stable")
    last = ends[order].astype(np.int64)
    lengths = (depths + forest.segment_ends - forest.segment_starts)[last]
    lcps = np.zeros(len(order), np.int64)
    moved = np.flatnonzero(last[1:] > last[:-1]) + 1
    lcps[1:] = lengths[:-1]  # an equal row shares all
    if len(moved):
        # rows that end where the row before ends lie between, so the ranges join without gaps
        lcps[moved] = np.minimum.reduceat(depths[: last[-1] + 1], last[moved - 1] + 1)
    return Ordered(order, lengths, lcps)


def leaves(rows: Ordered) -> np.ndarray:
    """Find the rows that no later row continues or equals: bool [R]."""
    return np.append(rows.lcps[1:], -1) < rows.lengths


def owners(rows: Ordered) -> np.ndarray:
    """Give each row to the first leaf, in depth-first order, that passes through its end.

    Returns:
        int64 [R]: places in the order; a leaf owns itself.
    """
    places = np.flatnonzero(leaves(rows))
    return places[np.searchsorted(places, np.arange(len(rows.lengths)))]


def target_tokens(lengths: np.ndarray) -> int:
    """Choose a packing target: the 99th percentile of row lengths, up to a power of two.

    Example:
        >>> target_tokens(np.array([100, 5000]))
        8192
    """
    percentile = float(np.percentile(lengths, 99)) if len(lengths) else 0.0
    return max(MIN_TARGET_TOKENS, 1 << max(0, int(np.ceil(percentile)) - 1).bit_length())


def cut(
    rows: Ordered,
    *,
    layout: Layout,
    max_tokens: int,
    groups: np.ndarray | None = None,
    shape: cost.Shape = cost.SIZES[cost.DEFAULT_SIZE],
) -> list[tuple[int, int]]:
    """Cut the order into runs of at most a target each, at the least cost that cuts of it can have.

    A run costs, as a tree, its first row and what each next row adds; as chains, its leaves; as
    single rows, all of them: tokens and attended pairs, weighed as a model of that shape computes
    them. Of cuts that cost the same, those win that part fewer groups, then those with fewer runs.
    A row longer than the target gets a run of its own.

    Both sums of a run are a difference of two running totals, so the best last run that ends at a
    place is a minimum over a window that only moves on: the time is linear in rows.

    Args:
        rows: step rows in depth-first order.
        layout: how shared tokens are used.
        max_tokens: the target.
        groups: int [R] by place in the input, what should stay together; None = nothing.
        shape: of the model that will be trained.

    Returns:
        (start, end) pairs of places that cover the order. A run of chains ends with a leaf.

    Example:
        >>> rows = Ordered(np.arange(3), np.array([4, 6, 5]), np.array([0, 4, 3]))
        >>> cut(rows, layout=Layout.TREE, max_tokens=6)
        [(0, 2), (2, 3)]
    """
    units = _units(rows, layout, groups)
    starts = _cheapest(units, max_tokens, shape)
    edges = [int(units.starts[unit]) for unit in starts] + [len(rows.lengths)]
    return list(pairwise(edges))


@dataclass(frozen=True, slots=True)
class _Units:
    """What a run is made of, U of them: rows, or for chains a leaf with the rows it continues."""

    starts: np.ndarray
    """int64 [U]: first place of each in the order."""
    lengths: np.ndarray
    """int64 [U]: tokens of each, whole."""
    shared: np.ndarray
    """int64 [U]: tokens that it does not add where the unit before is in the same run."""
    parts_group: np.ndarray
    """bool [U]: a cut before it parts a group."""


def _units(rows: Ordered, layout: Layout, groups: np.ndarray | None) -> _Units:
    starts, last = np.arange(len(rows.lengths)), np.arange(len(rows.lengths))
    if layout is Layout.CHAIN:
        last = np.flatnonzero(leaves(rows))
        starts = np.append(0, last[:-1] + 1) if len(last) else last
    parts = np.zeros(len(starts), bool)
    if groups is not None and len(starts):
        own = groups[rows.order]
        parts[1:] = own[starts[1:]] == own[starts[1:] - 1]
    lengths = rows.lengths[last].astype(np.int64)
    shared = rows.lcps.astype(np.int64) if layout is Layout.TREE else np.zeros_like(lengths)
    return _Units(starts, lengths, shared, parts)


def _cheapest(units: _Units, max_tokens: int, shape: cost.Shape) -> list[int]:
    """Find the units at which the runs of the cheapest cuts start."""
    count = len(units.lengths)
    added = np.append(0, np.cumsum(units.lengths - units.shared)).tolist()
    shared = units.shared.tolist()
    whole, saved = _costs(units.lengths, shape), _costs(units.shared, shape)
    # as the first of a run a unit makes one more, and may part a group
    begins = (units.parts_group * _PARTED + 1).tolist()
    least = [0]
    """What the best cuts of the units before a place cost."""
    came_from = [0]
    total = 0
    keys: deque[int] = deque()
    starts: deque[int] = deque()
    for unit in range(count):
        # as the first of a run this unit also costs what it shares with the one before
        key = least[unit] + saved[unit] - total + begins[unit]
        while keys and keys[-1] >= key:
            keys.pop()
            starts.pop()
        keys.append(key)
        starts.append(unit)
        total += whole[unit] - saved[unit]
        # what a run from a start costs in tokens never grows with the start, so the window moves on
        most = max_tokens - added[unit + 1]
        while shared[starts[0]] - added[starts[0]] > most and starts[0] < unit:
            keys.popleft()
            starts.popleft()
        least.append(keys[0] + total)
        came_from.append(starts[0])
    found = []
    place = count
    while place > 0:
        place = came_from[place]
        found.append(place)
    return found[::-1]


_PARTED = 1 << 40
_COST = 1 << 80
"""A cost counts before groups that are parted, and those before runs: one integer holds all three.
No order has 2 ** 40 units."""


def _costs(tokens: np.ndarray, shape: cost.Shape) -> list[int]:
    """Multiply-adds of the first tokens of rows, the head left out: it is the same in any cut."""
    # Python's integers: 70b times a billion tokens does not fit into 64 bits
    per_token, per_pair = shape.per_token * _COST, shape.per_pair * _COST
    pairs = cost.causal_pairs(tokens).tolist()
    return [n * per_token + p * per_pair for n, p in zip(tokens.tolist(), pairs, strict=True)]
