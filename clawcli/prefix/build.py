"""Merge rows of tokens into the forest without a repeated prefix: sort, then adjacent prefixes.

In lexicographic order every row stands beside the row with which it shares most, so one pass over
neighbours finds every shared prefix; tree.from_sorted cuts the forest out of it. Comparing is left
to memcmp: as big-endian bytes, the order of the bytes is the order of the tokens, and a row that
is a prefix of another comes first.

Rows that are too many for memory are sorted in buckets. A few rows, drawn at random and sorted,
cut the order into ranges; each row goes into its range, each range is sorted on its own, and the
ranges one after the other are the whole order. Rows that equal a border need no sorting, so a
million equal rows are no large bucket. Nothing is decided by a hash, and no long prefix that all
rows share can put them into one bucket.

Sources: the suffix-array view of a compressed trie, as in Kasai et al., CPM 2001 (LCP intervals);
sample sort, Frazer and McKellar, JACM 1970.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from clawcli.engine import Workers
from clawcli.errors import DataError
from clawcli.pack import Ordered
from clawcli.prefix.spool import Spool
from clawcli.tree import Forest, from_sorted

MAX_SORTED_TOKENS = 64_000_000
"""Tokens that are sorted at once; as bytes they take four times that."""
_SAMPLES_PER_BUCKET = 16
_FIRST_BLOCK = 1024
"""Tokens compared first: most neighbours differ early, or share thousands."""
_MOST_TOKENS = 2**31 - 1
_SEED = 0


def sort_rows(
    rows: Sequence[np.ndarray], *, max_tokens: int = MAX_SORTED_TOKENS, workers: int = 1
) -> Ordered:
    """Sort rows and measure the prefix that each shares with the row before.

    Args:
        rows: int32 arrays of ids that are not negative, or a Spool of them.
        max_tokens: tokens that are sorted at once; more go into buckets.
        workers: processes that sort buckets. The result does not depend on either.
    """
    lengths = _lengths(rows)
    buckets = [_Bucket(np.arange(len(rows)))]
    if int(lengths.sum()) > max_tokens:
        buckets = list(_buckets(rows, lengths, max_tokens))
    order: list[np.ndarray] = []
    lcps: list[np.ndarray] = []
    before: np.ndarray | None = None
    for found, shared in _sort_buckets(rows, buckets, workers):
        first = rows[int(found[0])]
        shared[0] = 0 if before is None else shared_prefix(before, first)
        before = rows[int(found[-1])]
        order.append(found)
        lcps.append(shared)
    places = np.concatenate(order) if order else np.zeros(0, np.int64)
    return Ordered(places, lengths[places], np.concatenate(lcps) if lcps else np.zeros(0, np.int64))


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


def assemble(
    rows: Sequence[np.ndarray], ordered: Ordered, *, file: Path | None = None
) -> tuple[Forest, np.ndarray]:
    """Build the forest of sorted rows.

    Args:
        rows: as sort_rows had them.
        ordered: its result, or a part of it.
        file: where the forest's tokens are kept; None = in memory.

    Returns:
        The forest in depth-first pre-order, which is the same for any order of the rows, and
        int32 [R] in the order of `ordered`: the segment at whose end each row ends.

    Raises:
        ValueError: a row is empty.
        DataError: the forest would have more tokens than int32 counts.
    """
    total = int((ordered.lengths - ordered.lcps).sum())
    if total > _MOST_TOKENS:
        raise DataError(
            f"The tree would have {total:,} tokens; {_MOST_TOKENS:,} are the most.",
            "Curate the data into parts, and merge each.",
        )
    tokens = np.empty(0, np.int32)
    if total:
        in_file = file is not None
        tokens = np.memmap(file, "<i4", "w+", shape=(total,)) if in_file else np.empty(total, "<i4")
    place = 0
    for row, lcp in zip(ordered.order.tolist(), ordered.lcps.tolist(), strict=True):
        tail = rows[row][lcp:]
        tokens[place : place + len(tail)] = tail
        place += len(tail)
    return from_sorted(tokens, ordered.lengths, ordered.lcps)


def merge(
    rows: Sequence[np.ndarray], *, max_tokens: int = MAX_SORTED_TOKENS, workers: int = 1
) -> tuple[Forest, np.ndarray]:
    """Merge rows into one forest, kept in memory.

    Args:
        rows: int32 arrays of ids that are not negative; none empty, in any order.
        max_tokens: as for sort_rows.
        workers: as for sort_rows.

    Returns:
        The forest, and int32 [R] in input order: the segment at whose end each row ends.

    Raises:
        ValueError: a row is empty.
        DataError: the forest would have more tokens than int32 counts.

    Example:
        >>> forest, ends = merge([np.int32([1, 2, 3]), np.int32([1, 2]), np.int32([1, 4])])
        >>> forest.token_ids.tolist(), forest.segment_parents.tolist(), ends.tolist()
        ([1, 2, 3, 4], [-1, 0, 1, 0], [2, 1, 3])
    """
    ordered = sort_rows(rows, max_tokens=max_tokens, workers=workers)
    forest, sorted_ends = assemble(rows, ordered)
    ends = np.empty(len(rows), np.int32)
    ends[ordered.order] = sorted_ends
    return forest, ends


def contained(ordered: Ordered, trained: np.ndarray) -> np.ndarray:
    """Find the rows that a trained row contains whole.

    Args:
        ordered: all rows.
        trained: bool [R] in input order.

    Returns:
        bool [R] in input order: the row is a prefix of, or equal to, a trained row.
    """
    count = len(ordered.order)
    order, lengths, lcps = ordered.order.tolist(), ordered.lengths.tolist(), ordered.lcps.tolist()
    result = np.zeros(count, bool)
    shared = 0  # tokens that the row at hand shares with the next trained row in sorted order
    for place in range(count - 1, -1, -1):
        shared = min(shared, lcps[place + 1]) if place + 1 < count else 0
        if trained[order[place]]:
            shared = lengths[place]
        result[order[place]] = shared >= lengths[place]
    # equal rows keep input order, so a trained row may stand before its equal
    for place in range(1, count):
        if lcps[place] == lengths[place] == lengths[place - 1]:
            result[order[place]] |= result[order[place - 1]]
    return result


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Rows of one range of the order."""

    rows: np.ndarray
    """int64: places in the input, ascending."""
    are_equal: bool = False
    """All equal a border, so that they are in order as they are."""


class _Sorter:
    """Sort buckets of rows; it lives where engine.Workers puts it."""

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self._rows = rows

    def sort(self, bucket: _Bucket) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of a bucket's rows in order, and what each shares with the last."""
        if bucket.are_equal:
            return bucket.rows, np.full(len(bucket.rows), len(self._rows[int(bucket.rows[0])]))
        keys = [_key(self._rows[row]) for row in bucket.rows.tolist()]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        lcps = np.zeros(len(order), np.int64)
        # equality of tokens is equality of their bytes, in whatever order those stand
        views = [np.frombuffer(keys[place], np.int32) for place in order]
        for place in range(1, len(views)):
            lcps[place] = shared_prefix(views[place - 1], views[place])
        return bucket.rows[order], lcps

    def close(self) -> None:
        """Leave the rows to their owner."""


def _sort_buckets(
    rows: Sequence[np.ndarray], buckets: Sequence[_Bucket], workers: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    buckets = [bucket for bucket in buckets if len(bucket.rows)]
    # rows that are in memory would have to be copied to other processes
    count = max(1, min(workers, len(buckets))) if isinstance(rows, Spool) else 1
    with Workers(_Sorter, (rows,), count) as sorters:
        yield from sorters.map("sort", buckets)


def _buckets(rows: Sequence[np.ndarray], lengths: np.ndarray, max_tokens: int) -> Iterator[_Bucket]:
    """Cut the order of rows into ranges of about half of max_tokens, by a sample of them."""
    count = 2 * -(-int(lengths.sum()) // max_tokens)
    random = np.random.Generator(np.random.PCG64(_SEED))
    wanted = min(len(rows), count * _SAMPLES_PER_BUCKET)
    drawn = random.choice(len(rows), wanted, replace=False)
    sample = sorted((_key(rows[row]), int(lengths[row])) for row in drawn.tolist())
    filled = np.cumsum([length for _, length in sample])
    cuts = np.searchsorted(filled, filled[-1] * np.arange(1, count) / count)
    borders = sorted({sample[cut][0] for cut in cuts.tolist()})
    # range 2k lies before border k, range 2k + 1 equals it
    ranges = np.empty(len(rows), np.int64)
    for place, row in enumerate(rows):
        key = _key(row)
        border = bisect_left(borders, key)
        ranges[place] = 2 * border + (border < len(borders) and borders[border] == key)
    order = np.argsort(ranges, kind="stable")
    starts = np.searchsorted(ranges[order], np.arange(2 * len(borders) + 2))
    for number, (start, end) in enumerate(pairwise(starts.tolist())):
        yield _Bucket(order[start:end], are_equal=number % 2 == 1)


def _lengths(rows: Sequence[np.ndarray]) -> np.ndarray:
    return rows.lengths if isinstance(rows, Spool) else np.fromiter(map(len, rows), np.int64)


def _key(row: np.ndarray) -> bytes:
    """Spell a row so that the order of bytes is that of tokens."""
    return row.astype(">i4").tobytes()
