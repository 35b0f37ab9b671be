"""Whatever stands in a wrong place of a record is that record's fault, and no other's."""

import copy
import json
import random

import pytest
import test_anthropic_messages as anthropic
import test_openai_chat as chat
import test_openai_responses as responses
from conftest import assistant, pair, system, tool, user
from test_litellm import payload

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import (
    FORMATS,
    anthropic_messages,
    anthropic_stream,
    litellm,
    openai_chat,
    openai_responses,
    openai_stream,
)

ODD = [None, True, -1, 2**70, 1.5, "", "x", [], [1], [None], [[]], {}, {"a": 1}, {"type": 7}, [{}]]


def damaged(value, seed):
    """Yield copies of a value that have something odd in one place, three for each place."""
    choose = random.Random(seed)
    for path in places(value):
        for odd in choose.sample(ODD, 3):
            other = copy.deepcopy(value)
            at = other
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = odd
            yield other


def places(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in items if isinstance(value, dict | list) else ():
        yield (*path, key)
        if isinstance(below, dict | list):
            yield from places(below, (*path, key))


def chat_records():
    thought = {
        "reasoning_details": [{"text": "a"}],
        "thinking_blocks": [{"thinking": "x"}],
        "provider_specific_fields": {"thinking_blocks": [{"thinking": "s"}]},
    }
    asked = [system("s"), user("u"), assistant("", calls=[("c", "f", "{}")], **thought), tool("r")]
    answer = assistant("a", calls=[("c", "f", "{}")], function_call={"name": "f"}, refusal=None)
    parameters = {"extra_body": {"top_k": 1}, "functions": [{}], "temperature": 1, "stop": ["x"]}
    labels = {"reward": 1, "task_id": 1, "latency_sec": 1, "cost": 1, "policy_version": 1}
    whole = pair(asked, answer, tools=chat.TOOLS, uid="r", at=1.0, request=parameters, **labels)
    response = whole["response"]
    logprobs = {"content": [chat.token("a", -1, top_logprobs=[{}])]}
    fields = {"provider_specific_fields": {"token_ids": [1]}}
    response["choices"][0].update(token_ids=[1], logprobs=logprobs, **fields)
    response["usage"] = {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    function = {"name": "f", "arguments": "{"}
    delta = {"tool_calls": [{"index": 0, "id": "c", "function": function}], **thought}
    stream = [*chat.STREAM, chat.chunk({**delta, "content": ["a"]})]
    return [
        whole,
        {
            "request": {"url": "x/chat/completions", "body": whole["request"]},
            "response": {"status": 200, "body": response},
        },
        {
            "messages": asked,
            "response": response,
            "raw_response": response,
            "raw_messages": [],
            "kwargs": {"tools": [], "temperature": 1},
        },
        {"request": {"messages": asked}, "response": stream},
    ]


def anthropic_records():
    thought = {"type": "thinking", "thinking": "x", "signature": "s"}
    asked = anthropic.turn("assistant", anthropic.text_block("a"), anthropic.use(), thought)
    told = anthropic.turn("user", anthropic.result(), anthropic.text_block("v"))
    usage = {"input_tokens": 1, "cache_read_input_tokens": 1, "output_tokens": 1}
    whole = anthropic.record(
        anthropic.turn("user", "u"),
        asked,
        told,
        system=[anthropic.text_block("s")],
        tools=[{}],
        stop_sequences=["x"],
        answer=anthropic.message(anthropic.use(), usage=usage),
    )
    cited = {"type": "citations_delta", "citation": {}}
    stream = [*anthropic.STREAM, *anthropic.inputs(1, "{", "}"), *anthropic.block(2, {}, cited)]
    return [
        whole,
        anthropic.record(answer=stream),
        {
            "request": {"url": "x/messages", "body": whole["request"]},
            "response": {"status": 200, "body": whole["response"]},
        },
    ]


@pytest.mark.parametrize(
    ("module", "records"),
    [
        (openai_chat, chat_records()),
        (anthropic_messages, anthropic_records()),
        (
            litellm,
            [
                payload(proxy_server_request={"messages": []}, messages={}),
                payload(messages="[]", call_type="anthropic_messages"),
            ],
        ),
    ],
)
def test_calls_odd_values_give_calls_or_a_fate_and_nothing_else(module, records):
    num_fates = 0
    for seed, record in enumerate(records):
        module.calls(json.dumps(record).encode(), Context())
        for odd in damaged(record, seed):
            for other in FORMATS:
                other.why_not(odd)
            try:
                module.calls(json.dumps(odd).encode(), Context())
            except Fate:
                num_fates += 1
    assert num_fates > 20


def response_logs():
    link = {"previous_response_id": "r1"}
    reasoning = {"type": "reasoning", "summary": [{"text": "a"}], "content": [{"text": "b"}]}
    shell = {"type": "local_shell_call", "call_id": "c", "action": {"a": 1}}
    custom = {"type": "custom_tool_call", "call_id": "x", "name": "n", "input": "i"}
    scored = responses.text_item("a")
    scored["content"][0]["logprobs"] = [{"token": "a", "logprob": -1}]
    heard = [
        {"role": "user", "content": [{"type": "input_image"}]},
        responses.call_item(),
        responses.output_item(output=[{"type": "input_text", "text": "a"}]),
        {"type": "mcp_approval_response", "approval_request_id": "p"},
        reasoning,
    ]
    usage = {"input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {}}
    said = [reasoning, responses.text_item("a"), shell, custom]
    compact = {"id": "r2", "object": "response.compaction"}
    compact["output"] = [user("u"), {"type": "compaction", "encrypted_content": "x"}]
    whole = responses.event("completed", response=responses.response("r1", scored))
    return [
        [
            responses.pair("r1", heard, *said, usage=usage, request={"instructions": [user("x")]}),
            {
                "request": {"url": "x/responses/compact", "body": {**link, "input": []}},
                "response": {"status": 200, "body": compact},
            },
            responses.pair("r3", [*compact["output"], user("v")], scored),
        ],
        [
            responses.created(first=[user("x")]),
            responses.talk("r1", "u", responses.call_item(), at=1.0),
            responses.talk("r2", [responses.output_item()], at=1.0),
        ],
        [*responses.STREAM, whole],
    ]


@pytest.mark.parametrize(
    ("module", "logs"),
    [
        (openai_responses, response_logs()),
        (openai_stream, [[*chat.STREAM, {"error": {}}]]),
        (anthropic_stream, [[*anthropic.STREAM, *anthropic.inputs(1, "{")]]),
    ],
)
def test_session_odd_values_leave_every_record_with_one_fate(module, logs):
    for seed, log in enumerate(logs):
        for records in damaged(log, seed):
            objects = {n: record for n, record in enumerate(records) if isinstance(record, dict)}
            made = module.session(objects, Context())
            assert made.fates.keys() <= objects.keys()
            assert all(call.record in objects.keys() - made.fates.keys() for call in made.calls)
