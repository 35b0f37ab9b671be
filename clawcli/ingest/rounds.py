"""Gather what workers read, link it, and commit it: one round is one commit.

A round closes when enough calls wait, so that memory stays flat and a killed run loses one round at
most. Where it closes depends on the sources alone, not on how many workers read them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clawcli import schema
from clawcli.engine import Workers
from clawcli.errors import ConflictError, StoreError
from clawcli.ingest import chain, forgotten, links, placing, rows
from clawcli.ingest.amend import amended
from clawcli.ingest.commits import Commits, ToCommit
from clawcli.ingest.committed import Committed
from clawcli.ingest.forgotten import Forgotten
from clawcli.ingest.parts import Part, Taken, Written
from clawcli.ingest.sorting import Sorted, sort
from clawcli.ingest.sources import KnownSources
from clawcli.ingest.stepgraph import Placement, Step
from clawcli.ingest.totals import Totals, split_tasks
from clawcli.ingest.twins import Twins
from clawcli.store import table
from clawcli.store.location import Location

logger = logging.getLogger(__name__)

_ROUND_STEPS = 12_288
_ROUND_BYTES = 1 << 30
_ROUND_NEW_BYTES = 32 << 20
_TRIES = 8


@dataclass(slots=True)
class _Gathered:
    """What waits for the next commit."""

    taken: list[tuple[int, Taken]] = field(default_factory=list)
    """Worker, and what it took."""
    num_steps: int = 0
    bytes_read: int = 0
    new_bytes: int = 0


class Rounds:
    """The commits of one run."""

    def __init__(
        self,
        place: Location,
        workers: Workers,
        *,
        info: Mapping[str, Any],
        known: KnownSources,
        since: int | None,
        dry_run: bool,
    ) -> None:
        """Begin with what the table holds.

        Args:
            place: data directory.
            workers: Batch handlers that hold the calls.
            info: what the commit infos say besides the sources.
            known: sources of earlier commits; those of this run are added to it.
            since: commits.newest(place), read before known was.
            dry_run: do all but write.
        """
        self.place, self.workers, self.known, self.dry_run = place, workers, known, dry_run
        self.totals = Totals()
        self.committed = Committed(place)
        self.forgotten = Forgotten(place)
        self._gathered = _Gathered()
        self.commits = Commits(place, info, since)
        self._files: set[str] = set()
        self.twins = Twins()
        self._kept: list[pa.Table] = []
        self._places: dict[str, int] = {}
        """step_uid -> offset of its record, in a dry run, which leaves nothing in the table."""

    def absorb(self, worker: int, part: Part) -> None:
        """Take in what a worker read; parts come in the order of their pieces."""
        for taken in part.taken:
            self._gathered.taken.append((worker, taken))
            self._gathered.num_steps += len(taken.steps)
            self._gathered.bytes_read += taken.bytes_read
            self._gathered.new_bytes += taken.new_bytes

    @property
    def is_full(self) -> bool:
        """Enough waits for a commit."""
        waiting = self._gathered
        return (
            waiting.num_steps >= _ROUND_STEPS
            or waiting.bytes_read >= _ROUND_BYTES
            or waiting.new_bytes >= _ROUND_NEW_BYTES
        )

    def commit(self) -> list[dict[str, Any]]:
        """Link and commit what waits; workers may go on with later pieces.

        Returns:
            The sources that were committed, for workers to know.

        Raises:
            StoreError: the table cannot be written, or others keep writing it.
        """
        gathered, self._gathered = self._gathered, _Gathered()
        if self.dry_run:
            return self._commit(gathered)
        for _ in range(_TRIES):
            with table.lock(self.place.path):
                self._catch_up()
                try:
                    return self._commit(gathered)
                except ConflictError:
                    logger.info("Another run committed first; linking again.")
                    for _, taken in gathered.taken:
                        for step in taken.steps:
                            step.unlink()
        raise StoreError(
            f"Other runs keep committing to {self.place}.", "Run again when they are done."
        )

    def _catch_up(self) -> None:
        """Read the table again if another run wrote to it since."""
        if self.commits.catch_up():
            self.committed = Committed(self.place)
            self.forgotten = Forgotten(self.place)
            self.known = KnownSources(table.history(self.place.steps))

    def _commit(self, gathered: _Gathered) -> list[dict[str, Any]]:
        found = sort(
            gathered.taken,
            committed=self.committed,
            known=self.known,
            twins=self.twins,
            forgotten=self.forgotten,
            places=self._places if self.dry_run else None,
        )
        stored = self._say_again(found)
        roots = chain.link([*found.new, *found.again], self.committed.index)
        placed = placing.place(roots)
        told_again = {step.uid for step in found.again}
        changed = [step for step in placed if step.has_moved and step.uid not in told_again]
        written = self._write(found, told_again)
        moved, hidden = amended(changed, self.committed) if changed else (None, {})
        rows_changed = self._rows_changed(written, stored, moved)
        if not self.dry_run and (found.entries or found.new or rows_changed.num_rows):
            for part in written:
                hidden |= part.hidden
            told = links.rows(found.new, found.again, changed, hidden, self.committed.links)
            self.commits.store(
                ToCommit(
                    found.entries,
                    found.unused,
                    found.seen_in,
                    told,
                    self.forgotten.not_known(found.forgotten),
                    forgotten.masked(found.accepted),
                    written,
                    rows_changed,
                )
            )
            self.committed.links.add(told)
        self.forgotten.add(found.forgotten)
        self._kept += [part.kept for part in written if part.kept is not None]
        self._count(found, written, rows_changed.num_rows, placed)
        self.committed.settle(roots, found.new, keep=self.dry_run)
        for entry in found.entries:
            self.known.add(entry)
        self._drop(gathered)
        return found.entries

    def pending(self) -> pa.Table | None:
        """Return the steps that a dry run would have added, with the columns Setting.keep.

        null = it is none, so that the table has them.
        """
        if not self.dry_run:
            return None
        if not self._kept:
            return schema.steps_schema().empty_table()
        kept = pa.concat_tables(self._kept)
        steps = [self.committed.index.by_uid[uid] for uid in kept["step_uid"].to_pylist()]
        for place, column in enumerate(kept.schema):
            if column.name in Placement.__struct_fields__:  # later rounds may have moved it
                values = [getattr(step.placed, column.name) for step in steps]
                kept = kept.set_column(place, column, pa.array(values, column.type))
        return kept

    # -- what is new -----------------------------------------------------------------------------

    def _say_again(self, found: Sorted) -> pa.Table:
        """Put steps that are said again in the place of what the table holds of them."""
        uids = [step.uid for step in found.again]
        self.committed.fetch(found.new, uids)
        if not uids:
            return schema.steps_schema().empty_table()
        index = self.committed.index
        before = {uid: index.by_uid[uid] for uid in uids}
        for old in before.values():
            index.discard(old)
            if old.parent is not None:
                old.parent.children.remove(old)
        for step in found.again:
            old = before[step.uid]
            step.stored, step.stored_ambiguous = old.stored, old.stored_ambiguous
            for child in old.children:
                if child.uid not in before:
                    child.parent = step
                    step.children.append(child)
        return table.read(self.place, where=pc.field("step_uid").isin(uids))

    # -- writing ---------------------------------------------------------------------------------

    def _write(self, found: Sorted, told_again: set[str]) -> list[Written]:
        work: dict[int, dict[str, rows.Linked]] = {}
        for step in (*found.new, *found.again):
            work.setdefault(found.owners[step.uid], {})[step.uid] = rows.linked(step)
        again = frozenset(told_again)
        results = self.workers.each(
            "write", {worker: (linked, again) for worker, linked in work.items()}
        )
        return [results[worker] for worker in sorted(results)]

    def _rows_changed(
        self, written: Sequence[Written], stored: pa.Table, moved: pa.Table | None
    ) -> pa.Table:
        tables = [w.said_again for w in written if w.said_again is not None]
        if tables:
            before = {row["step_uid"]: row for row in stored.to_pylist()}
            now = pa.concat_tables(tables)
            differs = [row != before[row["step_uid"]] for row in now.to_pylist()]
            tables = [now.filter(pa.array(differs, pa.bool_()))]
        if moved is not None:
            tables.append(moved)
        return pa.concat_tables(tables) if tables else schema.steps_schema().empty_table()

    def commit_empty(self) -> None:
        """Make a table without rows: 0 steps is an answer."""
        with table.lock(self.place.path):
            if not table.exists(self.place.steps):
                self.commits.store(ToCommit())

    def _drop(self, gathered: _Gathered) -> None:
        held: dict[int, list[str]] = {}
        for worker, taken in gathered.taken:
            held.setdefault(worker, []).extend(step.uid for step in taken.steps)
        self.workers.each("drop", {worker: (uids,) for worker, uids in held.items() if uids})

    # -- counting --------------------------------------------------------------------------------

    def _count(
        self,
        found: Sorted,
        written: Sequence[Written],
        num_changed: int,
        placed: Sequence[Step],
    ) -> None:
        totals = self.totals
        totals.errors.extend(found.errors)
        totals.files_unchanged += found.unchanged
        for taken in found.accepted:
            totals.bytes_read += taken.bytes_read
            if taken.state == "unchanged":
                totals.files_unchanged += not taken.warnings["empty_source"]
            elif taken.found.path not in self._files:
                self._files.add(taken.found.path)
                totals.files_read += 1
        totals.fates.update(found.fates)
        totals.rejected.update(r["reason"] for r in found.unused if r["fate"] == "rejected")
        totals.problems.extend(found.problems)
        totals.warnings.update(found.warnings)
        totals.steps += len(found.new)
        totals.steps_changed += num_changed
        totals.count_trajectories(placed)
        totals.warnings.update(split_tasks(placed))
        for part in written:
            totals.warnings.update(part.warnings)
            totals.formats.update(part.formats)
            totals.secrets.update(part.secrets)
            totals.restated_chars += part.restated[0]
            totals.observation_chars += part.restated[1]
