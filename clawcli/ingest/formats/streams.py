"""Read logged streams, and join chunks of OpenAI chat completions into the response they make.

Streams of other APIs are joined in events.py. What a cut stream did not send stays missing, and
nothing here decides whether that is an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

Numbered = tuple[int, dict[str, Any]]
"""An event and its number in the file."""
_DONE = "[DONE]"
_CHAT_TEXT = frozenset(
    {"content", "reasoning_content", "reasoning", "refusal", "arguments", "name"}
    | {"text", "summary", "thinking", "signature", "transcript", "data"}
)
"""Keys of a chat delta whose strings continue what was sent before."""
_ENTRIES = frozenset({"tool_calls", "reasoning_details", "thinking_blocks"})
"""Keys of a chat delta whose lists hold pieces of entries, told apart by their index."""


class Stream(NamedTuple):
    """The events of one streamed answer, in order."""

    events: list[dict[str, Any]]
    is_damaged: bool
    """Some line was no JSON object."""


def parse(value: Any) -> Stream | None:
    r"""Read a logged stream; None where it is none.

    Args:
        value: text of server-sent events, text with one JSON object a line, a list of either
            kind of line, or a list of event objects.

    Example:
        >>> parse('data: {"id": 1}\n\ndata: [DONE]\n')
        Stream(events=[{'id': 1}], is_damaged=False)
    """
    if isinstance(value, list):
        if value and all(isinstance(item, dict) for item in value):
            return Stream(value, False)
        if not value or not all(isinstance(item, str) for item in value):
            return None
        value = "\n".join(value)
    if not isinstance(value, str):
        return None
    events, is_damaged = [], False
    for line in value.split("\n"):
        line = line.strip()
        if line.startswith("data:"):
            line = line[5:].strip()
        elif not line.startswith("{"):
            continue  # event names and ids repeat what the data says
        if not line or line == _DONE:
            continue
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            is_damaged = True
    return Stream(events, is_damaged) if events else None


def index_of(piece: dict[str, Any], key: str) -> int:
    """Return where a piece of a stream belongs; -1 where that is not logged."""
    index = piece.get(key)
    return index if type(index) is int and index >= 0 else -1


def chat_response(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Join chat.completion.chunk objects into a chat.completion.

    A choice that never ended has no finish_reason. Pieces of a tool call belong together by their
    index; a new id with a name under an index that is taken is another call, as servers send it
    that number all calls 0.
    """
    response: dict[str, Any] = {}
    choices: dict[int, _Joined] = {}
    for chunk in chunks:
        for place, entry in enumerate(_entries(chunk)):
            index = index_of(entry, "index")
            choice = choices.setdefault(place if index < 0 else index, _Joined())
            rest = {k: v for k, v in entry.items() if k not in ("delta", "message")}
            choice.add({**rest, "message": entry.get("delta") or entry.get("message")})
        # what clients pad a chunk with, against eavesdroppers, says nothing
        hidden = ("choices", "obfuscation")
        response |= {key: value for key, value in chunk.items() if value and key not in hidden}
    ordered = sorted(choices.items())
    response["choices"] = [{**choice.value(), "index": index} for index, choice in ordered]
    response["object"] = "chat.completion"
    return response


def chat_groups(chunks: Iterable[Numbered]) -> list[list[Numbered]]:
    """Tell the answers apart whose chunks one file holds, also where they are interleaved.

    A chunk belongs to the answer of its id; one without an id to the answer at hand, except for
    the empty one that Azure begins with. A choice that has ended and speaks again belongs to the
    next answer of that id.

    Returns:
        The numbered chunks of each answer, in the order in which the answers begin.
    """
    groups: list[list[Numbered]] = []
    by_id: dict[str, list[Numbered]] = {}
    ended: dict[str, set[int]] = {}
    early: list[Numbered] = []
    last: str | None = None
    for number, chunk in chunks:
        key = str(chunk.get("id") or "") or last or ""
        is_empty = not chunk.get("id") and not chunk.get("choices")
        if is_empty and (last is None or "prompt_filter_results" in chunk):
            early.append((number, chunk))
            continue
        if key not in by_id or not ended[key].isdisjoint(_speaking(chunk)):
            by_id[key], ended[key], early = early, set(), []
            groups.append(by_id[key])
        by_id[key].append((number, chunk))
        ended[key].update(index_of(e, "index") for e in _entries(chunk) if e.get("finish_reason"))
        last = key
    return [*groups, early] if early else groups


def _entries(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    entries = chunk.get("choices")
    return [e for e in entries if isinstance(e, dict)] if isinstance(entries, list) else []


def _speaking(chunk: dict[str, Any]) -> Iterator[int]:
    """Give the indices of the choices that a chunk adds something to."""
    for entry in _entries(chunk):
        delta = entry.get("delta")
        if isinstance(delta, dict) and any(v for k, v in delta.items() if k != "role"):
            yield index_of(entry, "index")


class _Joined:
    """One object that arrives in pieces; texts are joined once, at the end."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def add(self, piece: dict[str, Any]) -> None:
        for key, value in piece.items():
            old = self._values.get(key)
            if value is None or (value == "" and old is not None):
                continue
            self._values[key] = self._continued(key, old, value)

    def has(self, key: str) -> bool:
        return key in self._values

    def _continued(self, key: str, old: Any, value: Any) -> Any:
        if isinstance(value, str) and key in _CHAT_TEXT:
            if isinstance(old, list):
                if not old or not isinstance(old[-1], _Joined):
                    old.append(_Joined())
                old[-1].add({"type": "text", "text": value})
                return old
            text = old if isinstance(old, _Text) else _Text()
            if key != "name" or text.pieces[:1] != [value]:  # some servers repeat the name
                text.pieces.append(value)
            return text
        if isinstance(value, dict):
            joined = old if isinstance(old, _Joined) else _Joined()
            joined.add(value)
            return joined
        if isinstance(value, list) and key in _ENTRIES:
            entries = old if isinstance(old, _Entries) else _Entries()
            for entry in value:
                entries.add(entry)
            return entries
        if isinstance(value, list):
            if isinstance(old, _Text):
                old = [{"type": "text", "text": old.value()}]
            if isinstance(old, list):
                old.extend(value)
                return old
            return list(value)
        return old if key in ("id", "type", "role", "index") and old is not None else value

    def value(self) -> dict[str, Any]:
        return {key: _value(value) for key, value in self._values.items()}


class _Text:
    """A string that arrives in pieces."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def value(self) -> str:
        return "".join(self.pieces)


class _Entries:
    """A list whose entries arrive in pieces."""

    def __init__(self) -> None:
        self._all: list[_Joined] = []
        self._open: dict[int, _Joined] = {}
        self._ids: dict[int, str] = {}

    def add(self, piece: Any) -> None:
        if not isinstance(piece, dict):
            return
        index, uid = index_of(piece, "index"), str(piece.get("id") or "")
        entry = self._open.get(index)
        if entry is None and index < 0 and self._all and not uid:
            entry = self._all[-1]
        if entry is not None and self._is_another(entry, piece, uid):
            entry = None
        if entry is None:
            entry = _Joined()
            self._all.append(entry)
        self._open[index] = entry
        if uid:
            self._ids.setdefault(id(entry), uid)
        entry.add({key: value for key, value in piece.items() if key != "index"})

    def _is_another(self, entry: _Joined, piece: dict[str, Any], uid: str) -> bool:
        if uid and _is_named(piece):
            return self._ids.get(id(entry), uid) != uid
        # thinking blocks have no index; the signature ends one
        return bool(piece.get("thinking")) and entry.has("signature")

    def value(self) -> list[Any]:
        return [entry.value() for entry in self._all]


def _is_named(piece: dict[str, Any]) -> bool:
    function = piece.get("function")
    return isinstance(function, dict) and bool(function.get("name"))


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value.value() if isinstance(value, _Joined | _Text | _Entries) else value
