"""`claw tag`: give a version of a data directory a name, so that it is found again and stays."""

from __future__ import annotations

from dataclasses import dataclass

from clawcli.errors import StoreError
from clawcli.store import location, log, table, tags
from clawcli.store.location import Location


@dataclass(frozen=True, kw_only=True, slots=True)
class TagConfig:
    """What `claw tag` is asked for."""

    input: str
    """Data directory, also as data@version; without a version the newest one is named."""
    name: str
    """The tag: letters, digits, dots, dashes and _; no number and no date."""
    force: bool = False
    """Move a tag that names another version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TagReport:
    """What was named."""

    tag: str
    table_version: int
    """Version that the tag names now."""
    version_before: int | None
    """Version that it named before; null = there was no such tag."""
    versions_by_tag: dict[str, int]
    """All tags, by name."""


def tag(config: TagConfig) -> TagReport:
    """Name a version of a data directory's step table.

    Raises:
        UsageError: no tag can be called so, or the directory is in an object store.
        OutputExistsError: the tag is there and force is off.
        NotFoundError: the directory or the version is not there.
        DataError: it is no data directory.
        StoreError: the version cannot be read any more, or the log is torn.
    """
    tags.check_name(config.name)
    place = location.existing(config.input)
    with table.lock(location.here(place)):
        opened = log.open_table(place.steps, place.version)
        version = opened.version()
        _check_whole(place, version)
        before = tags.read(place).get(config.name)
        tags.put(place, config.name, version, force=config.force)
        named = tags.read(place)
    return TagReport(
        tag=config.name, table_version=version, version_before=before, versions_by_tag=named
    )


def _check_whole(place: Location, version: int) -> None:
    """Refuse to promise that a version stays which is not whole."""
    files = log.active(log.open_table(place.steps, version))
    gone = sum(not (place.steps / file.name).exists() for file in files)
    if gone:
        raise StoreError(
            f"Version {version} of {place.path} cannot be read any more: {gone:,} of its "
            f"{len(files):,} data files are gone.",
            "claw log lists the versions; tag one before claw optimize removes its files.",
        )
