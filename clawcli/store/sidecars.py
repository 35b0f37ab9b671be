"""Sidecars: what became known of steps after they were written, in narrow tables beside them.

A sidecar is a Delta table data/sidecars/NAME that only grows. Each row is about one step (step_uid)
or one trajectory (trajectory_uid), and of several rows about the same the newest counts, so that a
correction is an append and the step table stays as it is. Sidecars have versions of their own:
data@3 names a version of the step table and is read with what is known today.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.errors import ConflictError, DataError, SchemaError, UsageError
from clawcli.store import arrow, files, table
from clawcli.store.location import SIDECARS, Location
from clawcli.store.remote import Place

KEYS = ("step_uid", "trajectory_uid")
"""Columns that say what a row is about."""
VERSION = schema.SIDECAR_VERSION
"""Column with the version of the sidecar that wrote a row."""
INTERNAL = frozenset(schema.SIDECARS) - {"rewards"}
"""Sidecars that claw itself writes, which say nothing about what a step is worth."""
# a call can have been logged in many places, and each row is one of them
_ALL_COUNT = frozenset({"seen_in"})


def exists(location: Location, name: str) -> bool:
    """Tell whether a data directory has a sidecar."""
    return table.exists(_path(location, name))


def versions(location: Location) -> dict[str, int]:
    """List the sidecars of a data directory, by name, with the newest version of each."""
    folder = location.path / SIDECARS
    if not folder.is_dir():
        return {}
    found = sorted(path for path in folder.iterdir() if table.exists(path))
    return {path.name: table.open_table(path).version() for path in found}


def describe(location: Location, version: int) -> dict[str, Any]:
    """Name a version of a data directory, with what is attached to it, as the input of something."""
    known = versions(location)
    origin = table.describe(location, version)
    return {**origin, "sidecars": known} if known else origin


def read(location: Location, name: str) -> pa.Table:
    """Read a sidecar, the newest row of each key; of seen_in all rows.

    Returns:
        The columns of schema.SIDECARS[name], or those that an undeclared sidecar was given; empty
        where a declared one is not there.

    Raises:
        NotFoundError: there is no such sidecar, nor is it declared.
        StoreError: it cannot be read.
    """
    declared, is_there = schema.SIDECARS.get(name), exists(location, name)
    if declared is not None and not is_there:
        return schema.arrow_schema(declared).empty_table()
    rows = table.read(location, f"{SIDECARS}/{name}")
    if declared is not None:
        rows = rows.cast(schema.arrow_schema(declared))
    return rows if name in _ALL_COUNT else newest(rows)


def newest(rows: pa.Table) -> pa.Table:
    """Keep the newest row of each key, by sidecar_version; one that has none yet is newer."""
    ordered = rows.sort_by([(VERSION, "ascending")])
    keys = [name for name in KEYS if name in rows.column_names]
    place = pa.array(range(ordered.num_rows), pa.int64())
    last = ordered.select(keys).append_column("place", place).group_by(keys)
    kept = last.aggregate([("place", "max")])["place_max"]
    return ordered.take(kept.combine_chunks().sort())


def columns(location: Location, name: str) -> dict[str, pa.DataType]:
    """List the columns that a sidecar has beside keys and version; none where there is no such."""
    path = _path(location, name)
    if not table.exists(path):
        return {}
    stored = pa.schema(table.open_table(path).schema().to_arrow())
    return {field.name: field.type for field in stored if field.name not in (*KEYS, VERSION)}


def differing(left: pa.Table, right: pa.Table) -> np.ndarray:
    """Compare tables of the same columns row by row: true where any value is another (bool).

    Two nulls are the same.
    """
    names = left.column_names
    if not names or not left.num_rows:
        return np.zeros(left.num_rows, bool)
    sides = [[f"{side}{place}" for place in range(len(names))] for side in "lr"]
    pairs = pa.table([*left.columns, *right.columns], names=[*sides[0], *sides[1]])
    pairs = pairs.append_column("place", pa.array(range(left.num_rows), pa.int64()))
    differs = " OR ".join(f"{a} IS DISTINCT FROM {b}" for a, b in zip(*sides, strict=True))
    with duckdb.connect(config={"temp_directory": ""}) as connection:
        connection.register("pairs", pairs)
        places = connection.sql(f"SELECT place FROM pairs WHERE {differs}").to_arrow_table()
    found = np.zeros(left.num_rows, bool)
    found[places["place"].to_numpy()] = True
    return found


def new_in(before: pa.Table, rows: pa.Table, said: Sequence[str]) -> pa.Table:
    """Keep the rows that say what a sidecar does not say yet.

    Args:
        before: the sidecar as read returns it.
        rows: each with one key, of which there are no two.
        said: columns that say something; a row that only differs in others says nothing new.
    """
    place = np.full(rows.num_rows, -1, np.int64)
    for key in KEYS:
        if key in rows.column_names and key in before.column_names:
            found = arrow.index_in(rows[key], before[key]).fill_null(-1).to_numpy()
            place = np.where(found >= 0, found, place)
    there = np.flatnonzero(place >= 0)
    is_new = place < 0
    names = [name for name in said if name in before.column_names]
    old = before.select(names).take(pa.array(place[there]))
    given = rows.take(pa.array(there))
    is_new[there] = differing(given.select(names), old)
    for name in said:
        if name not in before.column_names:
            is_new[there] |= given[name].is_valid().to_numpy()
    return rows.filter(pa.array(is_new))


def append(
    location: Location,
    name: str,
    rows: pa.Table,
    *,
    info: Mapping[str, Any],
    after: int | None = None,
) -> int:
    """Add rows to a sidecar in one commit, creating it if there is none.

    Whoever calls it holds table.lock, so that two writers do not give the same version; in an
    object store, which has no locks, the slower one gets a ConflictError.

    Args:
        location: the data directory.
        name: lower-case letters, digits and _.
        rows: columns of schema.SIDECARS[name] (missing ones are null), or any where the name is
            not declared; those that such a sidecar lacks are added to it. Each row has exactly one
            of step_uid and trajectory_uid. The column sidecar_version is written here, whatever it
            holds.
        info: what made the commit; goes into the Delta commit info.
        after: the version that the sidecar must have, -1 = it must not exist; null = any.

    Returns:
        The version of the sidecar that the commit made.

    Raises:
        SchemaError: a column is not declared or has another type.
        DataError: a row has no key or both, or two rows have the same one.
        ConflictError: another writer was faster; nothing was added.
        StoreError: the disk is full or the table torn.
    """
    path = _path(location, name)
    if VERSION in rows.column_names:
        rows = rows.drop_columns([VERSION])
    rows = _fitting(name, rows)
    _check_keys(name, rows)
    there = _version(path)
    if after is not None and there != after:
        raise ConflictError(
            f"Another run wrote to the sidecar {name} first.",
            "Run it again: it goes on from there.",
        )
    has_own_columns = there >= 0 and name not in schema.SIDECARS
    if has_own_columns:
        there = _add_columns(path, there, rows.schema, info)
    version = there + 1
    stamp = pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows)
    rows = rows.append_column(VERSION, stamp)
    if has_own_columns:
        rows = _in_order(rows, pa.schema(table.open_table(path).schema().to_arrow()))
    # a column that a user attached may be text, whatever it is called, and no text is in the log
    stats = files.STATS_COLUMNS if name in schema.SIDECARS else KEYS
    added = table.write_files(path, rows, stats=stats)
    try:
        return table.commit(
            path, added, rows.schema, info=info, txn=(VERSION, version), stats=stats
        )
    except BaseException:
        table.discard(path, added)
        raise


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a sidecar.

    Raises:
        UsageError: it is not made of lower-case letters, digits and _, or too long for a directory.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", name):
        raise UsageError(
            f"A sidecar cannot be called {name[:120]!r}.",
            "Use lower-case letters, digits and _, a letter first, 100 at most.",
        )


def _path(location: Location, name: str) -> Place:
    check_name(name)
    return location.sidecar(name)


def version_of(location: Location, name: str) -> int:
    """Return the newest version of a sidecar; -1 = there is none."""
    return _version(_path(location, name))


def _version(path: Place) -> int:
    return table.open_table(path).version() if table.exists(path) else -1


def _add_columns(path: Place, version: int, wanted: pa.Schema, info: Mapping[str, Any]) -> int:
    """Give a sidecar the columns that it lacks; returns its newest version."""
    stored = pa.schema(table.open_table(path).schema().to_arrow())
    new = [field for field in wanted if field.name not in stored.names]
    if not new:
        return version
    txn = (VERSION, version + 1)
    return table.add_columns(path, pa.schema(new), info=info, txn=txn)


def _in_order(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Bring rows to the columns of a sidecar; what they lack is null."""
    columns = {
        field.name: rows[field.name]
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in stored
    }
    return pa.table(columns)


def _fitting(name: str, rows: pa.Table) -> pa.Table:
    """Give rows the declared columns, without the version."""
    declared = schema.SIDECARS.get(name)
    if declared is None:
        return rows
    wanted = schema.arrow_schema([column for column in declared if column.name != VERSION])
    if unknown := set(rows.column_names) - set(wanted.names):
        raise SchemaError(
            f"The sidecar {name} has no column {sorted(unknown)[0]}.",
            f"Its columns are {', '.join(wanted.names)}.",
        )
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    try:
        return pa.table(columns, names=wanted.names).cast(wanted)
    except pa.ArrowException as error:
        raise SchemaError(f"Rows of the sidecar {name} do not fit its columns: {error}.") from error


def _check_keys(name: str, rows: pa.Table) -> None:
    keys = [key for key in KEYS if key in rows.column_names]
    present = [rows[key].is_valid().to_numpy() for key in keys]
    if not keys or not (np.sum(present, axis=0) == 1).all():
        raise DataError(
            f"Each row of the sidecar {name} must have one of {' and '.join(KEYS)}.",
            "Give each row its key.",
        )
    if name not in _ALL_COUNT and _distinct(rows.select(keys)) < rows.num_rows:
        raise DataError(
            f"Two rows for the sidecar {name} have the same key.", "Leave one of them out."
        )


def _distinct(rows: pa.Table) -> int:
    return rows.group_by(rows.column_names).aggregate([]).num_rows
