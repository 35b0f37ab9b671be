"""Turn Anthropic content blocks into messages: of the Messages API and of logs built on it.

A user turn becomes one tool message per tool_result block, in order, then one user message with
the other blocks. An assistant turn becomes one message: text, reasoning, tool calls. What these do
not hold (signatures, is_error, callers, an unusual order of blocks) is what `leftovers` gives, for
the metadata of a call, so that nothing of a block is lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from clawcli.ingest.chat import to_message
from clawcli.ingest.values import text
from clawcli.messages import Message, content_and_parts

_THINKING = ("thinking", "redacted_thinking")
_HELD = {
    "thinking": ("type", "thinking"),
    "redacted_thinking": ("type",),
    "tool_use": ("type", "id", "name", "input"),
    "tool_result": ("type", "tool_use_id", "content"),
}
"""Keys of a block that have a place in its message."""
_PLACES = {"thinking": 0, "redacted_thinking": 0, "tool_result": 0, "tool_use": 2}
"""Where a block stands in its turn; all others stand between."""
_BETWEEN = 1


class Action(NamedTuple):
    """What a model answered, as a message, and what has no place in one."""

    message: Message
    metadata: dict[str, Any]
    """Empty, or the leftovers under "blocks"."""
    warnings: list[str]
    """reasoning_hidden: the model thought, and the log holds a signature in place of the thought.
    arguments_invalid: a tool call's input is no object."""


def to_messages(role: str, content: Any) -> list[Message]:
    """Turn the content of one turn into messages.

    Args:
        role: user, assistant, or any other.
        content: a string, a list of blocks, one block, or null.

    Returns:
        At least one message. An assistant turn gives one; a user turn gives a tool message per
        tool_result, then a user message if there is more.

    Example:
        >>> [m.role for m in to_messages("user", [{"type": "tool_result"}, {"type": "text"}])]
        ['tool', 'user']
    """
    blocks = _blocks(content)
    if role == "assistant":
        return [to_action(blocks).message]
    results = [block for block in blocks if _type(block) == "tool_result"]
    others = [block for block in blocks if _type(block) != "tool_result"]
    found = [_result(block) for block in results]
    if others or not found:
        found.append(Message(role, *content_and_parts(others)))
    return found


def to_action(content: Any) -> Action:
    """Turn the content of an assistant turn into its message.

    Text, and blocks that a server ran within the call (server_tool_use and its results), are the
    content in their order; thinking texts are joined; inputs become a dump with sorted keys.

    Args:
        content: a string, a list of blocks, one block, or null.

    Example:
        >>> action = to_action([{"type": "thinking", "thinking": "", "signature": "c2ln"}])
        >>> action.message.reasoning, action.warnings, action.metadata
        (None, ['reasoning_hidden'], {'blocks': [{'type': 'thinking', 'signature': 'c2ln'}]})
    """
    blocks = _blocks(content)
    thoughts = [text(b.get("thinking")) or "" for b in blocks if _type(b) in _THINKING]
    message = to_message(
        {
            "role": "assistant",
            "content": [b for b in blocks if _type(b) not in (*_THINKING, "tool_use")],
            "tool_calls": [
                {
                    "id": block.get("id"),
                    "function": {"name": block.get("name"), "arguments": block.get("input")},
                }
                for block in blocks
                if _type(block) == "tool_use"
            ],
            "reasoning": "\n\n".join(thought for thought in thoughts if thought),
        }
    )
    warnings = ["reasoning_hidden"] if "" in thoughts else []
    if any(not call.arguments_valid for call in message.tool_calls or ()):
        warnings.append("arguments_invalid")
    rest = leftovers(blocks)
    return Action(message, {"blocks": rest} if rest else {}, warnings)


def leftovers(content: Any) -> list[dict[str, Any]] | None:
    """List what the messages of a turn do not hold of its blocks.

    Args:
        content: a string, a list of blocks, one block, or null.

    Returns:
        One object per block, in the order of the log, with its type and its other keys; null
        where types alone are left and stand in their usual order.

    Example:
        >>> leftovers([{"type": "tool_result", "content": "no", "is_error": True}])
        [{'type': 'tool_result', 'is_error': True}]
    """
    blocks = _blocks(content)
    between = [b for b in blocks if _PLACES.get(_type(b), _BETWEEN) == _BETWEEN]
    # where they are more than one text, the parts of the message hold all of each
    is_text = content_and_parts(between)[1] is None
    found = []
    for block in blocks:
        held = _HELD.get(_type(block), ("type", "text") if is_text else ())
        kept = block if held and isinstance(block, dict) else {}
        rest = {k: v for k, v in kept.items() if k not in held and v not in (None, False)}
        found.append({"type": _type(block), **rest})
    places = [_PLACES.get(block["type"], _BETWEEN) for block in found]
    has_more = any(len(block) > 1 for block in found)
    return found if has_more or places != sorted(places) else None


def _blocks(content: Any) -> list[Any]:
    if content is None or content == "":
        return []
    return content if isinstance(content, list) else [content]


def _type(block: Any) -> str:
    """Name the type of a block; a bare string is text."""
    kind = block.get("type") if isinstance(block, dict) else "text"
    return kind if isinstance(kind, str) else ""


def _result(block: dict[str, Any]) -> Message:
    content, parts = content_and_parts(block.get("content"))
    return Message("tool", content, parts, tool_call_id=text(block.get("tool_use_id")))
