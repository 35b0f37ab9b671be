"""Attach rewards: the rows of a file, joined with steps or attempts, become the sidecar rewards.

Rewards are nearly always logged elsewhere than calls, and later. The step table stays as it is; what
is attached counts at the next scan (store/query.py). Attaching a file again adds nothing, and after
more logs were ingested it adds what the file says about the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clawcli import schema
from clawcli.errors import DataError
from clawcli.ingest.read.find import Found
from clawcli.ingest.rewards import files as reward_files
from clawcli.ingest.rewards import match as reward_match
from clawcli.ingest.rewards import plan as reward_plan
from clawcli.ingest.rewards.match import Matches
from clawcli.ingest.rewards.plan import FLAGS, Plan
from clawcli.store import query, sidecars, table
from clawcli.store.location import Location

NAME = "rewards"
"""The sidecar."""
COLUMNS = (*query.REWARD_INPUTS, "trajectory_kind")
"""Columns of the step table that attaching needs, beside those of --on."""
PENDING = tuple(dict.fromkeys((*COLUMNS, *reward_plan.KEY_COLUMNS)))
"""Columns of steps that are not in the table: all that it may need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardsReport:
    """Counts of one file: rows = matched + duplicates + unmatched_rows + without_value."""

    rewards_on: tuple[str, ...]
    """COLUMN=FIELD of the keys and values that were used, guessed ones included."""
    rewards_rows: int
    rewards_matched: int
    """Rows that gave a step or an attempt its reward."""
    rewards_duplicates: int
    """Rows that only repeat what an earlier one says."""
    rewards_unmatched_rows: int
    """Rows that name no step and no attempt of the table."""
    rewards_without_value: int
    """Rows without a finite number; they attach nothing."""
    rewards_unmatched_trajectories: int
    """Attempts (main, sample) of the table that no row is about."""
    rewards_new: int
    """Matched rows that say what was not attached before."""
    steps_rewarded: int
    """Steps that rows are about, themselves or through their attempt."""
    trajectories_rewarded: int
    rewards_warnings_by_code: dict[str, int]
    """Rows with reward_missing, reward_not_finite, reward_not_a_number; attempts with
    step_rewards_kept: their steps have rewards of their own, so that only trajectory_reward is new."""
    rewards_version: int | None
    """Newest version of the sidecar; null = there is none."""


def attach_rewards(
    location: Location,
    path: str,
    *,
    on: Mapping[str, str] | None = None,
    dry_run: bool = False,
    pending: pa.Table | None = None,
) -> RewardsReport:
    """Attach the rewards of a file to the steps and attempts of a data directory.

    It takes table.lock for the commit, so the caller must not hold it.

    Args:
        location: a data directory that ingest made; its newest version is read.
        path: JSON lines, JSON, CSV, Parquet, a report of SWE-bench, Harbor or Terminal-Bench,
            also compressed, at a URL or "-"; or a folder of such reports.
        on: key or value column -> field of the file, dotted where it is nested; keys are joined by
            AND. Where it names no key: step_uid, trajectory_uid, native_id, source_path, task_id
            and trial, or task_id, the first that the file has; where no value: reward,
            trajectory_reward, resolved or is_resolved.
        dry_run: match and count, write nothing.
        pending: steps (PENDING) that are not in the table, since their ingest is a dry run.

    Raises:
        UsageError: `on` names a column that is no key and no value.
        NotFoundError: there is no step table or no file.
        StoreError: the file cannot be opened, or the sidecar not be written.
        DataError: a row names several steps or attempts, two rows contradict each other, the file
            cannot be read, or the directory was curated.
    """
    on = dict(on or {})
    reward_plan.check_on(on)
    _refuse_curated(location)
    rows = reward_files.read(path, reward_field=on.get("reward") or on.get("trajectory_reward"))
    plan = reward_plan.plan(path, rows, on)
    steps = _load(location, plan, pending)
    found = reward_match.match(rows, plan, steps)
    label = Found(path).label
    judged = _sidecar_rows(found, plan, label)
    with nullcontext() if dry_run else table.lock(location.path):
        before = sidecars.read(location, NAME)
        fresh = _not_said_in(before, judged)
        if fresh.num_rows and not dry_run:
            info = {"command": "ingest", "rewards": label, "on": list(plan.words())}
            sidecars.append(location, NAME, fresh, info=info)
        version = sidecars.versions(location).get(NAME)
    if kept := _step_rewards_kept(steps, before, judged):
        found.warnings["step_rewards_kept"] = kept
    rewarded = steps.filter(pc.field(f"{plan.unit}_uid").isin(_texts(found.values)))
    attempts = steps.filter(pc.field("trajectory_kind").isin(["main", "sample"]))
    reached = set(rewarded["trajectory_uid"].to_pylist())
    return RewardsReport(
        rewards_on=plan.words(),
        rewards_rows=len(rows),
        rewards_matched=len(found.values),
        rewards_duplicates=found.duplicates,
        rewards_unmatched_rows=found.unmatched,
        rewards_without_value=found.without_value,
        rewards_unmatched_trajectories=len(set(attempts["trajectory_uid"].to_pylist()) - reached),
        rewards_new=fresh.num_rows,
        steps_rewarded=rewarded.num_rows,
        trajectories_rewarded=len(reached),
        rewards_warnings_by_code=dict(sorted(found.warnings.items())),
        rewards_version=version,
    )


def _refuse_curated(location: Location) -> None:
    if table.exists(location.steps) and table.history(location.steps)[0].get("command") == "curate":
        raise DataError(
            f"{location.path} was curated, so its returns are frozen.",
            "Attach rewards to the directory that it was curated from, and curate again.",
        )


def _load(location: Location, plan: Plan, pending: pa.Table | None) -> pa.Table:
    names = list(dict.fromkeys((*COLUMNS, *plan.columns)))
    if pending is None or table.exists(location.steps):
        present = table.read(Location(location.path), columns=names)
        return present if pending is None else pa.concat_tables([present, pending.select(names)])
    return pending.select(names)


def _sidecar_rows(found: Matches, plan: Plan, path: str) -> pa.Table:
    """Write matches as rows of the sidecar, without their version."""
    value = "reward" if plan.unit == "step" else "trajectory_reward"
    columns = (f"{plan.unit}_uid", value, *plan.flags)
    rows: list[dict[str, Any]] = [
        {**dict(zip(columns, (uid, *values), strict=True)), "reward_source": f"{NAME}:{path}"}
        for uid, values in found.values.items()
    ]
    return pa.Table.from_pylist(rows, schema=schema.arrow_schema(schema.SIDECARS[NAME]))


def _not_said_in(before: pa.Table, judged: pa.Table) -> pa.Table:
    """Leave out what the sidecar says already, from whichever file."""
    said = (*sidecars.KEYS, "reward", "trajectory_reward", *FLAGS)
    known = set(_tuples(before.select(said)))
    return judged.filter(
        pa.array([row not in known for row in _tuples(judged.select(said))], pa.bool_())
    )


def _tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.itercolumns()), strict=True))


def _step_rewards_kept(steps: pa.Table, before: pa.Table, judged: pa.Table) -> int:
    """Count judged attempts whose reward stays that of their steps, as the next scan will see it."""
    attempts = [uid for uid in judged["trajectory_uid"].to_pylist() if uid is not None]
    if not attempts:
        return 0
    seen = query.with_rewards(steps, sidecars.newest(pa.concat_tables([before, judged])))
    seen = seen.filter(
        pc.field("trajectory_uid").isin(_texts(attempts)) & pc.field("reward").is_valid()
    )
    values = seen.group_by("trajectory_uid").aggregate(
        [("reward", "count"), ("reward", "min"), ("trajectory_reward", "min")]
    )
    alone = (pc.field("reward_count") == 1) & (
        pc.field("reward_min") == pc.field("trajectory_reward_min")
    )
    return values.num_rows - values.filter(alone).num_rows


def _texts(values: Iterable[str]) -> pa.Array:
    # an empty list alone would have the type null, which no column can be compared with
    return pa.array(list(values), pa.string())
