"""Claude Code: session files, those of subagents, web exports and stream-json output.

A response is all assistant lines with one message id, wherever they stand: newer versions write
tool results between the blocks of one response, and lead parentUuid through them. So lines are
first put together into turns (an answer and all its results), and only then is the tree walked.
Neither system prompt nor tool schemas are in the log: the state is partial. Lines of a response
are written as its blocks arrive, so its usage is that of the last one, and its uid does not cover
the action.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice, Context, Session
from clawcli.ingest.conversations import EMPTY, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import blocks
from clawcli.ingest.formats.claude_lines import SILENT, Line, read
from clawcli.ingest.formats.claude_turns import build
from clawcli.ingest.formats.turns import Turn, parents_first, rest, weave
from clawcli.ingest.values import integer, number, seconds, text
from clawcli.messages import text_of

NAME = "claude_code"
GROWS = True

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_INTERRUPTED = "[Request interrupted by user"
_MESSAGE_KEYS = ("id", "type", "role", "model", "content", "stop_reason", "usage")
_USAGE_KEYS = ("input_tokens", "output_tokens", "cache_read_input_tokens")


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    kind, message = record.get("type"), record.get("message")
    if isinstance(record.get("loglines"), list):
        return None
    if kind in ("user", "assistant") and isinstance(message, dict) and "content" in message:
        return None
    if kind == "summary" and "leafUuid" in record:
        return None
    if kind == "file-history-snapshot" and "messageId" in record:
        return None
    named = "sessionId" in record or "session_id" in record
    if kind in (*SILENT, "attachment") and named and "payload" not in record:
        return None
    return "no line of a Claude Code session (a type, and a message or a sessionId)"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Turn the lines of one source into its calls, of all sessions and branches in it."""
    lines, copies = read(records)
    _answer(lines)
    turns = build(lines)
    _name(lines, turns)
    _mark_interrupted(turns)
    woven = weave(turns)
    _close(lines)
    for call in woven.calls:
        _drop_repeats(call)
    read_records = {line.record for line in lines}
    for record in records:
        if record not in read_records:
            nothing = Fate("rejected", "empty_trajectory", "the document holds no line")
            woven.fates[record] = copies.get(record, nothing)
    return woven


def _answer(lines: Sequence[Line]) -> None:
    """Put the lines of each response together into one turn with its call."""
    responses: dict[Any, list[Line]] = defaultdict(list)
    for place, line in enumerate(lines):
        if line.is_failed:
            line.turn.fate = Fate("failed_call", "api_error", "the client wrote this answer")
        elif line.kind == "assistant":
            native_id = text(line.message.get("id"))
            responses[(line.session, line.agent, native_id) if native_id else place].append(line)
    ordinals: Counter[int] = Counter()
    for response in responses.values():
        turn = response[0].turn
        turn.records = [line.record for line in response]
        content = _union(response)
        if not content:
            turn.fate = Fate("failed_call", "empty_response", "the response holds no block")
        else:
            turn.call = _call(response, content, ordinals[turn.records[0]])
            ordinals[turn.records[0]] += 1
        for line in response:
            line.turn = turn


def _union(response: Sequence[Line]) -> list[Any]:
    """Collect the blocks of a response; a block that an earlier line holds is a repeat."""
    found: list[Any] = []
    known: set[bytes] = set()
    for line in response:
        content = line.message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        logged = content if isinstance(content, list) else []
        keys = [msgspec.json.encode(block, order="deterministic") for block in logged]
        found += [block for block, key in zip(logged, keys, strict=True) if key not in known]
        known.update(keys)
    return found


def _call(response: Sequence[Line], content: list[Any], ordinal: int) -> Call:
    first, last = response[0], response[-1]
    action = blocks.to_action(content)
    reasons = [text(line.message.get("stop_reason")) for line in response]
    reason = next((reason for reason in reversed(reasons) if reason), None)
    usages = [u for line in response if isinstance(u := line.message.get("usage"), dict)]
    usage: dict[str, Any] = usages[-1] if usages else {}
    prompt = [
        integer(usage.get(key))
        for key in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    ]
    took_ms = number(last.value.get("durationMs"))
    model = text(last.message.get("model"))
    metadata = {
        "lines": [rest(line.value, "type", "message") for line in response],
        "message": rest(last.message, *_MESSAGE_KEYS),
        "usage": rest(usage, *_USAGE_KEYS),
        **action.metadata,
    }
    times = [seconds(line.value.get("timestamp")) for line in response]
    return Call(
        state=EMPTY,
        choices=[
            Choice(
                digested(action.message),
                finish_reason=_finish_reason(reason, action),
                finish_reason_raw=reason,
            )
        ],
        native_id=text(first.message.get("id")) or None,
        record=first.record,
        ordinal=ordinal,
        model=model,
        policy=model,
        input_tokens=None if prompt[0] is None else sum(count or 0 for count in prompt),
        output_tokens=integer(usage.get("output_tokens")),
        cached_tokens=prompt[2],
        latency_s=None if took_ms is None else took_ms / 1000,
        cost_usd=number(last.value.get("costUSD")),
        started_at=times[0],
        ended_at=times[-1],
        state_kind="partial",
        warnings=action.warnings,
        metadata={key: value for key, value in metadata.items() if value},
    )


def _finish_reason(reason: str | None, action: blocks.Action) -> str:
    """Name the end of a response; most lines log none, and complete tool calls are one."""
    if reason is not None:
        return _FINISH.get(reason, "unknown")
    message = action.message
    if calls := message.tool_calls:
        return "tool_calls" if all(call.arguments_valid for call in calls) else "aborted"
    # thoughts alone: the stream was cut before there was an answer
    return "unknown" if message.parts or message.content else "aborted"


def _mark_interrupted(turns: Sequence[Turn]) -> None:
    for turn in turns:
        answer = turn if turn.call else turn.parent
        if answer and answer.call and answer.call.choices[0].finish_reason == "unknown":
            shown = [text_of(item.message) or "" for item in turn.said]
            if shown and shown[0].startswith(_INTERRUPTED):
                answer.call.choices[0].finish_reason = "aborted"


def _name(lines: Sequence[Line], turns: Sequence[Turn]) -> None:
    """Say which attempt each turn belongs to: a session's, or that of a subagent in it."""
    first: dict[int, Line] = {}
    for line in lines:
        first.setdefault(id(line.turn), line)
    for turn in parents_first(turns):
        line = first[id(turn)]
        turn.attempt = line.session
        if line.agent:
            # older versions give subagents no id, but each begins a conversation of its own
            root = text(line.value.get("uuid")) or str(line.place)
            name = root if line.is_side else line.agent
            turn.attempt = f"{line.session or ''}/{name}"
            if turn.parent and line.is_side:
                turn.attempt = turn.parent.attempt
        if turn.call:
            turn.call.trajectory_key = turn.attempt
            turn.call.key_is_global = line.session is not None
            if line.agent:
                turn.call.trajectory_kind, turn.call.parent_key = "subagent", line.session


def _close(lines: Sequence[Line]) -> None:
    """Give the last call of a stream the result line that closed it."""
    last = {line.session: line.turn.call for line in lines if line.turn.call and not line.agent}
    for line in lines:
        at = line.previous if line.kind == "result" else None
        while at is not None and at.turn.call is None:
            at = at.previous
        if at is None or (call := at.turn.call) is None:
            continue
        call.metadata = {**(call.metadata or {}), "result": rest(line.value, "type")}
        if call is last[line.session]:
            call.is_last = True
            is_success = line.subtype == "success" and not line.value.get("is_error")
            call.terminated = True if is_success else None
            call.truncated = True if line.subtype.startswith("error_max") else None


def _drop_repeats(call: Call) -> None:
    """Keep what lines log again and again, such as the folder, once per call."""
    metadata = call.metadata or {}
    first = metadata["lines"][0]
    for key in ("lines", "observation", "final_observation"):
        fresh = [
            line if line is first else {k: v for k, v in line.items() if first.get(k) != v}
            for line in metadata.get(key, ())
        ]
        if any(fresh):
            metadata[key] = fresh
