"""Ingest: logs to a step table, each record with one fate.

Sources are read, their records decoded into calls by the format that fits, all calls of the run
linked, and the new rows committed at once; the commit info names the sources with the hash of
their bytes, so that a second run over the same files adds nothing.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa

from clawcli import schema
from clawcli.errors import ClawError, DataError, UsageError
from clawcli.ingest import chain, formats, read, rows
from clawcli.ingest.calls import Call, Fate, MessageCache
from clawcli.messages import hash128
from clawcli.store import location, table

logger = logging.getLogger(__name__)

_SAMPLES = 20
_FIRST_BYTES = 200
_RESTATED_WARNING = 0.2
FATES = ("used", "duplicate", "failed_call", "ignored", "pending", "rejected")


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """What to read and where to put it."""

    inputs: tuple[str, ...]
    """Files, folders, globs, or - for standard input."""
    output: str
    """Data directory; appended to if it exists."""
    source_name: str | None = None
    """Name that the identity of the one source rests on, in place of its file name."""
    dry_run: bool = False
    """Read and check all, write nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestReport:
    """Counts of this run; *_total of the data directory."""

    files_read: int
    files_unchanged: int
    bytes_read: int
    records: int
    records_by_fate: dict[str, int]
    steps: int
    steps_changed: int
    steps_total: int
    trajectories: int
    trajectories_total: int
    trajectories_empty: int
    rejects: int
    rejects_by_reason: dict[str, int]
    warnings_by_code: dict[str, int]
    steps_by_format: dict[str, int]
    restated_frac: float
    """Share of observation text that stood in the predecessor's state already: what clients that
    edit their history cost."""
    table_version: int | None
    problems: tuple[str, ...] = ()
    """Sources that could not be read through, one sentence each; the rest was committed."""


@dataclass(slots=True)
class _Run:
    """What a run has gathered so far."""

    known: dict[str, dict[str, Any]]
    """Sources of earlier commits by source_uid."""
    source_name: str | None = None
    calls: list[Call] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    unused: list[dict[str, Any]] = field(default_factory=list)
    warnings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    files_unchanged: int = 0
    bytes_read: int = 0


def ingest(config: IngestConfig) -> IngestReport:
    """Read logs into the step table of a data directory.

    Raises:
        NotFoundError: an input names nothing.
        DataError: no source could be read at all; where only some could not, they are in
            IngestReport.problems.
        StoreError: the output cannot be written.
    """
    paths = read.find(config.inputs)
    place = location.parse(config.output)
    if place.version is not None:
        raise UsageError(f"{config.output} names a version.", "A version cannot be written to.")
    if not location.may_hold_data(place.path):
        raise DataError(
            f"{place.path} is there, but is no data directory.", "Choose another --output."
        )
    if config.source_name is not None and len(paths) != 1:
        raise UsageError(
            f"--source-name names one source, and here are {len(paths):,}.",
            "Ingest them one by one.",
        )
    run = _Run(_known_sources(place), config.source_name)
    for path in paths:
        try:
            _take(path, run)
        except ClawError as error:
            if len(paths) == 1:
                raise
            run.problems.append(str(error))
    if run.problems and not run.sources and not run.files_unchanged:
        raise DataError(
            f"None of {len(paths):,} sources could be read. {run.problems[0]}",
            "Correct or leave out what is named.",
        )
    if config.dry_run:
        return _commit(config, place, run)
    with table.lock(place.path):
        _drop_known(run, _known_sources(place))
        return _commit(config, place, run)


def _drop_known(run: _Run, known: dict[str, dict[str, Any]]) -> None:
    """Leave out sources that another run committed while this one was reading."""
    hashes = {source["blake2b"] for source in known.values()}
    late = {s["source_uid"] for s in run.sources if s["blake2b"] in hashes}
    run.files_unchanged += len(late)
    run.sources = [source for source in run.sources if source["source_uid"] not in late]
    run.calls = [call for call in run.calls if call.source_uid not in late]
    run.unused = [row for row in run.unused if row["source_uid"] not in late]


def _known_sources(place: location.Location) -> dict[str, dict[str, Any]]:
    return {
        source["source_uid"]: source
        for info in table.history(place.steps)
        for source in info.get("sources", ())
    }


def _take(path: str, run: _Run) -> None:
    """Read one source into calls, or count it as unchanged."""
    source = read.read(path)
    run.bytes_read += len(source.data)
    if source.problem and not source.data:
        raise DataError(f"{source.problem}.", "Fetch the file again.")
    if not source.data.strip(b"\0 \t\r\n"):
        run.warnings["empty_source"] += 1
        logger.warning("%s is empty: it holds no record.", path)
        return
    records = read.split(source)
    module = formats.detect(path, _samples(records))
    uid = _source_uid(source, records, run.source_name)
    consumed = source.data[: records.pending.offset] if records.pending else source.data
    entry = {
        "source_uid": uid,
        "path": source.label,
        "bytes": len(consumed),
        "blake2b": hash128(consumed),
    }
    if entry["blake2b"] in {known["blake2b"] for known in run.known.values()}:
        # under whatever name it came before
        run.files_unchanged += 1
        return
    known = run.known.get(uid) or _rewritten(source, records, run)
    if known is not None:
        raise DataError(
            f"{path} was ingested before (as {known['path']}, {known['bytes']:,} bytes) and has "
            f"changed since ({entry['bytes']:,} bytes now).",
            "Ingest it into a new data directory, or name it as another log with --source-name.",
        )
    run.known[uid] = entry
    run.sources.append(entry)
    _decode(source, records, module, uid, run)
    if source.problem:
        run.problems.append(
            f"{source.problem}. The {len(records.records):,} records before were kept."
        )


def _samples(records: read.Records) -> list[Any]:
    """Decode the first records that can be decoded; damaged ones may come first."""
    samples: list[Any] = []
    for record in records.records:
        try:
            samples.append(json.loads(bytes(record.raw)))
        except (ValueError, RecursionError):
            continue
        if len(samples) == _SAMPLES:
            break
    return samples


def _source_uid(source: read.Source, records: read.Records, name: str | None) -> str:
    """Identify a source by its name and what it began with, however much is appended later."""
    first = bytes(records.records[0].raw) if records.records else b""
    return hash128(first, name or source.name)


def _rewritten(source: read.Source, records: read.Records, run: _Run) -> dict[str, Any] | None:
    """Find the earlier state of a file that is one document: it is written anew when it grows."""
    is_document = records.container != "lines" or len(records.records) == 1
    if not is_document or source.path == "-" or run.source_name:
        return None
    return next((known for known in run.known.values() if known["path"] == source.label), None)


def _decode(
    source: read.Source, records: read.Records, module: ModuleType, uid: str, run: _Run
) -> None:
    cache = MessageCache()
    for record in records.records:
        try:
            calls = _calls(module, bytes(record.raw), cache, run)
        except Fate as fate:
            _set_aside(run, source, module, uid, record, fate)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            fate = Fate("rejected", "bad_json", f"the record is not JSON: {error}")
            _set_aside(run, source, module, uid, record, fate)
        except (OverflowError, TypeError, AttributeError, KeyError) as error:
            # whatever a log can hold in a wrong place is that record's fault and no other's
            fate = Fate("rejected", "bad_record", f"the record has another shape: {error}")
            _set_aside(run, source, module, uid, record, fate)
        else:
            for call in calls:
                call.source_uid, call.source_path = uid, source.label
                call.record, call.offset = record.ordinal, record.offset
                call.first_bytes, call.log_format = _first_bytes(record), module.NAME
            run.calls.extend(calls)
    if records.pending is not None:
        run.warnings["truncated_tail"] += 1
        fate = Fate("pending", "truncated_tail", "the last line is cut off")
        _set_aside(run, source, module, uid, records.pending, fate)


def _calls(module: ModuleType, raw: bytes, cache: MessageCache, run: _Run) -> list[Call]:
    try:
        return module.calls(raw, cache)
    except msgspec.DecodeError:
        raw, codes = read.salvage(raw)
        if not codes:
            raise
        calls = module.calls(raw, cache)
        for call in calls:
            call.warnings.extend(codes)
        return calls


def _set_aside(
    run: _Run,
    source: read.Source,
    module: ModuleType,
    uid: str,
    record: read.Record,
    fate: Fate,
) -> None:
    run.unused.append(
        {
            "source_uid": uid,
            "source_path": source.label,
            "source_offset": record.offset,
            "log_format": module.NAME,
            "fate": fate.fate,
            "reason": fate.reason,
            "detail": fate.detail,
            **fate.known,
            "first_bytes": _first_bytes(record),
        }
    )


def _first_bytes(record: read.Record) -> str:
    return bytes(record.raw)[:_FIRST_BYTES].decode(errors="replace")


def _commit(config: IngestConfig, place: location.Location, run: _Run) -> IngestReport:
    before, trajectories_before = _present(place, config)
    steps = _distinct(chain.make_steps(run.calls), before, run)
    trajectories = chain.link(steps)
    new = rows.build(trajectories)
    for codes in new["warnings"].to_pylist():
        run.warnings.update(codes or ())
    run.warnings.update(_split_tasks(trajectories))
    restated_frac = chain.restated_frac(steps)
    if restated_frac > _RESTATED_WARNING:
        run.warnings["history_restated"] += 1
    version = None
    if not config.dry_run:
        version = _write(config, place, run, new)
    fates = Counter(row["fate"] for row in run.unused)
    decoded = {(call.source_uid, call.record) for call in run.calls}
    fates["used"] = len(decoded) - fates["duplicate"]
    rejected = Counter(row["reason"] for row in run.unused if row["fate"] == "rejected")
    formats_seen = Counter(new["log_format"].to_pylist())
    return IngestReport(
        files_read=len(run.sources),
        files_unchanged=run.files_unchanged,
        bytes_read=run.bytes_read,
        records=fates.total(),
        records_by_fate={fate: fates[fate] for fate in FATES},
        steps=new.num_rows,
        steps_changed=0,
        steps_total=len(before) + new.num_rows,
        trajectories=len(trajectories),
        trajectories_total=trajectories_before + len(trajectories),
        trajectories_empty=rejected["empty_trajectory"],
        rejects=fates["rejected"],
        rejects_by_reason=dict(sorted(rejected.items())),
        warnings_by_code=dict(sorted(run.warnings.items())),
        steps_by_format=dict(sorted(formats_seen.items())),
        restated_frac=restated_frac,
        table_version=version,
        problems=tuple(run.problems),
    )


def _split_tasks(trajectories: Sequence[chain.Trajectory]) -> dict[str, int]:
    """Count tasks whose attempts differ in their system text alone, as a clock in it does."""
    systems: dict[tuple[Any, ...], set[str]] = {}
    for trajectory in trajectories:
        call = trajectory.root.call
        if call.task_id is not None and trajectory.kind == "main":
            key = (call.log_format, call.task_id, call.tools, call.agent)
            systems.setdefault(key, set()).add(call.system)
    split = sum(len(texts) > 1 for texts in systems.values())
    return {"task_split_by_system": split} if split else {}


def _present(place: location.Location, config: IngestConfig) -> tuple[set[str], int]:
    if not table.exists(place.steps):
        return set(), 0
    if table.history(place.steps)[0].get("command") != "ingest":
        raise DataError(
            f"{config.output} was curated, so no log can be added to it.",
            "Ingest into the directory that it was curated from, and curate again.",
        )
    known = table.read(place, columns=["step_uid", "trajectory_uid"])
    trajectories = set(known["trajectory_uid"].to_pylist())
    return set(known["step_uid"].to_pylist()), len(trajectories)


def _distinct(steps: Sequence[chain.Step], before: set[str], run: _Run) -> list[chain.Step]:
    """Keep each step once; a record all of whose steps are known is a duplicate."""
    seen: dict[str, Call | None] = dict.fromkeys(before)
    kept = []
    fresh: dict[tuple[str, int], bool] = {}
    for step in steps:
        record = (step.call.source_uid, step.call.record)
        is_new = step.uid not in seen
        fresh[record] = fresh.get(record, False) or is_new
        if is_new:
            seen[step.uid] = step.call
            kept.append(step)
        elif (first := seen[step.uid]) is not None and _said(first) != _said(step.call):
            run.warnings["duplicate_differs"] += 1
    repeated = {record for record, is_new in fresh.items() if not is_new}
    for step in steps:
        record = (step.call.source_uid, step.call.record)
        if record in repeated:
            repeated.discard(record)
            run.unused.append(
                {
                    "source_uid": step.call.source_uid,
                    "source_path": step.call.source_path,
                    "source_offset": step.call.offset,
                    "log_format": step.call.log_format,
                    "fate": "duplicate",
                    "reason": "same_call",
                    "detail": f"the same call is stored as step {step.uid}",
                    "task_id": step.call.task_id,
                    "trial": step.call.trial,
                    "first_bytes": step.call.first_bytes,
                }
            )
    return kept


def _said(call: Call) -> tuple[Any, ...]:
    """What two logs of one call should agree on besides its messages."""
    return call.system, call.tools, call.reward, call.task_id, call.trial


def _write(config: IngestConfig, place: location.Location, run: _Run, new: pa.Table) -> int | None:
    if not run.sources and table.exists(place.steps):
        return table.open_table(place.steps).version()
    info = {"command": "ingest", "inputs": list(config.inputs), "sources": run.sources}
    known = {
        (row["source_uid"], row["source_offset"])
        for row in table.read(place, "rejects").to_pylist()
    }
    # rejects go first: a run that dies in between writes them no second time
    unused = [r for r in run.unused if (r["source_uid"], r["source_offset"]) not in known]
    if unused:
        rejects = pa.Table.from_pylist(unused, schema=schema.arrow_schema(schema.REJECTS))
        table.append(Path(place.rejects), rejects, info={"command": "ingest"})
    return table.append(Path(place.steps), new, info=info, partition_by=schema.PARTITION_COLUMNS)
