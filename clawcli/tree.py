"""Geometry of token forests: where a token stands, who its parent is, who may look at whom.

A forest is what a token tree and a packed training row have in common: segments (runs of tokens)
in depth-first pre-order, each with a parent segment or none. A segment continues its parent's
*last* token, so the depth of a token is its position in the sequence that the model saw. Separate
rows are the special case in which every segment is a root.

Everything here is numpy and pure; prefix/ builds forests, store/ keeps them, train/ runs them.

Shapes: T tokens, K segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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

    def subtree_ends(self) -> np.ndarray:
        """One past the last token of each segment's subtree.

        Token q may look at token k iff k <= q < subtree_ends[segment of k].

        Returns:
            int32 [K].
        """
        ends = self.segment_ends
        for k in range(len(ends) - 1, -1, -1):
            parent = self.segment_parents[k]
            if parent >= 0:
                ends[parent] = max(ends[parent], ends[k])
        return ends

    def path(self, segment: int) -> list[int]:
        """Segments from the root down to one segment, both included."""
        path = []
        while segment >= 0:
            path.append(segment)
            segment = int(self.segment_parents[segment])
        return path[::-1]

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

    def visible_pairs(self) -> int:
        """Number of (query, key) pairs that attention computes: the sum of depth + 1."""
        return int(self.depths().astype(np.int64).sum()) + len(self.token_ids)


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
