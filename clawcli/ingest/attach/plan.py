"""Decide which fields of a file are keys, and of a file of rewards which one is the reward.

--on COLUMN=FIELD names both: key columns say which step or attempt a row is about (several are
joined by AND), value columns what it says. step_uid, native_id, step_index, choice_index and
metadata paths name steps, the other keys attempts; a reward that is called trajectory_reward is that
of the step's attempt. What --on leaves open is guessed only from columns' own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from clawcli.errors import DataError, UsageError
from clawcli.ingest.attach.files import Rows
from clawcli.ingest.attach.reports import NAMES_ONE

Unit = Literal["step", "trajectory"]
FLAGS = ("terminated", "truncated")
METADATA = "metadata."

_STEP_KEYS = ("step_uid", "native_id", "step_index", "choice_index")
_ATTEMPT_KEYS = ("trajectory_uid", "task_id", "trial", "agent", "source_path")
KEY_COLUMNS = (*_STEP_KEYS, *_ATTEMPT_KEYS, METADATA.removesuffix("."))
"""Columns of the step table that keys may read."""
_VALUES = ("reward", "trajectory_reward", *FLAGS)
# tried in turn, where the file has all its fields: more than that would be a guess
_DEFAULT_KEYS = (
    ("step_uid",),
    ("trajectory_uid",),
    ("native_id",),
    ("source_path",),
    ("task_id", "trial"),
    ("task_id",),
)
_OUTCOMES = ("resolved", "is_resolved")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which fields of a file say what."""

    keys: dict[str, str]
    """Key column -> field."""
    unit: Unit
    """What a row is about."""
    value: str | None = None
    """Field of the reward; null = the file holds no rewards, but values of any kind."""
    flags: dict[str, str] = field(default_factory=dict)
    """terminated, truncated -> field, where they were named."""

    @property
    def uid(self) -> str:
        """Column of the uids of what rows are about."""
        return f"{self.unit}_uid"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the step table that the keys read."""
        return tuple(dict.fromkeys("metadata" if c.startswith(METADATA) else c for c in self.keys))

    @property
    def reward(self) -> str:
        """Column of the reward in its sidecar."""
        return "reward" if self.unit == "step" else "trajectory_reward"

    def words(self) -> tuple[str, ...]:
        """Write the plan as --on takes it."""
        value = {} if self.value is None else {self.reward: self.value}
        shown = {**self.keys, **value, **self.flags}
        return tuple(f"{column}={name}" for column, name in shown.items())


def parse_on(pairs: Iterable[str]) -> dict[str, str]:
    """Read --on COLUMN=FIELD pairs.

    Raises:
        UsageError: a pair has no =, repeats a column, or names one that is neither key nor value.

    Example:
        >>> parse_on(["native_id=request_id", "reward=score"])
        {'native_id': 'request_id', 'reward': 'score'}
    """
    on: dict[str, str] = {}
    for pair in pairs:
        column, _, name = (part.strip() for part in pair.partition("="))
        if not column or not name:
            raise UsageError(
                f"--on {pair} is no COLUMN=FIELD.", "Write it such as --on native_id=id."
            )
        if column in on:
            raise UsageError(f"--on {column} is given twice.", "Give each column one field.")
        on[column] = name
    check_on(on)
    return on


def check_on(on: Mapping[str, str]) -> None:
    """Refuse columns that are neither keys nor values.

    Raises:
        UsageError: the message names the column.
    """
    known = (*_STEP_KEYS, *_ATTEMPT_KEYS)
    for column in on:
        if column not in (*known, *_VALUES) and not column.startswith(METADATA):
            raise UsageError(
                f"--on {column}: rows cannot be joined on {column}.",
                f"Keys are {', '.join(known)}, metadata.PATH; values {', '.join(_VALUES)}.",
            )
    if "reward" in on and "trajectory_reward" in on:
        raise UsageError(
            "--on names both a reward and a trajectory_reward.", "Attach them one after the other."
        )


def plan_rewards(rows: Rows, on: Mapping[str, str]) -> Plan:
    """Decide which fields are keys and which is the reward; what `on` leaves open is guessed.

    Args:
        rows: the file.
        on: key or value column -> field.

    Raises:
        DataError: no field can be guessed, or one that was named is not in the file.
    """
    keys, fields = _keys(rows, on), rows.fields
    unit = _unit(keys)
    value = on.get("reward") or on.get("trajectory_reward")
    value = value or _default_value(rows.label, fields, unit)
    if "trajectory_reward" in on or ("reward" not in on and value == "trajectory_reward"):
        unit = "trajectory"
    return Plan(keys, unit, value, {name: on[name] for name in FLAGS if name in on})


def plan_values(name: str, rows: Rows, on: Mapping[str, str]) -> Plan:
    """Decide which fields are keys; all others are values of the sidecar.

    Args:
        name: the sidecar.
        rows: the file.
        on: key column -> field.

    Raises:
        UsageError: `on` names a column that is a value.
        DataError: no key can be guessed, or one that was named is not in the file.
    """
    for column in on:
        if column in _VALUES:
            raise UsageError(
                f"--on {column}: {name} is no sidecar of rewards, and its columns are all fields of "
                "the file that are no keys.",
                "Name keys alone, or give --name rewards.",
            )
    keys = _keys(rows, on)
    return Plan(keys, _unit(keys))


def named_by(on: Mapping[str, str]) -> tuple[str, ...]:
    """List the fields that `on` gives to keys of which each names one call or attempt."""
    return tuple(on[column] for column in NAMES_ONE if column in on)


def _keys(rows: Rows, on: Mapping[str, str]) -> dict[str, str]:
    for name in on.values():
        if len(rows) and _is_null(rows.column(name)):
            raise DataError(
                f"{rows.label} has no field {name}; its fields: {few(rows.fields)}.",
                "Correct --on.",
            )
    keys = {column: name for column, name in on.items() if column not in _VALUES}
    return keys or {name: name for name in _default_keys(rows.label, rows.fields)}


def _is_null(values: pa.ChunkedArray | list[object]) -> bool:
    if isinstance(values, list):
        return all(value is None for value in values)
    return values.null_count == len(values)


def _unit(keys: Iterable[str]) -> Unit:
    return "step" if any(_names_step(column) for column in keys) else "trajectory"


def _default_keys(path: str, fields: Sequence[str]) -> tuple[str, ...]:
    for names in _DEFAULT_KEYS:
        # a file without rows has no fields, and attaches nothing whatever its keys
        if not fields or all(name in fields for name in names):
            return names
    raise DataError(
        f"{path} has no field that names steps or attempts; its fields: {few(fields)}.",
        "Say which does: --on COLUMN=FIELD, such as --on native_id=id.",
    )


def _default_value(path: str, fields: Sequence[str], unit: Unit) -> str:
    own = ("reward", "trajectory_reward")
    for name in (*(own if unit == "step" else reversed(own)), *_OUTCOMES):
        if not fields or name in fields:
            return name
    raise DataError(
        f"{path} has no field reward; its fields: {few(fields)}.",
        "Say which it is: --on reward=FIELD.",
    )


def few(names: Iterable[str]) -> str:
    """List names for a message, the first ten of them."""
    names = list(names)
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def _names_step(column: str) -> bool:
    return column in _STEP_KEYS or column.startswith(METADATA)
