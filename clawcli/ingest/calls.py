"""Calls: what a log format makes of its records, before anything is linked.

A format turns one record into calls (or a Fate that says why none came of it). A call has the
state that the model saw as a slice of a History, and one Choice per answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from clawcli.ingest.cache import MessageCache
from clawcli.ingest.conversations import Digested, Node
from clawcli.ingest.fates import Fate
from clawcli.messages import Message


@dataclass(slots=True)
class Context:
    """What a format may know beside its records."""

    messages: MessageCache = field(default_factory=MessageCache)
    path: str = ""
    """Path of the source, as it is stored and shown."""
    odd_records: int = 0
    """Records of the source that had more to them than a quick look takes in."""


@dataclass(slots=True)
class Session:
    """What a format made of all records of one file."""

    calls: list[Call]
    """Each with the ordinal of the record that it begins in."""
    fates: dict[int, Fate] = field(default_factory=dict)
    """Records that are in no state and no action, by ordinal; all others are used."""


class Choice(msgspec.Struct, eq=False):
    """One answer of a call: the action, and what the engine logged about its tokens."""

    action: Digested
    index: int = 0
    finish_reason: str = "unknown"
    finish_reason_raw: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    warnings: list[str] = []
    metadata: dict[str, Any] | None = None


class Call(msgspec.Struct, eq=False):
    """One LLM call with everything that its log says about it; null = not logged."""

    state: Node
    """The conversation that the model saw, without the leading system text."""
    choices: list[Choice]
    system: str = ""
    tools: str | None = None
    """JSON list of tool schemas; null = not logged."""
    native_id: str | None = None
    ordinal: int = 0
    """Number of the call in its record."""
    is_cut: bool = False
    """Cut from a finished conversation: follows says all there is to know about its place."""
    follows: Call | None = None
    """The call of the same source that this one continues: an explicit key."""
    trajectory_key: str | None = None
    """Logged key of the attempt, such as a session id."""
    key_is_global: bool = False
    """The key means the same attempt in every source; else it is scoped by its own."""
    parent_key: str | None = None
    """trajectory_key of the attempt that started this one as its subagent."""
    trajectory_kind: str | None = None
    """subagent, where the log says so; null = chaining tells."""
    step_kind: str = "policy"
    """policy, compaction, grader, side."""
    task_id: str | None = None
    trial: int | None = None
    agent: str | None = None
    reward: float | None = None
    trajectory_reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    is_last: bool | None = None
    final_observation: list[Message] | None = None
    model: str | None = None
    policy: str | None = None
    policy_version: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    sampling: dict[str, Any] | None = None
    tokenizer: str | None = None
    prompt_ids: list[int] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    latency_s: float | None = None
    cost_usd: float | None = None
    started_at: float | None = None
    """Seconds since the epoch."""
    ended_at: float | None = None
    state_kind: str = "full"
    loss_weight: float = 1.0
    warnings: list[str] = []
    metadata: dict[str, Any] | None = None
    # filled by the pipeline
    source_uid: str = ""
    source_path: str = ""
    record: int = 0
    offset: int = 0
    log_format: str = ""
    step_uid: str = ""
    """Uid of the step of its first choice."""

    @property
    def num_messages(self) -> int:
        """Number of messages in the state."""
        return self.state.depth
