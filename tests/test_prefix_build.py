import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawcli import pack, tree
from clawcli.errors import DataError
from clawcli.prefix import build, spool

# three letters make shared prefixes, equal rows and rows that are prefixes of rows likely
ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=24)


def arrays(rows):
    return [np.array(row, np.int32) for row in rows]


def as_lists(forest):
    return [
        part.tolist() for part in (forest.token_ids, forest.segment_starts, forest.segment_parents)
    ]


@settings(deadline=None, max_examples=150)
@given(ROWS)
def test_merge_then_expand_gives_every_row_back(rows):
    forest, ends = build.merge(arrays(rows))
    assert [forest.row(int(end)).tolist() for end in ends] == rows


@settings(deadline=None, max_examples=100)
@given(ROWS, st.randoms())
def test_merge_any_order_of_rows_gives_the_same_forest(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert as_lists(build.merge(arrays(rows))[0]) == as_lists(build.merge(arrays(shuffled))[0])


@settings(deadline=None, max_examples=100)
@given(ROWS)
def test_merge_forest_is_the_compressed_trie_in_pre_order(rows):
    forest, ends = build.merge(arrays(rows))
    prefixes = {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    assert len(forest.token_ids) == len(prefixes)
    begins = list(
        zip(
            forest.segment_parents.tolist(),
            forest.token_ids[forest.segment_starts].tolist(),
            strict=True,
        )
    )
    assert len(set(begins)) == len(begins), "two siblings start alike"
    # a segment ends only where a row ends or paths part
    children = np.bincount(
        forest.segment_parents[forest.segment_parents >= 0], minlength=len(begins)
    )
    needless = [k for k in range(len(begins)) if children[k] == 1 and k not in set(ends.tolist())]
    assert needless == []
    # a segment continues one on the path to the segment before it
    for k in range(1, len(begins)):
        assert begins[k][0] == -1 or begins[k][0] in forest.path(k - 1)


def test_merge_order_is_that_of_ids_not_of_bytes():
    forest, _ = build.merge(arrays([[256], [1], [65536], [255]]))
    assert forest.token_ids.tolist() == [1, 255, 256, 65536]


def test_merge_rows_longer_than_a_compared_block_part_at_the_right_token():
    base = np.arange(50_000, dtype=np.int32)
    for place in (0, 1023, 1024, 1025, 3071, 3072, 49_999):
        other = base.copy()
        other[place] = 60_000
        assert build.shared_prefix(base, other) == place
    assert build.shared_prefix(base, base[:30_000]) == 30_000


def test_merge_many_levels_and_many_equal_rows_need_no_recursion():
    levels = [np.append(np.zeros(n, np.int32), np.int32(1)) for n in range(3000)]
    forest, ends = build.merge(levels + [levels[-1]] * 2000)
    assert len(forest.token_ids) == 2999 + 3000
    assert len(set(ends[-2001:].tolist())) == 1


def test_merge_empty_row_is_refused():
    with pytest.raises(ValueError, match="empty"):
        build.merge(arrays([[1], []]))


def test_from_sorted_rows_out_of_order_are_refused():
    with pytest.raises(ValueError, match="out of order"):
        tree.from_sorted(np.int32([1, 2]), np.array([2, 1]), np.array([0, 1]))


@settings(deadline=None, max_examples=100)
@given(ROWS, st.data())
def test_contained_finds_the_rows_that_a_trained_row_begins_with(rows, data):
    trained = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    expected = [
        any(t and other[: len(row)] == row for t, other in zip(trained, rows, strict=True))
        for row in rows
    ]
    found = build.contained(build.sort_rows(arrays(rows)), np.array(trained))
    assert found.tolist() == expected


@settings(deadline=None, max_examples=150)
@given(ROWS, st.integers(1, 30))
def test_sort_rows_in_buckets_gives_what_memory_gives(rows, max_tokens):
    whole, cut = build.sort_rows(arrays(rows)), build.sort_rows(arrays(rows), max_tokens=max_tokens)
    assert cut.order.tolist() == whole.order.tolist()
    assert cut.lengths.tolist() == whole.lengths.tolist()
    assert cut.lcps.tolist() == whole.lcps.tolist()


@settings(deadline=None, max_examples=100)
@given(ROWS, st.data())
def test_only_some_of_the_sorted_rows_are_what_sorting_those_gives(rows, data):
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    found = build.sort_rows(arrays(rows)).only(keep)
    alone = build.sort_rows([row for row, kept in zip(arrays(rows), keep, strict=True) if kept])
    assert found.order.tolist() == np.flatnonzero(keep)[alone.order].tolist()
    assert found.lengths.tolist() == alone.lengths.tolist()
    assert found.lcps.tolist() == alone.lcps.tolist()


@pytest.mark.parametrize("workers", [1, 2])
def test_merge_rows_on_disk_in_buckets_gives_the_forest_of_memory(tmp_path, workers):
    random = np.random.default_rng(7)
    root = random.integers(0, 9, 300)
    rows = arrays(
        [np.append(root, random.integers(0, 2, random.integers(1, 12))) for _ in range(300)]
    )
    forest, ends = build.merge(rows)
    with spool.Writer(tmp_path / "rows") as writer:
        for row in rows:
            writer.append(row)
        spooled = writer.rows()
        ordered = build.sort_rows(spooled, max_tokens=9_000, workers=workers)
        found, sorted_ends = build.assemble(spooled, ordered, file=tmp_path / "tokens")
        spooled.close()
    assert as_lists(found) == as_lists(forest)
    assert sorted_ends.tolist() == ends[ordered.order].tolist()


def test_merge_equal_rows_are_no_bucket_that_must_be_sorted():
    rows = [np.arange(5, dtype=np.int32)] * 5_000 + arrays([[7], [0, 1]])
    sizes = [
        len(bucket.rows)
        for bucket in build._buckets(rows, np.array([len(row) for row in rows]), 1_000)
        if not bucket.are_equal
    ]
    assert sum(sizes) <= 2
    forest, ends = build.merge(rows, max_tokens=1_000)
    assert as_lists(forest) == as_lists(build.merge(rows)[0])
    assert set(ends[:5_000].tolist()) == {1}


def test_assemble_refuses_a_tree_that_int32_cannot_count():
    ordered = pack.Ordered(np.arange(3), np.full(3, 2**30), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="3,221,225,472 tokens; 2,147,483,647 are the most"):
        build.assemble([], ordered)
