"""Read messages in the OpenAI chat form, which most formats are near to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from clawcli import messages
from clawcli.ingest.conversations import Digested, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.values import number, text
from clawcli.messages import Message, ToolCall


class _PlainFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _PlainToolCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    function: _PlainFunction
    id: str | None = None
    type: Literal["function"] = "function"


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chat message that has these keys and no others: most have."""

    role: str
    content: str | None = None
    tool_calls: list[_PlainToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def digested(self) -> Digested:
        """Make what to_message makes of the same keys, and digest it."""
        calls = self.tool_calls
        message = Message(
            self.role,
            self.content or "",
            None,
            tuple([_plain_call(call) for call in calls]) if calls else None,
            self.tool_call_id,
            self.name,
        )
        return Digested(message, *messages.digests(message), is_plain=True)


def _plain_call(call: _PlainToolCall) -> ToolCall:
    arguments = call.function.arguments
    return ToolCall(call.id or None, call.function.name, arguments, _is_object(arguments))


plain_message = msgspec.json.Decoder(PlainMessage).decode


def read_chat_message(raw: bytes) -> Sequence[Digested]:
    """Decode one message in the OpenAI chat form.

    Raises:
        Fate: it is not an object with a role.
    """
    try:
        return (plain_message(raw).digested(),)
    except msgspec.ValidationError:
        pass  # it has more to it
    value = msgspec.json.decode(raw)
    if not isinstance(value, dict):
        raise _no_message()
    message = to_message(value)
    found = digested(message, number(value.get("weight")))
    found.extra = leftovers(value, message)
    return (found,)


def to_message(value: dict[str, Any]) -> Message:
    """Read a message in the OpenAI chat form; ids, order and argument strings as logged.

    Raises:
        Fate: it has no role, or tool calls that are none.
    """
    get = value.get
    role = get("role")
    if not isinstance(role, str):
        raise _no_message()
    content, parts = get("content"), None
    if not isinstance(content, str):
        content, parts = messages.content_and_parts(content)
    calls = [_tool_call(call) for call in tool_call_list(value)] if get("tool_calls") else []
    if isinstance(legacy := get("function_call"), dict):
        calls.append(_tool_call({"function": legacy}))
    if content == "" and isinstance(refusal := get("refusal"), str):
        content = refusal
    return Message(
        role,
        content,
        parts,
        tuple(calls) if calls else None,
        text(get("tool_call_id")),
        text(get("name")),
        reasoning_of(value)[0],
    )


def _no_message() -> Fate:
    return Fate("rejected", "bad_message", "a message is not an object with a role")


def reasoning_of(message: dict[str, Any]) -> tuple[str | None, str | None]:
    """Find the reasoning of a chat message under the names that servers give it.

    Returns:
        (text, key of the message that held it); nulls where there is none.

    Example:
        >>> reasoning_of({"reasoning_details": [{"type": "reasoning.text", "text": "so"}]})
        ('so', 'reasoning_details')
    """
    get = message.get
    for key in ("reasoning_content", "reasoning"):
        if found := get(key) and text(get(key)):
            return found, key
    if found := _thoughts(get("reasoning_details"), "text", "summary"):
        return found, "reasoning_details"
    if found := _thoughts(get("thinking_blocks"), "thinking"):
        return found, "thinking_blocks"
    if isinstance(fields := get("provider_specific_fields"), dict):
        found, _ = reasoning_of(fields)
        return found, "provider_specific_fields" if found else None
    return None, None


def _thoughts(blocks: Any, *keys: str) -> str | None:
    """Join the texts of reasoning blocks; encrypted ones have none."""
    if not isinstance(blocks, list):
        return None
    found = [text(block.get(key)) for block in blocks if isinstance(block, dict) for key in keys]
    return "\n\n".join(thought for thought in found if thought) or None


_IN_MESSAGE = frozenset(
    {"role", "content", "tool_calls", "function_call", "tool_call_id", "name", "weight"}
)


_IN_CALL = frozenset({"id", "index", "function", "custom"})


_IN_FUNCTION = frozenset({"name", "arguments", "input"})


def leftovers(value: dict[str, Any], message: Message) -> dict[str, Any] | None:
    """List what a logged chat message holds beside the fields of its Message.

    Example:
        >>> value = {"role": "user", "content": "", "refusal": "no", "audio": {"id": "a"}}
        >>> leftovers(value, to_message(value))
        {'audio': {'id': 'a'}}
    """
    found = {}
    if not value.keys() <= _IN_MESSAGE:
        held = (None, "", [], {}, message.content, message.reasoning)
        found = {k: v for k, v in value.items() if k not in _IN_MESSAGE and v not in held}
    if calls := value.get("tool_calls"):
        rests = [_call_leftovers(call) for call in (calls if isinstance(calls, list) else [calls])]
        if any(rests):
            found["tool_calls"] = rests
    return found or None


def _call_leftovers(call: dict[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in call.items() if k not in _IN_CALL and v is not None}
    if rest.get("type") == "function":
        del rest["type"]
    function = call.get("function") or call.get("custom")
    if isinstance(function, dict) and not function.keys() <= _IN_FUNCTION:
        rest |= {k: v for k, v in function.items() if k not in _IN_FUNCTION and v is not None}
    return rest


def tool_call_list(message: dict[str, Any]) -> list[dict[str, Any]]:
    """List a message's tool calls.

    Raises:
        Fate: there is something that is no list of objects.
    """
    calls = message.get("tool_calls") or []
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Fate("rejected", "bad_message", "tool_calls is no list of objects")
    return calls


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input"))
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
    return ToolCall(
        id=text(call.get("id")) or None,
        name=text(function.get("name")),
        arguments=arguments,
        arguments_valid=_is_object(arguments),
    )


def _is_object(text: str) -> bool:
    try:
        _object(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


_object = msgspec.json.Decoder(dict[str, Any]).decode
