"""Turn linked calls into rows of the step table, column by column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from clawcli import messages, schema
from clawcli.ingest import chain, steps, traces
from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.conversations import Digested
from clawcli.ingest.placing import microseconds
from clawcli.ingest.stepgraph import Placement, Step, TokenTrace
from clawcli.messages import Message, ToolCall

_MOST_BYTES = 2**31 - 1
_SAMPLE, _LONG_CHARS = 128, 256
_PLACED = Placement.__struct_fields__


class Linked(msgspec.Struct, eq=False):
    """What the row of a step needs to know about the others: it travels to where its call is."""

    placed: Placement
    ambiguous: bool
    same_system: bool
    """The parent's system text is this one's, and the row need not repeat it."""
    same_tools: bool
    parent_said: tuple[int, bytes] | None
    parent_tokens: TokenTrace | None
    restated: Collection[int]
    """Places in the state of messages that a broken link repeats."""


class Row(msgspec.Struct, eq=False):
    """A step to be written: its call, its choice, and its place."""

    uid: str
    state_hash: bytes
    next_hash: bytes
    call: Call
    choice: Choice
    linked: Linked


def linked(step: Step) -> Linked:
    """Say about a linked step what its row needs.

    Raises:
        AssertionError: it was not placed; a bug.
    """
    assert step.placed is not None
    request, parent = step.request, step.parent
    # a row that restates its messages restates all else: curation may drop the parent
    above = parent if parent is not None and step.prefix_messages else None
    return Linked(
        placed=step.placed,
        ambiguous=step.ambiguous,
        same_system=above is not None and above.request.system == request.system,
        same_tools=above is not None and above.request.tools == request.tools,
        parent_said=parent.said if parent is not None else None,
        parent_tokens=above.tokens if above is not None else None,
        restated=chain.restated(step),
    )


def build(rows: Sequence[Row]) -> pa.Table:
    """Build the rows of linked steps.

    Returns:
        schema.STEPS, in the order given.
    """
    new = [row.call.state.after(row.linked.placed.prefix_messages) for row in rows]
    plain = _plain_columns(rows)
    plain["metadata"] = [_metadata(row, items) for row, items in zip(rows, new, strict=True)]
    placed = [row.linked.placed for row in rows]
    for name in _PLACED:
        plain[name] = [getattr(place, name) for place in placed]
    plain["prefix_broken"] = [
        place.prefix_broken and _cause(row) for row, place in zip(rows, placed, strict=True)
    ]
    plain["prefix_tokens"], plain["observation_ids"] = _token_deltas(rows)
    arrays = []
    for column in schema.STEPS:
        if column.name in plain:
            arrays.append(_array(plain[column.name], column.type))
        elif column.name == "observation":
            arrays.append(_messages([[item.message for item in items] for items in new]))
        elif column.name == "final_observation":
            arrays.append(_messages([row.call.final_observation for row in rows]))
        elif column.name == "tool_calls":
            arrays.append(_tool_calls([row.choice.action.message.tool_calls for row in rows]))
        else:
            raise AssertionError(f"no value for column {column.name}")
    return pa.table(arrays, schema=schema.steps_schema())


def restated_chars(rows: Iterable[Row]) -> tuple[int, int]:
    """Measure how much text broken links made steps repeat.

    Returns:
        Characters of observations whose message stood in the predecessor's state or action, and
        characters of all observations.
    """
    repeated = total = 0
    for row in rows:
        prefix = row.linked.placed.prefix_messages
        sizes = [
            len(item.message.content or item.message.parts or "")
            for item in row.call.state.after(prefix)
        ]
        total += sum(sizes)
        if row.linked.restated:
            repeated += sum(sizes[place - prefix] for place in row.linked.restated)
    return repeated, total


def _plain_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    calls = [row.call for row in rows]
    choices = [row.choice for row in rows]
    actions = [choice.action.message for choice in choices]
    return {
        "step_uid": [row.uid for row in rows],
        "source_uid": [c.source_uid for c in calls],
        "native_id": [c.native_id for c in calls],
        "system": [None if r.linked.same_system else r.call.system for r in rows],
        "tools": [None if r.linked.same_tools else r.call.tools for r in rows],
        "response": [a.content if a.parts is None else messages.text_of(a) for a in actions],
        "reasoning": [a.reasoning for a in actions],
        "response_parts": [a.parts for a in actions],
        "finish_reason": [c.finish_reason for c in choices],
        "finish_reason_raw": [c.finish_reason_raw for c in choices],
        "choice_index": [c.index for c in choices],
        "terminated": [c.terminated for c in calls],
        "truncated": [c.truncated for c in calls],
        "is_last": [c.is_last for c in calls],
        "model": [c.model for c in calls],
        "policy": [c.policy for c in calls],
        "policy_version": [c.policy_version for c in calls],
        "temperature": [c.temperature for c in calls],
        "top_p": [c.top_p for c in calls],
        "sampling": [c.sampling and _json(c.sampling) for c in calls],
        "tokenizer": [c.tokenizer for c in calls],
        "response_ids": [c.response_ids for c in choices],
        "rollout_logprobs": [c.logprobs for c in choices],
        "token_provenance": [_provenance(c) if c.response_ids else "text" for c in choices],
        "input_tokens": [c.input_tokens for c in calls],
        "output_tokens": [c.output_tokens for c in calls],
        "cached_tokens": [c.cached_tokens for c in calls],
        "reasoning_tokens": [c.reasoning_tokens for c in calls],
        "latency_s": [c.latency_s for c in calls],
        "cost_usd": [c.cost_usd for c in calls],
        "started_at": [microseconds(c.started_at) for c in calls],
        "ended_at": [microseconds(c.ended_at) for c in calls],
        "step_kind": [c.step_kind for c in calls],
        "state_kind": [c.state_kind for c in calls],
        "warnings": [_warnings(row) for row in rows],
        "state_hash": [row.state_hash.hex() for row in rows],
        "next_hash": [row.next_hash.hex() for row in rows],
        "log_format": [c.log_format for c in calls],
        "source_path": [c.source_path for c in calls],
        "source_offset": [c.offset for c in calls],
    }


def _warnings(row: Row) -> list[str] | None:
    call, choice = row.call, row.choice
    found = call.warnings + choice.warnings if call.warnings or choice.warnings else []
    linked = row.linked
    if linked.ambiguous or (call.reward is not None and linked.placed.reward is None):
        more = warnings_of_place(linked.placed, call.reward, ambiguous=linked.ambiguous)
        found = [*found, *more]
    return found or None


OF_PLACE = ("ambiguous_parent", "reward_of_another_choice")


def warnings_of_place(placed: Placement, reward: float | None, *, ambiguous: bool) -> list[str]:
    """List the warnings OF_PLACE of a step whose call logged a reward, or null."""
    is_warned = ambiguous, reward is not None and placed.reward is None
    return [code for code, is_so in zip(OF_PLACE, is_warned, strict=True) if is_so]


def _cause(row: Row) -> str | None:
    """Tell an answer that the client continued, as after a stop string, from another answer."""
    cause, said = row.linked.placed.prefix_broken, row.linked.parent_said
    if cause != "action_differs" or said is None or row.call.state.assistant is None:
        return cause
    item = row.call.state.assistant.item
    shown = messages.text_of(item.message) if item is not None else None
    length = said[0]
    return "stop_trimmed" if shown and steps.said(shown[:length]) == said else cause


def _token_deltas(rows: Sequence[Row]) -> tuple[list[int | None], list[list[int] | None]]:
    """Store logged prompt ids as what is new after the parent's prompt and response ids."""
    shared: list[int | None] = []
    own: list[list[int] | None] = []
    if all(row.call.prompt_ids is None for row in rows):
        return [None] * len(rows), [None] * len(rows)
    for row in rows:
        ids, parent = row.call.prompt_ids, row.linked.parent_tokens
        if ids is None:
            shared.append(None)
            own.append(None)
            continue
        prefix = 0 if parent is None else traces.shared_tokens(ids, parent)
        shared.append(prefix)
        own.append(ids[prefix:])
    return shared, own


def _metadata(row: Row, new: Sequence[Digested]) -> str | None:
    """Join what has no column: of the call, the choice, and the messages that are new."""
    found, own = row.call.metadata, row.choice.metadata
    extras = {str(place): item.extra for place, item in enumerate(new) if item.extra}
    if not (own or extras):
        return _json(found) if found else None
    beside = {"choice": own} if own else {}
    return _json({**(found or {}), **beside, **({"observation": extras} if extras else {})})


def _provenance(choice: Choice) -> str:
    if choice.response_ids is None:
        return "text"
    return "engine_ids" if choice.logprobs is None else "engine_logprobs"


def _json(value: dict[str, Any]) -> str | None:
    return msgspec.json.encode(value).decode() if value else None


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Make an array; of strings in one allocation, which a builder would grow its way to."""
    if kind != pa.string():
        return pa.array(values, kind)
    few = [value for value in values[:_SAMPLE] if value is not None]
    if sum(map(len, few)) < _LONG_CHARS * len(values[:_SAMPLE]):
        return pa.array(values, kind)
    is_null = [value is None for value in values]
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    if offsets[-1] > _MOST_BYTES:
        return pa.array(values, kind)
    valid = None
    if any(is_null):
        valid = pa.py_buffer(np.packbits(~np.array(is_null), bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _lists(values: Sequence[Sequence[Any] | None]) -> tuple[pa.Array, list[Any]]:
    """Flatten lists; null stays apart from empty.

    Returns:
        Offsets as ListArray.from_arrays takes them, and all items in order.
    """
    offsets: list[int | None] = []
    items: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(items))
        if value:
            items.extend(value)
    offsets.append(len(items))
    return pa.array(offsets, pa.int32()), items


def _messages(values: Sequence[Sequence[Message] | None]) -> pa.Array:
    offsets, items = _lists(values)
    fields = [
        _tool_calls([item.tool_calls for item in items])
        if field.name == "tool_calls"
        else _array([getattr(item, field.name) for item in items], field.type)
        for field in schema.MESSAGE
    ]
    structs = pa.StructArray.from_arrays(fields, fields=list(schema.MESSAGE))
    return pa.ListArray.from_arrays(offsets, structs, type=pa.list_(schema.MESSAGE))


def _tool_calls(values: Sequence[Sequence[ToolCall] | None]) -> pa.Array:
    offsets, items = _lists(values)
    fields = [
        _array([getattr(item, field.name) for item in items], field.type)
        for field in schema.TOOL_CALL
    ]
    structs = pa.StructArray.from_arrays(fields, fields=list(schema.TOOL_CALL))
    return pa.ListArray.from_arrays(offsets, structs, type=pa.list_(schema.TOOL_CALL))
