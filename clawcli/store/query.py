"""Scan a step table: attached rewards, derived columns, users' SQL on a locked connection.

Rewards that a sidecar holds are laid over the logged ones before anything is computed from them.
Derived columns are computed by our own SQL. An expression that a user wrote runs on another
connection that has no files, no network and no settings, only rows in memory: DuckDB treats SQL as
code, so nothing less counts. It yields step_uids and nothing else.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from clawcli import schema
from clawcli.errors import DataError, StoreError, WhereError
from clawcli.store import sidecars, table
from clawcli.store.location import Location

logger = logging.getLogger(__name__)

_LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "4GB",
    "temp_directory": "",
}

RETURNS_SQL = """
trajectories AS (
    SELECT trajectory_uid,
           arg_min(group_uid, step_index) AS group_uid,
           arg_min(policy, step_index) AS policy,
           arg_min(trajectory_kind, step_index) AS kind,
           fsum(reward) AS own_return,
           count(*) AS length
    FROM base GROUP BY trajectory_uid
), groups AS (
    SELECT group_uid, policy,
           count(*) AS size,
           avg(own_return) AS mean,
           -- returns that differ by rounding alone are equal
           CASE WHEN count(*) > 1 AND max(own_return) - min(own_return)
                     <= 1e-12 * greatest(abs(max(own_return)), abs(min(own_return)))
                THEN 0.0 ELSE stddev_samp(own_return) END AS std
    FROM trajectories
    WHERE kind IN ('main', 'sample') AND own_return IS NOT NULL
    GROUP BY group_uid, policy
)
"""
"""Trajectories and groups of the rows of base: what a WITH clause begins with."""

_MU_INVALID_SQL = """
CASE
    WHEN rollout_logprobs IS NULL THEN 'logprobs_missing'
    WHEN response_ids IS NULL THEN 'ids_missing'
    WHEN len(rollout_logprobs) <> len(response_ids) THEN 'length_mismatch'
    WHEN temperature IS NULL THEN 'temperature_not_logged'
    WHEN temperature <= 0 THEN 'temperature_zero'
    WHEN top_p < 1 THEN 'top_p'
    WHEN {unreadable} THEN 'sampling_unreadable'
    WHEN {top_k} > 0 THEN 'top_k'
    WHEN {min_p} > 0 THEN 'min_p'
    WHEN {frequency_penalty} <> 0 OR {presence_penalty} <> 0
      OR {repetition_penalty} <> 1 OR json_exists(sampling, '$.logit_bias')
      THEN 'penalties'
    WHEN {grammar} THEN 'grammar'
END
"""
_DERIVED_SQL = """
WITH {returns}, placed AS (
    SELECT step_uid,
           sum(coalesce(reward, 0)) OVER rest AS rest_return,
           count(*) OVER rest - 1 AS steps_to_end
    FROM base
    WINDOW rest AS (PARTITION BY trajectory_uid ORDER BY step_index
                    ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)
), derived AS (
    SELECT base.step_uid,
           trajectories.own_return AS trajectory_return,
           trajectories.length AS trajectory_length,
           CASE WHEN trajectories.own_return IS NOT NULL THEN placed.rest_return END
               AS return_to_go,
           groups.size AS group_size,
           groups.mean AS group_reward_mean,
           groups.std AS group_reward_std,
           placed.steps_to_end,
           len(coalesce(base.tool_calls, [])) AS num_tool_calls,
           length(coalesce(base.response, '')) AS response_chars,
           {mu_invalid} AS mu_invalid_reason
    FROM base
    JOIN trajectories USING (trajectory_uid)
    JOIN placed USING (step_uid)
    -- a step without a policy is in the group of those without one
    LEFT JOIN groups ON groups.group_uid = base.group_uid
                    AND groups.policy IS NOT DISTINCT FROM trajectories.policy
)
SELECT {columns}
FROM base JOIN derived USING (step_uid)
ORDER BY base.trajectory_uid, base.step_index, base.choice_index, base.step_uid
"""


_REWARD_COLUMNS = ("reward", "trajectory_reward", "reward_source", "terminated", "truncated")
REWARD_INPUTS = ("step_uid", "trajectory_uid", "step_index", "choice_index", *_REWARD_COLUMNS)
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


_NUMBERS = {
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
}
"""Numeric keys of the sampling column, with the value that changes nothing."""


def mu_invalid_sql() -> str:
    """Build the SQL of mu_invalid_reason; an unreadable number of sampling is no number."""
    reads = {key: f"TRY_CAST(sampling->>'{key}' AS DOUBLE)" for key in _NUMBERS}
    unreadable = [
        f"(sampling->>'{key}' IS NOT NULL AND {sql} IS NULL)" for key, sql in reads.items()
    ]
    grammars = [f"json_exists(sampling, '$.{key}')" for key in schema.GRAMMAR_KEYS]
    return _MU_INVALID_SQL.format(
        **{key: f"coalesce({sql}, {_NUMBERS[key]})" for key, sql in reads.items()},
        unreadable=" OR ".join(unreadable),
        grammar=" OR ".join(grammars),
    )


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

    Raises:
        StoreError, DataError: as load_steps.
    """
    repeated = base.num_rows - len(base["step_uid"].unique())
    if repeated:
        raise StoreError(
            f"{location.path} holds {repeated:,} steps more than once.", "Ingest the logs again."
        )
    if sidecars.exists(location, "rewards"):
        if any(name in base.column_names for name in schema.FROZEN_NAMES):
            raise DataError(
                f"{location.path} was curated, so its returns are frozen, but it has rewards of "
                "its own that would not change them.",
                "Attach rewards to the directory that it was curated from, and curate again.",
            )
        base = with_rewards(base, sidecars.read(location, "rewards"))
    return base


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
    for name in _REWARD_COLUMNS:
        field = base.schema.field(name)
        base = base.set_column(
            base.schema.get_field_index(name), field, found[name].cast(field.type)
        )
    return base


def derive(base: pa.Table) -> pa.Table:
    """Add the derived columns to rows of a step table; frozen ones are kept."""
    frozen = [name for name in schema.FROZEN_NAMES if name in base.column_names]
    columns = []
    for column in (*schema.STEPS, *schema.DERIVED):
        if column.name == "is_last":
            columns.append("coalesce(base.is_last, derived.steps_to_end = 0) AS is_last")
        elif column.name == "mu_valid":
            columns.append("derived.mu_invalid_reason IS NULL AS mu_valid")
        else:
            stored = column in schema.STEPS or column.name in frozen
            columns.append(f"{'base' if stored else 'derived'}.{column.name}")
    with duckdb.connect(config={"temp_directory": ""}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("base", base)
        rows = connection.sql(
            _DERIVED_SQL.format(
                columns=", ".join(columns), returns=RETURNS_SQL, mu_invalid=mu_invalid_sql()
            )
        ).to_arrow_table()
    return rows.cast(schema.arrow_schema([*schema.STEPS, *schema.DERIVED]))


def match(steps: pa.Table, expression: str, *, timeout_s: float) -> Matches:
    """Evaluate a user's SQL expression over the columns of each step.

    Args:
        steps: as load_steps returns them; the expression sees these columns.
        expression: one boolean SQL expression over one step.
        timeout_s: after this many seconds the expression is stopped.

    Raises:
        WhereError: it is no single boolean expression, names an unknown column, or does not end.
    """
    logger.info("Evaluating %s on %s steps.", expression, f"{steps.num_rows:,}")
    with _locked(steps) as connection:
        try:
            return _within(timeout_s, connection, lambda: _evaluate(connection, expression))
        except TimeoutError:
            raise WhereError(
                f"--where {expression!r} did not end within {timeout_s:g} s.",
                "Simplify it, or raise --set where_timeout_s.",
            ) from None
        except duckdb.Error as error:
            raise WhereError(
                _explain(expression, error), "docs/step-table.md lists all columns."
            ) from error


def _evaluate(connection: duckdb.DuckDBPyConnection, expression: str) -> Matches:
    _check_one_expression(expression)
    relation = connection.table("steps")
    condition = duckdb.SQLExpression(expression)
    kind = relation.select(condition).types[0]
    if kind != "BOOLEAN":
        raise WhereError(
            f"--where {expression!r} is {kind}, not BOOLEAN.", "Compare it with something."
        )
    return Matches(_uids(relation.filter(expression)), _uids(relation.filter(condition.isnull())))


def _within(
    timeout_s: float, connection: duckdb.DuckDBPyConnection, work: Callable[[], Matches]
) -> Matches:
    """Run a query on a thread of its own, so that time and signals end it at once."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            while not future.done():  # between two queries an interrupt would be lost
                connection.interrupt()
                time.sleep(0.05)
            raise


def _check_one_expression(expression: str) -> None:
    if not expression.strip():
        raise WhereError("--where is empty.", "Write an expression such as 'reward > 0'.")
    if expression.encode(errors="replace").decode() != expression:
        raise WhereError(f"--where {expression!r} is no UTF-8 text.", "Write it anew.")
    statements = duckdb.extract_statements(f"SELECT {expression}\n")
    if len(statements) != 1:
        raise WhereError(
            f"--where {expression!r} is more than one expression.", "Join conditions with AND."
        )


def _uids(relation: duckdb.DuckDBPyRelation) -> frozenset[str]:
    return frozenset(relation.select("step_uid").to_arrow_table()["step_uid"].to_pylist())


@contextmanager
def _locked(steps: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config=_LOCKED) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("steps", steps)
        connection.execute("SET lock_configuration = true")
        yield connection


def _explain(expression: str, error: duckdb.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"^\w[\w ]*Error:\s*", "", lines[0])
    candidates = next((line for line in lines if line.startswith("Candidate bindings")), "")
    found: Sequence[str] = re.findall(r'"([^"]+)"', candidates)
    near = f" Candidates: {', '.join(found)}." if found else ""
    return f"--where {expression!r}: {text.rstrip('.')}.{near}"
