"""Count the steps of a table by the facts that decide what they can train.

The gate judges facts, not steps, and there are few kinds of them: SQL counts each kind, and the
gate is asked once for each. A table is read a piece at a time, and of texts, ids and log-probs only
what they say about the facts is kept. load is the one place that knows where rows come from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli import gate, schema, tally
from clawcli.gate import Facts, covers_each
from clawcli.store import arrow, derived, query, scan, sidecars, table
from clawcli.store.derived import OF_STEP
from clawcli.store.location import Location

_TEXTS = ("response", "reasoning", "response_parts")
_WIDE = (*_TEXTS, "tool_calls", "tools", "response_ids", "rollout_logprobs")
"""Columns that are read and not kept."""
_KEPT = (
    "step_uid",
    "trajectory_uid",
    "trajectory_kind",
    "step_index",
    "choice_index",
    "group_uid",
    "parent_step_uid",
    "prefix_messages",
    "reward",
    "model",
    "policy",
    "policy_version",
    "temperature",
    "top_p",
    "sampling",
    "tokenizer",
    "state_kind",
    "loss_weight",
    "log_format",
)

_SIGNAL = ("trajectory_return", "group_size", "group_reward_mean", "group_reward_std")
_SEEN_SQL = """
extremes AS (
    SELECT min(trajectory_return) AS low, max(trajectory_return) AS high FROM base
), seen AS (
    SELECT *, trajectory_return AS own_return, group_size AS size,
           group_reward_mean AS mean, group_reward_std AS std
    FROM base
)
"""
_FACTS_SQL = """
WITH {seen}, versions AS (
    SELECT policy AS of_policy, max(policy_version) AS newest FROM base GROUP BY policy
)
SELECT log_format, model, policy, tokenizer,
       has_action,
       coalesce(loss_weight > 0, false) AS is_trained,
       has_ids,
       has_logprobs,
       {mu_invalid} AS mu_invalid_reason,
       state_kind,
       has_tools,
       coalesce(policy_version < newest, false) AS is_stale,
       own_return IS NOT NULL AS has_return,
       -- as with groups: returns that differ by rounding alone are equal
       coalesce(high - low > 1e-12 * greatest(abs(high), abs(low)), false) AS returns_differ,
       coalesce(size > 1, false) AS has_group,
       coalesce(size > 1 AND std > 0, false) AS has_spread,
       count(*) AS steps
FROM seen
LEFT JOIN versions ON versions.of_policy IS NOT DISTINCT FROM policy
CROSS JOIN extremes
GROUP BY ALL ORDER BY ALL
"""
_GROUPS_SQL = """
WITH {seen}, firsts AS (
    SELECT arg_min(group_uid, step_index) AS group_uid,
           arg_min(trajectory_kind, step_index) AS kind,
           arg_min(log_format, step_index) AS log_format,
           arg_min(model, step_index) AS model,
           arg_min(policy, step_index) AS policy,
           max(size) AS size, max(mean) AS mean, max(std) AS std
    FROM seen GROUP BY trajectory_uid
), kinds AS (
    SELECT log_format, model, policy, group_uid,
           max(size) AS size, max(mean) AS mean, max(std) AS std
    FROM firsts WHERE kind IN ('main', 'sample')
    GROUP BY ALL
)
SELECT log_format, model, policy,
       coalesce(size > 0, false) AS has_return,
       coalesce(size > 1, false) AS has_attempts,
       coalesce(size > 1 AND std > 0, false) AS has_spread,
       CASE WHEN size > 1 AND coalesce(std, 0) = 0 THEN mean END AS common_return,
       count(*) AS groups
FROM kinds
GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FactsCount:
    """Steps that are alike in all that the gate asks."""

    log_format: str | None
    model: str | None
    policy: str | None
    tokenizer: str | None
    facts: Facts
    """Without what only a model can tell: own and own_tokenizer are None."""
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupsCount:
    """Groups of main and sample trajectories that are alike, per (group_uid, policy)."""

    log_format: str | None
    model: str | None
    policy: str | None
    has_return: bool
    """A trajectory of the group has a return."""
    has_attempts: bool
    """At least two have one."""
    has_spread: bool
    """The returns differ."""
    common_return: float | None
    """The return that all have, where several have one and they do not differ."""
    groups: int


def load(location: Location) -> pa.Table:
    """Read what facts come from: one row a step, in no particular order, no texts and no lists.

    Returns are those that a curation froze, else of the rows with the rewards attached today.

    Raises:
        NotFoundError: the version is not there.
        StoreError: a step stands in the table twice, or a file is torn.
        DataError: rewards were attached to a curated directory.
    """
    fields = scan.schema_of(table.open_table(location.steps, location.version))
    wanted = [*_KEPT, *(name for name in schema.FROZEN_NAMES if name in fields.names), *_WIDE]
    if sidecars.exists(location, "rewards"):
        wanted += [name for name in query.REWARD_INPUTS if name not in wanted]
    # without rows there is no piece, and still there are columns
    empty = pa.schema([fields.field(name) for name in wanted]).empty_table()
    pieces = [_narrow(empty)]
    pieces += map(_narrow, table.scan(location, columns=wanted))
    steps = _with_signal(query.with_attached(location, pa.concat_tables(pieces)))
    return steps.append_column("has_tools", pa.array(_has_tools(steps)))


def _with_signal(steps: pa.Table) -> pa.Table:
    """Add the returns and group statistics that no curation froze."""
    if _SIGNAL[0] in steps.column_names:
        return steps
    found = derived.signal(steps, derived.order(steps))
    for name in _SIGNAL:
        steps = steps.append_column(name, found[name])
    return steps


def count_facts(steps: pa.Table) -> list[FactsCount]:
    """Count the steps of load by their facts, in a fixed order."""
    keys = ("log_format", "model", "policy", "tokenizer", "steps")
    found = []
    for row in _query(steps, _FACTS_SQL):
        facts = {name: value for name, value in row.items() if name not in keys}
        facts["mu_valid"] = row["mu_invalid_reason"] is None
        found.append(FactsCount(**{key: row[key] for key in keys}, facts=Facts(**facts)))
    return found


def count_groups(steps: pa.Table) -> list[GroupsCount]:
    """Count the groups of the steps of load by what they can teach, in a fixed order."""
    return [GroupsCount(**row) for row in _query(steps, _GROUPS_SQL)]


def outlook(location: Location) -> str:
    """Say in one sentence what a table is good for, before a model is named.

    Raises:
        ClawError: as load.
    """
    counts = count_facts(load(location))
    own = gate.presumed_own((each.policy, each.facts) for each in counts)
    return tally.headline(
        tally.tally((replace(each.facts, own=own[each.policy]), each.steps) for each in counts)
    )


def _query(steps: pa.Table, sql: str) -> list[dict[str, Any]]:
    with duckdb.connect(config={"temp_directory": ""}) as connection:
        connection.register("base", steps)
        text = sql.format(seen=_SEEN_SQL, mu_invalid=OF_STEP["mu_invalid_reason"].sql)
        return connection.sql(text).to_arrow_table().to_pylist()


def _narrow(piece: pa.Table) -> pa.Table:
    """Replace texts and lists by what they say about the facts."""
    calls = _lengths(piece["tool_calls"]) > 0
    said = [_lengths(piece[name], "binary_length") > 0 for name in _TEXTS]
    drawn, scored = piece["response_ids"], piece["rollout_logprobs"]
    lengths = _lengths(scored)
    is_null = scored.combine_chunks().flatten().is_null().to_numpy(zero_copy_only=False)
    # whether they are null and whether they are equally long is all that mu_invalid_reason asks
    is_other = lengths != _lengths(drawn)
    columns = {
        "has_action": np.logical_or.reduce([calls, _lengths(drawn) > 0, *said]),
        "has_calls": calls,
        "has_schemas": piece["tools"].is_valid().to_numpy(),
        "has_ids": drawn.is_valid().to_numpy(),
        "has_logprobs": covers_each(lengths, is_null),
        "response_ids": _stub(drawn, is_other.astype(np.int32)),
        "rollout_logprobs": _stub(scored, np.zeros(len(lengths), np.int32)),
    }
    kept = piece.drop_columns(list(_WIDE))
    for name, column in columns.items():
        kept = kept.append_column(name, pa.array(column))
    return kept


def _lengths(column: pa.ChunkedArray, function: str = "list_value_length") -> np.ndarray:
    """Count the items of each list, or the bytes of each text; null has none."""
    return pc.fill_null(pc.call_function(function, [column]), 0).to_numpy()


def _stub(lists: pa.ChunkedArray, lengths: np.ndarray) -> pa.Array:
    """Make lists of zeros, null where others are."""
    is_null = lists.is_null().to_numpy()
    offsets = np.concatenate([[0], np.cumsum(np.where(is_null, 0, lengths))]).astype(np.int32)
    values = pa.array(np.zeros(offsets[-1]), lists.type.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=lists.type, mask=pa.array(is_null))


def _has_tools(steps: pa.Table) -> np.ndarray:
    """Tell for each step whether its attempt called no tools, or their schemas are known."""
    known = _knows_schemas(steps)
    if known.all():
        return known
    called = steps["trajectory_uid"].filter(steps["has_calls"]).unique()
    among = pc.SetLookupOptions(value_set=called)
    return known | ~pc.call_function("is_in", [steps["trajectory_uid"]], among).to_numpy()


def _knows_schemas(steps: pa.Table) -> np.ndarray:
    """Tell for each step whether the tools of its state are logged, here or up its parents.

    A row without tools has its parent's; a row that restates its state ends the walk, as in
    state.py. All rows walk at once, each round twice as far, so that few rounds are enough.
    """
    known = steps["has_schemas"].to_numpy()
    walks = ~known & (pc.fill_null(steps["prefix_messages"], 1).to_numpy() != 0)
    walks &= steps["parent_step_uid"].is_valid().to_numpy()
    if (known | walks).all():
        return np.ones(len(known), np.bool_)  # every walk ends at a row that has them
    above = np.arange(len(known))
    asked = steps["parent_step_uid"].filter(pa.array(walks))
    parents = arrow.index_in(asked, steps["step_uid"]).fill_null(-1).to_numpy()
    above[walks] = np.where(parents >= 0, parents, above[walks])
    for _ in range(len(known).bit_length()):
        above = above[above]
    return known[above]
