import json

import pytest
from conftest import assistant, pair, system, user

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import detect, litellm

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def payload(**extra):
    return {
        "id": "log-1",
        "trace_id": "t",
        "call_type": "acompletion",
        "status": "success",
        "error_str": None,
        "messages": [system("s"), user("u")],
        "response": pair([], assistant("a"), uid="r1")["response"],
        "model": "m",
        "model_parameters": {"temperature": 0.5, "tools": TOOLS, "max_tokens": 9},
        "startTime": 1700000000.25,
        "endTime": 1700000002.75,
        "response_cost": 0.01,
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "metadata": {"user_api_key_alias": "k"},
        **extra,
    }


def call_of(record):
    (call,) = litellm.calls(json.dumps(record).encode(), Context())
    return call


def fate(record):
    with pytest.raises(Fate) as raised:
        call_of(record)
    return raised.value.fate, raised.value.reason


def test_calls_payload_fills_the_columns():
    assert detect("x", [payload()]) is litellm
    call = call_of(payload())
    assert (call.system, call.state.depth, call.state_kind) == ("s", 1, "full")
    assert (json.loads(call.tools), call.temperature, call.model) == (TOOLS, 0.5, "m")
    assert (call.native_id, call.cost_usd) == ("r1", 0.01)
    assert (call.started_at, call.ended_at, call.latency_s) == (1700000000.25, 1700000002.75, 2.5)
    assert (call.input_tokens, call.output_tokens) == (7, 3)
    assert call.choices[0].action.message.content == "a"
    assert call.metadata == {
        "trace_id": "t",
        "metadata": {"user_api_key_alias": "k"},
        "request": {"max_tokens": 9},
    }


def test_calls_without_an_end_have_no_latency():
    call = call_of(payload(endTime=None))
    assert (call.started_at, call.ended_at, call.latency_s) == (1700000000.25, None, None)


def test_calls_usage_of_the_response_wins():
    record = payload()
    record["response"]["usage"] = {"prompt_tokens": 70, "completion_tokens": 30}
    assert (call_of(record).input_tokens, call_of(record).output_tokens) == (70, 30)


@pytest.mark.parametrize(
    "messages",
    [{}, None, [], "{}", "", [user("redacted-by-litellm")]],
)
def test_calls_messages_that_were_not_logged_are_an_unknown_state(messages):
    call = call_of(payload(messages=messages))
    assert (call.state_kind, call.is_cut, call.state.depth, call.system) == ("unknown", True, 0, "")
    assert call.tools is None


def test_calls_messages_and_response_may_be_text():
    record = payload()
    texts = {key: json.dumps(record[key]) for key in ("messages", "response")}
    call = call_of(payload(**texts))
    assert (call.system, call.state.depth, call.state_kind) == ("s", 1, "full")


@pytest.mark.parametrize("as_text", [False, True])
def test_calls_spend_log_has_its_request_as_the_proxy_got_it(as_text):
    request = {"model": "m", "messages": [user("u")]}
    row = payload(
        request_id="q1",
        id=None,
        spend=0.5,
        response_cost=None,
        messages={},
        startTime="2026-01-01T00:00:00Z",
        endTime="2026-01-01T00:00:01.5Z",
        proxy_server_request=json.dumps(request) if as_text else request,
    )
    del row["response"]["id"]
    call = call_of(row)
    assert (call.state.depth, call.state_kind) == (1, "full")
    assert (call.native_id, call.cost_usd, call.latency_s) == ("q1", 0.5, 1.5)


@pytest.mark.parametrize("cache_hit", [True, "True"])
def test_calls_answer_from_the_cache_is_told(cache_hit):
    assert call_of(payload(cache_hit=cache_hit)).warnings == ["cache_hit"]
    assert call_of(payload(cache_hit="False")).warnings == []


def test_calls_of_the_messages_api_are_read_in_its_form():
    turns = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "r"}]},
    ]
    call = call_of(payload(call_type="anthropic_messages", messages=[user("u"), *turns]))
    assert [item.message.role for item in call.state.after()] == ["user", "assistant", "tool"]
    blocks = [{"type": "text", "text": "b"}]
    answer = {"type": "message", "id": "m1", "content": blocks, "stop_reason": "end_turn"}
    call = call_of(payload(call_type="anthropic_messages", response=answer))
    assert (call.choices[0].action.message.content, call.native_id) == ("b", "m1")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"status": "failure", "response": {}}, ("failed_call", "error_response")),
        ({"error_str": "429", "response": None}, ("failed_call", "error_response")),
        ({"call_type": "aembedding"}, ("ignored", "other_call")),
        ({"call_type": "aresponses"}, ("rejected", "other_api")),
        ({"response": {}}, ("rejected", "no_response")),
        ({"response": None}, ("rejected", "no_response")),
    ],
)
def test_calls_record_without_a_step_says_why(extra, expected):
    assert fate(payload(**extra)) == expected


def test_calls_withheld_answer_is_no_step():
    record = payload()
    record["response"]["choices"][0]["message"]["content"] = "redacted-by-litellm"
    assert fate(record) == ("rejected", "no_response")


def test_why_not_names_what_is_missing():
    assert litellm.why_not({"messages": []}) == "no call_type and no startTime"
