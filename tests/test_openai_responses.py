import json
import random

import pytest
from conftest import shared

from clawcli.ingest.calls import Context
from clawcli.ingest.formats import detect, events, items, openai_responses, streams

TOOLS = [{"type": "function", "name": "f", "parameters": {}}]


def text_item(text, **extra):
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "role": "assistant", "content": content, **extra}


def call_item(uid="c1", name="f", arguments="{}"):
    return {"type": "function_call", "call_id": uid, "name": name, "arguments": arguments}


def output_item(uid="c1", output="r"):
    return {"type": "function_call_output", "call_id": uid, "output": output}


def user(text):
    return {"role": "user", "content": text}


def response(uid, *output, at=1.0, status="completed", **extra):
    return {
        "id": uid,
        "object": "response",
        "created_at": at,
        "status": status,
        "model": "m",
        "output": list(output),
        **extra,
    }


def pair(uid, value, *output, request=None, **extra):
    request = {"model": "m", "input": value, **(request or {})}
    return {"request": request, "response": response(uid, *(output or [text_item("a")]), **extra)}


def session(*records):
    return openai_responses.session(dict(enumerate(records)), Context())


def calls(*records):
    made = session(*records)
    assert made.fates == {}
    return made.calls


def call_of(record):
    (call,) = calls(record)
    return call


def fates(*records):
    return {n: (f.fate, f.reason) for n, f in session(*records).fates.items()}


def said(call):
    return [(item.message.role, item.message.content) for item in call.state.after()]


# one response


def test_session_input_text_or_items_and_instructions_are_the_state():
    call = call_of(pair("r1", "u", request={"instructions": "s", "tools": TOOLS, "top_p": 0.5}))
    assert (call.system, said(call), json.loads(call.tools)) == ("s", [("user", "u")], TOOLS)
    assert (call.native_id, call.model, call.started_at, call.top_p) == ("r1", "m", 1.0, 0.5)
    assert (call.state_kind, call.is_cut) == ("full", False)
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "s"}]}
    call = call_of(pair("r1", [developer, user("u")]))
    assert (call.system, said(call), call.tools) == ("s", [("user", "u")], "[]")
    call = call_of(pair("r1", [developer, user("u")], request={"instructions": "i"}))
    assert (call.system, said(call)) == ("i", [("developer", "s"), ("user", "u")])


def test_session_response_of_many_items_is_one_step():
    output = [
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"text": "so"}]},
        text_item("first", phase="commentary"),
        {"type": "mcp_call", "id": "mc", "name": "look", "arguments": "{}", "output": "seen"},
        text_item("second", phase="final_answer"),
        call_item("c1", arguments='{"a":1}'),
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "free text"},
        {"type": "local_shell_call", "call_id": "c3", "action": {"command": ["ls"]}},
    ]
    (choice,) = call_of(pair("r1", "u", *output)).choices
    message = choice.action.message
    assert message.reasoning == "so"
    assert [p.get("text", p["type"]) for p in json.loads(message.parts)] == [
        "first",
        "mcp_call",
        "second",
    ]
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        ("c1", "f", '{"a":1}'),
        ("c2", "g", "free text"),
        ("c3", "local_shell", '{"command": ["ls"]}'),
    ]
    assert (choice.finish_reason, choice.finish_reason_raw) == ("tool_calls", "completed")
    assert choice.warnings == []
    kept = [{k: v for k, v in item.items() if k != "type"} for item in choice.metadata["items"]]
    assert kept == [
        {"id": "rs"},
        {"phase": "commentary"},
        {},
        {"phase": "final_answer"},
        {},
        {},
        {},
    ]


def test_session_next_request_holds_the_action_as_it_was():
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        text_item("first"),
        {"type": "web_search_call", "id": "w", "status": "completed"},
        call_item(),
    ]
    first = call_of(pair("r1", "u", *output))
    second = call_of(pair("r2", [user("u"), *output, output_item()]))
    assert second.state.after()[1].exact == first.choices[0].action.exact
    assert [role for role, _ in said(second)] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("reasoning", "text", "warnings"),
    [
        ({"content": [{"text": "so"}], "summary": [{"text": "s"}]}, "so", []),
        ({"summary": [{"text": "a"}, {"text": "b"}]}, "a\n\nb", ["reasoning_summary"]),
        ({"summary": [], "encrypted_content": "x"}, None, ["reasoning_hidden"]),
    ],
)
def test_session_reasoning_is_content_else_summary_and_what_is_hidden_is_told(
    reasoning, text, warnings
):
    (choice,) = call_of(pair("r1", "u", {"type": "reasoning", **reasoning}, text_item("a"))).choices
    assert (choice.action.message.reasoning, choice.warnings) == (text, warnings)
    kept = choice.metadata["items"][0] if choice.metadata else {}
    assert kept.get("encrypted_content") == reasoning.get("encrypted_content")
    if text == "so":
        assert kept["summary"] == reasoning["summary"]


def test_session_reasoning_that_was_counted_and_not_logged_is_told():
    usage = {"output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 5}}
    call = call_of(pair("r1", "u", usage=usage))
    assert (call.reasoning_tokens, call.choices[0].warnings) == (5, ["reasoning_hidden"])


@pytest.mark.parametrize(
    ("extra", "output", "expected"),
    [
        ({}, [], ("stop", "completed")),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            [],
            ("length", "max_output_tokens"),
        ),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            [],
            ("content_filter", "content_filter"),
        ),
        ({"status": "cancelled"}, [text_item("a")], ("aborted", "cancelled")),
        ({"status": "failed"}, [text_item("a")], ("error", "failed")),
        (
            {},
            [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}],
            ("refusal", "completed"),
        ),
    ],
)
def test_session_status_becomes_the_finish_reason(extra, output, expected):
    (choice,) = call_of(pair("r1", "u", *output, **extra)).choices
    assert (choice.finish_reason, choice.finish_reason_raw) == expected


def test_session_refusal_is_the_text_of_the_action():
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    assert call_of(pair("r1", "u", item)).choices[0].action.message.content == "no"


def test_session_logprobs_are_taken_where_one_text_is_the_whole_action():
    logged = text_item("a")
    logged["content"][0]["logprobs"] = [{"token": "a", "logprob": -0.5}]
    assert call_of(pair("r1", "u", logged)).choices[0].logprobs == [-0.5]
    choice = call_of(pair("r1", "u", logged, call_item())).choices[0]
    assert choice.logprobs is None
    assert choice.metadata["items"][0]["content"] == [
        {"logprobs": logged["content"][0]["logprobs"]}
    ]


def test_session_usage_and_what_has_no_column():
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3,
    }
    record = pair("r1", "u", usage=usage, service_tier="flex", completed_at=3.0, store=True)
    call = call_of({**record, "request": {**record["request"], "store": True}, "note": 1})
    assert (call.input_tokens, call.cached_tokens, call.output_tokens) == (9, 4, 3)
    assert call.ended_at == 3.0
    # what the response repeats of the request stands once
    assert call.metadata == {
        "note": 1,
        "request": {"store": True},
        "response": {"service_tier": "flex"},
    }


# input items


def test_to_messages_covers_the_items_of_an_input():
    found = items.to_messages(
        [
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            {"type": "message", "role": "assistant", "content": "easy"},
            call_item(),
            output_item(output=[{"type": "input_text", "text": "r"}]),
            {"type": "mcp_approval_response", "approval_request_id": "p", "approve": True},
            {"type": "compaction", "encrypted_content": "x"},
            "text alone",
        ]
    )
    found = [item.message for item in found]
    assert [(m.role, m.content, m.tool_call_id) for m in found] == [
        ("user", None, None),
        ("assistant", "easy", None),
        ("tool", "r", "c1"),
        ("tool", None, "p"),
        ("assistant", None, None),
        ("user", "text alone", None),
    ]
    assert [call.name for call in found[1].tool_calls] == ["f"]


def test_to_messages_what_an_item_holds_beside_its_message_is_kept():
    shown = {"type": "computer_call_output", "call_id": "c", "output": {"type": "x"}, "ack": [1]}
    found = items.to_messages(
        [
            {"role": "user", "content": "u"},
            {"role": "user", "content": "v", "id": "m1", "status": "completed"},
            {"type": "reasoning", "id": "rs", "encrypted_content": "x", "summary": []},
            output_item(),
            shown,
        ]
    )
    assert [item.extra for item in found] == [
        None,
        {"items": [{"type": "message", "id": "m1"}]},
        {"items": [{"type": "reasoning", "id": "rs", "encrypted_content": "x"}]},
        None,
        {"items": [{"type": "computer_call_output", "ack": [1]}]},
    ]


def test_to_action_output_of_a_call_that_the_server_ran_stays_in_the_action():
    shell = {"type": "shell_call", "call_id": "c1", "action": {}}
    answered = {"type": "shell_call_output", "call_id": "c1", "output": []}
    assert items.to_action([shell]).message.tool_calls[0].name == "shell"
    action = items.to_action([shell, answered])
    assert action.message.tool_calls is None
    assert json.loads(action.message.parts) == [shell, answered]
    other = {**shell, "call_id": "c2"}
    (call,) = items.to_action([shell, answered, other]).message.tool_calls
    assert call.id == "c2"


@pytest.mark.parametrize(
    ("item", "warnings"),
    [
        (call_item(arguments="{}"), []),
        (call_item(arguments="look(1)"), ["arguments_invalid"]),
        ({"type": "custom_tool_call", "call_id": "c", "name": "g", "input": "look(1)"}, []),
    ],
)
def test_to_action_arguments_that_are_no_object_are_told_unless_they_are_free_text(item, warnings):
    assert items.to_action([item]).warnings == warnings


# chains


def chain():
    first = pair("r1", "u", call_item(), request={"instructions": "s"})
    second = pair("r2", [output_item()], text_item("b"), request={"previous_response_id": "r1"})
    third = pair("r3", "v", text_item("c"), request={"previous_response_id": "r2"}, at=3.0)
    return [first, second, third]


def test_session_previous_response_gives_the_state_in_any_order():
    for seed in range(6):
        shuffled = random.Random(seed).sample(chain(), 3)
        by_id = {call.native_id: call for call in calls(*shuffled)}
        third = by_id["r3"]
        assert [r for r, _ in said(third)] == ["user", "assistant", "tool", "assistant", "user"]
        assert (third.follows, third.is_cut, third.state_kind) == (by_id["r2"], True, "full")
        assert by_id["r2"].follows is by_id["r1"]
        # instructions are those of one request
        assert [by_id[uid].system for uid in ("r1", "r2", "r3")] == ["s", "", ""]
        assert (
            by_id["r2"].state.parent.exact
            == by_id["r1"].state.then(by_id["r1"].choices[0].action).exact
        )


def test_session_system_text_of_the_first_input_is_that_of_the_chain():
    lead = {"role": "system", "content": "s"}
    first = pair("r1", [lead, user("u")])
    link = {"previous_response_id": "r1"}
    second = pair("r2", "v", request=link)
    third = pair("r3", "w", request={**link, "instructions": "i"})
    one, two, three = calls(first, second, third)
    assert (one.system, two.system, three.system) == ("s", "s", "i")
    assert said(two) == [("user", "u"), ("assistant", "a"), ("user", "v")]
    assert said(three) == [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "w")]


def test_session_two_answers_to_one_response_both_follow_it():
    link = {"previous_response_id": "r1"}
    one, two, three = calls(
        pair("r1", "u"), pair("r2", "v", request=link), pair("r3", "w", request=link)
    )
    assert two.follows is three.follows is one


def test_session_missing_previous_response_makes_its_chain_partial():
    _, second, third = chain()
    two, three = calls(second, third)
    assert (two.state_kind, two.warnings) == ("partial", ["previous_response_missing"])
    assert (three.state_kind, three.warnings, three.follows) == ("partial", [], two)
    failed = {**chain()[0], "response": {"error": {"code": "x"}}}
    made = session(failed, second)
    assert [call.state_kind for call in made.calls] == ["partial"]


def test_session_bare_response_is_of_unknown_state_and_makes_its_followers_partial():
    bare = response("r1", text_item("a"), tools=TOOLS, instructions="s")
    one, two = calls(bare, pair("r2", "v", request={"previous_response_id": "r1"}))
    assert (one.state_kind, one.is_cut, one.system) == ("unknown", True, "s")
    assert json.loads(one.tools) == TOOLS
    assert (two.state_kind, two.follows) == ("partial", one)


def test_session_circle_of_ids_ends():
    one = pair("r1", "u", request={"previous_response_id": "r2"})
    two = pair("r2", "v", request={"previous_response_id": "r1"})
    own = pair("r3", "w", request={"previous_response_id": "r3"})
    found = calls(one, two, own)
    assert {call.native_id for call in found} == {"r1", "r2", "r3"}
    assert sum(call.follows is None for call in found) == 2


def test_session_long_chain_needs_no_recursion():
    records = [pair("r0", "u")]
    for number in range(1, 3_000):
        link = {"previous_response_id": f"r{number - 1}"}
        records.append(pair(f"r{number}", "v", request=link))
    found = calls(*reversed(records))
    assert max(call.state.depth for call in found) == 2 * 3_000 - 1


def talk(uid, value, *output, at, key="conv_1"):
    return pair(uid, value, *output, request={"conversation": {"id": key}}, at=at)


def created(key="conv_1", first=None):
    return {
        "request": {"url": "https://x/v1/conversations", "body": {"items": first or []}},
        "response": {"status": 200, "body": {"id": key, "object": "conversation"}},
    }


def test_session_conversation_goes_on_by_time_and_results_after_their_calls():
    records = [
        created(first=[user("before")]),
        talk("r1", "u", call_item("c1"), at=1.0),
        talk("r2", [output_item("c1")], call_item("c2"), at=1.0),
        talk("r3", [output_item("c2")], at=1.0),
        talk("r4", "v", at=2.0),
    ]
    for seed in range(6):
        found = {c.native_id: c for c in calls(*random.Random(seed).sample(records, 5))}
        roles = ["user", "user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
        assert [role for role, _ in said(found["r4"])] == roles
        assert [found[f"r{n}"].follows for n in (2, 3, 4)] == [found[f"r{n}"] for n in (1, 2, 3)]
        assert {(c.trajectory_key, c.key_is_global) for c in found.values()} == {("conv_1", True)}
        assert {c.state_kind for c in found.values()} == {"full"}


def test_session_conversation_that_began_before_the_log_is_partial():
    one, two = calls(talk("r1", "u", at=1.0), talk("r2", "v", at=2.0))
    assert (one.warnings, two.warnings) == (["conversation_start_missing"], [])
    assert {one.state_kind, two.state_kind} == {"partial"}


def test_session_items_added_to_a_conversation_are_told():
    url = "https://x/v1/conversations/conv_1/items"
    added = {"request": {"url": url, "body": {"items": [user("x")]}}, "response": {"body": {}}}
    (one,) = calls(created(), added, talk("r1", "u", at=1.0))
    assert (one.state_kind, one.warnings) == ("partial", ["conversation_items_missing"])


def test_session_compaction_is_a_step_whose_output_is_the_history():
    link = {"previous_response_id": "r1"}
    short = {"type": "compaction", "encrypted_content": "x"}
    compact = {
        "request": {"url": "https://x/v1/responses/compact", "body": {"input": [], **link}},
        "response": {
            "status": 200,
            "body": {"id": "r2", "object": "response.compaction", "output": [user("u"), short]},
        },
    }
    by_id = pair("r3", "v", request={"previous_response_id": "r2"})
    by_item = pair("r4", [short, user("v")])
    one, two, three, four = calls(pair("r1", "u"), compact, by_id, by_item)
    assert (two.step_kind, two.follows) == ("compaction", one)
    assert said(two) == [("user", "u"), ("assistant", "a")]
    assert said(three) == [("user", "u"), ("assistant", None), ("user", "v")]
    assert said(four) == [("assistant", None), ("user", "v")]
    assert three.follows is four.follows is two


# fates, repeats, detection


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"request": {"input": "u"}, "response": {"error": {}}}, ("rejected", "no_output")),
        (
            {"request": {"input": "u"}, "response": {"error": {"code": "x"}}},
            ("failed_call", "error_response"),
        ),
        (
            {"request": {"input": "u"}, "response": {"status": 429, "body": {}}},
            ("failed_call", "error_response"),
        ),
        ({"request": {"input": "u"}, "response": "text"}, ("rejected", "no_response")),
        ({"request": {"input": "u"}, "response": {"output": 7}}, ("rejected", "no_output")),
        (response("r1", status="failed"), ("failed_call", "empty_response")),
        (response("r1", status="queued"), ("failed_call", "empty_response")),
        ({"a": 1}, ("rejected", "no_response")),
        (
            {"request": {"url": "https://x/v1/files", "body": ""}, "response": {}},
            ("ignored", "other_call"),
        ),
        (
            {
                "request": {"url": "https://x/v1/responses/r1", "body": ""},
                "response": {"deleted": 1},
            },
            ("ignored", "other_call"),
        ),
        (
            {"request": {"url": "https://x/v1/chat/completions", "body": {}}, "response": {}},
            ("rejected", "other_api"),
        ),
    ],
)
def test_session_record_without_a_step_says_why(record, expected):
    assert fates(record) == {0: expected}


def test_session_response_fetched_later_completes_the_one_that_was_asked_for():
    asked = pair("r1", "u", status="queued")
    asked["response"]["output"] = []
    poll = response("r1", status="in_progress")
    done = response("r1", text_item("done"))
    made = session(asked, poll, done)
    assert [c.choices[0].action.message.content for c in made.calls] == ["done"]
    assert said(made.calls[0]) == [("user", "u")]
    assert set(made.fates) == {1, 2}
    assert {f.fate for f in made.fates.values()} == {"duplicate"}


def test_session_bare_responses_of_one_id_and_other_content_are_all_kept():
    found = calls(response("r1", text_item("a")), response("r1", text_item("b")))
    assert [call.choices[0].action.message.content for call in found] == ["a", "b"]
    assert fates(response("r1"), response("r1")) == {1: ("duplicate", "fetched_again")}


def test_session_record_may_have_a_type_of_its_own():
    assert call_of({**pair("r1", "u"), "type": "llm_call"}).metadata == {"type": "llm_call"}


def test_session_same_pair_twice_is_left_to_the_pipeline():
    assert [call.native_id for call in calls(pair("r1", "u"), pair("r1", "u"))] == ["r1", "r1"]


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (pair("r1", "u"), True),
        (response("r1"), True),
        ({"type": "response.created", "response": {}}, True),
        ({"type": "response.output_text.delta", "output_index": 0, "delta": "a"}, True),
        ({"request": {"url": "x/v1/responses", "body": {"input": "u"}}, "response": {}}, True),
        ({"request": {"url": "x/v1/embeddings", "body": {"input": "u"}}, "response": {}}, False),
        ({"request": {"input": "u"}, "response": {"object": "list"}}, False),
        ({"type": "response_item", "payload": {}}, False),
        ({"type": "message", "role": "user", "content": []}, False),
    ],
)
def test_why_not_tells_this_api_from_its_neighbours(record, fits):
    assert (openai_responses.why_not(record) is None) is fits


# streams


def event(kind, **extra):
    return {"type": f"response.{kind}", **extra}


def delta(kind, piece, index=0, **extra):
    return event(f"{kind}.delta", delta=piece, output_index=index, **extra)


STREAM = [
    event("created", response=response("r1", status="in_progress")),
    event("output_item.added", output_index=0, item={"type": "reasoning", "id": "a"}),
    delta("reasoning_summary_text", "s", summary_index=0, item_id="b"),
    delta("reasoning_summary_text", "o", summary_index=0, item_id="c"),
    event("output_item.added", output_index=1, item={**call_item(arguments=""), "id": "d"}),
    delta("function_call_arguments", '{"a"', 1, item_id="e"),
    delta("function_call_arguments", ":1}", 1, item_id="f"),
    event("output_item.added", output_index=2, item={"type": "message", "content": []}),
    delta("output_text", "he", 2, content_index=0),
    delta("output_text", "llo", 2, content_index=0),
    delta("refusal", "no", 2, content_index=1),
]


def test_responses_response_is_put_together_by_output_index():
    found = events.responses_response(STREAM)
    assert found["output"] == [
        {"type": "reasoning", "id": "a", "summary": [{"type": "summary_text", "text": "so"}]},
        {**call_item(arguments='{"a":1}'), "id": "d"},
        {
            "type": "message",
            "content": [
                {"type": "output_text", "text": "hello"},
                {"type": "refusal", "refusal": "no"},
            ],
        },
    ]


def test_responses_response_prefers_what_the_server_said_last():
    done = event("output_item.done", output_index=0, item=text_item("done"))
    assert events.responses_response([*STREAM[:1], done])["output"] == [text_item("done")]
    whole = event("completed", response=response("r2", text_item("whole")), usage_more=1)
    found = events.responses_response([*STREAM, done, whole])
    assert (found["id"], found["output"]) == ("r2", [text_item("whole")])
    assert (found["status"], found["usage_more"]) == ("completed", 1)
    assert not {"type", "response"} & found.keys()
    # a last event may leave the output out
    bare = event("completed", response={"id": "r2", "status": "completed"})
    assert events.responses_response([*STREAM[:1], done, bare])["output"] == [text_item("done")]


def test_session_stream_as_response_or_as_dump_is_one_call():
    whole = event("completed", response=response("r1", text_item("a")))
    lines = "".join(f"data: {json.dumps(e)}\n\n" for e in [*STREAM, whole])
    record = {"request": {"input": "u"}, "response": lines}
    assert detect("x", [record]) is openai_responses
    call = call_of(record)
    assert (call.choices[0].action.message.content, call.state_kind) == ("a", "full")
    other = event("completed", response=response("r2", text_item("b")))
    one, two = calls(*STREAM, whole, *STREAM, other)
    assert (one.state_kind, one.record, two.record) == ("unknown", 0, len(STREAM) + 1)


def test_session_stream_that_broke_says_so():
    call = call_of({"request": {"input": "u"}, "response": STREAM})
    assert (call.choices[0].finish_reason, call.warnings) == ("refusal", ["stream_cut"])
    made = session(*STREAM[:1])
    assert {f.reason for f in made.fates.values()} == {"empty_response"}
    made = session(*STREAM[:1], {"type": "error", "code": "x"})
    assert {n: f.reason for n, f in made.fates.items()} == dict.fromkeys((0, 1), "error_response")


# real logs


def records_of(*parts):
    text = shared("openai-responses", *parts).read_text()
    return [json.loads(line) for line in text.split("\n") if line]


def test_session_real_conversation_gives_the_expected_steps():
    name = "test_openai_conversation_id_tool_call_continuation.jsonl"
    records = records_of("http-pairs", name)
    assert detect("x", records) is openai_responses
    made = session(*records)
    first, second = made.calls  # EXPECTED.tsv
    assert [role for role, _ in said(second)] == ["user", "assistant", "tool"]
    assert (second.follows, second.state_kind) == (first, "full")
    # the call that deletes the conversation is none of a model
    assert fates(*records) == {3: ("ignored", "other_call")}


def test_session_real_compactions_are_steps_of_their_own_kind():
    name = "test_openai_responses_compact_with_auto_previous_response_id_chain.jsonl"
    found = calls(*records_of("http-pairs", name))
    # EXPECTED.tsv counts 5, without calls of /compact; FORMATS.md section 2 keeps those as steps
    assert [call.step_kind for call in found].count("policy") == 5
    assert [call.step_kind for call in found].count("compaction") == 3
    assert [call.follows for call in found[1:]] == found[:-1]
    assert {call.state_kind for call in found} == {"full"}


def test_session_real_server_tools_stay_in_one_action():
    value = json.loads(shared("openai-responses", "openai-mcp-tool.1.json").read_text())
    (choice,) = call_of(value).choices
    kinds = [item["type"] for item in value["output"] if item["type"] != "reasoning"]
    found = [part["type"] for part in json.loads(choice.action.message.parts)]
    assert found == ["text" if kind == "message" else kind for kind in kinds]
    assert choice.action.message.tool_calls is None
    assert (choice.finish_reason, choice.warnings) == ("stop", ["reasoning_hidden"])


def test_session_real_stream_whose_ids_change_is_one_call():
    text = shared("openai-responses", "github-copilot-id-rotation.1.chunks.txt").read_text()
    found = streams.parse(text).events
    (choice,) = call_of_all(found).choices
    whole = choice.action.message
    assert whole.reasoning == "**Counting character occurrences**"
    # without its last event the stream adds up to the same
    (cut,) = call_of_all(found[:-1]).choices
    assert cut.action.message == whole


def call_of_all(records):
    (call,) = calls(*records)
    return call
