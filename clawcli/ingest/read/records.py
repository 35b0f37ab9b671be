"""From a source to its records: what it holds is told by its first bytes, never by its name.

head(source) looks at the beginning: the container, the first record, some samples to find the
format by. reader(source, head) then iterates over all records. Large files of lines are cut into
ranges, each read by Lines on its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clawcli.errors import DataError
from clawcli.ingest.read import packed, unpack
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.lines import (
    BLANK,
    MAX_RECORD_BYTES,
    Events,
    Lines,
    Record,
    decodes,
    fingerprint,
)
from clawcli.ingest.read.salvage import is_cut, salvage
from clawcli.ingest.read.stream import CHUNK_BYTES, Stream, open_bytes
from clawcli.ingest.read.whole import (
    MAX_WHOLE_BYTES,
    Whole,
    first_place,
    sample_record,
    side_by_side,
    too_large,
)

__all__ = [
    "MAX_RECORD_BYTES",
    "Events",
    "Head",
    "Lines",
    "Record",
    "Whole",
    "fingerprint",
    "head",
    "reader",
]

_SAMPLES = 20
_SAMPLE_BYTES = 1 << 24
_LOOK_RECORDS = 10_000
_ZIP, _PARQUET = b"PK\x03\x04", b"PAR1"
_EVENT_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(slots=True)
class Head:
    """What the beginning of a source tells."""

    container: str
    """lines, sse, array, document, zip, parquet, empty."""
    compression: str | None = None
    """gzip or zstd; null = none."""
    first: bytes = b""
    """The first complete record, blanks at its ends left out: what identity rests on. For an
    archive the first sample without the log's header, which changes as the log grows."""
    samples: list[bytes] = field(default_factory=list)
    """The first records that can be decoded, at most 20, mended where that was needed."""

    def decoded(self) -> list[Any]:
        """Decode the samples."""
        return [msgspec.json.decode(sample) for sample in self.samples]


def head(source: Found) -> Head:
    """Look at the beginning of a source.

    What standard input gave comes again when it is read. Lines are looked at until 20 records
    could be decoded, arrays likewise; a document is read whole.

    Raises:
        StoreError: the source cannot be opened.
        DataError: it is compressed in a way that claw does not read, is a zip archive but no
            Inspect log, no intact Parquet, or one document of more than 1 GiB.
    """
    with open_bytes(source, keep=True) as stream:
        window = stream.read(CHUNK_BYTES)
        compression = stream.compression
        container = _container(window, stream)
        if container == "array":
            return _head_of(container, compression, _first_elements(source, window, stream))
        if container == "document":
            # what is cut off has no samples; reading it will tell
            return _head_of(container, compression, _document(source, window, stream))
    if container in ("lines", "sse"):
        lines = (Lines if container == "lines" else Events)(source, keep=True)
        return _head_of(container, compression, (record.raw for record in lines))
    if compression and container in ("zip", "parquet"):
        raise DataError(
            f"{source.label} is {container} inside {compression}.", f"Undo the {compression} first."
        )
    if container == "zip":
        return _head_of_archive(source)
    rows = (raw for _, raw in packed.rows(source)) if container == "parquet" else ()
    return _head_of(container, compression, rows)


def reader(source: Found, head: Head) -> Lines | Whole:
    """Make the iterator over all records of a source."""
    if head.container in ("lines", "empty"):
        return Lines(source)
    return Events(source) if head.container == "sse" else Whole(source, head)


def _container(window: bytes, stream: Stream) -> str:
    """Tell from up to 1 MiB what a source holds."""
    if window.startswith(_ZIP):
        return "zip"
    if window.startswith(_PARQUET):
        return "parquet"
    text = window[first_place(window) :]
    if not text:
        return "lines" if stream.peek(1) else "empty"
    line, _, rest = text.partition(b"\n")
    if line.startswith(_EVENT_STARTS):
        return "sse"
    if decodes(line):
        is_array = line.startswith(b"[") and not rest.strip(BLANK)
        return "array" if is_array else "lines"
    if line.startswith(b"["):
        return "array"
    return "document" if rest and _goes_on(text, len(line)) else "lines"


def _goes_on(text: bytes, line_bytes: int) -> bool:
    """Tell whether the JSON that begins with the first line is sound beyond it."""
    decoded = text.decode(errors="replace")
    try:
        _, end = json.JSONDecoder(parse_int=str).raw_decode(decoded)
    except json.JSONDecodeError as error:
        return is_cut(error)
    except RecursionError:
        return False
    return len(decoded[:end].encode(errors="replace")) > line_bytes


def _head_of(container: str, compression: str | None, raws: Iterable[bytes]) -> Head:
    """Take the first record and the samples."""
    found = Head(container, compression)
    num_bytes = 0
    for number, raw in enumerate(raws):
        if number == 0:
            found.first = raw.strip(BLANK)
        pieces = [raw] if decodes(raw) else [piece for _, piece, _ in salvage(raw).pieces]
        found.samples.extend(pieces)
        num_bytes += len(raw)
        if len(found.samples) >= _SAMPLES or num_bytes > _SAMPLE_BYTES or number > _LOOK_RECORDS:
            break
    del found.samples[_SAMPLES:]
    return found


def _head_of_archive(source: Found) -> Head:
    first = b""

    def raws() -> Iterator[bytes]:
        nonlocal first
        for _, header, sample in packed.samples(source, limit=MAX_RECORD_BYTES):
            first = first or sample.strip(BLANK)
            yield sample_record(header, sample)

    found = _head_of("zip", None, _until_broken(raws()))
    found.first = first
    return found


def _until_broken(raws: Iterator[bytes]) -> Iterator[bytes]:
    """Give what comes before a break; reading all will tell of it."""
    try:
        yield from raws
    except unpack.Broken:
        return


def _first_elements(source: Found, window: bytes, stream: Stream) -> Iterator[bytes]:
    """Give the first elements of an array, reading on until there are enough."""
    data = bytearray(window)
    start = first_place(data) + 1
    while True:
        spans, _, is_closed = side_by_side(data, start, most=_SAMPLES)
        piece = b"" if is_closed or len(spans) >= _SAMPLES else stream.read(len(data))
        if not piece or (len(data) > _SAMPLE_BYTES and spans):
            return (bytes(data[begin:end]) for begin, end in spans)
        data += piece
        if len(data) > MAX_WHOLE_BYTES:
            raise too_large(source, "array")


def _document(source: Found, window: bytes, stream: Stream) -> Iterator[bytes]:
    """Give the documents that the source holds in full."""
    data = bytearray(window)
    while piece := stream.read(CHUNK_BYTES):
        data += piece
        if len(data) > MAX_WHOLE_BYTES:
            raise too_large(source, "document")
    start = first_place(data)
    if decodes(memoryview(data)[start:]):
        return iter([bytes(data[start:])])
    spans, _, _ = side_by_side(data, start, most=_SAMPLES)
    return (bytes(data[begin:end]) for begin, end in spans)
