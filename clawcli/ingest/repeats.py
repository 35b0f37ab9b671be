"""Leave out of a record what its request repeats of earlier ones, byte for byte.

An agent's request repeats the whole conversation so far, and a client that keeps it as text repeats
its bytes. Parsing them again gives what it gave before: JSON elements that begin at the same place
of an array and have the same bytes are the same elements. So they are hashed instead, and cut out
of the record before it is parsed. A mark takes their place, and only where the parser finds it as
the first message of the request was the array that was cut the request's.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
import xxhash

T = TypeVar("T")

_KEY = b'"messages"'
_OPEN = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[')
_BLOCK_BYTES = 4096
"""What is repeated is found to this many bytes; less is left to the parser."""
_BETWEEN = b", \t\r\n"
_MARK = secrets.token_hex(16).encode().join((b'"', b'"'))
"""No log holds it, for each process makes its own."""


class Prefix(msgspec.Struct, Generic[T]):
    """A beginning of a list of messages that was parsed before."""

    end: int
    """Bytes from the bracket to the end of its last message."""
    value: T
    """What was made of its messages."""


class Shortened(msgspec.Struct, Generic[T]):
    """A record without the messages that an earlier one had."""

    json: bytes
    """The record, a mark in place of the messages; without prefix, as it was logged."""
    raw: bytes
    """The record as it was logged."""
    start: int
    """Offset behind the bracket that the messages begin with."""
    keys: Sequence[bytes]
    """Hashes of the bytes behind the bracket: the first block, the first two, ..."""
    known: int = 0
    """How many of these are known."""
    prefix: Prefix[T] | None = None

    def split(self, messages: Sequence[msgspec.Raw]) -> Sequence[msgspec.Raw] | None:
        """List the messages behind the prefix; null = it is not of these that it was cut."""
        if self.prefix is None:
            return messages
        return messages[1:] if messages and bytes(messages[0]) == _MARK else None


class Repeats(Generic[T]):
    """Beginnings of lists of messages, found by the hashes of their blocks."""

    def __init__(self) -> None:
        self._known: dict[bytes, Prefix[T]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def shorten(self, raw: bytes) -> Shortened[T] | None:
        """Cut out of a record the messages that it repeats; null = it is too small for that."""
        place = raw.find(_KEY)
        if place < 0 or len(raw) - place < 2 * _BLOCK_BYTES:
            return None
        if (opened := _OPEN.match(raw, place)) is None:
            return None
        start = opened.end()
        hashing, keys = xxhash.xxh3_128(), []
        view = memoryview(raw)
        for at in range(start, len(raw) - _BLOCK_BYTES, _BLOCK_BYTES):
            hashing.update(view[at : at + _BLOCK_BYTES])
            keys.append(hashing.digest())
        found = Shortened(raw, raw, start, keys)
        for count in range(len(keys), 0, -1):
            if (prefix := self._known.get(keys[count - 1])) is not None:
                found.known, found.prefix = count, prefix
                found.json = b"".join((raw[:start], _MARK, view[start + prefix.end :]))
                break
        return found

    def learn(
        self, record: Shortened[T], messages: Sequence[msgspec.Raw | bytes], values: Sequence[T]
    ) -> None:
        """Remember what a record has beyond its prefix.

        Args:
            record: as shorten gave it.
            messages: JSON of the messages behind the prefix: objects.
            values: what was made of the messages up to and with each of these.
        """
        raw, start = record.raw, record.start
        prefix = record.prefix
        at = start if prefix is None else start + prefix.end
        number = record.known
        for message, value in zip(messages, values, strict=True):
            while raw[at] in _BETWEEN:
                at += 1
            at += len(memoryview(message))
            while number < len(record.keys) and start + (number + 1) * _BLOCK_BYTES < at:
                # the block ends within this message
                if prefix is not None:
                    self._known[record.keys[number]] = prefix
                number += 1
            if number == len(record.keys):
                return
            prefix = Prefix(at - start, value)
