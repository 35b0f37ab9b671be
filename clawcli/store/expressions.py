"""Evaluate SQL that a user wrote, on a connection that has nothing but rows in memory.

DuckDB treats SQL as code, so nothing less counts: no files, no network, no settings, a limit of
memory and of time. An expression is one expression over one step, or over the steps of a unit where
it may use aggregates; it is never a statement. What comes back are values, by place or by unit.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import duckdb
import pyarrow as pa

from clawcli.errors import WhereError

logger = logging.getLogger(__name__)

T = TypeVar("T")

PLACE = "__place__"
"""Column of rows that says where in the table they stand; user text has no reason to name it."""
UNIT = "__unit__"
"""Column with the number of the unit that a row belongs to."""
_STEPS = "steps"
_LOCKED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "4GB",
    "temp_directory": "",
}


class Rows(Protocol):
    """Where rows come from: a store.frame.Frame."""

    @property
    def schema(self) -> pa.Schema:
        """All columns that an expression may name."""
        ...

    def reader(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Read some columns and PLACE, once, row by row of the table."""
        ...


class InMemory:
    """Rows of a table in memory; their place is their row."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.schema = rows.schema

    def reader(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Read some columns and PLACE."""
        places = pa.array(range(self._rows.num_rows), pa.int64())
        return self._rows.select(list(names)).append_column(PLACE, places).to_reader()


@dataclass(frozen=True, slots=True)
class Names:
    """What an expression asks for."""

    columns: frozenset[str]
    """Identifiers in it, lower case; some may be no columns."""
    is_all: bool
    """It may ask for any column: it has a star, or a query in it."""
    has_query: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """An expression with the flag that it was given by."""

    text: str
    flag: str
    timeout_s: float

    @property
    def shown(self) -> str:
        """Flag and text, for messages."""
        return f"{self.flag} {self.text!r}"


def each(rows: Rows, expression: Expression, *, boolean: bool = True) -> pa.ChunkedArray:
    """Evaluate an expression over each step.

    Args:
        rows: the steps.
        expression: over the columns of one step.
        boolean: its type has to be BOOLEAN; otherwise it has to be a number, or a boolean.

    Returns:
        Values (bool or float64) by place.

    Raises:
        WhereError: it is no such expression, names an unknown column, or does not end.
    """

    def select(table: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        value = duckdb.SQLExpression(expression.text)
        # aggregates and modifiers are refused where a condition is wanted
        table.filter(expression.text if boolean else value.isnull())
        return table.select(value)

    asked = names_in(expression)
    _check_kind(_bound(rows, expression, select), expression, boolean=boolean)

    def run(connection: duckdb.DuckDBPyConnection) -> pa.Table:
        value = duckdb.SQLExpression(expression.text)
        value = value if boolean else value.cast("DOUBLE")
        found = connection.table(_STEPS).select(
            duckdb.ColumnExpression(PLACE), value.alias("value")
        )
        return found.to_arrow_table()

    found = _evaluate(rows, expression, asked, run)
    return found.sort_by(PLACE)["value"]


def per_unit(
    rows: Rows,
    expression: Expression,
    constant: Sequence[str],
    *,
    boolean: bool = True,
) -> pa.Table:
    """Evaluate an expression over the rows of each unit; it may use aggregates.

    Args:
        rows: with the column UNIT.
        expression: over the rows of one unit.
        constant: columns that are the same in all rows of a unit, which may stand alone. Where they
            are not, the unit counts as often as they differ.
        boolean: as for each.

    Returns:
        Columns UNIT and value.

    Raises:
        WhereError: as each does.
    """
    asked = names_in(expression)
    plain = [name for name in constant if name in asked.columns]
    grouped = ", ".join([UNIT, *plain])

    def select(table: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
        value = duckdb.SQLExpression(expression.text)
        return table.aggregate([value.alias("value"), duckdb.ColumnExpression(UNIT)], grouped)

    _check_kind(_bound(rows, expression, select), expression, boolean=boolean)

    def run(connection: duckdb.DuckDBPyConnection) -> pa.Table:
        found = select(connection.table(_STEPS))
        value = duckdb.ColumnExpression("value")
        value = value if boolean else value.cast("DOUBLE").alias("value")
        return found.select(value, duckdb.ColumnExpression(UNIT)).to_arrow_table()

    return _evaluate(rows, expression, asked, run)


def names_in(expression: Expression) -> Names:
    """Find the identifiers in an expression.

    Raises:
        WhereError: it is empty, no UTF-8, more than one expression, has a window function, or one
            that gives another answer each time.
    """
    text = expression.text
    if not text.strip():
        raise WhereError(f"{expression.flag} is empty.", "Write an expression: 'reward > 0'.")
    if text.encode(errors="replace").decode() != text:
        raise WhereError(f"{expression.shown} is no UTF-8 text.", "Write it anew.")
    with _translated(expression):
        statements = duckdb.extract_statements(f"SELECT {text}\n")
        if len(statements) != 1:
            raise WhereError(
                f"{expression.shown} is more than one expression.", "Join conditions with AND."
            )
        with duckdb.connect(config=_LOCKED) as connection:
            told = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {text}\n"])
            (parsed,) = told.fetchone() or ("{}",)
            columns: set[str] = set()
            kinds: set[str] = set()
            functions: set[str] = set()
            _walk(json.loads(parsed), columns, kinds, functions)
            found = connection.execute(_VOLATILE, [sorted(functions)]).fetchone()
    if found:
        raise WhereError(
            f"{expression.shown} calls {found[0]}, which gives another answer each time: what "
            "comes of it could not be made again.",
            "To draw, give --sample and --seed; hash(step_uid) differs from step to step too.",
        )
    if "WINDOW" in kinds:
        raise WhereError(
            f"{expression.shown} has window functions, which an expression cannot have.",
            "docs/step-table.md lists what is there already.",
        )
    has_query = "SUBQUERY" in kinds
    return Names(frozenset(columns), has_query or "STAR" in kinds, has_query)


_VOLATILE = """
SELECT function_name FROM duckdb_functions()
WHERE stability = 'VOLATILE' AND function_name <> 'error' AND list_contains($1, function_name)
ORDER BY function_name LIMIT 1
"""


def _walk(node: Any, columns: set[str], kinds: set[str], functions: set[str]) -> None:
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            kinds.add(str(value.get("class")))
            names = value.get("column_names")
            if isinstance(names, list):
                columns.update(str(name).lower() for name in names)
            functions.add(str(value.get("function_name")).lower())
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _bound(
    rows: Rows,
    expression: Expression,
    select: Callable[[duckdb.DuckDBPyRelation], duckdb.DuckDBPyRelation],
) -> str:
    """Bind an expression to all columns, without rows; returns its type."""
    with _locked(expression) as connection:
        connection.register(_STEPS, rows.schema.empty_table())
        connection.execute("SET lock_configuration = true")
        table = connection.table(_STEPS)
        return _within(expression, connection, lambda: str(select(table).types[0]))


def _check_kind(kind: str, expression: Expression, *, boolean: bool) -> None:
    if boolean and kind != "BOOLEAN":
        raise WhereError(
            f"{expression.shown} is {kind}, not BOOLEAN.", "Compare it with something."
        )
    if not boolean and not re.match(
        r"BOOLEAN|TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT|U\w*INT|FLOAT|DOUBLE|DECIMAL", kind
    ):
        raise WhereError(f"{expression.shown} is {kind}, not a number.", "Make it a number.")


def _evaluate(
    rows: Rows,
    expression: Expression,
    asked: Names,
    run: Callable[[duckdb.DuckDBPyConnection], pa.Table],
) -> pa.Table:
    logger.info("Evaluating %s.", expression.shown)
    every = rows.schema.names
    names = [n for n in every if asked.is_all or n.lower() in asked.columns]
    with _locked(expression) as connection:
        # a reader can be read once, and a query in an expression reads it again
        reader = rows.reader(names)
        connection.register(_STEPS, reader.read_all() if asked.has_query else reader)
        connection.execute("SET lock_configuration = true")
        return _within(expression, connection, lambda: run(connection))


def _within(
    expression: Expression, connection: duckdb.DuckDBPyConnection, work: Callable[[], T]
) -> T:
    """Run a query on a thread of its own, so that time and signals end it at once."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result(expression.timeout_s)
        except TimeoutError:
            _interrupt(connection, future.done)
            raise WhereError(
                f"{expression.shown} did not end within {expression.timeout_s:g} s.",
                "Simplify it, or raise --set where_timeout_s.",
            ) from None
        except BaseException:
            _interrupt(connection, future.done)
            raise


def _interrupt(connection: duckdb.DuckDBPyConnection, is_done: Callable[[], bool]) -> None:
    while not is_done():  # between two queries an interrupt would be lost
        connection.interrupt()
        time.sleep(0.05)


@contextmanager
def _locked(expression: Expression) -> Iterator[duckdb.DuckDBPyConnection]:
    # one thread: sums of many threads depend on which of them was first
    with _translated(expression), duckdb.connect(config={**_LOCKED, "threads": "1"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@contextmanager
def _translated(expression: Expression) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise WhereError(
            _explain(expression, error), "docs/step-table.md lists all columns."
        ) from error


def _explain(expression: Expression, error: duckdb.Error) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"^\w[\w ]*Error:\s*", "", lines[0])
    candidates = next((line for line in lines if line.startswith("Candidate bindings")), "")
    found: Sequence[str] = re.findall(r'"([^"]+)"', candidates)
    near = f" Candidates: {', '.join(found)}." if found else ""
    return f"{expression.shown}: {text.rstrip('.')}.{near}"
