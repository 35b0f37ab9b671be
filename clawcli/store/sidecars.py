"""Sidecars: what became known of steps after they were written, in narrow tables beside them.

A sidecar is a Delta table data/sidecars/NAME that only grows. Each row is about one step (step_uid)
or one trajectory (trajectory_uid), and of several rows about the same the newest counts, so that a
correction is an append and the step table stays as it is. Sidecars have versions of their own:
data@3 names a version of the step table and is read with what is known today.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.errors import DataError, SchemaError, UsageError
from clawcli.store import table
from clawcli.store.location import SIDECARS, Location
from clawcli.store.remote import Place

KEYS = ("step_uid", "trajectory_uid")
"""Columns that say what a row is about."""
VERSION = "sidecar_version"
"""Column with the version of the sidecar that wrote a row."""
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


def append(location: Location, name: str, rows: pa.Table, *, info: Mapping[str, Any]) -> int:
    """Add rows to a sidecar in one commit, creating it if there is none.

    Whoever calls it holds table.lock, so that two writers do not give the same version; in an
    object store, which has no locks, the slower one gets a ConflictError.

    Args:
        location: the data directory.
        name: lower-case letters, digits and _.
        rows: columns of schema.SIDECARS[name] (missing ones are null), or any where the name is
            not declared; each row has exactly one of step_uid and trajectory_uid. The column
            sidecar_version is written here, whatever it holds.
        info: what made the commit; goes into the Delta commit info.

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
    version = table.open_table(path).version() + 1 if table.exists(path) else 0
    stamp = pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows)
    rows = rows.append_column(VERSION, stamp)
    added = table.write_files(path, rows)
    try:
        return table.commit(path, added, rows.schema, info=info, txn=(VERSION, version))
    except BaseException:
        table.discard(path, added)
        raise


def _path(location: Location, name: str) -> Place:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(
            f"A sidecar cannot be called {name!r}.", "Use lower-case letters, digits and _."
        )
    return location.sidecar(name)


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
