"""Turn items of the OpenAI Responses API into messages.

One response is one action, however many items it has: texts are its content, reasoning its
reasoning, calls for the client's tools its tool calls. What a server ran within the call (mcp_call,
web_search_call, ...) stays in the content, where it stood. In the input of a later request the same
items give the same message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from clawcli.ingest.chat import to_message
from clawcli.ingest.conversations import Digested, digested
from clawcli.ingest.values import text
from clawcli.messages import Message, content_and_parts

_CLIENT_CALLS = {
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Calls of built-in tools that the client runs -> what they ask for."""
_HELD = {
    "message": {"role", "content"},
    "reasoning": {"summary", "content"},
    "function_call": {"call_id", "name", "arguments"},
    "custom_tool_call": {"call_id", "name", "input"},
    **{kind: {"call_id", key} for kind, key in _CLIENT_CALLS.items()},
}
"""Keys of an item that have a place in its message; all of what stays in the content."""
_TEXTS = {"output_text": "text", "input_text": "text", "text": "text", "refusal": "refusal"}


class Action(NamedTuple):
    """What a model answered, as a message, and what has no place in one."""

    message: Message
    metadata: dict[str, Any]
    """Empty, or the leftovers of each item under "items"."""
    warnings: list[str]
    """reasoning_hidden: the model thought, and the log does not hold what. reasoning_summary: it
    holds a summary. arguments_invalid: arguments are no JSON object."""
    is_refusal: bool


def to_messages(value: Any) -> list[Digested]:
    """Turn the input of a request into messages.

    Args:
        value: a string, a list of items, or null.

    Example:
        >>> [m.message.role for m in to_messages([{"type": "function_call"}, {"role": "user"}])]
        ['assistant', 'user']
    """
    if isinstance(value, str):
        return [digested(Message("user", value))]
    found: list[Digested] = []
    said: list[dict[str, Any]] = []
    for item in value if isinstance(value, list) else ():
        item = item if isinstance(item, dict) else {"role": "user", "content": item}
        if _is_said(item):
            said.append(item)
            continue
        if said:
            found.append(_repeated(said))
            said = []
        found.append(_heard(item))
    return [*found, _repeated(said)] if said else found


def _repeated(said: list[dict[str, Any]]) -> Digested:
    """Turn the output of an earlier response into the message that it was."""
    action = to_action(said)
    found = digested(action.message)
    found.extra = action.metadata or None
    return found


def to_action(items: Iterable[dict[str, Any]]) -> Action:
    """Turn the output of one response into its message."""
    items = [item for item in items if isinstance(item, dict)]
    # an output within a response answers a call that the server ran
    answered = {_call_id(item) for item in items if _type(item).endswith("_output")}
    parts: list[Any] = []
    calls, thoughts = [], []
    summaries = hidden = 0
    is_refusal = False
    for item in items:
        kind = _type(item)
        if kind == "message":
            parts += _parts(item.get("content"))
            is_refusal |= any(_type(p) == "refusal" for p in _list(item.get("content")))
        elif kind == "reasoning":
            thought = _joined(item.get("content"))
            summary = "" if thought else _joined(item.get("summary"))
            summaries += bool(summary)
            hidden += not thought and not summary
            thoughts.append(thought or summary)
        elif kind in _HELD and _call_id(item) not in answered:
            calls.append(_call(kind, item))
        else:
            parts.append(item)
    message = to_message(
        {
            "role": "assistant",
            "content": parts,
            "tool_calls": calls,
            "reasoning": "\n\n".join(thought for thought in thoughts if thought),
        }
    )
    warnings = ["reasoning_hidden"] * bool(hidden) + ["reasoning_summary"] * bool(summaries)
    functions = zip(calls, message.tool_calls or (), strict=True)
    if any("function" in logged and not call.arguments_valid for logged, call in functions):
        warnings.append("arguments_invalid")
    left = [_leftover(item, answered) for item in items]
    metadata = {"items": left} if any(len(item) > 1 for item in left) else {}
    return Action(message, metadata, warnings, is_refusal)


def _is_said(item: dict[str, Any]) -> bool:
    """Tell whether an item of an input is one that a model gave out."""
    kind = _type(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind == "reasoning" or kind.endswith("_call") or kind in _SERVER_ITEMS


_SERVER_ITEMS = frozenset({"mcp_list_tools", "mcp_approval_request"})


def _heard(item: dict[str, Any]) -> Digested:
    """Turn an item that no model said into its message."""
    kind = _type(item)
    if kind == "message":
        content, parts = content_and_parts(_parts(item.get("content")))
        role, name = text(item.get("role")) or "user", text(item.get("name"))
        found = digested(Message(role, content, parts, name=name))
        left = _leftover(item, set())
    elif kind.endswith("_output"):
        content, parts = content_and_parts(item.get("output"))
        call_id = text(item.get("call_id")) or text(item.get("id"))
        found = digested(Message("tool", content, parts, tool_call_id=call_id))
        left = _leftover(item, set())
    elif kind == "mcp_approval_response":
        call_id = text(item.get("approval_request_id"))
        return digested(Message("tool", parts=_json([item]), tool_call_id=call_id))
    else:
        # opaque to everybody but the server, such as compaction
        return digested(Message("assistant", parts=_json([item])))
    if len(left) > 1 or kind not in ("message", "function_call_output"):
        found.extra = {"items": [left]}
    return found


def _call(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {"id": item.get("call_id"), "function": function}
    if kind == "custom_tool_call":
        custom = {"name": item.get("name"), "input": item.get("input")}
        return {"id": item.get("call_id"), "custom": custom}
    function = {"name": kind.removesuffix("_call"), "arguments": item.get(_CLIENT_CALLS[kind])}
    return {"id": item.get("call_id") or item.get("id"), "function": function}


def _call_id(item: dict[str, Any]) -> str | None:
    return text(item.get("call_id"))


def _parts(content: Any) -> list[Any]:
    """List the parts of a message; texts without what is no text, which the leftovers keep."""
    parts = []
    for part in _list(content):
        key = _TEXTS.get(_type(part)) if isinstance(part, dict) else None
        is_text = key is not None and isinstance(part.get(key), str)
        parts.append({"type": "text", "text": part[key]} if is_text else part)
    return parts


def _joined(parts: Any) -> str:
    texts = [text(part.get("text")) for part in _list(parts) if isinstance(part, dict)]
    return "\n\n".join(part for part in texts if part)


def _leftover(item: dict[str, Any], answered: set[Any]) -> dict[str, Any]:
    """List what the message of a response does not hold of one of its items."""
    kind = _type(item)
    held = {"call_id", "output"} if kind.endswith("_output") else _HELD.get(kind)
    if held is None or (kind.endswith(("_call", "_output")) and _call_id(item) in answered):
        return {"type": kind}
    kept = {k: v for k, v in item.items() if k not in held and v not in (None, [])}
    if kept.get("status") == "completed":
        del kept["status"]
    if kind == "message":
        parts = [_part_leftover(part) for part in _list(item.get("content"))]
        kept |= {"content": parts} if any(parts) else {}
    if kind == "reasoning" and item.get("content") and item.get("summary"):
        kept["summary"] = item["summary"]
    return {"type": kind, **kept}


def _part_leftover(part: Any) -> dict[str, Any]:
    key = _TEXTS.get(_type(part)) if isinstance(part, dict) else None
    if key is None:
        return {}
    return {k: v for k, v in part.items() if k not in ("type", key) and v not in (None, [])}


def _type(item: Any) -> str:
    """Name the type of an item or part; the short form of a message has none."""
    kind = item.get("type") if isinstance(item, dict) else ""
    return kind if isinstance(kind, str) else "message"


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
