"""What a chat completion says about a call, whatever log holds it.

A response object (whole, or joined from its stream) becomes a Call with one Choice per answer; the
caller adds what the request says. Token ids and log-probs are taken as logged, at either level.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import msgspec

from clawcli import schema
from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.chat import leftovers, reasoning_of, to_message
from clawcli.ingest.conversations import EMPTY, Node, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import pairs, streams
from clawcli.ingest.formats.layers import Memo
from clawcli.ingest.values import integer, number, seconds, text

_FINISH = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "refusal",
    "error": "error",
    "abort": "aborted",
    "aborted": "aborted",
    "cancelled": "aborted",
}
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias")
_SAMPLING = ("top_k", "min_p", *_PENALTIES, "stop", "logprob_kind", *schema.GRAMMAR_KEYS)
_IS_SAMPLING = frozenset(_SAMPLING)
PARAMETERS = frozenset({"model", "temperature", "top_p", "extra_body", *_SAMPLING})
"""Parameters of a request that have a column."""
_RESPONSE_KEYS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "prompt_token_ids", "token_ids"}
)
_CHOICE_KEYS = frozenset(
    {"index", "message", "finish_reason", "logprobs", "token_ids", "prompt_token_ids"}
)
_COUNTED = frozenset(
    {"prompt_tokens", "completion_tokens", "total_tokens", "cost"}
    | {"cached_tokens", "reasoning_tokens", "prompt_cache_hit_tokens"}
)
"""Counts of a usage that have a column."""


def finish_reason(raw: str | None) -> str:
    """Translate a logged finish or stop reason of any API; unknown where it is none of them.

    pause_turn means that the server's own limit ended the call, as length does.
    """
    return _FINISH.get(raw.lower(), "unknown") if raw else "unknown"


def read_response(value: Any) -> tuple[dict[str, Any], list[str]]:
    """Find the response object in what was logged as the response, and join it from a stream.

    Returns:
        (response, warnings): stream_cut, stream_damaged, stream_error.

    Raises:
        Fate: the call failed, or there is no response.
    """
    body, status = pairs.body_of(value)
    if status is not None and status >= 400:
        raise pairs.failed(f"has status {status}")
    warnings: list[str] = []
    if isinstance(body, dict) and body.get("object") == "chat.completion.chunk":
        body = [body]
    if not isinstance(body, dict):
        stream = streams.parse(body)
        if stream is None:
            raise Fate("rejected", "no_response", "the response is neither an object nor a stream")
        body = streams.chat_response(stream.events)
        warnings = stream_warnings(body)
        if stream.is_damaged:
            warnings.append("stream_damaged")
    if body.get("error") and not body.get("choices"):
        raise pairs.failed("is an error")
    return body, warnings


def stream_warnings(response: dict[str, Any]) -> list[str]:
    """Tell what is wrong with a joined stream, and leave out choices that never began.

    Raises:
        Fate: the stream ended before anything was said.
    """
    choices = [c for c in response["choices"] if c.get("finish_reason") or _has_begun(c)]
    if response["choices"] and not choices:
        raise Fate("failed_call", "empty_stream", "the stream ended before the model said anything")
    response["choices"] = choices
    warnings = []
    if response.get("error") and choices:
        warnings.append("stream_error")
        for choice in choices:
            choice.setdefault("finish_reason", "error")
    if any(not choice.get("finish_reason") for choice in choices):
        warnings.append("stream_cut")
    return warnings


def _has_begun(choice: dict[str, Any]) -> bool:
    message = choice.get("message")
    return isinstance(message, dict) and any(v for k, v in message.items() if k != "role")


def call_of(response: dict[str, Any], state: Node = EMPTY, raw_entries: Any = None) -> Call:
    """Make the call that a response object answers.

    Args:
        response: a chat.completion.
        state: what the model saw.
        raw_entries: choices as the model wrote them, where response holds choices that were
            parsed from their text.

    Raises:
        Fate: there is no choice, or one of them is damaged.
    """
    entries = response.get("choices")
    if not isinstance(entries, list) or not entries:
        raise Fate("rejected", "no_choices", "the response holds no choice")
    call = Call(state, [])
    kept = rest(response, _RESPONSE_KEYS)
    if usage := set_usage(call, response.get("usage")):
        kept["usage"] = usage
    for place, entry in enumerate(entries):
        if isinstance(raw_entries, list) and place < len(raw_entries):
            entry = _told_in_text(raw_entries[place], entry)
        call.choices.append(_choice(entry, place, response, call))
    if len(entries) > 1 and len({choice.index for choice in call.choices}) < len(entries):
        for place, choice in enumerate(call.choices):
            choice.index = place
    call.native_id = text(response.get("id")) or None
    call.model = call.policy = text(response.get("model")) or None
    if (logged := response.get("prompt_token_ids")) is None:
        logged = _level(entries[0], "prompt_token_ids")
    if logged is not None:
        call.prompt_ids = ids(logged)
    # 0 is what proxies write that do not know
    call.started_at = seconds(response.get("created") or None)
    if kept:
        call.metadata = {"response": kept}
    return call


def _told_in_text(raw_entry: Any, entry: Any) -> Any:
    """Prefer what the model wrote; where its text lost the call, the parsed answer has it."""
    message = raw_entry.get("message") if isinstance(raw_entry, dict) else None
    if not isinstance(message, dict):
        return entry
    calls = message.get("tool_calls") or []
    calls = calls if isinstance(calls, list) else [calls]
    return raw_entry if all(isinstance(c, dict) and c.get("function") for c in calls) else entry


def _choice(entry: Any, place: int, response: dict[str, Any], call: Call) -> Choice:
    message = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(message, dict):
        raise Fate("rejected", "no_message", "a choice holds no message")
    if message.get("role") != "assistant":
        message = {**message, "role": "assistant"}
    action = digested(to_message(message))
    choice = Choice(action, place)
    index = entry.get("index")
    if index != place and (index := integer(index)) is not None and 0 <= index < 2**31:
        choice.index = index
    raw = choice.finish_reason_raw = text(entry.get("finish_reason"))
    choice.finish_reason = "refusal" if message.get("refusal") else finish_reason(raw)
    choice.response_ids = _response_ids(entry, place, response)
    metadata = rest(entry, _CHOICE_KEYS)
    if entry.get("logprobs"):
        metadata |= set_logprobs(choice, entry["logprobs"])
    _check(choice, message, call, is_alone=len(response["choices"]) == 1)
    if found := leftovers(message, action.message):
        metadata |= found
    if action.message.reasoning is not None:
        metadata["reasoning_field"] = reasoning_of(message)[1]
    choice.metadata = metadata or None
    return choice


def _check(choice: Choice, message: dict[str, Any], call: Call, *, is_alone: bool) -> None:
    """Note what is odd about an answer."""
    action = choice.action.message
    if action.tool_calls and any(not c.arguments_valid for c in action.tool_calls):
        choice.warnings.append("arguments_invalid")
    if not is_alone:
        return
    if call.reasoning_tokens and action.reasoning is None and "<think>" not in str(action.content):
        # the log says that the model thought, and not what: a row would teach it not to think
        choice.warnings.append("reasoning_hidden")
    if choice.response_ids is not None and call.output_tokens not in (
        None,
        len(choice.response_ids),
    ):
        choice.warnings.append("token_ids_length_mismatch")


def _response_ids(entry: dict[str, Any], place: int, response: dict[str, Any]) -> list[int] | None:
    """Find the ids of an answer: on the choice, or on the response as one list or one each."""
    if (logged := _level(entry, "token_ids")) is not None:
        return ids(logged)
    if (logged := response.get("token_ids")) is None:
        return None
    if isinstance(logged, list) and place < len(logged) and isinstance(logged[place], list):
        return ids(logged[place])
    return ids(logged) if len(response["choices"]) == 1 else None


def _level(entry: Any, key: str) -> Any:
    """Look a key up on a choice and in the fields that proxies move unknown keys to."""
    if not isinstance(entry, dict):
        return None
    if (found := entry.get(key)) is not None:
        return found
    fields = entry.get("provider_specific_fields")
    return fields.get(key) if isinstance(fields, dict) else None


def set_logprobs(choice: Choice, logged: Any) -> dict[str, Any]:
    """Take the log-probs of an answer.

    Returns:
        Metadata: texts of the tokens, the likeliest others, and what else stood beside them.
    """
    kept = rest(logged, frozenset({"content", "refusal"})) if isinstance(logged, dict) else {}
    content = (logged.get("content") or logged.get("refusal")) if isinstance(logged, dict) else None
    if isinstance(content, list) and content:
        tokens = [token if isinstance(token, dict) else {} for token in content]
        values = [number(token.get("logprob")) for token in tokens]
        finite = [value for value in values if value is not None]
        if len(finite) != len(values):
            choice.warnings.append("logprobs_not_finite")
        elif choice.response_ids is not None and len(choice.response_ids) != len(values):
            choice.warnings.append("logprobs_length_mismatch")
        else:
            choice.logprobs = finite
        kept |= _tokens(tokens)
    return {"logprobs": kept} if kept else {}


def _tokens(tokens: list[dict[str, Any]]) -> dict[str, Any]:
    """Keep what an engine says about its tokens, without what says nothing new."""
    texts = [token.get("token") for token in tokens]
    kept: dict[str, Any] = {"tokens": texts} if any(texts) else {}
    if any(token.get("top_logprobs") for token in tokens):
        kept["top_logprobs"] = [token.get("top_logprobs") for token in tokens]
    odd = {
        str(place): token["bytes"]
        for place, token in enumerate(tokens)
        if token.get("bytes") and _bytes_differ(token.get("token"), token["bytes"])
    }
    return kept | ({"bytes": odd} if odd else {})


def _bytes_differ(token: Any, logged: Any) -> bool:
    """Tell whether a token's logged bytes are others than those of its text."""
    return not isinstance(token, str) or list(token.encode()) != logged


def set_usage(call: Call, usage: Any) -> dict[str, Any]:
    """Take token counts and cost from the usage of a chat completion.

    Some servers leave reasoning out of completion_tokens and count it in total_tokens alone.

    Returns:
        Counts that have no column and are not 0.
    """
    if not isinstance(usage, dict):
        return {}
    call.input_tokens = prompt = integer(usage.get("prompt_tokens"))
    call.output_tokens = output = integer(usage.get("completion_tokens"))
    if (cost := usage.get("cost")) is not None:
        call.cost_usd = number(cost)
    total = integer(usage.get("total_tokens"))
    call.reasoning_tokens = _detail(usage, "completion_tokens_details", "reasoning_tokens")
    if prompt is not None and output is not None and total is not None and total > prompt + output:
        call.output_tokens = total - prompt
    call.cached_tokens = _detail(usage, "prompt_tokens_details", "cached_tokens")
    if call.cached_tokens is None:
        call.cached_tokens = integer(usage.get("prompt_cache_hit_tokens"))
    kept = {key: value for key, value in usage.items() if value and key not in _COUNTED}
    for key, value in list(kept.items()):
        if isinstance(value, dict):
            kept[key] = {k: v for k, v in value.items() if v and k not in _COUNTED}
            if not kept[key]:
                del kept[key]
    return kept


def _detail(usage: dict[str, Any], group: str, key: str) -> int | None:
    details = usage.get(group)
    return integer(details.get(key)) if isinstance(details, dict) else integer(usage.get(key))


def set_parameters(call: Call, parameters: dict[str, Any]) -> None:
    """Take model and sampling from the parameters of a request; what is left is metadata.

    Parameters in extra_body count: clients put there what the OpenAI library does not know.
    """
    if isinstance(extra := parameters.get("extra_body"), dict):
        parameters = {**parameters, **extra}
    get = parameters.get
    if call.model is None:
        call.model = call.policy = text(get("model"))
    call.temperature = number(get("temperature"))
    call.top_p = number(get("top_p"))
    if not _IS_SAMPLING.isdisjoint(parameters):
        found = {key: get(key) for key in _SAMPLING if get(key) not in (None, {}, [])}
        if found.get("response_format") in ({"type": "text"}, "text"):
            del found["response_format"]  # plain text is no grammar
        call.sampling = found or None
    if "functions" in parameters and call.tools == "[]" and isinstance(get("functions"), list):
        # what tools were called before 2023-11
        parameters = parameters.copy()
        tools = [{"type": "function", "function": each} for each in parameters.pop("functions")]
        call.tools = msgspec.json.encode(tools).decode()
    if kept := rest(parameters, PARAMETERS):
        call.metadata = {**(call.metadata or {}), "request": kept}


def _tools_json(raw: bytes) -> tuple[str, Any]:
    tools = msgspec.json.decode(raw)
    if isinstance(tools, list):
        return msgspec.json.encode(tools).decode(), None
    return "[]", tools


_tools = Memo(_tools_json)


def set_tools(call: Call, raw: bytes | msgspec.Raw | None) -> None:
    """Take the tool schemas of a request whose messages were logged; none means none were sent.

    What is no list is kept in the metadata, with the warning tools_unreadable.
    """
    call.tools, odd = ("[]", None) if raw is None else _tools(raw)
    if odd is not None:
        call.warnings.append("tools_unreadable")
        call.metadata = {**(call.metadata or {}), "tools_unreadable": odd}


def ids(value: Any) -> list[int] | None:
    """Return token ids; null where it is no list of them."""
    if not isinstance(value, list) or not value:
        return None
    fits = all(type(i) is int and 0 <= i < 2**31 for i in value)
    return value if fits else None


def rest(values: Mapping[str, Any], known: Set[str]) -> dict[str, Any]:
    """Collect what stands under other keys; nulls left out."""
    if values.keys() <= known:
        return {}
    return {k: v for k, v in values.items() if k not in known and v is not None}
