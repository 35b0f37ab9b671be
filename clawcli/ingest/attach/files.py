"""Read tables in files: JSON lines, a JSON array, CSV or Parquet become rows, one field at a time.

The content decides about the format, never the name. A million rows are read in seconds, so nothing
here makes an object of each.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from clawcli.errors import DataError, NotFoundError
from clawcli.ingest.read.find import Found, is_url
from clawcli.ingest.read.stream import open_bytes

_FORMATS = "Rows are read from JSON lines, JSON, CSV and Parquet."
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    fields: Mapping[str, Any]
    place: str
    """Where it stands, for messages: the file and the line or row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a file, to be read field by field."""

    label: str
    """The file, for messages."""
    content: pa.Table | list[Any]
    """One column a field, or one record a row."""
    place: Callable[[int], str]
    """Number of a row, from 0 -> where it stands."""
    is_text: bool = False
    """Every value is text, as in CSV, where an empty one is null."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.content)

    def __iter__(self) -> Iterator[Row]:
        """Go through the rows one by one, which takes its time where they are many."""
        content = self.content
        records = content if isinstance(content, list) else content.to_pylist()
        return (Row(record, self.place(number)) for number, record in enumerate(records))

    @property
    def fields(self) -> list[str]:
        """List the fields that any row has, in the order in which they first stand."""
        content = self.content
        if isinstance(content, list):
            return list(dict.fromkeys(chain.from_iterable(content)))
        return list(content.column_names) if len(content) else []

    def column(self, path: str) -> pa.ChunkedArray | list[Any]:
        """Take one field of all rows; null, or None, where a row lacks it."""
        content = self.content
        if isinstance(content, list):
            if "." not in path:
                return [record.get(path) for record in content]
            return [at(record, path) for record in content]
        if path in content.column_names:
            return content[path]
        name = path.split(".", 1)[0]
        if name not in content.column_names:
            return [None] * len(content)
        return [at({name: value}, path) for value in content[name].to_pylist()]

    def values(self, path: str) -> list[Any]:
        """Take one field of all rows as Python has it."""
        found = self.column(path)
        return found if isinstance(found, list) else found.to_pylist()


def refuse_missing(path: str) -> None:
    """Refuse a local path where nothing is; what a URL leads to shows when it is read.

    Raises:
        NotFoundError: nothing is there.
    """
    if path != "-" and not is_url(path) and not Path(path).exists():
        raise NotFoundError(f"{Found(path).label} does not exist.", "Check the path.")


def at(fields: Any, path: str) -> Any:
    """Look up a field by its name, or by the dotted names that lead to it; None where it is not.

    Example:
        >>> at({"info": {"scores": [0.5, 1.0]}}, "info.scores.1")
        1.0
    """
    if isinstance(fields, Mapping) and path in fields:
        return fields[path]
    value = fields
    for name in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def records(path: str) -> Rows:
    """Read the records of one file as they stand.

    Args:
        path: JSON lines, JSON, CSV (comma or tab) or Parquet, also compressed with gzip or zstd,
            at a URL or "-".

    Raises:
        NotFoundError: nothing is there.
        StoreError: the file cannot be read.
        DataError: it is in none of the formats, or a line of it is not.
    """
    found = Found(path)
    refuse_missing(path)
    with open_bytes(found) as stream:
        data = stream.read()
        problem = stream.problem
    if problem is not None:  # half of the rows would look like all of them
        raise DataError(problem, "Write the file again.")
    if data.startswith(b"PAR1"):
        return _parquet(found.label, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{found.label} is neither Parquet nor UTF-8 text: byte {error.start:,}.", _FORMATS
        ) from error
    if text.lstrip()[:1] in ("{", "["):
        return _json(found.label, text)
    return _csv(found.label, text)


def _parquet(label: str, data: bytes) -> Rows:
    try:
        rows = pq.read_table(pa.BufferReader(data))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{label} is no whole Parquet file: {error}.", "Write it again.") from error
    _refuse_repeated(label, rows.column_names)
    return Rows(label, rows, lambda number: f"{label} row {number + 1}")


def _csv(label: str, text: str) -> Rows:
    head = text.split("\n", 1)[0]
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if "\t" in head else ",", strict=True
    )
    lines: list[int] = []
    rows: list[list[str]] = []
    names: list[str] = []
    try:
        names = next(reader, [])
        for row in filter(None, reader):
            # what is beyond the named columns, or missing of them, would shift the values
            if len(row) != len(names):
                raise DataError(
                    f"{label} line {reader.line_num} has not as many fields as its first line.",
                    _FORMATS,
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(
            f"{label} line {reader.line_num} is no CSV: {error}.", "Correct the line."
        ) from error
    _refuse_repeated(label, names)
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    arrays = [pa.array(column, pa.string()) for column in columns]
    table = pa.table(arrays, names=names)
    return Rows(label, table, lambda number: f"{label} line {lines[number]}", is_text=True)


def _refuse_repeated(label: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{label} has two columns {twice!r}.", "Give each a name of its own.")


def _json(label: str, text: str) -> Rows:
    try:
        whole = _decoded(text)
    except (ValueError, RecursionError):
        return _json_lines(label, text)
    if isinstance(whole, list):
        return Rows(label, whole, lambda number: f"{label} element {number + 1}")
    return Rows(label, [whole], lambda _: label)


def _json_lines(label: str, text: str) -> Rows:
    records: list[Any] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(_decoded(line))
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{label} line {number} is not JSON: {error}.", "Correct or leave out the line."
            ) from error
        lines.append(number)
    return Rows(label, records, lambda number: f"{label} line {lines[number]}")


def _decoded(text: str) -> Any:
    """Decode JSON; the slower decoder knows NaN, and its errors are easier to read."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return json.loads(text)
