"""ShareGPT rows: {conversations: [{from, value}], system?, tools?}, and what grew out of them.

Turns may also be {role, content}. A function_call whose value is the JSON of a call (or of several)
is a tool call; any other value is the text of the action, whatever syntax for calls it holds.
`loss` and `weight` of a turn are its loss weight.

Harbor exports traces as such rows, one per call of the model: `episode` says so. There the last
answer alone is the row's step, and chaining links the rows of a run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.conversations import Digested, conversation, split_system
from clawcli.ingest.formats import transcript
from clawcli.ingest.values import number, text

NAME = "sharegpt"
_OWN_KEYS = ("conversations", "system", "tools", "tool_definitions", "agent", "model", "task")


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    turns = transcript.listed(record.get("conversations"))
    if turns is None:
        return "no list of conversations"
    if not all(isinstance(turn, dict) and ("from" in turn or "role" in turn) for turn in turns):
        return "conversations are no objects with a speaker"
    return None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one conversation into its calls, or one row of a trace into its call.

    Raises:
        Fate: it is empty or damaged.
    """
    record = msgspec.json.decode(raw)
    attempt = transcript.labels(record, *_OWN_KEYS)
    turns = transcript.listed(record.get("conversations"))
    if turns is None or not all(isinstance(turn, dict) for turn in turns):
        raise attempt.fate("no_messages", "conversations is no list of objects")
    attempt.task_id = attempt.task_id or text(record.get("task"))
    items = [_item(turn, attempt) for turn in turns]
    if isinstance(system := record.get("system"), str) and system:
        items.insert(0, transcript.to_item({"role": "system", "content": system}))
    tools, warnings = transcript.tools_json(record.get("tools") or record.get("tool_definitions"))
    model = text(record.get("model"))
    agent = text(record.get("agent"))
    shared: dict[str, Any] = {"tools": tools, "agent": agent, "model": model, "policy": model}
    if "episode" in record and "run_id" in record:
        steps = [_traced(items, attempt, record, shared)]
    else:
        steps = transcript.cut(items, attempt, **shared)
    transcript.reconstructed(steps)
    steps[0].warnings.extend(warnings)
    if steps[0].num_messages == 0:
        # a page was saved without what was asked first
        steps[0].state_kind = "unknown"
    return steps


def _item(turn: dict[str, Any], attempt: transcript.Attempt) -> Digested:
    said = turn.get("value", turn.get("content"))
    speaker = text(turn.get("from", turn.get("role")))
    message = {"role": transcript.role_of(speaker), "content": said}
    if speaker == "function_call":
        called = _called(said)
        if called:
            message |= {"content": None, "tool_calls": called}
        elif "function_call_not_json" not in attempt.warnings:
            attempt.warnings.append("function_call_not_json")
    weight = number(turn.get("weight", turn.get("loss")))
    return transcript.to_item(message, weight)


def _called(value: Any) -> list[dict[str, Any]] | None:
    """Read the calls that a function_call turn holds; None where it is text of another kind."""
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError):
        return None
    found = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in found):
        return None
    return [
        {"function": {"name": call["name"], "arguments": call.get("arguments")}} for call in found
    ]


def _traced(
    items: list[Digested],
    attempt: transcript.Attempt,
    record: dict[str, Any],
    shared: dict[str, Any],
) -> Call:
    """Make the one call of a row: its last message is the action, all before it the state."""
    system, items = split_system(items)
    if not items or items[-1].message.role != "assistant":
        raise attempt.fate("empty_trajectory", "the row does not end with an answer of a model")
    # result is the reward of the run, or the name of what ended it; the latter is metadata already
    attempt.reward = number(record.get("result")) if attempt.reward is None else attempt.reward
    names = [text(record.get(key)) or "" for key in ("run_id", "trial_name")]
    return Call(
        state=conversation(items[:-1]),
        choices=[transcript.choice(items[-1])],
        system=system,
        trajectory_key="/".join(names),
        task_id=attempt.task_id,
        trial=attempt.trial,
        trajectory_reward=attempt.reward,
        warnings=list(attempt.warnings),
        metadata=attempt.metadata or None,
        **shared,
    )
