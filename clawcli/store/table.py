"""The tables of a data directory: append, replace, read, and hold a directory alone.

What a table is made of has modules of its own, and callers need only this one:

    files     Parquet files that nothing refers to yet, written by any process
    log       versions and their files, history
    commits   new versions, transactions
    scan      rows of a version, all or filtered
    rewrite   rows with new content, few files out of many

A commit that adds files of several processes: write_files in each, then commit, or replace where
rows changed too.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from clawcli import schema
from clawcli.errors import ConflictError
from clawcli.store import files, log
from clawcli.store import scan as scan_files
from clawcli.store.commits import add_columns, commit, last_transaction, restore
from clawcli.store.files import AddedFile, write_files
from clawcli.store.location import LOCK, RUNS, Location
from clawcli.store.log import check_log, exists, first_info, history, open_table
from clawcli.store.remote import Place
from clawcli.store.rewrite import compact, discard, replace

__all__ = [
    "AddedFile",
    "add_columns",
    "alone",
    "append",
    "at_work",
    "check_log",
    "commit",
    "compact",
    "describe",
    "discard",
    "exists",
    "first_info",
    "history",
    "last_transaction",
    "lock",
    "open_table",
    "read",
    "replace",
    "restore",
    "scan",
    "schema_of",
    "write_files",
]


@contextmanager
def lock(directory: Place) -> Iterator[None]:
    """Hold a data directory alone; others wait. Between reading what is there and adding to it.

    Object stores have no locks: there a commit with a transaction id finds out that another run
    was faster (ConflictError).
    """
    if not isinstance(directory, Path):
        yield
        return
    files.make_directory(directory)
    with (directory / LOCK).open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def at_work(directory: Place) -> Iterator[None]:
    """Say that a run is at work on a data directory, also between its commits.

    Several may be; whoever wants it alone waits for none of them, but is refused. A killed run is
    not at work. In object stores nobody is told.
    """
    if not isinstance(directory, Path):
        yield
        return
    files.make_directory(directory)
    with (directory / RUNS).open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold a data directory on which no run is at work, so that nothing waits to be committed.

    Raises:
        ConflictError: some run is.
    """
    with (directory / RUNS).open("a") as runs, (directory / LOCK).open("a") as handle:
        try:
            for held in (runs, handle):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(
                f"Another run is at work on {directory}, and has not committed all of it yet.",
                "Run this again when it is done.",
            ) from error
        yield


def describe(location: Location, version: int) -> dict[str, Any]:
    """Name a version of a data directory as the input of something: with the id of its table."""
    table_id = open_table(location.steps, version).metadata().id
    return {
        "path": str(location.path),
        "kind": "data",
        "version": version,
        "table_id": table_id,
    }


def append(
    path: Place,
    rows: pa.Table,
    *,
    info: Mapping[str, Any],
    partition_by: Sequence[str] = (),
) -> int:
    """Append rows in one commit, creating the table if there is none; sync it to the disk.

    Args:
        path: directory of the table.
        rows: may be empty, as a commit that only records what was read.
        info: what made the commit; goes into the Delta commit info.
        partition_by: partition columns.

    Returns:
        The version that the commit made.

    Raises:
        SchemaError: the table has other columns.
        StoreError: the log is torn, or the disk is full.
    """
    log.check_log(path)
    added = write_files(path, rows, partition_by)
    try:
        return commit(path, added, rows.schema, info=info, partition_by=partition_by)
    except BaseException:
        discard(path, added)
        raise


def read(
    location: Location,
    part: str = "steps",
    columns: Sequence[str] | None = None,
    *,
    where: pc.Expression | None = None,
) -> pa.Table:
    """Read a table of a data directory.

    Args:
        location: the directory and, for the step table, the version.
        part: steps, rejects or sidecars/NAME.
        columns: names to read; all by default.
        where: rows to read, by any columns; what it does not want is not read as far as bounds and
            the filter's own columns tell.

    Returns:
        The rows, with the types of schema.py; empty where there is no table of rejects yet.

    Raises:
        NotFoundError: the table or the version is not there.
        StoreError: a data file is missing or torn.
    """
    wanted, pieces = _open(location, part, columns, where)
    return pa.concat_tables([wanted.empty_table(), *pieces])


def schema_of(location: Location, part: str = "steps") -> pa.Schema:
    """Return the columns of a table of a data directory, as read gives them.

    Raises:
        NotFoundError: the table or the version is not there.
    """
    version = location.version if part == "steps" else None
    return scan_files.schema_of(open_table(location.path / part, version))


def scan(
    location: Location,
    part: str = "steps",
    columns: Sequence[str] | None = None,
    *,
    where: pc.Expression | None = None,
) -> Iterator[pa.Table]:
    """Read a table as read does, some thousand rows at a time, in the order of the commits."""
    return _open(location, part, columns, where)[1]


def _open(
    location: Location, part: str, columns: Sequence[str] | None, where: pc.Expression | None
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    root = location.path / part
    if part == "rejects" and not exists(root):
        return schema.arrow_schema(schema.REJECTS), iter(())
    table = open_table(root, location.version if part == "steps" else None)
    fields = scan_files.schema_of(table)
    names = fields.names if columns is None else list(columns)
    try:
        actives = log.active(table)
    except DeltaError as error:
        raise files.translate(error, root) from error
    wanted = pa.schema([fields.field(name) for name in names])
    return wanted, scan_files.read(root, actives, fields, names, where)
