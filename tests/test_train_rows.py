"""Packed rows to arrays."""

from __future__ import annotations

import numpy as np
import pytest
from train_data import forest, make_step, packed_row

from clawcli.errors import DataError
from clawcli.gate import Objective
from clawcli.train.rows import TrainRow, train_row


def make_row(objective: Objective, *steps: dict) -> TrainRow:
    tokens = forest((-1, [1, 2, 3, 4]), (0, [5, 6]))
    return train_row(packed_row(0, 0, 0, tokens, list(steps)), objective)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0.7}, 0.7),
        ({"temperature": None}, 1.0),
        ({"temperature": 0.0}, 1.0),
        ({"temperature": 0.7, "mu_valid": False}, 1.0),
        ({"temperature": 0.7, "rollout_logprobs": None}, 1.0),
    ],
)
def test_train_row_for_ppo_takes_the_sampling_temperature_where_log_probs_count(fields, expected):
    step = make_step(1, 4, 6, **fields)
    assert make_row(Objective.PPO, step).temperatures_S.tolist() == [expected]
    assert make_row(Objective.SFT, step).temperatures_S.tolist() == [1.0]


def test_train_row_keeps_tokens_and_log_probs_in_step_order():
    steps = [
        make_step(1, 3, 6, rollout_logprobs=[-1.0, -2.0, None]),
        make_step(0, 4, 4, rollout_logprobs=[]),
        make_step(0, 1, 2, mu_valid=False),
        make_step(1, 5, 6, rollout_logprobs=[-3.0]),
    ]
    row = make_row(Objective.PPO, *steps)
    assert row.step_N.tolist() == [0, 0, 0, 1, 2]
    np.testing.assert_array_equal(row.behaviour_N, [-1.0, -2.0, np.nan, np.nan, -3.0])
    assert row.step_uids == ["step-1-3-6", "step-0-1-2", "step-1-5-6"]


def test_train_row_for_sft_has_no_advantages():
    step = make_step(1, 4, 6)
    assert make_row(Objective.SFT, step).advantages_S.tolist() == [0.0]
    assert make_row(Objective.PPO, step).advantages_S.tolist() == [0.5]


@pytest.mark.parametrize(
    ("segment", "start", "end"),
    [(0, 0, 2), (0, 2, 5), (1, 5, 7), (1, 6, 4), (2, 1, 2), (-1, 1, 2)],
    ids=["begins_the_row", "past_the_root", "past_the_leaf", "backwards", "no_segment", "negative"],
)
def test_train_row_of_an_action_off_its_path_names_row_and_step(segment, start, end):
    step = make_step(segment, start, end, step_uid="odd", rollout_logprobs=None)
    with pytest.raises(DataError, match=r"row 0, step odd: its action .* is not on the path"):
        make_row(Objective.SFT, step)


@pytest.mark.parametrize("logprobs", [[], [-1.0], [-1.0, -2.0, -3.0]])
def test_train_row_of_log_probs_of_another_length_names_row_and_step(logprobs):
    step = make_step(0, 1, 3, step_uid="odd", rollout_logprobs=logprobs)
    with pytest.raises(DataError, match=rf"step odd: rollout_logprobs has {len(logprobs)} values"):
        train_row(packed_row(0, 0, 0, forest((-1, [1, 2, 3])), [step]), Objective.PPO)
