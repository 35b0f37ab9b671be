r"""Cut a source into its lines: JSON lines, and the events of SSE dumps.

Lines end with \n alone: U+2028 and its kin are legal inside JSON strings, and cutting there loses
sessions. A line is handed out as it is, its \n and other blanks included: a copy of each would cost
more than to read it, and JSON does not mind. Blank lines and blocks of NUL are no records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import msgspec
import xxhash

from clawcli.ingest.read.find import Found
from clawcli.ingest.read.salvage import salvage
from clawcli.ingest.read.stream import CHUNK_BYTES, Stream, open_bytes

MAX_RECORD_BYTES = 1 << 28
"""What is longer is set aside as oversize, of which no more is held than its first bytes."""
FIRST_BYTES = 1 << 10
BLANK = b" \t\r\n\0"
BOM = b"\xef\xbb\xbf"
_BRACE, _NEWLINE = ord("{"), ord("\n")
_DATA = b"data:"
_EVENT_FIELDS = (b"event:", b"id:", b"retry:", b":")
_DONE = b"[DONE]"


class Record(msgspec.Struct, gc=False):
    """One record of a source, not yet decoded."""

    ordinal: int
    """Offset for lines and events, else a count from 0."""
    offset: int
    """Byte at which it begins in the uncompressed source; what it counts for zip and Parquet is
    said there."""
    raw: bytes


class Lines:
    """Iterates once over the records that begin in a range of a source.

    Ranges that border on each other give every line once, wherever the borders fall. The
    fingerprint keeps up with the records that were given; the other attributes hold once the
    iteration is through.
    """

    def __init__(
        self,
        source: Found,
        start: int = 0,
        end: int | None = None,
        *,
        resumed: bool | None = None,
        keep: bool = False,
    ) -> None:
        """Take the lines that begin in [start, end) of the uncompressed bytes; null = to the end.

        Args:
            source: where the lines are.
            start: first byte of the range.
            end: byte behind the range.
            resumed: an earlier run consumed all before start, so whatever comes there is a line,
                be it the rest of one that was whole then. Otherwise what comes before the first
                line belongs to the range before. null = it did where end is null.
            keep: what is read of standard input comes again at the next opening.
        """
        self.source, self.start, self.end, self.keep = source, start, end, keep
        self.resumed = end is None if resumed is None else resumed
        self.consumed = start
        """Offset behind the last complete record, or behind the blank lines that follow it."""
        self.pending: Record | None = None
        """A last line that is cut off: the file may still grow."""
        self.oversize: list[Record] = []
        """Records of more than 256 MiB, with their first bytes."""
        self.problem: str | None = None
        """Why the source could not be read through, in one sentence; null = it could."""
        self._hash = xxhash.xxh3_128()
        self._stream: Stream | None = None

    @property
    def fingerprint(self) -> str:
        """The xxh3_128 hex of the bytes [start, consumed), or up to the record given last."""
        return self._hash.hexdigest()

    @property
    def stored_bytes(self) -> int:
        """How many bytes as stored were fetched so far, for progress; some are read ahead."""
        fetched = self._stream.stored_bytes if self._stream else 0
        # what is read beyond a range is counted by the next one
        return fetched if self.end is None else min(fetched, self.end - self.start)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records.

        Raises:
            StoreError: the source cannot be opened.
            DataError: it is compressed in a way that claw does not read.
        """
        is_border = self.start > 0 and not self.resumed
        # the byte before the range tells whether a line begins where the range does
        self._stream = open_bytes(self.source, self.start - is_border, keep=self.keep)
        with self._stream as stream:
            try:
                offset = self._seek_line(stream) if is_border else self.start
                if offset is not None:
                    yield from self._lines(stream, offset)
                self.problem = stream.problem
            except OSError as error:
                self.problem = f"{self.source.label} cannot be read on: {error.strerror}."
            if self.consumed == self.start:
                self._hash.reset()  # of a line that began before the range, and went through it

    def _seek_line(self, stream: Stream) -> int | None:
        """Go to the first line that begins in the range; null = none does."""
        offset, is_inside = self.start, stream.read(1) != b"\n"
        while is_inside and (piece := stream.readline(CHUNK_BYTES)):
            self._hash.update(piece)
            offset, is_inside = offset + len(piece), piece[-1] != _NEWLINE
        is_beyond = self.end is not None and offset >= self.end
        return None if is_inside or is_beyond else offset

    def _lines(self, stream: Stream, offset: int) -> Iterator[Record]:
        end = sys.maxsize if self.end is None else self.end
        update, next_line = self._hash.update, partial(stream.readline, MAX_RECORD_BYTES + 1)
        try:
            while True:
                # a line that is a JSON object costs one look at either end
                for line in iter(next_line, b""):
                    if line[-1] != _NEWLINE or offset >= end:
                        break
                    update(line)
                    begin, offset = offset, offset + len(line)
                    if line[0] == _BRACE:
                        yield Record(begin, begin, line)
                    elif (record := self._record(line, begin)) is not None:
                        yield record
                else:
                    return
                if offset >= end:
                    return
                if len(line) <= MAX_RECORD_BYTES:
                    if (record := self._last(line, offset)) is not None:
                        update(line)
                        offset += len(line)
                        yield record
                    return
                self.oversize.append(Record(offset, offset, line[:FIRST_BYTES]))
                while line:
                    update(line)
                    offset += len(line)
                    line = b"" if line[-1] == _NEWLINE else stream.readline(CHUNK_BYTES)
        finally:
            self.consumed = offset

    def _last(self, line: bytes, offset: int) -> Record | None:
        r"""Make a record of a line that no \n ends if it is whole, else keep it as pending."""
        record = self._record(line, offset)
        if record is not None and is_whole(record.raw):
            return record
        self.pending = record
        return None

    def _record(self, line: bytes, offset: int) -> Record | None:
        """Make a record of a line; None = it is blank."""
        if not line.strip(BLANK):
            return None
        if offset == 0 and line.startswith(BOM):
            rest = line.removeprefix(BOM)
            return Record(len(BOM), len(BOM), rest) if rest.strip(BLANK) else None
        return Record(offset, offset, line)


class Events(Lines):
    """Iterates once over the JSON of the data: lines of an SSE dump; its other lines are none."""

    def _record(self, line: bytes, offset: int) -> Record | None:
        record = super()._record(line, offset)
        if record is None or record.raw.startswith(_EVENT_FIELDS):
            return None
        data = record.raw.removeprefix(_DATA)
        if data.strip(BLANK) in (b"", _DONE):
            return None
        place = record.offset + len(record.raw) - len(data)
        return Record(place, place, data)


def is_whole(raw: bytes) -> bool:
    """Tell whether bytes are nothing but whole JSON objects or arrays, after salvage if need be.

    A number or a word is not: it might go on.

    Example:
        >>> is_whole(b'{"a": NaN}'), is_whole(b'{"a": 1'), is_whole(b"12")
        (True, False, False)
    """
    if raw.lstrip(BLANK)[:1] not in (b"{", b"["):
        return False
    if decodes(raw):
        return True
    salvaged = salvage(raw)
    return bool(salvaged.pieces) and not salvaged.rejects


def decodes(raw: bytes | memoryview) -> bool:
    """Tell whether bytes are one JSON value.

    Example:
        >>> decodes(b'{"a": 1}'), decodes(b'{"a": NaN}')
        (True, False)
    """
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def fingerprint(source: Found, end: int, start: int = 0) -> xxhash.xxh3_128:
    """Hash the uncompressed bytes [start, end) of a source, or as far as they go.

    Raises:
        StoreError: the source cannot be opened.
        DataError: it is compressed in a way that claw does not read.
    """
    found = xxhash.xxh3_128()
    with open_bytes(source, start) as stream:
        left = end - start
        while left > 0 and (piece := stream.read(min(left, CHUNK_BYTES))):
            found.update(piece)
            left -= len(piece)
    return found
