"""What the commit infos of a directory may still say after claw forget.

The infos are the manifest: which runs made the tables, and how much of which source ingest has
consumed. All of that is carried over into the commit without the rows, but for the paths of sources
that logged nothing else, which are masked, and for commits of sidecars of which no row is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa

from clawcli import schema
from clawcli.manage.forget_plan import Plan
from clawcli.store import log, scan, sidecars, table, tags, tombstones
from clawcli.store.erase import Hits
from clawcli.store.location import SIDECARS, Location
from clawcli.store.remote import Place

RUNS = "runs"
"""Key of the info of a claw forget: what the commits before it said, without their sources."""
_OF_ONE_COMMIT = ("sources", "steps_added", "steps_changed", "sidecars")
_VERSION = schema.SIDECAR_VERSION


class Masks:
    """The commit infos of a step table, without the paths that go."""

    def __init__(self, place: Location, plan: Plan) -> None:
        """Read them, when the sidecars have lost their rows already.

        Raises:
            StoreError: the log is torn.
        """
        self._place, self._plan = place, plan
        self._lines: dict[int | None, _Line] = {None: _line(place.steps, None)}
        for version in tags.read(place).values():
            self._lines[version] = _line(place.steps, version)
        self._paths = {
            os.path.normpath(source["path"])
            for sources, _ in self._lines.values()
            for source in sources
            if source["source_uid"] not in plan.sources and not tombstones.is_masked(source["path"])
        }
        self._rewards: set[str] = set()
        if sidecars.exists(place, "rewards"):
            rows = table.read(place, f"{SIDECARS}/rewards", ["reward_source"])
            self._rewards = set(rows["reward_source"].to_pylist())

    def joined(self, version: int | None = None) -> dict[str, Any]:
        """Say in one info what those of a version and all before it said; null = the newest."""
        sources, runs = self._lines[version]
        told: list[dict[str, Any]] = []
        for run in map(self._run, runs):
            if run not in told[-1:]:  # a run has many commits, which say the same
                told.append(run)
        names = [name for name in sidecars.versions(self._place) if name != tombstones.NAME]
        return {
            "command": "forget",
            "sources": [self._source(source) for source in sources],
            RUNS: told,
            # older ones of them are gone
            "sidecars": {name: log.newest(self._place.sidecar(name)) for name in names},
        }

    def _source(self, source: dict[str, Any]) -> dict[str, Any]:
        if source["source_uid"] not in self._plan.sources:
            return source
        return {**source, "path": tombstones.mask(source["path"])}

    def _run(self, run: Mapping[str, Any]) -> dict[str, Any]:
        if run.get("command") != "ingest":
            return dict(run)
        inputs = run.get("inputs", [])
        masked = [text if self._stays(text) else tombstones.mask(text) for text in inputs]
        if all(map(tombstones.is_masked, masked)):
            # what else it was asked for may name whom it was about
            return {k: v for k, v in {**run, "inputs": masked}.items() if k != "config"}
        config = dict(run.get("config", {}))
        if "rewards" in config and f"rewards:{config['rewards']}" not in self._rewards:
            config = {k: v for k, v in config.items() if k not in ("rewards", "on")}
        return {**run, "inputs": masked, **({"config": config} if "config" in run else {})}

    def _stays(self, text: str) -> bool:
        """Tell whether an input says nothing that the path of a source which stays does not say."""
        if text == "-" or tombstones.is_masked(text):
            return True
        name = os.path.normpath(text)
        return any(_covers(name, path) for path in self._paths)


_Line = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Entries of sources, and infos of runs."""


def _line(root: Place, version: int | None) -> _Line:
    """Read the sources and the runs that a version is made of, oldest first."""
    sources: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for commit in reversed(list(log.line(root, version))):
        info = commit.info
        if RUNS in info:  # an earlier claw forget, which says all that was said before it
            sources, runs = [], list(info[RUNS])
        elif not info.get("compacted"):
            runs.append({k: v for k, v in info.items() if k not in _OF_ONE_COMMIT})
        sources += info.get("sources", ())
    return sources, runs


def _covers(name: str, path: str) -> bool:
    return path == name or path.startswith(f"{name}{os.sep}") or fnmatchcase(path, name)


def of_sidecar(root: Path, keys: list[str], hits: Hits) -> dict[str, Any]:
    """Say in one info what the commits of a sidecar said of which rows are left."""
    opened = log.open_table(root)
    fields = scan.schema_of(opened)
    left: set[int] = set()
    for rows in scan.read(root, log.active(opened), fields, [*keys, _VERSION]):
        left.update(rows.filter(pa.array(~hits(rows)))[_VERSION].to_pylist())
    return {"command": "forget", "commits": dict(_commits(root, left))}


def _commits(root: Path, versions: set[int]) -> Iterator[tuple[str, Any]]:
    for commit in reversed(list(log.commits(root))):
        if commit.info.get("command") == "forget":
            yield from (
                (number, info)
                for number, info in commit.info.get("commits", {}).items()
                if int(number) in versions
            )
        elif commit.version in versions:
            yield str(commit.version), dict(commit.info)
