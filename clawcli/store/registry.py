"""The registry of a data directory: what was derived from it, and where that was put.

data/registry.jsonl has a line for each curated directory, tree and file of rows that was made of
the directory, and for shards that were drawn by it, in the order of time. Lines are only added. What else was made, by hand or by other
tools, it cannot know.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from clawcli.errors import StoreError
from clawcli.store import artefact, log
from clawcli.store.location import REGISTRY, STEPS, Location

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """Something that was made of a data directory."""

    path: str
    """Absolute path of it when it was made."""
    kind: str
    """data, tree, shards or rows."""
    version: int
    """Version of the step table that it was made of."""
    hash: str
    """Of data the id of its step table, of a tree or shards blake2b-256 of their manifest, of rows
    blake2b-256 of the file."""
    at: str
    """When, UTC (ISO 8601)."""


def add(source: Location, output: Path, *, kind: str, version: int) -> None:
    """Add a line for something that was made of a data directory.

    A directory in an object store, or one that cannot be written, keeps no registry: that is told
    at INFO, for what was made is whole without it.

    Args:
        source: the data directory that was read.
        output: what was made.
        kind: as in Derived.
        version: as in Derived.
    """
    if not isinstance(source.path, Path):
        logger.info("%s is in an object store, which keeps no registry.", source.path)
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    path = os.path.realpath(output)
    row = Derived(path=path, kind=kind, version=version, hash=_hash(output, kind), at=now)
    try:
        _append(source.path / REGISTRY, msgspec.json.encode(row) + b"\n")
    except (OSError, UnicodeEncodeError) as error:
        logger.info("%s does not name %s: %s", source.path / REGISTRY, output, error)


def read(source: Location) -> list[Derived]:
    """List what was derived from a data directory, the newest line of each path, oldest first.

    Raises:
        StoreError: the registry cannot be read.
    """
    if not isinstance(source.path, Path):
        return []
    place = source.path / REGISTRY
    try:
        lines = place.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{place} cannot be read: {error.strerror}.", "Check the path.") from error
    found: dict[str, Derived] = {}
    for row in _rows(lines):
        found.pop(row.path, None)
        found[row.path] = row
    return list(found.values())


def _hash(output: Path, kind: str) -> str:
    if kind == "data":
        return str(log.open_table(output / STEPS).metadata().id)
    return artefact.file_hash(output / artefact.MANIFEST if output.is_dir() else output)


def _append(place: Path, line: bytes) -> None:
    is_new = not place.exists()
    with place.open("ab+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = handle.seek(0, os.SEEK_END)
        if size:
            handle.seek(size - 1)
            if handle.read(1) != b"\n":  # a writer was killed in the middle of its line
                line = b"\n" + line
        handle.write(line)
        handle.flush()
        os.fsync(handle.fileno())
    if is_new:
        artefact.sync(place.parent)


def _rows(lines: list[bytes]) -> Iterator[Derived]:
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=Derived)
        except msgspec.DecodeError:
            if line.strip():
                logger.info("A line of the registry is cut: %r", line[:80])
