"""Merge rows of tokens into the forest without a repeated prefix: sort, then adjacent prefixes.

In lexicographic order every row stands beside the row with which it shares most, so one pass over
neighbours finds every shared prefix; tree.from_sorted cuts the forest out of it. Comparing is left
to memcmp: as big-endian bytes, the order of the bytes is the order of the tokens, and a row that
is a prefix of another comes first. Equality is decided on tokens, never on a hash.

Source: the suffix-array view of a compressed trie, as in Kasai et al., CPM 2001 (LCP intervals).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clawcli.tree import Forest, from_sorted

_FIRST_BLOCK = 1024
"""Tokens compared first: most neighbours differ early, or share thousands."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Rows in lexicographic order and what each shares with the row before."""

    order: np.ndarray
    """int64 [R]: place in the input of each row in sorted order; equal rows keep input order."""
    lcps: np.ndarray
    """int64 [R]: tokens shared with the row before; 0 for the first."""


def sort_rows(rows: Sequence[np.ndarray]) -> Sorted:
    """Sort rows and measure the prefix that each shares with the row before.

    Args:
        rows: int32 arrays of ids that are not negative.
    """
    keys = [row.astype(">i4").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    lcps = np.zeros(len(rows), np.int64)
    for place in range(1, len(order)):
        lcps[place] = shared_prefix(rows[order[place - 1]], rows[order[place]])
    return Sorted(np.array(order, np.int64), lcps)


def shared_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """Length of the longest common prefix of two rows.

    Example:
        >>> shared_prefix(np.int32([1, 2, 3]), np.int32([1, 2, 4, 5]))
        2
    """
    length = min(len(left), len(right))
    start, block = 0, _FIRST_BLOCK
    while start < length:
        end = min(start + block, length)
        differs = left[start:end] != right[start:end]
        first = int(differs.argmax())
        if differs[first]:
            return start + first
        start, block = end, 2 * block
    return length


def merge(rows: Sequence[np.ndarray]) -> tuple[Forest, np.ndarray]:
    """Merge rows into one forest.

    Args:
        rows: int32 arrays of ids that are not negative; none empty, in any order.

    Returns:
        The forest in depth-first pre-order, which is the same for any order of the rows, and
        int32 [R]: the segment at whose end each row ends.

    Raises:
        ValueError: a row is empty.

    Example:
        >>> forest, ends = merge([np.int32([1, 2, 3]), np.int32([1, 2]), np.int32([1, 4])])
        >>> forest.token_ids.tolist(), forest.segment_parents.tolist(), ends.tolist()
        ([1, 2, 3, 4], [-1, 0, 1, 0], [2, 1, 3])
    """
    ordered = sort_rows(rows)
    pairs = zip(ordered.order.tolist(), ordered.lcps.tolist(), strict=True)
    forest, sorted_ends = from_sorted([rows[row][lcp:] for row, lcp in pairs], ordered.lcps)
    ends = np.empty(len(rows), np.int32)
    ends[ordered.order] = sorted_ends
    return forest, ends


def contained(lengths: np.ndarray, ordered: Sorted, trained: np.ndarray) -> np.ndarray:
    """Find the rows that a trained row contains whole.

    Args:
        lengths: int [R], tokens of each row in input order.
        ordered: the rows' order.
        trained: bool [R] in input order.

    Returns:
        bool [R] in input order: the row is a prefix of, or equal to, a trained row.
    """
    result = np.zeros(len(lengths), bool)
    shared = 0  # tokens that the row at hand shares with the next trained row in sorted order
    following = np.append(ordered.lcps[1:], 0)
    for place in range(len(ordered.order) - 1, -1, -1):
        row = ordered.order[place]
        shared = min(shared, int(following[place]))
        if trained[row]:
            shared = int(lengths[row])
        result[row] = shared >= lengths[row]
    # equal rows keep input order, so a trained row may stand before its equal
    for place in range(1, len(ordered.order)):
        row, before = ordered.order[place], ordered.order[place - 1]
        if ordered.lcps[place] == lengths[row] == lengths[before]:
            result[row] |= result[before]
    return result
