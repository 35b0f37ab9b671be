"""Names of data directories: data, data@3."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from clawcli.errors import DataError, NotFoundError, UsageError

STEPS = "steps"
REJECTS = "rejects"
LOCK = ".lock"
"""File that whoever adds to a data directory holds."""


@dataclass(frozen=True, slots=True)
class Location:
    """A data directory and, where one was named, a version of its step table."""

    path: Path
    version: int | None = None

    @property
    def steps(self) -> Path:
        """Directory of the step table."""
        return self.path / STEPS

    @property
    def rejects(self) -> Path:
        """Directory of the table of records that gave no step."""
        return self.path / REJECTS


def parse(text: str) -> Location:
    """Read a location as users type it.

    Raises:
        UsageError: deltalake would look for the table under another name.

    Example:
        >>> parse("runs/data@3")
        Location(path=PosixPath('runs/data'), version=3)
    """
    if (match := re.fullmatch(r"(.+)@(\d+)", text)) and not Path(text).exists():
        return Location(_usable(Path(match[1])), int(match[2]))
    return Location(_usable(Path(text)))


def _usable(path: Path) -> Path:
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


def is_data(path: Path) -> bool:
    """Tell whether a directory is a data directory."""
    return (path / STEPS / "_delta_log").is_dir()


def may_hold_data(path: Path) -> bool:
    """Tell whether a table may be put here: a data directory, one that a crash left, or nothing."""
    if not path.exists():
        return True
    if not path.is_dir():
        return False
    return is_data(path) or all(child.name in (STEPS, REJECTS, LOCK) for child in path.iterdir())


def existing(text: str) -> Location:
    """Read a location that must hold a step table.

    Raises:
        NotFoundError: nothing is there.
        DataError: what is there is no data directory.
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
