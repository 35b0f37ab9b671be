"""Find the sessions and the responses in the records of a Codex rollout.

A rollout says neither which items were one response nor where a copied history ends; both follow
from the order of the records, from what the client logs once per response, and from the times in
the ids of turns.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clawcli.ingest.formats import codex_items
from clawcli.ingest.values import seconds, text

TYPES = frozenset(
    {
        "session_meta",
        "response_item",
        "turn_context",
        "event_msg",
        "compacted",
        "world_state",
        "inter_agent_communication",
        "inter_agent_communication_metadata",
    }
)
TURN_ENDS = frozenset({"task_complete", "turn_complete"})
"""Events that a turn of the user comes to its end with."""
_BORDERS = frozenset(
    {
        "user_message",
        "task_started",
        "task_complete",
        "turn_started",
        "turn_complete",
        "turn_aborted",
        "thread_rolled_back",
        "error",
    }
)
"""Events that no response goes across."""
_REPLAY_S = 1.0
"""A copied history is written at once, and no model answers within that."""


@dataclass(slots=True, eq=False)
class Entry:
    """One record: its type, its payload, and the time that it was written."""

    record: int
    kind: str
    payload: dict[str, Any]
    at: float | None
    is_copied: bool = False

    @property
    def event(self) -> str:
        """Type of an event; empty for all else."""
        kind = self.payload.get("type") if self.kind == "event_msg" else None
        return kind if isinstance(kind, str) else ""

    @property
    def is_item(self) -> bool:
        """Is part of the conversation."""
        return self.kind == "response_item"

    @property
    def is_written(self) -> bool:
        """Is an item that the model wrote."""
        return self.is_item and codex_items.is_written(self.payload)

    @property
    def is_border(self) -> bool:
        """Comes after a response is complete, or before it begins."""
        if self.is_item:
            is_told = not codex_items.is_output(self.payload)
            return is_told and text(self.payload.get("type")) not in codex_items.SILENT
        borders = ("session_meta", "turn_context", "compacted")
        return self.kind in borders or self.event in _BORDERS


@dataclass(slots=True, eq=False)
class Response:
    """The items of one response, and what events say of it."""

    entries: list[Entry] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    ended_by: str | None = None
    """Event that came next, where it ends the turn."""


def read(records: Mapping[int, dict[str, Any]]) -> list[Entry]:
    """Give bare items and old headers the form that newer versions write."""
    found = []
    for record, value in records.items():
        kind, payload = text(value.get("type")), value.get("payload")
        if isinstance(payload, dict):
            entry = Entry(record, kind or "", payload, seconds(value.get("timestamp")))
        elif kind is None and "record_type" not in value and "id" in value:
            entry = Entry(record, "session_meta", value, seconds(value.get("timestamp")))
        elif kind is None or kind in TYPES:
            entry = Entry(record, text(value.get("record_type")) or "", {}, None)
        else:
            entry = Entry(record, "response_item", value, None)
        found.append(entry)
    return found


def cut_sessions(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Cut a source into its sessions, each with its header first and its copied history marked."""
    parts: list[list[Entry]] = []
    for entry in entries:
        if not parts or (entry.kind == "session_meta" and _begins_another(entry, parts[-1])):
            parts.append([])
        parts[-1].append(entry)
    for part in parts:
        for entry in part[: _num_copied(part)]:
            entry.is_copied = True
    return parts


def _begins_another(header: Entry, part: Sequence[Entry]) -> bool:
    """Tell whether a header is that of the next session, not one that a copied history holds."""
    known, meta = part[0].payload, header.payload
    if part[0].kind != "session_meta" or meta.get("id") == known.get("id"):
        return part[0].kind != "session_meta"
    began, other = seconds(known.get("timestamp")), seconds(meta.get("timestamp"))
    is_older = began is None or other is None or other <= began
    return not (is_older and (len(part) == 1 or _is_fork(part) or spawned(known)))


def _is_fork(part: Sequence[Entry]) -> bool:
    """Tell whether the log says that a session began as a copy of another."""
    meta = part[0].payload
    named = meta.get("forked_from_id") or meta.get("parent_thread_id")
    return bool(named) or (len(part) > 1 and part[1].kind == "session_meta")


def spawned(meta: Mapping[str, Any]) -> Any:
    """Return what the header says of the subagent that the session is; null = it is none."""
    source = meta.get("source")
    return source.get("subagent") if isinstance(source, dict) else None


def _num_copied(part: Sequence[Entry]) -> int:
    """Count the entries that a fork or subagent copied from its parent."""
    meta, is_fork = part[0].payload, _is_fork(part)
    began = seconds(meta.get("timestamp")) or part[0].at
    if not (is_fork or spawned(meta)) or began is None:
        return 0
    times = [(place, _turn_time(entry)) for place, entry in enumerate(part)]
    turns = [(place, at) for place, at in times if at is not None]
    if turns:
        return next((place for place, at in turns if at >= began), len(part))
    # without turn ids that tell the time, the copy is what was written in one go
    first = part[0].at if part[0].at is not None else began
    late = (place for place, e in enumerate(part) if e.at is None or e.at - first > _REPLAY_S)
    # a subagent need not begin as a copy, and one that is nothing else says little
    return next(late, len(part) if is_fork else 0)


def _turn_time(entry: Entry) -> float | None:
    """Read the time from the id of the turn that an entry begins, where it is a UUIDv7."""
    if entry.kind != "turn_context" and not entry.event.endswith("_started"):
        return None
    try:
        turn_id = uuid.UUID(text(entry.payload.get("turn_id")) or "")
    except ValueError:
        return None
    return (turn_id.int >> 80) / 1000 if turn_id.version == 7 else None


def cut_responses(entries: Sequence[Entry]) -> list[Response]:
    """Find the responses of a session.

    Runs that only outputs of tools part are one response where token_count is logged once per
    response; elsewhere nothing tells, and each run stands for itself.
    """
    groups: list[list[Response]] = [[]]
    run: Response | None = None
    waiting: dict[str, Any] | None = None
    thoughts: list[str] = []
    total: Any = None
    for entry in entries:
        if entry.is_written:
            if run is None:
                run = Response(usage=waiting, thoughts=thoughts)
                groups[-1].append(run)
                waiting, thoughts = None, []
            run.entries.append(entry)
        elif entry.is_border:
            if run is not None and entry.event:
                run.ended_by = entry.event
            run, thoughts = None, []
            groups.append([])
        elif entry.is_item:
            run = None if codex_items.is_output(entry.payload) else run
        elif entry.event == "agent_reasoning_raw_content":
            (run.thoughts if run else thoughts).append(text(entry.payload.get("text")) or "")
        elif entry.event == "token_count" and (usage := _usage(entry, total)):
            total = usage["total_token_usage"]
            last = groups[-1][-1] if groups[-1] else None
            if last is not None and last.usage is None:
                last.usage = usage
            else:
                waiting = usage  # old versions log it before the items of its response
            run = None
            groups.append([])
    groups = [group for group in groups if group]
    closed = groups if groups and groups[-1][-1].ended_by in TURN_ENDS else groups[:-1]
    if all(any(run.usage for run in group) for group in closed) and closed:
        return [_join(group) for group in groups]
    return [run for group in groups for run in group]


def _usage(entry: Entry, before: Any) -> dict[str, Any] | None:
    """Return the info of a token_count; null where it says nothing new."""
    info = entry.payload.get("info")
    total = info.get("total_token_usage") if isinstance(info, dict) else None
    return info if isinstance(total, dict) and total != before else None


def _join(runs: Sequence[Response]) -> Response:
    return Response(
        entries=[entry for run in runs for entry in run.entries],
        thoughts=[thought for run in runs for thought in run.thoughts],
        usage=next((run.usage for run in reversed(runs) if run.usage), None),
        ended_by=runs[-1].ended_by,
    )
