"""Take rows out of a table for good: no file and no log entry that is left holds them.

A new version without the rows is committed first, so that readers see the old rows or the new
ones. Then the log begins anew at a checkpoint of that version: older versions are let go of, except
those that are to stay, and what no version refers to any more is removed. Version numbers and
transaction numbers go on. Each part can be done again after a crash. The caller holds table.lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

import clawcli
from clawcli.store import artefact, commits, files, log, scan
from clawcli.store.files import AddedFile
from clawcli.store.log import ActiveFile

_HINT = "_last_checkpoint"


@dataclass(frozen=True, slots=True)
class Removed:
    """What a table lost besides rows."""

    versions: int = 0
    files: int = 0
    """Data files, log entries and checkpoints."""
    bytes: int = 0
    """Their size together."""

    def __add__(self, other: Removed) -> Removed:
        return Removed(
            self.versions + other.versions, self.files + other.files, self.bytes + other.bytes
        )


Hits = Callable[[pa.Table], np.ndarray]
"""Tells by some columns of rows which of them are meant: bool [rows]."""


def count(root: Path, keys: Sequence[str], hits: Hits) -> int:
    """Count the rows of a table that are meant; 0 where there is no table.

    Args:
        root: directory of the table.
        keys: columns that hits looks at.
        hits: which rows.
    """
    if not log.exists(root):
        return 0
    table = log.open_table(root)
    fields = scan.schema_of(table)
    return sum(_count(root, file, fields, keys, hits) for file in log.active(table))


def rewrite(
    root: Path,
    keys: Sequence[str],
    hits: Hits,
    change: Callable[[pa.Table], pa.Table],
    *,
    info: Mapping[str, Any],
    txn: tuple[str, int] | None = None,
) -> int:
    """Commit a version whose files are written anew where they hold certain rows.

    Args:
        root: directory of the table.
        keys: columns that hits looks at.
        hits: the rows that are to go or to change.
        change: takes rows of a file, all columns but those of the partition, and returns what
            stays of them, in their order.
        info: what made the commit.
        txn: as in commits.commit.

    Returns:
        The version that the commit made, also where no file had to be written.

    Raises:
        StoreError: the log is torn, or the disk is full. Nothing was committed.
    """
    table = log.open_table(root)
    fields, partition_by = scan.schema_of(table), table.metadata().partition_columns
    data = pa.schema([field for field in fields if field.name not in partition_by])
    old: list[ActiveFile] = []
    new: list[AddedFile] = []
    try:
        for file in log.active(table):
            if not _count(root, file, fields, keys, hits):
                continue
            pieces = map(change, scan.read(root, [file], data, data.names))
            written = files.write_file(root, pieces, data, file.partition_values)
            old.append(file)
            if written.rows:
                new.append(written)
            else:
                files.remove(root, [written])
        return commits.commit(
            root, new, fields, info=info, txn=txn, partition_by=partition_by, removed=old
        )
    except BaseException:
        files.remove(root, new)
        raise


def _count(root: Path, file: ActiveFile, fields: pa.Schema, keys: Sequence[str], hits: Hits) -> int:
    return sum(int(hits(rows).sum()) for rows in scan.read(root, [file], fields, keys))


def collapse(
    root: Path,
    *,
    keep: Collection[int] = (),
    info: Callable[[int], Mapping[str, Any]] = lambda version: {},
) -> Removed:
    """Let the log begin at the newest version, and remove all that no version refers to.

    Args:
        root: directory of the table.
        keep: older versions that stay readable.
        info: says what the commit info of a version that stays is to say, in place of what it
            says: all that older ones said is gone.

    Returns:
        What was removed.

    Raises:
        StoreError: the log is torn, or a file cannot be removed.
    """
    folder = root / log.FOLDER
    newest = log.open_table(root).version()
    there = {commit.version for commit in log.commits(root)}
    older = sorted(there & set(keep) - {newest})
    try:
        for version in older:
            _tell(folder / log.entry_name(version), info(version))
        # the newest last: the hint where to begin reading then names it
        for version in (*older, newest):
            log.open_table(root, version).create_checkpoint()
        for path in sorted(folder.iterdir()):
            artefact.sync(path)
        artefact.sync(folder)
        return _remove_rest(root, [*older, newest])
    except (DeltaError, OSError) as error:
        raise files.translate(error, root) from error


def _tell(entry: Path, info: Mapping[str, Any]) -> None:
    """Write a log entry anew with another commit info; what it did stays."""
    lines = []
    for line in entry.read_bytes().splitlines():
        action = json.loads(line)
        if "commitInfo" in action:
            action["commitInfo"][log.INFO_KEY] = {"claw_version": clawcli.__version__, **info}
        lines.append(json.dumps(action, separators=(",", ":")))
    with artefact.replacing(entry, force=True, ours=Path.is_file) as temporary:
        temporary.write_text("\n".join(lines) + "\n")


def _remove_rest(root: Path, versions: Collection[int]) -> Removed:
    folder = root / log.FOLDER
    starts = {f"{version:020d}" for version in versions}
    named = {
        root / file.name
        for version in versions
        for file in log.active(log.open_table(root, version))
    }
    # oldest entries first: the log stays without a gap before its newest checkpoint
    entries = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != _HINT and path.name.partition(".")[0] not in starts
    ]
    others = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and folder not in path.parents and path not in named
    ]
    num_bytes = sum(path.stat().st_size for path in (*entries, *others))
    for path in (*entries, *others):
        path.unlink()
    for path in sorted((p for p in root.rglob("*") if p.is_dir() and p != folder), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()
        else:
            artefact.sync(path)
    artefact.sync(folder)
    artefact.sync(root)
    gone = sum(path.suffix == ".json" and path.stem.isdigit() for path in entries)
    return Removed(gone, len(entries) + len(others), num_bytes)
