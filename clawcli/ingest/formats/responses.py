"""What a response object of the OpenAI Responses API says about a call.

A response, whole or joined from its stream, becomes a Call with one Choice; the caller knows which
state it answers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.conversations import Node, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import completions, items, pairs
from clawcli.ingest.values import integer, seconds, text
from clawcli.messages import Message

RESPONSE = "response"
COMPACTION = "response.compaction"
"""What objects call themselves: an answer, and a history made short."""
_FINAL = ("completed", "incomplete", "failed", "cancelled")
_FINISH = {
    "completed": "stop",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "failed": "error",
    "cancelled": "aborted",
}
_RESPONSE_KEYS = frozenset(
    {"id", "object", "created_at", "completed_at", "model", "output", "usage", "status", "tools"}
    | {"instructions", "previous_response_id", "conversation", "incomplete_details"}
    | {"temperature", "top_p"}
)
_REQUEST_KEYS = frozenset(
    {"input", "tools", "instructions", "previous_response_id", "conversation"}
)


def is_final(response: dict[str, Any]) -> bool:
    """Tell whether a response is over; one that runs in the background is fetched again."""
    return response.get("status") in _FINAL or response.get("object") == COMPACTION


def check(response: dict[str, Any]) -> None:
    """Make sure that a response holds an answer.

    Raises:
        Fate: the call failed, or nothing was said.
    """
    if response.get("error") and not response.get("output"):
        raise pairs.failed("is an error")
    if not isinstance(response.get("output"), list):
        raise Fate("rejected", "no_output", "the response has no list of output items")
    if not response["output"] and response.get("status") not in ("completed", "incomplete"):
        status = text(response.get("status")) or "cut off"
        raise Fate("failed_call", "empty_response", f"the response is {status} and empty")


def instructions_text(value: Any) -> str:
    """Read instructions: a text, or items that are texts."""
    if not isinstance(value, list):
        return text(value) or ""
    found = [item.message for item in items.to_messages(value)]
    return "\n\n".join(message.content or message.parts or "" for message in found)


def call_of(response: dict[str, Any], state: Node, request: dict[str, Any] | None) -> Call:
    """Make the call that a response answers.

    Args:
        response: one that passed check.
        state: what the model saw.
        request: its parameters; null where it was not logged.
    """
    call = Call(state, [_choice(response)])
    call.native_id = text(response.get("id"))
    call.step_kind = "compaction" if response.get("object") == COMPACTION else "policy"
    call.model = call.policy = text(response.get("model"))
    _set_usage(call, response.get("usage"))
    tools = (response if request is None else request).get("tools")
    if request is not None or tools is not None:
        completions.set_tools(call, None if tools is None else msgspec.json.encode(tools))
    # the response repeats what the request asked for, defaults included
    asked = completions.rest(request or {}, _REQUEST_KEYS)
    repeated = {k: response[k] for k in ("temperature", "top_p") if response.get(k) is not None}
    completions.set_parameters(call, repeated | asked)
    call.started_at = seconds(response.get("created_at"))
    call.ended_at = seconds(response.get("completed_at"))
    if not is_final(response):
        call.warnings.append("stream_cut")
    kept = completions.rest(response, _RESPONSE_KEYS)
    kept = {k: v for k, v in kept.items() if v not in ({}, [], False) and v != asked.get(k)}
    if kept:
        call.metadata = {**(call.metadata or {}), "response": kept}
    return call


def _choice(response: dict[str, Any]) -> Choice:
    output = response["output"]
    if response.get("object") == COMPACTION:
        # messages of the user that were kept, and an item that the server alone can read
        whole = Message("assistant", parts=msgspec.json.encode(output).decode())
        return Choice(digested(whole))
    action = items.to_action(output)
    choice = Choice(digested(action.message), warnings=action.warnings)
    details = response.get("incomplete_details")
    reason = text(details.get("reason")) if isinstance(details, dict) else None
    choice.finish_reason_raw = raw = reason or text(response.get("status"))
    choice.finish_reason = "refusal" if action.is_refusal else _FINISH.get(raw or "", "unknown")
    if choice.finish_reason == "stop" and action.message.tool_calls:
        choice.finish_reason = "tool_calls"
    metadata = action.metadata | _set_logprobs(choice, output)
    choice.metadata = metadata or None
    return choice


def _set_logprobs(choice: Choice, output: list[Any]) -> dict[str, Any]:
    """Take log-probs where they are those of the whole action: one message of one text."""
    item = output[0] if len(output) == 1 and isinstance(output[0], dict) else {}
    content = item.get("content")
    part = content[0] if isinstance(content, list) and len(content) == 1 else None
    if isinstance(part, dict) and part.get("logprobs"):
        return completions.set_logprobs(choice, {"content": part["logprobs"]})
    return {}


def _set_usage(call: Call, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    call.input_tokens = integer(usage.get("input_tokens"))
    call.output_tokens = integer(usage.get("output_tokens"))
    if isinstance(details := usage.get("input_tokens_details"), dict):
        call.cached_tokens = integer(details.get("cached_tokens"))
    if isinstance(details := usage.get("output_tokens_details"), dict):
        call.reasoning_tokens = integer(details.get("reasoning_tokens"))
    choice = call.choices[0]
    thought = choice.action.message.reasoning is not None or "reasoning_hidden" in choice.warnings
    if call.reasoning_tokens and not thought:
        choice.warnings.append("reasoning_hidden")
