"""Scan a step table: attached rewards, derived columns, users' SQL on a locked connection.

Rewards that a sidecar holds are laid over the logged ones before anything is computed from them.
Derived columns are those of derived.py. An expression that a user wrote runs on a connection of its
own (expressions.py) and yields step_uids and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.errors import DataError, StoreError
from clawcli.store import arrow, derived, expressions, sidecars, table
from clawcli.store.expressions import Expression, InMemory
from clawcli.store.location import Location

REWARD_COLUMNS = ("reward", "trajectory_reward", "reward_source", "terminated", "truncated")
"""Columns that an attached reward says."""
REWARD_INPUTS = ("step_uid", "trajectory_uid", "step_index", "choice_index", *REWARD_COLUMNS)
"""Columns that with_rewards reads."""

_REWARDS_SQL = """
WITH joined AS (
    SELECT base.*,
           CASE WHEN isfinite(of_step.reward) THEN of_step.reward END AS step_reward,
           CASE WHEN isfinite(of_attempt.trajectory_reward)
                THEN of_attempt.trajectory_reward END AS attempt_reward,
           of_step.reward_source AS step_source,
           of_attempt.reward_source AS attempt_source,
           of_step.terminated AS step_terminated,
           of_attempt.terminated AS attempt_terminated,
           of_step.truncated AS step_truncated,
           of_attempt.truncated AS attempt_truncated,
           -- an attempt's only reward, equal to the episode's, is where ingest put that one
           CASE WHEN count(base.reward) OVER attempt = 1 AND base.reward = base.trajectory_reward
                THEN NULL ELSE base.reward END AS logged_step_reward,
           row_number() OVER (attempt ORDER BY step_index DESC, choice_index DESC,
                              base.step_uid DESC) = 1 AS is_end
    FROM base
    LEFT JOIN (FROM rewards WHERE step_uid IS NOT NULL) AS of_step
           ON of_step.step_uid = base.step_uid
    LEFT JOIN (FROM rewards WHERE step_uid IS NULL) AS of_attempt
           ON of_attempt.trajectory_uid = base.trajectory_uid
    WINDOW attempt AS (PARTITION BY base.trajectory_uid)
), placed AS (
    SELECT *,
           coalesce(step_reward, logged_step_reward) AS own_reward,
           coalesce(attempt_reward, trajectory_reward) AS episode_reward,
           bool_or(step_reward IS NOT NULL OR attempt_reward IS NOT NULL) OVER attempt AS judged,
           bool_or(coalesce(step_reward, logged_step_reward) IS NOT NULL) OVER attempt AS by_step
    FROM joined
    WINDOW attempt AS (PARTITION BY trajectory_uid)
)
SELECT CASE WHEN NOT judged THEN reward
            WHEN by_step THEN own_reward
            WHEN is_end THEN episode_reward END AS reward,
       episode_reward AS trajectory_reward,
       CASE WHEN step_reward IS NOT NULL THEN step_source
            WHEN attempt_reward IS NOT NULL THEN attempt_source
            ELSE reward_source END AS reward_source,
       coalesce(step_terminated, CASE WHEN is_end THEN attempt_terminated END, terminated)
           AS terminated,
       coalesce(step_truncated, CASE WHEN is_end THEN attempt_truncated END, truncated)
           AS truncated
FROM placed
ORDER BY place
"""


@dataclass(frozen=True, slots=True)
class Matches:
    """What an expression said about each step."""

    matched: frozenset[str]
    """step_uids for which it is true."""
    null: frozenset[str]
    """step_uids for which it is NULL, which is not true."""


def load_steps(location: Location) -> pa.Table:
    """Read a step table with its attached rewards and its derived columns.

    Rewards are those that are attached today, also where the location names an old version.
    Columns that a curation froze are read, never computed again from the rows that survived.

    Returns:
        schema.STEPS and schema.DERIVED, ordered by trajectory_uid, step_index, choice_index;
        is_last is true on a trajectory's last step where the format states no end.

    Raises:
        StoreError: a step stands in the table twice.
        DataError: rewards were attached to a curated directory, whose returns are frozen.
    """
    return derive(with_attached(location, table.read(location)))


def with_attached(location: Location, base: pa.Table) -> pa.Table:
    """Lay what is attached to a data directory over all rows of its step table.

    Args:
        location: the directory.
        base: its rows with at least the REWARD_INPUTS.

    Raises:
        StoreError: a step stands in the table twice.
        DataError: rewards were attached to a curated directory, whose returns are frozen.
    """
    repeated = base.num_rows - len(base["step_uid"].unique())
    if repeated:
        raise twice(location, repeated)
    rewards = attached_rewards(location, base.column_names)
    return base if rewards is None else with_rewards(base, rewards)


def twice(location: Location, repeated: int) -> StoreError:
    """Say that a table holds steps more than once."""
    return StoreError(
        f"{location.path} holds {repeated:,} steps more than once.", "Ingest the logs again."
    )


def attached_rewards(location: Location, columns: Collection[str]) -> pa.Table | None:
    """Read the rewards that are attached to a step table with some columns; null = none are.

    Raises:
        DataError: it was curated, so that its returns are frozen.
    """
    if not sidecars.exists(location, "rewards"):
        return None
    if any(name in columns for name in schema.FROZEN_NAMES):
        raise DataError(
            f"{location.path} was curated, so its returns are frozen, but it has rewards of "
            "its own that would not change them.",
            "Attach rewards to the directory that it was curated from, and curate again.",
        )
    return sidecars.read(location, "rewards")


def with_rewards(base: pa.Table, rewards: pa.Table) -> pa.Table:
    """Lay attached rewards over the logged ones; where one has a value, it counts.

    An episode reward stands as trajectory_reward on each step of its trajectory, and in reward of
    the last one only where no step has a reward of its own. NaN and infinities count as null.

    Args:
        base: rows of a step table with at least the REWARD_INPUTS.
        rewards: the sidecar, one row a key.

    Returns:
        The same rows in the same order, with reward, trajectory_reward, reward_source, terminated
        and truncated as they now are.
    """
    place = pa.array(range(base.num_rows), pa.int64())
    with duckdb.connect(config={"temp_directory": ""}) as connection:
        connection.register("base", base.select(REWARD_INPUTS).append_column("place", place))
        connection.register("rewards", rewards)
        found = connection.sql(_REWARDS_SQL).to_arrow_table()
    for name in REWARD_COLUMNS:
        field = base.schema.field(name)
        base = base.set_column(
            base.schema.get_field_index(name), field, found[name].cast(field.type)
        )
    return base


def derive(base: pa.Table) -> pa.Table:
    """Add the derived columns to rows of a step table; frozen ones are kept.

    Returns:
        schema.STEPS and schema.DERIVED, ordered by trajectory_uid, step_index, choice_index.
    """
    places = derived.order(base)
    found: dict[str, pa.Array | pa.ChunkedArray] = dict(derived.signal(base, places))
    is_frozen = any(name in base.column_names for name in schema.FROZEN_NAMES)
    for name in schema.FROZEN_NAMES if is_frozen else ():
        is_there = name in base.column_names
        found[name] = base[name] if is_there else pa.nulls(base.num_rows, found[name].type)
    found["is_last"] = arrow.coalesce(base["is_last"], arrow.equal(found["steps_to_end"], 0))
    place = base.schema.get_field_index("is_last")
    rows = base.set_column(place, "is_last", found["is_last"])
    wanted = [*derived.OF_STEP, "action"]
    with duckdb.connect(config={"temp_directory": "", "threads": "1"}) as connection:
        columns = derived.of_step(connection, rows, [*derived.OF_STEP.values(), derived.ACTION])
    found |= dict(zip(wanted, columns, strict=True))
    actions = found.pop("action").to_numpy().astype(np.uint64)
    found["repeated_action"] = derived.repeated(actions, places)
    listed = [*schema.STEPS, *schema.DERIVED]
    table_ = pa.table(
        [found[c.name] if c.name in found else base[c.name] for c in listed],
        names=[column.name for column in listed],
    ).cast(schema.arrow_schema(listed))
    keys = ("trajectory_uid", "step_index", "choice_index", "step_uid")
    return table_.sort_by([(key, "ascending") for key in keys])


def match(steps: pa.Table, expression: str, *, timeout_s: float) -> Matches:
    """Evaluate a user's SQL expression over the columns of each step.

    Args:
        steps: as load_steps returns them; the expression sees these columns.
        expression: one boolean SQL expression over one step.
        timeout_s: after this many seconds the expression is stopped.

    Raises:
        WhereError: it is no single boolean expression, names an unknown column, or does not end.
    """
    asked = Expression(text=expression, flag="--where", timeout_s=timeout_s)
    values = expressions.each(InMemory(steps), asked)
    uids = steps["step_uid"]
    return Matches(
        frozenset(uids.filter(values.fill_null(False)).to_pylist()),
        frozenset(uids.filter(values.is_null()).to_pylist()),
    )
