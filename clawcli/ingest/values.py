"""Read plain values of logs: what is no text, number or time is null."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

_YEAR_5138_S = 1e11


def text(value: Any) -> str | None:
    """Return a string as it is, a number as its text, null for everything else."""
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def number(value: Any) -> float | None:
    """Return a finite number; bools count as 0 and 1, numeric strings as numbers, else null."""
    if value is None:
        return None
    try:
        result = float(value) if isinstance(value, bool | int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def integer(value: Any) -> int | None:
    """Return a whole number that fits 64 bits, else null."""
    if value is None:
        return None
    result = value if isinstance(value, int) and not isinstance(value, bool) else None
    if result is None and (parsed := number(value)) is not None and parsed.is_integer():
        result = int(parsed)
    return result if result is not None and -(2**63) <= result < 2**63 else None


def version_number(value: Any) -> int | None:
    """Read a policy version: a whole number, also at the end of a name such as step-120."""
    if isinstance(value, str) and (found := re.search(r"(\d+)$", value.strip())):
        return integer(found[1])
    return integer(value)


def seconds(value: Any) -> float | None:
    """Read a time: seconds (or ms, us, ns) since the epoch, or ISO 8601; else null."""
    if value is None or (type(value) is float and 0 <= value <= _YEAR_5138_S):
        return value
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return seconds(number(value))
        try:
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        except (OverflowError, ValueError):
            return None
    result = number(value)
    if result is None:
        return None
    # what would lie past the year 5138 in one unit is the next smaller one
    for _ in range(3):
        if result > _YEAR_5138_S:
            result /= 1000
    return result if 0 <= result <= _YEAR_5138_S else None
