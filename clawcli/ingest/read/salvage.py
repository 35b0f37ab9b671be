r"""Save what can be saved of a record that is no JSON, and say what was mended and what was not.

Crashed and careless writers leave NaN, lone surrogates, bytes that are no UTF-8, NUL runs, two
records on one line, and the head of one record spliced with the tail or the whole of another. A
piece is a whole record whose only changes are the ones that its codes name; all other bytes stay
as they were logged. What is in no piece is in a reject, so that nothing is lost.

A record that was merely cut is never mined: what it holds inside would look like a record.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

NON_FINITE = "non_finite_to_null"
SURROGATE = "surrogate_replaced"
INVALID_UTF8 = "invalid_utf8_replaced"
CONTROL = "control_characters_escaped"
NUL = "nul_bytes_dropped"

_BLANK = " \t\r\n\0"
_BLANKS = re.compile("(?:[ \t\r\n\0]|\xef\xbb\xbf)*+")  # a BOM as latin-1 has it
# how far before the byte that a parser stumbles over the next record may have begun: at {" the
# quote closes a string of the cut record, and the parser goes on for one byte
_SPLICE_BYTES = 2
# a JSONDecodeError counts the lines before it, so each try costs as much as the line is long
_MAX_TRIES = 100

_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?(?:NaN|Infinity)|-?\d++(?:\.\d++)?+(?:[eE][+-]?+\d++)?+',
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair, which is well
    r"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    r"|\\.",
    re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x20)}


@dataclass(slots=True)
class Salvaged:
    """What became of one record."""

    pieces: list[tuple[int, bytes, list[str]]] = field(default_factory=list)
    """Whole records: offset in the line, JSON, codes of what was mended."""
    rejects: list[tuple[int, int, str, str]] = field(default_factory=list)
    """The rest: offset in the line, length, reason code, detail in words."""


def salvage(raw: bytes) -> Salvaged:
    """Find the whole records in bytes that are no JSON.

    Returns:
        Pieces whose codes are non_finite_to_null, surrogate_replaced, invalid_utf8_replaced,
        control_characters_escaped, nul_bytes_dropped; and rejects whose reasons are bad_json,
        cut_off (the record ends early), spliced_head (the next record begins within it),
        trailing_bytes (behind a whole record), too_deep, number_out_of_range. Both are empty where
        there is nothing but blanks.

    Source:
        The order of repairs, and how such lines come about: anthropics/claude-code#81843.

    Example:
        >>> salvage(b'{"reward": NaN}').pieces
        [(0, b'{"reward": null}', ['non_finite_to_null'])]
        >>> found = salvage(b'{"id": 1, "text": "cut he{"id": 2}{"id": 3}')
        >>> found.pieces
        [(25, b'{"id": 2}', []), (34, b'{"id": 3}', [])]
        >>> found.rejects
        [(0, 25, 'spliced_head', 'another record begins within this one')]
    """
    salvaged = Salvaged()
    # latin-1 gives one character per byte, so places in the text are places in the record
    text = raw.decode("latin-1")
    end = len(text.rstrip(_BLANK))
    num_nul, stop = text.count("\0"), 0
    while (place := _skip_blank(text, stop)) < end:
        stop = _take(raw, text, place, end, salvaged)
        num_nul -= text.count("\0", place, stop)
    if num_nul:
        for _, _, codes in salvaged.pieces:
            codes.append(NUL)
    return salvaged


def _skip_blank(text: str, place: int) -> int:
    return _BLANKS.match(text, place).end()  # pyright: ignore[reportOptionalMemberAccess]


def _take(raw: bytes, text: str, place: int, end: int, salvaged: Salvaged) -> int:
    """Take the record at a place, or set it aside; returns where it ends."""
    stop, reason, detail = _parse(text, place, end)
    if reason is None:
        after = min(_skip_blank(text, stop), end)
        _mend(raw, place, stop, salvaged)
        if after < end and text[after] != "{":
            detail = "bytes follow a whole record"
            salvaged.rejects.append((after, end - after, "trailing_bytes", detail))
            return end
        return stop
    if reason == "bad_json" and (tail := _spliced(text, max(place, stop - _SPLICE_BYTES), end)):
        detail = "another record begins within this one"
        salvaged.rejects.append((place, tail - place, "spliced_head", detail))
        return tail
    salvaged.rejects.append((place, end - place, reason, detail))
    return end


def _parse(text: str, place: int, end: int) -> tuple[int, str | None, str]:
    """Parse one object or array.

    Returns:
        Where it ends, None, and nothing; or where the parser stumbled, the reason and the detail.
    """
    if text[place] not in "{[":
        return place, "bad_json", f"a record does not begin with {text[place]!r}"
    try:
        _, stop = _DECODER.raw_decode(text, place)
    except RecursionError:
        return place, "too_deep", "the record is nested too deep"
    except json.JSONDecodeError as error:
        if is_cut(error, end):
            return error.pos, "cut_off", "the record ends early"
        return error.pos, "bad_json", f"the record is not JSON: {error.msg} (byte {error.pos:,})"
    return stop, None, ""


def _keep(digits: str) -> str:
    """Leave numbers as text: to convert 5,000 digits is refused, and nobody looks at them here."""
    return digits


_DECODER = json.JSONDecoder(strict=False, parse_int=_keep, parse_float=_keep)


def is_cut(error: json.JSONDecodeError, end: int | None = None) -> bool:
    """Tell whether a text is valid as far as it goes, and only ends too early.

    Args:
        error: what the json module made of the text.
        end: where the text ends, blanks left out; null = at its own end.

    Example:
        >>> def cut(text):
        ...     try:
        ...         json.loads(text)
        ...     except json.JSONDecodeError as error:
        ...         return is_cut(error)
        >>> cut('{"a": "b'), cut('{"a": tr'), cut('{"a" 1}')
        (True, True, False)
    """
    end = len(error.doc.rstrip(_BLANK)) if end is None else end
    rest = error.doc[error.pos : min(end, error.pos + len("-Infinity") + 1)]
    if error.pos >= end or error.msg.startswith("Unterminated string"):
        return True
    if error.msg.startswith("Invalid \\"):  # an escape, told by where its letters begin
        return len(rest) < len("u0000")
    return any(word.startswith(rest) for word in ("true", "false", "null", "NaN", "-Infinity"))


def _spliced(text: str, place: int, end: int) -> int | None:
    """Find where whole records begin that go on to the end, the last of them maybe cut."""
    for _ in range(_MAX_TRIES):
        place = text.find('{"', place, end)
        if place < 0:
            return None
        stop, reason, _ = _parse(text, place, end)
        after = _skip_blank(text, stop)
        if reason is None and (after >= end or text.startswith('{"', after)):
            return place
        # what was parsed up to the stop is nested in this candidate, so nothing is parsed twice
        place = max(place + 1, stop - _SPLICE_BYTES)
    return None


def _mend(raw: bytes, place: int, stop: int, salvaged: Salvaged) -> None:
    """Make a whole record JSON and take it in, or set it aside where that is impossible."""
    codes: dict[str, None] = {}
    record = raw[place:stop]
    try:
        text = record.decode()
    except UnicodeDecodeError:
        codes[INVALID_UTF8] = None
        text = record.decode(errors="replace")
    mended = _TOKEN.sub(lambda token: _mend_token(token[0], codes), text).encode()
    try:
        msgspec.json.decode(mended)
    except RecursionError:
        salvaged.rejects.append((place, stop - place, "too_deep", "the record is nested too deep"))
    except msgspec.DecodeError as error:
        reason = "number_out_of_range" if "out of range" in str(error) else "bad_json"
        salvaged.rejects.append((place, stop - place, reason, f"the record is not JSON: {error}"))
    else:
        salvaged.pieces.append((place, mended, list(codes)))


def _mend_token(token: str, codes: dict[str, None]) -> str:
    """Mend one string or number; anything that is well stays as it is."""
    if token[0] == '"':
        if "\\" in token:
            token = _ESCAPE.sub(
                _noting(codes, SURROGATE, lambda m: "\\ufffd" if m[1] else m[0]), token
            )
        if _CONTROL.search(token):
            codes[CONTROL] = None
            token = token.translate(_ESCAPED)  # a crash leaves runs of millions
        return token
    if token[-1].isdigit() and ("." not in token and "e" not in token.lower()):
        return token
    if token[-1].isdigit() and math.isfinite(float(token)):
        return token
    codes[NON_FINITE] = None
    return "null"


def _noting(
    codes: dict[str, None], code: str, mend: Callable[[re.Match[str]], str]
) -> Callable[[re.Match[str]], str]:
    """Make a replacement that notes its code where it changes anything."""

    def replace(match: re.Match[str]) -> str:
        mended = mend(match)
        if mended != match[0]:
            codes[code] = None
        return mended

    return replace
