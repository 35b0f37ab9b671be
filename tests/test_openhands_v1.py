import json

from conftest import shared

from clawcli.ingest.calls import Context
from clawcli.ingest.formats import openhands_v1
from clawcli.messages import text_of

SCHEMAS = [{"type": "function", "function": {"name": "terminal", "parameters": {}}}]
AT = "1970-01-01T00:00:09"


def event(kind, name, source="environment", **more):
    return {"kind": kind, "id": name, "timestamp": AT, "source": source, **more}


def text_part(text):
    return {"type": "text", "text": text, "cache_prompt": False}


def prompt(tools=SCHEMAS, **more):
    return event(
        "SystemPromptEvent", "s", "agent", system_prompt=text_part("S"), tools=tools, **more
    )


def user(name, text, **more):
    message = {"role": "user", "content": [text_part(text)]}
    return event("MessageEvent", name, "user", llm_message=message, **more)


def act(name, answer, call_id, thought="", tool="terminal", **more):
    return event(
        "ActionEvent",
        name,
        "agent",
        llm_response_id=answer,
        tool_call_id=call_id,
        tool_name=tool,
        tool_call={"id": call_id, "name": tool, "arguments": '{"command": "ls"}'},
        thought=[text_part(thought)] if thought else [],
        **more,
    )


def observe(name, call_id, text, **more):
    observation = {"content": [text_part(text)], **more}
    return event("ObservationEvent", name, tool_call_id=call_id, observation=observation)


def stats(name, prompt_tokens, completion_tokens, newest, key="default"):
    total = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "per_turn_token": newest,
    }
    metrics = {"model_name": "m", "accumulated_token_usage": total}
    value = {"usage_to_metrics": {key: metrics}}
    return event("ConversationStateUpdateEvent", name, key="stats", value=value)


def session(*events):
    assert openhands_v1.why_not(events[0]) is None
    return openhands_v1.session(dict(enumerate(events)), Context())


def calls(*events):
    found = session(*events)
    assert found.fates == {}
    return found.calls


def said(call):
    return [(item.message.role, text_of(item.message)) for item in call.state.after()]


def turn(number):
    call_id = f"c{number}"
    return [
        act(f"a{number}", f"r{number}", call_id, f"r{number}"),
        observe(f"o{number}", call_id, "x"),
    ]


def reasons(found):
    return {ordinal: (fate.fate, fate.reason) for ordinal, fate in found.fates.items()}


def test_corpus_fixture_has_one_call_per_response_and_every_record_one_fate():
    path = shared("openhands-v1", "goal_events.jsonl")
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    found = session(*events)
    responses = dict.fromkeys(e["llm_response_id"] for e in events if "llm_response_id" in e)
    assert [call.native_id for call in found.calls] == list(responses)
    # the result in line 7 answers a call that the fixture leaves out; line 1 is a status
    assert reasons(found) == {0: ("ignored", "not_shown"), 6: ("ignored", "orphan_result")}
    assert [call.state.depth for call in found.calls] == [0, 2]
    # 35,895 - 596 and 960 - 775, which add up to the logged per_turn_token
    assert (found.calls[0].input_tokens, found.calls[0].output_tokens) == (35299, 185)
    assert found.calls[0].model == "litellm_proxy/minimax-m2.7"


def test_session_actions_of_one_response_are_one_call():
    first, second = calls(
        prompt(),
        user("u", "go"),
        act("a1", "r1", "c1", "both"),
        act("a2", "r1", "c2"),
        observe("o2", "c2", "two"),
        observe("o1", "c1", "one"),
        *turn(3),
    )
    action = first.choices[0].action.message
    assert (action.content, [c.id for c in action.tool_calls]) == ("both", ["c1", "c2"])
    assert action.tool_calls[0].arguments == '{"command": "ls"}'
    assert [m.message.tool_call_id for m in second.state.after()[-2:]] == ["c1", "c2"]
    assert (first.native_id, first.record, first.system) == ("r1", 2, "S")
    assert json.loads(first.tools) == SCHEMAS
    assert said(first) == [("user", "go")]
    assert said(second) == [("user", "go"), ("assistant", "both"), ("tool", "one"), ("tool", "two")]
    assert (second.follows, second.is_cut, second.state_kind) == (first, True, "reconstructed")
    assert (first.ended_at, first.started_at) == (9.0, None)


def test_session_agent_message_is_an_answer():
    message = {"role": "assistant", "content": [text_part("hi")], "reasoning_content": "hm"}
    spoken = event("MessageEvent", "m", "agent", llm_message=message, llm_response_id="r1")
    first, second = calls(prompt(), user("u", "go"), spoken, user("v", "on"), *turn(2))
    assert (first.choices[0].action.message.reasoning, first.native_id) == ("hm", "r1")
    assert said(second) == [("user", "go"), ("assistant", "hi"), ("user", "on")]


def test_session_context_that_an_agent_added_is_shown():
    found = calls(
        prompt(dynamic_context=text_part(" D")),
        user("u", "go", extended_content=[text_part(" now")]),
        *turn(1),
    )
    assert (found[0].system, said(found[0])) == ("S D", [("user", "go now")])


def test_session_results_of_every_kind_are_shown_as_the_agent_rendered_them():
    about = {"prefix": "", "suffix": "", "working_dir": "/w", "exit_code": 0}
    failed = event("AgentErrorEvent", "o2", "agent", tool_call_id="c2", error="no such tool")
    refused = event("UserRejectObservation", "o3", tool_call_id="c3", rejection_reason="not now")
    found = calls(
        prompt(),
        act("a1", "r1", "c1"),
        observe("o1", "c1", "x", metadata=about),
        act("a2", "r2", "c2"),
        failed,
        act("a3", "r3", "c3"),
        refused,
        *turn(4),
    )
    assert [shown for role, shown in said(found[3]) if role == "tool"] == [
        "x\n[Current working directory: /w]\n[Command finished with exit code 0]",
        "no such tool",
        "Action rejected: not now",
    ]


def test_session_answer_without_its_result_is_not_in_later_states():
    found = calls(prompt(), user("u", "go"), act("a1", "r1", "c1"), *turn(2))
    assert said(found[1]) == [("user", "go")]


def test_session_condensation_changes_later_states_only():
    condense = event(
        "Condensation",
        "k",
        forgotten_event_ids=["a1", "o1"],
        summary="short",
        summary_offset=2,
        llm_response_id="r-sum",
    )
    again = event("Condensation", "k2", forgotten_event_ids=["k-summary", "a2", "o2"])
    found = calls(
        prompt(), user("u", "go"), *turn(1), *turn(2), condense, *turn(3), again, *turn(4)
    )
    assert len(said(found[1])) == 3
    assert said(found[2]) == [("user", "go"), ("user", "short"), ("assistant", "r2"), ("tool", "x")]
    assert said(found[3]) == [("user", "go"), ("assistant", "r3"), ("tool", "x")]
    assert found[2].follows is found[1]
    assert found[2].metadata["before"][-1]["llm_response_id"] == "r-sum"


def test_session_tools_without_schemas_and_a_missing_prompt_make_states_partial():
    named = [{"description": "d", "action_type": "TerminalAction", "kind": "TerminalTool"}]
    assert calls(prompt(tools=named), *turn(1))[0].state_kind == "partial"
    assert calls(user("u", "go"), *turn(1))[0].state_kind == "partial"
    assert calls(prompt(), *turn(1))[0].state_kind == "reconstructed"


def test_session_usage_is_taken_only_where_the_log_confirms_the_difference():
    first, second, third = session(
        stats("t1", 10, 2, 12),
        *turn(1),
        stats("t2", 30, 5, 23),
        *turn(2),
        stats("t3", 99, 9, 7),
        *turn(3),
    ).calls
    assert (first.input_tokens, first.output_tokens, first.model) == (10, 2, "m")
    assert (second.input_tokens, second.output_tokens) == (20, 3)
    assert (third.input_tokens, third.output_tokens) == (None, None)


def test_session_usage_that_does_not_stand_before_its_call_belongs_to_none():
    first, second = session(
        prompt(), *turn(1)[:1], stats("t", 10, 2, 12), *turn(1)[1:], *turn(2)
    ).calls
    assert (first.input_tokens, second.input_tokens) == (None, None)


def test_session_usage_of_side_calls_does_not_count():
    (call,) = session(stats("t", 10, 2, 12, key="condenser"), *turn(1)).calls
    assert call.input_tokens is None


def test_session_token_ids_are_given_to_their_call_on_either_side():
    def tokens(name, *numbers):
        ids = {"prompt_token_ids": [1], "response_token_ids": list(numbers)}
        return event("TokenEvent", name, "agent", **ids)

    after = calls(prompt(), *turn(1), tokens("t1", 5), *turn(2), tokens("t2", 6))
    before = calls(prompt(), tokens("t1", 5), *turn(1), tokens("t2", 6), *turn(2))
    for first, second in (after, before):
        assert (first.choices[0].response_ids, second.choices[0].response_ids) == ([5], [6])
        assert first.prompt_ids == [1]


def test_session_full_state_names_conversation_and_model():
    llm = {"model": "m-1", "temperature": 0.5, "top_p": 0.9}
    value = {"id": "conv-1", "agent": {"llm": llm}, "stats": {}}
    state = event("ConversationStateUpdateEvent", "f", key="full_state", value=value)
    (call,) = calls(state, prompt(), *turn(1))
    assert (call.trajectory_key, call.key_is_global, call.model) == ("conv-1", True, "m-1")
    assert (call.temperature, call.top_p) == (0.5, 0.9)


def test_session_finish_terminates_and_an_iteration_limit_truncates():
    finish = act("a9", "r9", "c9", tool="finish")
    assert calls(prompt(), finish)[0].terminated is True
    limit = event("ConversationErrorEvent", "e", code="MaxIterationsReached", detail="d")
    found = session(prompt(), *turn(1), user("v", "on"), limit)
    assert (found.calls[0].truncated, found.calls[0].terminated) == (True, None)
    assert [m.content for m in found.calls[0].final_observation] == ["x", "on"]
    assert {"events", "results", "after"} <= found.calls[0].metadata.keys()


def test_session_records_that_no_model_saw_are_ignored_and_repeats_are_duplicates():
    pause = event("PauseEvent", "p", "user")
    found = session(
        prompt(), user("u", "go"), user("u", "go"), pause, *turn(1), observe("o9", "c9", "x")
    )
    assert reasons(found) == {
        2: ("duplicate", "event_repeated"),
        3: ("ignored", "not_shown"),
        6: ("ignored", "orphan_result"),
    }
    assert said(found.calls[0]) == [("user", "go")]


def test_session_without_a_call_ignores_all_its_records():
    found = session(prompt(), user("u", "go"))
    assert found.calls == []
    assert reasons(found) == {0: ("ignored", "no_call"), 1: ("ignored", "no_call")}


def test_session_message_keeps_its_role_and_one_without_is_of_the_user():
    plain = event("MessageEvent", "m1", "user", llm_message={"content": "hi"})
    other = {"role": "system", "content": "note"}
    found = calls(prompt(), plain, event("MessageEvent", "m2", llm_message=other), *turn(1))
    assert said(found[0]) == [("user", "hi"), ("system", "note")]


def test_session_damaged_message_costs_its_record_only():
    bad = event("MessageEvent", "m", "agent", llm_message={"content": "x", "tool_calls": [7]})
    found = session(prompt(), bad, *turn(1))
    assert reasons(found) == {1: ("rejected", "bad_message")}
    assert len(found.calls) == 1


def test_session_reasoning_and_images_are_read():
    thought = {"summary": ["so"], "content": None, "encrypted_content": "x"}
    image = {"type": "image", "image_urls": ["data:x"], "cache_prompt": False}
    shown = event("MessageEvent", "u", "user", llm_message={"role": "user", "content": [image]})
    (call,) = calls(prompt(), shown, act("a1", "r1", "c1", responses_reasoning_item=thought))
    assert call.choices[0].action.message.reasoning == "so"
    assert json.loads(call.state.after()[0].message.parts)[0]["type"] == "image_url"
    assert call.metadata["events"][0]["responses_reasoning_item"] == thought


def test_session_keep_what_events_hold_beside_their_messages():
    action = {"kind": "TerminalAction", "command": "ls", "timeout": 5}
    chosen = act("a1", "r1", "c1", action=action, security_risk="LOW")
    result = observe("o1", "c1", "x", is_error=True, exit_code=1)
    (call,) = calls(prompt(), chosen, result)
    assert call.metadata["events"] == [
        {
            "id": "a1",
            "timestamp": AT,
            "security_risk": "LOW",
            "action": {"kind": "TerminalAction", "timeout": 5},
        }
    ]
    (held,) = call.metadata["results"]
    assert held["observation"] == {"is_error": True, "exit_code": 1}


def test_why_not_other_records_are_refused_with_the_reason():
    assert openhands_v1.why_not({"kind": "Other"}) == "no kind of an SDK event"
    assert openhands_v1.why_not({"kind": "ActionEvent"}) == "no id, timestamp, source"
