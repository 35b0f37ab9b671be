"""Find out which step or attempt each row of rewards is about.

A row counts only if its keys name exactly one: a row that names the four attempts at a task says
nothing of any. A source_path is the file of the log or any folder above it. An attempt's branches and
subagents share its keys, never its reward.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import PurePath
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import DataError
from clawcli.ingest.rewards.files import Row, at
from clawcli.ingest.rewards.plan import METADATA, Plan

Key = tuple[str, ...]

_NUMBER_KEYS = ("step_index", "choice_index", "trial")
_PLURAL = {"step": "steps", "trajectory": "attempts"}


@dataclass(slots=True)
class Matches:
    """What came of the rows of a file."""

    values: dict[str, tuple[float, *tuple[bool | None, ...]]] = field(default_factory=dict)
    """uid of a step or trajectory -> its reward and, in the order of the plan, its flags."""
    duplicates: int = 0
    unmatched: int = 0
    without_value: int = 0
    warnings: Counter[str] = field(default_factory=Counter)


def match(rows: Sequence[Row], plan: Plan, steps: pa.Table) -> Matches:
    """Give each row's reward to the one step or attempt that it names.

    Args:
        rows: judgements.
        plan: their fields.
        steps: step_uid, trajectory_uid, trajectory_kind and plan.columns.

    Raises:
        DataError: a row names several steps or attempts, or two rows contradict each other.
    """
    found = Matches()
    targets = _targets(rows, plan, steps)
    first: dict[str, Row] = {}
    ambiguous: list[tuple[Row, int]] = []
    for row in rows:
        value, code = number(at(row.fields, plan.value))
        if value is None:
            found.warnings[code] += 1
            found.without_value += 1
            continue
        key = _key(row, plan)
        uids = [] if key is None else targets.get(key, [])
        if not uids:
            found.unmatched += 1
        elif len(uids) > 1:
            ambiguous.append((row, len(uids)))
        elif (said := found.values.get(uids[0])) is None:
            first[uids[0]] = row
            found.values[uids[0]] = (value, *_flags(row, plan))
        elif said == (value, *_flags(row, plan)):
            found.duplicates += 1
        else:
            raise _contradiction(first[uids[0]], row, plan, uids[0])
    if ambiguous:
        raise _ambiguity(ambiguous, plan)
    return found


def number(value: Any) -> tuple[float | None, str]:
    """Read a reward: a number, a bool, or text of either.

    Returns:
        The number, or None and the code of why there is none: reward_missing, reward_not_finite,
        reward_not_a_number.

    Example:
        >>> number("0.5"), number(True), number("nan")
        ((0.5, ''), (1.0, ''), (None, 'reward_not_finite'))
    """
    if value is None or value == "":
        return None, "reward_missing"
    words = {"true": 1.0, "false": 0.0}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()], ""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None, "reward_not_a_number"
    except OverflowError:
        return None, "reward_not_finite"
    return (found, "") if math.isfinite(found) else (None, "reward_not_finite")


def _flags(row: Row, plan: Plan) -> tuple[bool | None, ...]:
    found = (number(at(row.fields, name))[0] for name in plan.flags.values())
    return tuple(None if value is None else bool(value) for value in found)


def _contradiction(first: Row, row: Row, plan: Plan, uid: str) -> DataError:
    said = [
        "/".join(str(at(one.fields, name)) for name in (plan.value, *plan.flags.values()))
        for one in (first, row)
    ]
    return DataError(
        f"{first.place} and {row.place} say different things about {plan.unit} {uid}: "
        f"{' and '.join(said)}.",
        "Leave one out, or add --on COLUMN=FIELD for what tells them apart.",
    )


def _ambiguity(ambiguous: Sequence[tuple[Row, int]], plan: Plan) -> DataError:
    row, count = ambiguous[0]
    more = f", and {len(ambiguous) - 1:,} more rows name several" if len(ambiguous) > 1 else ""
    keys = " and ".join(plan.keys)
    if plan.unit == "step":
        hint = (
            "Add --on COLUMN=FIELD for what tells them apart, such as choice_index; a reward of the "
            "whole attempt is --on trajectory_reward=FIELD."
        )
    else:
        hint = (
            "Add --on COLUMN=FIELD for what tells them apart: trial, agent, source_path or "
            "metadata.PATH."
        )
    return DataError(f"{row.place} names {count:,} {_PLURAL[plan.unit]} by {keys}{more}.", hint)


def _targets(rows: Sequence[Row], plan: Plan, steps: pa.Table) -> dict[Key, list[str]]:
    """Find the steps or trajectories that have each of the keys that rows name."""
    wanted = {key for row in rows if (key := _key(row, plan)) is not None}
    if not _names_one(plan):
        steps = steps.filter(pc.field("trajectory_kind") == "main")
    texts = {column: _texts(steps, column) for column in plan.keys}
    named = pa.table({"uid": steps[f"{plan.unit}_uid"], **texts})
    for place, column in enumerate(plan.keys):
        if column != "source_path":
            values = pa.array({key[place] for key in wanted}, pa.string())
            named = named.filter(pc.field(column).isin(values))
    named = named.group_by(named.column_names, use_threads=False).aggregate([])
    targets: dict[Key, dict[str, None]] = {}
    for uid, *values in zip(*(c.to_pylist() for c in named.itercolumns()), strict=True):
        choices = [
            _paths(value) if column == "source_path" else (value,)
            for column, value in zip(plan.keys, values, strict=True)
        ]
        for key in product(*choices):
            if key in wanted:
                targets.setdefault(key, {})[uid] = None
    return {key: list(uids) for key, uids in targets.items()}


def _names_one(plan: Plan) -> bool:
    """Tell whether a key names one call or trajectory, of whatever kind."""
    if {"step_uid", "native_id", "trajectory_uid"} & plan.keys.keys():
        return True
    # what is logged with a call may be its own, or that of the attempt (a session, a user)
    return plan.unit == "step" and any(column.startswith(METADATA) for column in plan.keys)


def _key(row: Row, plan: Plan) -> Key | None:
    found = [_text(column, at(row.fields, name)) for column, name in plan.keys.items()]
    key = tuple(text for text in found if text is not None)
    return key if len(key) == len(found) else None


def _text(column: str, value: Any) -> str | None:
    """Write a key as text, so that 7, 7.0 and, for a number column, "7.0" are one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and column in _NUMBER_KEYS:
        value = number(value)[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int | float) or value == "":
        return None
    return _absolute(value) if column == "source_path" else str(value)


def _texts(steps: pa.Table, column: str) -> pa.Array | pa.ChunkedArray:
    """Write a key column as text; null where a step has none."""
    if not column.startswith(METADATA):
        return steps[column].cast(pa.string())
    path = column.removeprefix(METADATA)
    decoded = (
        None if text is None else msgspec.json.decode(text)
        for text in steps["metadata"].to_pylist()
    )
    return pa.array((_text(column, at(value, path)) for value in decoded), pa.string())


def _absolute(path: Any) -> str:
    text = str(path)
    if text == "-" or "://" in text:
        return text
    # resolve() would follow links, and a log is known by the path that it was given by
    return os.path.abspath(text)  # noqa: PTH100


def _paths(path: str | None) -> tuple[str, ...]:
    """List a path and the folders above it."""
    if path is None:
        return ()
    whole = _absolute(path)
    if whole == "-":
        return (whole,)
    return (whole, *(str(folder) for folder in PurePath(whole).parents))
