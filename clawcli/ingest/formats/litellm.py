"""LiteLLM's logs: StandardLoggingPayload, and rows of its table SpendLogs, one record per call.

Where message logging is off, messages is {}: that means not logged, never an empty prompt. An
answer from LiteLLM's cache is no fresh sample of the model: warning cache_hit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import anthropic_messages, completions, pairs
from clawcli.ingest.formats.anthropic_messages import is_message, read_turn
from clawcli.ingest.formats.layers import Layer
from clawcli.ingest.formats.openai_chat import unknown_state
from clawcli.ingest.values import number, seconds, text

NAME = "litellm"

_CHAT_CALLS = frozenset({"completion", "acompletion", "anthropic_messages", ""})
"""Calls whose answer is logged as a chat completion."""
_OTHER_ANSWERS = frozenset({"responses", "aresponses", "text_completion", "atext_completion"})
_WITHHELD = "redacted-by-litellm"
"""What LiteLLM writes in place of texts where message logging is turned off."""
_RECORD = Layer(
    messages=msgspec.Raw,
    response=msgspec.Raw,
    proxy_server_request=msgspec.Raw,
    call_type=Any,
    id=Any,
    request_id=Any,
    status=Any,
    error_str=Any,
    model=Any,
    model_parameters=Any,
    response_cost=Any,
    spend=Any,
    startTime=Any,
    endTime=Any,
    cache_hit=Any,
    prompt_tokens=Any,
    completion_tokens=Any,
    total_tokens=Any,
)


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    missing = [key for key in ("call_type", "startTime", "messages") if key not in record]
    return f"no {' and no '.join(missing)}" if missing else None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one record into its call, with a choice per answer.

    Raises:
        Fate: the call failed, is of another kind, or the record is damaged.
    """
    try:
        record = _RECORD.read(raw)
    except msgspec.ValidationError as error:
        raise Fate("rejected", "bad_record", f"the record is none of LiteLLM's: {error}") from error
    if record.status == "failure" or record.error_str:
        raise pairs.failed(f"is a failure: {text(record.error_str) or 'no reason is logged'}")
    call_type = text(record.call_type) or ""
    if call_type in _OTHER_ANSWERS:
        raise Fate("rejected", "other_api", f"answers of {call_type} are not read")
    if call_type not in _CHAT_CALLS:
        raise Fate("ignored", "other_call", f"{call_type} is no chat completion")
    response = _decoded(record.response)
    if response in ({}, None, ""):
        raise Fate("rejected", "no_response", "the response was not logged")
    parameters = record.model_parameters if isinstance(record.model_parameters, dict) else {}
    if is_message(response):
        call, warnings = anthropic_messages.call_of(response), []
    else:
        response, warnings = completions.read_response(response)
        call = completions.call_of(response)
    if any(choice.action.message.content == _WITHHELD for choice in call.choices):
        raise Fate("rejected", "no_response", "the response was withheld from the log")
    _set_state(call, record, parameters, context)
    call.warnings += warnings + ["cache_hit"] * (record.cache_hit in (True, "True"))
    completions.set_parameters(call, parameters)
    _set_record(call, record)
    return [call]


def _decoded(raw: msgspec.Raw | None) -> Any:
    """Decode a value that is logged as an object, or as JSON text of one."""
    value = None if raw is None else msgspec.json.decode(raw)
    return pairs.body_of(value)[0] if isinstance(value, str) else value


def _is_withheld(value: Any) -> bool:
    """Tell whether a message stands for one that was not logged."""
    return isinstance(value, dict) and value.get("content") == _WITHHELD


def _messages(record: Any) -> list[msgspec.Raw]:
    """List the messages of the request; empty where they were not logged."""
    for logged in (record.messages, record.proxy_server_request):
        if logged is None:
            continue
        if bytes(logged)[:1] != b"[":
            # text of the list, or the whole request as the proxy got it
            value = _decoded(logged)
            value = value.get("messages") if isinstance(value, dict) else value
            logged = msgspec.Raw(msgspec.json.encode(value if isinstance(value, list) else []))
        if raws := msgspec.json.decode(logged, type=list[msgspec.Raw]):
            return raws
    return []


def _set_state(call: Call, record: Any, parameters: dict[str, Any], context: Context) -> None:
    raws = _messages(record)
    if not raws or (len(raws) == 1 and _is_withheld(_decoded(raws[0]))):
        unknown_state(call)
        return
    read = read_turn if record.call_type == "anthropic_messages" else None
    call.system, call.state = context.messages.conversation(raws, read)
    tools = parameters.pop("tools", None)
    completions.set_tools(call, None if tools is None else msgspec.json.encode(tools))


def _set_record(call: Call, record: Any) -> None:
    """Take what is logged beside request and response; it holds where the response is silent."""
    if call.native_id is None:
        call.native_id = text(record.id) or text(record.request_id)
    call.model = call.model or text(record.model)
    call.policy = call.policy or call.model
    call.started_at, call.ended_at = seconds(record.startTime), seconds(record.endTime)
    if call.started_at is not None and call.ended_at is not None:
        call.latency_s = call.ended_at - call.started_at
    cost = record.response_cost if record.response_cost is not None else record.spend
    call.cost_usd = number(cost)
    if call.input_tokens is None and call.output_tokens is None:
        completions.set_usage(
            call,
            {
                key: getattr(record, key)
                for key in ("prompt_tokens", "completion_tokens", "total_tokens")
            },
        )
    call.metadata = {**_RECORD.rest(record), **(call.metadata or {})} or None
