"""Facts that SQL counts are those that the step table tells row by row."""

from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from table_data import commit, steps_of

from clawcli import gate
from clawcli.gate import Facts, Reason
from clawcli.schema import GRAMMAR_KEYS
from clawcli.store import facts, location, query
from clawcli.store.derived import OF_STEP
from clawcli.store.state import States

CALL = [{"id": "c", "name": "f", "arguments": "{}"}]


def steps():
    """Any rows; parents come before their children, so that there is no circle."""
    some = st.sampled_from
    return st.fixed_dictionaries(
        {
            "trajectory": st.integers(0, 4),
            "trajectory_kind": some(["main", "sample", "branch"]),
            "group_uid": some(["g", "h"]),
            "parent": st.integers(0, 11),
            "prefix_messages": some([0, 1, None]),
            "reward": some([None, 0.0, 1.0, 0.1 + 0.2, 0.3]),
            "model": some(["m", None]),
            "policy": some(["p", "q", None]),
            "policy_version": some([None, 1, 2]),
            "temperature": some([None, 0.0, 1.0]),
            "top_p": some([None, 0.5, 1.0]),
            "sampling": some([None, '{"top_k": 4}', "{}"]),
            "tokenizer": some([None, "t"]),
            "state_kind": some([None, "full", "partial"]),
            "loss_weight": some([None, 0.0, 1.0]),
            "response": some([None, "", "a"]),
            "reasoning": some([None, "", "a"]),
            "tool_calls": some([None, [], CALL]),
            "tools": some([None, "[]"]),
            "response_ids": some([None, [], [1], [1, 2]]),
            "rollout_logprobs": some([None, [], [None], [-1.0], [-1.0, None], [None, -1.0]]),
        }
    )


def complete(drawn):
    rows = []
    for i, values in enumerate(drawn):
        row = {
            name: value for name, value in values.items() if name not in ("trajectory", "parent")
        }
        if values["parent"] < i:
            row["parent_step_uid"] = f"{values['parent']:032x}"
        elif row["prefix_messages"]:
            row["prefix_messages"] = 0
        uid = {"step_uid": f"{i:032x}", "trajectory_uid": f"t{values['trajectory']}"}
        rows.append(row | uid | {"step_index": i, "choice_index": 0, "log_format": "chat"})
    return rows


def facts_of(table):
    """What a reader of the table would say of each step."""
    rows, states = table.to_pylist(), States(table)
    returns = [row["trajectory_return"] for row in rows if row["trajectory_return"] is not None]
    for row in rows:
        same = [r for r in rows if r["policy"] == row["policy"]]
        versions = [r["policy_version"] for r in same if r["policy_version"] is not None]
        mates = [r for r in rows if r["trajectory_uid"] == row["trajectory_uid"]]
        place = states.row_of(row["step_uid"])
        texts = ("response", "reasoning", "response_parts", "tool_calls", "response_ids")
        has_group = (row["group_size"] or 0) > 1
        yield (
            (row["model"], row["policy"], row["tokenizer"]),
            Facts(
                has_action=any(row[name] for name in texts),
                is_trained=(row["loss_weight"] or 0) > 0,
                has_ids=row["response_ids"] is not None,
                has_logprobs=gate.covers(row["rollout_logprobs"]),
                mu_valid=row["mu_valid"],
                mu_invalid_reason=row["mu_invalid_reason"],
                state_kind=row["state_kind"],
                has_tools=states._inherited("tools", place) is not None
                or not any(mate["tool_calls"] for mate in mates),
                is_stale=row["policy_version"] is not None
                and row["policy_version"] < max(versions),
                has_return=row["trajectory_return"] is not None,
                returns_differ=len({round(value, 9) for value in returns}) > 1,
                has_group=has_group,
                has_spread=has_group and (row["group_reward_std"] or 0) > 0,
            ),
        )


@pytest.mark.slow
@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(drawn=st.lists(steps(), min_size=1, max_size=12), cut=st.integers(0, 12))
def test_count_facts_is_what_the_rows_tell(drawn, cut, tmp_path_factory):
    rows = complete(drawn)
    place = tmp_path_factory.mktemp("any") / "data"
    for piece in (rows[:cut], rows[cut:]):
        commit(place / "steps", steps_of(*piece))
    source = location.existing(str(place))
    found = Counter()
    for each in facts.count_facts(facts.load(source)):
        found[(each.model, each.policy, each.tokenizer), each.facts] += each.steps
    assert found == Counter(facts_of(query.load_steps(source)))


def test_count_facts_gives_each_kind_once_and_in_a_fixed_order(tmp_path):
    rows = [
        {"step_uid": f"{i:032x}", "trajectory_uid": f"t{i}", "policy": f"p{i % 2}"}
        for i in range(6)
    ]
    for order, name in ((rows, "a"), (rows[::-1], "b")):
        commit(tmp_path / name / "steps", steps_of(*order))
    a, b = (facts.count_facts(facts.load(location.existing(str(tmp_path / name)))) for name in "ab")
    assert a == b
    assert [(each.policy, each.steps) for each in a] == [("p0", 3), ("p1", 3)]


def test_load_keeps_no_texts_and_no_ids(tmp_path):
    row = {"step_uid": "0" * 32, "trajectory_uid": "t", "response": "long", "response_ids": [1] * 9}
    row |= {"rollout_logprobs": [-1.0] * 9, "tools": "[]"}
    commit(tmp_path / "data" / "steps", steps_of(row))
    (kept,) = facts.load(location.existing(str(tmp_path / "data"))).to_pylist()
    assert not {"response", "tools", "tool_calls"} & kept.keys()
    assert (kept["response_ids"], kept["rollout_logprobs"]) == ([], [])


@pytest.mark.parametrize("key", GRAMMAR_KEYS)
def test_every_cause_that_query_names_is_a_reason(key):
    causes = {part.split("'")[1] for part in OF_STEP["mu_invalid_reason"].sql.split("THEN ")[1:]}
    assert causes <= {reason.value for reason in Reason}
    assert key in OF_STEP["mu_invalid_reason"].sql
