"""What linking asks of a step and its row does not tell: the sidecar `links`.

Later calls can move what was linked, and then a step is made of its row again (rebuild.Rebuilder).
Where the row alone would make another one, a row of the sidecar says the rest: what a call without
its predecessor waits for, what was logged where a column holds what linking filled in, and digests
of messages that lost a secret, for equality is that of the bytes before redaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from clawcli import messages, schema
from clawcli.ingest import rebuild, stepgraph, steps
from clawcli.ingest.conversations import Digested
from clawcli.ingest.rows import Row
from clawcli.ingest.stepgraph import Step
from clawcli.store import sidecars, table
from clawcli.store.location import SIDECARS, Location

NAME = "links"
_HIDDEN = ("hidden_system", "hidden_tools", "hidden_observation", "hidden_action")
_KEYS = ("waits_for", "known_as")
_ACTION = ("response", "reasoning", "response_parts", "tool_calls")
_COLUMNS = [column for column in schema.SIDECARS[NAME] if column.name != schema.SIDECAR_VERSION]


class Links:
    """The sidecar, by what its steps can be asked for."""

    def __init__(self, place: Location) -> None:
        """Read the keys of all rows."""
        self.place = place
        self._by_key: dict[str, list[str]] = defaultdict(list)
        self._by_loose: dict[str, list[str]] = defaultdict(list)
        self._uids: set[str] = set()
        if sidecars.exists(place, NAME):
            # rows that newer ones took the place of do no harm here
            self.add(table.read(place, f"{SIDECARS}/{NAME}", ["step_uid", *_KEYS]))

    def add(self, rows: pa.Table) -> None:
        """Take in rows that were added."""
        for row in rows.to_pylist():
            uid = row["step_uid"]
            self._uids.add(uid)
            for key in row["waits_for"] or ():
                self._by_key[key].append(uid)
            if row["known_as"] is not None:
                self._by_loose[row["known_as"]].append(uid)

    def asked_by(self, calls: Iterable[Step]) -> set[str]:
        """List committed steps that new calls may be the predecessors or, loosely, followers of."""
        found: set[str] = set()
        for step in calls:
            for key in step.awaited_by():
                found.update(self._by_key.get(key.hex(), ()))
            found.update(self._by_loose.get(step.request.lookup_loose.hex(), ()))
        return found

    def read(self, uids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Read the newest rows of some steps: step_uid -> row."""
        asked = [uid for uid in uids if uid in self._uids]
        if not asked:
            return {}
        where = pc.field("step_uid").isin(asked)
        rows = sidecars.newest(table.read(self.place, f"{SIDECARS}/{NAME}", where=where))
        return {row["step_uid"]: row for row in rows.to_pylist()}


def rows(
    new: Iterable[Step],
    again: Sequence[Step],
    changed: Sequence[Step],
    hidden: Mapping[str, Mapping[str, Any]],
    known: Links,
) -> pa.Table:
    """List what the rows of a commit do not tell.

    Args:
        new: steps that the table did not hold.
        again: steps that it holds and that their source said again.
        changed: other steps that it holds, whose place has changed.
        hidden: step_uid -> digests of what lost a secret; of changed steps, of what was restated.
        known: what earlier commits said.

    Returns:
        Rows of the sidecar.
    """
    before = known.read(step.uid for step in (*again, *changed))
    found = [_row(step, hidden.get(step.uid, {})) for step in (*new, *again)]
    for step in changed:
        kept = {name: before.get(step.uid, {}).get(name) for name in _HIDDEN}
        found.append(_row(step, {**kept, **hidden.get(step.uid, {})}))
    names = [column.name for column in _COLUMNS[1:]]
    differs = [
        row
        for row in found
        if any(row[name] != before.get(row["step_uid"], {}).get(name) for name in names)
    ]
    return pa.Table.from_pylist(differs, schema=schema.arrow_schema(_COLUMNS))


def _row(step: Step, hidden: Mapping[str, Any]) -> dict[str, Any]:
    request, parent = step.request, step.parent
    # one that hangs on another call for want of a better waits as well
    other_ids = parent is not None and request.ids_asked not in (b"", parent.ids_action)
    waits = parent is None or step.prefix_broken is not None or other_ids
    keys = [] if request.is_cut or not waits else [key.hex() for key in request.waits_for()]
    # a tree that begins in its middle is not found by its first messages
    is_loose = step.next_loose != step.next_hash and stepgraph.root(step).request.last > 0
    logged = {} if request.is_cut else _untold(step)
    return {
        "step_uid": step.uid,
        "waits_for": keys or None,
        "ids_asked": request.ids_asked.hex() if keys and request.ids_asked else None,
        "ids_before": request.ids_before.hex() if keys and request.ids_asked else None,
        "known_as": step.next_loose.hex() if is_loose and not request.is_cut else None,
        "logged": msgspec.json.encode(logged).decode() if logged else None,
        **{name: hidden.get(name) for name in _HIDDEN},
    }


def _untold(step: Step) -> dict[str, Any]:
    """List what was logged of a call where its columns hold something else."""
    assert step.placed is not None
    told = rebuild.told(msgspec.structs.asdict(step.placed))
    logged = {name: getattr(step.request, name) for name in told}
    # of labels it is enough that none was logged: two that differ never share a tree
    found = {
        name: value
        for name, value in logged.items()
        if value != told[name] and not (isinstance(value, str) and name in ("task_id", "agent"))
    }
    if step.request.trajectory not in (None, step.placed.trajectory_uid):
        found["trajectory"] = step.request.trajectory
    return found


def hidden_by_redaction(
    found: Sequence[Row], written: pa.Table, hidden: pa.Table, uids: set[str]
) -> dict[str, dict[str, Any]]:
    """List the digests of messages that redaction changed.

    Args:
        found: the steps.
        written: their rows before redaction.
        hidden: their rows after it.
        uids: steps that can have changed.

    Returns:
        step_uid -> columns of the sidecar.
    """
    changed: dict[str, dict[str, Any]] = {}
    for name in ("system", "tools", "observation", *_ACTION):
        before, after = (rows[name].combine_chunks() for rows in (written, hidden))
        if before.equals(after):
            continue
        for place, row in enumerate(found):
            if row.uid in uids and not before.slice(place, 1).equals(after.slice(place, 1)):
                column = "action" if name in _ACTION else name
                changed.setdefault(row.uid, {})[f"hidden_{column}"] = _digests(row, column)
    return changed


def _digests(row: Row, column: str) -> Any:
    if column == "action":
        return hexed(row.choice.action)
    if column == "observation":
        new = row.call.state.after(row.linked.placed.prefix_messages)
        return [hexed(item) for item in new]
    return steps.text_hash(getattr(row.call, column)).hex()


def hexed(item: Digested) -> str:
    """Write the exact and the loose digest of a message."""
    return (item.exact + item.loose).hex()


def hidden_in(state: Sequence[Digested]) -> list[str] | None:
    """List the digests of messages if one is not what they say, for it lost a secret; or None."""
    if all(messages.digests(item.message) == (item.exact, item.loose) for item in state):
        return None
    return [hexed(item) for item in state]
