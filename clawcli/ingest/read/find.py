"""Find the sources that inputs name: files, folders, globs, URLs, and standard input.

An input that cannot be used is one sentence among the problems, and the others go on. A folder
gives the logs below it: never what claw itself wrote, never anything outside of it, whatever its
links point to. A folder of OpenHands events (event-00000-*.json) is one source.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clawcli.store.artefact import is_artefact

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj", ".eval", ".parquet", ".sse")
_COMPRESSED = (".gz", ".zst")
_ENDINGS = tuple(s + c for s in _SUFFIXES for c in ("", *_COMPRESSED))
_SUFFIX_HINT = f"Logs end in {', '.join(_SUFFIXES)}, also with .gz or .zst."
_EVENT = re.compile(r"event-\d+-[^/]*\.json")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_TABLE_LOG = "_delta_log"
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class Found:
    """One source: where its bytes are, and what is known of them without reading."""

    path: str
    """As given or found: a local path, a URL, or "-" for standard input."""
    size: int | None = None
    """Bytes as stored, before any compression is undone; null = unknown."""
    modified: float | None = None
    """Seconds since the epoch; null = unknown."""
    members: tuple[str, ...] = ()
    """Names of the files of a folder that is one source, in the order of their names."""

    @property
    def label(self) -> str:
        """The path as it is stored and shown; bytes that are no UTF-8 are spelt out."""
        return os.fsencode(self.path).decode(errors="backslashreplace")

    @property
    def name(self) -> str:
        """File name without a compression suffix: the part of a path that identity rests on."""
        name = self.label.rstrip("/").rpartition("/")[2]
        return name.removesuffix(".gz").removesuffix(".zst")


@dataclass(slots=True)
class _Search:
    """What one search has found so far."""

    since: float | None
    found: dict[str, Found] = field(default_factory=dict)
    """By the one name that a file has however it was reached."""
    problems: list[str] = field(default_factory=list)

    def add(self, key: str, source: Found) -> None:
        """Take a source in, unless it was reached before or is too old."""
        if self.since is None or source.modified is None or source.modified >= self.since:
            self.found.setdefault(key, source)

    def add_group(self, folder: str, files: Mapping[str, tuple[str, Found]]) -> None:
        """Take in the files of one folder: by name, the key and the source of each."""
        events = sorted(name for name in files if _EVENT.fullmatch(name))
        for name, (key, source) in files.items():
            if name not in events:
                self.add(key, source)
        if events:
            parts = [files[name][1] for name in events]
            sizes = [part.size for part in parts if part.size is not None]
            times = [part.modified for part in parts if part.modified is not None]
            whole = Found(
                folder,
                sum(sizes) if len(sizes) == len(parts) else None,
                max(times) if times else None,
                tuple(events),
            )
            self.add(folder, whole)


def find(inputs: Sequence[str], *, since: float | None = None) -> tuple[list[Found], list[str]]:
    """List the sources that inputs name, in order and without repeats.

    Folders give the files below them whose names end like a log's; hidden files and folders, and
    the tables and artefacts of claw, are left out. Links are followed where they were named; below
    a folder only links to files that lie below it too. A glob stands for everything that it
    matches, as if the shell had spelt it out.

    Args:
        inputs: paths, globs, URLs that fsspec knows (s3://, gs://, hf://, https://), or "-".
        since: seconds since the epoch; sources that were last modified before are left out.
            Where no time is known they stay.

    Returns:
        The sources, and one sentence for each thing that was named or met and cannot be read.
    """
    search = _Search(since)
    for text in inputs:
        if text == "-":
            search.add("-", Found("-"))
        elif _URL.match(text):
            _find_remote(text, search)
        else:
            _find_local(text, search)
    return list(search.found.values()), search.problems


def is_url(path: str) -> bool:
    """Tell whether a path is a URL.

    Example:
        >>> is_url("s3://bucket/a.jsonl"), is_url("logs/a.jsonl")
        (True, False)
    """
    return _URL.match(path) is not None


def _find_local(text: str, search: _Search) -> None:
    if os.path.lexists(text) or not glob.has_magic(text):
        _take_path(text, search)
        return
    matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not matches:
        search.problems.append(f"{_shown(text)} matches nothing: check the pattern.")
    for match in matches:
        _take_path(match, search)


def _take_path(text: str, search: _Search) -> None:
    """Take in one path that was named, whatever it turns out to be."""
    try:
        status = os.stat(text)  # noqa: PTH116 - Path would tidy the path that is stored and shown
    except FileNotFoundError:
        search.problems.append(f"{_shown(text)} does not exist.")
        return
    except OSError as error:
        search.problems.append(f"{_shown(text)} cannot be read: {error.strerror}.")
        return
    if not stat.S_ISDIR(status.st_mode):
        if source := _readable(text, status, search):
            search.add(os.path.realpath(text), source)
    elif _is_claws(text, _names(text)):
        search.problems.append(f"{_shown(text)} was written by claw and is no log.")
    else:
        _walk(text, search)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is asked for
    except OSError:
        return []


def _readable(text: str, status: os.stat_result, search: _Search) -> Found | None:
    """Make a source of a regular file that may be read; else say why not."""
    if not stat.S_ISREG(status.st_mode):
        search.problems.append(
            f"{_shown(text)} is a pipe, a socket or a device: send it to standard input and name -."
        )
    elif not os.access(text, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        search.problems.append(f"{_shown(text)} cannot be read: Permission denied.")
    else:
        return Found(text, status.st_size, status.st_mtime)
    return None


def _is_claws(folder: str, names: Iterable[str]) -> bool:
    """Tell whether claw wrote a folder: a table, a data directory or an artefact."""
    if _TABLE_LOG in names or ("manifest.json" in names and is_artefact(Path(folder))):
        return True
    return "steps" in names and Path(folder, "steps", _TABLE_LOG).is_dir()


def _walk(root: str, search: _Search) -> None:
    """Take in the logs below a folder."""
    real_root = os.path.realpath(root)
    num_before, is_empty = len(search.problems), True

    def refuse(error: OSError) -> None:
        search.problems.append(f"{_shown(str(error.filename))} cannot be read: {error.strerror}.")

    for folder, subfolders, names in os.walk(root, onerror=refuse):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        files: dict[str, tuple[str, Found]] = {}
        for name in list(subfolders):
            path = os.path.join(folder, name)  # noqa: PTH118 - Path is slow for 40,000 files
            if os.path.islink(path):  # noqa: PTH114
                subfolders.remove(name)
                if not _is_inside(path, real_root):
                    search.problems.append(_leads_out(path, root))
            elif _is_claws(path, _names(path)):
                subfolders.remove(name)
            elif _is_log(name):
                search.problems.append(f"{_shown(path)} is a folder, though it is named as a log.")
        real_folder = os.path.realpath(folder)
        for name in sorted(filter(_is_log, names)):
            path = os.path.join(folder, name)  # noqa: PTH118
            key = os.path.join(real_folder, name)  # noqa: PTH118
            if os.path.islink(path):  # noqa: PTH114
                key = os.path.realpath(path)
                if not _is_inside(path, real_root):
                    search.problems.append(_leads_out(path, root))
                    continue
            try:
                source = _readable(path, os.stat(path), search)  # noqa: PTH116
            except OSError as error:
                search.problems.append(f"{_shown(path)} cannot be read: {error.strerror}.")
                continue
            if source is not None:
                files[name] = (key, source)
        is_empty = is_empty and not files
        search.add_group(folder, files)
    if is_empty and len(search.problems) == num_before:
        search.problems.append(f"{_shown(root)} holds no log. {_SUFFIX_HINT}")


def _is_log(name: str) -> bool:
    return name.endswith(_ENDINGS) and not name.startswith(".")


def _is_inside(path: str, real_root: str) -> bool:
    real = os.path.realpath(path)
    return real.startswith(real_root.rstrip("/") + "/")


def _leads_out(path: str, root: str) -> str:
    return f"{_shown(path)} leads out of {_shown(root)} and was not followed: name its target."


def _shown(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def _find_remote(url: str, search: _Search) -> None:
    """Take in what a URL names: an object, a folder of objects, or a glob of both."""
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(url)
        for name, info in _named(store, path).items():
            if info["type"] == "directory":
                _take_remote_folder(store, name, search)
            else:
                source = Found(store.unstrip_protocol(name), info.get("size"), _time_of(info))
                search.add(source.path, source)
    except Exception as error:  # each store has errors of its own, and one must not stop the others
        search.problems.append(f"{_shown(url)} cannot be read: {remote_reason(url, error)}")


def _named(store: Any, path: str) -> dict[str, Any]:
    """Give what a path or glob of a store names, with what is known of each."""
    try:
        # before the glob: a query string has its question mark
        return {path: store.info(path)}
    except FileNotFoundError:
        if not glob.has_magic(path):
            raise
    matches = store.glob(path, detail=True)
    if not matches:
        raise FileNotFoundError(path)
    return dict(sorted(matches.items()))


def _take_remote_folder(store: Any, root: str, search: _Search) -> None:
    listing = store.find(root, detail=True)
    tables = {name.partition(f"/{_TABLE_LOG}/")[0] for name in listing if _TABLE_LOG in name}
    folders: dict[str, dict[str, tuple[str, Found]]] = {}
    for name, info in sorted(listing.items()):
        folder, _, last = name.rpartition("/")
        is_hidden = "/." in name.removeprefix(root.rstrip("/"))
        if not is_hidden and _is_log(last) and not _is_below(name, tables):
            source = Found(store.unstrip_protocol(name), info.get("size"), _time_of(info))
            folders.setdefault(folder, {})[last] = (source.path, source)
    if not folders:
        shown = _shown(store.unstrip_protocol(root))
        search.problems.append(f"{shown} holds no log. {_SUFFIX_HINT}")
    for folder, files in folders.items():
        search.add_group(store.unstrip_protocol(folder), files)


def _is_below(name: str, tables: set[str]) -> bool:
    return any(name.startswith(table + "/") for table in tables)


def _time_of(info: Mapping[str, Any]) -> float | None:
    for key in _TIME_KEYS:
        value = info.get(key)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def remote_reason(url: str, error: Exception) -> str:
    """Say in one sentence why a URL could not be read, and what to install where that is it."""
    if isinstance(error, ImportError):
        scheme = url.partition("://")[0].lower()
        package = _PACKAGES.get(scheme, f"that fsspec wants for {scheme}://")
        return f"the package {package} is missing (pip install {package})."
    if isinstance(error, FileNotFoundError):
        return "nothing is there."
    words = " ".join(str(error).split()) or type(error).__name__
    return f"{words.rstrip('.')}."


def iter_members(source: Found) -> Iterator[Found]:
    """Give the files of a folder that is one source, each as a source of its own."""
    for name in source.members:
        yield Found(f"{source.path.rstrip('/')}/{name}")
