r"""Find sources and cut their bytes into records.

A source is a file, a compressed file, or standard input. Its bytes are JSON lines, one JSON array
(each element is a record) or one JSON document. Lines end with \n alone: U+2028 and its kin are
legal inside JSON strings, and cutting there loses sessions.
"""

from __future__ import annotations

import glob
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from clawcli.errors import DataError, NotFoundError, StoreError
from clawcli.store.artefact import is_artefact

_SUFFIXES = (".json", ".jsonl", ".ndjson")
_COMPRESSED = (".gz", ".zst")
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_CHUNK_BYTES = 1 << 20
_SMALL_CHUNK_BYTES = 1 << 9


@dataclass(slots=True)
class Source:
    """The uncompressed bytes of one source."""

    path: str
    """As given or found; "-" is standard input."""
    data: bytes
    problem: str | None = None
    """Why the source could not be read through; what came before is in data."""

    @property
    def label(self) -> str:
        """The path as it is stored and shown; bytes that are no UTF-8 are spelt out."""
        return os.fsencode(self.path).decode(errors="backslashreplace")

    @property
    def name(self) -> str:
        """File name without a compression suffix: the part of a path that identity rests on."""
        name = Path(self.label).name
        return name.removesuffix(".gz").removesuffix(".zst")


@dataclass(slots=True)
class Record:
    """One record of a source, not yet decoded."""

    ordinal: int
    offset: int
    raw: bytes | msgspec.Raw


@dataclass(slots=True)
class Records:
    """A source cut into records."""

    container: str
    """lines, array or document."""
    records: list[Record] = field(default_factory=list)
    pending: Record | None = None
    """A last line that is cut off: the file may still grow."""


def find(inputs: Sequence[str]) -> list[str]:
    """List the paths that inputs name, in order and without repeats.

    Folders give the files below them that end in .json, .jsonl or .ndjson, also with .gz or .zst.

    Raises:
        NotFoundError: an input names nothing.
    """
    found: dict[str, None] = {}
    for text in inputs:
        for path in _expand(text):
            found.setdefault(path)
    return list(found)


def _expand(text: str) -> list[str]:
    if text == "-":
        return ["-"]
    path = Path(text)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and _is_log(p, below=path))
        if not files:
            raise NotFoundError(
                f"{text} holds no log.", f"Logs end in {', '.join(_SUFFIXES)}, also with .gz, .zst."
            )
        return [str(p) for p in files]
    if path.exists():
        return [text]
    matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if files := [match for match in matches if Path(match).is_file()]:
        return files
    if matches:
        raise NotFoundError(f"{text} names folders only.", "Name files, or the folder above.")
    raise NotFoundError(f"{text} does not exist.", "Check the path.")


def _is_log(path: Path, *, below: Path) -> bool:
    name = path.name
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    if not name.endswith(_SUFFIXES) or name.startswith("."):
        return False
    # what claw itself wrote below a folder of logs is no log
    above = [folder for folder in path.parents if below in folder.parents]
    return not any((folder / "_delta_log").is_dir() or is_artefact(folder) for folder in above)


def read(path: str) -> Source:
    """Read a source and undo its compression, which is known by its first bytes.

    A stream that breaks off gives what came before and a problem, never a silent half.

    Raises:
        StoreError: the file cannot be opened.
    """
    if path == "-" and sys.stdin is None:
        raise StoreError("Standard input is closed.", "Name a file in place of -.")
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.", "Check the file.") from error
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    return Source(path, data) if kind is None else _decompress(path, data, kind)


def _decompress(path: str, data: bytes, kind: str) -> Source:
    plain, reason = _inflate(data, kind, _CHUNK_BYTES)
    if reason is None:
        return Source(path, plain)
    # a read that fails gives nothing of its chunk, so small ones come closest to the break
    plain, reason = _inflate(data, kind, _SMALL_CHUNK_BYTES)
    return Source(path, plain, f"{path}: the {kind} stream breaks off: {reason}")


def _inflate(data: bytes, kind: str, chunk_bytes: int) -> tuple[bytes, str | None]:
    chunks = []
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), kind) as stream:
            while chunk := stream.read(chunk_bytes):
                chunks.append(chunk)
    except OSError as error:
        return b"".join(chunks), str(error).strip().splitlines()[0]
    return b"".join(chunks), None


def split(source: Source) -> Records:
    """Cut a source into records.

    Raises:
        DataError: it is one JSON array or document and not complete.
    """
    data = source.data
    start = len(data) - len(data.removeprefix(b"\xef\xbb\xbf").lstrip())
    if data[start : start + 1] == b"[":
        return Records("array", _elements(source, start))
    lines = list(_lines(data))
    if len(lines) > 1 and not _decodes(lines[0][1]):
        # one document over several lines, as pretty-printers write it, or a damaged first line
        if _decodes(data[start:]):
            return Records("document", [Record(0, start, data[start:].strip())])
        if lines[0][1].strip() == b"{":
            raise DataError(
                f"{source.path} is one JSON document that is not complete.", "Log it again."
            )
    records = [Record(i, offset, raw) for i, (offset, raw) in enumerate(lines)]
    pending = None
    if records and not data.endswith(b"\n") and not _decodes(records[-1].raw):
        pending = records.pop()
    return Records("lines", records, pending)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for line in data.split(b"\n"):
        content = line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line
        content = content.strip(b"\r\0 \t")
        if content:
            yield offset, content
        offset += len(line) + 1


def _elements(source: Source, start: int) -> list[Record]:
    """Cut a JSON array into its elements, each with its own bytes.

    Raises:
        DataError: the array is not complete.
    """
    try:
        text = source.data[start:].decode()
        places = list(_element_places(text))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{source.path} is one JSON array that is not complete: {error}.", "Log it again."
        ) from error
    records, offset, before = [], start, 0
    for ordinal, (begin, end) in enumerate(places):
        offset += len(text[before:begin].encode())
        raw = text[begin:end].encode()
        records.append(Record(ordinal, offset, raw))
        offset, before = offset + len(raw), end
    return records


def _element_places(text: str) -> Iterator[tuple[int, int]]:
    """Find where each element of a JSON array begins and ends; text begins with its bracket."""
    decode = json.JSONDecoder().raw_decode
    place = _skip_space(text, 1)
    while text[place : place + 1] != "]":
        _, end = decode(text, place)
        yield place, end
        place = _skip_space(text, end)
        if text[place : place + 1] == ",":
            place = _skip_space(text, place + 1)
        elif text[place : place + 1] != "]":
            raise ValueError(f"no comma and no end of the array at character {place:,}")


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def salvage(raw: bytes) -> tuple[bytes, list[str]]:
    """Mend what Python writes and JSON does not allow, and say so.

    NaN and infinities become null, lone surrogates the replacement character.

    Returns:
        The record as JSON, and the codes of what was mended: non_finite_to_null,
        surrogate_replaced.

    Raises:
        ValueError: it is no JSON even so.

    Example:
        >>> salvage(b'{"reward": NaN}')
        (b'{"reward": null}', ['non_finite_to_null'])
    """
    codes: dict[str, None] = {}

    def to_null(literal: str) -> None:
        codes.setdefault("non_finite_to_null")

    def to_number(digits: str) -> float | None:
        return value if math.isfinite(value := float(digits)) else to_null(digits)

    value = json.loads(raw, parse_constant=to_null, parse_float=to_number)
    text = json.dumps(value, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):
        codes.setdefault("surrogate_replaced")
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.encode(), list(codes)


def _decodes(raw: bytes | msgspec.Raw) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
