"""Directories that are whole or not there: written beside, hashed, synced, then renamed.

Trees, shards and runs are artefacts: a directory with a manifest.json that names every file with
its size and hash, the inputs with theirs, the resolved configuration and the claw version.
Nothing downstream opens a directory without one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clawcli
from clawcli.errors import DataError, NotFoundError, OutputExistsError, StoreError, VerifyError

MANIFEST = "manifest.json"


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


def is_artefact(path: Path) -> bool:
    """Tell whether a directory is an artefact, and so may be replaced by one."""
    return (path / MANIFEST).is_file()


def check_free(output: Path, *, force: bool, ours: Callable[[Path], bool] = is_artefact) -> None:
    """Refuse an output that exists, before any work is done.

    Args:
        output: where something is to be written.
        force: it may be replaced, if it is claw's own or an empty directory.
        ours: tells whether a path is something that claw wrote.

    Raises:
        OutputExistsError: it exists and force is off, or it is nothing that claw wrote.
    """
    if not output.exists() and not output.is_symlink():
        return
    if not force:
        raise OutputExistsError(f"{output} exists already.", "Add --force to replace it.")
    if not ours(output) and not (output.is_dir() and not any(output.iterdir())):
        raise OutputExistsError(
            f"{output} was not written by this verb, so --force will not replace it.",
            "Choose another --output or remove it yourself.",
        )


@contextmanager
def replacing(
    output: Path, *, force: bool, ours: Callable[[Path], bool] = is_artefact
) -> Iterator[Path]:
    """Write a file or directory beside its place; it takes the place whole, or not at all.

    Yields:
        A path beside output that does not exist yet: create the file or directory there.

    Raises:
        OutputExistsError: the output exists and may not be replaced.
        StoreError: the disk is full or the place cannot be written.
    """
    check_free(output, force=force, ours=ours)
    temporary = output.parent / f".{output.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync_all(temporary)
        _replace(temporary, output)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise translate(error, output) from error
    finally:
        _remove(temporary)


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
    with replacing(output, force=force) as temporary:
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


def _seal(draft: Draft, *, kind: str, config: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
    files = [
        {
            "path": path.relative_to(draft.path).as_posix(),
            "bytes": path.stat().st_size,
            "blake2b": file_hash(path),
        }
        for path in sorted(p for p in draft.path.rglob("*") if p.is_file())
    ]
    manifest = {
        "claw_version": clawcli.__version__,
        "kind": kind,
        "config": config,
        "inputs": inputs,
        **draft.manifest,
        "files": files,
    }
    (draft.path / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _sync_all(path: Path) -> None:
    for inner in path.rglob("*") if path.is_dir() else ():
        sync(inner)
    sync(path)


def _replace(temporary: Path, output: Path) -> None:
    if output.is_dir():
        # rename cannot replace a directory that holds files, so the old one steps aside first
        old = temporary.with_suffix(".old")
        output.rename(old)
        temporary.rename(output)
        _remove(old)
    else:
        temporary.replace(output)
    sync(output.parent)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_manifest(path: Path, *, kind: str | None = None) -> dict[str, Any]:
    """Read the manifest of an artefact.

    Args:
        path: the artefact's directory.
        kind: refuse another kind than this.

    Raises:
        NotFoundError: the directory is missing.
        DataError: it has no manifest, or is of another kind.
    """
    if not path.is_dir():
        raise NotFoundError(f"{path} does not exist.", "Check the path.")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{path} has no {MANIFEST}, so it is no finished artefact.", "Make it again."
        ) from None
    except ValueError as error:
        raise VerifyError(f"{path / MANIFEST} is not JSON: {error}.", "Make it again.") from error
    if not isinstance(manifest, dict) or "files" not in manifest:
        raise VerifyError(f"{path / MANIFEST} is not a manifest of claw.", "Make it again.")
    if kind is not None and manifest.get("kind") != kind:
        made_by = {"tree": "claw merge-prefixes", "shards": "claw export", "run": "claw train"}
        raise DataError(
            f"{path} holds {manifest.get('kind')}, not {kind}.",
            f"{made_by.get(kind, 'Another verb')} makes what is needed here.",
        )
    return manifest


def describe_input(path: Path) -> dict[str, Any]:
    """Name an artefact as the input of another: path, kind and the hash of its manifest."""
    manifest = read_manifest(path)
    return {
        "path": str(path),
        "kind": manifest["kind"],
        "manifest_blake2b": file_hash(path / MANIFEST),
    }


def verify_files(path: Path) -> dict[str, Any]:
    """Compare each file of an artefact with its manifest.

    Returns:
        The manifest.

    Raises:
        VerifyError: a file is missing, of another size or content, or not in the manifest.
    """
    manifest = read_manifest(path)
    listed = {entry["path"]: entry for entry in manifest["files"]}
    present = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    problems = [f"{name} is not in the manifest" for name in sorted(present - {*listed, MANIFEST})]
    for name, entry in listed.items():
        if name not in present:
            problems.append(f"{name} is missing")
        elif (path / name).stat().st_size != entry["bytes"]:
            problems.append(
                f"{name} has {(path / name).stat().st_size} bytes, not {entry['bytes']}"
            )
        elif file_hash(path / name) != entry["blake2b"]:
            problems.append(f"{name} has other content")
    if problems:
        raise VerifyError(f"{path}: {'; '.join(problems)}.", "Make the artefact again.")
    return manifest
