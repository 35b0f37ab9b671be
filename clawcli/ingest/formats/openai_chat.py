"""OpenAI chat completions as they are logged: one record is one call.

Four shapes: {request, response} (also with the bodies of both below "body", as HTTP recorders
write it), {messages, response, tools, kwargs} as LiteLLM's and OpenHands' completion logs are, one
file per call, {messages, response, ...} with the parameters at the top, and a bare response, whose
request was not logged. The response may be a stream: its text, or a list of its chunks.

Where a completion log has raw_messages, the tools were rendered into the text of messages: that
text is what the model saw, and raw_response what it answered; raw_messages repeats the
conversation in tool form and is not kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import completions, pairs, plain_chat, streams
from clawcli.ingest.formats.layers import Layer

NAME = "openai_chat"

_RAWS = list[msgspec.Raw] | None
_BODY = Layer(messages=_RAWS, tools=msgspec.Raw)
_REQUEST = Layer(messages=_RAWS, tools=msgspec.Raw, body=_BODY)
_RECORD = Layer(
    request=_REQUEST,
    response=msgspec.Raw,
    messages=_RAWS,
    tools=msgspec.Raw,
    kwargs=Any,
    raw_messages=msgspec.Raw,
    raw_response=Any,
)


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if record.get("object") == "chat.completion" and "choices" in record:
        return None
    if "response" not in record:
        return "no response"
    request, _ = pairs.body_of(record.get("request", record))
    has_messages = isinstance(request, dict) and isinstance(request.get("messages"), list)
    if has_messages and "request" in record:
        return None
    response, _ = pairs.body_of(record["response"])
    if has_messages:
        is_answer = response is None or isinstance(response, dict) or streams.parse(response)
        return None if is_answer else "the response is no completion"
    if "request" not in record and _is_completion(response):
        return None
    return "no messages in the request"


def _is_completion(response: Any) -> bool:
    if isinstance(response, dict):
        return response.get("object") == "chat.completion" and "choices" in response
    stream = streams.parse(response)
    return stream is not None and "choices" in stream.events[0]


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one record into its call, with a choice per answer.

    Raises:
        Fate: the record is damaged, or the call failed.
    """
    if (plain := plain_chat.call_of(raw, context)) is not None:
        return [plain]
    try:
        record = _RECORD.read(raw)
        request, layer = pairs.open_request(record.request, _REQUEST, _BODY)
    except msgspec.ValidationError as error:
        raise _misshapen(raw, error) from error
    beside = _RECORD.rest(record)
    if request is not None:
        call = _call(record, request, context)
        completions.set_parameters(call, layer.rest(request))
    elif record.messages is not None:
        parameters = _parameters(record, beside)
        call = _call(record, record, context)
        completions.set_parameters(call, parameters)
    elif record.response is None and "choices" in beside:
        return [unknown_state(completions.call_of(msgspec.json.decode(raw)))]
    else:
        response, warnings = completions.read_response(_decoded(record.response))
        call = unknown_state(completions.call_of(response))
        call.warnings += warnings
    pairs.set_beside(call, beside)
    return [call]


def unknown_state(call: Call) -> Call:
    """Mark a call whose request was not logged: nothing tells its place."""
    call.state_kind, call.is_cut = "unknown", True
    return call


def _call(record: Any, request: Any, context: Context) -> Call:
    if request.messages is None:
        if (url := pairs.url_of(record.request, _REQUEST)) is not None:
            raise pairs.other_call(url)
        known = pairs.known_of(_RECORD.rest(record))
        raise Fate("rejected", "no_messages", "the request has no messages", **known)
    system, state = context.messages.conversation(request.messages)
    response, warnings = completions.read_response(_decoded(record.response))
    entries = record.raw_response.get("choices") if isinstance(record.raw_response, dict) else None
    call = completions.call_of(response, state, entries)
    call.system = system
    call.warnings += warnings
    # tools that were rendered into text are in the messages
    completions.set_tools(call, request.tools if record.raw_messages is None else None)
    return call


def _decoded(response: msgspec.Raw | None) -> Any:
    return None if response is None else msgspec.json.decode(response)


def _parameters(record: Any, beside: dict[str, Any]) -> dict[str, Any]:
    """Take the parameters that a completion log has below kwargs, or at its top."""
    if isinstance(record.kwargs, dict):
        tools = record.kwargs.pop("tools", None)
        if record.tools is None and tools is not None:
            record.tools = msgspec.json.encode(tools)
        return record.kwargs
    return {key: beside.pop(key) for key in completions.PARAMETERS & beside.keys()}


def _misshapen(raw: bytes, error: msgspec.ValidationError) -> Fate:
    if not raw.lstrip().startswith(b"{"):
        return Fate("rejected", "bad_record", "the record is no object")
    return Fate("rejected", "no_messages", f"the request has no list of messages: {error}")
