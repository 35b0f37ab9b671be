"""Find out which step or attempt each row of a file is about.

A row counts only if its keys name exactly one: a row that names the four attempts at a task says
nothing of any. A source_path is the file of the log or any folder above it. An attempt's branches and
subagents share its keys, never its reward. Keys are compared as text, column by column.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import DataError
from clawcli.ingest.attach.files import Rows, at
from clawcli.ingest.attach.plan import METADATA, Plan
from clawcli.store import sidecars

_NUMBER_KEYS = ("step_index", "choice_index", "trial")
_PLURAL = {"step": "steps", "trajectory": "attempts"}
_NUM_EXAMPLES = 3
_EXAMPLE_CHARS = 80


@dataclass(frozen=True, slots=True)
class Matches:
    """What came of the rows of a file; the first row about a step or an attempt counts."""

    uids: pa.Array
    """Steps or attempts that rows are about, each once, in the order of the file (string)."""
    rows: np.ndarray
    """For each of them the row (int64)."""
    duplicates: int
    unmatched: int
    without_value: int


def match(rows: Rows, values: pa.Table, plan: Plan, steps: pa.Table) -> Matches:
    """Find for each row the one step or attempt that it names.

    Args:
        rows: the file.
        values: what each row says, typed; a row without any has no value, and is about nothing.
        plan: which fields are keys.
        steps: step_uid, trajectory_uid, trajectory_kind and plan.columns.

    Raises:
        DataError: a row names several steps or attempts, or two rows contradict each other.
    """
    has_value = np.zeros(len(rows), bool)
    for column in values.itercolumns() if plan.value is None else (values[0],):
        has_value |= _array(column.is_valid())
    keys = _row_keys(rows, plan)
    targets = _targets(keys, plan, steps)
    target = _joined(keys, targets, plan)
    is_matched = has_value & (target >= 0)
    counts = _array(targets["uid_count"])
    several = np.flatnonzero(is_matched)
    several = several[counts[target[several]] > 1]
    if len(several):
        row = int(several[0])
        raise _ambiguity(rows.place(row), int(counts[target[row]]), len(several) - 1, plan)
    codes = targets["uid_min"].combine_chunks().dictionary_encode()
    matched = np.flatnonzero(is_matched)
    code = _array(codes.indices)[target[matched]]
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    repeats = np.flatnonzero(first[inverse] != np.arange(len(matched)))
    _refuse_contradictions(
        rows,
        values,
        plan,
        codes.dictionary.take(pa.array(code[repeats])),
        matched[first[inverse[repeats]]],
        matched[repeats],
    )
    first.sort()
    return Matches(
        uids=codes.dictionary.take(pa.array(code[first])),
        rows=matched[first],
        duplicates=len(repeats),
        unmatched=int((has_value & (target < 0)).sum()),
        without_value=int((~has_value).sum()),
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """What the rows of a file are about, and what they are not about."""

    steps: int
    trajectories: int
    unmatched_steps: int
    unmatched_trajectories: int
    """Attempts: main and sample."""


def reach(found: Matches, plan: Plan, steps: pa.Table) -> Reach:
    """Count the steps and trajectories that rows are about, themselves or through the other."""
    reached = steps.filter(pc.field(plan.uid).isin(found.uids))
    attempts = steps.filter(pc.field("trajectory_kind").isin(["main", "sample"]))
    uids = reached["trajectory_uid"].unique()
    left = attempts.filter(~pc.field("trajectory_uid").isin(uids))["trajectory_uid"].unique()
    return Reach(reached.num_rows, len(uids), steps.num_rows - reached.num_rows, len(left))


def refuse_nothing(found: Matches, rows: Rows, plan: Plan, steps: pa.Table, place: str) -> None:
    """Refuse a file of which no row is about the table: nearly always a wrong key.

    Raises:
        DataError: the message has the keys that were tried, and examples of both sides.
    """
    if len(found.uids) or not found.unmatched:
        return
    keys, here = _row_keys(rows, plan), _candidates(plan, steps)
    tried = "; ".join(
        f"{name} is {_examples(keys[column])}, and {column} of the table {_examples(here[column])}"
        for column, name in plan.keys.items()
    )
    one = "step" if plan.unit == "step" else "attempt"
    what = "The row" if len(rows) == 1 else f"None of the {len(rows):,} rows"
    raise DataError(
        f"{what} of {rows.label} names {'no' if len(rows) == 1 else 'a'} {one} of {place}: {tried}.",
        "Is it the right table? If so, say which fields must agree: --on COLUMN=FIELD.",
    )


def _examples(texts: pa.ChunkedArray | pa.Array) -> str:
    found = [text for text in texts.unique().to_pylist() if text is not None][:_NUM_EXAMPLES]
    short = [f"{t[:_EXAMPLE_CHARS]}..." if len(t) > _EXAMPLE_CHARS else t for t in found]
    return ", ".join(json.dumps(text, ensure_ascii=False) for text in short) or "nowhere logged"


def _refuse_contradictions(
    rows: Rows,
    values: pa.Table,
    plan: Plan,
    uids: pa.Array,
    firsts: np.ndarray,
    repeats: np.ndarray,
) -> None:
    """Refuse rows that do not say what the first row about the same says."""
    if not len(repeats):
        return
    before, after = values.take(pa.array(firsts)), values.take(pa.array(repeats))
    differing = np.flatnonzero(sidecars.differing(before, after))
    if not len(differing):
        return
    row = int(differing[0])
    first, second = (values.slice(int(place[row]), 1) for place in (firsts, repeats))
    odd = next(
        name
        for name in values.column_names
        if sidecars.differing(first.select([name]), second.select([name]))[0]
    )
    field = odd if plan.value is None else plan.flags.get(odd, plan.value)
    said = [rows.values(str(field))[int(place[row])] for place in (firsts, repeats)]
    told = f": {said[0]} and {said[1]}"
    if not all(isinstance(value, int | float) or plan.value is not None for value in said):
        told = ""  # texts of users do not belong into messages
    raise DataError(
        f"{rows.place(int(firsts[row]))} and {rows.place(int(repeats[row]))} say different things "
        f"about {plan.unit} {uids[row]}{told} in {field}.",
        "Leave one out, or add --on COLUMN=FIELD for what tells them apart.",
    )


def _ambiguity(place: str, count: int, others: int, plan: Plan) -> DataError:
    more = f", and {others:,} more rows name several" if others else ""
    keys = " and ".join(plan.keys)
    if plan.unit == "step":
        hint = "Add --on COLUMN=FIELD for what tells them apart, such as choice_index"
        hint += (
            "."
            if plan.value is None
            else "; a reward of the whole attempt is --on trajectory_reward=FIELD."
        )
    else:
        hint = (
            "Add --on COLUMN=FIELD for what tells them apart: trial, agent, source_path or "
            "metadata.PATH."
        )
    return DataError(f"{place} names {count:,} {_PLURAL[plan.unit]} by {keys}{more}.", hint)


def _row_keys(rows: Rows, plan: Plan) -> pa.Table:
    """Write the keys of all rows as text; null where a row lacks one."""
    return pa.table(
        {column: _key_texts(column, rows.column(name)) for column, name in plan.keys.items()}
    )


def _candidates(plan: Plan, steps: pa.Table) -> pa.Table:
    """Write the keys of the steps that rows may be about as text, with the uids, each once."""
    if not _names_one(plan):
        steps = steps.filter(pc.field("trajectory_kind") == "main")
    texts = {column: _step_texts(steps, column) for column in plan.keys}
    named = pa.table({"uid": steps[plan.uid], **texts})
    return named.group_by(named.column_names, use_threads=False).aggregate([])


def _targets(keys: pa.Table, plan: Plan, steps: pa.Table) -> pa.Table:
    """Find what has each of the keys: columns of keys, uid_count (int64), uid_min."""
    named = _candidates(plan, steps)
    if "source_path" in plan.keys:
        named = _with_folders(named, set(keys["source_path"].unique().to_pylist()))
    found = named.group_by(list(plan.keys), use_threads=False)
    return found.aggregate([("uid", "count"), ("uid", "min")])


def _with_folders(named: pa.Table, wanted: set[str]) -> pa.Table:
    """Repeat rows for each of the wanted folders above their source_path."""
    paths = named["source_path"].combine_chunks().dictionary_encode()
    above = [
        [place for place in _paths(path) if place in wanted]
        for path in paths.dictionary.to_pylist()
    ]
    lists = pa.array(above, pa.list_(pa.string())).take(paths.indices)
    parents = pc.call_function("list_parent_indices", [lists])
    rest = named.drop_columns(["source_path"]).take(parents)
    rest = rest.append_column("source_path", lists.flatten())
    return rest.group_by(rest.column_names, use_threads=False).aggregate([])


def _joined(keys: pa.Table, targets: pa.Table, plan: Plan) -> np.ndarray:
    """Find the target of each row (int64); -1 = none has its keys."""
    names = list(plan.keys)
    left = keys.append_column("row", pa.array(np.arange(keys.num_rows)))
    right = targets.select(names)
    right = right.append_column("target", pa.array(np.arange(targets.num_rows)))
    # a key that is null equals nothing, here as in SQL
    found = left.join(right, names, join_type="inner")
    target = np.full(keys.num_rows, -1, np.int64)
    target[_array(found["row"])] = _array(found["target"])
    return target


def _array(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.to_numpy(zero_copy_only=False)


def _names_one(plan: Plan) -> bool:
    """Tell whether a key names one call or trajectory, of whatever kind."""
    if {"step_uid", "native_id", "trajectory_uid"} & plan.keys.keys():
        return True
    # what is logged with a call may be its own, or that of the attempt (a session, a user)
    return plan.unit == "step" and any(column.startswith(METADATA) for column in plan.keys)


def _key_texts(column: str, values: pa.ChunkedArray | list[Any]) -> pa.Array:
    """Write a field as text to compare with a key column."""
    if isinstance(values, list):
        try:
            array = pa.array(values)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # of several types
            return pa.array([_text(column, value) for value in values], pa.string())
    else:
        array = values.combine_chunks()
    if pa.types.is_string(array.type) and column not in (*_NUMBER_KEYS, "source_path"):
        is_empty = pc.call_function("equal", [array, pa.scalar("")])
        return pc.call_function("if_else", [is_empty, pa.scalar(None, pa.string()), array])
    try:
        distinct = array.dictionary_encode()
    except pa.ArrowException:  # lists and structs, which are no key
        return pa.nulls(len(array), pa.string())
    texts = [_text(column, value) for value in distinct.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(distinct.indices)


def _text(column: str, value: Any) -> str | None:
    """Write a key as text, so that 7, 7.0 and, for a number column, "7.0" are one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and column in _NUMBER_KEYS:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int | float) or value == "":
        return None
    text = _absolute(value) if column == "source_path" else str(value)
    # half of a surrogate pair, which JSON can hold, is in no table
    return text if text.isascii() or text.encode(errors="replace").decode() == text else None


def _step_texts(steps: pa.Table, column: str) -> pa.Array | pa.ChunkedArray:
    """Write a key column of steps as text; null where a step has none."""
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


def _paths(path: str | None) -> Sequence[str]:
    """List a path and the folders above it."""
    if path is None:
        return ()
    whole = _absolute(path)
    if whole == "-":
        return (whole,)
    return (whole, *(str(folder) for folder in PurePath(whole).parents))
