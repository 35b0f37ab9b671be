"""Where in a column of texts the secrets are.

One pass of an automaton over the bytes of the whole column (RE2 in Arrow) finds the texts that hold
a trigger; few do. In those a second pass marks where each trigger begins, and there the pattern of
its rule looks at a stretch of bounded length. Text that hides behind escapes or between NULs is
looked at as it reads without them (escapes.py); spans are those of the text as it stands.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import ConfigError
from clawcli.ingest.secrets.escapes import View
from clawcli.ingest.secrets.table import RULES
from clawcli.ingest.secrets.values import Rule, secret_of

PLACEHOLDER = re.compile(rb"\[REDACTED:[a-z][a-z0-9_-]*:[0-9a-f]{6}\]")

# Escapes of printable characters, in which a trigger itself may hide; <, > and & are left out, since
# HTML is escaped like that and no trigger holds them. Then letters between NULs, as UTF-16 has them.
_HIDDEN = r"\\u00(?:2[^6]|3[^ceCE]|[4-7])|[ -~]\x00[ -~]\x00[ -~]|[ -~]\\+u0000[ -~]\\+u0000"
_FEW_BYTES = 1 << 13
_MARK = b"\xff"  # no byte of UTF-8
_EDGE_BYTES = 8
"""Bytes before a trigger of which a pattern may ask that they are no part of a word."""
_LONGEST_TRIGGER_BYTES = 4096 + 16
_LONGEST_ESCAPE_BYTES = 8
_LONGEST_PLACEHOLDER_BYTES = 64


@dataclass(frozen=True, slots=True)
class Span:
    """One secret, and where it stands in the UTF-8 bytes of its text."""

    start: int
    end: int
    rule: str
    """Name of the rule."""
    rank: int
    """Place of the rule among all; where spans meet, the lowest rank names the secret."""
    depth: int
    """Levels of escapes that were undone to read it."""
    secret: bytes
    """The secret as it reads there."""

    def __repr__(self) -> str:
        """Say where it is, never what it is."""
        return f"Span({self.start}, {self.end}, {self.rule})"


class SecretSearch:
    """The search for some rules' secrets."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Compile the rules.

        Raises:
            ConfigError: together they are too much for one automaton.
        """
        self.rules = tuple(rules)
        self._patterns = [re.compile(rule.pattern.encode()) for rule in rules]
        self._triggers = [re.compile(rule.trigger.encode()) for rule in rules]
        # groups of a trigger would be in the way of the one around it
        plain = [re.sub(r"\(\?P<\w+>", "(?:", rule.trigger) for rule in rules]
        named = [f"(?P<rank{rank}>{trigger})" for rank, trigger in enumerate(plain)]
        self._first = re.compile("|".join(named).encode())
        self._hidden = re.compile(_HIDDEN.encode())
        self._prefilter = _either([*plain, _HIDDEN])
        marks = [rule.mark or trigger for rule, trigger in zip(rules, plain, strict=True)]
        # claw's own marks leave all that others need; those of users may hide one another
        own = [mark for mark, rule in zip(marks, rules, strict=True) if rule in RULES]
        others = [mark for mark, rule in zip(marks, rules, strict=True) if rule not in RULES]
        self._passes = [*([_either(own)] if own else []), *others]
        self._marks = [re.compile(mark.encode()) for mark in marks]
        self._words = [
            (word.encode(), rank)
            for rank, rule in enumerate(rules)
            for word in rule.keywords or ("",)  # which every text holds
        ]
        try:
            matches(pa.array([b""]), self._prefilter)
        except pa.ArrowInvalid as error:
            raise ConfigError(
                "The rules of --redact-rules are together too large to be searched for at once.",
                "Give the long ones keywords.",
            ) from error

    def suspects(self, texts: pa.Array) -> np.ndarray:
        """List the rows (int64) whose texts (binary) hold a trigger, or may hide one."""
        if texts.nbytes < _FEW_BYTES:
            return np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        return np.flatnonzero(matches(texts, self._prefilter))

    def is_suspect(self, text: bytes) -> bool:
        """Tell the same of one text; of a long one it is always true."""
        if len(text) >= _FEW_BYTES or self._hides(text):
            return True
        return next(self._triggers_of(text), None) is not None

    def spans(self, texts: Sequence[bytes]) -> list[list[Span]]:
        """Find the secrets of some suspects: for each text its spans, in no order."""
        views = [(row, view) for row, text in enumerate(texts) for view in self._views(text)]
        triggers = self._triggered([view.data for _, view in views])
        found: list[set[Span]] = [set() for _ in texts]
        for (row, view), pairs in zip(views, triggers, strict=True):
            for place, rank in pairs:
                for span in self._near(view, place, rank):
                    if not meets_placeholder(span.start, span.end, texts[row]):
                        found[row].add(span)
        return [list(spans) for spans in found]

    def _views(self, data: bytes) -> Iterator[View]:
        """Yield a text, and if a trigger may hide in it, how it reads level by level."""
        text = View(data)
        yield text
        if self._hides(data):
            levels = list(text.levels())
            yield from levels
            for level in (text, *levels):
                if (letters := level.without_nuls()) is not None:
                    yield letters

    def _hides(self, text: bytes) -> bool:
        return (b"\\u00" in text or b"\0" in text) and self._hidden.search(text) is not None

    def _triggered(self, texts: Sequence[bytes]) -> Iterator[Iterator[tuple[int, int]]]:
        """Yield for each text where triggers begin, and the ranks of their rules."""
        if sum(len(text) for text in texts) < _FEW_BYTES:
            # to build the automaton would take longer
            yield from map(self._triggers_of, texts)
            return
        array = pa.array(texts, pa.large_binary())
        places: list[set[int]] = [set() for _ in texts]
        for marks in self._passes:
            options = pc.ReplaceSubstringOptions(f"({marks})", _MARK + rb"\1")
            marked = pc.call_function("replace_substring_regex", [array], options)
            for found, text in zip(places, marked, strict=True):
                lengths = map(len, text.as_py().split(_MARK)[:-1])
                found.update(itertools.accumulate(lengths))
        for text, found in zip(texts, places, strict=True):
            yield self._ranked(text, found)

    def _triggers_of(self, text: bytes) -> Iterator[tuple[int, int]]:
        lowered = text.lower()
        for rank in sorted({rank for word, rank in self._words if word in lowered}):
            for found in self._marks[rank].finditer(text):
                place = found.start()
                if self._triggers[rank].match(text, place, place + _LONGEST_TRIGGER_BYTES):
                    yield place, rank

    def _ranked(self, text: bytes, places: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the rules whose trigger begins at marked places."""
        for place in places:
            end = place + _LONGEST_TRIGGER_BYTES
            first = self._first.match(text, place, end)
            if first is None or first.lastgroup is None:
                continue
            rank = int(first.lastgroup.removeprefix("rank"))
            yield place, rank
            for other in range(rank + 1, len(self.rules)):
                if self._triggers[other].match(text, place, end):
                    yield place, other

    def _near(self, view: View, place: int, rank: int) -> Iterator[Span]:
        """Yield the secrets of one rule that a trigger is part of."""
        rule, data = self.rules[rank], view.data
        start, end = max(0, place - rule.before_bytes - _EDGE_BYTES), place + rule.reach_bytes
        read_to = end
        for match in self._matches(rank, data, place):
            read_to = match.end() + 1
            if self._accepts(rank, match):
                yield _span(rule, rank, view, match)
        # an escape before or in the match may change what it is, or whether it is one
        if b"\\" not in data[start:read_to]:
            return
        if b"\\u" in data[start:end]:
            end = place + rule.reach_bytes * _LONGEST_ESCAPE_BYTES
        for level in view.part(start, end).levels():
            for match in self._matches(rank, level.data, level.position(place, view)):
                if self._accepts(rank, match):
                    yield _span(rule, rank, level, match)

    def _matches(self, rank: int, data: bytes, place: int) -> Iterator[re.Match[bytes]]:
        """Yield the matches of a rule that hold the place of its trigger."""
        before, pattern = self.rules[rank].before_bytes, self._patterns[rank]
        end = place + self.rules[rank].reach_bytes
        if before == 0:
            found = iter((pattern.match(data, place, end),))
        else:
            found = pattern.finditer(data, max(0, place - before), end)
        for match in found:
            if match is None or match.start() > place:
                return
            if place < match.end():
                yield match

    def _accepts(self, rank: int, match: re.Match[bytes]) -> bool:
        accept = self.rules[rank].accept
        start, end = secret_of(match)
        return start < end and (accept is None or accept(match))


def matches(texts: pa.Array, expression: str) -> np.ndarray:
    """Tell which texts (binary) hold a match of an expression that RE2 reads (bool; null: no).

    Raises:
        ArrowInvalid: RE2 cannot read it, or it is too large.
    """
    options = pc.MatchSubstringOptions(expression)
    found = pc.call_function("match_substring_regex", [texts], options)
    return found.fill_null(False).to_numpy(zero_copy_only=False)


def _span(rule: Rule, rank: int, view: View, match: re.Match[bytes]) -> Span:
    start, end = secret_of(match)
    secret = view.data[start:end]
    return Span(*view.span(start, end), rule.name, rank, view.depth, secret)


def _either(expressions: Sequence[str]) -> str:
    return "|".join(f"(?:{expression})" for expression in expressions)


def meets_placeholder(start: int, end: int, data: bytes) -> bool:
    """Tell whether a span is a part of a placeholder, or holds some of one."""
    near = max(0, start - _LONGEST_PLACEHOLDER_BYTES)
    return any(
        near + found.start() < end and start < near + found.end()
        for found in PLACEHOLDER.finditer(data[near : end + _LONGEST_PLACEHOLDER_BYTES])
    )
