"""Lay runs of step rows out as packed rows: where their tokens lie in the tree, how they are cut.

All runs are laid out at once, without their tokens: a packed row is a list of pieces of the tree,
and its segments and steps are counted from its own beginning. The tokens are gathered when a row is
written, so that they may lie on disk.

Pure numpy. R packed rows, Q sequences (what a row holds: step rows, or leaves for chains), K
segments, P pieces, S steps in depth-first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clawcli import cost
from clawcli.pack import Layout, Ordered, leaves, owners
from clawcli.tree import Forest, cut_sorted


@dataclass(frozen=True, slots=True)
class Packed:
    """Packed rows, each from edge r to edge r + 1 of what it is made of."""

    tokens: np.ndarray
    """int64 [R]: tokens of each row."""
    pairs: np.ndarray
    """int64 [R]: pairs of a token and one that it sees, itself included."""
    step_edges: np.ndarray
    """int64 [R + 1], in the order of depth_first."""
    segment_edges: np.ndarray
    """int64 [R + 1]."""
    piece_edges: np.ndarray
    """int64 [R + 1]."""
    segment_starts: np.ndarray
    """int32 [K]: first token of each segment in its row."""
    segment_parents: np.ndarray
    """int32 [K]: parent segment in the same row; -1 = root."""
    step_segments: np.ndarray
    """int32 [S]: segment of the row on whose path each step lies."""
    piece_starts: np.ndarray
    """int64 [P]: place in the tree's tokens."""
    piece_ends: np.ndarray
    """int64 [P]: one past the last."""

    def token_ids(self, tokens: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Gather the tokens of some rows, one after the other.

        Args:
            tokens: int32, of the tree.
            rows: int64, which rows.
        """
        pieces = ranges(self.piece_edges[rows], self.piece_edges[rows + 1])
        bounds = zip(
            self.piece_starts[pieces].tolist(), self.piece_ends[pieces].tolist(), strict=True
        )
        return np.concatenate([np.zeros(0, np.int32), *(tokens[a:b] for a, b in bounds)])

    def forest(self, tokens: np.ndarray, row: int) -> Forest:
        """Build one packed row."""
        segments = slice(*self.segment_edges[row : row + 2].tolist())
        return Forest(
            self.token_ids(tokens, np.array([row])),
            self.segment_starts[segments],
            self.segment_parents[segments],
        )


def ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Count from each start to its end, one after the other.

    Example:
        >>> ranges(np.array([5, 0]), np.array([8, 2])).tolist()
        [5, 6, 7, 0, 1]
    """
    sizes = ends - starts
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)


def lay_out(
    forest: Forest,
    ends: np.ndarray,
    rows: Ordered,
    runs: Sequence[tuple[int, int]],
    *,
    layout: Layout,
) -> Packed:
    """Lay out all runs of an order.

    Args:
        forest: the forest of all rows.
        ends: int [S] in input order, as for pack.depth_first.
        rows: its result.
        runs: (start, end) places in the order, from pack.cut with the same layout.
        layout: how shared tokens are used.

    Returns:
        A packed row for each run.
    """
    edges = np.array([start for start, _ in runs] + [len(rows.order)], np.int64)
    places = np.arange(len(rows.order))
    lcps = np.zeros(len(places), np.int64)
    if layout is Layout.TREE:
        lcps = rows.lcps.astype(np.int64)
        lcps[edges[:-1]] = 0  # each packed row begins at a root
    elif layout is Layout.CHAIN:
        places = np.flatnonzero(leaves(rows))
    lengths, lcps = rows.lengths[places].astype(np.int64), lcps[places]
    sequence_edges = np.searchsorted(places, edges)
    starts, parents, last = cut_sorted(lengths, lcps)
    tokens = _per_row(lengths - lcps, sequence_edges)
    token_edges = np.append(0, np.cumsum(tokens))
    segment_edges = np.searchsorted(starts, token_edges)
    row_of_segment = np.searchsorted(token_edges, starts, side="right") - 1
    own_last = last
    if layout is Layout.CHAIN:
        own_last = last[np.searchsorted(places, owners(rows))]
    row_of_step = np.searchsorted(edges, np.arange(len(rows.order)), side="right") - 1
    sources = _pieces(forest, ends[rows.order[places]].astype(np.int64), lcps)
    return Packed(
        tokens=tokens,
        pairs=_per_row(cost.causal_pairs(lengths) - cost.causal_pairs(lcps), sequence_edges),
        step_edges=edges,
        segment_edges=segment_edges,
        piece_edges=sources.edges[sequence_edges],
        segment_starts=(starts - token_edges[row_of_segment]).astype(np.int32),
        segment_parents=np.where(parents < 0, -1, parents - segment_edges[row_of_segment]).astype(
            np.int32
        ),
        step_segments=(own_last - segment_edges[row_of_step]).astype(np.int32),
        piece_starts=sources.starts,
        piece_ends=sources.ends,
    )


def _per_row(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    totals = np.append(0, np.cumsum(values))
    return totals[edges[1:]] - totals[edges[:-1]]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Where the tokens of sequences lie."""

    edges: np.ndarray
    """int64 [Q + 1]."""
    starts: np.ndarray
    ends: np.ndarray


def _pieces(forest: Forest, last: np.ndarray, depths: np.ndarray) -> _Pieces:
    """Find where the tokens of sequences lie that each begin at a depth.

    Args:
        forest: the tree.
        last: int64 [Q], node at whose end each sequence ends.
        depths: int64 [Q], depth of its first token.
    """
    node_starts, node_ends = forest.segment_starts.astype(np.int64), forest.segment_ends
    node_depths = forest.segment_depths()
    adds = node_depths[last] + node_ends[last] - node_starts[last] > depths
    sequence = np.flatnonzero(adds)
    node = last[sequence]
    found = []
    while len(sequence):
        # from the end of each sequence up; most end within the first node
        skipped = np.maximum(depths[sequence] - node_depths[node], 0)
        found.append((sequence, node_starts[node] + skipped, node_ends[node].astype(np.int64)))
        goes_on = node_depths[node] > depths[sequence]
        sequence, node = sequence[goes_on], forest.segment_parents[node[goes_on]]
    level = np.concatenate([np.full(len(s), -k) for k, (s, _, _) in enumerate(found)] or [last[:0]])
    owner, starts, ends = (
        np.concatenate([each[k] for each in found] or [last[:0]]) for k in range(3)
    )
    order = np.lexsort((level, owner))
    counts = np.bincount(owner, minlength=len(last))
    return _Pieces(np.append(0, np.cumsum(counts)), starts[order], ends[order])
