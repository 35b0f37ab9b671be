"""Join the events of streams that send typed events: Anthropic Messages and OpenAI Responses.

As in streams.py, what a cut stream did not send stays missing in the object that comes out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from clawcli.ingest.formats.streams import Numbered, index_of

_MESSAGE_EVENTS = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
)
_MESSAGE_TEXT = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("thinking", "signature", "signature"),
    "input_json_delta": ("tool_use", "input", "partial_json"),
}
"""Kind of delta -> type of its block, key of the block that grows, key of the delta."""
_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_RESPONSE_PARTS = {
    "response.output_text.delta": ("message", "content", "output_text", "text"),
    "response.refusal.delta": ("message", "content", "refusal", "refusal"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "summary_text", "text"),
    "response.reasoning_text.delta": ("reasoning", "content", "reasoning_text", "text"),
}
"""Kind of delta -> type of its item, key of the item, type of the part, key of the part."""
_RESPONSE_FIELDS = {
    "response.function_call_arguments.delta": ("function_call", "arguments"),
    "response.mcp_call_arguments.delta": ("mcp_call", "arguments"),
    "response.custom_tool_call_input.delta": ("custom_tool_call", "input"),
    "response.code_interpreter_call_code.delta": ("code_interpreter_call", "code"),
}


def is_message_event(event: dict[str, Any]) -> bool:
    """Tell whether an event is one of a message that is streamed by Anthropic."""
    return event.get("type") in _MESSAGE_EVENTS


def message_groups(events: Iterable[Numbered]) -> list[list[Numbered]]:
    """Tell the Anthropic messages apart whose events follow each other, or cut each other off.

    A message_start that repeats the id of the message at hand begins nothing.

    Returns:
        The numbered events of each message, in order.
    """
    groups: list[list[Numbered]] = []
    current, is_over = None, True
    for number, event in events:
        if event.get("type") == "message_start":
            message = event.get("message")
            uid = message.get("id") if isinstance(message, dict) else None
            if is_over or uid != current:
                groups.append([])
                current, is_over = uid, False
        if not groups:
            groups.append([])
            is_over = False
        groups[-1].append((number, event))
        is_over = is_over or event.get("type") == "message_stop"
    return groups


def message_response(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Join Anthropic stream events into the message that they make.

    Usage is cumulative, so the largest count stands. An input that was cut off stays text.
    """
    message: dict[str, Any] = {}
    blocks: list[_Block] = []
    by_index: dict[int, _Block] = {}
    for event in events:
        kind, index = event.get("type"), index_of(event, "index")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            usage = message.get("usage")
            message = {**message, **event["message"]}
            message["usage"] = _largest(usage, event["message"].get("usage"))
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            # a start that is sent twice begins one block; an index used again, another
            if index not in by_index or by_index[index].has_grown:
                by_index[index] = _Block()
                blocks.append(by_index[index])
            by_index[index].values = dict(event["content_block"])
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            if index not in by_index:
                blocks.append(by_index.setdefault(index, _Block()))
            by_index[index].grow(event["delta"])
        elif kind == "message_delta":
            delta = event.get("delta")
            message |= delta if isinstance(delta, dict) else {}
            message["usage"] = _largest(message.get("usage"), event.get("usage"))
            beside = ("type", "delta", "usage")
            message |= {k: v for k, v in event.items() if k not in beside and v is not None}
        elif kind == "error":
            message["error"] = event.get("error") or event
    message["content"] = [block.value() for block in blocks]
    return message


def _largest(old: Any, new: Any) -> dict[str, Any]:
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in (new if isinstance(new, dict) else {}).items():
        before = merged.get(key)
        if isinstance(before, int) and isinstance(value, int):
            value = max(before, value)
        if value is not None:
            merged[key] = value
    return merged


class _Block:
    """A content block that arrives in pieces; texts are joined once, at the end."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = defaultdict(list)

    @property
    def has_grown(self) -> bool:
        return bool(self._pieces)

    def grow(self, delta: dict[str, Any]) -> None:
        kind = str(delta.get("type"))
        if kind == "citations_delta":
            citations = self.values.get("citations") or []
            self.values["citations"] = [*citations, delta.get("citation")]
            return
        if kind not in _MESSAGE_TEXT:
            self.values.setdefault("deltas", []).append(delta)
            return
        block_type, key, source = _MESSAGE_TEXT[kind]
        self.values.setdefault("type", block_type)
        if isinstance(piece := delta.get(source), str):
            self._pieces[key].append(piece)

    def value(self) -> dict[str, Any]:
        value = dict(self.values)
        for key, pieces in self._pieces.items():
            joined = "".join(pieces)
            if key == "input":
                value[key] = _parsed(joined) if joined else value.get(key, {})
            else:
                value[key] = f"{value.get(key) or ''}{joined}"
        return value


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def response_groups(events: Iterable[Numbered]) -> list[list[Numbered]]:
    """Tell the responses apart whose Responses API events follow each other in one file."""
    groups: list[list[Numbered]] = []
    for number, event in events:
        if not groups or event.get("type") == "response.created":
            groups.append([])
        groups[-1].append((number, event))
    return groups


def responses_response(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Join Responses API events into the response object.

    The object of the last event is preferred; without one, or where it is without its output, the
    items are put together by output_index: ids can change within a stream.
    """
    response: dict[str, Any] = {}
    items: dict[int, _Item] = defaultdict(_Item)
    for event in events:
        kind, index = str(event.get("type")), index_of(event, "output_index")
        if isinstance(event.get("response"), dict):
            got = event["response"].items()
            response |= {k: v for k, v in got if v is not None and (v or k != "output")}
        if kind in _RESPONSE_ENDS:
            beside = ("type", "response", "sequence_number")
            response |= {k: v for k, v in event.items() if k not in beside and v is not None}
        elif kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(event.get("item"), dict):
                items[index].set(event["item"], is_done=kind.endswith("done"))
        elif kind in _RESPONSE_PARTS or kind in _RESPONSE_FIELDS:
            items[index].grow(kind, event)
        elif kind == "error":
            response["error"] = event.get("error") or event
    if not response.get("output"):
        response["output"] = [item.value() for _, item in sorted(items.items())]
    return response


class _Item:
    """An output item that arrives in pieces."""

    def __init__(self) -> None:
        self._item: dict[str, Any] = {}
        self._is_done = False
        self._pieces: dict[tuple[Any, ...], list[str]] = defaultdict(list)

    def set(self, item: dict[str, Any], *, is_done: bool) -> None:
        self._item, self._is_done = item, is_done or self._is_done

    def grow(self, kind: str, event: dict[str, Any]) -> None:
        place = max(index_of(event, "content_index"), index_of(event, "summary_index"))
        if isinstance(piece := event.get("delta"), str):
            self._pieces[kind, place].append(piece)

    def value(self) -> dict[str, Any]:
        if self._is_done:
            return self._item
        item = dict(self._item)
        for (kind, _), pieces in sorted(self._pieces.items()):
            if kind in _RESPONSE_FIELDS:
                item_type, key = _RESPONSE_FIELDS[kind]
                item.setdefault("type", item_type)
                item[key] = "".join(pieces)
            else:
                item_type, key, part_type, text_key = _RESPONSE_PARTS[kind]
                item.setdefault("type", item_type)
                item[key] = [*(item.get(key) or []), {"type": part_type, text_key: "".join(pieces)}]
        return item
