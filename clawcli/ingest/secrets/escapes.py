r"""Text with its escapes undone, and where each piece of it stood before.

JSON inside JSON hides text behind backslashes (\u0067, \/, \n), and a file in UTF-16 that was read as
bytes hides it between NULs. A View is the plain text together with the way back: a span of it
maps to the span of the outermost text that it was made of, whole escapes included, so that the text
can be changed where it stands and all else stays as it was, byte for byte.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

MAX_DEPTH = 3
"""Levels of escapes that are undone: strings in JSON in JSON in JSON."""

_ESCAPE = re.compile(rb"""\\(?:u([0-9A-Fa-f]{4})|([\\/"'bfnrt]))""")
_NUL = re.compile(rb"\x00")
_CONTINUES, _CONTINUES_MASK = 0x80, 0xC0  # bytes of UTF-8 that begin no character
_PLAIN = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class View:
    """UTF-8 text made of an outer text by undoing one level of escapes."""

    __slots__ = ("_outers", "_parent", "_starts", "data", "depth")

    def __init__(self, data: bytes) -> None:
        """Begin with a text as it stands; its spans map to themselves."""
        self.data = data
        self.depth = 0
        self._parent: View | None = None
        # of each piece, and of the end: where it begins in the data and in the parent's data
        self._starts: list[int] = []
        self._outers: list[int] = []

    def span(self, start: int, end: int) -> tuple[int, int]:
        r"""Map a span that is not empty to whole characters of the outermost text.

        Example:
            >>> View(rb"a\u0067hp_").plainer().span(1, 3)
            (1, 8)
        """
        if self._parent is None:
            while start and self.data[start] & _CONTINUES_MASK == _CONTINUES:
                start -= 1
            while end < len(self.data) and self.data[end] & _CONTINUES_MASK == _CONTINUES:
                end += 1
            return start, end
        first, last = (bisect_right(self._starts, place) - 1 for place in (start, end - 1))
        outer_start, outer_end = self._outers[first], self._outers[last + 1]
        # a piece of equal length is text that was copied; an escape has no inside
        if self._is_copied(first):
            outer_start += start - self._starts[first]
        if self._is_copied(last):
            outer_end -= self._starts[last + 1] - end
        return self._parent.span(outer_start, outer_end)

    def position(self, place: int, above: View) -> int:
        """Map a place in a view that this one was made of, that no escape holds, to this one."""
        if self is above or self._parent is None:
            return place
        place = self._parent.position(place, above)
        piece = bisect_right(self._outers, place) - 1
        return self._starts[piece] + place - self._outers[piece]

    def part(self, start: int, end: int) -> View:
        """Return a view of a stretch, no further from the outermost text than this one."""
        part = View(self.data[start:end])
        part.depth, part._parent = self.depth, self
        part._starts, part._outers = [0, len(part.data)], [start, start + len(part.data)]
        return part

    def plainer(self) -> View | None:
        """Undo one level of JSON escapes; None where there are none."""
        return self._without(_ESCAPE, _unescaped) if b"\\" in self.data else None

    def without_nuls(self) -> View | None:
        """Take the NULs out; None where there are none."""
        return self._without(_NUL, lambda _: b"") if b"\0" in self.data else None

    def levels(self) -> Iterator[View]:
        """Yield the views below this one, up to MAX_DEPTH of them."""
        view: View | None = self
        while view is not None and view.depth < MAX_DEPTH:
            if (view := view.plainer()) is not None:
                yield view

    def _is_copied(self, piece: int) -> bool:
        inner = self._starts[piece + 1] - self._starts[piece]
        return inner == self._outers[piece + 1] - self._outers[piece]

    def _without(
        self, pattern: re.Pattern[bytes], plain: Callable[[re.Match[bytes]], bytes]
    ) -> View | None:
        pieces: list[bytes] = []
        starts, outers, length, done = [], [], 0, 0
        for match in pattern.finditer(self.data):
            for outer, piece in (
                (done, self.data[done : match.start()]),
                (match.start(), plain(match)),
            ):
                starts.append(length)
                outers.append(outer)
                pieces.append(piece)
                length += len(piece)
            done = match.end()
        if not pieces:
            return None
        pieces.append(self.data[done:])
        view = View(b"".join(pieces))
        view.depth, view._parent = self.depth + 1, self
        view._starts = [*starts, length, len(view.data)]
        view._outers = [*outers, done, len(self.data)]
        return view


def _unescaped(match: re.Match[bytes]) -> bytes:
    if (digits := match[1]) is None:
        return _PLAIN.get(match[2], match[2])
    # halves of a surrogate pair stay apart: no secret is made of them
    return chr(int(digits, 16)).encode("utf-8", "surrogatepass")
