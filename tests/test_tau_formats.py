"""tau-bench and tau2-bench results: attempts, their labels, and what the agent never saw."""

import json

import pytest
from conftest import assistant, shared, system, tau, tool, user

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import tau2, tau_bench

GREETING = {"role": "assistant", "content": "Hi! How can I help you today?", "cost": 0.0}


def flat(content=None, *, calls=(), requestor="assistant", **extra):
    role = "assistant" if requestor == "assistant" else "user"
    message = {"role": role, "content": content, **extra}
    if calls:
        message["tool_calls"] = [
            {"id": i, "name": n, "arguments": a, "requestor": requestor} for i, n, a in calls
        ]
    return message


def answered(content, call_id="c1", requestor="assistant"):
    return {"role": "tool", "id": call_id, "content": content, "requestor": requestor}


def simulation(messages, **extra):
    return {
        "id": "sim1",
        "task_id": "3",
        "trial": 1,
        "messages": messages,
        "reward_info": {"reward": 1.0},
        "termination_reason": "user_stop",
        **extra,
    }


def results(*simulations, **extra):
    info = {
        "environment_info": {"domain_name": "airline"},
        "agent_info": {"implementation": "llm_agent", "llm": "m", "llm_args": {"temperature": 0.5}},
    }
    tasks = [{"id": "3", "description": "book"}, {"id": "4"}]
    return {"info": info, "tasks": tasks, "simulations": list(simulations), **extra}


def read(document):
    assert tau2.why_not(document) is None
    return tau2.calls(json.dumps(document).encode(), Context())


def contents(call):
    return [item.message.content for item in call.state.after()]


@pytest.mark.parametrize(
    ("name", "attempts", "steps", "empty", "rewarded"),
    [
        ("gpt-4o-airline.json", 200, 2454, 0, 84),
        ("retail-assertions-a.json", 100, 866, 34, 35),
        ("retail-assertions-b.json", 100, 1292, 5, 49),
        ("retail-preconditions.json", 100, 1529, 0, 70),
    ],
)
def test_calls_of_real_results_are_as_many_as_expected(name, attempts, steps, empty, rewarded):
    elements = json.loads(shared("tau-bench", name).read_bytes())
    found, reasons, rewards = [], set(), []
    for element in elements:
        try:
            made = tau_bench.calls(json.dumps(element).encode(), Context())
            found += made
            rewards.append(made[-1].trajectory_reward)
        except Fate as fate:
            reasons.add(fate.reason)
            rewards.append(fate.known["reward"])
    assert reasons <= {"empty_trajectory"}
    assert (len(elements), len(found), rewards.count(1.0)) == (attempts, steps, rewarded)
    assert attempts - sum(call.is_last for call in found) == empty


def test_calls_tau_bench_keeps_labels_and_ends_at_the_stop_word():
    traj = [system("s"), user("u"), assistant("a"), user("###STOP###")]
    (element,) = json.loads(tau([(5, 2, 0.5, traj)]))
    (call,) = tau_bench.calls(json.dumps(element).encode(), Context())
    assert (call.task_id, call.trial, call.trajectory_reward) == ("5", 2, 0.5)
    assert (call.trajectory_key, call.key_is_global) == ("5/2", False)
    assert (call.terminated, call.is_last, call.state_kind) == (True, True, "partial")
    assert [message.content for message in call.final_observation] == ["###STOP###"]


def test_calls_tau_bench_arguments_that_are_code_are_kept_and_warned_about():
    odd = assistant("", calls=[("c1", "f", "f(x=1)")])
    (element,) = json.loads(tau([(1, 0, 1, [user("u"), odd])]))
    (call,) = tau_bench.calls(json.dumps(element).encode(), Context())
    assert call.choices[0].action.message.tool_calls[0].arguments == "f(x=1)"
    assert call.choices[0].warnings == ["arguments_invalid"]


def test_calls_tau2_simulation_has_its_labels_and_measures():
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    answer = flat(
        calls=[("c1", "f", {"b": 1, "a": 2})],
        cost=0.01,
        usage=usage,
        generation_time_seconds=2.0,
        timestamp="2026-01-02T03:04:05",
    )
    messages = [GREETING, user("book"), answer, answered("ok"), flat("done"), user("###STOP###")]
    first, last = read(results(simulation(messages)))
    assert (first.task_id, first.trial, first.agent) == ("airline/3", 1, "llm_agent")
    assert (first.trajectory_key, first.key_is_global) == ("sim1", True)
    assert (first.model, first.temperature, first.trajectory_reward) == ("m", 0.5, 1.0)
    assert (first.input_tokens, first.output_tokens, first.cost_usd) == (9, 4, 0.01)
    assert first.ended_at - first.started_at == first.latency_s == 2.0
    assert first.choices[0].action.message.tool_calls[0].arguments == '{"a": 2, "b": 1}'
    assert (last.follows, last.terminated, last.truncated) == (first, True, None)
    assert last.state.after()[-1].message.tool_call_id == "c1"
    assert last.metadata["task"] == {"id": "3", "description": "book"}
    assert last.metadata["reward_info"] == {"reward": 1.0}
    assert last.metadata["run"]["info"]["environment_info"]["domain_name"] == "airline"


def test_calls_tau2_greeting_is_state_and_no_step():
    (call,) = read(results(simulation([GREETING, user("u"), flat("a")])))
    assert contents(call) == [GREETING["content"], "u"]


def test_calls_tau2_greeting_that_a_model_wrote_is_a_step():
    paid = {**GREETING, "cost": 0.02}
    assert len(read(results(simulation([paid, user("u"), flat("a")])))) == 2


def test_calls_tau2_tools_of_the_user_are_in_no_state():
    messages = [
        user("u"),
        flat("look at your phone"),
        flat(calls=[("u1", "phone", {})], requestor="user"),
        answered("no signal", "u1", requestor="user"),
        user("it says no signal"),
        flat("a"),
    ]
    _, call = read(results(simulation(messages)))
    assert contents(call) == ["u", "look at your phone", "it says no signal"]
    assert [m["content"] for m in call.metadata["user_tool_messages"]] == [None, "no signal"]


def test_calls_tau2_results_in_one_message_are_several():
    both = {"role": "tool", "tool_messages": [answered("x", "c1"), answered("y", "c2")]}
    asked = flat(calls=[("c1", "f", {}), ("c2", "g", {})])
    _, call = read(results(simulation([user("u"), asked, both, flat("a")])))
    ids = [item.message.tool_call_id for item in call.state.after()[-2:]]
    assert (contents(call)[-2:], ids) == (["x", "y"], ["c1", "c2"])


def test_calls_tau2_limit_truncates():
    reached = simulation([user("u"), flat("a")], termination_reason="max_steps")
    (call,) = read(results(reached))
    assert (call.truncated, call.terminated) == (True, None)


def test_calls_tau2_simulation_in_its_own_file_is_read():
    (call,) = read(simulation([user("u"), flat("a")]))
    assert (call.task_id, call.trajectory_key) == ("3", "sim1")


def test_calls_tau2_simulation_without_calls_is_named_beside_the_others():
    empty = simulation([], id="sim2", task_id="4", reward_info={"reward": 0.0})
    (call,) = read(results(empty, simulation([user("u"), flat("a")])))
    assert call.warnings == ["attempts_without_calls"]
    (named,) = call.metadata["attempts_without_calls"]
    assert (named["task_id"], named["reward"]) == ("airline/4", 0.0)


def test_calls_tau2_without_any_call_is_rejected_with_its_labels():
    with pytest.raises(Fate) as caught:
        read(results(simulation([])))
    assert (caught.value.reason, caught.value.known["task_id"]) == ("empty_trajectory", "airline/3")


def test_why_not_tau2_index_of_a_folder_says_where_the_simulations_are():
    index = results(simulation_index=[{"id": "sim1", "task_id": "3"}])
    assert "folder simulations" in tau2.why_not(index)


def test_why_not_tau2_of_a_transcript_is_a_refusal():
    assert tau2.why_not({"messages": [user("u"), tool("r")]}) == "no simulations"
