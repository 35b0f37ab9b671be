"""OpenClaw and pi: one session a file, a header and then a tree of entries.

One assistant message is one call. Version 1 is a plain list, later ones a tree by id and parentId,
of which an attempt is a path. Neither system prompt nor tool schemas are in the log: the state is
partial. Texts that the client makes of summaries and of the user's own shell commands are made the
same way here, because the model saw those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clawcli.ingest.calls import Call, Choice, Context, Session
from clawcli.ingest.conversations import EMPTY, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import blocks
from clawcli.ingest.formats.turns import Turn, parents_first, path, rest, weave
from clawcli.ingest.values import integer, number, seconds, text
from clawcli.messages import Message, content_and_parts

NAME = "openclaw"

_FINISH = {
    "stop": "stop",
    "length": "length",
    "toolUse": "tool_calls",
    "error": "error",
    "aborted": "aborted",
}
_SILENT = frozenset(
    {"session", "model_change", "thinking_level_change", "custom", "label", "session_info"}
)
_TELEMETRY = ("message.", "agent.", "llm.", "tool.", "session.")
_SUMMARY = {
    "compaction": (
        "The conversation history before this point was compacted into the following summary:"
        "\n\n<summary>\n",
        "\n</summary>",
    ),
    "branch_summary": (
        "The following is a summary of a branch that this conversation came back from:"
        "\n\n<summary>\n",
        "</summary>",
    ),
}
"""What the client writes around summaries."""
_ROLE_TYPES = {
    "compactionSummary": "compaction",
    "branchSummary": "branch_summary",
    "custom": "custom_message",
    "hookMessage": "custom_message",
}
"""Roles of messages that say the same as an entry of a type of their own."""
_REPAIRED = "[openclaw] missing tool result"
_MESSAGE_KEYS = ("role", "content", "model", "stopReason", "usage", "responseId", "timestamp")
_USAGE_KEYS = ("input", "output", "cacheRead", "totalTokens")


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    kind, message = record.get("type"), record.get("message")
    if isinstance(kind, str) and kind.startswith(_TELEMETRY):
        return "telemetry events do not hold whole calls; give the session files of the agent"
    if kind == "session" and "id" in record and ("cwd" in record or "version" in record):
        return None
    if kind == "message" and isinstance(message, dict) and isinstance(message.get("role"), str):
        return None
    return "no session header and no message entry"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Turn the entries of one source into its calls, of all branches in it."""
    header = next((v for v in records.values() if v.get("type") == "session"), {})
    key = text(header.get("id"))
    turns = {record: _turn(record, entry) for record, entry in records.items()}
    _connect(records, turns)
    levels: dict[int, str | None] = {}
    for turn in parents_first(list(turns.values())):
        entry = records[turn.records[0]]
        inherited = levels.get(id(turn.parent)) if turn.parent else None
        levels[id(turn)] = text(entry.get("thinkingLevel")) or inherited
        turn.attempt = key
        if turn.call:
            turn.call.trajectory_key, turn.call.key_is_global = key, key is not None
            if level := levels[id(turn)]:
                turn.call.metadata = {**(turn.call.metadata or {}), "thinking_level": level}
    woven = weave(list(turns.values()))
    if woven.calls and (kept := rest(header, "type")):
        woven.calls[0].metadata = {**(woven.calls[0].metadata or {}), "session": kept}
    return woven


def _turn(record: int, entry: Mapping[str, Any]) -> Turn:
    """Make the turn of one entry, as yet without its parent."""
    turn = Turn([record])
    kind, logged = text(entry.get("type")), entry.get("message")
    message: dict[str, Any] = logged if isinstance(logged, dict) else {}
    role = text(message.get("role")) or ""
    if kind == "message" and role == "assistant":
        turn.call = _call(record, entry, message)
        if turn.call is None:
            turn.fate = Fate("failed_call", "empty_response", "the answer has no content")
        return turn
    said = _said(_ROLE_TYPES.get(role, kind), entry if kind != "message" else message)
    if said is not None:
        turn.said = [digested(said)]
        turn.notes = [rest(entry, "type", "message", "content", "summary") | _inner(message)]
        turn.resets = _ROLE_TYPES.get(role, kind) == "compaction"
        if (said.content or "").startswith(_REPAIRED):
            turn.codes = ["synthetic_result"]
    elif kind in _SILENT or kind == "message":
        turn.fate = Fate("ignored", "not_sent", "no model saw this entry")
    else:
        turn.fate = Fate("ignored", "unknown_type", f"entries of type {kind!r} are not known")
    return turn


def _said(kind: Any, value: Mapping[str, Any]) -> Message | None:
    """Make the message that the model saw of an entry or its message; null where it saw none."""
    if kind in _SUMMARY:
        before, after = _SUMMARY[kind]
        return Message("user", before + (text(value.get("summary")) or "") + after)
    if kind == "custom_message":
        return Message("user", *content_and_parts(value.get("content")))
    role = value.get("role")
    if role == "toolResult":
        name, call_id = text(value.get("toolName")), text(value.get("toolCallId"))
        content, parts = content_and_parts(value.get("content"))
        return Message("tool", content, parts, tool_call_id=call_id, name=name)
    if role == "bashExecution":
        return None if value.get("excludeFromContext") else Message("user", _shell(value))
    if isinstance(role, str) and "content" in value:
        return Message(role, *content_and_parts(value["content"]))
    return None


def _shell(value: Mapping[str, Any]) -> str:
    """Write what the client tells the model of a command that the user ran."""
    output, code = text(value.get("output")), integer(value.get("exitCode"))
    shown = f"Ran `{text(value.get('command')) or ''}`\n"
    shown += f"```\n{output}\n```" if output else "(no output)"
    if value.get("cancelled"):
        shown += "\n\n(command cancelled)"
    elif code:
        shown += f"\n\nCommand exited with code {code}"
    if value.get("truncated") and value.get("fullOutputPath"):
        shown += f"\n\n[Output truncated. Full output: {value['fullOutputPath']}]"
    return shown


def _call(record: int, entry: Mapping[str, Any], message: dict[str, Any]) -> Call | None:
    """Make the call of an assistant message; null where it has no content."""
    content = message.get("content")
    if not content:
        return None
    action = blocks.to_action(
        [_block(part) for part in content] if isinstance(content, list) else content
    )
    reason = text(message.get("stopReason"))
    has_calls = bool(action.message.tool_calls)
    logged = message.get("usage")
    usage: dict[str, Any] = logged if isinstance(logged, dict) else {}
    counts = [integer(usage.get(key)) for key in ("input", "cacheRead", "cacheWrite")]
    cost = usage.get("cost")
    at = seconds(message.get("timestamp"))
    model = text(message.get("model"))
    metadata = {
        "entry": rest(entry, "type", "message"),
        "message": rest(message, *_MESSAGE_KEYS),
        "usage": rest(usage, *_USAGE_KEYS),
        **action.metadata,
    }
    return Call(
        state=EMPTY,
        choices=[
            Choice(
                digested(action.message),
                finish_reason="tool_calls"
                if reason is None and has_calls
                else _FINISH.get(reason or "", "unknown"),
                finish_reason_raw=reason,
            )
        ],
        native_id=text(message.get("responseId")) or text(entry.get("id")) or None,
        record=record,
        model=model,
        policy=model,
        input_tokens=None if counts[0] is None else sum(count or 0 for count in counts),
        output_tokens=integer(usage.get("output")),
        cached_tokens=counts[1],
        cost_usd=number(cost.get("total")) if isinstance(cost, dict) else None,
        started_at=at,
        ended_at=seconds(entry.get("timestamp")),
        state_kind="partial",
        warnings=action.warnings,
        metadata={key: value for key, value in metadata.items() if value},
    )


def _block(part: Any) -> Any:
    """Give a part the name that blocks.to_action knows it by."""
    if not isinstance(part, dict) or part.get("type") != "toolCall":
        return part
    others = {key: value for key, value in part.items() if key != "arguments"}
    return {**others, "type": "tool_use", "input": part.get("arguments")}


def _connect(records: Mapping[int, dict[str, Any]], turns: Mapping[int, Turn]) -> None:
    """Let each entry continue its parent; where none is named or known, the one before it."""
    by_id: dict[str, Turn] = {}
    for record, entry in records.items():
        if isinstance(name := entry.get("id"), str):
            by_id.setdefault(name, turns[record])
    for turn in turns.values():
        for call in turn.call.choices[0].action.message.tool_calls or () if turn.call else ():
            # exports of other tools name a tool call as the parent of its result
            by_id.setdefault(call.id or "", turn)
    previous: Turn | None = None
    for record, entry in records.items():
        turn, named = turns[record], entry.get("parentId")
        if "parentId" not in entry:
            turn.parent = previous
        elif named is not None and (parent := by_id.get(text(named) or "")):
            turn.parent = parent
        elif named is not None:
            turn.parent = previous
            turn.damage.append("parent_missing")
        previous = turn
    entries = list(turns.values())
    for record, entry in records.items():
        if turns[record].resets:
            first = by_id.get(text(entry.get("firstKeptEntryId")) or "")
            place = integer(entry.get("firstKeptEntryIndex"))
            if first is None and place is not None and 0 < place < len(entries):
                first = entries[place]
            turns[record].keep = path(first, turns[record].parent)


def _inner(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = rest(message, "role", "content", "toolCallId", "toolName", "summary", "timestamp")
    return {"message": kept} if kept else {}
