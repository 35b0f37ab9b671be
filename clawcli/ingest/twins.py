"""Sources of one run that are, or begin with, another source of the same run.

What earlier commits consumed is known before a source is read (sources). Two paths of one run that
lead to the same bytes are only seen here, when both were read: the second counts once.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from clawcli.ingest import sources
from clawcli.ingest.parts import Taken
from clawcli.ingest.read.find import Found
from clawcli.ingest.sources import Source


class Verdict(Enum):
    """What is to be done with what was read of a source."""

    NEW = "new"
    UNCHANGED = "unchanged"
    """All of it is there already."""
    LEFT_OUT = "left out"
    """Decided before, or to be read again from where the other source ends."""


class Twins:
    """Knows the sources of this run, by how they begin."""

    def __init__(self) -> None:
        """Begin without sources."""
        self._by_head: dict[str, list[Source]] = {}
        self._left_out: set[str] = set()
        self._deferred: list[Found] = []

    def remember(self, entry: dict[str, Any]) -> None:
        """Know a source of this run again, before it is committed."""
        alike = self._by_head.setdefault(entry["head"], [])
        source = next((s for s in alike if s.source_uid == entry["source_uid"]), None)
        if source is None:
            source = Source(entry["source_uid"], entry["path"], entry["head"])
            alike.append(source)
        for start, end, hash_ in entry["pieces"]:
            source.pieces[start] = end, hash_

    def judge(self, taken: Taken, by_now: Source | None) -> Verdict:
        """Tell whether a source is one of the same run, or begins with it.

        Args:
            taken: what was read of it.
            by_now: what commits hold of it, those of another run at the same time too.

        Raises:
            DataError: it is a source of this run that has changed since.
        """
        path = taken.found.path
        if path in self._left_out:
            return Verdict.LEFT_OUT
        if not taken.is_first or taken.state != "new":
            return Verdict.NEW
        pieces = taken.entry["pieces"] if taken.entry else []
        if by_now and all(by_now.pieces.get(start) == (end, h) for start, end, h in pieces):
            return Verdict.UNCHANGED  # another run was faster
        for source in self._by_head.get(taken.head, ()):
            if source.path == taken.label:
                continue
            rest = sources.rest(taken.found, source)
            if rest is None and source.source_uid != taken.source_uid:
                continue
            self._left_out.add(path)
            if rest is None:
                raise sources.changed(taken.found, source)
            if not rest.is_more:
                return Verdict.UNCHANGED
            self._deferred.append(taken.found)
            return Verdict.LEFT_OUT
        return Verdict.NEW

    def take_deferred(self) -> list[Found]:
        """Return sources that go on from others of this run, now that these are committed."""
        deferred, self._deferred = self._deferred, []
        self._left_out -= {found.path for found in deferred}
        return deferred
