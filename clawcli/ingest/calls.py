"""Calls: what a log format makes of its records, before anything is linked.

A format turns one record into calls (or a Fate that says why none came of it). A call has the
state that the model saw as a slice of a History, and one Choice per answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from clawcli import messages
from clawcli.messages import Message, ToolCall

_YEAR_5138_S = 1e11


class Fate(Exception):  # noqa: N818 - an outcome of a record, not an error of the program
    """A record that gives no step: rejected, failed_call, ignored or duplicate, and why."""

    def __init__(self, fate: str, reason: str, detail: str, **known: Any) -> None:
        """Keep the fate, a stable reason code, the detail in words, and task_id, trial, reward."""
        super().__init__(detail)
        self.fate, self.reason, self.detail, self.known = fate, reason, detail, known


@dataclass(slots=True)
class Digested:
    """A message with its two digests, made once per distinct raw message."""

    message: Message
    exact: bytes
    loose: bytes
    loss_weight: float | None = None


class Node:
    """A conversation after one more message (the leading system text is left out).

    Conversations that begin alike share their nodes, so a log that repeats its history in every
    request costs memory for what is new alone.
    """

    __slots__ = ("assistant", "depth", "exact", "ids", "item", "loose", "parent")

    def __init__(self, parent: Node | None, item: Digested | None) -> None:
        """Continue a conversation; without a parent it is empty."""
        self.parent, self.item = parent, item
        self.assistant: Node | None = None
        """The newest assistant message up to and with this one; None = there is none."""
        if parent is None or item is None:
            self.depth, self.ids = 0, b""
            self.exact = self.loose = messages.EMPTY_CHAIN
            return
        self.depth = parent.depth + 1
        self.exact = messages.extend(parent.exact, item.exact)
        self.loose = messages.extend(parent.loose, item.loose)
        self.assistant = self if item.message.role == "assistant" else parent.assistant
        self.ids = parent.ids
        """Chained hash of all tool-call ids so far: ids tell equal conversations apart."""
        for call in item.message.tool_calls or ():
            if call.id:
                self.ids = messages.extend(self.ids, call.id.encode())

    def then(self, item: Digested) -> Node:
        """Continue with one message."""
        return Node(self, item)

    def after(self, depth: int = 0) -> list[Digested]:
        """List the messages that follow the first depth ones."""
        found: list[Digested] = []
        node: Node | None = self
        while node is not None and node.item is not None and node.depth > depth:
            found.append(node.item)
            node = node.parent
        return found[::-1]


EMPTY = Node(None, None)
"""The conversation before its first message."""


class MessageCache:
    """Decodes each distinct raw message once; logs repeat the whole history in every request."""

    def __init__(self) -> None:
        self._by_raw: dict[bytes, Digested] = {}

    def get(self, raw: msgspec.Raw | bytes) -> Digested:
        """Decode one message in the OpenAI chat form.

        Raises:
            Fate: it is not an object with a role.
        """
        key = bytes(raw)
        if (known := self._by_raw.get(key)) is None:
            known = self._by_raw[key] = _digest(key)
        return known


@dataclass(slots=True)
class Context:
    """What a format may know beside its records."""

    messages: MessageCache = field(default_factory=MessageCache)
    path: str = ""
    """Path of the source, as it is stored and shown."""


@dataclass(slots=True)
class Session:
    """What a format made of all records of one file."""

    calls: list[Call]
    """Each with the ordinal of the record that it begins in."""
    fates: dict[int, Fate] = field(default_factory=dict)
    """Records that are in no state and no action, by ordinal; all others are used."""


@dataclass(slots=True)
class Choice:
    """One answer of a call: the action, and what the engine logged about its tokens."""

    action: Digested
    index: int = 0
    finish_reason: str = "unknown"
    finish_reason_raw: str | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    warnings: list[str] = field(default_factory=list)
    metadata: dict[str, Any] | None = None


@dataclass(slots=True)
class Call:
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
    warnings: list[str] = field(default_factory=list)
    metadata: dict[str, Any] | None = None
    # filled by the pipeline
    source_uid: str = ""
    source_path: str = ""
    record: int = 0
    offset: int = 0
    first_bytes: str = ""
    log_format: str = ""

    @property
    def num_messages(self) -> int:
        """Number of messages in the state."""
        return self.state.depth

    @property
    def history(self) -> History:
        """TEMPORARY"""
        h = History()
        for i in self.state.after(0):
            h.items.append(i)
            h.exact.append(messages.extend(h.exact[-1], i.exact))
            h.loose.append(messages.extend(h.loose[-1], i.loose))
        return h


@dataclass(slots=True)
class History:
    """TEMPORARY"""

    items: list[Digested] = field(default_factory=list)
    exact: list[bytes] = field(default_factory=lambda: [messages.EMPTY_CHAIN])
    loose: list[bytes] = field(default_factory=lambda: [messages.EMPTY_CHAIN])


def digested(message: Message, loss_weight: float | None = None) -> Digested:
    """Compute both digests of a message."""
    return Digested(message, messages.digest(message), messages.loose_digest(message), loss_weight)


def _digest(raw: bytes) -> Digested:
    value = msgspec.json.decode(raw)
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise Fate("rejected", "bad_message", "a message is not an object with a role")
    return digested(to_message(value), number(value.get("weight")))


def to_message(value: dict[str, Any]) -> Message:
    """Read a message in the OpenAI chat form; ids, order and argument strings as logged."""
    content, parts = messages.content_and_parts(value.get("content"))
    calls = [_tool_call(call) for call in tool_call_list(value)]
    if isinstance(legacy := value.get("function_call"), dict):
        calls.append(_tool_call({"function": legacy}))
    if content == "" and isinstance(refusal := value.get("refusal"), str):
        content = refusal
    return Message(
        role=value["role"],
        content=content,
        parts=parts,
        tool_calls=tuple(calls) or None,
        tool_call_id=text(value.get("tool_call_id")),
        name=text(value.get("name")),
        reasoning=text(value.get("reasoning_content")) or text(value.get("reasoning")) or None,
    )


def tool_call_list(message: dict[str, Any]) -> list[dict[str, Any]]:
    """List a message's tool calls.

    Raises:
        Fate: there is something that is no list of objects.
    """
    calls = message.get("tool_calls") or []
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Fate("rejected", "bad_message", "tool_calls is no list of objects")
    return calls


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input"))
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
    return ToolCall(
        id=text(call.get("id")) or None,
        name=text(function.get("name")),
        arguments=arguments,
        arguments_valid=_is_object(arguments),
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def split_system(items: list[Digested]) -> tuple[str, list[Digested]]:
    """Take the one leading system or developer text off a list of messages."""
    if items and items[0].message.role in ("system", "developer"):
        system = messages.text_of(items[0].message)
        if system is not None:
            return system, items[1:]
    return "", items


def conversation(items: Iterable[Digested], start: Node = EMPTY) -> Node:
    """Continue a conversation with some messages."""
    for item in items:
        start = start.then(item)
    return start


def text(value: Any) -> str | None:
    """Return a string as it is, a number as its text, null for everything else."""
    if isinstance(value, bool):
        return None
    return (
        value if isinstance(value, str) else str(value) if isinstance(value, int | float) else None
    )


def number(value: Any) -> float | None:
    """Return a finite number; bools count as 0 and 1, numeric strings as numbers, else null."""
    try:
        result = float(value) if isinstance(value, bool | int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def integer(value: Any) -> int | None:
    """Return a whole number that fits 64 bits, else null."""
    result = value if isinstance(value, int) and not isinstance(value, bool) else None
    if result is None and (parsed := number(value)) is not None and parsed.is_integer():
        result = int(parsed)
    return result if result is not None and -(2**63) <= result < 2**63 else None


def version_number(value: Any) -> int | None:
    """Read a policy version: a whole number, also at the end of a name such as step-120."""
    if isinstance(value, str) and (found := re.search(r"(\d+)$", value.strip())):
        return integer(found[1])
    return integer(value)


def seconds(value: Any) -> float | None:
    """Read a time: seconds (or ms, us, ns) since the epoch, or ISO 8601; else null."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return seconds(number(value))
        try:
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        except (OverflowError, ValueError):
            return None
    result = number(value)
    if result is None:
        return None
    # what would lie past the year 5138 in one unit is the next smaller one
    for _ in range(3):
        if result > _YEAR_5138_S:
            result /= 1000
    return result if 0 <= result <= _YEAR_5138_S else None
