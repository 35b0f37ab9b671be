"""Transcripts in rows: {messages, tools?, reward?, ...}, as JSON lines, an array or Parquet.

Three shapes hold the messages of an attempt: `messages`, a list in the OpenAI chat form or its
JSON text (fine-tuning files with weights, SWE-smith and SWE-Gym rows); `trajectory`, a list of
{role, text} (nebius rows); `content`, a list of typed actions and observations (the standard form
of the agent data protocol). Each assistant message is a step. The requests themselves were not
logged, so the state is reconstructed, or partial where tools were called whose schemas are
missing.

`resolved` (of SWE-smith and SWE-Gym) and `target` (of nebius) are what the tests of the task said
of this very attempt, logged by the run that made it: they are its reward, 1 or 0, where no
`reward` is logged. They stay in the metadata as they were.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.conversations import Digested
from clawcli.ingest.formats import documents, transcript
from clawcli.ingest.values import number, text, version_number

NAME = "messages"
_OWN_KEYS = ("tools", "functions", "instance_id", "agent", "model", "model_name", "policy_version")
_TRUNCATED = ("exit_context", "exit_cost")
_SHAPES = ("messages", "trajectory", "content")


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if "messages_display" in record:
        return (
            "messages_display is a conversation flattened into one text, and nothing tells for "
            "certain where its turns end"
        )
    if "messages" not in record and (
        "preferred_output" in record or {"chosen", "rejected"} <= record.keys()
    ):
        return "a row of preferences compares two answers and logs no attempt"
    if "sessionKey" in record:
        return "an event of a telemetry plug-in repeats a history and is no attempt"
    if _shape(record) is not None:
        return None
    if "messages" in record:
        found = transcript.listed(record["messages"])
        return "messages are no objects with a role" if found else "messages is no list"
    return "no list of messages"


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one transcript into its calls.

    Raises:
        Fate: the transcript is empty or damaged.
    """
    keys = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    key = next((key for key in _SHAPES if bytes(keys.get(key, b"null")) != b"null"), "messages")
    record, logged = transcript.open_record(raw, key)
    attempt = transcript.labels(record, *_OWN_KEYS)
    attempt.task_id = attempt.task_id or text(record.get("instance_id"))
    judged = attempt.reward is not None
    if not judged:
        attempt.reward = _outcome(record)
    tools, warnings = transcript.tools_json(record.get("tools") or _functions(record))
    model = text(record.get("model")) or text(record.get("model_name"))
    steps = transcript.cut(
        _items(key, logged, context, attempt),
        attempt,
        trajectory_key=_key(record),
        tools=tools,
        agent=text(record.get("agent")),
        model=model,
        policy=model,
        policy_version=version_number(record.get("policy_version")),
    )
    transcript.reconstructed(steps)
    steps[0].warnings.extend(warnings)
    last, exit_status = steps[-1], text(record.get("exit_status")) or ""
    # a reward beside a finished transcript says that the environment ended it and judged it; tests
    # also judge what an agent left behind that ran into a limit
    last.terminated = True if judged or exit_status == "submitted" else None
    last.truncated = True if any(limit in exit_status for limit in _TRUNCATED) else None
    return steps


def _shape(record: dict[str, Any]) -> str | None:
    """Find the key that holds the messages."""
    messages = transcript.listed(record.get("messages"))
    if messages is not None and transcript.is_chat(messages):
        return "messages"
    turns = record.get("trajectory")
    if transcript.is_chat(turns) and any("text" in turn for turn in turns):
        return "trajectory"
    typed = record.get("content")
    is_typed = any("class_" in turn for turn in documents.objects(typed))
    return "content" if is_typed else None


def _outcome(record: dict[str, Any]) -> float | None:
    for key in ("resolved", "target"):
        if isinstance(record.get(key), bool):
            return number(record[key])
    return None


def _key(record: dict[str, Any]) -> str | None:
    """Name the attempt; one instance is tried in several runs."""
    if key := text(record.get("traj_id")):
        return key
    parts = [text(record.get(name)) for name in ("instance_id", "run_id")]
    return "/".join(part for part in parts if part) if all(parts) else None


def _functions(record: dict[str, Any]) -> list[Any] | None:
    """Bring the schemas of legacy function calling into the form of tools."""
    functions = transcript.listed(record.get("functions"))
    return functions and [{"type": "function", "function": function} for function in functions]


def _items(
    key: str, logged: bytes, context: Context, attempt: transcript.Attempt
) -> list[Digested]:
    if key == "messages":
        return transcript.read_messages(logged, context, attempt)
    turns = msgspec.json.decode(logged)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise attempt.fate("no_messages", f"{key} is no list of objects")
    return [_nebius(turn) for turn in turns] if key == "trajectory" else _protocol(turns)


def _nebius(turn: dict[str, Any]) -> Digested:
    """Read a turn {role, text, system_prompt, mask}; a true mask hides it from the loss."""
    role = transcript.role_of(turn.get("role"))
    content = turn.get("text")
    if role == "system" and content is None:
        content = turn.get("system_prompt")
    hidden = role == "assistant" and turn.get("mask") is True
    return transcript.to_item({"role": role, "content": content}, 0.0 if hidden else None)


def _protocol(turns: list[dict[str, Any]]) -> list[Digested]:
    """Read actions and observations of the agent data protocol.

    An action is one call of the model: a message, a call of a named function, or code, which is a
    call of the interpreter of its language. What the environment observes after a call of a tool
    is that tool's result.
    """
    items: list[Digested] = []
    tool: str | None = None
    for turn in turns:
        kind, content = text(turn.get("class_")) or "", turn.get("content")
        if kind.endswith("_action"):
            tool, message = _action(kind, turn)
        elif tool is not None and turn.get("source") != "user":
            body = [turn] if kind == "web_observation" else content
            message = {"role": "tool", "name": tool, "content": body}
        else:
            message = {"role": "user", "content": content}
        items.append(transcript.to_item(message))
    return items


def _action(kind: str, turn: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Give the name of the tool that an action called, if any, and the message that it was."""
    if kind == "api_action":
        tool, arguments = text(turn.get("function")) or "", turn.get("kwargs")
    elif kind == "code_action":
        tool, arguments = text(turn.get("language")) or "", {"code": turn.get("content")}
    else:
        return None, {"role": "assistant", "content": turn.get("content")}
    called = {"function": {"name": tool, "arguments": arguments}}
    said = turn.get("description")
    return tool, {"role": "assistant", "content": said, "tool_calls": [called]}
