from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawcli import ranks


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=40), st.integers(1, 9))
def test_split_gives_every_row_once_and_each_rank_as_many(costs, num_ranks):
    costs = np.array(costs)
    found = ranks.split(costs, num_ranks)
    assert len(found) == num_ranks
    assert {len(mine) for mine in found} == {-(-len(costs) // num_ranks)}
    counts = Counter(row for mine in found for row in mine)
    assert set(counts) == set(range(len(costs)))
    # what fills up is the cheapest row alone
    again = [row for row, count in counts.items() if count > 1]
    assert all(costs[row] == costs.min() for row in again)
    assert len(again) <= 1
    for mine in found:
        assert costs[mine].tolist() == sorted(costs[mine], reverse=True)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("rows", [4, 5, 8])
def test_split_leaves_no_rank_5_percent_dearer_than_the_mean(num_ranks, rows):
    generator = np.random.default_rng(num_ranks * 100 + rows)
    for _ in range(30):
        tokens = generator.integers(4_000, 16_384, num_ranks * rows)
        costs = tokens * 7_000_000_000 + tokens * (tokens + 1) // 2 * 295_000
        assert ranks.imbalance(costs, ranks.split(costs, num_ranks)) < 0.05


def test_split_is_that_of_the_costs_alone():
    costs = np.array([5, 5, 5, 1, 9, 9])
    assert ranks.split(costs, 3) == ranks.split(costs.copy(), 3)


def test_split_of_fewer_rows_than_ranks_fills_up_with_the_cheapest():
    assert ranks.split(np.array([7, 2]), 4) == [[0], [1], [1], [1]]


def test_imbalance_counts_fillers():
    assert ranks.imbalance(np.array([6, 2]), [[0], [1]]) == pytest.approx(0.5)
