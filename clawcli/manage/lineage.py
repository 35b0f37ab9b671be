"""`claw lineage`: the commands that made an artefact, and whether what they read is still there.

Commit infos and manifests say which command made what, with its settings and inputs. From them the
commands are written again, oldest first, back to the logs. What is gone ends the way back, and what
nobody wrote down is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from clawcli.errors import DataError, NotFoundError
from clawcli.manage import commands
from clawcli.store import artefact, location, log, sidecars, table, tombstones
from clawcli.store.location import Location
from clawcli.store.remote import Place

_CHUNK_BYTES = 1 << 20
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""How gzip and zstd files begin: of such the log says hashes of what is inside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageConfig:
    """What is asked about."""

    input: str
    """A data directory (also as data@version), a tree, shards or a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """Something that a command read."""

    path: str
    """As the command named it."""
    kind: str
    """log, data, tree, shards, model or file."""
    version: int | None = None
    """Of data: the version that was read."""
    exists: bool | None = None
    """Null where that cannot be known from here."""
    same: bool | None = None
    """Its hash, or its table and version, is what was read; null where that cannot be known."""
    note: str | None = None
    """What else there is to say, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageReport:
    """How an artefact can be made again."""

    kind: str
    """data, tree, shards or run."""
    commands: tuple[str, ...]
    """For a shell, oldest first; paths are as they were typed."""
    sources: tuple[Input, ...]
    """What the commands read and none of them made, and what others of them made."""
    unknown: tuple[str, ...]
    """What cannot be known, one sentence each."""


def lineage(config: LineageConfig) -> LineageReport:
    """Find the commands that rebuild an artefact.

    Raises:
        NotFoundError: nothing is there, or no such version.
        DataError: it holds no word on where it came from.
        StoreError: it cannot be read.
    """
    place = location.parse(config.input)
    found = _Found()
    if location.is_data(place.path):
        table.open_table(place.steps, place.version)
        found.data(place)
        kind = "data"
    elif isinstance(place.path, Path):
        if place.path.is_file():
            raise DataError(
                f"{config.input} is a file, which does not say where it came from.",
                "The registry.jsonl of a data directory lists what was made of it.",
            )
        kind = artefact.read_manifest(place.path)["kind"]
        found.artefact(place.path)
    else:
        raise NotFoundError(f"{config.input} is no data directory.", "Check the URL.")
    return LineageReport(
        kind=kind,
        commands=tuple(dict.fromkeys(found.commands)),
        sources=tuple(dict.fromkeys(found.inputs)),
        unknown=tuple(dict.fromkeys(found.unknown)),
    )


@dataclass(slots=True)
class _Found:
    """What was found on the way back, oldest first."""

    commands: list[str] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def artefact(self, path: Path) -> None:
        """Go back from a tree, shards or a run."""
        manifest = artefact.read_manifest(path)
        for source in manifest["inputs"]:
            self._input(source)
        self._made(commands.MAKERS[manifest["kind"]], manifest["config"], manifest["inputs"])

    def data(self, place: Location) -> None:
        """Go back from a version of a data directory."""
        infos = [dict(one.info) for one in log.line(place.steps, place.version)][::-1]
        sources: list[Mapping[str, Any]] = []
        runs: list[Mapping[str, Any]] = []
        for info in infos:
            if info.get("command") == "forget":  # it says again what the commits before it said
                sources, runs = [], [*info["runs"], info]
            else:
                runs.append(info)
            sources += info.get("sources", ())
        self.inputs += _logs(sources)
        for run in runs:
            self._run(run, place.path)

    def _run(self, run: Mapping[str, Any], path: Place) -> None:
        command = run.get("command")
        if command == "ingest" and not run.get("compacted"):
            inputs = [str(text) for text in run.get("inputs", ())]
            if any(map(tombstones.is_masked, inputs)):
                self.unknown.append(
                    f"What was read into {path} and forgotten is not named any more."
                )
            if inputs := [text for text in inputs if not tombstones.is_masked(text)]:
                settings = dict(run.get("config", {}))
                if run.get("redacted") is False:
                    settings["redact"] = False
                if "config" not in run:
                    self.unknown.append(
                        f"With which flags {path} was ingested was not written down."
                    )
                self.commands.append(commands.write("ingest", inputs, str(path), settings))
                self.inputs += _files(settings)
        elif command == "curate":
            for source in run["inputs"]:
                self._input(source)
            self._made("curate", run["config"], run["inputs"])
        elif command == "forget":
            self.unknown.append(
                f"Steps of {path} were forgotten; what was asked for is kept nowhere, so that a "
                "new directory has them again."
            )
        elif command is None:
            self.unknown.append(f"A commit to {path} was made by another program.")
        elif command != "ingest":
            self.unknown.append(f"claw {command} changed {path} as well.")

    def _made(self, command: str, config: Mapping[str, Any], inputs: list[dict[str, Any]]) -> None:
        first = inputs[0]
        name = str(first["path"])
        if first["kind"] == "data":
            # trees of before named the version in the path as well
            name = f"{location.parse(name).path}@{first['version']}"
        self.commands.append(commands.write(command, [name], str(config["output"]), config))
        self.inputs += _files(config)

    def _input(self, source: Mapping[str, Any]) -> None:
        """Look at an input, and go on from it if it is what was read."""
        kind, path = source["kind"], str(source["path"])
        if kind == "data":
            self._data_input(source)
            return
        there, said = Path(path), source.get("manifest_blake2b")
        is_there = there.exists()
        same = None
        if is_there and said is not None and artefact.is_artefact(there):
            same = artefact.file_hash(there / artefact.MANIFEST) == said
        if is_there and kind == "model" and isinstance(source.get("blake2b"), Mapping):
            same = _same_files(there, source["blake2b"])
        if kind == "model" and "blake2b" not in source:
            is_there = same = True  # it comes with claw
        found = Input(path=path, kind=kind, exists=is_there, same=same)
        if kind != "model":
            if same:
                self.artefact(there)
            else:
                self._ends(found)
        self.inputs.append(found)

    def _data_input(self, source: Mapping[str, Any]) -> None:
        version, said = source["version"], source.get("table_id")
        place = Location(location.parse(str(source["path"])).path, version)
        found = Input(path=str(place.path), kind="data", version=version, exists=False)
        if location.is_data(place.path):
            found = _compare(place, found, said)
            for name, number in source.get("sidecars", {}).items():
                now = sidecars.versions(place).get(name)
                if now != number:
                    self.unknown.append(
                        f"The sidecar {name} of {place.path} was at version {number} then and is "
                        f"at {now} now; the command reads it as it is now."
                    )
        if found.same or (found.same is None and found.exists):
            self.data(place)
            for name, number in source.get("sidecars", {}).items():
                self._attached(place, name, number)
        else:
            self._ends(found)
        self.inputs.append(found)

    def _attached(self, place: Location, name: str, version: int) -> None:
        """Name what was attached to a data directory; what ingest attached is its own command's."""
        if not table.exists(place.sidecar(name)):
            return
        for info in table.history(place.sidecar(name))[: version + 1]:
            if info.get("command") != "attach":
                continue
            file = str(info.get("file") or info.get("rewards"))
            settings = {"name": name, "on": list(info.get("on", ()))}
            line = commands.write("attach", [str(place.path), file], None, settings)
            self.commands.append(line)
            there = None if "://" in file else Path(file).exists()
            self.inputs.append(Input(path=file, kind="file", exists=there))

    def _ends(self, source: Input) -> None:
        what = f"{source.path}@{source.version}" if source.version is not None else source.path
        why = source.note or ("is another one now" if source.exists else "is not there")
        self.unknown.append(f"How {what} was made is not known from here: it {why}.")


def _compare(place: Location, found: Input, table_id: str | None) -> Input:
    """Say whether a version of a data directory is the one that was read."""
    newest = table.open_table(place.steps)
    known = {"path": found.path, "kind": found.kind, "version": found.version}
    if table_id is not None and newest.metadata().id != table_id:
        return Input(**known, exists=True, same=False, note="was made anew since")
    try:
        table.open_table(place.steps, place.version)
    except NotFoundError:
        note = f"has let go of version {place.version}; {newest.version()} is the newest"
        return Input(**known, exists=False, same=False, note=note)
    return Input(**known, exists=True, same=None if table_id is None else True)


def _same_files(folder: Path, hashes: Mapping[str, str]) -> bool:
    return all(
        (folder / name).is_file() and artefact.file_hash(folder / name) == hash_
        for name, hash_ in hashes.items()
    )


def _files(settings: Mapping[str, Any]) -> Iterator[Input]:
    """List the files that settings name; their hashes are written down nowhere."""
    for key in commands.FILES:
        if isinstance(path := settings.get(key), str):
            yield Input(
                path=path, kind="file", exists=None if "://" in path else Path(path).exists()
            )


def _logs(sources: list[Mapping[str, Any]]) -> Iterator[Input]:
    """Compare logs with what ingest consumed of them; what follows that does not count."""
    pieces: dict[str, dict[int, tuple[int, str]]] = {}
    paths: dict[str, str] = {}
    for source in sources:
        uid = source["source_uid"]
        paths[uid] = source["path"]
        known = pieces.setdefault(uid, {})
        if source["whole"]:
            known.clear()
        for start, end, hash_ in source["pieces"]:
            known[start] = max(known.get(start, (end, hash_)), (end, hash_))
    for uid, path in paths.items():
        if tombstones.is_masked(path):
            yield Input(path=path, kind="log", note="it was forgotten")
        elif path == "-" or "://" in path:
            yield Input(path=path, kind="log", note="it is not looked for")
        elif not (there := Path(path)).exists():
            yield Input(path=path, kind="log", exists=False, same=False)
        else:
            yield Input(path=path, kind="log", exists=True, same=_is_same(there, pieces[uid]))


def _is_same(path: Path, pieces: Mapping[int, tuple[int, str]]) -> bool | None:
    """Tell whether a log holds what was consumed of it; null where it is compressed or a folder."""
    if not path.is_file():
        return None
    with path.open("rb") as handle:
        if handle.read(4).startswith(_COMPRESSED):
            return None
        for start, (end, expected) in pieces.items():
            handle.seek(start)
            left, found = end - start, xxhash.xxh3_128()
            while left > 0 and (piece := handle.read(min(left, _CHUNK_BYTES))):
                found.update(piece)
                left -= len(piece)
            if found.hexdigest() != expected:
                return False
    return True
