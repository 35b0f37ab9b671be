"""Names of data directories: data, data@3, data@tag, data@2026-10-31, s3://bucket/data@3.

A data directory holds tables, each a directory: steps, rejects, sidecars by name. It is on this
machine or in an object store, and whoever works on one need not ask which.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from clawcli.errors import DataError, NotFoundError, UsageError
from clawcli.store import remote
from clawcli.store.remote import Place, Remote

STEPS = "steps"
REJECTS = "rejects"
SIDECARS = "sidecars"
LOCK = ".lock"
"""File that whoever adds to a data directory holds."""
RUNS = ".runs"
"""File that runs hold together while they are at work on a data directory."""
REDACTION_KEY = ".redaction-key"
"""File with the key that the placeholders of hidden secrets are made with."""
TAGS = "tags.json"
"""File with the names of versions."""
DATE = r"\d{4}-\d\d-\d\d"
"""What after an @ stands for the newest version of a day."""
REGISTRY = "registry.jsonl"
"""File that lists what was derived from the directory."""
FORGETTING = "forgetting.json"
"""File that says what an unfinished claw forget is about, in hashes."""
_OWN = {STEPS, REJECTS, SIDECARS, LOCK, RUNS, REDACTION_KEY, TAGS, REGISTRY, FORGETTING}


@dataclass(frozen=True, slots=True)
class Location:
    """A data directory and, where one was named, a version of its step table."""

    path: Place
    version: int | None = None

    @property
    def steps(self) -> Place:
        """Directory of the step table."""
        return self.path / STEPS

    @property
    def rejects(self) -> Place:
        """Directory of the table of records that gave no step."""
        return self.path / REJECTS

    def sidecar(self, name: str) -> Place:
        """Directory of a table of what became known of steps later."""
        return self.path / SIDECARS / name

    @property
    def on_disk(self) -> list[Path]:
        """The directory itself if it is on this machine, where an output could damage it."""
        return [self.path] if isinstance(self.path, Path) else []


def parse(text: str) -> Location:
    """Read a location as users type it.

    What stands after the last @ is a version where it is a number. A tag and a date are looked up
    where a data directory stands before the @; a date is the newest version that was committed
    before the end of that day, UTC. What exists under the whole name is meant first, but in object
    stores a number is a version, because to ask would cost a request.

    Raises:
        UsageError: deltalake would look for the table under another name; there is no such day.
        NotFoundError: no version has that tag, or is that old.
        StoreError: the tags or the log cannot be read.

    Example:
        >>> parse("runs/data@3")
        Location(path=PosixPath('runs/data'), version=3)
        >>> parse("s3://bucket/data@3")
        Location(path=Remote(url='s3://bucket/data'), version=3)
    """
    is_remote = remote.is_remote(text)
    read = remote.parse if is_remote else _local
    match = re.fullmatch(r"(.+)@([^@/]+)", text)
    # a directory on this machine may be called so; to ask a store would cost a request
    if match is None or (not is_remote and Path(text).exists()):
        return Location(read(text))
    if re.fullmatch(r"\d+", match[2]):
        return Location(read(match[1]), int(match[2]))
    if not is_data(read(match[1])) or (is_remote and read(text).exists()):
        return Location(read(text))
    return Location(read(match[1]), _version(Location(read(match[1])), match[2]))


def _version(location: Location, name: str) -> int:
    """Look up the version that a tag or a date stands for."""
    # both are made of locations themselves
    from clawcli.store import log, tags

    if re.fullmatch(DATE, name):
        return _version_on(location, name)
    known = tags.read(location)
    if name not in known:
        listed = f"Its tags: {', '.join(known)}." if known else "It has no tags."
        newest = log.open_table(location.steps).version()
        raise NotFoundError(
            f"{location.path} has no tag {name}.", f"{listed} Versions run from 0 to {newest}."
        )
    return known[name]


def _version_on(location: Location, day: str) -> int:
    from clawcli.store import log

    try:
        # the first moment after that day
        end = datetime.combine(date.fromisoformat(day) + timedelta(days=1), time(), UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{day} is no day of the calendar.", "Write 2026-10-31.") from error
    made = None
    for made in log.commits(location.steps):
        if made.at is not None and made.at < end:
            return made.version
    since = f"It was made on {made.at:%Y-%m-%d}." if made and made.at else "claw log lists them."
    raise NotFoundError(f"{location.path} had no version yet on {day}.", since)


def whole(text: str) -> Location:
    """Read the location of a directory where no version of it can be meant.

    Raises:
        UsageError: it names a version.
        NotFoundError, StoreError: as parse.
    """
    location = parse(text)
    if location.version is not None:
        raise UsageError(
            f"{text} names a version, where the directory is asked for.",
            f"Write {location.path}.",
        )
    return location


def here(location: Location) -> Path:
    """Return the directory of a location for a verb that changes it in place.

    Raises:
        UsageError: it is in an object store, which has no locks.
    """
    if isinstance(location.path, Path):
        return location.path
    raise UsageError(
        f"{location.path} is in an object store, where only claw ingest writes.",
        "Copy the directory to this machine, and do it there.",
    )


def local(place: Place) -> Path:
    """Return a place for an output that takes it by a rename, which object stores do not have.

    Raises:
        UsageError: it is in an object store.
    """
    if isinstance(place, Remote) or remote.is_remote(str(place)):
        url = re.sub(r"^([^/]+:)/+", r"\1//", str(place))
        raise UsageError(
            f"--output {url} is in an object store, where only claw ingest writes.",
            "Name a place on this machine, and copy it when it is done.",
        )
    return place


def _local(text: str) -> Path:
    path = Path(text)
    name = os.fsencode(path.resolve())
    # deltalake 1.6 decodes %XX in the names of directories, and takes no bytes beyond UTF-8
    if re.search(rb"%[0-9A-Fa-f]{2}", name) or name.decode(errors="replace").encode() != name:
        shown = name.decode(errors="backslashreplace")
        raise UsageError(
            f"A data directory cannot be at {shown}: the table format reads %XX and bytes that are "
            "no UTF-8 as another name.",
            "Choose another directory.",
        )
    return path


def is_data(path: Place) -> bool:
    """Tell whether a directory is a data directory."""
    return (path / STEPS / "_delta_log").is_dir()


def _is_own(name: str) -> bool:
    # a key that is being made stands beside its place
    return name in _OWN or name.startswith(REDACTION_KEY)


def may_hold_data(path: Place) -> bool:
    """Tell whether a table may be put here: a data directory, one that a crash left, or nothing."""
    if not path.exists():
        return True
    if not path.is_dir():
        return False
    return is_data(path) or all(_is_own(child.name) for child in path.iterdir())


def clear(location: Location) -> None:
    """Remove a data directory that never got a table; one that has tables stays."""
    if isinstance(location.path, Path) and location.path.is_dir() and not is_data(location.path):
        for name in (LOCK, RUNS, REDACTION_KEY):
            (location.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            location.path.rmdir()


def existing(text: str) -> Location:
    """Read a location that must hold a step table.

    Raises:
        NotFoundError: nothing is there.
        DataError: what is there is no data directory.
        StoreError: the object store does not answer.
    """
    location = parse(text)
    if not location.path.exists():
        raise NotFoundError(
            f"{location.path} does not exist.", "claw ingest makes a data directory."
        )
    if not is_data(location.path):
        raise DataError(
            f"{location.path} is not a data directory: it has no step table.",
            "claw ingest and claw curate make one.",
        )
    return location
