"""Group advantages from frozen statistics."""

from __future__ import annotations

import numpy as np
import pytest
from train_data import make_step

from clawcli.train import advantage

RETURNS = np.array([1.0, 0.0, 0.0, 1.0, 1.0])
N = np.full(5, 5)


def frozen(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.full(len(values), values.mean()), np.full(len(values), values.std(ddof=1))


def test_group_advantages_of_a_known_group_are_centred():
    result = advantage.group_advantages(RETURNS, *frozen(RETURNS), N)
    np.testing.assert_allclose(result, [0.4, -0.6, -0.6, 0.4, 0.4], rtol=0, atol=1e-12)


def test_group_advantages_scaled_use_the_unbiased_deviation():
    result = advantage.group_advantages(RETURNS, *frozen(RETURNS), N, scale_by_std=True)
    std = (1.2 / 4) ** 0.5
    np.testing.assert_allclose(result[:2], [0.4 / (std + 1e-6), -0.6 / (std + 1e-6)], rtol=1e-12)
    np.testing.assert_allclose(result[:2], [0.7302954, -1.0954431], rtol=0, atol=5e-8)


@pytest.mark.parametrize("scale_by_std", [False, True])
def test_group_advantages_of_equal_returns_are_zero_despite_rounding(scale_by_std):
    returns = np.full(7, 0.35)
    mean = np.full(7, np.add.reduce(returns) / 7 + 5e-17)
    result = advantage.group_advantages(
        returns, mean, np.zeros(7), np.full(7, 7), scale_by_std=scale_by_std
    )
    assert result.tolist() == [0.0] * 7


def test_group_advantages_of_one_odd_return_stay_small_when_scaled():
    returns = np.array([0.35] * 7 + [0.35 + 1e-3])
    result = advantage.group_advantages(returns, *frozen(returns), np.full(8, 8), scale_by_std=True)
    assert np.abs(result).max() < 8**0.5


def test_group_advantages_of_one_trajectory_or_no_return_are_zero():
    result = advantage.group_advantages(
        np.array([3.0, np.nan, 1.0]),
        np.array([3.0, 0.5, np.nan]),
        np.array([np.nan, 0.7, np.nan]),
        np.array([1, 2, 0]),
    )
    assert result.tolist() == [0.0, 0.0, 0.0]


def advantages_of(steps):
    return advantage.step_advantages(
        {name: np.array([step[name] for step in steps], float) for name in advantage.COLUMNS}
    )


def test_step_advantages_of_survivors_use_the_frozen_statistics():
    successes = [make_step(0, 1, 2, trajectory_return=1.0) for _ in range(3)]
    assert advantages_of(successes).tolist() == [0.5, 0.5, 0.5]


def test_step_advantages_do_not_depend_on_how_many_steps_a_trajectory_has():
    win = make_step(0, 1, 2, trajectory_return=1.0)
    loss = make_step(0, 1, 2, trajectory_return=0.0)
    assert advantages_of([win, loss]).tolist() == [0.5, -0.5]
    assert advantages_of([win, win, win, loss]).tolist() == [0.5, 0.5, 0.5, -0.5]


def test_why_no_signal_counts_groups_by_cause():
    steps = [
        make_step(0, 1, 2, group_uid="a", group_reward_std=0.0),
        make_step(0, 1, 2, group_uid="a", group_reward_std=0.0),
        make_step(0, 1, 2, group_uid="b", group_size=1, group_reward_std=None),
        make_step(0, 1, 2, group_uid="c", trajectory_return=None),
    ]
    assert advantage.why_no_signal(steps) == (
        "of 3 groups 1 have equal returns, 1 have no return, 1 hold one trajectory"
    )
