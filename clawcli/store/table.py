"""The Delta tables of a data directory: create, append, read, history.

Delta gives atomic commits and versions, but it never syncs a file, and its newest log entry may be
lost or torn by a power cut without a sound. So every commit here is synced before it counts, and
nothing is appended on top of a torn log. The commit info is the manifest: which command made the
version, from which sources.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaError, TableNotFoundError

import clawcli
from clawcli import schema
from clawcli.errors import NotFoundError, StoreError
from clawcli.store import artefact
from clawcli.store.location import LOCK, Location

_INFO_KEY = "claw"
# Random hex does not repeat, so a dictionary of it only costs space.
_NO_DICTIONARY = ("step_uid", "parent_step_uid", "state_hash", "next_hash")
# Delta's default statistics copy 64 characters of message text into the log, where they would
# outlive the rows; only keys and numbers may be there.
_STATS_COLUMNS = (
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
_FOREVER = "interval 36500 days"


def exists(path: Path) -> bool:
    """Tell whether a Delta table is there; a log without an entry is none."""
    return any((path / "_delta_log").glob("*.json"))


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold a data directory alone; others wait. Between reading what is there and adding to it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def append(
    path: Path,
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
        partition_by: partition columns, for a new table.

    Returns:
        The version that the commit made.

    Raises:
        StoreError: the log is torn, or the disk is full.
    """
    if exists(path):
        check_log(path)
    stats = [name for name in _STATS_COLUMNS if name in rows.column_names]
    try:
        write_deltalake(
            path,
            rows,
            mode="append",
            partition_by=list(partition_by) or None,
            configuration={
                "delta.dataSkippingStatsColumns": ",".join(stats or rows.column_names[:1]),
                "delta.logRetentionDuration": _FOREVER,
                "delta.enableExpiredLogCleanup": "false",
            },
            writer_properties=_writer_properties(rows.column_names),
            commit_properties=CommitProperties(
                custom_metadata={
                    _INFO_KEY: json.dumps({"claw_version": clawcli.__version__, **info})
                }
            ),
        )
    except (DeltaError, OSError) as error:
        raise _translate(error, path) from error
    table = DeltaTable(path)
    _sync_commit(path, table)
    return table.version()


def read(location: Location, part: str = "steps", columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table of a data directory.

    Args:
        location: the directory and, for the step table, the version.
        part: steps or rejects.
        columns: names to read; all by default.

    Returns:
        The rows, with the types of schema.py; empty where there is no table of rejects yet.

    Raises:
        NotFoundError: the table or the version is not there.
        StoreError: a data file is missing or torn.
    """
    path = location.path / part
    if part == "rejects" and not exists(path):
        return schema.arrow_schema(schema.REJECTS).empty_table()
    table = open_table(path, location.version if part == "steps" else None)
    fields = _fields(table)
    wanted = pa.schema([fields.field(name) for name in columns]) if columns is not None else fields
    try:
        parts = [_read_file(path, action, wanted) for action in _files(table)]
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise _translate(error, path) from error
    return pa.concat_tables(parts) if parts else wanted.empty_table()


def _fields(table: DeltaTable) -> pa.Schema:
    """Types as schema.py declares them; columns that it does not know keep their own."""
    declared = {column.name: column.type for column in (*schema.STEPS, *schema.DERIVED)}
    declared |= {column.name: column.type for column in schema.REJECTS}
    stored = pa.schema(table.schema().to_arrow())
    return pa.schema([pa.field(f.name, declared.get(f.name, f.type)) for f in stored])


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    return pa.table(table.get_add_actions(flatten=True)).to_pylist()


def _read_file(path: Path, action: dict[str, Any], wanted: pa.Schema) -> pa.Table:
    # to_pyarrow_table leaves a thread behind that aborts the interpreter at exit in half of all
    # runs (deltalake 1.6.6 with pyarrow 26), so the files are read without its file system
    with pq.ParquetFile(path / unquote(action["path"])) as file:
        present = set(file.schema_arrow.names)
        stored = file.read(columns=[name for name in wanted.names if name in present])
    columns = []
    for field in wanted:
        if field.name in present:
            columns.append(stored[field.name].cast(field.type))
        else:
            value = action.get(f"partition.{field.name}")
            columns.append(pa.repeat(pa.scalar(value, field.type), stored.num_rows))
    return pa.table(columns, schema=wanted)


def open_table(path: Path, version: int | None = None) -> DeltaTable:
    """Open a Delta table at one of its versions.

    Raises:
        NotFoundError: there is no table, or no such version.
        StoreError: the log is torn.
    """
    try:
        if version is None:
            check_log(path)
            return DeltaTable(path)
        newest = DeltaTable(path).version()
        if not 0 <= version <= newest:
            raise NotFoundError(
                f"{path.parent} has no version {version}.", f"Versions run from 0 to {newest}."
            )
        return DeltaTable(path, version=version)
    except TableNotFoundError as error:
        raise NotFoundError(f"{path} holds no table.", "claw ingest makes one.") from error
    except DeltaError as error:
        raise _translate(error, path) from error


def history(path: Path) -> list[dict[str, Any]]:
    """List what claw wrote into the commit infos of a table, oldest first; {} for others."""
    if not exists(path):
        return []
    return [
        json.loads(entry.get(_INFO_KEY, "{}")) for entry in reversed(open_table(path).history())
    ]


def check_log(path: Path) -> None:
    """Refuse a table whose newest commit was torn by a crash of the machine.

    Raises:
        StoreError: the newest log entry is empty or not JSON, or names a file of another size.
    """
    entries = sorted((path / "_delta_log").glob("*.json"))
    if not entries:
        return
    newest = entries[-1]
    try:
        actions = [json.loads(line) for line in newest.read_bytes().splitlines()]
        complete = bool(actions) and all(_is_whole(path, action) for action in actions)
    except (ValueError, AttributeError):
        complete = False
    if not complete:
        version = int(newest.stem)
        way = (
            f"Remove that file to go back to version {version - 1}."
            if version
            else "It was the first commit: remove the table and make it again."
        )
        raise StoreError(f"{newest} is torn: the machine stopped before it was on the disk.", way)


def _is_whole(path: Path, action: dict[str, Any]) -> bool:
    if (add := action.get("add")) is None:
        return True
    file = path / unquote(add["path"])
    return file.exists() and file.stat().st_size == add["size"]


def _sync_commit(path: Path, table: DeltaTable) -> None:
    entry = path / "_delta_log" / f"{table.version():020d}.json"
    directories = {path, entry.parent}
    for line in entry.read_bytes().splitlines():
        if add := json.loads(line).get("add"):
            file = path / unquote(add["path"])
            artefact.sync(file)
            directories.update(p for p in file.parents if path in p.parents)
    artefact.sync(entry)
    for directory in directories:
        artefact.sync(directory)


def _writer_properties(columns: Sequence[str]) -> WriterProperties:
    plain = ColumnProperties(dictionary_enabled=False)
    return WriterProperties(
        compression="ZSTD",
        compression_level=3,
        column_properties={name: plain for name in _NO_DICTIONARY if name in columns},
    )


def _translate(error: Exception, path: Path) -> StoreError:
    text = str(error).strip().splitlines()[0]
    if isinstance(error, OSError) and error.errno is not None:
        return artefact.translate(error, path)
    if "No space left" in text or os.strerror(28) in str(error):
        return StoreError(f"No space is left to write {path}.", "Free some or choose another disk.")
    return StoreError(f"The table {path} cannot be used: {text}.", "Check the path and the disk.")
