"""Read a source that is no stream of lines: a JSON array, documents, an Inspect log, Parquet.

An array gives its elements, a document itself (or each of several that were pretty-printed one
after the other), an Inspect .eval archive its samples, Parquet its rows. A cut array keeps its
complete elements. Arrays and documents are held in memory, up to 1 GiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import xxhash

from clawcli.errors import DataError
from clawcli.ingest.read import packed, unpack
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.lines import BLANK, FIRST_BYTES, MAX_RECORD_BYTES, Record
from clawcli.ingest.read.stream import CHUNK_BYTES, open_bytes, open_stored

if TYPE_CHECKING:
    from clawcli.ingest.read.records import Head

MAX_WHOLE_BYTES = 1 << 30
_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}"]', re.DOTALL)
_BEFORE = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n\0]*+")
_BETWEEN = re.compile(rb"[ \t\r\n\0,]*+")

_QUOTE, _OPENING = ord('"'), b"[{"

Span = tuple[int, int]
"""Where a value begins and ends."""


class Whole:
    """Iterates once over the records of a source that is read as a whole.

    The attributes hold once the iteration is through, and mean what they mean for Lines. For
    archives and Parquet, consumed and fingerprint cover the file as stored, and the offsets of
    records are those of the sample's entry and the number of the row.
    """

    def __init__(self, source: Found, head: Head) -> None:
        """Take the records of a source whose container is array, document, zip or parquet."""
        self.source, self.container = source, head.container
        self.consumed = 0
        self.pending: Record | None = None
        self.oversize: list[Record] = []
        self.problem: str | None = None
        self.stored_bytes = 0
        self._hash = xxhash.xxh3_128()
        self._num_records = 0

    @property
    def fingerprint(self) -> str:
        """The xxh3_128 hex of the bytes [0, consumed)."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[Record]:
        """Yield the records.

        Raises:
            StoreError: the source cannot be opened.
            DataError: it is too large to be read as a whole, or is damaged from its beginning.
        """
        return self._packed() if self.container in ("zip", "parquet") else self._text()

    def _text(self) -> Iterator[Record]:
        data = self._load()
        start = first_place(data)
        is_array = self.container == "array"
        spans = (self._elements if is_array else self._documents)(data, start)
        view = memoryview(data)
        for begin, end in spans:
            raw = bytes(view[begin : min(end, begin + MAX_RECORD_BYTES + 1)])
            if (record := self._record(begin, raw)) is not None:
                yield record
        self.consumed = spans[-1][1] if spans else start + is_array
        self._hash.update(view[: self.consumed])

    def _load(self) -> bytearray:
        data = bytearray()
        with open_bytes(self.source) as stream:
            while piece := stream.read(CHUNK_BYTES):
                data += piece
                if len(data) > MAX_WHOLE_BYTES:
                    raise too_large(self.source, self.container)
            self.problem, self.stored_bytes = stream.problem, stream.stored_bytes
        return data

    def _record(self, offset: int, raw: bytes) -> Record | None:
        """Make the next record; one that is too large is set aside."""
        ordinal = self._num_records
        self._num_records += 1
        if len(raw) > MAX_RECORD_BYTES:
            self.oversize.append(Record(ordinal, offset, raw[:FIRST_BYTES]))
            return None
        return Record(ordinal, offset, raw)

    def _elements(self, data: bytearray, start: int) -> list[Span]:
        """Find the elements of an array; what is wrong with it becomes the problem."""
        try:
            elements = msgspec.json.decode(memoryview(data)[start:], type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            spans, rest, is_closed = side_by_side(data, start + 1)
        else:
            return _places(data, start + 1, elements)
        if not is_closed:
            self._pend(data, rest, len(spans))
            self._note(
                "is a JSON array that is not complete: "
                f"it breaks off after {len(spans):,} whole elements"
            )
        elif data[rest + 1 :].strip(BLANK):
            self._note(f"goes on behind its JSON array, at byte {rest + 1:,}: that was not read")
        return spans

    def _documents(self, data: bytearray, start: int) -> list[Span]:
        """Find the documents; one that is cut off becomes pending and the problem."""
        try:
            document = msgspec.json.decode(memoryview(data)[start:], type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            spans, rest, is_closed = side_by_side(data, start)
        else:
            return _places(data, start, [document])
        if is_closed:
            # a bracket that nothing opened: damaged, and no telling where what begins
            return [*spans, (rest, len(data.rstrip(BLANK)))]
        self._pend(data, rest, len(spans))
        if self.pending:
            self._note("is a JSON document that is not complete")
        return spans

    def _pend(self, data: bytearray, place: int, ordinal: int) -> None:
        place = _skip_between(data, place)
        if place < len(data):
            self.pending = Record(ordinal, place, bytes(data[place : place + FIRST_BYTES]))

    def _note(self, what: str) -> None:
        """Keep a problem, unless the stream itself already had one."""
        self.problem = self.problem or f"{self.source.label} {what}."

    def _packed(self) -> Iterator[Record]:
        try:
            for offset, raw in self._packed_records():
                if (record := self._record(offset, raw)) is not None:
                    yield record
        except unpack.Broken as broken:
            self._note(f"is damaged: {broken}")
        with open_stored(self.source) as file:
            while piece := file.read(CHUNK_BYTES):
                self._hash.update(piece)
                self.consumed += len(piece)
        self.stored_bytes = self.consumed

    def _packed_records(self) -> Iterator[tuple[int, bytes]]:
        if self.container == "parquet":
            yield from packed.rows(self.source)
            return
        for offset, header, sample in packed.samples(self.source, limit=MAX_RECORD_BYTES):
            yield offset, sample_record(header, sample)


def sample_record(header: bytes, sample: bytes) -> bytes:
    """Join the header of an Inspect log and one of its samples to a record."""
    return b'{"inspect_header": %b, "sample": %b}' % (header, sample)


def too_large(source: Found, container: str) -> DataError:
    """Make the error for a text that is too large to be read as a whole."""
    return DataError(
        f"{source.label} is a JSON {container} of more than {MAX_WHOLE_BYTES >> 30} GiB.",
        "Make JSON lines of it: jq -c '.[]' FILE > FILE.jsonl"
        if container == "array"
        else "Log one record a line.",
    )


def first_place(data: bytes | bytearray) -> int:
    """Tell where a text begins behind a BOM and blanks.

    Example:
        >>> first_place(b"  [1]")
        2
    """
    return _BEFORE.match(data).end()  # pyright: ignore[reportOptionalMemberAccess]


def side_by_side(
    data: bytes | bytearray, place: int, *, most: int | None = None
) -> tuple[list[Span], int, bool]:
    """Find the values that stand side by side, by strings and brackets alone.

    What is wrong inside a value harms no other, unless it is a quote or a bracket. Whatever stands
    between objects, arrays and commas counts as one value.

    Args:
        data: JSON text, maybe cut or damaged.
        place: where the first value may begin.
        most: stop after so many values; null = at the end.

    Returns:
        The values, the place behind them, and whether a bracket that nothing opened stands there:
        the end of the array that place lies in.

    Example:
        >>> side_by_side(b'[{"a": 1}, 2, {"b', 1)
        ([(1, 9), (11, 12)], 14, False)
    """
    spans: list[Span] = []
    depth, end = 0, place
    for match in _STRUCTURE.finditer(data, place):
        token, begin = data[match.start()], match.start()
        if token == _QUOTE:
            if match.end() - begin == 1:
                break  # a string that does not end
        elif token in _OPENING:
            if depth == 0:
                _add_between(data, end, begin, spans)
                end = begin
            depth += 1
        elif depth == 0:
            _add_between(data, end, begin, spans)
            return spans, begin, True
        else:
            depth -= 1
            if depth == 0:
                spans.append((end, match.end()))
                end = match.end()
                if most is not None and len(spans) >= most:
                    break
    return spans, end, False


def _add_between(data: bytes | bytearray, begin: int, end: int, spans: list[Span]) -> None:
    """Add what stands between two values, if anything does."""
    begin = _skip_between(data, begin, end)
    if begin < end:
        spans.append((begin, begin + len(data[begin:end].rstrip(BLANK + b","))))


def _skip_between(data: bytes | bytearray, place: int, end: int | None = None) -> int:
    end = len(data) if end is None else end
    return _BETWEEN.match(data, place, end).end()  # pyright: ignore[reportOptionalMemberAccess]


def _places(data: bytearray, place: int, elements: list[msgspec.Raw]) -> list[Span]:
    """Find where the decoded elements of an array lie: each is followed by a comma or the end."""
    spans = []
    for element in elements:
        place = _skip_between(data, place)
        spans.append((place, place := place + memoryview(element).nbytes))
    return spans
