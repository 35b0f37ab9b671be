import json

import msgspec
import pytest
from conftest import assistant, pair, shared, system, tool, user

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import detect, openai_chat, openai_stream, streams

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def calls(record, context=None):
    raw = record if isinstance(record, bytes) else json.dumps(record).encode()
    return openai_chat.calls(raw, context or Context())


def call_of(record):
    (call,) = calls(record)
    return call


def answer(message=None, **entry):
    """The call and the choice of a record whose response has this choice."""
    record = pair([user("u")], message or assistant("a"))
    record["response"]["choices"][0].update(entry)
    call = call_of(record)
    return call, call.choices[0]


def fate(record):
    with pytest.raises(Fate) as raised:
        calls(record)
    return raised.value.fate, raised.value.reason


def said(call):
    return [(item.message.role, item.message.content) for item in call.state.after()]


def chunk(delta, *, index=0, finish=None, **extra):
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "s1", "object": "chat.completion.chunk", "choices": [choice], **extra}


STREAM = [
    chunk({"role": "assistant", "content": "he"}, model="m", created=9),
    chunk({"content": "llo"}, finish="stop"),
    {"id": "s1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
]


def sse(events):
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


# shapes of records


def test_calls_pair_gives_state_system_tools_and_action():
    call = call_of(pair([system("s"), user("u")], assistant("a"), tools=TOOLS, uid="r1", at=5.0))
    assert (call.system, said(call), json.loads(call.tools)) == ("s", [("user", "u")], TOOLS)
    assert (call.native_id, call.model, call.started_at, call.state_kind) == (
        "r1",
        "m",
        5.0,
        "full",
    )
    (choice,) = call.choices
    assert (choice.action.message.content, choice.finish_reason) == ("a", "stop")


def test_calls_bodies_below_body_or_as_text_are_the_same_call():
    record = pair([user("u")], assistant("a"), tools=TOOLS, uid="r1")
    plain = call_of(record)
    http = {
        "request": {"method": "POST", "url": "https://x/v1/chat/completions"},
        "response": {"status": 200},
    }
    below = {k: {**http[k], "body": record[k]} for k in http}
    as_text = {k: {**http[k], "body": json.dumps(record[k])} for k in http}
    all_text = {k: json.dumps(record[k]) for k in record}
    for other in (below, as_text, all_text):
        found = call_of(other)
        assert (found.state.exact, found.tools) == (plain.state.exact, plain.tools)
        assert found.choices[0].action.message == plain.choices[0].action.message
        assert (found.model, found.metadata) == (plain.model, plain.metadata)


def test_calls_completion_log_has_parameters_below_kwargs_or_at_its_top():
    response = {"choices": [{"message": assistant("a")}]}
    parameters = {"temperature": 0.5, "stop": ["x"], "seed": 7}
    below = {
        "messages": [user("u")],
        "response": response,
        "kwargs": {**parameters, "tools": TOOLS},
    }
    top = {
        "messages": [user("u")],
        "response": response,
        "tools": TOOLS,
        "model": "m",
        **parameters,
    }
    for record in (below, top):
        call = call_of(record)
        assert (call.temperature, call.sampling) == (0.5, {"stop": ["x"]})
        assert json.loads(call.tools) == TOOLS
    assert call_of(below).metadata == {"request": {"seed": 7}}
    assert (call_of(top).model, call_of(top).metadata) == ("m", {"seed": 7})


def test_calls_tools_of_the_record_win_over_those_of_its_kwargs():
    record = {"messages": [user("u")], "tools": TOOLS, "kwargs": {"tools": []}}
    call = call_of({**record, "response": {"choices": [{"message": assistant("a")}]}})
    assert (json.loads(call.tools), call.metadata) == (TOOLS, None)


def test_calls_bare_response_has_an_unknown_state():
    response = pair([], assistant("a"), uid="r1")["response"]
    streamed = {"response": [chunk(assistant("a"), finish="stop") | {"id": "r1"}]}
    for record in (response, {"response": response, "note": 1}, streamed):
        assert openai_chat.why_not(record) is None
        call = call_of(record)
        assert (call.state_kind, call.is_cut, call.state.depth) == ("unknown", True, 0)
        assert (call.tools, call.native_id) == (None, "r1")


def test_calls_raw_messages_mean_that_tools_stood_in_the_text():
    record = {
        "messages": [user("use <f>")],
        "response": {"choices": [{"message": assistant("", calls=[("c", "f", "{}")])}]},
        "raw_response": {"choices": [{"message": assistant("<f></f>")}]},
        "raw_messages": [user("use f")],
        "tools": TOOLS,
    }
    call = call_of(record)
    assert (call.tools, call.choices[0].action.message.content) == ("[]", "<f></f>")


def test_calls_raw_response_that_lost_its_call_gives_way_to_the_parsed_one():
    whole = assistant("", calls=[("c", "f", "{}")])
    lost = {"role": "assistant", "tool_calls": [{"id": "c", "function": None}]}
    record = {
        "messages": [user("u")],
        "response": {"choices": [{"message": whole}]},
        "raw_messages": [],
    }
    for raw in ({"message": lost}, {"message": None}, 7):
        call = call_of({**record, "raw_response": {"choices": [raw]}})
        assert call.choices[0].action.message.tool_calls[0].name == "f"


@pytest.mark.parametrize(
    ("logged", "reward", "warnings"),
    [(0.5, 0.5, []), ("1", 1.0, []), (None, None, []), ("good", None, ["reward_not_a_number"])],
)
def test_calls_reward_is_a_number_or_null_with_a_warning(logged, reward, warnings):
    call = call_of(pair([user("u")], assistant("a"), reward=logged))
    assert (call.reward, call.warnings) == (reward, warnings)


def test_calls_time_with_a_latency_is_that_of_the_end():
    call = call_of(pair([user("u")], assistant("a"), at=9.0, latency_sec=2.0, cost="0.5"))
    assert (call.started_at, call.ended_at, call.latency_s) == (7.0, 9.0, 2.0)
    assert (call.cost_usd, call.metadata) == (0.5, None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"messages": [user("u")], "response": "an answer"}, "the response is no completion"),
        ({"messages": [user("u")]}, "no response"),
        ({"request": {"input": "x"}, "response": {}}, "no messages in the request"),
        ({"response": {"output": []}}, "no messages in the request"),
        ({"response": [{"type": "message_start"}]}, "no messages in the request"),
        ({"response": "an answer"}, "no messages in the request"),
    ],
)
def test_why_not_other_records_are_refused_with_the_reason(value, reason):
    assert openai_chat.why_not(value) == reason


# fates


@pytest.mark.parametrize(
    "response",
    [
        {"error": {"message": "rate limit"}},
        {"status": 500, "body": {"oops": 1}},
        {"status_code": 429, "body": "slow down"},
        {"status": 200, "body": {"error": {"code": 1}}},
        sse([{"error": {"message": "overloaded"}}]),
        [chunk({"role": "assistant", "content": ""})],
    ],
)
def test_calls_failed_call_is_no_step(response):
    record = {"request": {"messages": [user("u")]}, "response": response}
    assert openai_chat.why_not(record) is None
    assert fate(record)[0] == "failed_call"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ([1], ("rejected", "bad_record")),
        ({"a": 1}, ("rejected", "no_response")),
        ({"request": "{bad", "response": {}}, ("rejected", "bad_request")),
        ({"request": "[1]", "response": {}}, ("rejected", "no_messages")),
        ({"request": {}, "response": {}}, ("rejected", "no_messages")),
        ({"request": {"messages": "u"}, "response": {}}, ("rejected", "no_messages")),
        (
            {"request": {"messages": [{"content": "u"}]}, "response": {}},
            ("rejected", "bad_message"),
        ),
        ({"request": {"messages": []}, "response": None}, ("rejected", "no_response")),
        ({"request": {"messages": []}}, ("rejected", "no_response")),
        ({"request": {"messages": []}, "response": "text"}, ("rejected", "no_response")),
        ({"request": {"messages": []}, "response": {"choices": []}}, ("rejected", "no_choices")),
        ({"request": {"messages": []}, "response": {"choices": [1]}}, ("rejected", "no_message")),
        ({"request": {"url": "x/files", "body": ""}, "response": {}}, ("ignored", "other_call")),
        ({"request": {"url": "x/embeddings", "body": {}}}, ("ignored", "other_call")),
        (
            {"request": {"url": "x/v1/responses?a=b", "body": {"input": "u"}}, "response": {}},
            ("rejected", "other_api"),
        ),
    ],
)
def test_calls_record_without_a_step_says_why(record, expected):
    assert fate(record) == expected


def test_calls_rejected_attempt_keeps_its_labels():
    with pytest.raises(Fate) as raised:
        calls({"request": {}, "response": {}, "task_id": 3, "trial": 1, "reward": 0.5})
    assert raised.value.known == {"task_id": "3", "trial": 1, "reward": 0.5}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"request": {"messages": [{"role": "user", "content": NaN}]}, "response": {}}',
        b'{"request": {"messages": []}, "response": {"usage": Infinity}}',
        b'{"request": {"messages": []}, "response": {}, "reward": 1e999}',
    ],
)
def test_calls_what_is_no_json_is_left_to_salvage(raw):
    with pytest.raises(msgspec.DecodeError):
        calls(raw)


# answers


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("abort", "aborted"),
        ("new_reason", "unknown"),
        (None, "unknown"),
    ],
)
def test_calls_finish_reason_is_translated_and_kept_raw(raw, expected):
    _, choice = answer(finish_reason=raw)
    assert (choice.finish_reason, choice.finish_reason_raw) == (expected, raw)


def test_calls_several_choices_share_the_state_and_keep_their_indices():
    record = pair([user("u")], assistant("a"), assistant("b"))
    record["response"]["choices"].reverse()
    call = call_of(record)
    assert [(c.index, c.action.message.content) for c in call.choices] == [(1, "b"), (0, "a")]


def test_calls_indices_that_repeat_are_numbered_anew():
    record = pair([user("u")], assistant("a"), assistant("b"))
    for entry in record["response"]["choices"]:
        entry["index"] = 0
    assert [choice.index for choice in call_of(record).choices] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"reasoning_content": "so"}, "reasoning_content"),
        ({"reasoning": "so"}, "reasoning"),
        ({"reasoning_content": "so", "reasoning": "so"}, "reasoning_content"),
        (
            {"reasoning_details": [{"type": "reasoning.text", "text": "so"}, {"data": "x"}]},
            "reasoning_details",
        ),
        (
            {"provider_specific_fields": {"thinking_blocks": [{"thinking": "so"}]}},
            "provider_specific_fields",
        ),
        ({"thinking_blocks": [{"thinking": "so", "signature": "x"}]}, "thinking_blocks"),
    ],
)
def test_calls_reasoning_is_found_under_its_names_in_action_and_state(fields, source):
    _, choice = answer(assistant("a", **fields))
    assert choice.action.message.reasoning == "so"
    assert choice.metadata["reasoning_field"] == source
    # a structured form says more than its text
    assert {k: v for k, v in choice.metadata.items() if k != "reasoning_field"} == {
        k: v for k, v in fields.items() if not isinstance(v, str)
    }
    again = call_of(pair([user("u"), assistant("a", **fields), user("v")], assistant("b")))
    assert again.state.after()[1].exact == choice.action.exact


def test_calls_reasoning_that_was_counted_and_not_logged_is_told():
    record = pair([user("u")], assistant("a"))
    record["response"]["usage"] = {"completion_tokens_details": {"reasoning_tokens": 9}}
    assert call_of(record).choices[0].warnings == ["reasoning_hidden"]
    record["response"]["choices"][0]["message"]["content"] = "<think>so</think>a"
    assert call_of(record).choices[0].warnings == []


def test_calls_legacy_functions_are_tools():
    legacy = {"name": "f", "arguments": '{"a":1}'}
    message = {"role": "assistant", "content": None, "function_call": legacy}
    record = pair([user("u"), message, {"role": "function", "name": "f", "content": "1"}], message)
    record["request"]["functions"] = [{"name": "f", "parameters": {}}]
    call = call_of(record)
    assert json.loads(call.tools) == TOOLS
    assert "request" not in (call.metadata or {})
    (found,) = call.choices[0].action.message.tool_calls
    assert (found.name, found.arguments, found.arguments_valid) == ("f", '{"a":1}', True)
    assert [item.message.role for item in call.state.after()] == ["user", "assistant", "function"]


def test_calls_refusal_is_the_text_of_the_action():
    _, choice = answer({"role": "assistant", "content": None, "refusal": "no"})
    assert (choice.action.message.content, choice.finish_reason) == ("no", "refusal")


def test_calls_tool_calls_without_ids_are_kept():
    message = assistant("", calls=[("", "f", "{}")])
    _, choice = answer(message)
    assert choice.action.message.tool_calls[0].id is None


@pytest.mark.parametrize("arguments", ["look(x=1)", '{"a":1}{"a":2}', "", "[1]"])
def test_calls_arguments_that_are_no_object_are_kept_and_told(arguments):
    _, choice = answer(assistant("", calls=[("c", "f", arguments)]))
    assert choice.action.message.tool_calls[0].arguments == arguments
    assert choice.warnings == ["arguments_invalid"]


def test_calls_content_parts_and_what_messages_hold_beside_them_are_kept():
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    audio = {"id": "au", "transcript": "hi"}
    message = {"role": "assistant", "content": None, "audio": {"id": "b"}, "annotations": []}
    call = call_of(pair([{"role": "user", "content": parts, "audio": audio}], message))
    (item,) = call.state.after()
    assert (json.loads(item.message.parts), item.extra) == (parts, {"audio": audio})
    assert call.choices[0].metadata == {"audio": {"id": "b"}}


def test_calls_fields_of_tool_calls_that_have_no_column_are_kept():
    message = assistant("", calls=[("c", "f", "{}"), ("d", "f", "{}")])
    message["tool_calls"][1]["extra_content"] = {"signature": "x"}
    _, choice = answer(message)
    assert choice.metadata == {"tool_calls": [{}, {"extra_content": {"signature": "x"}}]}


def test_calls_what_has_no_column_is_in_the_metadata():
    record = pair([user("u")], assistant("a"), note=1, request={"seed": 3})
    record["response"]["system_fingerprint"] = "fp"
    record["response"]["choices"][0]["stop_reason"] = 7
    call = call_of(record)
    assert call.metadata == {
        "note": 1,
        "request": {"seed": 3},
        "response": {"system_fingerprint": "fp"},
    }
    assert call.choices[0].metadata == {"stop_reason": 7}


@pytest.mark.parametrize("tools", [{"name": "f"}, "f", 7])
def test_calls_tools_that_are_no_list_are_told_and_kept(tools):
    call = call_of(pair([user("u")], assistant("a"), tools=tools))
    assert (call.tools, call.warnings) == ("[]", ["tools_unreadable"])
    assert call.metadata == {"tools_unreadable": tools}


# tokens


@pytest.mark.parametrize(
    "place",
    [
        lambda response, ids: response["choices"][0].update(token_ids=ids),
        lambda response, ids: response.update(token_ids=ids),
        lambda response, ids: response.update(token_ids=[ids]),
        lambda response, ids: response["choices"][0].update(
            provider_specific_fields={"token_ids": ids}
        ),
    ],
)
def test_calls_token_ids_are_found_at_either_level(place):
    record = pair([user("u")], assistant("a"))
    place(record["response"], [4, 5])
    assert call_of(record).choices[0].response_ids == [4, 5]


@pytest.mark.parametrize("level", ["response", "choice"])
def test_calls_prompt_ids_are_found_at_either_level(level):
    record = pair([user("u")], assistant("a"))
    response = record["response"]
    (response if level == "response" else response["choices"][0])["prompt_token_ids"] = [1, 2]
    assert call_of(record).prompt_ids == [1, 2]


@pytest.mark.parametrize("ids", [["a"], [-1], [2**31], [True], {}, "12"])
def test_calls_ids_that_are_none_are_not_logged(ids):
    _, choice = answer(token_ids=ids)
    assert choice.response_ids is None


def test_calls_ids_of_another_count_than_the_usage_are_kept_and_told():
    record = pair([user("u")], assistant("a"))
    record["response"]["choices"][0]["token_ids"] = [4, 5]
    record["response"]["usage"] = {"completion_tokens": 3}
    choice = call_of(record).choices[0]
    assert (choice.response_ids, choice.warnings) == ([4, 5], ["token_ids_length_mismatch"])


def token(text, logprob, **extra):
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), **extra}


def test_calls_logprobs_keep_tokens_and_what_is_new_beside_them():
    other = [{"token": "b", "logprob": -2.0}]
    tokens = [token("a", -0.5, top_logprobs=other), token("\ufffd", -1, bytes=[0xE2])]
    _, choice = answer(logprobs={"content": tokens, "kind": "raw"})
    assert choice.logprobs == [-0.5, -1.0]
    assert choice.metadata["logprobs"] == {
        "kind": "raw",
        "tokens": ["a", "\ufffd"],
        "top_logprobs": [other, None],
        "bytes": {"1": [0xE2]},
    }


def test_calls_logprobs_of_a_refusal_are_those_of_the_action():
    message = {"role": "assistant", "content": None, "refusal": "no"}
    _, choice = answer(message, logprobs={"content": None, "refusal": [token("no", -0.5)]})
    assert choice.logprobs == [-0.5]


@pytest.mark.parametrize(
    ("value", "ids", "warning"),
    [
        (-0.5, [1, 2], "logprobs_length_mismatch"),
        (None, None, "logprobs_not_finite"),
        ("x", None, "logprobs_not_finite"),
    ],
)
def test_calls_logprobs_that_do_not_fit_are_null_with_a_warning(value, ids, warning):
    _, choice = answer(logprobs={"content": [{"logprob": value}]}, token_ids=ids)
    assert (choice.logprobs, choice.warnings) == (None, [warning])


def test_calls_usage_counts_reasoning_as_output_wherever_it_stands():
    record = pair([user("u")], assistant("a", reasoning="r"))
    details = {"reasoning_tokens": 20, "audio_tokens": 0, "accepted_prediction_tokens": 2}
    record["response"]["usage"] = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 35,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": details,
        "cost": 0.5,
    }
    call = call_of(record)
    counts = (call.input_tokens, call.output_tokens, call.cached_tokens, call.reasoning_tokens)
    assert (counts, call.cost_usd) == ((10, 25, 4, 20), 0.5)
    kept = {"completion_tokens_details": {"accepted_prediction_tokens": 2}}
    assert call.metadata == {"response": {"usage": kept}}


def test_calls_cached_tokens_are_found_under_their_other_name():
    record = pair([user("u")], assistant("a"))
    record["response"]["usage"] = {"prompt_tokens": 9, "prompt_cache_hit_tokens": 8}
    assert call_of(record).cached_tokens == 8


# streams


@pytest.mark.parametrize(
    "logged",
    [sse(STREAM), STREAM, [json.dumps(c) for c in STREAM], {"status": 200, "body": STREAM}],
)
def test_calls_stream_is_the_answer_that_it_adds_up_to(logged):
    record = {"request": {"messages": [user("u")], "stream": True}, "response": logged}
    assert openai_chat.why_not(record) is None
    call = call_of(record)
    assert (call.native_id, call.model, call.started_at) == ("s1", "m", 9.0)
    assert (call.input_tokens, call.output_tokens, call.warnings) == (3, 2, [])
    (choice,) = call.choices
    assert (choice.action.message.content, choice.finish_reason) == ("hello", "stop")


@pytest.mark.parametrize(
    ("events", "finish", "warnings"),
    [
        (STREAM[:1], "unknown", ["stream_cut"]),
        ([*STREAM[:1], {"error": {"message": "x"}}], "error", ["stream_error"]),
        ([*STREAM, "data: {"], "stop", ["stream_damaged"]),
    ],
)
def test_calls_stream_that_broke_says_so(events, finish, warnings):
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    call = call_of({"request": {"messages": [user("u")]}, "response": lines})
    assert (call.choices[0].finish_reason, call.warnings) == (finish, warnings)


def session(records):
    return openai_stream.session(dict(enumerate(records)), Context())


def test_session_dump_of_chunks_gives_a_call_per_answer():
    other = [{**each, "id": "s2"} for each in STREAM]
    records = [x for both in zip(STREAM, other, strict=True) for x in both]
    made = session(records)
    assert [(call.native_id, call.record) for call in made.calls] == [("s1", 0), ("s2", 1)]
    assert {call.choices[0].action.message.content for call in made.calls} == {"hello"}
    assert {call.state_kind for call in made.calls} == {"unknown"}
    assert made.fates == {}


def test_session_answer_that_was_cut_off_says_so():
    (call,) = session(STREAM[:1]).calls
    assert (call.warnings, call.choices[0].finish_reason) == (["stream_cut"], "unknown")


@pytest.mark.parametrize(
    "record",
    [
        {"choices": [{"message": {}}]},
        {"choices": [{"delta": {}}], "object": "other"},
        {"choices": "x"},
        {"object": "chat.completion.chunk"},
    ],
)
def test_why_not_what_is_no_chunk_is_refused(record):
    assert openai_stream.why_not(record) is not None


def test_session_every_record_is_used_or_has_one_fate():
    empty = {**chunk({"role": "assistant", "content": ""}), "id": "s2"}
    made = session([*STREAM, {"error": {"code": 500}}, {"other": 1}, empty, empty])
    assert len(made.calls) == 1
    assert {ordinal: (f.fate, f.reason) for ordinal, f in made.fates.items()} == {
        3: ("failed_call", "error_response"),
        4: ("rejected", "no_chunk"),
        5: ("failed_call", "empty_stream"),
        6: ("failed_call", "empty_stream"),
    }


@pytest.mark.parametrize(
    ("record", "module"),
    [
        (STREAM[0], openai_stream),
        ({"id": "", "choices": [], "prompt_filter_results": [], "object": ""}, openai_stream),
        (pair([user("u")], assistant("a")), openai_chat),
        (pair([], assistant("a"))["response"], openai_chat),
    ],
)
def test_detect_finds_chunks_and_completions(record, module):
    assert detect("x", [record]) is module


# the log's history is shared


def test_calls_requests_that_repeat_their_history_share_it():
    context = Context()
    start = [system("s"), user("u"), assistant("", calls=[("c", "f", "{}")]), tool("r", "c")]
    (first,) = calls(pair(start, assistant("a")), context)
    (second,) = calls(pair([*start, assistant("a"), user("v")], assistant("b")), context)
    assert second.state.parent.parent is first.state
    assert first.system is second.system


# real logs


def records_of(path):
    return [line for line in path.read_bytes().split(b"\n") if line.strip()]


@pytest.mark.parametrize(
    "name",
    [
        "test_compatible_api_with_tool_calls_without_id",
        "test_openai_instructions_with_tool_calls_keep_instructions",
    ],
)
def test_calls_http_pairs_give_the_expected_steps(name):
    context = Context()
    raws = records_of(shared("openai-chat", "http-pairs", f"{name}.jsonl"))
    assert detect("x", [json.loads(raw) for raw in raws]) is openai_chat
    found = [call for raw in raws for call in openai_chat.calls(raw, context)]
    assert len(found) == 2  # EXPECTED.tsv
    # the second request holds the first answer, under another id
    assert found[1].state.after()[1].exact == found[0].choices[0].action.exact


def test_calls_hostile_stream_gives_both_choices():
    text = shared("hostile-derived", "chat_stream_n2_interleaved.sse").read_text()
    (call,) = session(streams.parse(text).events).calls
    made, second = call.choices
    assert [(c.name, c.arguments) for c in made.action.message.tool_calls] == [
        ("f", '{"a": 1}'),
        ("g", "{}"),
    ]
    assert (second.index, second.action.message.content) == (1, "Bye")
    assert (call.input_tokens, call.output_tokens, call.warnings) == (5, 7, [])


@pytest.mark.parametrize(
    ("name", "finish"),
    [
        ("anthropic-fallback-tool-call.sse", "tool_calls"),
        ("azure-model-router.1.chunks.txt", "stop"),
        ("deepseek-reasoning.chunks.txt", "stop"),
        ("deepseek-tool-call.chunks.txt", "tool_calls"),
        ("openai-text.chunks.txt", "stop"),
    ],
)
def test_session_providers_streams_are_one_call_each(name, finish):
    text = shared("openai-chat", "stream-and-providers", name).read_text()
    made = session(streams.parse(text).events)
    (call,) = made.calls
    assert (call.choices[0].finish_reason, made.fates, call.warnings) == (finish, {}, [])


@pytest.mark.parametrize(
    ("name", "source", "output_tokens"),
    [
        ("deepseek-reasoning.json", "reasoning_content", 345),
        ("groq-reasoning.json", "reasoning", 649),
        # 26 tokens of the call and 255 of reasoning, which the total counts alone
        ("xai-tool-call.json", "reasoning_content", 281),
    ],
)
def test_calls_providers_name_and_count_reasoning_in_their_own_way(name, source, output_tokens):
    raw = shared("openai-chat", "stream-and-providers", name).read_bytes()
    assert detect("x", [json.loads(raw)]) is openai_chat
    (call,) = openai_chat.calls(raw, Context())
    assert call.choices[0].action.message.reasoning
    assert call.choices[0].metadata["reasoning_field"] == source
    assert call.output_tokens == output_tokens


@pytest.mark.parametrize(
    ("folder", "num_calls", "tools"),
    [("openhands-llm-logs", 6, True), ("openhands-nonfncall-logs", 4, False)],
)
def test_calls_completion_logs_of_one_run(folder, num_calls, tools):
    context = Context()
    files = sorted(shared("openai-chat", folder).glob("*.json"))
    found = [call for path in files for call in openai_chat.calls(path.read_bytes(), context)]
    assert len(found) == num_calls
    assert {call.tools != "[]" for call in found} == {tools}
    assert len({call.system for call in found}) == 1
    assert all("tools" not in (call.metadata["request"]) for call in found)
    assert [call.state.depth for call in found] == [1 + 2 * n for n in range(num_calls)]
