"""Arrow's compute functions by name, for type checkers: pyarrow makes its own only at import."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def index_in(values: Column, among: Column) -> pa.Array:
    """Find the first place of each value among others, int32; null where it is not there."""
    options = pc.SetLookupOptions(_plain(among), skip_nulls=True)
    return _plain(pc.call_function("index_in", [values], options))


def coalesce(*columns: Column) -> Column:
    """Take the first of some columns that is not null, row by row."""
    return pc.call_function("coalesce", list(columns))


def if_else(mask: Column, then: Any, otherwise: Any) -> Column:
    """Take one of two values, row by row; a null mask gives null."""
    return pc.call_function("if_else", [mask, then, otherwise])


def equal(left: Column, right: Any) -> Column:
    """Compare; null with anything is null."""
    return pc.call_function("equal", [left, right])


def less_equal(left: Column, right: Any) -> Column:
    """Compare; null with anything is null."""
    return pc.call_function("less_equal", [left, right])


def subtract(left: Column, right: Column) -> Column:
    """Subtract numbers; null where either is."""
    return pc.call_function("subtract", [left, right])


def is_finite(values: Column) -> Column:
    """Tell whether numbers are neither NaN nor infinite; null stays null."""
    return pc.call_function("is_finite", [values])


def _plain(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
