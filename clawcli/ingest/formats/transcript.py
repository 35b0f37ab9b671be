"""Cut a finished conversation into calls: one at each assistant message.

Used by every format that logs an attempt's messages in place of its requests. The state of a call
is what stood before its message; what stands after the last one is the final observation. Of a
message only its text, calls and reasoning go into the conversation; what else was logged of it
becomes metadata of the call that it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

import msgspec

from clawcli.ingest.calls import Call, Choice, Context
from clawcli.ingest.chat import to_message
from clawcli.ingest.conversations import Digested, conversation, digested, split_system
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import documents
from clawcli.ingest.values import integer, number, text

_Attempt = TypeVar("_Attempt")
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
_WITHOUT_CALLS = "attempts_without_calls"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What a log says about one attempt as a whole; null = not logged."""

    task_id: str | None = None
    trial: int | None = None
    reward: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    """What has no column; it goes to the last call."""
    warnings: list[str] = field(default_factory=list)
    """Of the attempt; they go to the last call."""

    def fate(self, reason: str, detail: str) -> Fate:
        """Say why no call came of this attempt; its labels stay known."""
        known = {"task_id": self.task_id, "trial": self.trial, "reward": self.reward}
        return Fate("rejected", reason, detail, **known)

    def reward_from(self, value: Any) -> None:
        """Take a logged reward; what is there and no number stays null, with a warning."""
        self.reward = number(value)
        if value is not None and self.reward is None:
            self.warnings.append("reward_not_a_number")


def labels(record: dict[str, Any], *own_keys: str) -> Attempt:
    """Read task_id, trial and reward of a record; all but these and own_keys is metadata."""
    known = {"task_id", "trial", "reward", *own_keys}
    attempt = Attempt(
        task_id=text(record.get("task_id")),
        trial=integer(record.get("trial")),
        metadata={key: value for key, value in record.items() if key not in known},
    )
    attempt.reward_from(record.get("reward"))
    return attempt


def open_record(raw: bytes, key: str) -> tuple[dict[str, Any], bytes]:
    """Decode a record, except what stands under one key; that comes back as raw JSON."""
    record = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    plain = {name: msgspec.json.decode(value) for name, value in record.items() if name != key}
    return plain, bytes(record.get(key, b"null"))


def read_messages(raw: bytes, context: Context, attempt: Attempt) -> list[Digested]:
    """Decode messages in the OpenAI chat form, also where JSON was logged as a string.

    Raises:
        Fate: it is no list of messages.
    """
    try:
        if raw.startswith(b'"'):
            raw = msgspec.json.decode(raw, type=str).encode()
        raws = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise attempt.fate("no_messages", f"no list of messages: {error}") from error
    return [context.messages.get(message) for message in raws]


def listed(value: Any) -> list[Any] | None:
    """Return a list as it is, or from the JSON text that a data set keeps it in; else null.

    Example:
        >>> listed('[{"role": "user"}]'), listed("hello")
        ([{'role': 'user'}], None)
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    return value if isinstance(value, list) else None


def is_chat(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Tell whether a value is a list of objects with a role."""
    return isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) for item in value
    )


def role_of(name: Any) -> str:
    """Give a speaker the role that chat messages use.

    Example:
        >>> role_of("human"), role_of("gpt"), role_of("system")
        ('user', 'assistant', 'system')
    """
    speaker = text(name) or ""
    return _ROLES.get(speaker, speaker)


def chat_message(value: dict[str, Any]) -> dict[str, Any]:
    """Bring a message into the OpenAI chat form where its tool calls are flat objects, or JSON.

    Example:
        >>> chat_message({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]})
        {'role': 'assistant', 'tool_calls': [{'function': {'name': 'f', 'arguments': '{}'}}]}
    """
    if not isinstance(calls := value.get("tool_calls"), list):
        return value
    return {**value, "tool_calls": [_nested(call) for call in calls]}


def _nested(call: Any) -> Any:
    if isinstance(call, str):
        try:
            call = msgspec.json.decode(call)
        except (msgspec.DecodeError, RecursionError):
            return call
    if not isinstance(call, dict) or "function" in call or "name" not in call:
        return call
    rest = {key: value for key, value in call.items() if key not in ("name", "arguments")}
    return {**rest, "function": {"name": call["name"], "arguments": call.get("arguments")}}


def tools_json(tools: Any) -> tuple[str | None, list[str]]:
    """Write tool schemas as they are stored.

    Rows that went through Arrow have every key that any schema has, with null where it was
    missing. A parameter whose schema is null is such padding, as no schema is null; where there is
    one, all null keys of the list are left out.

    Args:
        tools: a list of schemas, or the JSON text of one; anything else counts as not logged.

    Returns:
        (JSON text or null, warnings: null_padding_dropped).

    Example:
        >>> tools_json([{"name": "f", "parameters": {"properties": {"a": {}, "b": None}}}])
        ('[{"name":"f","parameters":{"properties":{"a":{}}}}]', ['null_padding_dropped'])
    """
    if (found := listed(tools)) is None:
        return None, []
    padded = _is_padded(found)
    found = _without_nulls(found) if padded else found
    return msgspec.json.encode(found).decode(), ["null_padding_dropped"] if padded else []


def as_functions(tools: Any) -> Any:
    """Bring schemas that are flat {name, description, parameters} into the form that APIs take.

    Example:
        >>> as_functions([{"name": "f", "parameters": {}}])
        [{'type': 'function', 'function': {'name': 'f', 'parameters': {}}}]
    """
    if (found := listed(tools)) is None:
        return None
    return [
        {"type": "function", "function": tool}
        if isinstance(tool, dict) and "name" in tool
        else tool
        for tool in found
    ]


def _is_padded(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_padded(item) for item in value)
    if not isinstance(value, dict):
        return False
    properties = value.get("properties")
    if isinstance(properties, dict) and None in properties.values():
        return True
    return any(_is_padded(item) for item in value.values())


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def to_item(value: dict[str, Any], weight: float | None = None) -> Digested:
    """Make a decoded chat message part of a conversation; weight is that of its loss."""
    return digested(to_message(value), weight)


def cut(
    items: Sequence[Digested], attempt: Attempt, *, given: int = 0, **shared: Any
) -> list[Call]:
    """Make one call per assistant message of one attempt.

    Args:
        items: the messages of the attempt, a leading system message included.
        attempt: what is known of it as a whole.
        given: number of items at the start that no call made, whoever speaks in them.
        **shared: fields of Call that all calls of the attempt have.

    Raises:
        Fate: there is no assistant message.
    """
    system, rest = split_system(list(items))
    given -= len(items) - len(rest)
    places = [i for i, item in enumerate(rest) if i >= given and item.message.role == "assistant"]
    if not places:
        raise attempt.fate("empty_trajectory", "the attempt holds no call of a model")
    calls: list[Call] = []
    state, begin = conversation([]), 0
    for ordinal, place in enumerate(places):
        action, new = rest[place], rest[begin:place]
        state, begin = conversation(new, state), place
        extras = [item.extra for item in new[1 if calls else 0 :]]
        calls.append(
            Call(
                state=state,
                choices=[choice(action)],
                system=system,
                ordinal=ordinal,
                is_cut=True,
                follows=calls[-1] if calls else None,
                loss_weight=1.0 if action.loss_weight is None else action.loss_weight,
                task_id=attempt.task_id,
                trial=attempt.trial,
                trajectory_reward=attempt.reward,
                is_last=place == places[-1],
                metadata={"observation": extras} if any(extras) else None,
                **shared,
            )
        )
    last = calls[-1]
    last.final_observation = [item.message for item in rest[places[-1] + 1 :]]
    last.metadata = {**(last.metadata or {}), **attempt.metadata} or None
    last.warnings.extend(attempt.warnings)
    return calls


def choice(action: Digested, **logged: Any) -> Choice:
    """Make an answer of one message; what the message held beside its fields is its metadata."""
    found = Choice(action, metadata=action.extra, **logged)
    found.warnings = documents.odd_arguments(found)
    return found


def reconstructed(calls: list[Call]) -> None:
    """Say that states were cut from a transcript, or are partial: tools ran without a schema."""
    for call in calls:
        call.state_kind = "reconstructed"
    documents.mark_missing_tools(calls)


def each(attempts: Iterable[_Attempt], read: Callable[[_Attempt], list[Call]]) -> list[Call]:
    """Read the attempts of one document; those without a call are named at its last call.

    Raises:
        Fate: none holds a call.
    """
    calls: list[Call] = []
    empty: list[Fate] = []
    for attempt in attempts:
        try:
            calls.extend(read(attempt))
        except Fate as fate:
            empty.append(fate)
    if not calls:
        raise (
            empty[0]
            if empty
            else Fate("rejected", "empty_trajectory", "the document holds no attempt")
        )
    for ordinal, call in enumerate(calls):
        call.ordinal = ordinal
    if empty:
        last = calls[-1]
        named = [{"reason": fate.reason, "detail": fate.detail, **fate.known} for fate in empty]
        last.metadata = {**(last.metadata or {}), _WITHOUT_CALLS: named}
        last.warnings.append(_WITHOUT_CALLS)
    return calls
