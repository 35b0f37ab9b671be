"""The common shape of a logged chat completion, read in one typed pass.

Most logs are {request, response} lines with few keys beside the messages. Such a record becomes a
Call here at a fraction of what it costs to look for everything else that a record can hold; one
that has more to it is not read here, and openai_chat reads it. Both give equal calls.
"""

from __future__ import annotations

import msgspec

from clawcli.ingest.calls import Call, Choice, Context
from clawcli.ingest.formats import completions
from clawcli.ingest.values import seconds

_GIVE_UP = 64
"""A source of which so many records have more to them is not tried any longer."""


_NULL = msgspec.Raw(b"null")


class _Request(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    messages: list[msgspec.Raw]
    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: msgspec.Raw = _NULL


class _Usage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int | None = None
    prompt_tokens_details: None = None
    completion_tokens_details: None = None


class _Choice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    message: msgspec.Raw
    index: int = 0
    finish_reason: str | None = None
    logprobs: None = None


class _Response(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    choices: list[_Choice]
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    usage: _Usage | None = None
    system_fingerprint: None = None
    service_tier: None = None


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    request: _Request
    response: _Response
    timestamp: float | str | None = None


_decode = msgspec.json.Decoder(_Record).decode


def call_of(raw: bytes, context: Context) -> Call | None:
    """Make the call of a record of the common shape; None = it has more to it, or is damaged.

    Raises:
        Fate: a message of the request is none.
    """
    if context.odd_records > _GIVE_UP:
        return None
    cut = context.messages.shorten(raw)
    try:
        record = _decode(raw if cut is None else cut.json)
    except msgspec.DecodeError:
        context.odd_records += 1
        return None
    request, response = record.request, record.response
    if len(response.choices) != 1:
        return None
    entry = response.choices[0]
    # by way of the cache: the next request has this message in its history, often byte for byte
    action = context.messages.plain(entry.message)
    if action is None or action.message.role != "assistant":
        return None
    index = entry.index
    if not 0 <= index < 2**31:
        return None
    messages = request.messages if cut is None else cut.split(request.messages)
    if messages is None:
        return None
    system, state = context.messages.conversation(messages, record=cut)
    raw_reason = entry.finish_reason
    choice = Choice(action, index, completions.finish_reason(raw_reason), raw_reason)
    calls = action.message.tool_calls
    if calls and not all(call.arguments_valid for call in calls):
        choice.warnings = ["arguments_invalid"]
    call = Call(state, [choice], system)
    call.native_id = response.id or None
    call.model = call.policy = response.model or request.model
    call.temperature, call.top_p = request.temperature, request.top_p
    call.started_at = seconds(record.timestamp)
    if call.started_at is None:
        call.started_at = seconds(response.created or None)
    completions.set_tools(call, None if request.tools is _NULL else request.tools)
    if (usage := response.usage) is not None:
        prompt, output, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
        call.input_tokens, call.output_tokens = prompt, output
        if total is not None and total > prompt + output:
            call.output_tokens = total - prompt
    return call
