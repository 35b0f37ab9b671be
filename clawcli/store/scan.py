"""Read the rows of data files: all, or those that a filter wants.

A filter skips files by the bounds in the log, row groups by those in the file, and reads the other
columns of a row group only if a row of it is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from deltalake import DeltaTable

from clawcli import schema
from clawcli.errors import DataError, StoreError
from clawcli.store import files
from clawcli.store.log import ActiveFile
from clawcli.store.remote import Place

_PLACE = "__place__"


def schema_of(table: DeltaTable) -> pa.Schema:
    """Return a table's columns: as schema.py declares them, else as they are stored."""
    stored = pa.schema(table.schema().to_arrow())
    if schema.SIDECAR_VERSION in stored.names:
        return stored  # what users attach may be called as a column of steps is, and be no such
    lists = (schema.STEPS, schema.DERIVED, schema.REJECTS)
    declared = {column.name: column.type for columns in lists for column in columns}
    return pa.schema([pa.field(f.name, declared.get(f.name, f.type)) for f in stored])


def read(
    root: Place,
    actives: Sequence[ActiveFile],
    fields: pa.Schema,
    columns: Sequence[str],
    where: pc.Expression | None = None,
) -> Iterator[pa.Table]:
    """Read rows a row group at a time; row groups without a wanted row give nothing.

    Args:
        root: directory of the table.
        actives: the data files to read.
        fields: columns of the table, partition columns included.
        columns: columns to read.
        where: rows to read, by any columns of the table.

    Raises:
        DataError: the filter does not fit the columns.
        StoreError: a data file is missing or torn.
    """
    wanted = pa.schema([fields.field(name) for name in columns])
    try:
        if where is None:
            for file in actives:
                yield from _read_all(root, file, wanted)
            return
        asked = _asked(where, fields)
        for file, fragment in _matching(root, actives, fields, asked, where):
            pieces = fragment.split_by_row_group(where, schema=fields)
            groups = [group.id for piece in pieces for group in piece.row_groups]
            yield from _read_some(root, file, fragment.metadata, groups, wanted, asked, where)
    except FileNotFoundError as error:
        raise StoreError(
            f"A data file of {root} is gone: {error}.",
            "Old versions lose theirs to claw optimize, which spares tags and the newest one.",
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise files.translate(error, root) from error


def read_masked(
    root: Place, file: ActiveFile, wanted: pa.Schema, mask: np.ndarray
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Read rows of one file; row groups without a wanted row are not read.

    Args:
        root: directory of the table.
        file: the data file.
        wanted: columns to read, partition columns included.
        mask: bool, whether each row of the file is wanted.

    Yields:
        Numbers of rows in the file (int64), and the rows.

    Raises:
        StoreError: the file is missing or torn.
    """
    try:
        with _opened(root, file) as opened:
            start = 0
            for group in range(opened.num_row_groups):
                end = start + opened.metadata.row_group(group).num_rows
                hits = start + np.flatnonzero(mask[start:end])
                if len(hits):
                    rows = _group(opened, group, file, wanted)
                    is_all = len(hits) == end - start
                    yield hits, rows if is_all else rows.take(pa.array(hits - start))
                start = end
    except (OSError, pa.ArrowException) as error:
        raise files.translate(error, root) from error


def _asked(where: pc.Expression, fields: pa.Schema) -> pa.Schema:
    """Find the columns that a filter cannot do without: pyarrow does not tell."""
    try:
        fields.empty_table().filter(where)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"The filter {where} does not fit the table: {error}.") from error
    text = str(where)
    found = []
    for field in fields:
        if field.name not in text:
            continue
        try:
            fields.empty_table().drop_columns([field.name]).filter(where)
        except (pa.ArrowException, ValueError):
            found.append(field)
    return pa.schema(found)


def _matching(
    root: Place,
    actives: Sequence[ActiveFile],
    fields: pa.Schema,
    asked: pa.Schema,
    where: pc.Expression,
) -> Iterator[tuple[ActiveFile, pads.ParquetFileFragment]]:
    """Leave out files that by their bounds hold no row that is wanted."""
    form = pads.ParquetFileFormat()
    file_system, _ = files.arrow_place(root)
    for file in actives:
        _, name = files.arrow_place(root / file.name)
        fragment = form.make_fragment(name, file_system, partition_expression=_known(file, asked))
        # each by itself: a fragment keeps its footer, and those of many files are hundreds of MB
        alone = pads.FileSystemDataset([fragment], fields, form, file_system)
        for wanted in alone.get_fragments(filter=where):
            yield file, wanted


def _known(file: ActiveFile, asked: pa.Schema) -> pc.Expression:
    """Say what the log knows of all rows of a file, in columns that a filter asks for."""
    facts = [pc.scalar(True)]
    for column in asked:
        field = pc.field(column.name)
        if column.name in file.partition_values:
            value = file.partition_values[column.name]
            facts.append(field.is_null() if value is None else field == value)
        elif column.name in file.bounds:
            low, high = file.bounds[column.name]
            if isinstance(high, datetime):  # other writers cut it to milliseconds
                high += timedelta(milliseconds=1)
            # pyarrow reasons about one comparison or null, not about a range or null
            facts.append((field >= pa.scalar(low, column.type)) | field.is_null())
            facts.append((field <= pa.scalar(high, column.type)) | field.is_null())
    return reduce(and_, facts)


def _read_all(root: Place, file: ActiveFile, wanted: pa.Schema) -> Iterator[pa.Table]:
    with _opened(root, file) as opened:
        for group in range(opened.num_row_groups):
            yield _group(opened, group, file, wanted)


def _read_some(
    root: Place,
    file: ActiveFile,
    footer: pq.FileMetaData,
    groups: Sequence[int],
    wanted: pa.Schema,
    asked: pa.Schema,
    where: pc.Expression,
) -> Iterator[pa.Table]:
    with _opened(root, file, footer) as opened:
        for group in groups:
            rows = _group(opened, group, file, asked)
            places = pa.array(range(rows.num_rows), pa.int32())
            hits = rows.append_column(_PLACE, places).filter(where)[_PLACE]
            if len(hits):
                yield _group(opened, group, file, wanted).take(hits)


@contextmanager
def _opened(
    root: Place, file: ActiveFile, footer: pq.FileMetaData | None = None
) -> Iterator[pq.ParquetFile]:
    # to_pyarrow_table of deltalake leaves a thread behind that aborts the interpreter at exit in
    # half of all runs (1.6.6 with pyarrow 26), so files are opened without its file system
    file_system, name = files.arrow_place(root / file.name)
    with (
        file_system.open_input_file(name) as source,
        pq.ParquetFile(source, metadata=footer, pre_buffer=True) as opened,
    ):
        yield opened


def _group(opened: pq.ParquetFile, group: int, file: ActiveFile, wanted: pa.Schema) -> pa.Table:
    """Read a row group with the types of a schema; partition columns are not in the file."""
    present = set(opened.schema_arrow.names)
    stored = opened.read_row_group(
        group, columns=[name for name in wanted.names if name in present]
    )
    columns = []
    for field in wanted:
        if field.name in present:
            columns.append(stored[field.name].cast(field.type))
        else:
            value = pa.scalar(file.partition_values.get(field.name), field.type)
            columns.append(pa.repeat(value, opened.metadata.row_group(group).num_rows))
    return pa.table(columns, schema=wanted)
