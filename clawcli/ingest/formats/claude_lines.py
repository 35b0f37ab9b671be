"""Read the lines of Claude Code: whose they are, what each continues, what the model saw of it.

Three dialects have the same lines: session files, {"loglines": [...]} documents of the web, and
the output of --output-format stream-json, which has session_id in place of sessionId and tells
subagents by parent_tool_use_id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from clawcli.ingest.conversations import Digested, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import blocks
from clawcli.ingest.formats.turns import Turn
from clawcli.ingest.values import text
from clawcli.messages import Message

_CHAINED = frozenset({"user", "assistant", "attachment", "system", "progress"})
"""Types of lines that others continue."""
SILENT = frozenset(
    {
        "agent-name",
        "ai-title",
        "custom-title",
        "file-history-snapshot",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "result",
        "stream_event",
        "summary",
        "system",
        "tag",
        "worktree-state",
    }
)
"""Types of lines that no model sees."""
_SENT = frozenset(
    {
        "hook_additional_context",
        "hook_blocking_error",
        "nested_memory",
        "queued_command",
        "skill_listing",
        "file",
        "edited_text_file",
        "task_reminder",
        "todo_reminder",
        "deferred_tools_delta",
        "mcp_instructions_delta",
        "agent_listing_delta",
        "plan_mode",
        "plan_mode_exit",
        "plan_mode_reentry",
        "plan_file_reference",
        "invoked_skills",
        "date_change",
    }
)
"""Types of attachments that become part of the prompt."""
_SENT_EVENTS = ("SessionStart", "UserPromptSubmit")
"""Events of hooks whose plain output becomes part of the prompt."""
_SIDE = "sidechain"


@dataclass(slots=True, eq=False)
class Line:
    """One line, its place in the tree of its session, and the turn that it became part of."""

    place: int
    """Number of the line in the log."""
    record: int
    value: dict[str, Any]
    session: str | None
    agent: str | None
    """The subagent that it belongs to; "sidechain" where only that is known, null = none."""
    previous: Line | None = None
    """The line before it of the same session and agent."""
    parent: Line | None = None
    is_orphan: bool = False
    """It names a parent that the log does not hold."""
    turn: Turn = field(init=False)

    def __post_init__(self) -> None:
        """Begin with a turn of its own."""
        self.turn = Turn([self.record])

    @property
    def kind(self) -> str:
        """The type of the line."""
        kind = self.value.get("type")
        return kind if isinstance(kind, str) else ""

    @property
    def subtype(self) -> str:
        """The subtype of a system line, or the type of an attachment."""
        attachment = self.value.get("attachment")
        value = attachment.get("type") if isinstance(attachment, dict) else None
        return text(value if self.kind == "attachment" else self.value.get("subtype")) or ""

    @property
    def message(self) -> dict[str, Any]:
        """The message of a user or assistant line."""
        message = self.value.get("message")
        return message if isinstance(message, dict) else {}

    @property
    def is_side(self) -> bool:
        """Belongs to a subagent that has no id in this log."""
        return self.agent == _SIDE

    @property
    def is_failed(self) -> bool:
        """Stands for a call that failed: the client wrote the answer itself."""
        wrote = self.message.get("model") == "<synthetic>" or self.value.get("isApiErrorMessage")
        return self.kind == "assistant" and bool(wrote)


def read(records: Mapping[int, dict[str, Any]]) -> tuple[list[Line], dict[int, Fate]]:
    """Read the lines of one source and find what each of them continues.

    Args:
        records: by ordinal, in the order of the log.

    Returns:
        The lines in the order of the log, and the fates of lines that were there before: a fork
        or a resumed session copies lines with their uuid.
    """
    lines: list[Line] = []
    fates: dict[int, Fate] = {}
    by_uuid: dict[str, Line] = {}
    newest: dict[tuple[str | None, str | None], Line] = {}
    for line in _all(records):
        uuid = line.value.get("uuid")
        known = by_uuid.get(uuid) if isinstance(uuid, str) else None
        if known is not None and known.message == line.message:
            fates[line.record] = Fate("duplicate", "same_uuid", "a line with this uuid came before")
            continue
        if isinstance(uuid, str):
            by_uuid.setdefault(uuid, line)
        lines.append(line)
        thread = (line.session, line.agent)
        line.previous = newest.get(thread)
        if line.kind in _CHAINED:
            newest[thread] = line
    for line in lines:
        line.parent, line.is_orphan = _parent(line, by_uuid)
    return lines, fates


def _all(records: Mapping[int, dict[str, Any]]) -> Iterator[Line]:
    place = 0
    for record, value in records.items():
        inner = value.get("loglines")
        for each in inner if isinstance(inner, list) else [value]:
            if isinstance(each, dict):
                session = text(each.get("sessionId")) or text(each.get("session_id"))
                agent = text(each.get("agentId")) or text(each.get("parent_tool_use_id"))
                side = _SIDE if each.get("isSidechain") is True else None
                yield Line(place, record, each, session or None, agent or side)
                place += 1


def _parent(line: Line, by_uuid: Mapping[str, Line]) -> tuple[Line | None, bool]:
    """Find the line that a line continues, and whether the log lacks the one that it names."""
    if line.kind not in _CHAINED or "parentUuid" not in line.value:
        return line.previous, False
    named = line.value["parentUuid"]
    if named is None and line.subtype == "compact_boundary":
        named = line.value.get("logicalParentUuid")
        return by_uuid.get(text(named) or "") or line.previous, False
    if named is None:
        return None, False
    parent = by_uuid.get(named) if isinstance(named, str) else None
    if parent is not None and parent.agent == line.agent:
        return parent, False
    # a subagent begins a conversation of its own, whatever called it
    return (None, False) if parent is not None and line.agent else (line.previous, True)


def said(line: Line) -> list[Digested]:
    """List what the model saw of a line that is no answer."""
    if line.kind == "user":
        content = line.message.get("content")
        return [digested(message) for message in blocks.to_messages("user", content)]
    shown = None
    if line.kind == "attachment" and is_sent(line):
        shown = _attached(line.value["attachment"])
    elif line.kind == "system" and line.subtype == "local_command":
        shown = text(line.value.get("content"))
    return [digested(Message("user", shown))] if shown else []


def is_sent(line: Line) -> bool:
    """Tell whether an attachment became part of the prompt."""
    attachment = line.value.get("attachment")
    if line.subtype == "hook_success" and isinstance(attachment, dict):
        return attachment.get("hookEvent") in _SENT_EVENTS and bool(attachment.get("content"))
    return line.subtype in _SENT


def _attached(attachment: dict[str, Any]) -> str | None:
    """Return an attachment's own text; null where the client made its text from something else."""
    shown = attachment.get("content", attachment.get("prompt"))
    if isinstance(shown, list) and all(isinstance(part, str) for part in shown):
        return "\n".join(shown)
    if isinstance(shown, dict) and isinstance(shown.get("content"), str):
        return shown["content"]
    return shown if isinstance(shown, str) else None
