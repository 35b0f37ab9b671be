"""Take a place on disk whole: a temporary neighbour, a rename, and what kills leave beside it.

An output NAME is written as .NAME.PID-RANDOM.tmp; a directory that it replaces steps aside as
.NAME.PID-RANDOM.old for the moment between two renames. The PID tells whether anyone still works
on a neighbour, so what a killed process left can be put right without asking.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path


def real(path: Path) -> Path:
    """Follow links; unlike Path.resolve this never raises on a loop of them."""
    return Path(os.path.realpath(path))


def is_inside(inner: Path, outer: Path) -> bool:
    """Tell whether a path is another or lies below it, also where spelling ignores case."""
    with suppress(OSError):
        return any(p.exists() and p.samefile(outer) for p in (inner, *inner.parents))
    return False


def temporary(place: Path) -> Path:
    """Name a neighbour of a place that does not exist yet."""
    return place.parent / f".{place.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"


def swap(new: Path, place: Path) -> None:
    """Move a temporary neighbour to its place; what was there is gone, or still there on errors."""
    if not place.is_dir():
        new.replace(place)
        return
    # rename cannot replace a directory that holds files, so the old one steps aside first
    old = new.with_suffix(".old")
    place.rename(old)
    try:
        new.rename(place)
    except OSError:
        old.rename(place)
        raise
    remove(old)


def restore(place: Path) -> None:
    """Put back the output of a process that was killed between its two renames."""
    if place.exists():
        return
    aside = [path for path in _leftovers(place) if path.suffix == ".old"]
    if aside:
        aside[-1].rename(place)


def clear(place: Path) -> None:
    """Remove what killed processes left beside a place."""
    for path in _leftovers(place):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, link or directory as far as that goes: cleaning up never hides an error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _leftovers(place: Path) -> list[Path]:
    """List the neighbours of a place whose process is gone, oldest first."""
    name = re.compile(rf"\.{re.escape(place.name)}\.(\d+)-[0-9a-f]{{8}}\.(tmp|old)")
    found = [
        path
        for path in (place.parent.iterdir() if place.parent.is_dir() else ())
        if (match := name.fullmatch(path.name)) and not _is_running(int(match[1]))
    ]
    return sorted(found, key=lambda path: path.lstat().st_mtime_ns)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs for another user
        return True
    return True
