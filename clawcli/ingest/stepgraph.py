"""What linking knows of calls and steps: hashes, labels, and the place among the others."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from clawcli import messages
from clawcli.ingest.conversations import Node

_HASH_BYTES = 16


_LOOSE, _STATE = b"loose:", b"state:"


Order = tuple[int, int, bytes, str]


class Request(msgspec.Struct, eq=False):
    """What chaining needs to know about one call: hashes of its state, times, labels."""

    depth: int
    """Number of messages in the state."""
    state_hash: bytes
    last: int = 0
    """Number of messages up to and with the last assistant message of the state; 0 = none."""
    lookup: bytes = messages.EMPTY_CHAIN
    """Chained hash up to last: the next_hash of the step that this call continues."""
    lookup_loose: bytes = messages.EMPTY_CHAIN
    """The same without reasoning."""
    asked_loose: bytes = b""
    """Loose digest of the last assistant message."""
    ids_asked: bytes = b""
    """Hash of the tool-call ids of the last assistant message; empty = none."""
    ids_before: bytes = b""
    """Chained hash of all tool-call ids before it."""
    ids_state: bytes = b""
    """Chained hash of all tool-call ids of the state."""
    system: bytes = b""
    tools: bytes = b""
    log_format: str = ""
    started_us: int | None = None
    """Microseconds since the epoch, as the column holds them."""
    ended_us: int | None = None
    native_id: str = ""
    task_id: str | None = None
    trial: int | None = None
    agent: str | None = None
    trajectory_reward: float | None = None
    reward: float | None = None
    loss_weight: float = 1.0
    source_uid: str = ""
    is_cut: bool = False
    """follows says all there is to know about the place of this call."""
    follows: str | None = None
    """step_uid of the step that this call continues: an explicit key."""
    trajectory: str | None = None
    """trajectory_uid from a logged key."""
    parent_trajectory: str | None = None
    """trajectory_uid of the attempt that started this one."""
    kind: str | None = None
    """subagent, where the log says so."""
    tail: tuple[bytes, ...] = ()
    """Chained hashes after last + 1 ... depth - 1 messages: states that went on without an answer
    would be there."""
    node: Node | None = None
    """The state itself, while its messages are at hand."""
    items: bytes = b""
    """Without node: exact digests of the messages of the state, 16 bytes each."""
    choices: list[Step] = []
    order: Order = (0, 0, b"", "")
    """Place of the call among all others."""

    def digests(self) -> list[bytes]:
        """List the exact digests of the messages of the state."""
        if self.node is not None:
            return [item.exact for item in self.node.after()]
        items = self.items
        return [items[i : i + _HASH_BYTES] for i in range(0, len(items), _HASH_BYTES)]

    def chain(self) -> list[bytes]:
        """List the chained hashes after 0, 1, ... depth messages."""
        if self.node is not None:
            found, node = [], self.node
            while node is not None:
                found.append(node.exact)
                node = node.parent
            return found[::-1]
        return list(accumulate(self.digests(), messages.extend, initial=messages.EMPTY_CHAIN))

    def waits_for(self) -> list[bytes]:
        """List keys of the steps that this call may continue: see Step.awaited_by."""
        found = [_STATE + hash_ for hash_ in self.tail]
        if self.last:
            found.append(self.lookup)
            found.append(_LOOSE + self.lookup_loose)
        return found

    def let_go(self) -> None:
        """Keep digests in place of messages: for a call that is committed, or that travels."""
        if self.node is not None:
            self.items, self.node = b"".join(self.digests()), None


class TokenTrace(msgspec.Struct, eq=False):
    """Hashes of the prompt and response ids that an engine logged, to find what a child shares."""

    prompt: int
    """Number of prompt ids."""
    total: int
    """Number of prompt and response ids."""
    whole: bytes
    """Hash of all of them."""
    blocks: bytes
    """Chained hashes of every 256 ids, 8 bytes each."""


class Placement(msgspec.Struct, eq=False):
    """What linking decides about a step: the columns of its row that later calls can change."""

    parent_step_uid: str | None
    prefix_messages: int
    prefix_broken: str | None
    trajectory_uid: str
    parent_trajectory_uid: str | None
    trajectory_kind: str
    step_index: int
    group_uid: str
    task_id: str | None
    trial: int | None
    agent: str | None
    reward: float | None
    trajectory_reward: float | None
    reward_source: str | None
    loss_weight: float
    log_date: str

    def values(self) -> tuple[object, ...]:
        """List the values in the order of their columns."""
        return msgspec.structs.astuple(self)


class Step(msgspec.Struct, eq=False):
    """One choice of one call, and its place among the others once it is linked."""

    uid: str
    request: Request
    choice_index: int
    next_hash: bytes
    next_loose: bytes
    action: bytes = b""
    """Exact digest of the action."""
    action_loose: bytes = b""
    ids_action: bytes = b""
    said: tuple[int, bytes] | None = None
    """Length and hash of the action's text where it has no tool calls and is not empty."""
    tokens: TokenTrace | None = None
    parent: Step | None = None
    prefix_messages: int = 0
    prefix_broken: str | None = None
    ambiguous: bool = False
    children: list[Step] = []
    latest: Order = (0, 0, b"", "")
    """Highest order in the subtree below."""
    placed: Placement | None = None
    """Where it stands now."""
    stored: Placement | None = None
    """Where it stands in the table; null = it is new."""
    stored_ambiguous: bool = False
    """Its row in the table has the warning."""

    def unlink(self) -> None:
        """Forget all about the place of the step among others."""
        self.parent, self.prefix_messages, self.prefix_broken = None, 0, None
        self.children, self.ambiguous = [], False
        self.placed = self.stored = None

    def settle(self) -> None:
        """Take in that the table says of the place what is said here."""
        self.stored, self.stored_ambiguous = self.placed, self.ambiguous

    @property
    def has_moved(self) -> bool:
        """The table says something else of its place."""
        if self.stored is None or self.placed is None:
            return False
        is_same = self.stored.values() == self.placed.values()
        return not is_same or self.stored_ambiguous != self.ambiguous

    def awaited_by(self) -> tuple[bytes, bytes, bytes]:
        """List the keys under which calls wait that may continue this step."""
        return self.next_hash, _LOOSE + self.next_loose, _STATE + self.request.state_hash


def root(step: Step) -> Step:
    """Walk up to the step that a tree begins with."""
    while step.parent is not None:
        step = step.parent
    return step
