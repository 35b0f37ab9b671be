"""`claw restore`: the rows of an old version become the newest ones, by a new commit.

Nothing is lost: the versions in between stay, and what ingest consumed since counts as not consumed
(store/log.line), so that steps which the version lacks come back when their log is ingested again.
Sidecars that describe steps as they are go back with them; rewards and other knowledge stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import UsageError
from clawcli.store import location, log, scan, table
from clawcli.store.location import Location
from clawcli.store.remote import Place

_KEY = "step_uid"


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreConfig:
    """What `claw restore` is asked for."""

    input: str
    """data@VERSION, data@TAG or data@DATE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreReport:
    """What came back."""

    version: int
    """Version that was restored."""
    version_before: int
    """Version that was the newest before."""
    table_version: int
    """The newest version now, with the rows of the restored one; nothing was committed where it is
    version_before."""
    steps_added: int
    """Steps that the newest version lacked."""
    steps_removed: int
    """Steps that the restored version lacks; they are still in version_before."""
    steps_total: int
    sources_taken_back: int
    """Sources of which claw ingest had consumed more by version_before: it reads that again."""


def restore(config: RestoreConfig) -> RestoreReport:
    """Make an old version of a data directory's step table the newest one.

    Raises:
        UsageError: no version is named, or the directory is in an object store.
        NotFoundError: the directory or the version is not there.
        DataError: it is no data directory.
        ConflictError: a run is at work on the directory, with work that is not committed.
        StoreError: data files of the version are gone, the log is torn, or the disk is full.
    """
    place = location.existing(config.input)
    if place.version is None:
        raise UsageError(
            f"{config.input} names no version.",
            f"Write {place.path}@3, say, or a tag or a date after the @. claw log lists them.",
        )
    with table.alone(location.here(place)):
        return _restore(place, place.version)


def _restore(place: Location, version: int) -> RestoreReport:
    root = place.steps
    before = table.open_table(root).version()
    now, then = _uids(root, before, version), _uids(root, version, before)
    in_both = then.filter(pc.field(_KEY).isin(now[_KEY].combine_chunks())).num_rows
    added, removed = then.num_rows - in_both, now.num_rows - in_both
    taken_back = _sources(root, before) - _sources(root, version)
    made = before
    if version != before:
        info = {
            "command": "restore",
            "version": version,
            "steps_added": added,
            "steps_removed": removed,
        }
        made = table.restore(root, version, info=info)
        _restore_sidecars(place, version)
    files = log.active(table.open_table(root))
    return RestoreReport(
        version=version,
        version_before=before,
        table_version=made,
        steps_added=added,
        steps_removed=removed,
        steps_total=sum(file.rows or 0 for file in files),
        sources_taken_back=len({uid for uid, _ in taken_back}),
    )


def _uids(root: Place, version: int, other: int) -> pa.Table:
    """Read the steps of a version that stand in files which another version does not have."""
    opened = table.open_table(root, version)
    shared = {file.path for file in log.active(table.open_table(root, other))}
    files = [file for file in log.active(opened) if file.path not in shared]
    fields = pa.schema([scan.schema_of(opened).field(_KEY)])
    pieces = scan.read(root, files, fields, fields.names)
    return pa.concat_tables([fields.empty_table(), *pieces])


def _sources(root: Place, version: int) -> set[tuple[str, str]]:
    """List what a version consumed: source and what the log says of it."""
    return {
        (entry["source_uid"], str(entry["pieces"]))
        for commit in log.line(root, version)
        for entry in commit.info.get("sources", ())
    }


def _restore_sidecars(place: Location, version: int) -> None:
    """Take back sidecars that say something of steps as they were then.

    Ingest writes them before the steps, so that a crash before this leaves what one of ingest does.
    """
    lines = (commit.info.get("sidecars") for commit in log.line(place.steps, version))
    belonging: Mapping[str, Any] = next((found for found in lines if found), {})
    info = {"command": "restore"}
    for name, wanted in belonging.items():
        root = place.sidecar(name)
        present = log.newest(root)
        if present is None or present == wanted:
            continue
        if wanted is not None:
            table.restore(root, wanted, info=info)
            continue
        opened = table.open_table(root)  # there was none yet
        fields = scan.schema_of(opened)
        table.commit(root, [], fields, info=info, removed=log.active(opened))
