"""Messages as claw stores them, and when two of them are the same.

Formats turn their records into Message; chaining compares digests of messages; the store keeps
their fields. Equality is that of DESIGN.md section 3: role, text, tool calls in order, reasoning.
Ids, names of tool results, cache markers, annotations and nulls do not count, and null, "" and []
are one text.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

_LEADING_THINK = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_blake2b = hashlib.blake2b
_encode = msgspec.msgpack.Encoder().encode
_SILENT_KEYS = frozenset({"cache_control", "annotations"})
EMPTY_CHAIN = bytes(16)
"""Chained hash of no messages."""


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call; arguments are the exact logged string."""

    id: str | None
    name: str | None
    arguments: str
    arguments_valid: bool


class Message(msgspec.Struct, frozen=True):
    """One message; exactly one of content and parts (JSON text of a list) is set."""

    role: str
    content: str | None = None
    parts: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


def text_of(message: Message) -> str | None:
    """Join a message's text; None where its parts are not all text.

    Example:
        >>> text_of(Message("user", parts='[{"type":"text","text":"a"},{"type":"text","text":"b"}]'))
        'ab'
    """
    if message.parts is None:
        return message.content or ""
    parts = msgspec.json.decode(message.parts)
    texts = [part_text(part) for part in parts]
    return None if None in texts else "".join(text or "" for text in texts)


def part_text(part: Any) -> str | None:
    """Return the text of one content part; None where it is something else."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text"):
        text = part.get("text")
        return text if isinstance(text, str) else None
    return None


def content_and_parts(content: Any) -> tuple[str | None, str | None]:
    """Normalise logged content: a string, or parts where there are several or not all are text.

    Args:
        content: a string, a list of parts, a bare part, or null.

    Returns:
        (content, parts): exactly one is not None; parts is JSON text as logged.
    """
    if content is None or content == []:
        return "", None
    if isinstance(content, str):
        return content, None
    parts = content if isinstance(content, list) else [content]
    if len(parts) == 1 and (text := part_text(parts[0])) is not None:
        return text, None
    return None, msgspec.json.encode(parts).decode()


def _without_markers(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_markers(item)
            for key, item in sorted(value.items())
            if item is not None and key not in _SILENT_KEYS
        }
    return [_without_markers(item) for item in value] if isinstance(value, list) else value


def _body(message: Message) -> Any:
    text = text_of(message)
    if text is not None:
        return text
    # as JSON text, in a list that tells it from text: msgpack has no integers beyond 64 bits
    parts = _without_markers(msgspec.json.decode(message.parts or ""))
    return [msgspec.json.encode(parts).decode()]


def hash128(*values: Any) -> str:
    """Hash plain values to the 128-bit hex of a uid; types and borders count.

    Example:
        >>> hash128("a", "b") == hash128("ab")
        False
    """
    return _blake2b(_encode(values), digest_size=16).hexdigest()


def digest(message: Message) -> bytes:
    """Hash what counts for equality, reasoning included (16 bytes)."""
    return digests(message)[0]


def loose_digest(message: Message) -> bytes:
    """Hash the same without reasoning and without a leading think block (16 bytes)."""
    return digests(message)[1]


def digests(message: Message) -> tuple[bytes, bytes]:
    """Hash a message as it is, and without its reasoning: digest and loose_digest at once."""
    role, name = message.role, message.name
    body = message.content or "" if message.parts is None else _body(message)
    calls = message.tool_calls
    spoken = [(call.name, call.arguments) for call in calls] if calls else ()
    # the name of a tool result repeats that of its call
    speaker = None if name is None or role in ("tool", "function") else name
    exact = _hash((role, speaker, body, spoken, message.reasoning or ""))
    if role != "assistant":
        return exact, exact
    bare = body.strip() if isinstance(body, str) else body
    if isinstance(bare, str) and bare.startswith("<think>"):
        bare = _LEADING_THINK.sub("", bare).strip()
    if bare == body and not message.reasoning:
        return exact, exact
    return exact, _hash((role, speaker, bare, spoken, ""))


def _hash(value: Any) -> bytes:
    return _blake2b(_encode(value), digest_size=16).digest()


def extend(chain: bytes, message_digest: bytes) -> bytes:
    """Append one message to a chained hash (16 bytes)."""
    return _blake2b(chain + message_digest, digest_size=16).digest()


def chain_ids(message: Message, chain: bytes = b"") -> bytes:
    """Append a message's tool-call ids to a chained hash of ids; empty = there were none yet."""
    for call in message.tool_calls or ():
        if call.id:
            chain = extend(chain, call.id.encode(errors="surrogatepass"))
    return chain


def to_row(message: Message) -> dict[str, Any]:
    """Turn a message into a value of schema.MESSAGE."""
    return {
        "role": message.role,
        "content": message.content,
        "parts": message.parts,
        "tool_calls": None
        if message.tool_calls is None
        else [msgspec.structs.asdict(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning": message.reasoning,
    }
