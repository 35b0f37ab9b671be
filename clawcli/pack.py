"""Pack step rows into training rows: consecutive rows of the tree's order, cut at a token target.

In depth-first order the rows that share most stand side by side, so cutting that order into runs
loses little: only the path across a cut is computed twice. Three ways to lay a run out:

    tree   one forest; a token that rows share is computed once
    chain  one causal row per leaf; a row that a leaf continues is trained on the leaf
    none   one causal row per step

Pure numpy. R step rows in depth-first order, each with its length and what it shares with the row
before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from clawcli.tree import Forest, from_sorted, separate

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


def cut(rows: Ordered, *, layout: Layout, max_tokens: int) -> list[tuple[int, int]]:
    """Cut the order greedily into runs that cost at most a target each.

    A run costs, as a tree, its first row and what each next row adds; as chains, its leaves; as
    single rows, all of them. A row longer than the target gets a run in which it costs all.

    Args:
        rows: step rows in depth-first order.
        layout: how shared tokens are used.
        max_tokens: the target.

    Returns:
        (start, end) pairs of places that cover the order. A run of chains ends with a leaf.

    Example:
        >>> rows = Ordered(np.arange(3), np.array([4, 6, 5]), np.array([0, 4, 3]))
        >>> cut(rows, layout=Layout.TREE, max_tokens=6)
        [(0, 2), (2, 3)]
    """
    count = len(rows.lengths)
    if layout is Layout.TREE:
        first, added = rows.lengths, rows.lengths - rows.lcps
    elif layout is Layout.CHAIN:
        added = np.where(leaves(rows), rows.lengths, 0)
        first = added
    else:
        first = added = rows.lengths
    total = np.concatenate([[0], np.cumsum(added)])
    runs = []
    start = 0
    while start < count:
        budget = max_tokens - first[start] + total[start + 1]
        end = int(np.searchsorted(total, budget, side="right")) - 1
        end = min(max(end, start + 1), count)
        if layout is Layout.CHAIN:
            end = _to_leaf(total, start, end)
        runs.append((start, end))
        start = end
    return runs


def _to_leaf(total: np.ndarray, start: int, end: int) -> int:
    """Move a cut of chains to the end of its last leaf; rows before a leaf belong to it."""
    if total[end] > total[start]:
        return int(np.searchsorted(total, total[end], side="left"))
    return int(np.searchsorted(total, total[start], side="right"))


def lay_out(
    forest: Forest, ends: np.ndarray, rows: Ordered, run: tuple[int, int], *, layout: Layout
) -> tuple[Forest, np.ndarray]:
    """Build the packed row of one run.

    Args:
        forest: the forest of all rows.
        ends: int [R] in input order, as for depth_first.
        rows: its result.
        run: (start, end) places in the order, from cut with the same layout.
        layout: how shared tokens are used.

    Returns:
        The packed forest and int32 [end - start]: the segment on whose path each row lies.
    """
    start, end = run
    segments = ends[rows.order[start:end]].tolist()
    if layout is Layout.TREE:
        lcps = rows.lcps[start:end].copy()
        lcps[0] = 0
        pairs = zip(segments, lcps.tolist(), strict=True)
        return from_sorted([forest.row(segment, lcp) for segment, lcp in pairs], lcps)
    if layout is Layout.CHAIN:
        own = owners(rows)[start:end] - start
        roots, places = np.unique(own, return_inverse=True)
        return separate([forest.row(segments[k]) for k in roots]), places.astype(np.int32)
    return separate([forest.row(k) for k in segments]), np.arange(end - start, dtype=np.int32)
