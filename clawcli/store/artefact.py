"""Directories that are whole or not there: written beside, hashed, synced, then renamed.

Trees, shards and runs are artefacts: a directory with a manifest.json that names every file with
its size and hash, the inputs with theirs, the resolved configuration and the claw version.
Nothing downstream opens a directory without one.

An output is refused here, in one place, before any work: what exists, what claw did not write,
what is an input, what lies inside another artefact. What a killed process left beside an output is
put right by the next one that writes there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import clawcli
from clawcli.errors import (
    DataError,
    NotFoundError,
    OutputExistsError,
    StoreError,
    UsageError,
    VerifyError,
)
from clawcli.store import location, manifest, swap
from clawcli.store.manifest import Manifest

MANIFEST = manifest.FILE
OWN_HASH = "own_blake2b"
"""Key of a manifest with its hash of itself, which tells `claw verify` that a hand was at it."""
_MAKERS = {"tree": "claw merge-prefixes", "shards": "claw export", "run": "claw train"}
_DATA_HINTS = {
    None: "Name a tree, shards or a run.",
    "tree": "Add --as sft for rows, or claw merge-prefixes makes a tree of it.",
    "shards": "claw merge-prefixes makes a tree of it, and claw export shards of that.",
    "run": "claw train makes a run.",
}


@dataclass(slots=True)
class Draft:
    """An artefact that is being written: a directory to fill and a manifest to complete."""

    path: Path
    manifest: dict[str, Any] = field(default_factory=dict)


def file_hash(path: Path) -> str:
    """Hash a file's bytes: blake2b-256 hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def sync(path: Path) -> None:
    """Force a file or directory to the disk, so that a rename never outlives its contents."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_artefact(path: Path, kind: str | None = None) -> bool:
    """Tell whether a directory is an artefact of a kind, intact or not; None = of any kind."""
    try:
        return manifest.is_claws(json.loads((path / MANIFEST).read_bytes()), kind)
    except (OSError, ValueError, RecursionError):
        return False


def check_output(output: Path, *, kind: str, force: bool, inputs: Sequence[Path]) -> None:
    """Refuse a place for an artefact, before any work is done.

    Raises:
        UsageError: the place is an input, or touches one or another artefact.
        OutputExistsError: something is there that may not be replaced.
    """
    check_apart(output, inputs)
    check_free(output, force=force, ours=partial(is_artefact, kind=kind))


def check_apart(output: Path, inputs: Sequence[Path]) -> None:
    """Refuse an output that is, contains or lies inside an input, which writing it would destroy.

    Args:
        output: where something is to be written.
        inputs: files and directories that are read; those that do not exist do not count.

    Raises:
        UsageError: naming the input.
    """
    place = swap.real(output)
    for source in map(swap.real, inputs):
        if not source.exists():
            continue
        if swap.is_inside(place, source):
            relation = "is" if swap.is_inside(source, place) else "lies inside"
        elif swap.is_inside(source, place):
            relation = "contains"
        else:
            continue
        raise UsageError(f"--output {output} {relation} the input {source}.", "Name another place.")


def check_free(output: Path, *, force: bool, ours: Callable[[Path], bool]) -> None:
    """Refuse an output that exists, before any work is done.

    An old output that a killed process had moved aside is put back first: it counts as there.

    Args:
        output: where something is to be written. A link stands for what it points to.
        force: it may be replaced, if it is claw's own or an empty directory.
        ours: tells whether a path is something that this verb wrote.

    Raises:
        UsageError: it is named "-", is in an object store, or lies inside an artefact.
        OutputExistsError: it exists and force is off, or it is nothing that this verb wrote.
        StoreError: the place cannot be read.
    """
    if str(output) == "-":
        raise UsageError("--output - is standard output, which takes rows only.", "Name a place.")
    place = swap.real(location.local(output))
    for parent in place.parents:
        if is_artefact(parent):
            raise UsageError(
                f"--output {output} lies inside the artefact {parent}, which it would damage.",
                "Name another place.",
            )
    with _translated(output):
        swap.restore(place)
        if not place.exists():
            return
        if not force:
            raise OutputExistsError(f"{output} exists already.", "Add --force to replace it.")
        if not ours(place) and not (place.is_dir() and not any(place.iterdir())):
            raise OutputExistsError(
                f"{output} was not written by this verb, so --force will not replace it.",
                "Choose another --output or remove it yourself.",
            )


@contextmanager
def replacing(output: Path, *, force: bool, ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Write a file or directory beside its place; it takes the place whole, or not at all.

    Yields:
        A path beside output that does not exist yet: create the file or directory there.

    Raises:
        UsageError: the output lies inside an artefact.
        OutputExistsError: the output exists and may not be replaced.
        StoreError: the disk is full or the place cannot be written.
    """
    check_free(output, force=force, ours=ours)
    place = swap.real(output)  # what a link points to is replaced, the link stays
    temporary = swap.temporary(place)
    try:
        with _translated(output):
            place.parent.mkdir(parents=True, exist_ok=True)
            swap.clear(place)
            yield temporary
            _sync_all(temporary)
            swap.swap(temporary, place)
            sync(place.parent)
    finally:
        swap.remove(temporary)


@contextmanager
def create(
    output: Path,
    *,
    kind: str,
    force: bool,
    config: dict[str, Any],
    inputs: list[dict[str, Any]],
) -> Iterator[Draft]:
    """Write an artefact directory; it appears whole when the block ends, or not at all.

    Args:
        output: the directory to create.
        kind: tree, shards or run.
        force: replace an artefact that is there.
        config: the resolved configuration, stored in the manifest.
        inputs: one mapping per input with its path, kind and version or manifest hash.

    Yields:
        Draft: fill path with files, put what describes them into manifest.

    Raises:
        OutputExistsError: the output exists and force is off.
        StoreError: the disk is full or the place cannot be written.
    """
    with replacing(output, force=force, ours=partial(is_artefact, kind=kind)) as temporary:
        temporary.mkdir()
        draft = Draft(temporary)
        yield draft
        _seal(draft, kind=kind, config=config, inputs=inputs)


def translate(error: OSError, place: Path) -> StoreError:
    """Turn an error of the file system into a sentence with a way out."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"No space is left to write {place}.", "Free some or choose another disk."
        )
    return StoreError(f"{place} cannot be written: {error.strerror or error}.", "Check the path.")


def own_hash(values: Mapping[str, Any]) -> str:
    """Hash a manifest without the hash that it holds of itself: blake2b-256 hex."""
    rest = {key: value for key, value in values.items() if key != OWN_HASH}
    text = json.dumps(rest, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _seal(draft: Draft, *, kind: str, config: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
    files = [
        {
            "path": path.relative_to(draft.path).as_posix(),
            "bytes": path.stat().st_size,
            "blake2b": file_hash(path),
        }
        for path in sorted(p for p in draft.path.rglob("*") if p.is_file())
    ]
    values = {
        "claw_version": clawcli.__version__,
        "kind": kind,
        "config": config,
        "inputs": inputs,
        **draft.manifest,
        "files": files,
    }
    values[OWN_HASH] = own_hash(values)
    # a line for each key: the plan of shards is long, and indented it would be written slowly
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    (draft.path / MANIFEST).write_text(f"{{\n{lines}\n}}\n")


@contextmanager
def _translated(place: Path) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise translate(error, place) from error


def _sync_all(path: Path) -> None:
    for inner in path.rglob("*") if path.is_dir() else ():
        sync(inner)
    sync(path)


def read_manifest(path: Path, *, kind: str | None = None) -> dict[str, Any]:
    """Read the manifest of an artefact; what all manifests have in common is checked.

    Args:
        path: the artefact's directory.
        kind: refuse another kind than this.

    Raises:
        NotFoundError: the directory is missing.
        DataError: it is no artefact, or of another kind.
        VerifyError: the manifest is damaged.
        StoreError: it cannot be read.
    """
    try:
        values = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise _without_manifest(path, kind) from None
    except NotADirectoryError:
        raise DataError(f"{path} is not a directory.", "Name an artefact's directory.") from None
    except IsADirectoryError:
        raise VerifyError(f"{path / MANIFEST} is a directory.", "Make it again.") from None
    except OSError as error:
        raise _unreadable(error, path) from error
    except (ValueError, RecursionError) as error:
        raise VerifyError(f"{path / MANIFEST} is not JSON: {error}.", "Make it again.") from error
    found = manifest.decode(values, Manifest, path).kind
    if kind is not None and found != kind:
        raise DataError(
            f"{path} holds {found}, not {kind}.", f"{_MAKERS[kind]} makes what is needed here."
        )
    return values


def _without_manifest(path: Path, kind: str | None) -> DataError | NotFoundError:
    if not path.exists():
        return NotFoundError(f"{path} does not exist.", "Check the path.")
    if location.is_data(path):
        return DataError(f"{path} is a data directory.", _DATA_HINTS[kind])
    return DataError(f"{path} has no {MANIFEST}, so it is no finished artefact.", "Make it again.")


def _unreadable(error: OSError, place: Path) -> StoreError:
    return StoreError(f"{place} cannot be read: {error.strerror or error}.", "Check the path.")


def describe_input(path: Path) -> dict[str, Any]:
    """Name an artefact as the input of another: path, kind and the hash of its manifest."""
    return {
        "path": str(path),
        "kind": read_manifest(path)["kind"],
        "manifest_blake2b": file_hash(path / MANIFEST),
    }


def verify_files(path: Path, *, kind: str | None = None) -> dict[str, Any]:
    """Compare each file of an artefact with its manifest.

    Args:
        path: the artefact's directory.
        kind: refuse another kind than this.

    Returns:
        The manifest, of which what all have in common is checked.

    Raises:
        VerifyError: a file is missing, of another size or content, or not in the manifest.
        NotFoundError, DataError, StoreError: as read_manifest.
    """
    values = read_manifest(path, kind=kind)
    listed = {entry["path"]: entry for entry in values["files"]}
    try:
        problems = list(_differences(path, listed))
    except OSError as error:
        raise _unreadable(error, path) from error
    if problems:
        raise VerifyError(f"{path}: {'; '.join(problems)}.", "Make the artefact again.")
    return values


def _differences(path: Path, listed: dict[str, dict[str, Any]]) -> Iterator[str]:
    present = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    for name in sorted(present - {*listed, MANIFEST}):
        yield f"{name} is not in the manifest"
    for name, entry in listed.items():
        if name not in present:
            yield f"{name} is missing"
        elif (size := (path / name).stat().st_size) != entry["bytes"]:
            yield f"{name} has {size} bytes, not {entry['bytes']}"
        elif file_hash(path / name) != entry["blake2b"]:
            yield f"{name} has other content"
