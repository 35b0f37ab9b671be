"""Conversations as chaining and storing see them: messages, digested, one after the other.

Conversations that begin alike share their nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from clawcli import messages
from clawcli.messages import Message


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

    __slots__ = ("_answered", "depth", "exact", "ids", "item", "loose", "parent")

    def __init__(self, parent: Node | None, item: Digested | None) -> None:
        """Continue a conversation; without a parent it is empty."""
        self.parent, self.item = parent, item
        self._answered: Node | None = None
        """The newest assistant message before this one."""
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
        self._answered = parent.assistant
        self.ids = parent.ids
        """Chained hash of all tool-call ids so far: ids tell equal conversations apart."""
        if message.tool_calls:
            self.ids = messages.chain_ids(message, self.ids)

    @property
    def assistant(self) -> Node | None:
        """The newest assistant message up to and with this one; None = there is none."""
        # a node that held itself would not go when nobody else holds it
        is_answer = self.item is not None and self.item.message.role == "assistant"
        return self if is_answer else self._answered

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


def digested(message: Message, loss_weight: float | None = None) -> Digested:
    """Compute both digests of a message."""
    return Digested(message, *messages.digests(message), loss_weight)


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
