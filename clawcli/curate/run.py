"""Curate: keep the steps that match an expression, and what they need as context.

The output is a data directory again. Matched steps keep their weight, their ancestors stay with
weight 0, all else goes, counted by the clause that dropped it. The group statistics are frozen: the
first curation writes them as its input had them, because keeping the successes alone would
otherwise make every advantage zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
from msgspec import Meta

from clawcli import schema
from clawcli.config import to_dict
from clawcli.store import artefact, location, query, registry, sidecars, table


@dataclass(frozen=True, kw_only=True, slots=True)
class CurateConfig:
    """What to keep and where to put it."""

    input: str
    """Data directory, also as data@version."""
    output: str
    """Data directory to create."""
    where: str
    """Boolean SQL expression over one step's columns."""
    force: bool = False
    """Replace a data directory that is there."""
    dry_run: bool = False
    """Count, write nothing."""
    where_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """Seconds after which the expression is stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CurateReport:
    """Counts of steps: kept + context + dropped = in."""

    steps_in: int
    steps_kept: int
    """Matched steps, with their weight."""
    steps_context: int
    """Ancestors of kept steps, with weight 0."""
    steps_null: int
    """Steps for which the expression is NULL, which is not true."""
    steps_dropped_by_clause: dict[str, int]
    """where: it is false; where_null: it is NULL; loss_weight: matched, but not for training."""
    trajectories_kept: int
    groups_kept: int
    table_version: int | None


def curate(config: CurateConfig) -> CurateReport:
    """Write the steps of an input for which an expression is true, and their ancestors.

    Raises:
        NotFoundError: the input is not there.
        WhereError: the expression is no single boolean expression over the columns.
        OutputExistsError: the output is there and force is off.
    """
    source = location.existing(config.input)
    output = location.local(location.parse(config.output).path)
    artefact.check_apart(output, source.on_disk)
    artefact.check_free(output, force=config.force, ours=location.is_data)
    version = table.open_table(source.steps, source.version).version()
    known = sidecars.versions(source)
    steps = query.load_steps(source)
    matches = query.match(steps, config.where, timeout_s=config.where_timeout_s)
    uids = steps["step_uid"].to_pylist()
    weights = steps["loss_weight"].to_pylist()
    kept = {
        uid
        for uid, weight in zip(uids, weights, strict=True)
        if uid in matches.matched and (weight or 0) > 0
    }
    context = _ancestors(steps, kept) - kept
    rows = _select(steps, kept, context)
    table_version = None
    if not config.dry_run:
        origin = table.describe(source, version)
        if known:
            origin["sidecars"] = known
        info = {"command": "curate", "config": to_dict(config), "inputs": [origin]}
        table_version = _write(output, rows, info, force=config.force)
        registry.add(source, output, kind="data", version=version)
    return CurateReport(
        steps_in=len(uids),
        steps_kept=len(kept),
        steps_context=len(context),
        steps_null=len(matches.null),
        steps_dropped_by_clause=_dropped(uids, kept | context, matches),
        trajectories_kept=_distinct(steps, "trajectory_uid", kept),
        groups_kept=_distinct(steps, "group_uid", kept),
        table_version=table_version,
    )


def _ancestors(steps: pa.Table, kept: set[str]) -> set[str]:
    """Find all rows that the states of kept rows are built from."""
    columns = (
        steps[name].to_pylist() for name in ("step_uid", "parent_step_uid", "prefix_messages")
    )
    # a row that restates its whole state needs no parent
    needs = {uid: parent if prefix else None for uid, parent, prefix in zip(*columns, strict=True)}
    found: set[str] = set()
    for uid in kept:
        above = needs[uid]
        while above is not None and above not in found:
            found.add(above)
            above = needs[above]
    return found


def _select(steps: pa.Table, kept: set[str], context: set[str]) -> pa.Table:
    """Take kept and context rows, with the frozen columns; context gets weight 0."""
    rows = steps.select(schema.steps_schema(frozen=True).names)
    uids = rows["step_uid"].to_pylist()
    rows = rows.filter(pa.array([uid in kept or uid in context for uid in uids], pa.bool_()))
    weights = [
        0.0 if uid in context else weight
        for uid, weight in zip(
            rows["step_uid"].to_pylist(), rows["loss_weight"].to_pylist(), strict=True
        )
    ]
    place = rows.schema.get_field_index("loss_weight")
    return rows.set_column(place, "loss_weight", pa.array(weights, pa.float64()))


def _distinct(steps: pa.Table, column: str, kept: set[str]) -> int:
    pairs = zip(steps["step_uid"].to_pylist(), steps[column].to_pylist(), strict=True)
    return len({value for uid, value in pairs if uid in kept})


def _dropped(uids: Sequence[str], staying: set[str], matches: query.Matches) -> dict[str, int]:
    clauses = {"where": 0, "where_null": 0, "loss_weight": 0}
    for uid in uids:
        if uid in staying:
            continue
        if uid in matches.matched:
            clauses["loss_weight"] += 1
        elif uid in matches.null:
            clauses["where_null"] += 1
        else:
            clauses["where"] += 1
    return clauses


def _write(output: Path, rows: pa.Table, info: dict[str, object], *, force: bool) -> int:
    with artefact.replacing(output, force=force, ours=location.is_data) as temporary:
        temporary.mkdir()
        return table.append(
            temporary / location.STEPS, rows, info=info, partition_by=schema.PARTITION_COLUMNS
        )
