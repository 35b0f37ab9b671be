"""Commits to a Delta table: atomic, on the disk before they count, and each made once.

Delta gives atomic commits, but it never syncs a file. So data files are on the disk before they are
committed, and the log entry is before the commit is told to anyone.

On one machine a lock keeps writers apart (table.lock). In an object store the entry of a version
can be put once, and a transaction id tells a writer that another one did its work before it.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

import clawcli
from clawcli.errors import ConflictError, SchemaError, StoreError
from clawcli.store import artefact, log
from clawcli.store.files import STATS_COLUMNS, AddedFile, make_directory, translate
from clawcli.store.log import ActiveFile, exists, open_table
from clawcli.store.remote import Place, storage_options

logger = logging.getLogger(__name__)

_FOREVER = "interval 36500 days"
_ATTEMPTS = 100
_CHECKPOINT_EVERY = 100
"""Versions after which the state of the log is written into one file, which opens faster."""
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


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
    stats: Sequence[str] = STATS_COLUMNS,
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
        stats: columns whose bounds may be in the log; counts where the table is created.

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
    properties = _properties(uid, info, txn)
    for attempt in range(_ATTEMPTS):
        table = open_table(root) if exists(root) else None
        version = 0 if table is None else table.version() + 1
        if table is not None:
            _check_conflicts(root, table, txn, removed)
            _check_same_columns(root, table, schema, partition_by)
        stamp = time.time_ns() // 1_000_000
        actions = [
            *(_removal(file, stamp, is_change=is_change) for file in removed),
            *(_addition(file, stamp, is_change=is_change) for file in added),
        ]
        try:
            if table is None:
                _create(root, actions, schema, partition_by, properties, stats)
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
            if not (made := log.commit_uid(root, version)):
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


def add_columns(
    root: Place,
    columns: pa.Schema,
    *,
    info: Mapping[str, Any],
    txn: tuple[str, int] | None = None,
) -> int:
    """Give a table more columns, which are null in all rows that are there; sync it to the disk.

    Args:
        root: directory of the table.
        columns: those that it lacks.
        info: what made the commit; goes into the Delta commit info.
        txn: as commit takes it.

    Returns:
        The version that the commit made.

    Raises:
        ConflictError: another writer was faster; nothing was added.
        StoreError: the log is torn, or the disk is full.
    """
    table = open_table(root)
    _check_conflicts(root, table, txn, ())
    version = table.version() + 1
    uid = uuid.uuid4().hex
    try:
        table.alter.add_columns(
            Schema.from_arrow(columns).fields,
            commit_properties=_properties(uid, info, txn),
            post_commithook_properties=_NO_HOOKS,
        )
    except (DeltaError, OSError) as error:
        if not (made := log.commit_uid(root, version)):
            raise translate(error, root) from error
        if made != uid:
            raise ConflictError(
                f"Another run wrote to {root} while this one added columns.", "Run it again."
            ) from error
    _sync_commit(root, version)
    return version


def restore(root: Place, version: int, *, info: Mapping[str, Any]) -> int:
    """Make the rows of an older version the newest ones, by a new commit, and sync it to the disk.

    The versions in between stay. Whoever calls it holds table.alone: nobody may be about to commit
    to what the table was.

    Args:
        root: directory of the table.
        version: the version whose rows come back.
        info: what made the commit.

    Returns:
        The version that the commit made.

    Raises:
        NotFoundError: there is no such version.
        StoreError: data files of the version are gone, the log is torn, or the disk is full.
    """
    table = open_table(root)
    open_table(root, version)
    try:
        table.restore(
            version,
            commit_properties=_properties(uuid.uuid4().hex, info, None),
            post_commithook_properties=_NO_HOOKS,
        )
    except (DeltaError, OSError) as error:
        if "missing file" in str(error):
            raise StoreError(
                f"Version {version} of {root} cannot come back: data files of it are gone.",
                "claw optimize removes files that only old versions need, and spares tags.",
            ) from error
        raise translate(error, root) from error
    made = table.version()
    _sync_commit(root, made)
    _checkpoint(root, made)
    return made


def last_transaction(root: Place, app_id: str) -> int | None:
    """Return the highest place that was taken in a sequence of commits; None where there is none.

    Raises:
        StoreError: the log is torn.
    """
    return open_table(root).transaction_version(app_id) if exists(root) else None


def _properties(
    uid: str, info: Mapping[str, Any], txn: tuple[str, int] | None = None
) -> CommitProperties:
    return CommitProperties(
        custom_metadata={
            log.INFO_KEY: {"claw_version": clawcli.__version__, **info},
            log.COMMIT_KEY: uid,
        },
        # deltalake would go on silently where a file was removed meanwhile, and not say which
        # version it made
        max_commit_retries=0,
        app_transactions=[Transaction(*txn)] if txn else None,
    )


def _create(
    root: Place,
    actions: list[Any],
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: CommitProperties,
    stats: Sequence[str],
) -> None:
    stats = [name for name in stats if name in schema.names]
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
        left = {file.path for file in log.active(table)}
        if any(file.path not in left for file in removed):
            raise ConflictError(
                f"Another run rewrote rows of {root} that this one was about to rewrite.",
                "Run it again.",
            )


def _sync_commit(root: Place, version: int) -> None:
    if not isinstance(root, Path):
        return
    folder = root / log.FOLDER
    try:
        for path in (folder / log.entry_name(version), folder, root):
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
            folder = root / log.FOLDER
            made = folder.glob(f"{table.version():020d}.checkpoint*")
            for path in (*made, folder / "_last_checkpoint", folder):
                artefact.sync(path)
    except (DeltaError, StoreError, OSError) as error:
        logger.info("%s has no checkpoint of version %d: %s", root, version, error)
