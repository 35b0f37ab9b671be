"""Bring the response items of Codex into the form that the Responses API has.

Items that the client runs or renames are written as the calls and outputs that they are, so that
items.py reads them all. What the model saw is kept as it was logged: JSON within a string, as in
the output of its shell, stays a string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clawcli.ingest.formats import items
from clawcli.ingest.values import text

_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_RENAMED = {"tool_search_call": "tool_search", "tool_call": None}
"""Types of calls that the API does not have, or not as calls to the client -> name of the tool."""
_SERVER_RUN = frozenset({"web_search_call", "image_generation_call"})
SILENT = frozenset({"ghost_snapshot", "other"})
"""Types of items that are never sent."""


def is_written(item: dict[str, Any]) -> bool:
    """Tell whether the model wrote an item."""
    kind = text(item.get("type"))
    is_call = kind in _CALLS or kind in _RENAMED or kind in _SERVER_RUN
    return is_call or kind == "reasoning" or (kind == "message" and item.get("role") == "assistant")


def is_output(item: dict[str, Any]) -> bool:
    """Tell whether an item is what a tool gave back."""
    kind = text(item.get("type")) or ""
    return kind.endswith("_output") or kind == "tool_result"


def to_action(written: Iterable[dict[str, Any]], raw_thoughts: Iterable[str] = ()) -> items.Action:
    """Join the items of one response into its message.

    Args:
        written: the items, in order.
        raw_thoughts: reasoning that was logged beside the items; used where they hold none.
    """
    logged = [standard(item) for item in written]
    thoughts = [{"type": "reasoning_text", "text": thought} for thought in raw_thoughts]
    reasoning = [item for item in logged if item.get("type") == "reasoning"]
    if thoughts and reasoning and not any(item.get("content") for item in reasoning):
        reasoning[0]["content"] = thoughts
    return items.to_action(logged)


def standard(item: dict[str, Any]) -> dict[str, Any]:
    """Write an item as the API would; the result is a new object.

    Example:
        >>> standard({"type": "tool_result", "name": "ls", "result": "a"})
        {'type': 'function_call_output', 'name': 'ls', 'output': 'a'}
    """
    kind, item = text(item.get("type")), dict(item)
    if kind in _RENAMED:
        function = item.pop("function", None)
        name = function.get("name") if isinstance(function, dict) else item.get("name")
        return {**item, "type": "function_call", "name": name or _RENAMED[kind]}
    if kind == "agent_message":
        return {**item, "type": "message", "role": "user", "name": item.get("author")}
    if is_output(item):
        output = item.pop("output", item.pop("result", item.pop("tools", None)))
        if isinstance(output, dict) and isinstance(output.get("content"), str | list):
            output = output["content"]
        return {**item, "type": "function_call_output", "output": output}
    return item
