import json

import pytest

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import (
    anthropic_messages,
    anthropic_stream,
    detect,
    events,
    openai_chat,
)


def text_block(text):
    return {"type": "text", "text": text}


def use(uid="t1", name="f", **arguments):
    return {"type": "tool_use", "id": uid, "name": name, "input": arguments}


def result(uid="t1", content="r"):
    return {"type": "tool_result", "tool_use_id": uid, "content": content}


def turn(role, *content):
    return {"role": role, "content": content[0] if isinstance(content[0], str) else list(content)}


def message(*blocks, stop="end_turn", **extra):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(blocks),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
        **extra,
    }


def record(*turns, answer=None, **request):
    turns = list(turns) or [turn("user", "u")]
    return {
        "request": {"model": "claude", "max_tokens": 9, "messages": turns, **request},
        "response": message(text_block("a")) if answer is None else answer,
    }


def calls(value, context=None):
    return anthropic_messages.calls(json.dumps(value).encode(), context or Context())


def call_of(value):
    (call,) = calls(value)
    return call


def fate(value):
    with pytest.raises(Fate) as raised:
        calls(value)
    return raised.value.fate, raised.value.reason


def start(uid="msg_1", **usage):
    begun = {**message(stop=None), "id": uid, "usage": {"input_tokens": 3, **usage}}
    return {"type": "message_start", "message": begun}


def block(index, content_block, *deltas):
    return [
        {"type": "content_block_start", "index": index, "content_block": content_block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def texts(index, *pieces):
    deltas = ({"type": "text_delta", "text": piece} for piece in pieces)
    return block(index, text_block(""), *deltas)


def inputs(index, *pieces, uid="t1"):
    deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    return block(index, use(uid), *deltas)


def end(stop="end_turn", **usage):
    return [
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage},
        {"type": "message_stop"},
    ]


STREAM = [start(), {"type": "ping"}, *texts(0, "he", "llo"), *end(output_tokens=2)]


def sse(stream):
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in stream)


# requests


def test_calls_pair_gives_state_system_tools_and_action():
    tools = [{"name": "f", "input_schema": {}}]
    value = record(system="s", tools=tools, temperature=0.5, top_k=4, stop_sequences=["x"])
    assert detect("x", [value]) is anthropic_messages
    call = call_of(value)
    assert (call.system, json.loads(call.tools)) == ("s", tools)
    assert (call.temperature, call.sampling) == (0.5, {"top_k": 4, "stop": ["x"]})
    assert (call.native_id, call.model, call.state_kind) == ("msg_1", "claude", "full")
    assert call.metadata == {"request": {"max_tokens": 9}}
    (choice,) = call.choices
    assert (choice.action.message.content, choice.finish_reason) == ("a", "stop")
    assert choice.finish_reason_raw == "end_turn"


def test_calls_system_in_blocks_is_their_text():
    blocks = [{**text_block("a"), "cache_control": {"type": "ephemeral"}}, text_block("b")]
    assert call_of(record(system=blocks)).system == "ab"


def test_calls_bodies_below_body_are_the_same_call():
    value = record()
    below = {
        "request": {"url": "https://x/v1/messages?beta=true", "body": value["request"]},
        "response": {"status": 200, "body": value["response"]},
        "timestamp": 5.0,
        "task_id": "t",
        "note": 1,
    }
    call = call_of(below)
    assert call.state.exact == call_of(value).state.exact
    assert (call.started_at, call.task_id) == (5.0, "t")
    assert call.metadata == {"note": 1, "request": {"max_tokens": 9}}


def test_calls_results_are_tool_messages_in_order_and_the_rest_one_user_message():
    asked = turn("assistant", text_block("look"), use("t1", b=1, a=2), use("t2"))
    told = turn("user", result("t2", "second"), text_block("go on"), result("t1", "first"))
    call = call_of(record(turn("user", "u"), asked, told))
    items = [item.message for item in call.state.after()]
    assert [m.role for m in items] == ["user", "assistant", "tool", "tool", "user"]
    assert [c.arguments for c in items[1].tool_calls] == ['{"a": 2, "b": 1}', "{}"]
    assert [(m.tool_call_id, m.content) for m in items[2:4]] == [("t2", "second"), ("t1", "first")]
    assert items[4].content == "go on"


def test_calls_next_request_holds_the_action_as_it_was():
    blocks = [
        {"type": "thinking", "thinking": "so", "signature": "x"},
        text_block("look"),
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        use("t1", a=1),
    ]
    first = call_of(record(answer=message(*blocks, stop="tool_use")))
    after = call_of(record(turn("user", "u"), turn("assistant", *blocks), turn("user", result())))
    action = first.choices[0].action
    assert after.state.after()[1].exact == action.exact
    assert action.message.reasoning == "so"
    kinds = ["text", "server_tool_use", "web_search_tool_result"]
    assert [part["type"] for part in json.loads(action.message.parts)] == kinds
    assert first.choices[0].metadata["blocks"][0] == {"type": "thinking", "signature": "x"}


def test_calls_what_a_turn_holds_beside_its_messages_is_kept():
    told = turn("user", {**result(), "is_error": True})
    call = call_of(record(turn("user", "u"), turn("assistant", use()), told))
    last = call.state.after()[-1]
    assert last.extra == {"blocks": [{"type": "tool_result", "is_error": True}]}


def test_calls_usage_includes_the_cache():
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 7,
        "server_tool_use": {"web_search_requests": 1},
    }
    call = call_of(record(answer=message(text_block("a"), usage=usage)))
    assert (call.input_tokens, call.cached_tokens, call.output_tokens) == (123, 100, 7)
    assert call.metadata["response"]["usage"] == {
        "cache_creation_input_tokens": 20,
        "server_tool_use": {"web_search_requests": 1},
    }


@pytest.mark.parametrize(
    ("raw", "expected", "warnings"),
    [
        ("end_turn", "stop", []),
        ("stop_sequence", "stop", []),
        ("tool_use", "tool_calls", []),
        ("max_tokens", "length", []),
        ("model_context_window_exceeded", "length", []),
        ("pause_turn", "length", ["pause_turn"]),
        ("refusal", "refusal", []),
        (None, "unknown", []),
    ],
)
def test_calls_stop_reason_is_translated_and_kept_raw(raw, expected, warnings):
    choice = call_of(record(answer=message(text_block("a"), stop=raw))).choices[0]
    assert (choice.finish_reason, choice.finish_reason_raw) == (expected, raw)
    assert choice.warnings == warnings


def test_calls_thought_that_is_not_shown_is_told():
    hidden = {"type": "thinking", "thinking": "", "signature": "x"}
    choice = call_of(record(answer=message(hidden, text_block("a")))).choices[0]
    assert (choice.action.message.reasoning, choice.warnings) == (None, ["reasoning_hidden"])


def test_calls_bare_message_has_an_unknown_state():
    value = message(text_block("a"))
    assert detect("x", [value]) is anthropic_messages
    call = call_of(value)
    assert (call.state_kind, call.is_cut, call.tools) == ("unknown", True, None)
    assert call.model == "claude"


# fates and detection


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            record(answer={"type": "error", "error": {"type": "x"}}),
            ("failed_call", "error_response"),
        ),
        (record(answer={"status": 529, "body": {}}), ("failed_call", "error_response")),
        (record(answer=sse([start()])), ("failed_call", "empty_stream")),
        (
            record(answer=sse([start(), {"type": "error", "error": {}}])),
            ("failed_call", "error_response"),
        ),
        (record(answer="text"), ("rejected", "no_response")),
        (record(answer={"id": 1}), ("rejected", "no_response")),
        ({"request": {"model": "claude"}, "response": {}}, ("rejected", "no_messages")),
        ({"response": {}}, ("rejected", "no_messages")),
        ([1], ("rejected", "no_messages")),
        (
            {
                "request": {
                    "url": "https://x/v1/messages/count_tokens",
                    "body": {"messages": [turn("user", "u")]},
                },
                "response": {"status": 200, "body": {"input_tokens": 3}},
            },
            ("ignored", "other_call"),
        ),
        ({"request": {"url": "https://x/v1/models", "body": ""}}, ("ignored", "other_call")),
        ({"request": {"url": "https://x/v1/models"}}, ("ignored", "other_call")),
        (
            {"request": {"url": "https://x/v1/responses", "body": {"input": "u"}}},
            ("rejected", "other_api"),
        ),
        (record({"content": "no role"}), ("rejected", "bad_message")),
    ],
)
def test_calls_record_without_a_step_says_why(value, expected):
    assert fate(value) == expected


def test_detect_tells_the_apis_apart_by_answer_address_or_stream():
    failed = {"status": 500, "body": "oops"}
    http = {"request": {"url": "https://x/v1/messages", "body": record()["request"]}}
    chat = {"choices": [{"message": {"role": "assistant", "content": "a"}}]}
    for answer in (message(text_block("a")), {"type": "error", "error": {}}, sse(STREAM), STREAM):
        assert detect("x", [record(answer=answer)]) is anthropic_messages
    assert detect("x", [{**http, "response": failed}]) is anthropic_messages
    assert detect("x", [record(answer=chat)]) is openai_chat
    assert anthropic_messages.why_not({"type": "message", "role": "user", "content": []})


# streams


def test_calls_stream_is_the_message_that_it_adds_up_to():
    for logged in (sse(STREAM), STREAM, {"status": 200, "body": sse(STREAM)}):
        call = call_of(record(answer=logged))
        assert (call.native_id, call.input_tokens, call.output_tokens) == ("msg_1", 3, 2)
        assert call.choices[0].action.message.content == "hello"
        assert (call.choices[0].finish_reason, call.warnings) == ("stop", [])


def joined(*stream):
    return events.message_response(stream)


def test_message_response_joins_inputs_and_parses_them():
    found = joined(start(), *inputs(0, "", '{"a"', ": 1}"), *inputs(1, uid="t2"), *end("tool_use"))
    assert [b["input"] for b in found["content"]] == [{"a": 1}, {}]
    assert found["stop_reason"] == "tool_use"


def test_message_response_input_that_was_cut_off_stays_text():
    found = joined(start(), *inputs(0, '{"a": '))
    assert found["content"][0]["input"] == '{"a": '
    (call,) = calls(record(answer=[start(), *inputs(0, '{"a": ')]))
    (asked,) = call.choices[0].action.message.tool_calls
    assert (asked.arguments, asked.arguments_valid) == ('{"a": ', False)
    assert call.warnings == ["stream_cut"]


def test_message_response_thinking_signature_and_citations_are_kept():
    thinking = [
        {"type": "thinking_delta", "thinking": "s"},
        {"type": "thinking_delta", "thinking": "o"},
        {"type": "signature_delta", "signature": "x"},
    ]
    cited = [{"type": "citations_delta", "citation": {"url": "u"}}, {"type": "new", "x": 1}]
    found = joined(
        start(),
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thinking),
        *block(1, {**text_block("a"), "citations": None}, *cited),
    )
    assert found["content"] == [
        {"type": "thinking", "thinking": "so", "signature": "x"},
        {**text_block("a"), "citations": [{"url": "u"}], "deltas": [{"type": "new", "x": 1}]},
    ]


def test_message_response_usage_is_cumulative():
    first = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}}
    found = joined(
        start(output_tokens=1, cache_read_input_tokens=7),
        first,
        *end(output_tokens=9, input_tokens=0),
    )
    assert found["usage"] == {
        "input_tokens": 3,
        "cache_read_input_tokens": 7,
        "output_tokens": 9,
    }


def test_message_response_what_the_last_events_say_beside_is_kept():
    last = end("tool_use")
    last[0]["context_management"] = {"applied_edits": []}
    last[0]["delta"]["container"] = {"id": "c"}
    found = joined(start(), *last)
    assert found["context_management"] == {"applied_edits": []}
    assert found["container"] == {"id": "c"}
    assert found["type"] == "message"


def test_message_groups_id_after_its_message_is_over_begins_again():
    twice = [start(), *end(), start(), *end()]
    assert [len(group) for group in events.message_groups(enumerate(twice))] == [3, 3]


def test_message_response_start_that_is_sent_twice_is_one_message():
    call = call_of(record(answer=[start(), start(), *texts(0, "a"), *end()]))
    assert (call.choices[0].action.message.content, call.warnings) == ("a", [])
    again = texts(0, "a")
    call = call_of(record(answer=[start(), again[0], *again, *end()]))
    assert call.choices[0].action.message.content == "a"


def test_message_response_index_used_again_is_another_block():
    found = joined(start(), *texts(0, "a"), *texts(0, "b"), *end())
    assert [b["text"] for b in found["content"]] == ["a", "b"]


def test_message_response_block_without_its_start_is_kept():
    (delta,) = texts(0, "a")[1:2]
    assert joined(start(), delta)["content"] == [text_block("a")]


def test_calls_stream_of_two_messages_gives_a_call_of_each():
    spliced = [start(), *texts(0, "he"), start("msg_2"), *texts(0, "hello"), *end()]
    first, second = calls(record(answer=spliced))
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert first.state is second.state
    assert (first.native_id, first.warnings) == ("msg_1", ["stream_cut", "stream_spliced"])
    assert (second.native_id, second.warnings) == ("msg_2", ["stream_spliced"])
    contents = [call.choices[0].action.message.content for call in (first, second)]
    assert contents == ["he", "hello"]


def test_calls_stream_whose_first_try_said_nothing_is_one_call():
    call = call_of(record(answer=[start(), start("msg_2"), *texts(0, "a"), *end()]))
    assert (call.native_id, call.warnings) == ("msg_2", ["stream_spliced"])


def test_calls_stream_with_an_error_after_some_text_ends_in_error():
    broken = [start(), *texts(0, "a"), {"type": "error", "error": {"type": "overloaded"}}]
    call = call_of(record(answer=broken))
    assert call.choices[0].finish_reason == "error"
    assert call.warnings == ["stream_error"]


def session(records):
    return anthropic_stream.session(dict(enumerate(records)), Context())


def test_session_dump_of_events_gives_a_call_per_message():
    other = [start("msg_2"), *texts(0, "b"), *end(stop=None)]
    made = session([*STREAM, *other, {"x": 1}, start("msg_3")])
    assert [call.warnings for call in made.calls] == [[], ["stream_cut"]]
    assert [(call.native_id, call.record) for call in made.calls] == [("msg_1", 0), ("msg_2", 8)]
    assert {call.state_kind for call in made.calls} == {"unknown"}
    assert {ordinal: (f.fate, f.reason) for ordinal, f in made.fates.items()} == {
        14: ("rejected", "no_event"),
        15: ("failed_call", "empty_stream"),
    }


def test_detect_finds_dumps_of_events():
    assert detect("x", [STREAM[0]]) is anthropic_stream
    assert detect("x", [STREAM[1], STREAM[3]]) is anthropic_stream
    assert [anthropic_stream.why_not(event) is None for event in STREAM] == [
        *(True, False, True, True, True, False),
        *(True, False),
    ]
    assert anthropic_stream.why_not({"type": "message_delta"}) is not None


def test_calls_requests_that_repeat_their_history_share_it():
    context = Context()
    (first,) = calls(record(turn("user", "u")), context)
    longer = record(turn("user", "u"), turn("assistant", text_block("a")), turn("user", "v"))
    (second,) = calls(longer, context)
    assert second.state.parent.parent is first.state
