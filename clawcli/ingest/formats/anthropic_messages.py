"""Anthropic Messages API as it is logged: one record is one call.

Two shapes: {request, response} (also with the bodies of both below "body"), and a bare message,
whose request was not logged. The response may be a stream: its text, or a list of its events; one
that holds two messages, where a proxy tried again, gives a call of each. A user turn becomes a
tool message per tool_result and a user message with the rest (blocks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice, Context
from clawcli.ingest.conversations import EMPTY, Digested, Node, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import blocks, completions, events, pairs, streams
from clawcli.ingest.formats.layers import Layer, Memo
from clawcli.ingest.formats.openai_chat import unknown_state
from clawcli.ingest.values import integer, text
from clawcli.messages import Message, content_and_parts, text_of

NAME = "anthropic_messages"

_PARAMETERS = {"messages": list[msgspec.Raw] | None, "system": msgspec.Raw, "tools": msgspec.Raw}
_BODY = Layer(**_PARAMETERS)
_REQUEST = Layer(**_PARAMETERS, body=_BODY)
_RECORD = Layer(request=_REQUEST, response=msgspec.Raw)
_MESSAGE_KEYS = frozenset(
    {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage", "error"}
)
_USAGE_KEYS = frozenset({"input_tokens", "output_tokens", "cache_read_input_tokens"})


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if is_message(record):
        return None
    if "request" not in record or "response" not in record:
        return "no request and response"
    request, _ = pairs.body_of(record["request"])
    response, _ = pairs.body_of(record["response"])
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        return "no messages in the request"
    if is_message(response) or (isinstance(response, dict) and response.get("type") == "error"):
        return None
    stream = streams.parse(response)
    if stream is not None and events.is_message_event(stream.events[0]):
        return None
    url = record["request"].get("url") if isinstance(record["request"], dict) else None
    if pairs.path_of(url).endswith("/messages"):
        return None
    return "the response is no Anthropic message"


def is_message(value: Any) -> bool:
    """Tell whether a value is an answer of the Messages API."""
    if not isinstance(value, dict) or value.get("type") != "message":
        return False
    # items of other APIs are called messages too
    return "content" in value and "stop_reason" in value


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one record into its call, or its calls where the stream holds several messages.

    Raises:
        Fate: the record is damaged, or the call failed.
    """
    try:
        record = _RECORD.read(raw)
        request, layer = pairs.open_request(record.request, _REQUEST, _BODY)
    except msgspec.ValidationError as error:
        raise Fate("rejected", "no_messages", f"the request is damaged: {error}") from error
    if request is None:
        value = msgspec.json.decode(raw)
        if not is_message(value):
            raise Fate("rejected", "no_messages", "the record holds no request and no message")
        return [unknown_state(call_of(value))]
    url = pairs.url_of(record.request, _REQUEST)
    if url is not None and (
        request.messages is None or pairs.path_of(url).endswith("/count_tokens")
    ):
        raise pairs.other_call(url)
    if request.messages is None:
        raise Fate("rejected", "no_messages", "the request has no messages")
    beside = _RECORD.rest(record)
    _, state = context.messages.conversation(request.messages, read_turn)
    answers = read_response(
        None if record.response is None else msgspec.json.decode(record.response)
    )
    made = []
    for ordinal, (message, warnings) in enumerate(answers):
        call = call_of(message, state)
        call.ordinal = ordinal
        call.warnings += warnings
        call.system = "" if request.system is None else _system(request.system)
        completions.set_tools(call, request.tools)
        set_parameters(call, layer.rest(request))
        pairs.set_beside(call, dict(beside))
        made.append(call)
    return made


def set_parameters(call: Call, parameters: dict[str, Any]) -> None:
    """Take model and sampling from the parameters of a request; what is left is metadata."""
    if (stop := parameters.pop("stop_sequences", None)) is not None:
        parameters["stop"] = stop
    completions.set_parameters(call, parameters)


def _system_text(raw: bytes) -> str:
    content, parts = content_and_parts(msgspec.json.decode(raw))
    if parts is None:
        return content or ""
    joined = text_of(Message("system", parts=parts))
    return parts if joined is None else joined


_system = Memo(_system_text)


def read_turn(raw: bytes) -> Sequence[Digested]:
    """Decode one turn of a request into its messages.

    Raises:
        Fate: it is not an object with a role.
    """
    value = msgspec.json.decode(raw)
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise Fate("rejected", "bad_message", "a message is not an object with a role")
    content = value.get("content")
    found = [digested(message) for message in blocks.to_messages(value["role"], content)]
    if not isinstance(content, str) and (left := blocks.leftovers(content)):
        found[0].extra = {"blocks": left}
    if more := completions.rest(value, frozenset({"role", "content"})):
        found[0].extra = {**(found[0].extra or {}), **more}
    return found


def read_response(value: Any) -> list[tuple[dict[str, Any], list[str]]]:
    """Find the message in what was logged as the response, or the messages of its stream.

    Returns:
        (message, warnings) each: stream_cut, stream_damaged, stream_error, stream_spliced.

    Raises:
        Fate: the call failed, or there is no message.
    """
    body, status = pairs.body_of(value)
    if status is not None and status >= 400:
        raise pairs.failed(f"has status {status}")
    if is_message(body):
        return [(body, [])]
    if isinstance(body, dict):
        if body.get("error") or body.get("type") == "error":
            raise pairs.failed("is an error")
        raise Fate("rejected", "no_response", "the response is no message")
    stream = streams.parse(body)
    if stream is None:
        raise Fate("rejected", "no_response", "the response is neither a message nor a stream")
    groups = events.message_groups(enumerate(stream.events))
    found = [answer for group in groups if (answer := joined(group)) is not None]
    if not found:
        if any(event.get("type") == "error" for event in stream.events):
            raise pairs.failed("is an error")
        raise Fate("failed_call", "empty_stream", "the stream ended before the model said anything")
    for _, warnings in found:
        warnings += ["stream_damaged"] * stream.is_damaged + ["stream_spliced"] * (len(groups) > 1)
    return found


def joined(group: list[streams.Numbered]) -> tuple[dict[str, Any], list[str]] | None:
    """Join the events of one message, and say what is wrong with it; None where it is empty."""
    message = events.message_response(event for _, event in group)
    if not message["content"] and not message.get("stop_reason"):
        return None
    if message.get("error"):
        return message, ["stream_error"]
    return message, [] if message.get("stop_reason") else ["stream_cut"]


def call_of(message: dict[str, Any], state: Node = EMPTY) -> Call:
    """Make the call that a message answers."""
    action, metadata, warnings = blocks.to_action(message.get("content"))
    choice = Choice(digested(action), metadata=metadata or None)
    choice.warnings = list(warnings)
    choice.finish_reason_raw = raw = text(message.get("stop_reason"))
    choice.finish_reason = completions.finish_reason(raw)
    if raw is None and message.get("error"):
        choice.finish_reason = "error"
    if raw == "pause_turn":
        choice.warnings.append("pause_turn")
    call = Call(state, [choice])
    call.native_id = text(message.get("id")) or None
    call.model = call.policy = text(message.get("model")) or None
    kept = completions.rest(message, _MESSAGE_KEYS)
    if usage := _set_usage(call, message.get("usage")):
        kept["usage"] = usage
    if message.get("stop_sequence") is not None:
        kept["stop_sequence"] = message["stop_sequence"]
    if kept:
        call.metadata = {"response": kept}
    return call


def _set_usage(call: Call, usage: Any) -> dict[str, Any]:
    """Take token counts, and return those that have no column.

    The column of input tokens includes those that were read from a cache or written to it.
    """
    if not isinstance(usage, dict):
        return {}
    call.output_tokens = integer(usage.get("output_tokens"))
    call.cached_tokens = integer(usage.get("cache_read_input_tokens"))
    fresh = integer(usage.get("input_tokens"))
    if fresh is not None:
        written = integer(usage.get("cache_creation_input_tokens"))
        call.input_tokens = fresh + (call.cached_tokens or 0) + (written or 0)
    return {k: v for k, v in usage.items() if v and k not in _USAGE_KEYS}
