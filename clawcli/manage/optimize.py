"""`claw optimize`: few files instead of many small ones, and none that no version needs.

Small data files of each table are joined in one commit that changes no row. Then deltalake lists the
files that neither the newest version, nor a tagged one, nor any within the retention refers to, and
they are removed. Nobody else is at work on the directory meanwhile, so that no file belongs to a
commit that is still to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from deltalake.exceptions import DeltaError
from msgspec import Meta

from clawcli.store import files, location, log, sidecars, table, tags
from clawcli.store.location import Location

_WEEK_HOURS = 168


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizeConfig:
    """What `claw optimize` is asked for."""

    input: str
    """Data directory."""
    # beyond a week deltalake's checkpoints forget when a file was given up
    retention_hours: Annotated[int, Meta(ge=0, le=_WEEK_HOURS)] = _WEEK_HOURS
    """Files that were given up later than so many hours ago stay, for older versions and whoever
    reads them now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizeReport:
    """What became of the data files of all tables: steps, rejects and sidecars."""

    table_version: int
    """Newest version of the step table."""
    files_before: int
    """Data files that the newest versions consisted of."""
    files_after: int
    bytes_before: int
    """Their size."""
    bytes_after: int
    files_removed: int
    """Data files that were removed from the disk."""
    bytes_removed: int
    files_kept: int
    """Data files on the disk that only older versions need."""
    bytes_kept: int
    versions_by_tag: dict[str, int]
    """Tags, all of whose files were spared."""


def optimize(config: OptimizeConfig) -> OptimizeReport:
    """Join small data files, and remove those that no version needs.

    Raises:
        UsageError: a version is named, or the directory is in an object store.
        NotFoundError: the directory is not there.
        DataError: it is no data directory.
        ConflictError: a run is at work on the directory.
        StoreError: the log is torn, a file cannot be removed, or the disk is full.
    """
    location.whole(config.input)
    place = location.existing(config.input)
    with table.alone(location.here(place)):
        named = tags.read(place)
        roots = list(_tables(place))
        before = [size for root in roots for size in _active(root).values()]
        removed: list[int] = []
        for root in roots:
            table.compact(root, info={"command": "optimize"})
            kept = sorted(set(named.values())) if root == place.steps else []
            removed += _vacuum(root, kept, config.retention_hours)
        after = [size for root in roots for size in _active(root).values()]
        kept_sizes = [size for root in roots for size in _kept(root)]
        version = table.open_table(place.steps).version()
    return OptimizeReport(
        table_version=version,
        files_before=len(before),
        files_after=len(after),
        bytes_before=sum(before),
        bytes_after=sum(after),
        files_removed=len(removed),
        bytes_removed=sum(removed),
        files_kept=len(kept_sizes),
        bytes_kept=sum(kept_sizes),
        versions_by_tag=named,
    )


def _tables(place: Location) -> Iterator[Path]:
    directory = location.here(place)
    yield directory / location.STEPS
    if table.exists(place.rejects):
        yield directory / location.REJECTS
    for name in sidecars.versions(place):
        yield directory / location.SIDECARS / name


def _active(root: Path) -> dict[str, int]:
    """Map the data files of a table's newest version to their sizes."""
    return {file.name: file.size_bytes for file in log.active(table.open_table(root))}


def _vacuum(root: Path, kept: Sequence[int], retention_hours: int) -> list[int]:
    """Remove the data files that no version needs; return their sizes."""
    try:
        # deltalake only lists: it would not sync the log entries that it writes when it removes
        listed = table.open_table(root).vacuum(
            retention_hours,
            enforce_retention_duration=False,
            full=True,
            keep_versions=list(kept),
        )
    except DeltaError as error:
        raise files.translate(error, root) from error
    sizes = []
    for name in listed:
        path = root / name
        # others put their files there, and what was removed before is listed for a week
        if path.suffix != ".parquet" or not path.exists():
            continue
        try:
            sizes.append(path.stat().st_size)
            path.unlink()
        except OSError as error:
            raise files.translate(error, path) from error
    return sizes


def _kept(root: Path) -> list[int]:
    """List the sizes of data files that the newest version does not need."""
    needed = _active(root)
    found = (path for path in root.rglob("*.parquet") if log.FOLDER not in path.parts)
    return [
        path.stat().st_size for path in found if path.relative_to(root).as_posix() not in needed
    ]
