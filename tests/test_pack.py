import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawcli import pack
from clawcli.pack import Layout
from clawcli.prefix import build

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=20)


def merged(rows):
    forest, ends = build.merge([np.array(row, np.int32) for row in rows])
    return forest, ends, pack.depth_first(forest, ends)


def packed(rows, layout, max_tokens):
    """Every packed forest with the input rows that lie on it: [(forest, {row: segment})]."""
    forest, ends, ordered = merged(rows)
    result = []
    for run in pack.cut(ordered, layout=layout, max_tokens=max_tokens):
        built, segments = pack.lay_out(forest, ends, ordered, run, layout=layout)
        places = ordered.order[run[0] : run[1]].tolist()
        result.append((built, dict(zip(places, segments.tolist(), strict=True))))
    return result


@settings(deadline=None, max_examples=100)
@given(ROWS)
def test_depth_first_is_the_lexicographic_order_with_its_prefixes(rows):
    _, _, ordered = merged(rows)
    in_order = [rows[place] for place in ordered.order]
    assert in_order == sorted(rows)
    assert ordered.lengths.tolist() == [len(row) for row in in_order]
    for before, row, lcp in zip(in_order[:-1], in_order[1:], ordered.lcps[1:], strict=True):
        assert lcp == sum(before[: k + 1] == row[: k + 1] for k in range(len(row)))


@settings(deadline=None, max_examples=100)
@given(ROWS, st.data())
def test_depth_first_of_some_rows_of_a_forest_measures_those_alone(rows, data):
    forest, ends, _ = merged(rows)
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
    alone = pack.depth_first(*build.merge([np.array(rows[k], np.int32) for k in chosen]))
    among = pack.depth_first(forest, ends[chosen])
    assert among.lcps.tolist() == alone.lcps.tolist()
    assert among.lengths.tolist() == alone.lengths.tolist()


@settings(deadline=None, max_examples=100)
@given(ROWS, st.sampled_from(Layout), st.integers(1, 40))
def test_pack_every_row_lies_whole_on_one_packed_row(rows, layout, max_tokens):
    seen = []
    for forest, places in packed(rows, layout, max_tokens):
        for row, segment in places.items():
            on_path = forest.row(segment)[: len(rows[row])]
            assert on_path.tolist() == rows[row]
            seen.append(row)
    assert sorted(seen) == list(range(len(rows)))


@settings(deadline=None, max_examples=100)
@given(ROWS, st.sampled_from(Layout), st.integers(1, 40))
def test_pack_row_exceeds_the_target_only_for_one_row_that_does(rows, layout, max_tokens):
    for forest, places in packed(rows, layout, max_tokens):
        longest = max(len(rows[row]) for row in places)
        if layout is Layout.CHAIN:
            longest = max(len(forest.row(segment)) for segment in places.values())
        assert len(forest.token_ids) <= max(max_tokens, longest)


@settings(deadline=None, max_examples=100)
@given(ROWS)
def test_pack_without_a_bound_costs_what_the_layout_promises(rows):
    distinct = {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    extended = {tuple(row[:n]) for row in rows for n in range(1, len(row))}
    ends = {tuple(row) for row in rows} - extended
    expected = {
        Layout.TREE: len(distinct),
        Layout.CHAIN: sum(map(len, ends)),
        Layout.NONE: sum(map(len, rows)),
    }
    for layout, tokens in expected.items():
        ((forest, _),) = packed(rows, layout, 10**6)
        assert len(forest.token_ids) == tokens


@settings(deadline=None, max_examples=100)
@given(ROWS, st.integers(1, 40))
def test_pack_tree_cost_is_the_first_row_and_what_each_next_adds(rows, max_tokens):
    forest, ends, ordered = merged(rows)
    for start, end in pack.cut(ordered, layout=Layout.TREE, max_tokens=max_tokens):
        built, _ = pack.lay_out(forest, ends, ordered, (start, end), layout=Layout.TREE)
        added = (ordered.lengths - ordered.lcps)[start + 1 : end].sum()
        assert len(built.token_ids) == ordered.lengths[start] + added


def test_pack_is_greedy_a_run_stops_only_where_the_next_row_does_not_fit():
    rows = [[1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 5, 5, 5], [2]]
    _, _, ordered = merged(rows)
    assert pack.cut(ordered, layout=Layout.TREE, max_tokens=4) == [(0, 3), (3, 4), (4, 5)]
    assert pack.cut(ordered, layout=Layout.TREE, max_tokens=7) == [(0, 4), (4, 5)]
    assert pack.cut(ordered, layout=Layout.CHAIN, max_tokens=4) == [(0, 3), (3, 4), (4, 5)]
    assert pack.cut(ordered, layout=Layout.CHAIN, max_tokens=8) == [(0, 4), (4, 5)]
    assert pack.cut(ordered, layout=Layout.NONE, max_tokens=5) == [(0, 2), (2, 3), (3, 5)]


def test_chain_owner_is_the_first_leaf_through_the_end():
    rows = [[1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4]]
    _, _, ordered = merged(rows)
    assert pack.leaves(ordered).tolist() == [False, False, True, False, True]
    assert pack.owners(ordered).tolist() == [2, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("lengths", "target"), [([10], 2048), ([2048], 2048), ([2049], 4096), ([3000, 9000], 16384)]
)
def test_target_is_a_power_of_two_over_the_99th_percentile(lengths, target):
    assert pack.target_tokens(np.array(lengths)) == target
