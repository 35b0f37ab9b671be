"""Columns that are computed at scan: of the signal, and of each step by itself.

The signal (returns, group statistics, places) needs all steps of a table, but of each only keys and
numbers. Everything else says something about one row, and is computed where that row is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.store import arrow, uids

SIGNAL_INPUTS = (
    "trajectory_uid",
    "group_uid",
    "policy",
    "policy_version",
    "trajectory_kind",
    "step_index",
    "choice_index",
    "reward",
    "log_format",
)
"""Columns that signal reads."""
SIGNAL_NAMES = (
    "trajectory_return",
    "trajectory_length",
    "return_to_go",
    "group_size",
    "group_reward_mean",
    "group_reward_std",
    "group_solved_frac",
    "steps_to_end",
    "length_quantile",
    "staleness_versions",
)
"""Columns that signal gives."""

_GROUPS_SQL = """
WITH groups AS (
    SELECT g, policy,
           count(*) AS size,
           avg(own_return) AS mean,
           -- returns that differ by rounding alone are equal
           CASE WHEN count(*) > 1 AND max(own_return) - min(own_return)
                     <= 1e-12 * greatest(abs(max(own_return)), abs(min(own_return)))
                THEN 0.0 ELSE stddev_samp(own_return) END AS std,
           avg(CASE WHEN own_return > 0 THEN 1.0 ELSE 0.0 END) AS solved
    FROM trajectories
    WHERE kind IN ('main', 'sample') AND own_return IS NOT NULL
    GROUP BY g, policy
)
SELECT size, mean, std, solved,
       percent_rank() OVER (PARTITION BY log_format ORDER BY length) AS quantile
FROM trajectories
-- a step without a policy is in the group of those without one
LEFT JOIN groups ON groups.g = trajectories.g
                AND groups.policy IS NOT DISTINCT FROM trajectories.policy
ORDER BY t
"""
_TRAJECTORIES_SQL = """
SELECT t,
       arg_min(g, step_index) AS g,
       arg_min(policy, step_index) AS policy,
       arg_min(kind, step_index) AS kind,
       any_value(log_format) AS log_format,
       fsum(reward) AS own_return,
       count(*) AS length
FROM base GROUP BY t ORDER BY t
"""
_NEWEST_SQL = "SELECT policy, max(policy_version) AS newest FROM base GROUP BY policy"

_NUMBERS = {
    "top_k": -1,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
}
"""Numeric keys of the sampling column, with the value that changes nothing."""
_ERROR_BEGINS = r"^\W*(\w+\.)*\w*(error|exception|traceback|fatal|failed|failure)\b"
_CALLS, _MESSAGES = "coalesce(tool_calls, [])", "coalesce(observation, [])"


def _mu_invalid_sql() -> str:
    """Build the SQL of mu_invalid_reason; an unreadable number is no number."""
    reads = {key: f"TRY_CAST(sampling->>'{key}' AS DOUBLE)" for key in _NUMBERS}
    unreadable = " OR ".join(
        f"(sampling->>'{key}' IS NOT NULL AND {sql} IS NULL)" for key, sql in reads.items()
    )
    grammar = " OR ".join(f"json_exists(sampling, '$.{key}')" for key in schema.GRAMMAR_KEYS)
    value = {key: f"coalesce({sql}, {_NUMBERS[key]})" for key, sql in reads.items()}
    return f"""CASE
        WHEN rollout_logprobs IS NULL THEN 'logprobs_missing'
        WHEN response_ids IS NULL THEN 'ids_missing'
        WHEN len(rollout_logprobs) <> len(response_ids) THEN 'length_mismatch'
        WHEN temperature IS NULL THEN 'temperature_not_logged'
        WHEN temperature <= 0 THEN 'temperature_zero'
        WHEN top_p < 1 THEN 'top_p'
        WHEN {unreadable} THEN 'sampling_unreadable'
        WHEN {value["top_k"]} > 0 THEN 'top_k'
        WHEN {value["min_p"]} > 0 THEN 'min_p'
        WHEN {value["frequency_penalty"]} <> 0 OR {value["presence_penalty"]} <> 0
          OR {value["repetition_penalty"]} <> 1 OR json_exists(sampling, '$.logit_bias')
          THEN 'penalties'
        WHEN {grammar} THEN 'grammar'
    END"""


_MU_INPUTS = ("rollout_logprobs", "response_ids", "temperature", "top_p", "sampling")


@dataclass(frozen=True, slots=True)
class OfStep:
    """A column that one row tells."""

    sql: str
    inputs: tuple[str, ...]
    """Columns that the SQL reads, stored ones or is_last."""


OF_STEP: Mapping[str, OfStep] = {
    "num_tool_calls": OfStep(f"len({_CALLS})", ("tool_calls",)),
    "response_chars": OfStep("length(coalesce(response, ''))", ("response",)),
    "invalid_arguments": OfStep(
        f"len(list_filter({_CALLS}, lambda c: c.arguments_valid = false)) > 0", ("tool_calls",)
    ),
    "tool_error": OfStep(
        f"len(list_filter({_MESSAGES}, lambda m: m.role = 'tool' AND "
        f"regexp_matches(coalesce(m.content, m.parts, ''), '{_ERROR_BEGINS}', 'i'))) > 0",
        ("observation",),
    ),
    "is_final_answer": OfStep(
        f"is_last AND len({_CALLS}) = 0 AND length(coalesce(response, '')) > 0",
        ("is_last", "tool_calls", "response"),
    ),
    "mu_valid": OfStep(f"{_mu_invalid_sql()} IS NULL", _MU_INPUTS),
    "mu_invalid_reason": OfStep(_mu_invalid_sql(), _MU_INPUTS),
}
ACTION = OfStep(
    "hash(coalesce(response, ''), "
    f"list_transform({_CALLS}, lambda c: struct_pack(n := c.name, a := c.arguments)))",
    ("response", "tool_calls"),
)
"""A number that equal actions share, for repeated_action."""


@dataclass(frozen=True, slots=True)
class Order:
    """The steps of each trajectory, one after the other."""

    trajectory: np.ndarray
    """int32 [N], number of each step's trajectory."""
    uids: pa.Array
    """The trajectory_uid of each number, as uids.BINARY or text."""
    places: np.ndarray
    """int64 [N], places of the steps by trajectory, step_index, choice_index."""
    rank: np.ndarray
    """int64 [N] in that order: steps of the same trajectory that come before."""
    left: np.ndarray
    """int64 [N] in that order: steps of the same trajectory that come behind."""


def order(base: pa.Table) -> Order:
    """Find the order of steps: columns trajectory_uid, step_index, choice_index."""
    trajectory, kinds = uids.codes(base["trajectory_uid"].combine_chunks())
    choice = base["choice_index"].fill_null(0).to_numpy()
    places = np.lexsort((choice, base["step_index"].to_numpy(), trajectory))
    sizes = np.bincount(trajectory, minlength=len(kinds))
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank = np.arange(len(places)) - starts
    return Order(trajectory, kinds, places, rank, np.repeat(sizes, sizes) - 1 - rank)


def signal(base: pa.Table, steps: Order) -> dict[str, pa.Array]:
    """Compute what all steps of a table say together.

    Args:
        base: SIGNAL_INPUTS of all steps, rewards as they count.
        steps: their order.

    Returns:
        SIGNAL_NAMES by place. group_*: of the trajectories (main, sample) with a return in the
        same group and policy.
    """
    group, _ = uids.codes(base["group_uid"].combine_chunks())
    narrow = pa.table(
        {
            "t": steps.trajectory,
            "g": group,
            "policy": base["policy"],
            "policy_version": base["policy_version"],
            "kind": base["trajectory_kind"],
            "step_index": base["step_index"],
            "reward": base["reward"],
            "log_format": base["log_format"],
        }
    )
    # one thread: a sum of many threads depends on which of them was first
    with duckdb.connect(config={"temp_directory": "", "threads": "1"}) as connection:
        connection.register("base", narrow)
        trajectories = connection.sql(_TRAJECTORIES_SQL).to_arrow_table()
        connection.register("trajectories", trajectories)
        groups = connection.sql(_GROUPS_SQL).to_arrow_table()
        newest = connection.sql(_NEWEST_SQL).to_arrow_table()
    of = pa.array(steps.trajectory)
    has_return = trajectories["own_return"].is_valid().to_numpy()[steps.trajectory]
    rewards = base["reward"].fill_null(0.0).to_numpy().astype(np.float64)
    to_end = np.empty(len(steps.places), np.int64)
    to_end[steps.places] = steps.left
    return {
        "trajectory_return": trajectories["own_return"].take(of).combine_chunks(),
        "trajectory_length": trajectories["length"].take(of).combine_chunks(),
        "return_to_go": pa.array(_to_go(rewards, steps), pa.float64(), mask=~has_return),
        "group_size": groups["size"].take(of).combine_chunks(),
        "group_reward_mean": groups["mean"].take(of).combine_chunks(),
        "group_reward_std": groups["std"].take(of).combine_chunks(),
        "group_solved_frac": groups["solved"].take(of).combine_chunks(),
        "steps_to_end": pa.array(to_end),
        "length_quantile": groups["quantile"].take(of).combine_chunks(),
        "staleness_versions": _staleness(base, newest),
    }


def _to_go(rewards: np.ndarray, steps: Order) -> np.ndarray:
    """Add up rewards from each step to the end of its trajectory, from the end on."""
    found = rewards[steps.places]
    # all last steps, then all before them, ...: so each sum is of its own trajectory alone
    by_left = np.argsort(steps.left, kind="stable")
    bounds = np.cumsum(np.bincount(steps.left)) if len(found) else np.zeros(0, np.int64)
    for start, end in itertools.pairwise(bounds):
        at = by_left[start:end]
        found[at] += found[at + 1]
    placed = np.empty_like(found)
    placed[steps.places] = found
    return placed


def _staleness(base: pa.Table, newest: pa.Table) -> pa.Array:
    """Subtract each version from the newest of its policy; null stays null."""
    policy = base["policy"].combine_chunks().dictionary_encode()
    known = dict(zip(*(newest[name].to_pylist() for name in ("policy", "newest")), strict=True))
    latest = pa.array(
        [known.get(name) for name in [*policy.dictionary.to_pylist(), None]], pa.int64()
    )
    codes = policy.indices.fill_null(len(policy.dictionary))
    version = base["policy_version"].combine_chunks()
    return arrow.subtract(latest.take(codes), version)


def repeated(actions: np.ndarray, steps: Order) -> pa.Array:
    """Tell which steps do what the step before them in their trajectory did.

    Args:
        actions: uint64 [N], ACTION by place.
        steps: their order.
    """
    ordered = actions[steps.places]
    same = np.zeros(len(ordered), bool)
    same[1:] = (ordered[1:] == ordered[:-1]) & (steps.rank[1:] > 0)
    placed = np.empty(len(ordered), bool)
    placed[steps.places] = same
    return pa.array(placed)


def of_step(
    connection: duckdb.DuckDBPyConnection, rows: pa.Table, wanted: Sequence[OfStep]
) -> list[pa.ChunkedArray]:
    """Compute columns that each row tells, for rows with all inputs."""
    with_place = rows.append_column("place", pa.array(np.arange(rows.num_rows)))
    connection.register("rows", with_place)
    listed = ", ".join(f"{column.sql} AS c{number}" for number, column in enumerate(wanted))
    found = connection.sql(f"SELECT {listed} FROM rows ORDER BY place").to_arrow_table()
    connection.unregister("rows")
    return [found[f"c{number}"] for number in range(len(wanted))]
