"""`claw diff A B`: what two step tables have in common, and how their numbers differ.

Steps and trajectories are the same where their uids are. Only keys and numbers are read, a row group
at a time, into a DuckDB table a side that holds 128-bit integers in place of uids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa

from clawcli.store import location, table
from clawcli.store.location import Location

_COLUMNS = ("step_uid", "trajectory_uid", "reward", "output_tokens", "model")
_ROWS_AT_ONCE = 1 << 18
_QUANTILES = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
_NOT_LOGGED = "(not logged)"
_SIDE_SQL = """
CREATE TABLE {side} (
    step UHUGEINT, trajectory UHUGEINT, reward DOUBLE, tokens BIGINT, model VARCHAR
)
"""
_COUNTS_SQL = """
SELECT (SELECT count(*) FROM a) AS steps_a,
       (SELECT count(*) FROM b) AS steps_b,
       (SELECT count(*) FROM b ANTI JOIN a USING (step)) AS steps_added,
       (SELECT count(*) FROM a ANTI JOIN b USING (step)) AS steps_removed,
       (SELECT count(*) FROM a JOIN b USING (step)
        WHERE a.reward IS DISTINCT FROM b.reward) AS steps_reward_changed,
       (SELECT count(*) FROM lengths_a) AS trajectories_a,
       (SELECT count(*) FROM lengths_b) AS trajectories_b,
       (SELECT count(*) FROM lengths_b ANTI JOIN lengths_a USING (trajectory))
           AS trajectories_added,
       (SELECT count(*) FROM lengths_a ANTI JOIN lengths_b USING (trajectory))
           AS trajectories_removed,
       (SELECT count(reward) FROM a) AS steps_rewarded_a,
       (SELECT count(reward) FROM b) AS steps_rewarded_b
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffConfig:
    """What `claw diff` compares."""

    a: str
    """Data directory, also as data@version."""
    b: str
    """The same; added is what b has and a has not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffReport:
    """Counts of both sides, and what only one of them has.

    Quantiles are min, p10, p50, p90, max and mean; all null where there is no value.
    """

    version_a: int
    version_b: int
    steps_a: int
    steps_b: int
    steps_added: int
    steps_removed: int
    steps_reward_changed: int
    """Steps of both sides whose rewards in the step table differ; one may be null."""
    trajectories_a: int
    trajectories_b: int
    trajectories_added: int
    trajectories_removed: int
    steps_rewarded_a: int
    """Steps that have a reward."""
    steps_rewarded_b: int
    length_steps_by_quantile_a: dict[str, float | None]
    """Steps of a trajectory."""
    length_steps_by_quantile_b: dict[str, float | None]
    output_tokens_by_quantile_a: dict[str, float | None]
    """Output tokens of a step, where they are logged."""
    output_tokens_by_quantile_b: dict[str, float | None]
    reward_by_quantile_a: dict[str, float | None]
    """Reward of a step, where it has one."""
    reward_by_quantile_b: dict[str, float | None]
    steps_by_model_a: dict[str, int]
    """Most frequent first; steps without a model are (not logged)."""
    steps_by_model_b: dict[str, int]


def diff(config: DiffConfig) -> DiffReport:
    """Compare two step tables.

    Raises:
        NotFoundError: a directory or version is not there.
        DataError: one is no data directory.
        StoreError: a data file is missing or torn.
    """
    sides = {"a": location.existing(config.a), "b": location.existing(config.b)}
    versions = {
        f"version_{side}": table.open_table(place.steps, place.version).version()
        for side, place in sides.items()
    }
    with TemporaryDirectory() as spill, duckdb.connect(config={"temp_directory": spill}) as sql:
        for side, place in sides.items():
            _load(sql, side, place)
        values: dict[str, Any] = {**versions, **_row(sql, _COUNTS_SQL)}
        for side in sides:
            for name, column, source in (
                ("length_steps", "length", f"lengths_{side}"),
                ("output_tokens", "tokens", side),
                ("reward", "reward", side),
            ):
                values[f"{name}_by_quantile_{side}"] = _quantiles(sql, column, source)
            values[f"steps_by_model_{side}"] = _models(sql, side)
    return DiffReport(**values)


def _load(sql: duckdb.DuckDBPyConnection, side: str, place: Location) -> None:
    sql.execute(_SIDE_SQL.format(side=side))
    for rows in _joined(table.scan(place, columns=_COLUMNS)):
        sql.register("rows", rows)
        sql.execute(
            f"INSERT INTO {side} SELECT md5_number(step_uid), md5_number(trajectory_uid), reward, "
            "output_tokens, model FROM rows"
        )
        sql.unregister("rows")
    sql.execute(
        f"CREATE TABLE lengths_{side} AS "
        f"SELECT trajectory, count(*) AS length FROM {side} GROUP BY trajectory"
    )


def _joined(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join row groups, so that DuckDB gets rows enough for its threads."""
    held: list[pa.Table] = []
    for piece in pieces:
        held.append(piece)
        if sum(one.num_rows for one in held) >= _ROWS_AT_ONCE:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def _quantiles(sql: duckdb.DuckDBPyConnection, column: str, source: str) -> dict[str, float | None]:
    parts = [f"quantile_cont({column}, {at}) AS {name}" for name, at in _QUANTILES.items()]
    return _row(sql, f"SELECT {', '.join(parts)}, avg({column}) AS mean FROM {source}")


def _models(sql: duckdb.DuckDBPyConnection, side: str) -> dict[str, int]:
    found = sql.execute(
        f"SELECT coalesce(model, '{_NOT_LOGGED}'), count(*) AS steps FROM {side} "
        "GROUP BY 1 ORDER BY steps DESC, 1"
    ).fetchall()
    return dict(found)


def _row(sql: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    found = sql.execute(query)
    names = [column[0] for column in found.description or ()]
    return dict(zip(names, found.fetchone() or (), strict=True))
