"""Decode each distinct message of a log once, however often the log repeats it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import xxhash

from clawcli.ingest.chat import plain_message, read_chat_message
from clawcli.ingest.conversations import EMPTY, Digested, Node, split_system
from clawcli.ingest.repeats import Repeats, Shortened

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


Beginning = tuple[str | None, _Place]
"""Leading system text of a request (null = none), and its messages so far."""


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
        self._repeats: Repeats[Beginning] = Repeats()

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
            item = plain_message(raw).digested()
        except msgspec.DecodeError:
            return None
        self._keep(key, (item,), len(memoryview(raw)))
        return item

    def shorten(self, raw: bytes) -> Shortened[Beginning] | None:
        """Cut out of a record what its request repeats of earlier ones; null = nothing to cut."""
        return self._repeats.shorten(raw)

    def conversation(
        self,
        raws: Sequence[msgspec.Raw | bytes],
        read: Reader | None = None,
        record: Shortened[Beginning] | None = None,
    ) -> tuple[str, Node]:
        """Turn the raw messages of one request into its system text and its state.

        Args:
            raws: JSON of each message, in order.
            record: the record they are of, if it was shortened; raws are those behind its prefix.
            read: gives the messages that one raw message stands for; by default those of the
                OpenAI chat form.

        Raises:
            Fate: one of them is no message.
        """
        read = read or read_chat_message
        if self._places_bytes > self._PLACES_BYTES:
            self._roots.clear()
            self._repeats.clear()
            self._places_bytes = 0
        system: str | None = None
        if record is not None and record.prefix is not None:
            system, place = record.prefix.value
            is_begun = True
        else:
            place = self._roots.get(read)
            if place is None:
                place = self._roots[read] = _Place(EMPTY)
            is_begun = False
        keys = list(map(xxhash.xxh3_128_digest, raws))
        passed: list[Beginning] = []
        for raw, key in zip(raws, keys, strict=True):
            if not is_begun:
                is_begun = True
                system = self._system(raw, key, read)
                if system is not None:
                    passed.append((system, place))
                    continue
            then = place.then
            found = None if then is None else then.get(key)
            if found is None:
                found = self._go_on(place, raw, key, read)
            place = found
            passed.append((system, place))
        if record is not None:
            self._repeats.learn(record, raws, passed)
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
