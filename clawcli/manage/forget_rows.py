"""Which rows of the tables of a data directory a plan of claw forget is about.

A step is known by its uid, a sidecar row by its key, a reject by its source and offset or by its
task. A reject of a source that logged others too may quote anyone, so it loses what it quotes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from clawcli.manage.forget_plan import Plan
from clawcli.messages import hash128
from clawcli.store import tombstones
from clawcli.store.erase import Hits

OF_REJECTS = ["source_uid", "source_offset", *tombstones.TOLD_BY_REJECTS]
"""Columns that tell whether a reject is meant."""
_QUOTED = ("detail", "first_bytes")


def of_steps(plan: Plan) -> Hits:
    """Mean the steps that go."""
    return of_sidecar(plan, ["step_uid"])


def of_sidecar(plan: Plan, keys: Sequence[str]) -> Hits:
    """Mean rows about steps that go, and about trajectories that have no step left."""
    wanted = {"step_uid": plan.steps.keys(), "trajectory_uid": plan.trajectories}

    def hits(rows: pa.Table) -> np.ndarray:
        found = np.zeros(rows.num_rows, bool)
        for key in keys:
            found |= [uid in wanted[key] for uid in rows[key].to_pylist()]
        return found

    return hits


def rejects_about(plan: Plan) -> Hits:
    """Mean rejects of sources, records and tasks that go, as far as they tell anything."""
    return lambda rows: _tells(rows, _about(rows, plan), tombstones.TOLD_BY_REJECTS)


def rejects_near(plan: Plan) -> Hits:
    """Mean the other rejects of sources that logged steps which go, as far as they quote."""
    return lambda rows: _tells(rows, _near(rows, plan) & ~_about(rows, plan), _QUOTED)


def rejects_of(plan: Plan) -> Hits:
    """Mean all rejects that change."""
    about, near = rejects_about(plan), rejects_near(plan)
    return lambda rows: about(rows) | near(rows)


def without_text(rows: pa.Table, plan: Plan) -> pa.Table:
    """Take away what rejects tell of what was forgotten; their places and fates stay."""
    for hits, names in (
        (_about(rows, plan), tombstones.TOLD_BY_REJECTS),
        (_near(rows, plan), _QUOTED),
    ):
        for name in names:
            field = rows.schema.field(name)
            values = rows[name].to_pylist()
            left = [None if hit else value for hit, value in zip(hits, values, strict=True)]
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, field, pa.array(left, field.type))
    return rows


def _about(rows: pa.Table, plan: Plan) -> np.ndarray:
    columns = (rows[name].to_pylist() for name in ("source_uid", "source_offset", "task_id"))
    found = [
        uid in plan.sources
        or (uid, offset) in plan.places
        or (task is not None and hash128(task) in plan.tasks)
        for uid, offset, task in zip(*columns, strict=True)
    ]
    return np.array(found, bool)


def _near(rows: pa.Table, plan: Plan) -> np.ndarray:
    return np.array([uid in plan.sources_mixed for uid in rows["source_uid"].to_pylist()], bool)


def _tells(rows: pa.Table, hits: np.ndarray, names: Sequence[str]) -> np.ndarray:
    told = np.zeros(rows.num_rows, bool)
    for name in names:
        told |= rows[name].is_valid().to_numpy()
    return hits & told
