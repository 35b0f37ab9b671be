"""Rows for supervised fine-tuning: one JSON line per trained step, or per trajectory.

The forms are TRL's conversational ones: {prompt, completion, tools} and {messages, tools}. Prompt
and completion hold messages in the OpenAI chat form with arguments as the logged string; every row
keeps where it came from (step_uid, step_uids).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from clawcli.errors import DataError
from clawcli.store.state import Prompt, States

OWN_KEYS = frozenset({"step_uid", "step_uids"})
"""Keys that name where a row came from: of each row one."""


def step_rows(steps: pa.Table) -> Iterator[dict[str, Any]]:
    """Make one row per trained step.

    Args:
        steps: as store.query.load_steps returns them.

    Yields:
        prompt (list of messages, the system text first), completion (one assistant message), tools
        (list of schemas; null = not logged), step_uid.
    """
    states = States(steps)
    for row, uid in _trained(steps):
        prompt = states.prompt(row)
        yield {
            "prompt": _messages(prompt),
            "completion": [to_openai(states.action(row))],
            "tools": prompt.tools,
            "step_uid": uid,
        }


def trajectory_rows(steps: pa.Table) -> Iterator[dict[str, Any]]:
    """Make one row per trajectory that holds a trained step.

    A trainer puts its loss on every assistant message of such a row, so a trajectory is refused
    where one of them is no trained step of its own: context of weight 0, an example in the prompt,
    a step that an edited history no longer shows.

    Yields:
        messages (the last state and its action), tools, step_uids (of the trained steps, in order).

    Raises:
        DataError: an assistant message would be trained that has weight 0, or a trained step would
            be missing; names the trajectory.
    """
    states = States(steps)
    trajectories: dict[str, list[tuple[int, str]]] = {}
    names = steps["trajectory_uid"].to_pylist()
    for row, uid in _trained(steps):
        trajectories.setdefault(names[row], []).append((row, uid))
    for name, members in trajectories.items():
        shown = [(uid, states.prompt(row), to_openai(states.action(row))) for row, uid in members]
        _, prompt, action = shown[-1]
        messages = [*_messages(prompt), action]
        _check_whole(name, messages, prompt.tools, shown)
        yield {
            "messages": messages,
            "tools": prompt.tools,
            "step_uids": [uid for uid, _, _ in shown],
        }


def _trained(steps: pa.Table) -> Iterator[tuple[int, str]]:
    weights = steps["loss_weight"].to_pylist()
    for row, uid in enumerate(steps["step_uid"].to_pylist()):
        if (weights[row] or 0) > 0:
            yield row, uid


def _check_whole(
    name: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    steps: list[tuple[str, Prompt, dict[str, Any]]],
) -> None:
    """Compare one row with the states and actions of the steps that it is to train."""
    hint = "Export --rows step, which trains exactly the steps that were kept."
    shown = sum(message["role"] == "assistant" for message in messages)
    if shown > len(steps):
        raise DataError(
            f"Trajectory {name} shows {shown:,} assistant messages, but only {len(steps):,} of its "
            "steps are trained; the others have weight 0.",
            hint,
        )
    for uid, prompt, action in steps:
        said = [*_messages(prompt), action]
        if messages[: len(said)] != said or prompt.tools != tools:
            raise DataError(
                f"Trajectory {name} does not show what the model saw at step {uid}: its history, "
                "system text or tools were changed later.",
                hint,
            )


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return system + [to_openai(message) for message in prompt.messages]


def to_openai(message: dict[str, Any]) -> dict[str, Any]:
    """Turn a message of the store into the OpenAI chat form."""
    value: dict[str, Any] = {
        "role": message["role"],
        "content": message["parts"] if "parts" in message else message.get("content", ""),
    }
    if message.get("tool_calls"):
        value["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message["tool_calls"]
        ]
    for ours, theirs in (
        ("tool_call_id", "tool_call_id"),
        ("name", "name"),
        ("reasoning", "reasoning_content"),
    ):
        if message.get(ours) is not None:
            value[theirs] = message[ours]
    return value


def to_line(row: dict[str, Any]) -> str:
    """Write a row as one line of JSON."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
