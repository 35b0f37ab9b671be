import json

import pytest
from conftest import assistant, system, tool, user
from expected_counts import expected

from clawcli.ingest.calls import Context
from clawcli.ingest.formats import mini_swe_agent
from clawcli.messages import text_of

ASKED = [("c1", "bash", '{"command": "ls"}')]


def document(*messages, info=None, **more):
    form = {"trajectory_format": "mini-swe-agent-1.1"}
    return {"messages": list(messages), "info": info or {}, **form, **more}


def session(*records):
    assert [mini_swe_agent.why_not(record) for record in records[:1]] == [None]
    return mini_swe_agent.session(dict(enumerate(records)), Context())


def calls(*messages, **more):
    found = session(document(*messages, **more))
    assert found.fates == {}
    return found.calls


def completion(content, **more):
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": "stop", "message": message, **more}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    return {"id": "r1", "created": 100, "model": "m-1", "choices": [choice], "usage": usage}


def said(call):
    return [(item.message.role, text_of(item.message)) for item in call.state.after()]


def test_corpus_counts_agree_with_the_independent_ones():
    for path, trajectories, steps in expected("mini-swe-agent"):
        logged = json.loads(path.read_bytes())
        records = logged if isinstance(logged, list) else [logged]
        found = session(*records)
        assert (path.name, len(found.calls)) == (path.name, steps)
        assert len([call for call in found.calls if call.follows is None]) == trajectories
        assert found.fates == {}


def test_session_document_is_cut_at_each_answer():
    first, second = calls(system("S"), user("u"), assistant("a"), user("x"), assistant("b"))
    assert first.system == second.system == "S"
    assert said(second) == [("user", "u"), ("assistant", "a"), ("user", "x")]
    assert (second.is_cut, second.follows, second.state_kind) == (True, first, "reconstructed")
    assert [call.ordinal for call in (first, second)] == [0, 1]
    assert second.state.parent.parent is first.state


def test_session_bare_messages_of_a_file_are_one_attempt():
    found = session(system("S"), user("u"), assistant("a"), user("x"), assistant("b"), user("end"))
    assert [(call.record, call.ordinal) for call in found.calls] == [(2, 0), (4, 0)]
    assert found.calls[1].follows is found.calls[0]
    assert [m.content for m in found.calls[1].final_observation] == ["end"]


def test_session_several_documents_are_attempts_of_their_own():
    found = session(document(user("u"), assistant("a")), document(user("u"), assistant("b")))
    assert [(call.record, call.follows) for call in found.calls] == [(0, None), (1, None)]


def test_session_documents_without_an_answer_or_with_damage_are_rejected_alone():
    bad = {"role": "assistant", "content": "", "tool_calls": "ls"}
    found = session(
        document(user("u"), assistant("a")),
        document(user("u"), instance_id="i-1"),
        document(bad),
        {"info": {"mini_version": "1"}},
    )
    assert [call.record for call in found.calls] == [0]
    assert {k: (f.fate, f.reason) for k, f in found.fates.items()} == {
        1: ("rejected", "empty_trajectory"),
        2: ("rejected", "bad_message"),
        3: ("rejected", "empty_trajectory"),
    }
    assert found.fates[1].known == {"task_id": "i-1"}


def test_calls_response_of_the_provider_tells_usage_and_how_it_ended():
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]}
    response = completion("a", logprobs=logprobs)
    extra = {"response": response, "cost": 0.5, "timestamp": 104.5, "actions": [{"command": "ls"}]}
    (call,) = calls(user("u"), assistant("a", extra=extra))
    assert (call.native_id, call.model, call.cost_usd) == ("r1", "m-1", 0.5)
    assert (call.input_tokens, call.output_tokens) == (9, 2)
    assert (call.started_at, call.ended_at) == (100.0, 104.5)
    assert call.choices[0].finish_reason == "stop"
    assert call.choices[0].logprobs == [-0.5, -0.25]
    assert call.metadata["actions"] == [{"command": "ls"}]
    assert call.state.depth == 1


def test_calls_without_a_response_the_logged_message_is_the_action():
    extra = {"response": {"error": "none"}, "cost": 0.5}
    (call,) = calls(user("u"), assistant("", calls=ASKED, extra=extra))
    assert call.choices[0].action.message.tool_calls[0].arguments == '{"command": "ls"}'
    assert call.cost_usd == 0.5


def test_calls_answer_that_differs_from_its_response_is_shown_as_it_was_sent_on():
    first = assistant("sent on", extra={"response": completion("given")})
    one, two = calls(user("u"), first, user("x"), assistant("b"))
    assert text_of(one.choices[0].action.message) == "given"
    assert ("assistant", "sent on") in said(two)


@pytest.mark.parametrize(
    "extra",
    [
        {"interrupt_type": "FormatError", "model_response": "no command"},
        {"interrupt_type": "FormatError", "response": completion("no command")},
    ],
)
def test_calls_answer_that_was_refused_is_a_call_that_nobody_saw(extra):
    complaint = {**user("one action!"), "extra": extra}
    refused, second = calls(user("u"), complaint, assistant("b"))
    assert text_of(refused.choices[0].action.message) == "no command"
    assert refused.warnings == ["answer_not_shown"]
    assert said(refused) == [("user", "u")]
    assert said(second) == [("user", "u"), ("user", "one action!")]
    assert second.follows is refused
    assert refused.metadata["results"] == [{"interrupt_type": "FormatError"}]


@pytest.mark.parametrize(
    ("status", "terminated", "truncated"),
    [("Submitted", True, None), ("LimitsExceeded", None, True), ("RuntimeError", None, None)],
)
def test_calls_exit_message_ends_the_attempt_and_is_in_no_state(status, terminated, truncated):
    end = {"role": "exit", "content": "bye", "extra": {"exit_status": status, "submission": "d"}}
    first, last = calls(user("u"), assistant("a"), user("x"), assistant("b"), user("y"), end)
    assert (last.terminated, last.truncated, last.is_last) == (terminated, truncated, True)
    assert (first.terminated, first.truncated, first.is_last) == (None, None, False)
    assert [m.content for m in last.final_observation] == ["y"]
    assert last.metadata["end"] == {"content": "bye", "exit_status": status, "submission": "d"}


def test_calls_status_of_the_document_ends_the_attempt_and_none_leaves_it_open():
    (call,) = calls(user("u"), assistant("a"), info={"exit_status": "Submitted"})
    assert (call.terminated, call.is_last) == (True, True)
    (call,) = calls(user("u"), assistant("a"))
    assert (call.terminated, call.is_last) == (None, None)


def test_calls_tools_that_were_called_without_schemas_make_states_partial():
    found = calls(user("u"), assistant("", calls=ASKED), tool("x"), assistant("b"))
    assert {call.state_kind for call in found} == {"partial"}
    assert found[1].state.after()[-1].message.tool_call_id == "c1"


def test_calls_model_parameters_come_from_the_config():
    model = {"model_name": "m", "model_kwargs": {"temperature": 0.5, "drop_params": True}}
    info = {"config": {"model": model, "agent_type": "a.Agent"}}
    (call,) = calls(user("u"), assistant("a"), info=info, instance_id="i-1")
    assert (call.model, call.temperature, call.agent, call.task_id) == ("m", 0.5, "a.Agent", "i-1")
    assert call.metadata["request"] == {"drop_params": True}


def test_calls_answers_in_the_form_of_the_responses_api_are_read():
    response = {
        "object": "response",
        "id": "resp_1",
        "model": "m-1",
        "created_at": 100,
        "usage": {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11},
        "output": [
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "go"}]},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
        ],
        "extra": {"cost": 0.5},
    }
    result = {"type": "function_call_output", "call_id": "c1", "output": "x"}
    first, second = calls(user("u"), response, result, assistant("b"))
    action = first.choices[0].action.message
    assert (action.content, action.reasoning, action.tool_calls[0].id) == ("go", "hm", "c1")
    assert (first.native_id, first.model, first.input_tokens) == ("resp_1", "m-1", 9)
    assert (first.output_tokens, first.started_at, first.cost_usd) == (2, 100.0, 0.5)
    answer = second.state.after()[-1].message
    assert (answer.role, answer.content, answer.tool_call_id) == ("tool", "x", "c1")


def test_calls_keep_what_was_logged_beside_results_and_no_text_twice():
    first = {**user("u"), "extra": {"note": 1}}
    result = {**user("<out>\nx</out>"), "extra": {"raw_output": "x", "returncode": 0}}
    (call,) = calls(first, assistant("a"), result, extra_key=2)
    assert call.metadata["before"] == [{"note": 1}]
    assert call.metadata["results"] == [{"returncode": 0}]
    assert call.metadata["extra_key"] == 2


def test_why_not_only_documents_and_bare_messages_are_taken():
    refused = "no trajectory_format mini-swe-agent-... and no info.mini_version"
    assert mini_swe_agent.why_not({"messages": []}) == refused
    assert mini_swe_agent.why_not({"role": "user", "content": "u", "uuid": "x"}) == refused
    assert mini_swe_agent.why_not({"role": "user"}) == "a message without content"
    assert mini_swe_agent.why_not({"info": {"mini_version": "1"}}) == "no list of messages"


@pytest.mark.parametrize("role", [None, 1.5, [{}], {"type": [1]}])
def test_session_message_without_a_role_rejects_its_attempt(role):
    found = session(document(system("S"), {"role": role, "content": "u"}, assistant("a")))
    assert (found.calls, found.fates[0].reason) == ([], "bad_message")
