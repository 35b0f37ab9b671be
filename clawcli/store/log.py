"""The log of a Delta table: open a version, commit data files, list who committed what.

Delta gives atomic commits and versions, but it never syncs a file, and its newest log entry may be
lost or torn by a power cut without a sound. So data files are on the disk before they are
committed, the commit is synced before it counts, and nothing is put on top of a torn log. The
commit info is the manifest: which command made the version, from which sources.

On one machine a lock keeps writers apart (table.lock). In an object store the entry of a version
can be put once, and a transaction id tells a writer that another one did its work before it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

import clawcli
from clawcli.errors import ConflictError, NotFoundError, SchemaError, StoreError
from clawcli.store import artefact, remote
from clawcli.store.files import STATS_COLUMNS, AddedFile, make_directory, translate
from clawcli.store.remote import Place, storage_options

logger = logging.getLogger(__name__)

_INFO_KEY = "claw"
_COMMIT_KEY = "clawCommit"
_FOREVER = "interval 36500 days"
_ATTEMPTS = 100
_CHECKPOINT_EVERY = 100
"""Versions after which the state of the log is written into one file, which opens faster."""


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A data file that a version of a table refers to."""

    path: str
    """As the log spells it, escaped."""
    size_bytes: int
    rows: int | None
    """Null where whoever wrote it kept no statistics."""
    modified: int
    """When it was committed, in milliseconds."""
    partition_values: Mapping[str, str | None]
    bounds: Mapping[str, tuple[Any, Any]]
    """Least and greatest value of the columns that have any."""

    @property
    def name(self) -> str:
        """Path below the table."""
        return unquote(self.path)


class _Add(msgspec.Struct):
    path: str
    size: int


class _Info(msgspec.Struct):
    claw: dict[str, Any] | str | None = None
    clawCommit: str | None = None  # noqa: N815


class _Action(msgspec.Struct):
    """What is read of a line of a log entry."""

    add: _Add | None = None
    commitInfo: _Info | None = None  # noqa: N815


def exists(root: Place) -> bool:
    """Tell whether a Delta table is there; a log without an entry is none."""
    return bool(_entries(root))


def open_table(root: Place, version: int | None = None) -> DeltaTable:
    """Open a Delta table at one of its versions.

    Raises:
        NotFoundError: there is no table, or no such version.
        StoreError: the log is torn; an older version than the torn one can still be named.
    """
    try:
        if version is None:
            check_log(root)
        elif entries := _entries(root):
            newest = _version_of(entries[-1])
            if not 0 <= version <= newest:
                raise NotFoundError(
                    f"{root.parent} has no version {version}.", f"Versions run from 0 to {newest}."
                )
        return DeltaTable(str(root), version, storage_options(root))
    except TableNotFoundError as error:
        raise NotFoundError(f"{root} holds no table.", "claw ingest makes one.") from error
    except (DeltaError, OSError) as error:
        raise translate(error, root) from error


def active(table: DeltaTable) -> list[ActiveFile]:
    """List the data files of a table's version, in the order of their commits as clocks had it."""
    found = []
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        lows = {key[4:]: value for key, value in row.items() if key.startswith("min.")}
        found.append(
            ActiveFile(
                path=row["path"],
                size_bytes=row["size_bytes"],
                rows=row.get("num_records"),
                modified=row["modification_time"],
                partition_values={
                    key[10:]: value for key, value in row.items() if key.startswith("partition.")
                },
                bounds={
                    name: (low, row[f"max.{name}"])
                    for name, low in lows.items()
                    if low is not None and row.get(f"max.{name}") is not None
                },
            )
        )
    return sorted(found, key=lambda file: (file.modified, file.path))


def commit(
    root: Place,
    added: Sequence[AddedFile],
    schema: pa.Schema,
    *,
    info: Mapping[str, Any],
    txn: tuple[str, int] | None = None,
    partition_by: Sequence[str] = (),
    removed: Sequence[ActiveFile] = (),
    is_change: bool = True,
) -> int:
    """Make a version of a table, creating the table if there is none, and sync it to the disk.

    Args:
        root: directory of the table.
        added: data files that were written below it; may be empty, as a commit that only records
            what was read.
        schema: columns of the table, partition columns included.
        info: what made the commit; goes into the Delta commit info, so no text of a log may be in
            it.
        txn: id of a sequence of commits and the place of this one in it. A place is taken once:
            it must be above that of last_transaction.
        partition_by: partition columns of the table.
        removed: data files that the version does not refer to any more.
        is_change: false where the rows stay what they were.

    Returns:
        The version that the commit made.

    Raises:
        ConflictError: another writer took the place of txn, or removed a file that was to be
            removed, since the caller read them. Nothing was committed.
        SchemaError: the table has other columns.
        StoreError: the log is torn, or the disk is full.
    """
    if isinstance(root, Path):
        make_directory(root)
    uid = uuid.uuid4().hex
    properties = CommitProperties(
        custom_metadata={
            _INFO_KEY: {"claw_version": clawcli.__version__, **info},
            _COMMIT_KEY: uid,
        },
        # deltalake would go on silently where a file was removed meanwhile, and not say which
        # version it made
        max_commit_retries=0,
        app_transactions=[Transaction(*txn)] if txn else None,
    )
    for attempt in range(_ATTEMPTS):
        table = open_table(root) if exists(root) else None
        version = 0 if table is None else table.version() + 1
        if table is not None:
            _check_same_columns(root, table, schema, partition_by)
            _check_conflicts(root, table, txn, removed)
        stamp = time.time_ns() // 1_000_000
        actions = [
            *(_removal(file, stamp, is_change=is_change) for file in removed),
            *(_addition(file, stamp, is_change=is_change) for file in added),
        ]
        try:
            if table is None:
                _create(root, actions, schema, partition_by, properties)
            else:
                table.create_write_transaction(
                    actions,
                    "append",
                    Schema.from_arrow(schema),
                    list(partition_by),
                    commit_properties=properties,
                    post_commithook_properties=_NO_HOOKS,
                )
        except (DeltaError, OSError) as error:
            # a store can fail to say that it took the entry
            if not (made := _uid_of(root, version)):
                raise translate(error, root) from error
            if made != uid:
                time.sleep(random.uniform(0, 0.01 * min(attempt + 1, 20)))
                continue
        _sync_commit(root, version)
        _checkpoint(root, version)
        return version
    raise ConflictError(
        f"{root} was written to by others {_ATTEMPTS} times while this commit was tried.",
        "Run it again when they are done.",
    )


def last_transaction(root: Place, app_id: str) -> int | None:
    """Return the highest place that was taken in a sequence of commits; None where there is none.

    Raises:
        StoreError: the log is torn.
    """
    return open_table(root).transaction_version(app_id) if exists(root) else None


def history(root: Place, *, since: int = 0) -> list[dict[str, Any]]:
    """List what claw wrote into the commit infos of a table, oldest first; {} for others.

    Args:
        root: directory of the table; none there gives no entries.
        since: first version to list.

    Raises:
        StoreError: the log is torn.
    """
    check_log(root)
    found = []
    entries = [entry for entry in _entries(root) if _version_of(entry) >= since]
    for entry, raw in zip(entries, remote.read_all(entries), strict=True):
        info = next((a.commitInfo for a in _actions(entry, raw) if a.commitInfo), None) or _Info()
        found.append(json.loads(info.claw) if isinstance(info.claw, str) else info.claw or {})
    return found


def check_log(root: Place) -> None:
    """Refuse a table whose newest commit was torn by a crash of the machine.

    Object stores take a file whole or not at all, so that there is nothing to check.

    Raises:
        StoreError: the newest log entry is empty or not JSON, or names a file of another size; or
            the newest checkpoint is cut.
    """
    if not isinstance(root, Path) or not (entries := _entries(root)):
        return
    newest = entries[-1]
    try:
        actions = _actions(newest, newest.read_bytes())
        is_whole = all(_is_there(root, action.add) for action in actions)
    except StoreError:
        is_whole = False
    if not is_whole:
        version = _version_of(newest)
        way = (
            f"Remove that file to go back to version {version - 1}."
            if version
            else "It was the first commit: remove the table and make it again."
        )
        raise StoreError(f"{newest} is torn: the machine stopped before it was on the disk.", way)
    checkpoints = sorted((root / "_delta_log").glob("*.checkpoint*.parquet"))
    hint = root / "_delta_log" / "_last_checkpoint"
    if (checkpoints and not _is_parquet(checkpoints[-1])) or (hint.exists() and not checkpoints):
        torn = checkpoints[-1] if checkpoints else hint
        raise StoreError(
            f"{torn} is torn: the machine stopped before it was on the disk.",
            f"Remove {hint} and the newest *.checkpoint.parquet beside it: the log entries hold "
            "all that they did.",
        )


_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _create(
    root: Place,
    actions: list[Any],
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: CommitProperties,
) -> None:
    stats = [name for name in STATS_COLUMNS if name in schema.names]
    create_table_with_add_actions(
        str(root),
        Schema.from_arrow(schema),
        actions,
        partition_by=list(partition_by),
        configuration={
            "delta.dataSkippingStatsColumns": ",".join(stats or schema.names[:1]),
            "delta.logRetentionDuration": _FOREVER,
            "delta.enableExpiredLogCleanup": "false",
        },
        storage_options=storage_options(root),
        commit_properties=properties,
        post_commithook_properties=_NO_HOOKS,
    )


def _addition(file: AddedFile, stamp: int, *, is_change: bool) -> AddAction:
    values = dict(file.partition_values)
    return AddAction(file.path, file.size_bytes, values, stamp, is_change, file.stats)


def _removal(file: ActiveFile, stamp: int, *, is_change: bool) -> RemoveAction:
    values = dict(file.partition_values)
    return RemoveAction(file.path, is_change, stamp, file.size_bytes, values)


def _check_same_columns(
    root: Place, table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str]
) -> None:
    if table.metadata().partition_columns != list(partition_by):
        raise SchemaError(f"{root} is partitioned in another way.", "Write into a new directory.")
    there, new = table.schema().fields, Schema.from_arrow(schema).fields
    if there != new:
        odd = next(
            (field.name for field in [*new, *there] if field not in there or field not in new),
            new[0].name,
        )
        raise SchemaError(
            f"{root} has other columns than this version of claw writes; {odd} is one of them.",
            "Write into a new directory.",
        )


def _check_conflicts(
    root: Place, table: DeltaTable, txn: tuple[str, int] | None, removed: Sequence[ActiveFile]
) -> None:
    if txn is not None:
        last = table.transaction_version(txn[0])
        if last is not None and last >= txn[1]:
            raise ConflictError(
                f"Another run wrote to {root} what this one was about to write.",
                "Run it again: it goes on from there.",
            )
    if removed:
        left = {file.path for file in active(table)}
        if any(file.path not in left for file in removed):
            raise ConflictError(
                f"Another run rewrote rows of {root} that this one was about to rewrite.",
                "Run it again.",
            )


def _entries(root: Place) -> list[Place]:
    """List the log entries of a table, oldest first."""
    try:
        found = [path for path in (root / "_delta_log").iterdir() if path.name.endswith(".json")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(path for path in found if path.name[:-5].isdigit())


def _version_of(entry: Place) -> int:
    return int(entry.name.removesuffix(".json"))


def _actions(entry: Place, raw: bytes) -> Iterator[_Action]:
    if not (lines := raw.splitlines()):
        raise StoreError(f"{entry} is empty.", "Restore it from a copy.")
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=_Action)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{entry} is no log entry: {error}.", "Restore it from a copy."
            ) from error


def _uid_of(root: Place, version: int) -> str | None:
    """Return the id of the commit that made a version; None where there is no such version."""
    entry = root / "_delta_log" / f"{version:020d}.json"
    try:
        raw = entry.read_bytes()
    except FileNotFoundError:
        return None
    info = next((a.commitInfo for a in _actions(entry, raw) if a.commitInfo), None)
    return (info and info.clawCommit) or "another"


def _is_there(root: Path, add: _Add | None) -> bool:
    if add is None:
        return True
    file = root / unquote(add.path)
    return file.exists() and file.stat().st_size == add.size


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4))
        return file.read() == b"PAR1"


def _sync_commit(root: Place, version: int) -> None:
    if not isinstance(root, Path):
        return
    log = root / "_delta_log"
    try:
        for path in (log / f"{version:020d}.json", log, root):
            artefact.sync(path)
    except OSError as error:
        raise translate(error, root) from error


def _checkpoint(root: Place, version: int) -> None:
    if (version + 1) % _CHECKPOINT_EVERY:
        return
    try:
        table = open_table(root)
        table.create_checkpoint()
        if isinstance(root, Path):
            log = root / "_delta_log"
            for path in (
                *log.glob(f"{table.version():020d}.checkpoint*"),
                log / "_last_checkpoint",
            ):
                artefact.sync(path)
            artefact.sync(log)
    except (DeltaError, StoreError, OSError) as error:
        logger.info("%s has no checkpoint of version %d: %s", root, version, error)
