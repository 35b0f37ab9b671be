"""Data files of tables: Parquet under names that nothing refers to until a commit does.

Any process may write them; what comes back is small, crosses processes and is all that a commit
needs. A file is on the disk, and so is its name, before it is handed to one, so that no power cut
leaves a version of a table that names an empty file.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, reduce
from hashlib import blake2b
from io import BytesIO
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from clawcli.errors import StoreError
from clawcli.store import artefact
from clawcli.store.remote import Place, Remote

STATS_COLUMNS = (
    "step_uid",
    "source_uid",
    "trajectory_uid",
    "step_index",
    "group_uid",
    "parent_step_uid",
    "reward",
    "trajectory_reward",
    "policy_version",
    "input_tokens",
    "output_tokens",
    "started_at",
    "loss_weight",
)
"""Columns whose bounds go into the table's log. Delta's default statistics copy 64 characters of
message text there, where they would outlive the rows; only keys and numbers may be in it."""
# random hex does not repeat, so a dictionary of it only costs space
_NO_DICTIONARY = {"step_uid", "parent_step_uid", "state_hash", "next_hash", "native_id"}
_GROWING = {"started_at", "ended_at", "source_offset", "input_tokens", "output_tokens"}
"""Integers that differ little from row to row, which saves 16 bytes a step."""
_GROUP_ROWS = 4096
_GROUP_BYTES = 32 << 20
_PAGE_BYTES = 4 << 20
"""Compression starts anew with each page, so that small ones cost space and time."""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file that was written, for a commit to refer to."""

    path: str
    """Below the table, with slashes: ASCII letters, digits and -_.=/ alone."""
    size_bytes: int
    rows: int
    partition_values: Mapping[str, str | None]
    stats: str
    """Delta's statistics as JSON: number of rows, bounds and nulls of some columns."""


def write_files(
    root: Place,
    rows: pa.Table,
    partition_by: Sequence[str] = (),
    *,
    stats: Sequence[str] = STATS_COLUMNS,
) -> list[AddedFile]:
    """Write rows into data files, one for each partition; they belong to no version yet.

    Args:
        root: directory of the table.
        rows: in the order that they are to have within their partition; may be empty.
        partition_by: string columns, never empty strings, which Delta takes for null.
        stats: columns whose bounds may be in the table's log.

    Returns:
        One entry a file, by partition values.

    Raises:
        StoreError: the disk is full or the place cannot be written; no file is left then.
    """
    written = []
    try:
        for values, part in _partitions(rows, partition_by):
            written.append(write_file(root, [part], part.schema, values, stats=stats))
    except BaseException:
        remove(root, written)
        raise
    return written


def write_file(
    root: Place,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    partition_values: Mapping[str, str | None],
    *,
    stats: Sequence[str] = STATS_COLUMNS,
) -> AddedFile:
    """Write one data file, holding no more than a row group of it in memory.

    Args:
        root: directory of the table.
        tables: the rows piece by piece, without partition columns.
        schema: their columns.
        partition_values: values of the partition columns, which all rows share.
        stats: columns whose bounds may be in the table's log.

    Raises:
        StoreError: the disk is full or the place cannot be written; no file is left then.
    """
    folders = [f"{name}={_folder(value)}" for name, value in partition_values.items()]
    path = "/".join([*folders, f"part-{uuid.uuid4().hex}.parquet"])
    place = root / path
    file_system, name = arrow_place(place)
    try:
        if isinstance(place, Path):
            make_directory(place.parent)
        with (
            file_system.open_output_stream(name) as sink,
            pq.ParquetWriter(sink, schema, **_options(schema, tuple(stats))) as file,
        ):
            for group in _groups(tables):
                file.write_table(group, row_group_size=group.num_rows)
        if isinstance(place, Path):
            artefact.sync(place)
            artefact.sync(place.parent)
        size = file_system.get_file_info(name).size
    except (OSError, pa.ArrowException) as error:
        _forget(place)
        raise translate(error, root) from error
    except BaseException:
        _forget(place)
        raise
    footer: pq.FileMetaData = file.writer.metadata
    return AddedFile(path, size, footer.num_rows, dict(partition_values), _stats(footer, stats))


def remove(root: Place, files: Iterable[AddedFile]) -> None:
    """Remove data files that no version refers to, as far as that goes."""
    for file in files:
        _forget(root / file.path)


def rows_of(partition_values: Mapping[str, str | None]) -> pc.Expression:
    """Make the filter that the rows of a partition pass; it is never null, so ~ is the rest."""
    same = (
        pc.field(name).is_null()
        if value is None
        else (pc.field(name) == value) & pc.field(name).is_valid()
        for name, value in partition_values.items()
    )
    return reduce(and_, same, pc.scalar(True))


def make_directory(path: Path) -> None:
    """Create a directory and those above it, so that they outlast a power cut.

    Raises:
        StoreError: it cannot be created.
    """
    missing = [path]
    while not missing[-1].exists():
        missing.append(missing[-1].parent)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for made in missing[:-1]:
            artefact.sync(made.parent)
    except OSError as error:
        raise translate(error, path) from error


def arrow_place(place: Place) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a place as pyarrow sees it, and the name of the place there."""
    if isinstance(place, Remote):
        files = place.file_system()
        return pafs.PyFileSystem(pafs.FSSpecHandler(files)), str(files._strip_protocol(place.url))
    return pafs.LocalFileSystem(), str(place)


def translate(error: Exception, place: Place) -> StoreError:
    """Turn an error of what tables are made with into a sentence with a way out."""
    if isinstance(error, StoreError):
        return error
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if "No space left" in str(error):
        return StoreError(
            f"No space is left to write {place}.", "Free some or choose another disk."
        )
    if isinstance(error, OSError) and error.errno is not None and isinstance(place, Path):
        return artefact.translate(error, place)
    return StoreError(
        f"The table {place} cannot be used: {text.rstrip('.')}.", "Check the path and the disk."
    )


def _forget(place: Place) -> None:
    try:
        place.unlink()
    except OSError:  # cleaning up never hides what went wrong
        return


def _partitions(
    rows: pa.Table, names: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    if not rows.num_rows:
        return
    if not names:
        yield {}, rows
        return
    others = rows.drop_columns(list(names))
    keys = rows.select(list(names)).group_by(list(names)).aggregate([])
    starts = _runs(rows, names)
    is_sorted = len(starts) == keys.num_rows
    if is_sorted:
        keys = rows.select(list(names)).take(pa.array(starts))
    keys = keys.append_column("start", pa.array(starts if is_sorted else [0] * keys.num_rows))
    ends = dict(zip(starts, [*starts[1:], rows.num_rows], strict=True))
    for values in keys.sort_by([(name, "ascending") for name in names]).to_pylist():
        start = values.pop("start")
        if is_sorted:
            yield values, others.slice(start, ends[start] - start)
        else:
            yield values, rows.filter(rows_of(values)).drop_columns(list(names))


def _runs(rows: pa.Table, names: Sequence[str]) -> list[int]:
    """List where runs of rows of one partition begin."""
    differs = np.zeros(max(rows.num_rows - 1, 0), bool)
    for name in names:
        codes = rows[name].combine_chunks().dictionary_encode().indices.fill_null(-1)
        differs |= np.diff(codes.to_numpy(zero_copy_only=False)) != 0
    return [0, *(np.flatnonzero(differs) + 1).tolist()]


def _folder(value: str | None) -> str:
    """Name the directory of a partition; its true value is in the log, so that any name does."""
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
        return value
    return "h-" + blake2b(value.encode(), digest_size=16).hexdigest()


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cut and join rows to row groups."""
    held: list[pa.Table] = []
    rows = size = 0
    for piece in (piece for table in tables for piece in _pieces(table)):
        if held and (rows + piece.num_rows > _GROUP_ROWS or size + piece.nbytes > _GROUP_BYTES):
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
        held.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
    if held:
        yield pa.concat_tables(held)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    most = _GROUP_BYTES * table.num_rows // max(table.nbytes, 1)
    step = min(max(most, 1), _GROUP_ROWS)
    for start in range(0, table.num_rows, step):
        yield table.slice(start, step)


@lru_cache(maxsize=16)
def _options(schema: pa.Schema, stats: tuple[str, ...]) -> dict[str, Any]:
    """Choose how each column is written; nested ones are named by the path to their leaves."""
    empty = BytesIO()
    pq.write_table(schema.empty_table(), empty)
    leaves = pq.ParquetFile(empty).schema
    paths = [leaves.column(i).path for i in range(len(leaves.names))]
    growing = [path for path in paths if path in _GROWING and _is_whole(schema.field(path).type)]
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [path for path in paths if path not in {*_NO_DICTIONARY, *growing}],
        "column_encoding": dict.fromkeys(growing, "DELTA_BINARY_PACKED") or None,
        "data_page_size": _PAGE_BYTES,
        "write_statistics": [path for path in paths if path in stats],
    }


def _is_whole(kind: pa.DataType) -> bool:
    """Tell whether a column holds integers; of users' columns only the name may be one of ours."""
    return pa.types.is_integer(kind) or pa.types.is_timestamp(kind)


@dataclass(slots=True)
class _Bounds:
    """Bounds of the row groups of a column, NaN left out, and the number of its nulls."""

    values: list[Any] = field(default_factory=list)
    nulls: int = 0


def _stats(footer: pq.FileMetaData, stats: Sequence[str]) -> str:
    bounds: dict[str, _Bounds] = {}
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            chunk = footer.row_group(group).column(index)
            if chunk.path_in_schema not in stats:
                continue
            of, found = bounds.setdefault(chunk.path_in_schema, _Bounds()), chunk.statistics
            of.nulls += found.null_count
            if found.has_min_max:
                of.values += [found.min, found.max]
    finite = {
        name: (_plain(min(of.values)), _plain(max(of.values)))
        for name, of in bounds.items()
        if of.values
    }
    finite = {name: pair for name, pair in finite.items() if None not in pair}
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": {name: low for name, (low, _) in finite.items()},
            "maxValues": {name: high for name, (_, high) in finite.items()},
            "nullCount": {name: of.nulls for name, of in bounds.items()},
        }
    )


def _plain(value: Any) -> Any:
    """Write a bound as JSON has it; None where it cannot."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return None if isinstance(value, float) and not math.isfinite(value) else value
