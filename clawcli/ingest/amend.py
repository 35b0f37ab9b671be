"""Write committed rows again whose place has changed: late parents, live paths that move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from clawcli import messages, schema
from clawcli.ingest import links, rebuild, rows, steps, traces
from clawcli.ingest.committed import Committed
from clawcli.ingest.stepgraph import Step
from clawcli.store import table


def amended(
    changed: Sequence[Step], committed: Committed
) -> tuple[pa.Table, dict[str, dict[str, Any]]]:
    """Build the rows of committed steps anew.

    Only what linking decides changes: the Placement, and with another parent or prefix what is
    written relative to it. Messages come from the table, where secrets are hidden already.

    Args:
        changed: linked and placed steps whose stored placement is another.
        committed: the table that holds them, as it was before this commit.

    Returns:
        schema.STEPS, in the order given; and step_uid -> columns of the sidecar `links` about what
        is written relative to another parent or prefix than before.
    """
    moved = [step for step in changed if _is_moved(step)]
    # a state is rebuilt as it is stored, so its ancestors of then are needed, not those of now
    trees = committed.tree_rows({_stored(step).trajectory_uid for step in moved})
    rebuilder = committed.rebuilder(trees, {})
    rebuilder.steps()
    uids = [step.uid for step in changed]
    stored = {
        row["step_uid"]: row
        for row in table.read(committed.place, where=pc.field("step_uid").isin(uids)).to_pylist()
    }
    found = []
    hidden: dict[str, dict[str, Any]] = {}
    for step in changed:
        row = stored[step.uid]
        row.update(_placement(step, row))
        if _is_moved(step):
            row.update(_relative(step, row, rebuilder))
            hidden[step.uid] = _hidden(step, row, rebuilder)
        found.append(row)
    return pa.Table.from_pylist(found, schema=schema.steps_schema()), hidden


def _stored(step: Step) -> Any:
    assert step.stored is not None
    return step.stored


def _is_moved(step: Step) -> bool:
    before, now = _stored(step), step.placed
    assert now is not None
    return (before.parent_step_uid, before.prefix_messages) != (
        now.parent_step_uid,
        now.prefix_messages,
    )


def _placement(step: Step, row: dict[str, Any]) -> dict[str, Any]:
    assert step.placed is not None
    codes = [code for code in row["warnings"] or () if code not in rows.OF_PLACE]
    codes += rows.warnings_of_place(step.placed, step.request.reward, ambiguous=step.ambiguous)
    return {**msgspec.structs.asdict(step.placed), "warnings": codes or None}


def _relative(step: Step, row: dict[str, Any], rebuilder: rebuild.Rebuilder) -> dict[str, Any]:
    """Say what is new since the parent: messages, system text, tools, token ids."""
    linked = rows.linked(step)
    state = rebuilder.state(step.uid)
    system, tools = rebuilder.texts(step.uid)
    prefix = linked.placed.prefix_messages
    values: dict[str, Any] = {
        "observation": [messages.to_row(item.message) for item in state.after(prefix)],
        "system": None if linked.same_system else system,
        "tools": None if linked.same_tools else tools,
    }
    ids = rebuilder.prompt_ids(step.uid)
    if row["observation_ids"] is not None and ids is not None:
        parent = linked.parent_tokens
        shared = 0 if parent is None else traces.shared_tokens(ids, parent)
        values["prefix_tokens"], values["observation_ids"] = shared, ids[shared:]
    return values


def _hidden(step: Step, row: dict[str, Any], rebuilder: rebuild.Rebuilder) -> dict[str, Any]:
    """List the digests of what a row restates without its secrets."""
    request = step.request
    new = rebuilder.state(step.uid).after(row["prefix_messages"])
    hashes = {"system": request.system, "tools": request.tools}
    return {
        "hidden_observation": links.hidden_in(new),
        **{
            f"hidden_{name}": hash_.hex()
            if row[name] is not None and steps.text_hash(row[name]) != hash_
            else None
            for name, hash_ in hashes.items()
        },
    }
