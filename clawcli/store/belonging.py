"""Sidecars that belong to a version of the step table, and go back with it.

What ingest says of steps as they are (links, seen_in) is no knowledge of today, as rewards are: it
has to fit the rows. Each commit of ingest names the versions that these sidecars have with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from clawcli.store import log, sidecars, table
from clawcli.store.location import SIDECARS, Location

NAMES = ("links", "seen_in")
KEY = "sidecars"
"""Key of a commit info: name of a sidecar -> its version; null = there was none."""


def now(location: Location) -> dict[str, int | None]:
    """Return the newest versions of the sidecars that belong to steps, for a commit info."""
    return {name: log.newest(location.sidecar(name)) for name in NAMES}


def of(location: Location, version: int) -> dict[str, int | None]:
    """Return the versions of sidecars that belong to a version of the step table.

    Returns:
        Name -> version, null where there was none; empty where no commit says so.

    Raises:
        StoreError: the log is torn.
    """
    for commit in log.line(location.steps, version):
        if found := commit.info.get(KEY):
            # claw forget names all sidecars, and rewards are what is known today
            return {name: found[name] for name in NAMES if name in found}
    return {}


def restore(location: Location, version: int, *, info: Mapping[str, Any]) -> None:
    """Give sidecars the rows back that they had with a version of the step table.

    Whoever calls it holds table.alone.

    Raises:
        StoreError: they cannot be read or written.
    """
    for name, wanted in of(location, version).items():
        root = location.sidecar(name)
        present = log.newest(root)
        if present is None or present == wanted:
            continue
        if wanted is not None and log.is_whole(root, wanted):
            table.restore(root, wanted, info=info)
        else:
            _cut(location, name, -1 if wanted is None else wanted, info)


def _cut(location: Location, name: str, wanted: int, info: Mapping[str, Any]) -> None:
    """Leave out the rows that came later: each says with which version it came."""
    root, part = location.sidecar(name), f"{SIDECARS}/{name}"
    actives = log.active(table.open_table(root))
    rows = table.read(location, part, where=pc.field(sidecars.VERSION) <= wanted)
    added = table.write_files(root, rows)
    try:
        table.commit(root, added, rows.schema, info=info, removed=actives)
    except BaseException:
        table.discard(root, added)
        raise
