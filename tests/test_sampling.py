import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawcli import sampling


def uids(count):
    return np.stack([np.full(count, 7), np.arange(count)], axis=1).astype(np.uint64)


def test_keys_do_not_depend_on_the_order_or_number_of_units():
    keys = sampling.uniform_keys(uids(1000), 3, "a")
    assert np.array_equal(sampling.uniform_keys(uids(1000)[::-1], 3, "a")[::-1], keys)
    assert np.array_equal(sampling.uniform_keys(uids(10), 3, "a"), keys[:10])


def test_keys_of_another_seed_or_stage_are_independent():
    first = sampling.uniform_keys(uids(20_000), 3, "a")
    for other in (
        sampling.uniform_keys(uids(20_000), 4, "a"),
        sampling.uniform_keys(uids(20_000), 3, "b"),
    ):
        # of 20,000 pairs a correlation has a standard deviation of 0.007
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.035
    assert abs(first.mean() - 0.5) < 0.01


def test_total_estimated_with_the_inclusion_probability_is_right_and_the_naive_one_is_not():
    generator = np.random.default_rng(0)
    weight = generator.lognormal(0, 1, 2000)
    value = weight**0.5 + generator.random(2000)
    naive = 600 * weight / weight.sum()
    by_pi, by_naive = [], []
    for _ in range(2000):
        drawn = sampling.draw(weight, generator.random(2000), 600)
        mine = drawn.chosen
        assert mine.sum() == 600
        by_pi.append((value[mine] / sampling.inclusion(weight[mine], drawn.threshold)).sum())
        by_naive.append((value[mine] / naive[mine]).sum())
    # one estimate has a standard deviation of 2%, so the mean of 2,000 has one of 0.05%
    assert np.mean(by_pi) == pytest.approx(value.sum(), rel=2e-3)
    assert np.mean(by_naive) > 1.1 * value.sum()


def test_each_unit_counts_once_on_average_when_weighed_by_one_over_its_probability():
    generator = np.random.default_rng(1)
    weight = np.array([0.1, 1.0, 1.0, 3.0, 9.0])
    totals, naive, draws = np.zeros(5), np.zeros(5), 20_000
    for _ in range(draws):
        drawn = sampling.draw(weight, generator.random(5), 2)
        totals += drawn.chosen / sampling.inclusion(weight, drawn.threshold)
        naive += drawn.chosen / (2 * weight / weight.sum())
    # the lightest is drawn in 2% of the draws: its mean has a standard deviation of 0.05
    assert totals / draws == pytest.approx(np.ones(5), abs=0.25)
    assert totals[1:] / draws == pytest.approx(np.ones(4), abs=0.06)
    assert naive[4] / draws < 0.8


def test_everything_is_drawn_where_as_much_is_asked_for_and_then_pi_is_one():
    weight = np.array([0.0, 1.0, 5.0])
    for num in (2, 3, 99):
        drawn = sampling.draw(weight, np.array([0.1, 0.2, 0.3]), num)
        assert drawn.chosen.tolist() == [False, True, True]
        assert sampling.inclusion(weight, drawn.threshold).tolist() == [0.0, 1.0, 1.0]


def test_heaviest_weights_neither_overflow_nor_tie():
    weight = np.array([1e-300, 1e300, 1.0])
    drawn = sampling.draw(weight, np.array([0.5, 0.5, 0.5]), 1)
    assert drawn.chosen.tolist() == [False, True, False]


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=50),
    st.floats(0, 3),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_weights_have_mean_one_and_keep_the_uniform_share(priorities, alpha, epsilon, share):
    found = sampling.weights(
        np.array(priorities), alpha=alpha, epsilon=epsilon, uniform_share=share
    )
    assert found.mean() == pytest.approx(1.0, rel=1e-9)
    assert found.min() >= share * (1 - 1e-12)


def test_epsilon_counts_before_the_exponent():
    found = sampling.weights(np.array([0.0, 3.0]), alpha=2.0, epsilon=1.0)
    assert found.tolist() == pytest.approx([2 * 1 / 17, 2 * 16 / 17])


def test_priorities_that_are_all_zero_make_all_units_alike():
    assert sampling.weights(np.zeros(4)).tolist() == [1.0] * 4


def test_factors_lower_what_depends_on_priorities_and_not_the_uniform_share():
    found = sampling.weights(np.ones(2), uniform_share=0.5, factors=np.array([1.0, 0.25]))
    assert found.tolist() == pytest.approx([0.5 + 0.8, 0.5 + 0.2])


def test_powers_of_large_priorities_do_not_overflow():
    assert sampling.weights(np.array([1e200, 1e190]), alpha=5.0).tolist() == pytest.approx(
        [2.0, 0.0]
    )
    assert sampling.weights(np.array([0.0, 1e300]), alpha=0.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("factor", [0.0, 1e-320, 1e-200])
def test_factors_that_leave_next_to_nothing_leave_finite_weights(factor):
    found = sampling.weights(np.array([1.0, 3.0]), uniform_share=0.1, factors=np.full(2, factor))
    assert found.mean() == pytest.approx(1.0)
    expected = [1.0, 1.0] if factor == 0 else [0.9 * 0.5 + 0.1, 0.9 * 1.5 + 0.1]
    assert found.tolist() == pytest.approx(expected, rel=1e-3)


def test_importance_weights_have_mean_one_and_undo_the_draw():
    pi = np.array([0.1, 0.2, 0.8])
    found = sampling.importance(pi, 1.0)
    assert found.mean() == pytest.approx(1.0, rel=1e-14)
    assert found * pi == pytest.approx(np.full(3, found[0] * pi[0]))
    assert sampling.importance(pi, 0.0).tolist() == [1.0, 1.0, 1.0]
    half = sampling.importance(pi, 0.5)
    assert half[0] / half[1] == pytest.approx(2**0.5)
