"""Types of a sidecar's columns: how they are found, and which values fit them.

JSON, CSV, Parquet              column
true, false                     bool
integers                        int64
other numbers                   float64
text                            string
lists of numbers                list<float32>, or list<int64> where all are integers
lists of texts or truth values  list<string>, list<bool>
times and dates of Parquet      timestamp (us, UTC), date
all else: objects, mixed lists  string, holding JSON
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from clawcli.schema import TIMESTAMP

LOGPROBS, LISTS = pa.list_(pa.float32()), pa.list_(pa.float64())
SCALARS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    dict: pa.string(),
}
"""Type that a decoded JSON value has alone -> type of its column."""
_ITEMS = {
    bool: pa.list_(pa.bool_()),
    int: pa.list_(pa.int64()),
    float: LOGPROBS,
    str: pa.list_(pa.string()),
}
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)\Z")
# 007 is no number, but the name of something
_NUMBER = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z|[+-]?(?i:nan|inf|infinity)\Z"
)
_MAX_DIGITS = 400
"""No number has more, and Python refuses to read thousands."""
_TRUTH = {"true": True, "false": False}


def word(kind: pa.DataType) -> str:
    """Write a type as reports and messages have it.

    Example:
        >>> word(pa.list_(pa.float32())), word(pa.float64()), word(pa.timestamp("us", tz="UTC"))
        ('list<float32>', 'float64', 'timestamp')
    """
    if pa.types.is_list(kind):
        return f"list<{word(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    return {"double": "float64", "float": "float32", "date32[day]": "date"}.get(
        str(kind), str(kind)
    )


def all_fit(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Tell whether values are of the Python types that a column is made of, or None."""
    if not pa.types.is_list(kind):
        return set(map(type, values)) <= _fitting(kind)
    if not set(map(type, values)) <= {list, type(None)}:
        return False
    items = chain.from_iterable(value for value in values if value)
    return set(map(type, items)) <= _fitting(kind.value_type)


def _fitting(kind: pa.DataType) -> set[type]:
    if pa.types.is_floating(kind):
        return {int, float, type(None)}
    if pa.types.is_temporal(kind):
        return {datetime if pa.types.is_timestamp(kind) else date, type(None)}
    return {one for one, made in SCALARS.items() if one is not dict and made.equals(kind)} | {
        type(None)
    }


def time(value: Any, kind: pa.DataType) -> Any:
    """Read an ISO 8601 text; a time without a zone is UTC."""
    if not isinstance(value, str):
        return value
    try:
        if not pa.types.is_timestamp(kind):
            return date.fromisoformat(value)
        found = datetime.fromisoformat(value)
    except ValueError:
        return value
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def list_type(values: Sequence[Any]) -> pa.DataType:
    """Find the type of lists by what they hold."""
    kinds = {type(item) for item in chain.from_iterable(filter(None, values))} - {type(None)}
    if kinds <= {int, float}:
        return _ITEMS[int] if kinds == {int} else LOGPROBS
    return _ITEMS.get(kinds.pop(), pa.string()) if len(kinds) == 1 else pa.string()


def kind_of_texts(texts: Sequence[str | None]) -> pa.DataType:
    """Find the type that texts of CSV have together; null where there is none."""
    given = [text for text in set(texts) if text is not None]
    if not given:
        return pa.null()
    numbers = [number(text) for text in given]
    if all(type(value) is int for value in numbers):
        # more digits than a number has make an id
        return pa.string() if any(abs(value) >> 63 for value in numbers) else pa.int64()
    if all(type(value) is not str for value in numbers) and any(map(_is_finite, numbers)):
        return pa.float64()
    if all(text.lower() in _TRUTH for text in given):
        return pa.bool_()
    is_lists = given[0][:1] == "[" and all(isinstance(_list(text), list) for text in given)
    return LISTS if is_lists else pa.string()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def reader(kind: pa.DataType) -> Callable[[str], Any]:
    """Choose how texts of CSV are read; what cannot be read stays text, which fits no such type."""
    if pa.types.is_boolean(kind):
        return lambda text: _TRUTH.get(text.lower(), text)
    if pa.types.is_list(kind):
        return _list
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return number
    return str


def number(text: str) -> Any:
    """Read an integer or a number, NaN and infinities among them; else the text itself."""
    if len(text) > _MAX_DIGITS:
        return text
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _NUMBER.match(text) else text


def _list(text: str) -> Any:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return found if isinstance(found, list) else text


def canonical(kind: pa.DataType) -> pa.DataType | None:
    """Find the column's type for one of Parquet; null = it is kept as JSON."""
    types = pa.types
    if types.is_null(kind) or types.is_boolean(kind) or types.is_date32(kind):
        return kind
    if types.is_integer(kind):
        return pa.int64()
    if types.is_floating(kind) or types.is_decimal(kind):
        return pa.float64()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_timestamp(kind):
        return TIMESTAMP
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = canonical(kind.value_type)
        if item is not None and (types.is_floating(item) or types.is_null(item)):
            return LOGPROBS
        if item in (pa.int64(), pa.string(), pa.bool_()):
            return pa.list_(item)
    return None
