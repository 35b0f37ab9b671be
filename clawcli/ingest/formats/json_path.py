"""Paths into decoded JSON: keys and indices, such as choices[0].message or turns.-1.

A key with a dot or a bracket in it is quoted: ["a.b"].c. Where a path goes on inside JSON that was
logged as a string, the string is decoded, and stands decoded in its place from then on.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_STEP = re.compile(r"""\.?(?:\[(-?\d+)\]|\["([^"]*)"\]|([^.\[\]"]+))""")
_INDEX = re.compile(r"-?\d+")
MISSING: Any = object()
"""What a path that leads nowhere finds; null is a value."""


class JsonPath:
    """A path; a number is an index in a list, and a key in an object.

    Raises:
        ValueError: the text is no path.

    Example:
        >>> record = {"turns": '[{"text": "a"}, {"text": "b"}]', "id": 7}
        >>> JsonPath("turns[-1].text").take(record), record
        ('b', {'turns': [{'text': 'a'}, {}], 'id': 7})
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps: list[str] = []
        place = 0
        while found := _STEP.match(text, place):
            self._steps.append(next(group for group in found.groups() if group is not None))
            place = found.end()
        if not self._steps or place < len(text) or text.startswith("."):
            raise ValueError(f"{text!r} is no path")

    def find(self, record: Any) -> Any:
        """Return what stands at the path, or MISSING."""
        holder, at = self._last(record)
        return MISSING if holder is None else holder[at]

    def take(self, record: Any) -> Any:
        """Return the same and take it out; the indices of its neighbours stay as they are."""
        holder, at = self._last(record)
        if holder is None:
            return MISSING
        value = holder[at]
        if isinstance(holder, dict):
            del holder[at]
        else:
            holder[at] = None
        return value

    def _last(self, record: Any) -> tuple[Any, Any]:
        """Find the object or list that the path ends in, and where in it; nulls for nowhere."""
        holder: Any = None
        at: Any = None
        value = record
        for step in self._steps:
            if isinstance(value, str) and (decoded := _decoded(value)) is not None:
                value = decoded
                if holder is not None:
                    holder[at] = value
            holder, at = value, _place(value, step)
            if at is None:
                return None, None
            value = value[at]
        return holder, at


def _decoded(value: str) -> Any:
    if value.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def _place(holder: Any, step: str) -> Any:
    """Find the key or index that a step means here; null = there is none."""
    if isinstance(holder, dict):
        return step if step in holder else None
    if isinstance(holder, list) and _INDEX.fullmatch(step):
        return int(step) if -len(holder) <= int(step) < len(holder) else None
    return None
