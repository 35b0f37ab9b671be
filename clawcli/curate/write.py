"""Write steps of one table into another, file by file, holding a row group in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.store import files, location, scan, table
from clawcli.store.files import AddedFile
from clawcli.store.frame import Frame
from clawcli.store.log import ActiveFile

_FILE_BYTES = 128 << 20


def write(
    frame: Frame,
    chosen: np.ndarray,
    columns: Mapping[str, pa.Array | pa.ChunkedArray],
    directory: Path,
    info: Mapping[str, Any],
) -> int:
    """Make a data directory of some rows; returns the version of its step table.

    Args:
        frame: the steps to read.
        chosen: bool [N], rows to write.
        columns: by place; they take the place of what is stored.
        directory: where; it has to be there.
        info: what made the commit.
    """
    root = directory / location.STEPS
    root.mkdir()
    wanted = schema.steps_schema(frozen=True)
    added: list[AddedFile] = []
    for group in _groups(frame):
        start = frame.starts
        hit = any(chosen[start[n] : start[n] + _rows(frame, n)].any() for n in group)
        if hit:
            data = pa.schema([f for f in wanted if f.name not in schema.PARTITION_COLUMNS])
            pieces = (p for n in group for p in _pieces(frame, n, chosen, columns, data))
            values = frame.files[group[0]].partition_values
            added.append(files.write_file(root, pieces, data, values))
    return table.commit(root, added, wanted, info=info, partition_by=schema.PARTITION_COLUMNS)


def _rows(frame: Frame, number: int) -> int:
    ends = [*frame.starts[1:], frame.num_rows]
    return ends[number] - frame.starts[number]


def _groups(frame: Frame) -> Iterator[list[int]]:
    """Group the files of each partition, in their order, to about a size."""
    by_partition: dict[tuple[str | None, ...], list[int]] = {}
    for number, file in enumerate(frame.files):
        by_partition.setdefault(tuple(file.partition_values.values()), []).append(number)
    for numbers in by_partition.values():
        group: list[int] = []
        size = 0
        for number in numbers:
            if group and size + frame.files[number].size_bytes > _FILE_BYTES:
                yield group
                group, size = [], 0
            group.append(number)
            size += frame.files[number].size_bytes
        yield group


def _pieces(
    frame: Frame,
    number: int,
    chosen: np.ndarray,
    columns: Mapping[str, pa.Array | pa.ChunkedArray],
    data: pa.Schema,
) -> Iterator[pa.Table]:
    """Read the chosen rows of one file, with the columns that are given in place of stored ones."""
    file: ActiveFile = frame.files[number]
    start = frame.starts[number]
    stored = pa.schema([field for field in data if field.name not in columns])
    mask = chosen[start : start + _rows(frame, number)]
    for hits, rows in scan.read_masked(frame.location.steps, file, stored, mask):
        places = pa.array(hits + start)
        yield pa.table(
            [
                columns[field.name].take(places) if field.name in columns else rows[field.name]
                for field in data
            ],
            schema=data,
        )
