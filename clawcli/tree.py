"""Geometry of token forests: where a token stands, who its parent is, which tokens lead to it.

A forest is what a token tree and a packed training row have in common: segments (runs of tokens)
in depth-first pre-order, each with a parent segment or none. A segment continues its parent's
*last* token, so the depth of a token is its position in the sequence that the model saw. Separate
rows are the special case in which every segment is a root.

Everything here is numpy and pure; prefix/ builds forests, store/ keeps them, train/ runs them.

Shapes: T tokens, K segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

N = TypeVar("N", int, np.ndarray)


@dataclass(frozen=True, slots=True)
class Forest:
    """Tokens in depth-first pre-order, cut into segments that know their parents."""

    token_ids: np.ndarray
    """int32 [T]."""
    segment_starts: np.ndarray
    """int32 [K], first token of each segment; ascending, starts at 0, no segment is empty."""
    segment_parents: np.ndarray
    """int32 [K], index of the parent segment, always smaller than the own index; -1 = root."""

    @property
    def segment_ends(self) -> np.ndarray:
        """int32 [K]: one past the last token of each segment."""
        return np.append(self.segment_starts[1:], len(self.token_ids)).astype(np.int32)

    def segment_depths(self) -> np.ndarray:
        """Depth at which each segment begins.

        Returns:
            int32 [K]; 0 for a root, else the length of the path up to the end of the parent.
        """
        ends = self.segment_ends
        depths = np.zeros(len(self.segment_starts), np.int32)
        for k, parent in enumerate(self.segment_parents.tolist()):
            if parent >= 0:
                depths[k] = depths[parent] + ends[parent] - self.segment_starts[parent]
        return depths

    def row_lengths(self) -> np.ndarray:
        """Length of the row that ends with each segment.

        Returns:
            int32 [K]: tokens of the whole path, the segment included.
        """
        return self.segment_depths() + self.segment_ends - self.segment_starts

    def depths(self) -> np.ndarray:
        """Depth of each token, which is its position id for the model.

        Returns:
            int32 [T].
        """
        lengths = self.segment_ends - self.segment_starts
        offsets = np.arange(len(self.token_ids)) - np.repeat(self.segment_starts, lengths)
        return (np.repeat(self.segment_depths(), lengths) + offsets).astype(np.int32)

    def parents(self) -> np.ndarray:
        """Token whose hidden state predicts each token.

        Returns:
            int32 [T]; the token before within a segment, the last token of the parent segment at
            its start, -1 for the first token of a root.
        """
        parents = np.arange(-1, len(self.token_ids) - 1, dtype=np.int32)
        ends = self.segment_ends
        has_parent = self.segment_parents >= 0
        parents[self.segment_starts[has_parent]] = ends[self.segment_parents[has_parent]] - 1
        parents[self.segment_starts[~has_parent]] = -1
        return parents

    def path(self, segment: int) -> list[int]:
        """Segments from the root down to one segment, both included."""
        path = []
        while segment >= 0:
            path.append(segment)
            segment = int(self.segment_parents[segment])
        return path[::-1]

    def row(self, segment: int, start: int = 0) -> np.ndarray:
        """Tokens of the row that ends with a segment, from a depth on.

        Args:
            segment: the segment at whose end the row ends.
            start: depth of the first token; 0 gives the whole row.

        Returns:
            int32 tokens.

        Example:
            >>> forest = Forest(np.int32([5, 6, 7, 8]), np.int32([0, 2, 3]), np.int32([-1, 0, 0]))
            >>> forest.row(2).tolist(), forest.row(2, 1).tolist()
            ([5, 6, 8], [6, 8])
        """
        pieces = []
        for k in self.path(segment):
            is_last = k + 1 == len(self.segment_starts)
            end = len(self.token_ids) if is_last else self.segment_starts[k + 1]
            pieces.append(self.token_ids[self.segment_starts[k] : end])
        return np.concatenate(pieces)[start:]

    def rows(self) -> Iterator[np.ndarray]:
        """Walk the forest once, and give the row that ends with each segment.

        Yields:
            int32 tokens, for each of the K segments in order; a view that the next one overwrites.
        """
        lengths = self.row_lengths()
        path = np.empty(int(lengths.max()) if len(lengths) else 0, np.int32)
        bounds = zip(self.segment_starts.tolist(), self.segment_ends.tolist(), strict=True)
        for (start, end), length in zip(bounds, lengths.tolist(), strict=True):
            path[length - (end - start) : length] = self.token_ids[start:end]
            yield path[:length]

    def span(self, segment: int, start: int, end: int) -> np.ndarray:
        """Flat positions of a run of tokens on the path that ends in one segment.

        Args:
            segment: the segment in which (or below which) the run ends.
            start: depth of the first token of the run.
            end: one past the depth of its last token.

        Returns:
            int64 [end - start], positions in token_ids. The run may cross segment borders.

        Raises:
            ValueError: the path is shorter than end.
        """
        pieces = []
        starts, ends = self.segment_starts, self.segment_ends
        path = self.path(segment)
        depth = 0
        for k in path:
            length = int(ends[k] - starts[k])
            low, high = max(start - depth, 0), min(end - depth, length)
            if low < high:
                pieces.append(np.arange(starts[k] + low, starts[k] + high, dtype=np.int64))
            depth += length
        if end > depth:
            raise ValueError(f"span ends at depth {end}, but the path is {depth} tokens long")
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def is_action_span(start: N, end: N, row_tokens: N) -> N | bool:
    """Tell whether a run of depths can be the action of a row.

    An action has a token, ends with the row at the latest, and does not begin it: its first
    token is predicted from the one before.

    Args:
        start: depth of the first token; an integer, or an array of them.
        end: one past the depth of the last.
        row_tokens: length of the row.

    Example:
        >>> [is_action_span(start, 4, 4) for start in range(5)]
        [False, True, True, True, False]
    """
    return (start > 0) & (start < end) & (end <= row_tokens)


def separate(rows: list[np.ndarray]) -> Forest:
    """Build the forest in which every row is a root of its own.

    Args:
        rows: int32 arrays, none empty.
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if rows else np.zeros(0)
    tokens = np.concatenate(rows) if rows else np.zeros(0)
    return Forest(
        tokens.astype(np.int32),
        starts.astype(np.int32),
        np.full(len(rows), -1, np.int32),
    )


def from_sorted(
    token_ids: np.ndarray, lengths: np.ndarray, lcps: np.ndarray
) -> tuple[Forest, np.ndarray]:
    """Merge rows that stand in lexicographic order into the forest without a repeated prefix.

    A row adds a run of tokens below its longest common prefix with the row before. The runs, one
    after another, are the forest's tokens in depth-first pre-order; what is left is to cut each
    run where a later row branches off. No segment is empty, no two siblings start alike.

    Args:
        token_ids: int32 [T], one row after the other without its first lcps[r] tokens. Rows must
            be in ascending order, a prefix before its extension; an equal row adds nothing.
        lengths: int [R], tokens of each row.
        lcps: int [R], tokens that each row shares with the row before; 0 for the first.

    Returns:
        The forest and int32 [R]: the segment at whose end each row ends.

    Raises:
        ValueError: a row is empty, or adds nothing though the row before is longer.
    """
    starts, parents, last = cut_sorted(lengths, lcps)
    forest = Forest(token_ids, starts.astype(np.int32), parents.astype(np.int32))
    return forest, last.astype(np.int32)


def cut_sorted(lengths: np.ndarray, lcps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the segments of from_sorted, which depend on lengths alone.

    Args:
        lengths: int [R], tokens of each row.
        lcps: int [R], tokens that each row shares with the row before.

    Returns:
        int64 [K] segment starts, int64 [K] segment parents, and int64 [R]: the segment at whose end
        each row ends.

    Raises:
        ValueError: as from_sorted.
    """
    sizes = (lengths - lcps).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    begins, ends = lcps.tolist(), lengths.tolist()
    runs: list[int] = []  # rows that own the current path, from the root down
    hosts = np.full(len(lcps), -1, np.int64)  # flat place of the token that a run continues
    for row, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if end == 0 or (begin == end and end != (ends[row - 1] if row else 0)):
            raise ValueError(f"row {row} is empty or out of order")
        if begin == end:  # the row before once more
            continue
        while runs and begins[runs[-1]] >= begin:
            runs.pop()
        if runs:
            host = runs[-1]
            hosts[row] = starts[host] + begin - begins[host] - 1
        runs.append(row)
    new = sizes > 0
    inner = hosts[new & (hosts >= 0)]
    segment_starts = np.unique(np.concatenate([starts[new], inner + 1]).astype(np.int64))
    continued = segment_starts - 1
    at_run = np.searchsorted(segment_starts, starts[new])
    continued[at_run] = hosts[new]
    parents = np.searchsorted(segment_starts, continued, side="right") - 1
    # an equal row ends where the run before it ends: starts + sizes is the same place for both
    last = np.searchsorted(segment_starts, starts + sizes - 1, side="right") - 1
    return segment_starts, parents, last
