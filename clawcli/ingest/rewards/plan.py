"""Decide which fields of a file of rewards are keys, and which one is the reward.

--on COLUMN=FIELD names both: key columns say which step or attempt a row is about (several are
joined by AND), value columns what it says. step_uid, native_id, step_index, choice_index and
metadata paths name steps, the other keys attempts; a reward that is called trajectory_reward is that
of the step's attempt. What --on leaves open is guessed only from columns' own names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clawcli.errors import DataError, UsageError
from clawcli.ingest.rewards.files import Row, at

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
    value: str
    """Field of the reward."""
    flags: dict[str, str]
    """terminated, truncated -> field, where they were named."""
    unit: Unit
    """What a row is about."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the step table that the keys read."""
        return tuple(dict.fromkeys("metadata" if c.startswith(METADATA) else c for c in self.keys))

    def words(self) -> tuple[str, ...]:
        """Write the plan as --on takes it."""
        column = "reward" if self.unit == "step" else "trajectory_reward"
        shown = {**self.keys, column: self.value, **self.flags}
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
                f"--on {column}: rewards cannot be joined on {column}.",
                f"Keys are {', '.join(known)}, metadata.PATH; values {', '.join(_VALUES)}.",
            )
    if "reward" in on and "trajectory_reward" in on:
        raise UsageError(
            "--on names both a reward and a trajectory_reward.", "Attach them one after the other."
        )


def plan(path: str, rows: Sequence[Row], on: Mapping[str, str]) -> Plan:
    """Decide which fields are keys and which is the reward; what `on` leaves open is guessed.

    Args:
        path: the file, for messages.
        rows: its judgements.
        on: key or value column -> field.

    Raises:
        DataError: no field can be guessed, or one that was named is not in the file.
    """
    fields = dict.fromkeys(name for row in rows for name in row.fields)
    for name in on.values():
        if rows and all(at(row.fields, name) is None for row in rows):
            raise DataError(
                f"{path} has no field {name}; its fields: {_few(fields)}.", "Correct --on."
            )
    keys = {column: name for column, name in on.items() if column not in _VALUES}
    if not keys:
        keys = {name: name for name in _default_keys(path, fields)}
    unit: Unit = "step" if any(_names_step(column) for column in keys) else "trajectory"
    value = on.get("reward") or on.get("trajectory_reward") or _default_value(path, fields, unit)
    if "trajectory_reward" in on or ("reward" not in on and value == "trajectory_reward"):
        unit = "trajectory"
    return Plan(keys, value, {name: on[name] for name in FLAGS if name in on}, unit)


def _default_keys(path: str, fields: Mapping[str, None]) -> tuple[str, ...]:
    for names in _DEFAULT_KEYS:
        # a file without rows has no fields, and attaches nothing whatever its keys
        if not fields or all(name in fields for name in names):
            return names
    raise DataError(
        f"{path} has no field that names steps or attempts; its fields: {_few(fields)}.",
        "Say which does: --on COLUMN=FIELD, such as --on native_id=id.",
    )


def _default_value(path: str, fields: Mapping[str, None], unit: Unit) -> str:
    own = ("reward", "trajectory_reward")
    for name in (*(own if unit == "step" else reversed(own)), *_OUTCOMES):
        if not fields or name in fields:
            return name
    raise DataError(
        f"{path} has no field reward; its fields: {_few(fields)}.",
        "Say which it is: --on reward=FIELD.",
    )


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def _names_step(column: str) -> bool:
    return column in _STEP_KEYS or column.startswith(METADATA)
