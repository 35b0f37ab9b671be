"""Know sources again: unchanged, grown, moved, rewritten.

The commit infos of the step table name each source with hashes of the bytes that were consumed, in
pieces, so that a later run can tell whether a file still begins with them. A source is identified
by its file name and its first record, or, where a file is one document that is written anew as it
grows, by what such a document keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from clawcli.errors import DataError
from clawcli.ingest.read.find import Found
from clawcli.ingest.read.lines import fingerprint
from clawcli.ingest.read.records import Head
from clawcli.ingest.read.stream import open_bytes
from clawcli.messages import hash128
from clawcli.store import tombstones

_CHUNK_BYTES = 1 << 20
_BEFORE_PIECES = 8
_ID_KEYS = ("session_id", "sessionId", "trajectory_id", "instance_id", "task_id", "run_id", "id")
_LIST_KEYS = ("messages", "history", "trajectory", "steps", "traj")


@dataclass(slots=True)
class Source:
    """A source as far as it was consumed."""

    source_uid: str
    path: str
    head: str
    """Hash of what identifies it, without its name."""
    tail: str = ""
    """Hash of what follows that was cut off; empty = nothing did."""
    pieces: dict[int, tuple[int, str]] = field(default_factory=dict)
    """First byte of each piece -> byte behind it, and xxh3-128 hex of the piece; pieces may
    overlap, and together they are all that was consumed."""
    before: list[tuple[int, int, str]] = field(default_factory=list)
    """The last pieces that longer ones took the place of: first byte, byte behind, hash."""

    @property
    def consumed(self) -> int:
        """Bytes that were consumed."""
        return max((end for end, _ in self.pieces.values()), default=0)


def entry(
    identity: Identity,
    found: Found,
    piece: tuple[int, int, str] | None,
    *,
    label: str,
    is_whole: bool,
    is_cut: bool,
) -> dict[str, Any]:
    """Say in a commit info what was consumed of a source.

    Args:
        identity: which source.
        found: where it was read.
        piece: first byte, byte behind, fingerprint; null = nothing more than before.
        label: its path as it is stored.
        is_whole: the piece takes the place of all that earlier commits say.
        is_cut: a record follows that is not complete.
    """
    tail = ""
    if is_cut and found.path != "-":
        with open_bytes(found, piece[1] if piece else identity.consumed) as stream:
            tail = hash128(stream.read(_CHUNK_BYTES))
    return {
        "source_uid": identity.source_uid,
        "path": label,
        "tail": tail,
        "head": identity.head,
        "whole": is_whole,
        "pieces": [piece] if piece else [],
    }


class KnownSources:
    """Sources of earlier commits, and of this run."""

    def __init__(self, infos: Iterable[Mapping[str, Any]] = ()) -> None:
        """Read the commit infos of a step table, oldest first."""
        self.by_uid: dict[str, Source] = {}
        self._by_head: dict[str, list[Source]] = defaultdict(list)
        self._by_path: dict[str, Source] = {}
        for info in infos:
            for entry in info.get("sources", ()):
                self.add(entry)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take in what one commit info says of one source."""
        known = self.by_uid.get(entry["source_uid"])
        if known is None:
            known = Source(entry["source_uid"], entry["path"], entry["head"])
            self.by_uid[known.source_uid] = known
            self._by_head[known.head].append(known)
        known.path, known.tail = entry["path"], entry["tail"]
        self._by_path[known.path] = known
        if entry["whole"]:
            known.before.extend((start, *piece) for start, piece in known.pieces.items())
            known.pieces.clear()
        for start, end, hash_ in entry["pieces"]:
            # the end moves while a source is read; of two runs at once the further one counts
            piece = end, hash_
            if start in known.pieces and known.pieces[start] != piece:
                known.before.append((start, *min(known.pieces[start], piece)))
            known.pieces[start] = max(known.pieces.get(start, piece), piece)
        del known.before[:-_BEFORE_PIECES]

    def at(self, path: str) -> Source | None:
        """Return the source that was read at a path last, also one that was forgotten."""
        return self._by_path.get(path) or self._by_path.get(tombstones.mask(path))

    def like(self, head: str) -> list[Source]:
        """List the sources that begin alike."""
        return self._by_head.get(head, [])


@dataclass(slots=True)
class Identity:
    """What a source is to the table."""

    source_uid: str
    head: str
    state: str
    """new, unchanged, grown, moved (grown or not, under a new name), rewritten."""
    known: Source | None = None
    problem: str | None = None
    """Why an unchanged source cannot be read through; null = it can, or it is to be read."""

    @property
    def consumed(self) -> int:
        """Bytes that were consumed before and still stand."""
        return self.known.consumed if self.known and self.state in ("grown", "moved") else 0


def identify(
    found: Found,
    head: Head,
    known: KnownSources,
    name: str | None = None,
    *,
    label: str | None = None,
) -> Identity:
    """Compare a source with what was ingested before.

    Args:
        found: the source.
        head: how it begins.
        known: what was ingested before.
        name: in place of its file name (--source-name).
        label: its path as it is stored; null = as it is.
    """
    begins = hash128(_lasting(head))
    uid = hash128(begins, name or found.name)
    same = known.by_uid.get(uid)
    # a name that was given says that this is no other log
    alike = [] if name else [source for source in known.like(begins) if source is not same]
    # the same name first, then whatever begins alike: a file that was moved
    for source in [*([same] if same else []), *alike]:
        more = rest(found, source, container=head.container)
        if more is None:
            continue
        grown, known_as = ("grown", uid) if source is same else ("moved", source.source_uid)
        if more.is_more:
            return Identity(known_as, begins, grown, source)
        return Identity(known_as, begins, "unchanged", source, more.problem)
    for source in alike if same is None else [same, *alike]:
        if was(found, source, container=head.container):
            return Identity(source.source_uid, begins, "unchanged", source)
    if same is None and name is None and is_document(head) and found.path != "-":
        # written anew as it grew, and not even its beginning stayed
        same = known.at(label or found.label)
        uid = same.source_uid if same else uid
    return Identity(uid, begins, "rewritten" if same else "new", same)


def is_document(head: Head) -> bool:
    """Tell whether a source may be written anew when it grows, as one JSON document is."""
    return head.container != "lines" or len(head.samples) <= 1


def _lasting(head: Head) -> bytes:
    """What a source keeps while it grows: its first record, or parts of its one document."""
    if head.container != "document" or not head.samples:
        return head.first
    try:
        document = msgspec.json.decode(head.samples[0])
    except (msgspec.DecodeError, RecursionError):
        return head.first
    if not isinstance(document, dict):
        return head.first
    lists = (document.get(key) for key in _LIST_KEYS)
    begins = next((value[0] for value in lists if isinstance(value, list) and value), None)
    ids = {key: document[key] for key in _ID_KEYS if isinstance(document.get(key), str | int)}
    if begins is None and not ids:
        return head.first
    return msgspec.json.encode([ids, begins])


class Rest(NamedTuple):
    """What follows that of a source which was consumed."""

    is_more: bool
    """There is more than was known."""
    problem: str | None
    """Why it cannot be read through, in one sentence; null = it can, as far as was looked."""


def rest(found: Found, source: Source, *, container: str = "lines") -> Rest | None:
    """Look behind what a known source had; None where this one does not begin so."""
    for start, (end, expected) in source.pieces.items():
        if fingerprint(found, end, start).hexdigest() != expected:
            return None
    more, problem = _behind(found, source.consumed)
    # what was cut off then may still be
    is_known = bool(source.tail) and hash128(more) == source.tail
    return Rest(not is_known and bool(more.strip(_FILLING[container == "lines"])), problem)


def was(found: Found, source: Source, *, container: str = "lines") -> bool:
    """Tell whether a source is what a known one was once, as a copy that did not grow with it."""
    filling = _FILLING[container == "lines"]
    standing = [(start, *piece) for start, piece in source.pieces.items()]
    reached = {0}
    for start, end, expected in sorted({*standing, *source.before}):
        if start not in reached or end in reached:
            continue
        if fingerprint(found, end, start).hexdigest() == expected:
            if not _behind(found, end)[0].strip(filling):
                return True
            reached.add(end)
    return False


def _behind(found: Found, end: int) -> tuple[bytes, str | None]:
    with open_bytes(found, end, keep=True) as stream:
        return stream.read(_CHUNK_BYTES), stream.problem


_FILLING = {True: b"\0 \t\r\n", False: b"\0 \t\r\n],"}
"""What may follow the last record of lines, and of anything else."""


def changed(found: Found, known: Source) -> DataError:
    """Say that a source is not what it was."""
    return DataError(
        f"{found.label} was ingested before (as {known.path}, {known.consumed:,} bytes) and has "
        "changed since.",
        "Ingest it into a new data directory, or name it as another log with --source-name.",
    )
