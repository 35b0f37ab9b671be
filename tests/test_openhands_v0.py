import json

import pytest
from expected_counts import expected

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import openhands_v0, openhands_v0_events
from clawcli.messages import text_of

TOOLS = [{"type": "function", "function": {"name": "execute_bash"}}]
SYSTEM = {"id": 0, "source": "agent", "action": "system", "args": {"content": "S", "tools": TOOLS}}


def user(number, content, **args):
    return {
        "id": number,
        "source": "user",
        "action": "message",
        "args": {"content": content, **args},
    }


def response(name, *call_ids, content="", finish="tool_calls"):
    asked = [
        {"id": i, "type": "function", "function": {"name": "execute_bash", "arguments": "{}"}}
        for i in call_ids
    ]
    message = {"role": "assistant", "content": content, "tool_calls": asked}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    return {"id": name, "created": 100, "model": "m-1", "choices": [choice], "usage": usage}


def act(number, answer, call_id, action="run", **args):
    told = {"tool_call_id": call_id, "function_name": "execute_bash", "model_response": answer}
    return {
        "id": number,
        "source": "agent",
        "action": action,
        "args": args,
        "tool_call_metadata": told,
    }


def observe(number, cause, content, kind="run", call_id=None, **extras):
    event = {"id": number, "source": "agent", "observation": kind, "cause": cause}
    if call_id is not None:
        event["tool_call_metadata"] = {"tool_call_id": call_id}
    return {**event, "content": content, "extras": extras}


def calls(*history, **more):
    record = {"instance_id": "i-1", "history": list(history), **more}
    assert openhands_v0.why_not(record) is None
    return openhands_v0.calls(json.dumps(record).encode(), Context())


def said(call):
    return [(item.message.role, text_of(item.message)) for item in call.state.after()]


def one_turn(number, name, content="x"):
    answer = response(name, f"c{number}", content=name)
    return [
        act(number, answer, f"c{number}"),
        observe(number + 1, number, content, call_id=f"c{number}"),
    ]


def test_corpus_counts_agree_with_the_independent_ones():
    # the notes of EXPECTED.tsv: ids [23, 33, 49]
    ((path, trajectories, _),) = expected("openhands-v0")
    lines = path.read_bytes().splitlines()
    found = [openhands_v0.calls(line, Context()) for line in lines]
    assert len(found) == trajectories
    assert [len(steps) for steps in found] == [23, 33, 49]
    for line, steps in zip(lines, found, strict=True):
        assert steps[-1].task_id == json.loads(line)["instance_id"]
        assert len({call.native_id for call in steps}) == len(steps)
        assert all(call.latency_s and call.input_tokens and call.tools for call in steps)
        # a prompt only grows in these runs, as its logged size does
        sizes = [call.input_tokens for call in steps]
        assert sizes == sorted(sizes)
        assert [c.state.depth for c in steps] == sorted(c.state.depth for c in steps)


def test_calls_actions_of_one_response_are_one_call_and_the_response_is_the_action():
    answer = response("r1", "c1", "c2", content="both")
    found = calls(
        SYSTEM,
        user(1, "u"),
        act(2, answer, "c1", command="ls"),
        act(3, answer, "c2", command="pwd"),
        observe(4, 3, "two", call_id="c2"),
        observe(5, 2, "one", call_id="c1"),
        *one_turn(6, "r2"),
    )
    assert [call.native_id for call in found] == ["r1", "r2"]
    first, second = found
    assert [c.id for c in first.choices[0].action.message.tool_calls] == ["c1", "c2"]
    assert said(first) == [("user", "u")]
    # results stand at their calls, in the order of the calls
    assert said(second) == [("user", "u"), ("assistant", "both"), ("tool", "one"), ("tool", "two")]
    assert (first.system, json.loads(first.tools)) == ("S", TOOLS)
    assert (second.follows, second.is_cut, second.state_kind) == (first, True, "reconstructed")
    assert (first.input_tokens, first.output_tokens, first.started_at) == (9, 2, 100.0)
    assert first.choices[0].finish_reason == "tool_calls"
    assert second.state.parent.parent.parent is first.state


def test_calls_answer_without_all_its_results_is_not_in_later_states():
    answer = response("r1", "c1", "c2")
    found = calls(user(1, "u"), act(2, answer, "c1"), observe(3, 2, "one"), *one_turn(4, "r2"))
    assert said(found[1]) == [("user", "u")]


def test_calls_result_without_a_tool_call_id_is_found_by_its_cause():
    found = calls(
        user(1, "u"), act(2, response("r1", "c1"), "c1"), observe(3, 2, "x"), *one_turn(4, "r2")
    )
    assert found[1].state.after()[-1].message.tool_call_id == "c1"


def test_calls_pairs_of_the_oldest_logs_are_read_in_order():
    pair = [
        {"source": "agent", "action": "run", "args": {"command": "ls", "thought": "t"}},
        {"source": "agent", "observation": "run", "content": "x"},
    ]
    first = [{"source": "user", "action": "message", "args": {"content": "u"}}, None]
    found = calls(first, pair, pair)
    assert [call.warnings for call in found] == [["action_reconstructed"]] * 2
    action = found[0].choices[0].action.message
    assert (action.content, action.tool_calls[0].name) == ("t", "run")
    assert action.tool_calls[0].arguments == '{"command": "ls"}'
    assert said(found[1]) == [("user", "u"), ("assistant", "t"), ("tool", "x")]


def test_calls_agent_message_is_an_answer_and_user_events_are_none():
    run = {"id": 2, "source": "user", "action": "run", "args": {"command": "ls"}}
    speak = {"id": 3, "source": "agent", "action": "message", "args": {"content": "hello"}}
    first, second = calls(user(1, "u"), run, speak, user(4, "go on"), *one_turn(5, "r2"))
    assert text_of(first.choices[0].action.message) == "hello"
    assert first.warnings == []
    assert said(first)[1] == ("user", "User executed the command:\nls")
    assert said(second)[-2:] == [("assistant", "hello"), ("user", "go on")]


def test_calls_images_of_the_user_are_parts():
    (call,) = calls(user(1, "see", image_urls=["data:x"]), *one_turn(2, "r1"))
    parts = json.loads(call.state.after()[0].message.parts)
    assert [part["type"] for part in parts] == ["text", "image_url"]


def test_calls_output_is_shown_as_the_agent_rendered_it():
    about = {"prefix": "p", "suffix": "s", "working_dir": "/w", "exit_code": 1}
    history = [act(1, response("r1", "c1"), "c1"), observe(2, 1, "x", metadata=about)]
    error = observe(3, None, "bad", kind="error")
    rejected = observe(4, None, "no", kind="user_rejected")
    found = calls(*history, error, rejected, *one_turn(5, "r2"))
    assert [shown for _, shown in said(found[1])][1:] == [
        "pxs\n[Current working directory: /w]\n[Command finished with exit code 1]",
        "bad\n[Error occurred in processing last action]",
        "OBSERVATION:\nno\n[Last action has been rejected by the user]",
    ]
    assert [role for role, _ in said(found[1])][1:] == ["tool", "user", "user"]


@pytest.mark.parametrize(
    "forgotten",
    [
        {"forgotten_event_ids": [2, 3, 4, 5]},
        {"forgotten_events_start_id": 2, "forgotten_events_end_id": 5},
    ],
)
def test_calls_condensation_takes_events_away_and_puts_its_summary_in(forgotten):
    args = {**forgotten, "summary": "short", "summary_offset": 2}
    condense = {"id": 8, "source": "agent", "action": "condensation", "args": args}
    turns = [*one_turn(2, "r1"), *one_turn(4, "r2"), *one_turn(6, "r3")]
    found = calls(SYSTEM, user(1, "u"), *turns, condense, *one_turn(9, "r4"))
    assert len(said(found[2])) == 5
    assert said(found[3]) == [("user", "u"), ("user", "short"), ("assistant", "r3"), ("tool", "x")]
    assert found[3].follows is found[2]
    # the next condensation was told the summary of the first
    args = {"forgotten_event_ids": [6, 7], "summary": "shorter", "summary_offset": 2}
    again = {"id": 11, "source": "agent", "action": "condensation", "args": args}
    found = calls(
        SYSTEM, user(1, "u"), *turns, condense, *one_turn(9, "r4"), again, *one_turn(12, "r5")
    )
    assert said(found[4])[:2] == [("user", "u"), ("user", "shorter")]
    assert ("user", "short") not in said(found[4])


def test_calls_condensation_of_an_endless_range_ends():
    args = {"forgotten_events_start_id": 0, "forgotten_events_end_id": 2**62}
    condense = {"id": 4, "source": "agent", "action": "condensation", "args": args}
    found = calls(user(1, "u"), *one_turn(2, "r1"), condense, *one_turn(5, "r2"))
    assert said(found[1]) == []


def test_calls_what_recall_put_into_the_prompt_is_missing_and_told():
    recall = {"id": 2, "source": "user", "action": "recall", "args": {"query": "u"}}
    facts = observe(3, 2, "Added", kind="recall", recall_type="workspace_context", date="today")
    found = calls(SYSTEM, user(1, "u"), recall, facts, *one_turn(4, "r1"), *one_turn(6, "r2"))
    assert [call.state_kind for call in found] == ["partial", "partial"]
    assert [call.warnings for call in found] == [["recall_not_rendered"], []]
    assert said(found[0]) == [("user", "u")]
    assert {"date": "today"}.items() <= found[0].metadata["before"][-1]["extras"].items()
    empty = observe(3, 2, "Added", kind="recall", recall_type="knowledge", microagent_knowledge=[])
    (call,) = calls(SYSTEM, user(1, "u"), recall, empty, *one_turn(4, "r1"))
    assert (call.state_kind, call.warnings) == ("reconstructed", [])


def test_calls_without_a_system_event_are_partial():
    (call,) = calls(user(1, "u"), *one_turn(2, "r1"))
    assert (call.system, call.tools, call.state_kind) == ("", None, "partial")


def test_calls_states_of_the_agent_are_never_shown():
    hidden = {
        "id": 2,
        "source": "environment",
        "observation": "agent_state_changed",
        "content": "c",
    }
    null = {"id": 5, "source": "agent", "action": "null"}
    (call,) = calls(user(1, "u"), hidden, *one_turn(3, "r1"), null)
    assert said(call) == [("user", "u")]
    assert [held["id"] for held in call.metadata["before"]] == [1, 2]
    assert [held["id"] for held in call.metadata["after"]] == [5]
    assert [m.content for m in call.final_observation] == ["x"]


def test_calls_finish_terminates_and_is_later_shown_as_text():
    finish = act(2, response("r1", "c1", content="done"), "c1", action="finish", thought="done")
    (call,) = calls(user(1, "u"), finish)
    assert (call.terminated, call.is_last) == (True, True)
    first, second = calls(user(1, "u"), finish, user(3, "more"), *one_turn(4, "r2"))
    assert (first.terminated, second.terminated) == (None, None)
    assert said(second) == [("user", "u"), ("assistant", "done"), ("user", "more")]
    assert second.state.after()[1].message.tool_calls is None
    # the controller's own finish, when a user leaves, is no answer
    leave = {"id": 9, "source": "agent", "action": "finish", "args": {"thought": ""}}
    assert len(calls(user(1, "u"), *one_turn(2, "r1"), leave)) == 1
    silent = act(9, response("r2", "c9", content="bye"), "c9", action="finish")
    assert len(calls(user(1, "u"), *one_turn(2, "r1"), silent)) == 2


def test_calls_line_of_an_evaluation_tells_task_settings_latency_and_verdict():
    metrics = {
        "response_latencies": [{"response_id": "r1", "latency": 1.5}, {"latency": 9}],
        "token_usages": [{"response_id": "r1", "cache_read_tokens": 4}],
    }
    settings = {"llm_config": {"model": "m", "temperature": 0.5, "top_p": 1.0}}
    first, second = calls(
        user(1, "u"),
        *one_turn(2, "r1"),
        *one_turn(4, "r2"),
        metrics=metrics,
        metadata={"agent_class": "CodeActAgent", **settings},
        test_result={"report": {"resolved": True}},
        error="Agent reached maximum iteration",
    )
    assert (first.latency_s, first.cached_tokens, second.latency_s) == (1.5, 4, None)
    assert (first.task_id, first.agent, first.temperature) == ("i-1", "CodeActAgent", 0.5)
    assert (first.model, first.trajectory_reward) == ("m-1", 1.0)
    assert (first.is_last, second.is_last, second.truncated) == (False, True, True)
    assert second.metadata["record"]["test_result"] == {"report": {"resolved": True}}
    assert [(c.record, c.ordinal) for c in (first, second)] == [(0, 0), (0, 1)]


def test_calls_keep_what_events_hold_beside_their_messages():
    answer = response("r1", "c1", content="thinking aloud")
    chosen = act(2, answer, "c1", thought="thinking aloud", confirmation_state="confirmed")
    result = observe(3, 2, "x", diff="d")
    (call,) = calls(user(1, "u"), {**chosen, "timestamp": "t"}, result)
    assert call.metadata["events"] == [
        {"id": 2, "timestamp": "t", "args": {"confirmation_state": "confirmed"}}
    ]
    assert call.metadata["results"] == [{"id": 3, "cause": 2, "extras": {"diff": "d"}}]


def test_calls_record_without_an_answer_is_rejected_with_its_task_and_verdict():
    with pytest.raises(Fate) as caught:
        calls(user(1, "u"), test_result={"report": {"resolved": False}})
    assert caught.value.reason == "empty_trajectory"
    assert caught.value.known == {"task_id": "i-1", "reward": 0.0}


def test_why_not_other_records_are_refused_with_the_reason():
    assert openhands_v0.why_not({"messages": []}) == "no list history"
    assert "no events" in openhands_v0.why_not({"history": [{"role": "user"}]})
    assert "without instance_id" in openhands_v0.why_not({"history": []})


def test_events_session_an_array_of_events_is_one_attempt():
    events = [user(1, "u"), *one_turn(2, "r1"), *one_turn(4, "r2")]
    events = [{**event, "timestamp": "1970-01-01T00:00:09"} for event in events]
    assert [openhands_v0_events.why_not(event) for event in events] == [None] * 5
    found = openhands_v0_events.session(dict(zip(range(10, 15), events, strict=True)), Context())
    assert [(call.record, call.native_id) for call in found.calls] == [(11, "r1"), (13, "r2")]
    assert found.fates == {}


def test_events_session_without_an_answer_ignores_its_records():
    found = openhands_v0_events.session({0: user(1, "u")}, Context())
    assert (found.calls, found.fates[0].reason) == ([], "no_call")
    assert openhands_v0_events.why_not({"role": "user"}) == "no action and no observation"
