"""The log of a Delta table: open a version, list its data files, list who committed what.

A power cut can lose or tear the newest log entry without a sound, so nothing is read from or put
on top of one that is torn. The commit info is the manifest: which command made the version, from
which sources.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from clawcli.errors import NotFoundError, StoreError
from clawcli.store import remote
from clawcli.store.files import translate
from clawcli.store.remote import Place, storage_options

FOLDER = "_delta_log"
INFO_KEY = "claw"
"""Key of the commit info under which claw writes what made the commit."""
COMMIT_KEY = "clawCommit"
"""Key of the commit info with an id of the commit."""


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


@dataclass(frozen=True, slots=True)
class Commit:
    """What the log says of the commit that made a version."""

    version: int
    at: datetime | None
    """When, by the clock of whoever made it; null = not said."""
    info: Mapping[str, Any]
    """What claw wrote into the commit info; {} where another program made it."""
    operation: str | None
    """What Delta calls it."""
    files_added: int
    files_removed: int
    rows_added: int | None
    """Rows of the added files; null where whoever wrote them kept no statistics."""
    is_change: bool
    """False where the rows stayed what they were, as when files are joined."""
    restored: int | None
    """Version whose rows became the newest ones again; null = it was no restore."""


class _Add(msgspec.Struct):
    path: str
    size: int
    is_change: bool = msgspec.field(default=True, name="dataChange")
    stats: str | None = None


class _Remove(msgspec.Struct):
    is_change: bool = msgspec.field(default=True, name="dataChange")


class _Stats(msgspec.Struct):
    rows: int | None = msgspec.field(default=None, name="numRecords")


class _Info(msgspec.Struct):
    made_by: dict[str, Any] | str | None = msgspec.field(default=None, name=INFO_KEY)
    uid: str | None = msgspec.field(default=None, name=COMMIT_KEY)
    # the protocol leaves to writers what they say here
    timestamp: Any = None
    operation: Any = None
    parameters: Any = msgspec.field(default=None, name="operationParameters")

    @property
    def restored(self) -> int | None:
        """Version that a restore went back to, by whichever program; null = it is no restore."""
        if self.operation != "RESTORE" or not isinstance(self.parameters, dict):
            return None
        version = str(self.parameters.get("version", ""))
        return int(version) if version.isascii() and version.isdigit() else None

    @property
    def values(self) -> dict[str, Any]:
        """What claw wrote into the commit info."""
        return json.loads(self.made_by) if isinstance(self.made_by, str) else self.made_by or {}


class _Action(msgspec.Struct):
    """What is read of a line of a log entry."""

    add: _Add | None = None
    remove: _Remove | None = None
    info: _Info | None = msgspec.field(default=None, name="commitInfo")


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
        elif (last := newest(root)) is not None and not 0 <= version <= last:
            raise NotFoundError(
                f"{root.parent} has no version {version}.", f"Versions run from 0 to {last}."
            )
        elif last is not None and not (root / FOLDER / entry_name(version)).exists():
            raise NotFoundError(
                f"{root.parent} has no version {version} any more: claw forget let go of it.",
                f"The newest is {last}; claw tag names versions that are to stay.",
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


def missing(root: Place, version: int) -> list[ActiveFile]:
    """List the data files of a version that are not there any more.

    Raises:
        NotFoundError: there is no such version.
        StoreError: the log is torn.
    """
    files = active(open_table(root, version))
    return [file for file in files if not (root / file.name).exists()]


def is_whole(root: Place, version: int) -> bool:
    """Tell whether a version is there with all its data files."""
    return (root / FOLDER / entry_name(version)).exists() and not missing(root, version)


def history(root: Place, *, since: int = 0) -> list[dict[str, Any]]:
    """List what claw wrote into the commit infos of a table, oldest first; {} for others.

    Only commits count that the newest version is made of: a restore takes back those after the
    version that it restored.

    Args:
        root: directory of the table; none there gives no entries.
        since: first version to list.

    Raises:
        StoreError: the log is torn.
    """
    made_of = itertools.takewhile(lambda one: one.version >= since, line(root))
    return [dict(one.info) for one in made_of][::-1]


def first_info(root: Place) -> dict[str, Any]:
    """Return what claw wrote into the commit info of a table's oldest version; {} for others.

    Raises:
        StoreError: the log is torn.
    """
    check_log(root)
    oldest = _entries(root)[:1]
    return dict(_commit(*next(zip(oldest, remote.read_all(oldest), strict=True))).info)


def line(root: Place, version: int | None = None) -> Iterator[Commit]:
    """List the commits that a version is made of, newest first; by default the newest version.

    Raises:
        StoreError: the log is torn.
    """
    wanted = version
    for one in commits(root):
        if wanted is None or one.version <= wanted:
            yield one
            wanted = one.version - 1 if one.restored is None else one.restored


def commits(root: Place) -> Iterator[Commit]:
    """List the commits of a table, newest first, reading entries only as they are asked for.

    Raises:
        StoreError: the log is torn.
    """
    check_log(root)
    entries = _entries(root)[::-1]
    for entry, raw in zip(entries, remote.read_all(entries), strict=True):
        yield _commit(entry, raw)


def _commit(entry: Place, raw: bytes) -> Commit:
    actions = list(_actions(entry, raw))
    info = next((action.info for action in actions if action.info), _Info())
    adds = [action.add for action in actions if action.add]
    removes = [action.remove for action in actions if action.remove]
    rows = [_rows(add) for add in adds]
    return Commit(
        version=_version_of(entry),
        at=_time(info.timestamp),
        info=info.values,
        operation=info.operation if isinstance(info.operation, str) else None,
        files_added=len(adds),
        files_removed=len(removes),
        rows_added=None if None in rows else sum(row for row in rows if row is not None),
        is_change=any(one.is_change for one in [*adds, *removes]),
        restored=info.restored,
    )


def count(root: Place) -> int:
    """Count the versions that the log of a table lists."""
    return len(_entries(root))


def newest(root: Place) -> int | None:
    """Return the newest version of a table; None where there is none."""
    entries = _entries(root)
    return _version_of(entries[-1]) if entries else None


def commit_uid(root: Place, version: int) -> str | None:
    """Return the id of the commit that made a version; None where there is no such version."""
    entry = root / FOLDER / entry_name(version)
    try:
        raw = entry.read_bytes()
    except FileNotFoundError:
        return None
    return _info(entry, raw).uid or "of another program"


def entry_name(version: int) -> str:
    """Name the file of a version in the log."""
    return f"{version:020d}.json"


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
    checkpoints = sorted((root / FOLDER).glob("*.checkpoint*.parquet"))
    hint = root / FOLDER / "_last_checkpoint"
    if (checkpoints and not _is_parquet(checkpoints[-1])) or (hint.exists() and not checkpoints):
        torn = checkpoints[-1] if checkpoints else hint
        raise StoreError(
            f"{torn} is torn: the machine stopped before it was on the disk.",
            f"Remove {hint} and the newest *.checkpoint.parquet beside it: the log entries hold "
            "all that they did.",
        )


def _entries(root: Place) -> list[Place]:
    """List the log entries of a table, oldest first."""
    try:
        found = [path for path in (root / FOLDER).iterdir() if path.name.endswith(".json")]
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


def _info(entry: Place, raw: bytes) -> _Info:
    return next((action.info for action in _actions(entry, raw) if action.info), _Info())


def _rows(add: _Add) -> int | None:
    try:
        return msgspec.json.decode(add.stats or "{}", type=_Stats).rows
    except msgspec.DecodeError:  # it is only a statistic
        return None


def _time(milliseconds: Any) -> datetime | None:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    except (TypeError, OverflowError):
        return None


def _is_there(root: Path, add: _Add | None) -> bool:
    if add is None:
        return True
    file = root / unquote(add.path)
    return file.exists() and file.stat().st_size == add.size


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4))
        return file.read() == b"PAR1"
