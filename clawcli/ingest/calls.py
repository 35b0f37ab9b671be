"""Calls: what a log format makes of its records, before anything is linked.

A format turns one record into calls (or a Fate that says why none came of it). A call has the
state that the model saw as a slice of a History, and one Choice per answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import xxhash

from clawcli import messages
from clawcli.messages import Message, ToolCall

_YEAR_5138_S = 1e11


class Fate(Exception):  # noqa: N818 - an outcome of a record, not an error of the program
    """A record that gives no step: rejected, failed_call, ignored or duplicate, and why."""

    def __init__(self, fate: str, reason: str, detail: str, **known: Any) -> None:
        """Keep the fate, a stable reason code, the detail in words, and task_id, trial, reward."""
        super().__init__(detail)
        self.fate, self.reason, self.detail, self.known = fate, reason, detail, known


class Digested(msgspec.Struct, eq=False):
    """A message with its two digests, made once per distinct raw message."""

    message: Message
    exact: bytes
    loose: bytes
    loss_weight: float | None = None
    is_plain: bool = False
    """It was logged with the keys of PlainMessage alone."""
    extra: dict[str, Any] | None = None
    """What was logged of the message and has no field in it; null = nothing."""


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
        exact = self.exact = messages.extend(parent.exact, item.exact)
        if parent.loose == parent.exact and item.loose == item.exact:
            self.loose = exact  # where nobody reasoned there is one chain
        else:
            self.loose = messages.extend(parent.loose, item.loose)
        message = item.message
        self.assistant = self if message.role == "assistant" else parent.assistant
        self.ids = parent.ids
        """Chained hash of all tool-call ids so far: ids tell equal conversations apart."""
        if message.tool_calls:
            self.ids = messages.chain_ids(message, self.ids)

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


Reader = Callable[[bytes], Sequence[Digested]]
"""Decodes the JSON of one logged message into the messages that it stands for."""


_PLACE_BYTES = 600
"""About what it costs to remember a message besides its text."""


class _Place:
    """A conversation, and how it was logged to go on: hash of the next raw message -> place."""

    __slots__ = ("node", "then")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.then: dict[bytes, _Place] | None = None  # most are the end of a log, or lead to one


class MessageCache:
    """Decodes each distinct raw message once, in whatever order logs repeat it.

    Equal bytes are equal messages, so a raw message is looked up by its hash (xxh3-128), and a
    request that repeats its history costs one hash and one look-up a message. What was decoded
    longest ago is let go of beyond a limit; it would be decoded again.
    """

    _GENERATION_BYTES = 24 << 20
    _PLACES_BYTES = 64 << 20
    """Raw messages that conversations are remembered of, before all are forgotten at once."""

    def __init__(self) -> None:
        self._decoded: dict[tuple[Reader, bytes], Sequence[Digested]] = {}
        self._before: dict[tuple[Reader, bytes], Sequence[Digested]] = {}
        """The generation before: what is asked for moves on, the rest goes with it."""
        self._generation_bytes = 0
        self._new_bytes = 0
        self._roots: dict[Reader, _Place] = {}
        self._systems: dict[tuple[Reader, bytes], str | None] = {}
        self._places_bytes = 0

    def get(self, raw: msgspec.Raw | bytes) -> Digested:
        """Decode one message in the OpenAI chat form.

        Raises:
            Fate: it is not an object with a role.
        """
        return self._decode(raw, xxhash.xxh3_128_digest(raw), read_chat_message)[0]

    def plain(self, raw: msgspec.Raw | bytes) -> Digested | None:
        """Decode one message that has the common keys alone; null = it has more to it."""
        key = (read_chat_message, xxhash.xxh3_128_digest(raw))
        if (found := self._decoded.get(key)) is not None:
            return found[0] if found[0].is_plain else None
        try:
            item = _plain_message(raw).digested()
        except msgspec.DecodeError:
            return None
        self._keep(key, (item,), len(memoryview(raw)))
        return item

    def conversation(
        self, raws: Sequence[msgspec.Raw | bytes], read: Reader | None = None
    ) -> tuple[str, Node]:
        """Turn the raw messages of one request into its system text and its state.

        Args:
            raws: JSON of each message, in order.
            read: gives the messages that one raw message stands for; by default those of the
                OpenAI chat form.

        Raises:
            Fate: one of them is no message.
        """
        read = read or read_chat_message
        place = self._roots.get(read)
        if place is None or self._places_bytes > self._PLACES_BYTES:
            place, self._places_bytes = _Place(EMPTY), 0
            self._roots = {read: place}
        keys = list(map(xxhash.xxh3_128_digest, raws))
        if not keys:
            return "", place.node
        system = self._system(raws[0], keys[0], read)
        start = 0 if system is None else 1
        for number in range(start, len(keys)):
            then = place.then
            found = None if then is None else then.get(keys[number])
            if found is None:
                found = self._go_on(place, raws[number], keys[number], read)
            place = found
        return system or "", place.node

    def take_count(self) -> int:
        """Return the bytes of raw messages that were decoded since the last call."""
        count, self._new_bytes = self._new_bytes, 0
        return count

    def _go_on(self, place: _Place, raw: msgspec.Raw | bytes, key: bytes, read: Reader) -> _Place:
        node = place.node
        for item in self._decode(raw, key, read):
            node = Node(node, item)
        found = _Place(node)
        if place.then is None:
            place.then = {}
        place.then[key] = found
        self._places_bytes += len(memoryview(raw)) + _PLACE_BYTES
        return found

    def _system(self, raw: msgspec.Raw | bytes, key: bytes, read: Reader) -> str | None:
        """Return the text of a leading system message; null = it is another one."""
        if (read, key) not in self._systems:
            if len(self._systems) > 1024:
                self._systems.clear()
            system, items = split_system(list(self._decode(raw, key, read)))
            self._systems[read, key] = None if items else system
        return self._systems[read, key]

    def _decode(self, raw: msgspec.Raw | bytes, digest: bytes, read: Reader) -> Sequence[Digested]:
        key = (read, digest)
        found = self._decoded.get(key)
        if found is None:
            found = self._before.pop(key, None)
            size = len(memoryview(raw))
            if found is None:
                found = read(bytes(raw))
                self._new_bytes += size
            self._keep(key, found, size)
        return found

    def _keep(self, key: tuple[Reader, bytes], found: Sequence[Digested], size: int) -> None:
        if self._generation_bytes > self._GENERATION_BYTES:
            self._before, self._decoded, self._generation_bytes = self._decoded, {}, 0
        self._decoded[key] = found
        self._generation_bytes += size


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


def digested(message: Message, loss_weight: float | None = None) -> Digested:
    """Compute both digests of a message."""
    return Digested(message, *messages.digests(message), loss_weight)


class _PlainFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _PlainToolCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    function: _PlainFunction
    id: str | None = None
    type: Literal["function"] = "function"


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chat message that has these keys and no others: most have."""

    role: str
    content: str | None = None
    tool_calls: list[_PlainToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def digested(self) -> Digested:
        """Make what to_message makes of the same keys, and digest it."""
        calls = self.tool_calls
        message = Message(
            self.role,
            self.content or "",
            None,
            tuple([_plain_call(call) for call in calls]) if calls else None,
            self.tool_call_id,
            self.name,
        )
        return Digested(message, *messages.digests(message), is_plain=True)


def _plain_call(call: _PlainToolCall) -> ToolCall:
    arguments = call.function.arguments
    return ToolCall(call.id or None, call.function.name, arguments, _is_object(arguments))


_plain_message = msgspec.json.Decoder(PlainMessage).decode


def read_chat_message(raw: bytes) -> Sequence[Digested]:
    """Decode one message in the OpenAI chat form.

    Raises:
        Fate: it is not an object with a role.
    """
    try:
        return (_plain_message(raw).digested(),)
    except msgspec.ValidationError:
        pass  # it has more to it
    value = msgspec.json.decode(raw)
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise Fate("rejected", "bad_message", "a message is not an object with a role")
    message = to_message(value)
    found = digested(message, number(value.get("weight")))
    found.extra = leftovers(value, message)
    return (found,)


def to_message(value: dict[str, Any]) -> Message:
    """Read a message in the OpenAI chat form; ids, order and argument strings as logged."""
    get = value.get
    content, parts = get("content"), None
    if not isinstance(content, str):
        content, parts = messages.content_and_parts(content)
    calls = [_tool_call(call) for call in tool_call_list(value)] if get("tool_calls") else []
    if isinstance(legacy := get("function_call"), dict):
        calls.append(_tool_call({"function": legacy}))
    if content == "" and isinstance(refusal := get("refusal"), str):
        content = refusal
    return Message(
        get("role") or "",
        content,
        parts,
        tuple(calls) if calls else None,
        text(get("tool_call_id")),
        text(get("name")),
        reasoning_of(value)[0],
    )


def reasoning_of(message: dict[str, Any]) -> tuple[str | None, str | None]:
    """Find the reasoning of a chat message under the names that servers give it.

    Returns:
        (text, key of the message that held it); nulls where there is none.

    Example:
        >>> reasoning_of({"reasoning_details": [{"type": "reasoning.text", "text": "so"}]})
        ('so', 'reasoning_details')
    """
    get = message.get
    for key in ("reasoning_content", "reasoning"):
        if found := get(key) and text(get(key)):
            return found, key
    if found := _thoughts(get("reasoning_details"), "text", "summary"):
        return found, "reasoning_details"
    if found := _thoughts(get("thinking_blocks"), "thinking"):
        return found, "thinking_blocks"
    if isinstance(fields := get("provider_specific_fields"), dict):
        found, _ = reasoning_of(fields)
        return found, "provider_specific_fields" if found else None
    return None, None


def _thoughts(blocks: Any, *keys: str) -> str | None:
    """Join the texts of reasoning blocks; encrypted ones have none."""
    if not isinstance(blocks, list):
        return None
    found = [text(block.get(key)) for block in blocks if isinstance(block, dict) for key in keys]
    return "\n\n".join(thought for thought in found if thought) or None


_IN_MESSAGE = frozenset(
    {"role", "content", "tool_calls", "function_call", "tool_call_id", "name", "weight"}
)
_IN_CALL = frozenset({"id", "index", "function", "custom"})
_IN_FUNCTION = frozenset({"name", "arguments", "input"})


def leftovers(value: dict[str, Any], message: Message) -> dict[str, Any] | None:
    """List what a logged chat message holds beside the fields of its Message.

    Example:
        >>> value = {"role": "user", "content": "", "refusal": "no", "audio": {"id": "a"}}
        >>> leftovers(value, to_message(value))
        {'audio': {'id': 'a'}}
    """
    found = {}
    if not value.keys() <= _IN_MESSAGE:
        held = (None, "", [], {}, message.content, message.reasoning)
        found = {k: v for k, v in value.items() if k not in _IN_MESSAGE and v not in held}
    if calls := value.get("tool_calls"):
        rests = [_call_leftovers(call) for call in (calls if isinstance(calls, list) else [calls])]
        if any(rests):
            found["tool_calls"] = rests
    return found or None


def _call_leftovers(call: dict[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in call.items() if k not in _IN_CALL and v is not None}
    if rest.get("type") == "function":
        del rest["type"]
    function = call.get("function") or call.get("custom")
    if isinstance(function, dict) and not function.keys() <= _IN_FUNCTION:
        rest |= {k: v for k, v in function.items() if k not in _IN_FUNCTION and v is not None}
    return rest


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
        _object(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


_object = msgspec.json.Decoder(dict[str, Any]).decode


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
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def number(value: Any) -> float | None:
    """Return a finite number; bools count as 0 and 1, numeric strings as numbers, else null."""
    if value is None:
        return None
    try:
        result = float(value) if isinstance(value, bool | int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def integer(value: Any) -> int | None:
    """Return a whole number that fits 64 bits, else null."""
    if value is None:
        return None
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
    if value is None or (type(value) is float and 0 <= value <= _YEAR_5138_S):
        return value
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
