import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawcli import cost, pack
from clawcli.layout import lay_out
from clawcli.pack import Layout
from clawcli.prefix import build

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=20)

# in a model this small a pair costs nearly what a token does
ATTENTION_COUNTS = cost.Shape(
    layers=1, hidden=1, intermediate=1, heads=1, kv_heads=1, head_dim=1, vocab=1
)


def merged(rows):
    forest, ends = build.merge([np.array(row, np.int32) for row in rows])
    return forest, ends, pack.depth_first(forest, ends)


def packed(rows, layout, max_tokens):
    """Every packed forest with the input rows that lie on it: [(forest, {row: segment})]."""
    forest, ends, ordered = merged(rows)
    result = []
    runs = pack.cut(ordered, layout=layout, max_tokens=max_tokens)
    for (start, end), (built, segments) in zip(
        runs, laid_out(forest, ends, ordered, runs, layout), strict=True
    ):
        places = ordered.order[start:end].tolist()
        result.append((built, dict(zip(places, segments.tolist(), strict=True))))
    return result


def laid_out(forest, ends, ordered, runs, layout):
    """The packed forest of each run, and the segment of each of its rows."""
    found = lay_out(forest, ends, ordered, runs, layout=layout)
    for row in range(len(runs)):
        built = found.forest(forest.token_ids, row)
        assert len(built.token_ids) == found.tokens[row]
        assert (built.depths() + 1).sum() == found.pairs[row]
        yield built, found.step_segments[found.step_edges[row] : found.step_edges[row + 1]]


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
    runs = pack.cut(ordered, layout=Layout.TREE, max_tokens=max_tokens)
    trees = laid_out(forest, ends, ordered, runs, Layout.TREE)
    for (start, end), (built, _) in zip(runs, trees, strict=True):
        added = (ordered.lengths - ordered.lcps)[start + 1 : end].sum()
        assert len(built.token_ids) == ordered.lengths[start] + added


def every_cut(ordered, layout):
    """All ways to cut the order into runs that the layout can lay out."""
    ends = [k + 1 for k in range(len(ordered.lengths))]
    if layout is Layout.CHAIN:
        ends = (np.flatnonzero(pack.leaves(ordered)) + 1).tolist()
    for size in range(len(ends)):
        for inner in itertools.combinations(ends[:-1], size):
            edges = [0, *inner, ends[-1]]
            yield list(itertools.pairwise(edges))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=9),
    st.sampled_from(Layout),
    st.integers(1, 25),
    st.sampled_from([cost.SIZES["70b"], ATTENTION_COUNTS]),
    st.data(),
)
def test_no_cut_of_the_order_costs_less(rows, layout, max_tokens, shape, data):
    forest, ends, ordered = merged(rows)
    groups = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows)))
    )

    def price(runs):
        """What runs cost, as they are laid out; None where a run is too long."""
        spent = 0
        trees = laid_out(forest, ends, ordered, runs, layout)
        for (start, end), (built, _) in zip(runs, trees, strict=True):
            alone = pack.leaves(ordered)[start:end].sum() if layout is Layout.CHAIN else end - start
            if len(built.token_ids) > max_tokens and alone > 1:
                return None
            pairs = int((built.depths() + 1).sum())
            spent += len(built.token_ids) * shape.per_token + pairs * shape.per_pair
        own = groups[ordered.order]
        return spent, sum(own[start] == own[start - 1] for start, _ in runs[1:]), len(runs)

    found = pack.cut(ordered, layout=layout, max_tokens=max_tokens, groups=groups, shape=shape)
    prices = [price(runs) for runs in every_cut(ordered, layout)]
    assert price(found) == min(each for each in prices if each is not None)


def test_cuts_spare_what_rows_share_and_then_groups():
    rows = [[1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 5, 5, 5], [2]]
    _, _, ordered = merged(rows)
    assert pack.cut(ordered, layout=Layout.TREE, max_tokens=4) == [(0, 3), (3, 4), (4, 5)]
    assert pack.cut(ordered, layout=Layout.TREE, max_tokens=7) == [(0, 4), (4, 5)]
    # cutting before the last row costs nothing, for it shares nothing; before the one above it 1
    assert pack.cut(ordered, layout=Layout.TREE, max_tokens=5) == [(0, 3), (3, 5)]
    assert pack.cut(ordered, layout=Layout.CHAIN, max_tokens=8) == [(0, 4), (4, 5)]
    groups = np.array([0, 0, 0, 1, 1])
    assert pack.cut(ordered, layout=Layout.CHAIN, max_tokens=8, groups=groups) == [(0, 3), (3, 5)]
    assert pack.cut(ordered, layout=Layout.NONE, max_tokens=9, groups=groups) == [(0, 3), (3, 5)]


def test_two_short_prefixes_cost_less_than_one_of_their_length():
    rows = pack.Ordered(np.arange(4), np.full(4, 10), np.array([0, 2, 4, 2]))
    # either way 4 tokens are computed twice; at depths 1, 2, 1, 2 they see less than at 1 to 4
    assert pack.cut(rows, layout=Layout.TREE, max_tokens=18) == [(0, 1), (1, 3), (3, 4)]


def test_cutting_a_long_order_takes_linear_time():
    lengths = np.full(200_000, 1000)
    lcps = np.where(np.arange(200_000) % 100 == 0, 10, 900)
    lcps[0] = 0
    ordered = pack.Ordered(np.arange(200_000), lengths, lcps)
    runs = pack.cut(ordered, layout=Layout.TREE, max_tokens=1 << 20)
    assert runs[0][0] == 0
    assert runs[-1][1] == 200_000


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
