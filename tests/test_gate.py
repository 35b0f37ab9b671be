"""The gate: facts of a step to reasons, reasons to a refusal."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from train_data import make_step

from clawcli import gate
from clawcli.errors import GateError
from clawcli.gate import Objective, Reason


def ppo_reasons(own: bool | None = True, **fields: object) -> tuple[Reason, ...]:
    return gate.reasons(Objective.PPO, gate.step_facts(make_step(0, 3, 5, **fields), own=own))


def test_reasons_of_an_own_step_with_everything_logged_are_none():
    assert ppo_reasons() == ()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rollout_logprobs": None}, Reason.LOGPROBS_MISSING),
        ({"rollout_logprobs": [None, -1.0]}, Reason.LOGPROBS_MISSING),
        ({"mu_valid": False}, Reason.LOGPROBS_INVALID),
        ({"mu_valid": None}, Reason.LOGPROBS_INVALID),
        ({"mu_valid": False, "mu_invalid_reason": "top_p"}, Reason.TOP_P),
        ({"mu_valid": False, "mu_invalid_reason": "no such cause"}, Reason.LOGPROBS_INVALID),
        ({"own": False}, Reason.POLICY_FOREIGN),
        ({"state_kind": "reconstructed"}, Reason.STATE_RECONSTRUCTED),
        ({"state_kind": "partial"}, Reason.STATE_PARTIAL),
        ({"state_kind": "unknown"}, Reason.STATE_UNKNOWN),
        ({"state_kind": None}, Reason.STATE_UNKNOWN),
        ({"group_reward_std": 0.0}, Reason.NO_SPREAD),
        ({"group_reward_std": None}, Reason.NO_SPREAD),
        ({"group_reward_std": None, "group_size": 1}, Reason.GROUP_OF_ONE),
        ({"group_size": None}, Reason.GROUP_OF_ONE),
        ({"trajectory_return": None, "group_size": None}, Reason.REWARD_MISSING),
    ],
)
def test_reasons_of_a_step_with_one_flaw_name_it(fields, reason):
    assert ppo_reasons(**fields) == (reason,)


@pytest.mark.parametrize(
    "fields", [{"state_kind": "supplied"}, {"rollout_logprobs": [-1.0, None]}, {"own": None}]
)
def test_reasons_of_what_ppo_accepts_are_none(fields):
    assert ppo_reasons(**fields) == ()


def test_reasons_for_sft_ask_for_tokens_only():
    bare = make_step(0, 3, 5, rollout_logprobs=None, mu_valid=None, state_kind=None)
    empty = make_step(0, 3, 3, rollout_logprobs=[])
    assert gate.reasons(Objective.SFT, gate.step_facts(bare, own=False)) == ()
    assert gate.reasons(Objective.SFT, gate.step_facts(empty, own=True)) == (
        Reason.NO_ACTION_TOKENS,
    )


def test_reasons_of_a_step_without_tokens_ask_for_nothing_else():
    empty = make_step(
        0, 3, 3, rollout_logprobs=[], mu_valid=None, state_kind=None, group_reward_std=None
    )
    facts = gate.step_facts(empty, own=False)
    assert gate.reasons(Objective.PPO, facts) == (Reason.NO_ACTION_TOKENS,)


def test_refuse_off_policy_names_columns_shares_and_the_way_out():
    counts = Counter({Reason.LOGPROBS_MISSING: 3, Reason.STATE_PARTIAL: 4})
    with pytest.raises(GateError) as caught:
        gate.refuse_off_policy(counts, 4)
    assert "rollout_logprobs is null in 3 of 4 steps (75.0%)" in caught.value.message
    assert "state_kind is partial in 4 of 4 steps (100.0%)" in caught.value.message
    assert "--allow-off-policy" in caught.value.hint
    assert caught.value.exit_code == 3


def test_refuse_off_policy_without_a_reason_lets_pass():
    gate.refuse_off_policy(Counter({Reason.NO_SPREAD: 4}), 4)


def test_refuse_off_policy_with_measured_distance_prints_it():
    with pytest.raises(GateError, match=r"differ by 0\.5 nats at the median and 2 at 90%"):
        gate.refuse_off_policy(
            Counter({Reason.POLICY_FOREIGN: 1}), 1, measured={"p50": 0.5, "p90": 2.0}
        )


@pytest.mark.parametrize(
    ("delta_nats", "own"),
    [
        ([0.01] * 10, True),
        ([0.01] * 19 + [3.0], True),
        ([0.01] * 17 + [3.0] * 3, False),
        ([0.06] * 10, False),
        ([], False),
    ],
)
def test_is_own_looks_at_median_and_tail(delta_nats, own):
    assert gate.is_own(np.array(delta_nats)) is own
