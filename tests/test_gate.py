"""The gate: facts of a step to reasons, reasons to a refusal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_data import make_step

from clawcli import gate, tally
from clawcli.errors import GateError
from clawcli.gate import Objective, Reason
from clawcli.objectives import RULES


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


def test_refuse_off_policy_where_no_step_has_signal_says_so_too():
    silent = {Reason.NO_SPREAD: 2, Reason.GROUP_OF_ONE: 1, Reason.REWARD_MISSING: 1}
    with pytest.raises(GateError) as caught:
        gate.refuse_off_policy(Counter({Reason.LOGPROBS_MISSING: 4, **silent}), 4)
    assert "group_reward_std is 0 or null in 2 of 4" in caught.value.message
    assert "group_size is 1 or null in 1 of 4" in caught.value.message
    with pytest.raises(GateError) as caught:
        gate.refuse_off_policy(Counter({Reason.LOGPROBS_MISSING: 5, **silent}), 5)
    assert "group_" not in caught.value.message


LISTS = st.none() | st.lists(st.none() | st.floats(-9, 0), max_size=3)


@given(st.lists(LISTS, max_size=8))
def test_covers_each_says_of_many_what_covers_says_of_one(lists):
    lengths = np.array([len(each or ()) for each in lists], np.int64)
    is_null = np.array([value is None for each in lists for value in each or ()], np.bool_)
    assert gate.covers_each(lengths, is_null).tolist() == [gate.covers(each) for each in lists]


REFUSES = {
    "sft": "no_action_tokens loss_weight_zero",
    "kto": "no_action_tokens loss_weight_zero reward_missing",
    "dpo": "no_action_tokens loss_weight_zero reward_missing group_of_one no_spread",
    "awr": "no_action_tokens loss_weight_zero reward_missing",
    "reinforce": "no_action_tokens loss_weight_zero",
    "ppo": "no_action_tokens loss_weight_zero policy_foreign logprobs_missing ids_missing "
    "tokenizer_foreign length_mismatch temperature_not_logged temperature_zero top_p top_k min_p "
    "penalties grammar sampling_unreadable logprobs_invalid state_reconstructed state_partial "
    "state_unknown tools_missing",
}
SILENCES = {
    "kto": "returns_equal",
    "reinforce": "reward_missing group_of_one no_spread",
    "ppo": "reward_missing group_of_one no_spread",
}


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize(("effect", "expected"), [("refuses", REFUSES), ("no_signal", SILENCES)])
def test_rules_say_what_each_objective_cannot_take(objective, effect, expected):
    found = [r for r in Reason if RULES[r].effects.get(objective) == effect]
    assert found == expected.get(objective, "").split()


def test_rules_have_a_column_and_one_sentence_of_advice_for_every_reason():
    assert list(RULES) == list(Reason)
    for rule in RULES.values():
        assert rule.fix.endswith(".")
        assert ". " not in rule.fix
        assert rule.column
    assert len({rule.label for rule in RULES.values()}) == len(Reason)


GOOD = gate.step_facts(make_step(0, 3, 5), own=True)


def said(*facts: tuple[gate.Facts, int]) -> str:
    return tally.headline(tally.tally(facts))


def test_tally_counts_steps_by_objective_and_reason():
    flat, empty = replace(GOOD, has_spread=False), replace(GOOD, has_action=False, own=False)
    counted = tally.tally([(GOOD, 5), (flat, 3), (empty, 2)])
    assert counted.steps == 10
    assert counted.reasons == {Reason.NO_ACTION_TOKENS: 2, Reason.NO_SPREAD: 3}
    assert counted.valid == {"sft": 8, "kto": 8, "dpo": 5, "awr": 8, "reinforce": 8, "ppo": 8}
    assert counted.with_signal == {**counted.valid, "reinforce": 5, "ppo": 5}
    assert counted.undecided == 0


def test_headline_tells_what_is_good_in_part_and_not_at_all():
    foreign = replace(GOOD, own=False)
    assert said((GOOD, 1)) == "Good for sft, kto, dpo, awr, reinforce and ppo."
    assert said((foreign, 1300), (replace(foreign, has_spread=False), 200)) == (
        "Good for sft, kto and awr; in part for dpo and reinforce (1,300 of 1,500 steps); "
        "not for ppo (foreign policy)."
    )


def test_headline_names_the_most_frequent_reasons_and_counts_the_others():
    bare = replace(GOOD, own=False, has_ids=False, has_logprobs=False, state_kind="partial")
    assert said((bare, 1), (replace(bare, own=True), 1), (replace(bare, has_tools=False), 1)) == (
        "Good for sft, kto, dpo, awr and reinforce; not for ppo (no log-probs, no token ids, state "
        "partial, 2 more)."
    )


def test_headline_does_not_count_context_against_a_log():
    context = replace(GOOD, is_trained=False, has_spread=False)
    assert said((GOOD, 1), (context, 9)) == said((GOOD, 1))
    assert said((context, 9)) == "Nothing is to be trained: loss_weight is 0 in all 9 steps."
    assert said() == "There is no step to train on."


def test_headline_of_a_policy_to_be_measured_says_so():
    assert said((replace(GOOD, own=None), 1)) == (
        "Good for sft, kto, dpo, awr, reinforce and ppo; ppo needs the model's own policy, which "
        "claw train measures."
    )


def test_headline_of_valid_steps_without_signal_names_what_silences_them():
    assert said((replace(GOOD, has_group=False, has_spread=False), 1)) == (
        "Good for sft, kto and awr; not for dpo, reinforce and ppo (groups of one)."
    )


def test_presumed_own_is_open_only_where_something_can_be_measured():
    bare = replace(GOOD, has_logprobs=False)
    cut = replace(GOOD, mu_valid=False)
    pairs = [("a", bare), ("a", GOOD), ("a", bare), ("b", bare), (None, cut)]
    assert gate.presumed_own(pairs) == {"a": None, "b": False, None: False}
