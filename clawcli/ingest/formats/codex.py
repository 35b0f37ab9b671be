"""Codex rollouts: a header, then response items among events, or bare items in old versions.

The log has no response ids. A response is a run of items that the model wrote; a tool that
answered before the response was complete splits its run, which token_count tells where the client
logs one per response. Texts are stored twice, as items and as events: items alone are read.
A fork or a subagent begins with a copy of its parent's history, which is context and no steps.
The tools of the client are not in the log: the state is partial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clawcli.ingest.calls import Call, Choice, Context, Session
from clawcli.ingest.conversations import EMPTY, Digested, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import codex_items, items
from clawcli.ingest.formats.codex_rollout import (
    TURN_ENDS,
    TYPES,
    Entry,
    Response,
    cut_responses,
    cut_sessions,
    read,
    spawned,
)
from clawcli.ingest.formats.turns import Turn, rest, weave
from clawcli.ingest.values import integer, text
from clawcli.messages import Message, text_of

NAME = "codex"
GROWS = True
"""A response is several lines: a file that is read between them has a part of it."""

_EXEC = ("thread.", "turn.", "item.")
_CONTEXT = ("<", "# AGENTS.md instructions")
"""How texts begin that the client wrote in the user's name."""
_TOLD_KEYS = ("type", "role", "content", "call_id", "output", "result", "tools")
_USAGE_KEYS = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    kind = text(record.get("type"))
    if kind in TYPES and isinstance(record.get("payload"), dict):
        return None
    if kind is None and {"id", "timestamp", "instructions"} <= record.keys():
        return None
    if record.get("record_type") == "state":
        return None
    if kind is not None and kind.startswith(_EXEC):
        return "codex exec --json logs turns, not calls; give the rollout files of the session"
    return "no rollout line (type and payload)"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Turn the records of one source into its calls, of all sessions in it."""
    turns: list[Turn] = []
    for part in cut_sessions(read(records)):
        turns += _Builder(part).build()
    return weave(turns)


class _Builder:
    """Makes the turns of one session, in the order of the log."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.meta = entries[0].payload if entries[0].kind == "session_meta" else {}
        self.key = text(self.meta.get("id"))
        self.system = _instructions(self.meta)
        self.settings: dict[str, Any] = {}
        self.news: dict[str, Any] = {}
        """What the next call is the first to be made under; goes into its metadata."""
        if meta := rest(self.meta, "base_instructions"):
            self.news["session"] = meta
        self.tip: Turn | None = None
        self.user_turns: set[int] = set()
        self.turns: list[Turn] = []

    def build(self) -> list[Turn]:
        """Make all turns."""
        responses = {
            id(entry): response
            for response in cut_responses([e for e in self.entries if not e.is_copied])
            for entry in response.entries
        }
        copied: list[Entry] = []
        for entry in self.entries:
            if entry.is_copied and entry.is_written:
                copied.append(entry)
                continue
            if copied and entry.is_item:
                self._copy(copied)
                copied = []
            response = responses.get(id(entry))
            if response is not None and entry is response.entries[0]:
                self._answer(response)
            elif response is None:
                self._hear(entry)
        if copied:
            self._copy(copied)
        return self.turns

    def _add(self, turn: Turn) -> None:
        """Let the session go on with a turn."""
        turn.parent, turn.attempt = self.tip, self.key
        self.turns.append(turn)
        self.tip = turn

    def _set_aside(self, entry: Entry, fate: str, reason: str, detail: str) -> None:
        fated = Turn([entry.record], fate=Fate(fate, reason, detail), attempt=self.key)
        self.turns.append(fated)

    def _copy(self, entries: list[Entry]) -> None:
        """Take an answer of the parent as context."""
        action = codex_items.to_action([entry.payload for entry in entries])
        said = [digested(action.message)]
        self._add(Turn([entry.record for entry in entries], said, codes=["copied_context"]))

    def _answer(self, response: Response) -> None:
        call = _call(response, self.settings, self.news)
        self.news = {}
        call.system, call.trajectory_key = self.system, self.key
        call.key_is_global = self.key is not None
        if kind := spawned(self.meta):
            call.trajectory_kind = "subagent"
            call.parent_key = _parent_thread(self.meta)
            call.step_kind = "compaction" if kind == "compact" else "policy"
        self._add(Turn([entry.record for entry in response.entries], call=call))

    def _hear(self, entry: Entry) -> None:
        """Take in a record that is no answer."""
        if entry.kind == "compacted":
            self._compact(entry)
        elif entry.is_item:
            self._tell(entry)
        elif entry.kind == "turn_context":
            self.settings = self.news["turn_context"] = entry.payload
            self.system = self.system or _instructions(entry.payload)
            self._set_aside(entry, "ignored", "not_sent", "settings of the turn")
        elif entry.event == "thread_rolled_back":
            self._roll_back(integer(entry.payload.get("num_turns")) or 0)
            self._set_aside(entry, "ignored", "not_sent", "the session went back")
        elif entry.event in ("error", "stream_error"):
            self._set_aside(entry, "failed_call", "api_error", "the call failed")
        elif entry.kind in TYPES or entry.kind == "state":
            self._set_aside(entry, "ignored", "not_sent", "no model saw this record")
        else:
            self._set_aside(entry, "ignored", "unknown_type", f"type {entry.kind!r} is not known")

    def _tell(self, entry: Entry) -> None:
        """Continue with what the model was told: a user, a tool, another agent."""
        if not _is_sent(entry.payload):
            self._set_aside(entry, "ignored", "not_sent", "no model saw this item")
            return
        heard = items.to_messages([codex_items.standard(entry.payload)])[0]
        message, shown = heard.message, text_of(heard.message)
        turn = Turn([entry.record])
        if not self.system and not self.tip and message.role in ("system", "developer") and shown:
            self.system = shown
        else:
            turn.said = [heard]
        if kept := rest(entry.payload, *_TOLD_KEYS):
            turn.notes = [{"type": entry.payload.get("type"), **kept}]
        if message.role == "user" and not (shown or "").lstrip().startswith(_CONTEXT):
            self.user_turns.add(id(turn))
        self._add(turn)

    def _compact(self, entry: Entry) -> None:
        """Begin the conversation anew, with the history that the log gives or else a likely one."""
        logged = entry.payload.get("replacement_history")
        turn = Turn([entry.record], resets=True)
        if isinstance(logged, list):
            sent = [item for item in logged if isinstance(item, dict) and _is_sent(item)]
            turn.said = items.to_messages([codex_items.standard(item) for item in sent])
        else:
            summary = Message("user", text(entry.payload.get("message")) or "")
            told = [item for item in self._told() if item.message.role in ("user", "developer")]
            turn.said = [*told, digested(summary)]
            turn.damage = ["compaction_rebuilt"]
        self._add(turn)

    def _told(self) -> list[Digested]:
        """List the messages of the conversation up to here."""
        found: list[Digested] = []
        at = self.tip
        while at is not None:
            found += reversed(at.messages)
            at = None if at.resets else at.parent
        return found[::-1]

    def _roll_back(self, num_turns: int) -> None:
        """Go back to before the last turns of the user; their steps stay as a dead branch."""
        at, left = self.tip, num_turns
        while at is not None and left:
            if id(at) in self.user_turns:
                left -= 1
                self.tip = at.parent
            at = at.parent


def _is_sent(item: Mapping[str, Any]) -> bool:
    return text(item.get("type")) not in codex_items.SILENT


def _instructions(values: Mapping[str, Any]) -> str:
    logged = values.get("base_instructions")
    return text(logged.get("text") if isinstance(logged, dict) else logged) or ""


def _parent_thread(meta: Mapping[str, Any]) -> str | None:
    kind = spawned(meta)
    thread = kind.get("thread_spawn") if isinstance(kind, dict) else None
    named = thread.get("parent_thread_id") if isinstance(thread, dict) else None
    return text(named) or text(meta.get("parent_thread_id"))


def _call(response: Response, settings: Mapping[str, Any], news: dict[str, Any]) -> Call:
    entries = response.entries
    action = codex_items.to_action([entry.payload for entry in entries], response.thoughts)
    logged = (response.usage or {}).get("last_token_usage")
    usage: dict[str, Any] = logged if isinstance(logged, dict) else {}
    model = text(settings.get("model"))
    metadata = {**news, **action.metadata, "usage": rest(usage, *_USAGE_KEYS)}
    return Call(
        state=EMPTY,
        choices=[Choice(digested(action.message), finish_reason=_finish_reason(response, action))],
        record=entries[0].record,
        model=model,
        policy=model,
        input_tokens=integer(usage.get("input_tokens")),
        output_tokens=integer(usage.get("output_tokens")),
        cached_tokens=integer(usage.get("cached_input_tokens")),
        reasoning_tokens=integer(usage.get("reasoning_output_tokens")),
        started_at=entries[0].at,
        ended_at=entries[-1].at,
        state_kind="partial",
        warnings=action.warnings,
        metadata={key: value for key, value in metadata.items() if value},
    )


def _finish_reason(response: Response, action: items.Action) -> str:
    """Name the end of a response; none is logged, but only what is complete becomes an item."""
    if action.is_refusal:
        return "refusal"
    if action.message.tool_calls:
        return "tool_calls"
    if not (action.message.content or action.message.parts) and response.usage is None:
        return "aborted"  # thoughts alone: the response broke off
    if response.usage is not None or response.ended_by in TURN_ENDS:
        return "stop"
    return {"turn_aborted": "aborted", "error": "error"}.get(response.ended_by or "", "unknown")
