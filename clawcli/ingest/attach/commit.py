"""Add to a sidecar what it does not say yet, in one commit, whoever else adds to it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clawcli import schema
from clawcli.errors import ConflictError
from clawcli.store import sidecars, table
from clawcli.store.location import Location

_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Added:
    """What a commit added."""

    before: pa.Table
    """The sidecar as it was."""
    new: int
    """Rows that say what it did not say."""
    version: int | None
    """Its newest version; null = there is none."""


def add_new(
    location: Location,
    name: str,
    make: Callable[[], pa.Table],
    *,
    said: Sequence[str] | None = None,
    info: Mapping[str, Any],
    dry_run: bool,
) -> Added:
    """Append the rows of a sidecar that say something new.

    The data directory is held meanwhile. An object store cannot be held: there it begins again
    where another run was faster.

    Args:
        location: the data directory.
        name: the sidecar.
        make: makes the rows, of the columns that the sidecar then has.
        said: columns that say something; null = all but keys.
        info: what made the commit.
        dry_run: count, write nothing.

    Raises:
        ConflictError: others wrote to the sidecar again and again.
        StoreError: it cannot be written.
    """
    for attempt in range(_ATTEMPTS):
        with nullcontext() if dry_run else table.lock(location.path):
            version = sidecars.version_of(location, name)
            rows = make()
            columns = [c for c in rows.column_names if c not in (*sidecars.KEYS, sidecars.VERSION)]
            if version < 0 and name not in schema.SIDECARS:
                before = rows.slice(0, 0)
            else:
                before = sidecars.read(location, name)
            fresh = sidecars.new_in(before, rows, columns if said is None else said)
            if not fresh.num_rows or dry_run:
                return Added(before, fresh.num_rows, version if version >= 0 else None)
            try:
                added = sidecars.append(location, name, fresh, info=info, after=version)
            except ConflictError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            return Added(before, fresh.num_rows, added)
    raise AssertionError  # the last attempt returns or raises
