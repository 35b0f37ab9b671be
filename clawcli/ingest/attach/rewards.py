"""Attach rewards: the rows of a file, joined with steps or attempts, become the sidecar rewards.

Rewards are nearly always logged elsewhere than calls, and later. The step table stays as it is; what
is attached counts at the next scan (store/query.py). Attaching a file again adds nothing, and after
more logs were ingested it adds what the file says about the new ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clawcli import schema
from clawcli.errors import DataError
from clawcli.ingest.attach import commit, match, plan, reports
from clawcli.ingest.attach.files import Rows
from clawcli.ingest.attach.match import Matches
from clawcli.ingest.attach.plan import FLAGS, Plan
from clawcli.store import query, sidecars, table
from clawcli.store.location import Location

NAME = "rewards"
"""The sidecar."""
COLUMNS = (*query.REWARD_INPUTS, "trajectory_kind")
"""Columns of the step table that attaching needs, beside those of --on."""
PENDING = tuple(dict.fromkeys((*COLUMNS, *plan.KEY_COLUMNS)))
"""Columns of steps that are not in the table: all that it may need."""
SAID = ("reward", "trajectory_reward", *FLAGS)
"""Columns of the sidecar that say something."""


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
    rewards_unmatched_steps: int
    """Steps of the table that no row is about."""
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
    must_match: bool = False,
    command: str = "ingest",
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
        must_match: refuse a file of which no row names a step or an attempt.
        command: the verb that attaches, for the commit info.

    Raises:
        UsageError: `on` names a column that is no key and no value.
        NotFoundError: there is no step table or no file.
        StoreError: the file cannot be opened, or the sidecar not be written.
        DataError: a row names several steps or attempts, two rows contradict each other, the file
            cannot be read, or the directory was curated.
    """
    on = dict(on or {})
    plan.check_on(on)
    _refuse_curated(location)
    rows = reports.read(
        path,
        reward_field=on.get("reward") or on.get("trajectory_reward"),
        named_by=plan.named_by(on),
    )
    chosen = plan.plan_rewards(rows, on)
    steps = _load(location, chosen, pending)
    values, warnings = _values(rows, chosen)
    found = match.match(rows, values, chosen, steps)
    if must_match:
        match.refuse_nothing(found, rows, chosen, steps, str(location.path))
    judged = _sidecar_rows(found, values, chosen, rows.label)
    done = commit.add_new(
        location,
        NAME,
        lambda: judged,
        said=SAID,
        info={"command": command, "rewards": rows.label, "on": list(chosen.words())},
        dry_run=dry_run,
    )
    if kept := _step_rewards_kept(steps, done.before, judged):
        warnings["step_rewards_kept"] = kept
    reached = match.reach(found, chosen, steps)
    return RewardsReport(
        rewards_on=chosen.words(),
        rewards_rows=len(rows),
        rewards_matched=len(found.uids),
        rewards_duplicates=found.duplicates,
        rewards_unmatched_rows=found.unmatched,
        rewards_without_value=found.without_value,
        rewards_unmatched_trajectories=reached.unmatched_trajectories,
        rewards_unmatched_steps=reached.unmatched_steps,
        rewards_new=done.new,
        steps_rewarded=reached.steps,
        trajectories_rewarded=reached.trajectories,
        rewards_warnings_by_code=dict(sorted(warnings.items())),
        rewards_version=done.version,
    )


def number(value: Any) -> tuple[float | None, str]:
    """Read a reward: a number, a bool, or text of either.

    Returns:
        The number, or None and the code of why there is none: reward_missing, reward_not_finite,
        reward_not_a_number.

    Example:
        >>> number("0.5"), number(True), number("nan")
        ((0.5, ''), (1.0, ''), (None, 'reward_not_finite'))
    """
    if value is None or value == "":
        return None, "reward_missing"
    words = {"true": 1.0, "false": 0.0}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()], ""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None, "reward_not_a_number"
    except OverflowError:
        return None, "reward_not_finite"
    return (found, "") if math.isfinite(found) else (None, "reward_not_finite")


def _refuse_curated(location: Location) -> None:
    if table.exists(location.steps) and table.first_info(location.steps).get("command") == "curate":
        raise DataError(
            f"{location.path} was curated, so its returns are frozen.",
            "Attach rewards to the directory that it was curated from, and curate again.",
        )


def _load(location: Location, chosen: Plan, pending: pa.Table | None) -> pa.Table:
    names = list(dict.fromkeys((*COLUMNS, *chosen.columns)))
    if pending is None or table.exists(location.steps):
        present = table.read(Location(location.path), columns=names)
        return present if pending is None else pa.concat_tables([present, pending.select(names)])
    return pending.select(names)


def _values(rows: Rows, chosen: Plan) -> tuple[pa.Table, Counter[str]]:
    """Read reward and flags of all rows; the reward comes first."""
    numbers = [number(value) for value in rows.values(str(chosen.value))]
    columns = {chosen.reward: pa.array((value for value, _ in numbers), pa.float64())}
    for flag, name in chosen.flags.items():
        found = (number(value)[0] for value in rows.values(name))
        flags = (None if value is None else bool(value) for value in found)
        columns[flag] = pa.array(flags, pa.bool_())
    return pa.table(columns), Counter(code for _, code in numbers if code)


def _sidecar_rows(found: Matches, values: pa.Table, chosen: Plan, label: str) -> pa.Table:
    """Write matches as rows of the sidecar, without their version."""
    said = values.take(pa.array(found.rows))
    columns = {chosen.uid: found.uids, **dict(zip(said.column_names, said.columns, strict=True))}
    columns["reward_source"] = pa.repeat(pa.scalar(f"{NAME}:{label}"), said.num_rows)
    fields = schema.arrow_schema(schema.SIDECARS[NAME])
    return pa.table(
        [columns.get(field.name, pa.nulls(said.num_rows, field.type)) for field in fields],
        schema=fields,
    )


def _step_rewards_kept(steps: pa.Table, before: pa.Table, judged: pa.Table) -> int:
    """Count judged attempts whose reward stays that of their steps, as the next scan will see it."""
    attempts = judged["trajectory_uid"].drop_null()
    if not len(attempts):
        return 0
    seen = query.with_rewards(steps, sidecars.newest(pa.concat_tables([before, judged])))
    seen = seen.filter(pc.field("trajectory_uid").isin(attempts) & pc.field("reward").is_valid())
    values = seen.group_by("trajectory_uid").aggregate(
        [("reward", "count"), ("reward", "min"), ("trajectory_reward", "min")]
    )
    alone = (pc.field("reward_count") == 1) & (
        pc.field("reward_min") == pc.field("trajectory_reward_min")
    )
    return values.num_rows - values.filter(alone).num_rows
