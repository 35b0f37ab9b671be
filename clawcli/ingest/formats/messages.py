"""Transcripts: {messages, tools?, reward?, task_id?, ...}, as JSON lines, an array or a document.

Each assistant message is a step. The requests themselves were not logged, so the state is
reconstructed, or partial where tools were called whose schemas are missing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context, text, version_number
from clawcli.ingest.formats import transcript

NAME = "messages"
_OWN_KEYS = frozenset({"tools", "agent", "model", "policy_version"})


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    items = record.get("messages")
    if not isinstance(items, list):
        return "no list of messages"
    if not all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in items):
        return "messages are no objects with a role"
    return None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one transcript into its calls.

    Raises:
        Fate: the transcript is empty or damaged.
    """
    plain, messages = transcript.open_attempt(raw, "messages")
    tools = plain.get("tools")
    steps = transcript.cut(
        messages,
        context,
        plain=plain,
        own_keys=_OWN_KEYS,
        tools=msgspec.json.encode(tools).decode() if isinstance(tools, list) else None,
        agent=text(plain.get("agent")),
        model=text(plain.get("model")),
        policy=text(plain.get("model")),
        policy_version=version_number(plain.get("policy_version")),
    )
    # a reward beside a finished transcript says that the environment ended it and judged it
    steps[-1].terminated = True if steps[-1].trajectory_reward is not None else None
    uses_tools = any(step.choices[0].action.message.tool_calls for step in steps)
    for step in steps:
        step.state_kind = "partial" if uses_tools and step.tools is None else "reconstructed"
    return steps
