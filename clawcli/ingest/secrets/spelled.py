"""Token ids and token texts that spell what redaction took out of a row.

A tokenizer that is at hand anywhere turns logged ids back into the text, so they go where a secret
was. The prompt of a later call repeats what was said before: where the ids stored as new in it do
not begin where the parent's end (another template, another tokenizer), they spell it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DROPPED = "ids_dropped_redacted"
"""Warning of a step whose logged ids were left out because of a secret."""

_STATE_IDS = ("observation_ids", "prefix_tokens")
_ACTION_IDS = ("response_ids", "rollout_logprobs")
_FEWEST_IDS = 4


def spread(table: pa.Table, had_secret: np.ndarray, tainted: set[str]) -> np.ndarray:
    """Find the rows that continue one whose state or action held a secret.

    Args:
        table: step_uid, parent_step_uid and prefix_messages.
        had_secret: bool, one per row.
        tainted: uids of such steps; those of this table are added, the rows found included.

    Returns:
        bool, one per row.
    """
    inherits = np.zeros(len(table), bool)
    if not tainted and not had_secret.any():
        return inherits
    uids = table["step_uid"].to_pylist()
    tainted.update(uids[row] for row in np.flatnonzero(had_secret))
    children: dict[str, list[int]] = defaultdict(list)
    shared = table["prefix_messages"].to_pylist()
    for row, parent in enumerate(table["parent_step_uid"].to_pylist()):
        # a row that shares nothing restates its whole state, and was looked at itself
        if parent is not None and shared[row]:
            children[parent].append(row)
    pending = [parent for parent in children if parent in tainted]
    while pending:
        for row in children.pop(pending.pop(), ()):
            inherits[row] = True
            tainted.add(uids[row])
            pending.append(uids[row])
    return inherits


def without_ids(table: pa.Table, in_state: np.ndarray, in_action: np.ndarray) -> pa.Table:
    """Null what spells the state of some rows and the action of others, and warn of it.

    Args:
        table: schema.STEPS.
        in_state: bool, one per row: observation_ids and prefix_tokens go.
        in_action: bool, one per row: response_ids and rollout_logprobs go, and token_provenance
            is text.

    Returns:
        The table itself where there was nothing to null.
    """
    dropped = np.zeros(len(table), bool)
    for names, rows in ((_STATE_IDS, in_state), (_ACTION_IDS, in_action)):
        for name in names:
            held = rows & table[name].is_valid().to_numpy()
            if held.any():
                dropped |= held
                table = _put(table, name, _choose(held, None, table[name]))
                if name == "response_ids":
                    told = _choose(held, "text", table["token_provenance"])
                    table = _put(table, "token_provenance", told)
    rows = np.flatnonzero(in_state | in_action)
    if len(rows):
        table, more = _without_spelled(table, rows)
        dropped |= more
    if not dropped.any():
        return table
    warnings = table["warnings"].to_pylist()
    for row in np.flatnonzero(dropped):
        if DROPPED not in (codes := warnings[row] or []):
            warnings[row] = [*codes, DROPPED]
    return _put(table, "warnings", pa.array(warnings, table.schema.field("warnings").type))


def _without_spelled(table: pa.Table, rows: Iterable[int]) -> tuple[pa.Table, np.ndarray]:
    """Null lists of ids and of token texts in the metadata of some rows."""
    changed = np.zeros(len(table), bool)
    column = table["metadata"]
    texts = []
    for row in rows:
        if (text := column[row].as_py()) is None:
            continue
        value = msgspec.json.decode(text)
        if (kept := _plain(value)) != value:
            changed[row] = True
            texts.append(msgspec.json.encode(kept).decode())
    if texts:
        column = pc.call_function(
            "replace_with_mask",
            [column.combine_chunks(), pa.array(changed), pa.array(texts, column.type)],
        )
        table = _put(table, "metadata", column)
    return table, changed


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    are_ids = len(value) >= _FEWEST_IDS and all(isinstance(item, int) for item in value)
    are_tokens = any(isinstance(item, dict) and "token" in item for item in value)
    return None if are_ids or are_tokens else [_plain(item) for item in value]


def _choose(rows: np.ndarray, value: str | None, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Put one value into some rows."""
    return pc.call_function("if_else", [pa.array(rows), pa.scalar(value, column.type), column])


def _put(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), column)
