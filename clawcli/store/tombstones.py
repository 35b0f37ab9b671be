"""What was forgotten: hashes that keep a step from coming back, and nothing that can be read.

The sidecar `forgotten` has a row for each step that claw forget took out. claw ingest consults it
(ingest/forgotten.py), so that the same call stays away when its log is read again. The hash of a
step does not give its text back; who has the text already can tell that it was here.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from clawcli import schema
from clawcli.messages import hash128
from clawcli.store import sidecars
from clawcli.store.location import Location

NAME = "forgotten"
TOLD_BY_REJECTS = ("source_path", "task_id", "trial", "reward", "detail", "first_bytes")
"""Columns of rejects that tell something of a record besides its place and its fate."""
_MASK = "forgotten:"
_COLUMNS = ("step_uid", "next_hash")


def read(location: Location) -> dict[str, str]:
    """List what was forgotten: step_uid -> next_hash, as its row had it."""
    rows = sidecars.read(location, NAME)
    return dict(zip(rows["step_uid"].to_pylist(), rows["next_hash"].to_pylist(), strict=True))


def add(location: Location, steps: Mapping[str, str], *, command: str) -> int:
    """Remember steps as forgotten, those that are already left out; the caller holds table.lock.

    Returns:
        How many are remembered altogether.
    """
    known = read(location)
    new = {uid: hash_ for uid, hash_ in steps.items() if uid not in known}
    if new:
        columns = [column for column in schema.SIDECARS[NAME] if column.name in _COLUMNS]
        values = [pa.array(new.keys(), pa.string()), pa.array(new.values(), pa.string())]
        rows = pa.table(values, schema=schema.arrow_schema(columns))
        sidecars.append(location, NAME, rows, info={"command": command})
    return len(known) + len(new)


def mask(path: str) -> str:
    """Stand in for the path of a source, so that the source is known again without naming it."""
    return path if is_masked(path) else _MASK + hash128(path)


def is_masked(path: str) -> bool:
    """Tell whether a path was masked."""
    return path.startswith(_MASK)
