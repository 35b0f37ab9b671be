"""OpenAI chat completions as they are logged: one record is one call.

Two shapes: {request, response} (also with the bodies of both below "body"), and {messages,
response, tools, kwargs} as LiteLLM and OpenHands write it, one file per call. Where such a file
has raw_messages, the tools were rendered into the text of messages: that text is what the model
saw, and raw_response what it answered; raw_messages repeats the conversation in tool form and is
not kept. Token ids and log-probs are taken as logged, at either level.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from clawcli import schema
from clawcli.ingest.calls import (
    Call,
    Choice,
    Context,
    Digested,
    Fate,
    conversation,
    digested,
    integer,
    number,
    seconds,
    split_system,
    text,
    to_message,
    tool_call_list,
    version_number,
)

NAME = "openai_chat"

_FINISH = {
    "stop": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    "abort": "aborted",
}
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")
_SAMPLING = ("top_k", "min_p", *_PENALTIES, "stop", "logprob_kind", *schema.GRAMMAR_KEYS)
_REQUEST_KEYS = frozenset({"messages", "tools", "model", "temperature", "top_p", *_SAMPLING})
_RESPONSE_KEYS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "prompt_token_ids"}
)
_CHOICE_KEYS = frozenset(
    {"index", "message", "finish_reason", "logprobs", "token_ids", "prompt_token_ids"}
)
_MESSAGE_KEYS = frozenset(
    {"role", "content", "tool_calls", "function_call", "refusal", "reasoning_content", "reasoning"}
)
_RECORD_KEYS = frozenset(
    {
        "request",
        "response",
        "messages",
        "tools",
        "kwargs",
        "raw_messages",
        "raw_response",
        "timestamp",
        "latency_sec",
        "cost",
        "task_id",
        "trial",
        "agent",
        "reward",
        "policy_version",
    }
)


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if "response" not in record:
        return "no response"
    request = _body(record.get("request", record))
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        return "no messages in the request"
    return None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one record into its call, with a choice per answer.

    Raises:
        Fate: the record is damaged, or the call failed.
    """
    record = msgspec.json.decode(raw)
    if not isinstance(record, dict):
        raise Fate("rejected", "bad_record", "the record is no object")
    request, raw_messages = _request(raw, record)
    items = [context.messages.get(message) for message in raw_messages]
    system, items = split_system(items)
    response, choices = _answer(record)
    logged_usage = response.get("usage")
    usage: dict[str, Any] = logged_usage if isinstance(logged_usage, dict) else {}
    model = text(response.get("model")) or text(request.get("model"))
    started, ended, latency = _times(record, response)
    return [
        Call(
            state=conversation(items),
            choices=choices,
            system=system,
            tools=_tools(record, request),
            native_id=text(response.get("id")) or None,
            task_id=text(record.get("task_id")),
            trial=integer(record.get("trial")),
            agent=text(record.get("agent")),
            reward=number(record.get("reward")),
            model=model,
            policy=model,
            policy_version=version_number(record.get("policy_version")),
            temperature=number(request.get("temperature")),
            top_p=number(request.get("top_p")),
            sampling=_sampling(request),
            prompt_ids=_ids(response.get("prompt_token_ids"))
            or _ids(_first_choice(response).get("prompt_token_ids")),
            input_tokens=integer(usage.get("prompt_tokens")),
            output_tokens=integer(usage.get("completion_tokens")),
            cached_tokens=_detail(usage, "prompt_tokens_details", "cached_tokens"),
            reasoning_tokens=_detail(usage, "completion_tokens_details", "reasoning_tokens"),
            latency_s=latency,
            cost_usd=number(record.get("cost")),
            started_at=started,
            ended_at=ended,
            warnings=["reward_not_a_number"]
            if record.get("reward") is not None and number(record["reward"]) is None
            else [],
            metadata=_metadata(record, request, response),
        )
    ]


def _sampling(request: dict[str, Any]) -> dict[str, Any] | None:
    found = {key: value for key in _SAMPLING if (value := request.get(key)) not in (None, {}, [])}
    if found.get("response_format") in ({"type": "text"}, "text"):
        del found["response_format"]  # plain text is no grammar
    return found or None


def _request(raw: bytes, record: dict[str, Any]) -> tuple[dict[str, Any], list[msgspec.Raw]]:
    # the messages are decoded through the cache, so they are cut out of the record undecoded
    layers = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    if isinstance(record.get("request"), dict):
        layers = msgspec.json.decode(layers["request"], type=dict[str, msgspec.Raw])
        request = record["request"]
        if isinstance(request.get("body"), dict):
            layers = msgspec.json.decode(layers["body"], type=dict[str, msgspec.Raw])
            request = request["body"]
    else:
        kwargs = record.get("kwargs")
        request = {**(kwargs if isinstance(kwargs, dict) else {})}
    if isinstance(extra := request.get("extra_body"), dict):
        # where clients put the parameters that the OpenAI library does not know
        request = {key: value for key, value in request.items() if key != "extra_body"} | extra
    try:
        return request, msgspec.json.decode(layers.get("messages", b"null"), type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise Fate(
            "rejected", "no_messages", f"the request has no list of messages: {error}"
        ) from error


def _answer(record: dict[str, Any]) -> tuple[dict[str, Any], list[Choice]]:
    response = _body(record.get("response"))
    status = record["response"].get("status") if isinstance(record.get("response"), dict) else None
    if isinstance(response, dict) and response.get("error"):
        raise Fate("failed_call", "error_response", "the response is an error")
    if isinstance(status, int) and status >= 400:
        raise Fate("failed_call", "error_response", f"the response has status {status}")
    if not isinstance(response, dict):
        raise Fate("rejected", "no_response", "the response is no object; streams are not read")
    entries = response.get("choices")
    if not isinstance(entries, list) or not entries:
        raise Fate("rejected", "no_choices", "the response holds no choice")
    raw_entries = record["raw_response"].get("choices") if _has_raw(record) else None
    choices = []
    for place, entry in enumerate(entries):
        if isinstance(raw_entries, list) and place < len(raw_entries):
            entry = _told_in_text(raw_entries[place], entry)
        choices.append(_choice(entry, place))
    if len({choice.index for choice in choices}) < len(choices):
        for place, choice in enumerate(choices):
            choice.index = place
    return response, choices


def _has_raw(record: dict[str, Any]) -> bool:
    return isinstance(record.get("raw_response"), dict)


def _told_in_text(raw_entry: Any, entry: Any) -> Any:
    """Prefer what the model wrote; where its text lost the call, the parsed answer has it."""
    message = raw_entry.get("message") if isinstance(raw_entry, dict) else None
    lost = not isinstance(message, dict) or any(
        not call.get("function") for call in tool_call_list(message)
    )
    return entry if lost else raw_entry


def _choice(entry: Any, place: int) -> Choice:
    message = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(message, dict):
        raise Fate("rejected", "no_message", "a choice holds no message")
    action = digested(to_message({**message, "role": "assistant"}))
    index = integer(entry.get("index"))
    raw_reason = text(entry.get("finish_reason"))
    ids = _ids(entry.get("token_ids"))
    logprobs, warnings = _logprobs(entry, ids)
    return Choice(
        action=action,
        index=index if index is not None and 0 <= index < 2**31 else place,
        finish_reason=_finish_reason(raw_reason, message),
        finish_reason_raw=raw_reason,
        response_ids=ids,
        logprobs=logprobs,
        warnings=warnings + _odd_calls(action),
        metadata=_rest(entry, _CHOICE_KEYS) | _rest(message, _MESSAGE_KEYS) or None,
    )


def _finish_reason(raw: str | None, message: dict[str, Any]) -> str:
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        return "refusal"
    return _FINISH.get(raw or "", "unknown")


def _odd_calls(action: Digested) -> list[str]:
    calls = action.message.tool_calls or ()
    return ["arguments_invalid"] if any(not call.arguments_valid for call in calls) else []


def _logprobs(entry: dict[str, Any], ids: list[int] | None) -> tuple[list[float] | None, list[str]]:
    logged = entry.get("logprobs")
    content = logged.get("content") if isinstance(logged, dict) else None
    if not isinstance(content, list) or not content:
        return None, []
    values = [
        number(token.get("logprob")) if isinstance(token, dict) else None for token in content
    ]
    finite = [value for value in values if value is not None]
    if len(finite) != len(values):
        return None, ["logprobs_not_finite"]
    if ids is not None and len(ids) != len(values):
        return None, ["logprobs_length_mismatch"]
    return finite, []


def _ids(value: Any) -> list[int] | None:
    if not isinstance(value, list) or not value:
        return None
    fits = all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**31 for i in value)
    return value if fits else None


def _tools(record: dict[str, Any], request: dict[str, Any]) -> str:
    if "raw_messages" in record:
        return "[]"
    tools = None if "request" in record else record.get("tools")
    tools = tools or request.get("tools")
    return msgspec.json.encode(tools).decode() if isinstance(tools, list) else "[]"


def _times(
    record: dict[str, Any], response: dict[str, Any]
) -> tuple[float | None, float | None, float | None]:
    latency = number(record.get("latency_sec"))
    logged = seconds(record.get("timestamp"))
    if logged is None:
        return seconds(response.get("created")), None, latency
    if latency is not None:
        # such loggers write their file when the call ends
        return logged - latency, logged, latency
    return logged, None, None


def _detail(usage: dict[str, Any], group: str, key: str) -> int | None:
    details = usage.get(group)
    return integer(details.get(key)) if isinstance(details, dict) else None


def _first_choice(response: dict[str, Any]) -> dict[str, Any]:
    entries = response.get("choices")
    return entries[0] if isinstance(entries, list) and isinstance(entries[0], dict) else {}


def _metadata(
    record: dict[str, Any], request: dict[str, Any], response: dict[str, Any]
) -> dict[str, Any] | None:
    rest = _rest(record, _RECORD_KEYS)
    if kept := _rest(request, _REQUEST_KEYS):
        rest["request"] = kept
    if kept := _rest(response, _RESPONSE_KEYS):
        rest["response"] = kept
    return rest or None


def _rest(values: dict[str, Any], known: Set[str]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in known and v is not None}


def _body(value: Any) -> Any:
    return (
        value["body"] if isinstance(value, dict) and isinstance(value.get("body"), dict) else value
    )
