"""Names of data directories: data, data@3, s3://bucket/data@3.

A data directory holds tables, each a directory: steps, rejects, sidecars by name. It is on this
machine or in an object store, and whoever works on one need not ask which.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clawcli.errors import DataError, NotFoundError, UsageError
from clawcli.store import remote
from clawcli.store.remote import Place, Remote

STEPS = "steps"
REJECTS = "rejects"
SIDECARS = "sidecars"
LOCK = ".lock"
"""File that whoever adds to a data directory holds."""
REDACTION_KEY = ".redaction-key"
"""File with the key that the placeholders of hidden secrets are made with."""
_OWN = {STEPS, REJECTS, SIDECARS, LOCK, REDACTION_KEY}


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

    Raises:
        UsageError: deltalake would look for the table under another name.

    Example:
        >>> parse("runs/data@3")
        Location(path=PosixPath('runs/data'), version=3)
        >>> parse("s3://bucket/data@3")
        Location(path=Remote(url='s3://bucket/data'), version=3)
    """
    is_remote = remote.is_remote(text)
    read = remote.parse if is_remote else _local
    # a directory on this machine may be called so; to ask a store would cost a request
    if (match := re.fullmatch(r"(.+)@(\d+)", text)) and (is_remote or not Path(text).exists()):
        return Location(read(match[1]), int(match[2]))
    return Location(read(text))


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
        for name in (LOCK, REDACTION_KEY):
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
