"""Write a round: what stands beside the step table first, then the table, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clawcli import schema
from clawcli.ingest import links
from clawcli.ingest.parts import Written
from clawcli.store import belonging, sidecars, table, tombstones
from clawcli.store.location import Location

APP = "claw:ingest"
"""Id of ingest's Delta transactions: each commit has the next number, so that two runs that commit
at once notice each other."""


@dataclass(slots=True)
class ToCommit:
    """What one round adds to a data directory."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """What was consumed of which source, for the commit info."""
    unused: list[dict[str, Any]] = field(default_factory=list)
    """Rows of rejects."""
    seen_in: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the sidecar."""
    told: pa.Table | None = None
    """Rows of the sidecar links; null = none."""
    forgotten: Mapping[str, str] = field(default_factory=dict)
    """step_uid -> next_hash of steps that go on from forgotten ones, to be forgotten too."""
    masked: Collection[str] = ()
    """Paths of sources that are not to be named."""
    written: Sequence[Written] = ()
    """Files with new steps."""
    changed: pa.Table | None = None
    """Rows that take the place of some in the table; null = none."""


def newest(place: Location) -> int | None:
    """Return the number of the last commit that a run of ingest made; null = there is none."""
    return table.last_transaction(place.steps, APP) if table.exists(place.steps) else None


class Commits:
    """The commits of one run to a data directory."""

    def __init__(self, place: Location, info: Mapping[str, Any], since: int | None) -> None:
        """Begin to commit.

        Args:
            place: data directory.
            info: goes into each commit.
            since: newest(place), read before anything else of the table was: what another run
                commits from then on has to be caught up with.
        """
        self.place, self.info = place, info
        self._transaction = since
        self.count = 0

    def catch_up(self) -> bool:
        """Tell whether another run has committed since; from here on its commits are known."""
        before, self._transaction = self._transaction, newest(self.place)
        return self._transaction != before

    def store(self, new: ToCommit) -> None:
        """Commit a round.

        Raises:
            ConflictError: another run has committed since; nothing of the step table has changed.
            StoreError: it cannot be written.
        """
        # what a crash before the last of these leaves behind is found there by the next run
        self._store_rejects(new.unused)
        if new.seen_in:
            self._append("seen_in", pa.Table.from_pylist(new.seen_in))
        if new.told is not None and new.told.num_rows:
            self._append(links.NAME, new.told)
        if new.forgotten:
            tombstones.add(self.place, new.forgotten, command="ingest")
        number = (self._transaction or 0) + 1
        added = [file for part in new.written for file in part.files]
        info = {
            **self.info,
            "inputs": [
                tombstones.mask(text) if text in new.masked else text
                for text in self.info.get("inputs", ())
            ],
            "sources": new.entries,
            "steps_added": sum(file.rows for file in added),
            "steps_changed": new.changed.num_rows if new.changed is not None else 0,
            belonging.KEY: belonging.now(self.place),
        }
        steps = self.place.steps
        if new.changed is not None and new.changed.num_rows:
            table.replace(steps, new.changed, added=added, info=info, txn=(APP, number))
        else:
            table.commit(
                steps,
                added,
                schema.steps_schema(),
                info=info,
                txn=(APP, number),
                partition_by=schema.PARTITION_COLUMNS,
            )
        self._transaction = number
        self.count += 1

    def _append(self, sidecar: str, new: pa.Table) -> None:
        sidecars.append(self.place, sidecar, new, info={"command": "ingest"})

    def _store_rejects(self, unused: Sequence[dict[str, Any]]) -> None:
        if not unused:
            return
        key = ("source_uid", "source_offset", "reason")
        uids = list({row["source_uid"] for row in unused})
        where = pc.field("source_uid").isin(uids)
        before = table.read(self.place, "rejects", key, where=where)
        known = set(zip(*(before[name].to_pylist() for name in key), strict=True))
        fresh = [row for row in unused if tuple(row[name] for name in key) not in known]
        if fresh:
            rejects = pa.Table.from_pylist(fresh, schema=schema.arrow_schema(schema.REJECTS))
            table.append(self.place.rejects, rejects, info={"command": "ingest"})
