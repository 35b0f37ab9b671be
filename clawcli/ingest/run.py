"""Ingest: logs to a step table, each record with one fate.

Sources are read, their records decoded into calls by the format that fits, all calls of the run
linked, and the new rows committed at once; the commit info names the sources with the hash of
their bytes, so that a second run over the same files adds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from clawcli import schema
from clawcli.errors import ClawError, DataError, UsageError
from clawcli.ingest import chain, read, rows
from clawcli.ingest.calls import Call
from clawcli.ingest.intake import Intake, drop_known, take
from clawcli.store import location, table

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
    intake = Intake(_known_sources(place), config.source_name)
    for path in paths:
        try:
            take(path, intake)
        except ClawError as error:
            if len(paths) == 1:
                raise
            intake.problems.append(str(error))
    if intake.problems and not intake.sources and not intake.files_unchanged:
        raise DataError(
            f"None of {len(paths):,} sources could be read. {intake.problems[0]}",
            "Correct or leave out what is named.",
        )
    if config.dry_run:
        return _commit(config, place, intake)
    with table.lock(place.path):
        drop_known(intake, _known_sources(place))
        return _commit(config, place, intake)


def _known_sources(place: location.Location) -> dict[str, dict[str, Any]]:
    return {
        source["source_uid"]: source
        for info in table.history(place.steps)
        for source in info.get("sources", ())
    }


def _commit(config: IngestConfig, place: location.Location, intake: Intake) -> IngestReport:
    before, trajectories_before = _present(place, config)
    steps = _distinct(chain.make_steps(intake.calls), before, intake)
    trajectories = chain.link(steps)
    new = rows.build(trajectories)
    for codes in new["warnings"].to_pylist():
        intake.warnings.update(codes or ())
    intake.warnings.update(_split_tasks(trajectories))
    restated_frac = chain.restated_frac(steps)
    if restated_frac > _RESTATED_WARNING:
        intake.warnings["history_restated"] += 1
    version = None
    if not config.dry_run:
        version = _write(config, place, intake, new)
    fates = Counter(row["fate"] for row in intake.unused)
    decoded = {(call.source_uid, call.record) for call in intake.calls}
    fates["used"] = len(decoded) - fates["duplicate"]
    rejected = Counter(row["reason"] for row in intake.unused if row["fate"] == "rejected")
    formats_seen = Counter(new["log_format"].to_pylist())
    return IngestReport(
        files_read=len(intake.sources),
        files_unchanged=intake.files_unchanged,
        bytes_read=intake.bytes_read,
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
        warnings_by_code=dict(sorted(intake.warnings.items())),
        steps_by_format=dict(sorted(formats_seen.items())),
        restated_frac=restated_frac,
        table_version=version,
        problems=tuple(intake.problems),
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


def _distinct(steps: Sequence[chain.Step], before: set[str], intake: Intake) -> list[chain.Step]:
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
            intake.warnings["duplicate_differs"] += 1
    repeated = {record for record, is_new in fresh.items() if not is_new}
    for step in steps:
        record = (step.call.source_uid, step.call.record)
        if record in repeated:
            repeated.discard(record)
            intake.unused.append(
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


def _write(
    config: IngestConfig, place: location.Location, intake: Intake, new: pa.Table
) -> int | None:
    if not intake.sources and table.exists(place.steps):
        return table.open_table(place.steps).version()
    info = {"command": "ingest", "inputs": list(config.inputs), "sources": intake.sources}
    known = {
        (row["source_uid"], row["source_offset"])
        for row in table.read(place, "rejects").to_pylist()
    }
    # rejects go first: a run that dies in between writes them no second time
    unused = [r for r in intake.unused if (r["source_uid"], r["source_offset"]) not in known]
    if unused:
        rejects = pa.Table.from_pylist(unused, schema=schema.arrow_schema(schema.REJECTS))
        table.append(Path(place.rejects), rejects, info={"command": "ingest"})
    return table.append(Path(place.steps), new, info=info, partition_by=schema.PARTITION_COLUMNS)
