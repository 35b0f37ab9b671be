"""What merging saves, counted token by token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawcli import cost
from clawcli.prefix import build, savings

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=16)
SHAPE = cost.SIZES["8b"]


@settings(deadline=None, max_examples=100)
@given(ROWS, st.data())
def test_measured_is_what_is_counted_prefix_by_prefix(rows, data):
    forest, ends = build.merge([np.array(row, np.int32) for row in rows])
    flags = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)).filter(any)
    trained = np.array(data.draw(flags))
    spans = np.array(
        [sorted(data.draw(st.tuples(*[st.integers(1, len(row))] * 2))) for row in rows]
    )
    found = savings.measure(forest, ends, spans, trained, SHAPE)

    chosen = [row for row, used in zip(rows, trained, strict=True) if used]
    prefixes = {tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)}
    leaves = {tuple(row) for row in rows} - {p[:n] for p in prefixes for n in range(1, len(p))}
    owned = [
        tuple(row[: depth + 1])
        for row, (start, stop), used in zip(rows, spans.tolist(), trained, strict=True)
        if used
        for depth in range(start, stop)
    ]

    def price(tokens, head_tokens, pairs):
        return SHAPE.multiply_adds(cost.Work(tokens=tokens, head_tokens=head_tokens, pairs=pairs))

    def pairs(lengths):
        return sum(n * (n + 1) // 2 for n in lengths)

    lengths = [len(row) for row in chosen]
    base = price(sum(lengths), len(owned), pairs(lengths))
    tree = price(len(prefixes), len(set(owned)), sum(map(len, prefixes)))
    ends_at = [len(leaf) for leaf in leaves]
    chain = price(sum(ends_at), len(owned), pairs(ends_at))
    assert found.logical_tokens == sum(lengths)
    assert found.unique_tokens == len(prefixes)
    assert found.chain_tokens == sum(ends_at)
    assert found.predicted_speedup == base / tree
    assert found.predicted_speedup_chain == base / chain
    assert (found.action_tokens, found.action_tokens_shared) == (
        len(owned),
        len(owned) - len(set(owned)),
    )
    distinct = {row[:n] for row in map(tuple, chosen) for n in range(1, len(row) + 1)}
    assert set(found.tokens_by_row_budget.values()) == {len(distinct)}
    assert set(found.steps_over_frac_by_tokens.values()) == {0.0}


def test_a_star_that_fits_no_row_whole():
    shared = np.arange(6000, dtype=np.int32)
    rows = [np.append(shared, np.full(3000, k, np.int32)).astype(np.int32) for k in range(4)]
    forest, ends = build.merge(rows)
    spans = np.array([[6000, 9000]] * 4)
    found = savings.measure(forest, ends, spans, np.ones(4, bool), SHAPE)
    assert found.unique_tokens == 6000 + 4 * 3000
    # 8,192: each alone; 16,384: three and one; then all
    assert found.tokens_by_row_budget == {
        "8192": 36_000,
        "16384": 24_000,
        "32768": 18_000,
        "65536": 18_000,
        "131072": 18_000,
    }
    assert found.merge_factor_by_row_budget["32768"] == 2.0
    assert found.steps_over_frac_by_tokens["8192"] == 1.0
    assert found.steps_over_frac_by_tokens["16384"] == 0.0
    # the ratio of tokens promises more than attention and head keep
    assert 1.5 < found.predicted_speedup < 2.0


def test_a_long_prefix_is_worth_what_the_closed_form_says():
    """n (P + S)^2 / (P^2 + n (2 P S + S^2)) for attention alone: 3.86; 6 for tokens."""
    prefix, suffix, count = 1024, 128, 16
    shared = np.arange(prefix, dtype=np.int32)
    rows = [np.append(shared, np.full(suffix, k, np.int32)).astype(np.int32) for k in range(count)]
    forest, ends = build.merge(rows)
    attention = cost.Shape(
        layers=1, hidden=0, intermediate=0, heads=1, kv_heads=1, head_dim=1, vocab=0
    )
    spans = np.array([[prefix, prefix + suffix]] * count)
    found = savings.measure(forest, ends, spans, np.ones(count, bool), attention)
    assert found.predicted_speedup == pytest.approx(3.86, abs=0.01)
    assert found.logical_tokens / found.unique_tokens == 6.0
