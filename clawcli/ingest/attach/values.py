"""Give the values of a sidecar's columns types: found once in its first file, kept for all others.

kinds.py lists the types. NaN and infinities are no values: they become null and are counted, also a
list that holds one. A column without any value has no type yet, and is left to a later file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import SchemaError
from clawcli.ingest.attach import kinds
from clawcli.ingest.attach.files import Rows
from clawcli.ingest.attach.plan import Plan
from clawcli.store import sidecars

_UNFIT = (pa.ArrowException, OverflowError, UnicodeEncodeError)
_MAX_COLUMNS = 1_000
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Typed:
    """The values of all rows of a file."""

    table: pa.Table
    """One column a field that has any value, one row a row of the file."""
    warnings: Counter[str] = field(default_factory=Counter)
    """Values that became null, by code: not_finite."""


def names_of(rows: Rows, plan: Plan, known: Mapping[str, pa.DataType]) -> list[str]:
    """List the fields that are values: all that are no keys.

    Args:
        rows: the file.
        plan: which fields are keys.
        known: columns that the sidecar has.

    Raises:
        SchemaError: a field cannot be a column, or there is none beside the keys.
    """
    names = [name for name in rows.fields if name not in plan.keys.values()]
    if len(rows) and not names:
        raise SchemaError(
            f"{rows.label} has no field beside its keys: {', '.join(plan.keys.values())}.",
            "Add a field for what is to be attached.",
        )
    if len(names) > _MAX_COLUMNS:
        raise SchemaError(
            f"{rows.label} has {len(names):,} fields, and a sidecar has {_MAX_COLUMNS:,} columns "
            "at most.",
            "Write one row for each step or attempt, with its key in a field of its own.",
        )
    seen = {name.casefold(): name for name in known}
    for name in names:
        _check_name(rows, name, plan)
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise SchemaError(
                f"{rows.label} has a field {name!r} beside {other!r}, which SQL cannot tell apart.",
                "Rename one of them.",
            )
    return names


def typed(
    rows: Rows, names: Sequence[str], known: Mapping[str, pa.DataType], sidecar: str
) -> Typed:
    """Give the values of a file the types that the sidecar has, or find types for them.

    Args:
        rows: the file.
        names: the fields that are values.
        known: columns that the sidecar has, with their types.
        sidecar: its name, for messages.

    Raises:
        SchemaError: a value does not fit its column; the message names row, column, and both types.
    """
    found = Typed(pa.table({}))
    columns = {}
    for name in names:
        column = _Column(rows, name, known.get(name), sidecar, found.warnings)
        array = column.array()
        if not pa.types.is_null(array.type):
            columns[name] = array
    return Typed(pa.table(columns), found.warnings)


def _check_name(rows: Rows, name: str, plan: Plan) -> None:
    if name.casefold() in (*sidecars.KEYS, sidecars.VERSION):
        used = " and ".join(plan.keys)
        hint = "Rename or leave out the field."
        if name in sidecars.KEYS:
            hint = f"Join by it too, with --on {name}={name} beside the others, or leave it out."
        raise SchemaError(
            f"{rows.label} has a field {name}, which is a column of every sidecar, but the rows are "
            f"joined by {used}.",
            hint,
        )
    is_text = name.isprintable() and name.encode(errors="replace").decode() == name
    if not name.strip() or not is_text or len(name) > _MAX_NAME_CHARS:
        raise SchemaError(
            f"{rows.label} has a field {name[:50]!r}, which cannot be the name of a column.",
            f"Give it a printable name of at most {_MAX_NAME_CHARS} characters.",
        )


@dataclass(frozen=True, slots=True)
class _Column:
    """One field on its way to a column."""

    rows: Rows
    name: str
    kind: pa.DataType | None
    """The type that it has in the sidecar; null = none yet."""
    sidecar: str
    warnings: Counter[str]

    def array(self) -> pa.Array:
        values = self.rows.column(self.name)
        if isinstance(values, list):
            return self._of_values(values, self.kind)
        if self.rows.is_text:
            return self._of_texts(values.to_pylist())
        return self._of_arrow(values.combine_chunks())

    def _of_values(self, values: Sequence[Any], known: pa.DataType | None) -> pa.Array:
        """Convert what JSON holds."""
        kind: pa.DataType = self._found(values) if known is None else known
        if pa.types.is_null(kind):
            return pa.nulls(len(values))
        if pa.types.is_string(kind):
            values = [_json(v) if isinstance(v, dict | list) else v for v in values]
        elif pa.types.is_temporal(kind):
            values = [kinds.time(value, kind) for value in values]
        elif not pa.types.is_list(kind):
            values = self._finite(values)
        if pa.types.is_integer(kind):
            values = [int(v) if type(v) is float and v.is_integer() else v for v in values]
        # pyarrow would cut 1.5 to 1, make a list of the letters of a text, and count true as 1
        if not kinds.all_fit(values, kind):
            row = next(row for row, value in enumerate(values) if not kinds.all_fit([value], kind))
            raise self._misfit(row, values[row], kind)
        is_floats = kind == kinds.LOGPROBS
        wide = kinds.LISTS if is_floats else kind
        try:
            array = pa.array(values, wide)
        except _UNFIT:
            array = self._one_by_one(list(values), wide, kind)
        return self._finite_lists(array) if is_floats else array

    def _one_by_one(self, values: list[Any], wide: pa.DataType, kind: pa.DataType) -> pa.Array:
        """Find the value that does not fit; integers that a float holds exactly do."""
        for row, value in enumerate(values):
            try:
                pa.array([value], wide)
            except _UNFIT:
                if pa.types.is_floating(kind) and type(value) is int and _is_exact(value):
                    values[row] = float(value)
                else:
                    raise self._misfit(row, value, kind) from None
        return pa.array(values, wide)

    def _found(self, values: Sequence[Any]) -> pa.DataType:
        """Find the type that all values have."""
        found = {type(value) for value in values} - {type(None)}
        if not found:
            return pa.null()
        if found == {int, float}:
            return pa.float64()
        if len(found) == 1:
            (kind,) = found
            return kinds.list_type(values) if kind is list else kinds.SCALARS[kind]
        first = next(value for value in values if value is not None)
        fits = {int, float} if type(first) in (int, float) else {type(first)}
        row, odd = next(
            (row, value)
            for row, value in enumerate(values)
            if value is not None and type(value) not in fits
        )
        expected = kinds.list_type([first]) if type(first) is list else kinds.SCALARS[type(first)]
        raise self._misfit(row, odd, expected)

    def _of_texts(self, texts: Sequence[str | None]) -> pa.Array:
        """Convert what CSV holds."""
        texts = [text or None for text in texts]
        kind = self.kind or kinds.kind_of_texts(texts)
        if pa.types.is_null(kind) or pa.types.is_string(kind):
            return pa.array(texts, kind)
        read = kinds.reader(kind)
        values = [None if text is None else read(text) for text in texts]
        # of lists only the items tell the type
        return self._of_values(values, self.kind if pa.types.is_list(kind) else kind)

    def _of_arrow(self, array: pa.Array) -> pa.Array:
        """Convert what Parquet holds."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        kind = kinds.canonical(array.type)
        wanted = self.kind or kind
        if wanted is None:
            return self._of_values(array.to_pylist(), pa.string())
        if kind is None or not (kind.equals(wanted) or pa.types.is_null(kind)):
            return self._of_values(array.to_pylist(), wanted)
        if pa.types.is_timestamp(array.type) and array.type.tz is None:
            array = array.cast(pa.timestamp(array.type.unit, "UTC"))  # without a zone it is UTC
        try:
            # a time in nanoseconds loses what microseconds do not hold
            array = array.cast(wanted, safe=not pa.types.is_timestamp(wanted))
        except pa.ArrowException:
            return self._of_values(array.to_pylist(), wanted)
        if pa.types.is_floating(wanted):
            is_odd = ~np.isfinite(array.fill_null(0).to_numpy(zero_copy_only=False))
            self._warn(int(is_odd.sum()))
            array = _without(array, is_odd)
        return self._finite_lists(array) if wanted.equals(kinds.LOGPROBS) else array

    def _finite(self, values: Sequence[Any]) -> Sequence[Any]:
        """Leave out NaN and infinities."""
        bad = [
            row
            for row, value in enumerate(values)
            if type(value) is float and not math.isfinite(value)
        ]
        if bad:
            values = list(values)
            for row in bad:
                values[row] = None
            self._warn(len(bad))
        return values

    def _finite_lists(self, array: pa.Array) -> pa.Array:
        """Leave out lists that hold NaN or infinities, also those that float32 makes."""
        array = array.cast(kinds.LOGPROBS)
        items = array.flatten().fill_null(0).to_numpy(zero_copy_only=False)
        parents = pc.call_function("list_parent_indices", [array]).to_numpy()
        is_odd = np.zeros(len(array), bool)
        is_odd[parents[~np.isfinite(items)]] = True
        self._warn(int(is_odd.sum()))
        return _without(array, is_odd)

    def _warn(self, count: int) -> None:
        if count:
            self.warnings["not_finite"] += count

    def _misfit(self, row: int, value: Any, expected: pa.DataType) -> SchemaError:
        found = _shown(value)
        by = f"the sidecar {self.sidecar} has" if self.kind is not None else "the rows before have"
        return SchemaError(
            f"{self.rows.place(row)}: column {self.name} is {found}, where {by} {kinds.word(expected)}.",
            "Correct the value"
            + (", or attach the file under another --name." if self.kind is not None else "."),
        )


def _without(array: pa.Array, is_odd: np.ndarray) -> pa.Array:
    if not is_odd.any():
        return array
    null = pa.scalar(None, array.type)
    return pc.call_function("if_else", [pa.array(is_odd), null, array])


def _shown(value: Any) -> str:
    """Say what a value is, without a text of users."""
    if isinstance(value, bool):
        return f"bool ({str(value).lower()})"
    if isinstance(value, int):
        return "an integer of more than 64 bits" if abs(value) >> 63 else f"int64 ({value})"
    if isinstance(value, float):
        return f"float64 ({value!r})"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        is_text = value.encode(errors="replace").decode() == value
        return "string" if is_text else "text that is no UTF-8"
    return type(value).__name__


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
