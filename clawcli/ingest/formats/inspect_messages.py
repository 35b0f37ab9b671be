"""The messages of an Inspect sample, as conversations.

Strings that a log holds once stand as attachment://hash where they were used, and whole messages
as ranges of a pool. A tool message with an error is shown to a model as the text of that error
(some providers put a word before it, which is not logged). Reasoning that is redacted is a cipher,
no text that the model wrote: it stays beside the message.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from clawcli.ingest.conversations import EMPTY, Digested, Node
from clawcli.ingest.formats import transcript
from clawcli.ingest.values import text

_ATTACHMENT = re.compile(r"attachment://([0-9a-f]{32})")
_HELD = frozenset(
    {
        "id",
        "role",
        "content",
        "source",
        "reasoning",
        "tool_calls",
        "tool_call_id",
        "function",
        "error",
        "model",
    }
)


class Messages:
    """Reads the messages of a sample, each distinct one once."""

    def __init__(self, sample: dict[str, Any]) -> None:
        """Open a sample; nothing is decoded yet."""
        attachments, events_data = sample.get("attachments"), sample.get("events_data")
        self._attachments = attachments if isinstance(attachments, dict) else {}
        pool = sample.get("message_pool")
        if not pool and isinstance(events_data, dict):
            pool = events_data.get("messages")
        self._pool: list[Any] = pool if isinstance(pool, list) else []
        self._known: dict[bytes, Digested] = {}
        self._nodes: dict[tuple[int, int], Node] = {}

    def resolved(self, value: Any) -> Any:
        """Put the strings that the sample keeps apart back where they were used."""
        if isinstance(value, str):
            if "attachment://" not in value:
                return value
            return _ATTACHMENT.sub(self._attachment, value)
        if isinstance(value, dict):
            return {key: self.resolved(item) for key, item in value.items()}
        return [self.resolved(item) for item in value] if isinstance(value, list) else value

    def items(self, logged: Any) -> list[Digested]:
        """Read a list of messages."""
        values = logged if isinstance(logged, list) else ()
        return [self.item(value) for value in values if isinstance(value, dict)]

    def item(self, value: dict[str, Any]) -> Digested:
        """Read one message."""
        key = msgspec.json.encode(value)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = _item(self.resolved(value))
        return known

    def given(self, event: dict[str, Any]) -> tuple[list[Digested], list[str]]:
        """Read what a call was given, from its event or from the pool.

        Returns:
            (messages, warnings): messages_missing where the pool does not hold all of them,
            attachment_missing where a text is not in the log.
        """
        refs, items, warnings = event.get("input_refs"), event.get("input"), []
        if not items and isinstance(refs, list):
            items = [value for begin, end in refs for value in self._pool[begin:end]]
            if len(items) < sum(end - begin for begin, end in refs):
                warnings.append("messages_missing")
        if not self._attachments.keys() >= set(_ATTACHMENT.findall(str(items))):
            warnings.append("attachment_missing")
        return self.items(items), warnings

    def state(self, items: list[Digested]) -> Node:
        """Make a conversation; those that begin alike share their nodes."""
        node = EMPTY
        for item in items:
            key = (id(node), id(item))
            if (known := self._nodes.get(key)) is None:
                known = self._nodes[key] = node.then(item)
            node = known
        return node

    def _attachment(self, found: re.Match[str]) -> str:
        kept = self._attachments.get(found[1])
        return kept if isinstance(kept, str) else found[0]


def is_redacted(message: dict[str, Any]) -> bool:
    """Tell whether the model thought, and the log holds a cipher in place of the thought."""
    parts = message.get("content")
    return isinstance(parts, list) and any(
        _is_thought(part) and part.get("redacted") for part in parts
    )


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "reasoning"


def _item(value: dict[str, Any]) -> Digested:
    """Read a message as Inspect writes it."""
    role, content = text(value.get("role")) or "", value.get("content")
    message: dict[str, Any] = {"role": role, "reasoning": value.get("reasoning")}
    extra = {key: item for key, item in value.items() if key not in _HELD and item}
    if isinstance(content, list):
        thoughts = [part for part in content if _is_thought(part)]
        content = [_part(part) for part in content if not _is_thought(part)]
        told = [text(part.get("reasoning")) or "" for part in thoughts if not part.get("redacted")]
        if told:
            message["reasoning"] = "\n\n".join(told)
        if kept := [rest for part in thoughts if (rest := _beside_thought(part))]:
            extra["reasoning"] = kept
    if role == "tool":
        message |= {"tool_call_id": value.get("tool_call_id"), "name": value.get("function")}
        error = value.get("error")
        if isinstance(error, dict) and error.get("message"):
            extra["error"] = {**error, "content": content}
            content = error["message"]
    if isinstance(calls := value.get("tool_calls"), list):
        message["tool_calls"] = [_tool_call(call) for call in calls if isinstance(call, dict)]
        if errors := [call["parse_error"] for call in calls if call.get("parse_error")]:
            extra["parse_errors"] = errors
    item = transcript.to_item({**message, "content": content})
    item.extra = extra or None
    return item


def _part(part: Any) -> Any:
    """Leave of a text part its text; all other parts stay as they are."""
    if isinstance(part, dict) and part.get("type") == "text":
        return {"type": "text", "text": part.get("text")}
    return part


def _beside_thought(part: dict[str, Any]) -> dict[str, Any]:
    held = {"type"} if part.get("redacted") else {"type", "reasoning"}
    return {key: value for key, value in part.items() if key not in held and value}


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call.get("function"), "arguments": call.get("arguments")}
    return {"id": call.get("id"), "function": function}
