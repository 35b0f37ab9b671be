"""Sort what a round read: which steps are new, said again, repeated, or were forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clawcli.errors import ClawError
from clawcli.ingest import forgotten, sources
from clawcli.ingest.committed import Committed
from clawcli.ingest.parts import Taken
from clawcli.ingest.sources import KnownSources
from clawcli.ingest.stepgraph import Request, Step
from clawcli.ingest.twins import Twins, Verdict

_SAID_AGAIN = frozenset({"grown", "moved", "rewritten"})


@dataclass(slots=True)
class Sorted:
    """The steps of a round by what they are to the table."""

    new: list[Step] = field(default_factory=list)
    again: list[Step] = field(default_factory=list)
    """Steps that the table holds and that their source says again."""
    owners: dict[str, int] = field(default_factory=dict)
    """step_uid -> worker that holds its call, of new and again."""
    seen_in: list[dict[str, Any]] = field(default_factory=list)
    unused: list[dict[str, Any]] = field(default_factory=list)
    forgotten: dict[str, str] = field(default_factory=dict)
    """step_uid -> next_hash of steps that were forgotten, or go on from such."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    fates: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    errors: list[ClawError] = field(default_factory=list)
    accepted: list[Taken] = field(default_factory=list)
    unchanged: int = 0
    """Sources that turned out to be there already."""


def sort(
    taken: Sequence[tuple[int, Taken]],
    *,
    committed: Committed,
    known: KnownSources,
    twins: Twins,
    forgotten: forgotten.Forgotten,
    places: dict[str, int] | None,
) -> Sorted:
    """Sort the steps of a round by what they are to the table.

    Args:
        taken: worker and what it took, in the order of the pieces.
        committed: what the table holds.
        known: sources of earlier commits.
        twins: sources of this run, told apart.
        forgotten: what the table is not to hold again.
        places: step_uid -> offset of its record, of a dry run, which leaves nothing in the table;
            grows. Null = it is none.
    """
    return _Round(taken, committed, known, twins, forgotten, places).run()


@dataclass(slots=True)
class _Round:
    """One round while it is sorted."""

    taken: Sequence[tuple[int, Taken]]
    committed: Committed
    known: KnownSources
    twins: Twins
    forgotten: forgotten.Forgotten
    places: dict[str, int] | None
    found: Sorted = field(default_factory=Sorted)

    def run(self) -> Sorted:
        """Sort all sources, in their order."""
        found = self.found
        uids = {step.uid for _, taken in self.taken for step in taken.steps}
        stored_by = self.committed.owners(uids)
        offsets = self._offsets_of(
            {
                step.uid
                for _, taken in self.taken
                if not _is_said_again(taken)
                for step in taken.steps
                if stored_by.get(step.uid) == taken.source_uid
            }
        )
        found.forgotten = self.forgotten.among(
            [s for _, t in self.taken for s in t.steps if s.uid not in stored_by],
            self.committed,
        )
        claimed: dict[str, Step] = {}
        before = self.committed.of_sources(
            {taken.source_uid for _, taken in self.taken if _is_said_again(taken)}
        )
        for worker, taken in self.taken:
            try:
                if error := taken.error or self._contradicts(taken, before):
                    raise error
                verdict = self.twins.judge(taken, self.known.by_uid.get(taken.source_uid))
            except ClawError as error:
                found.errors.append(error)
                continue
            if verdict is not Verdict.NEW:
                found.unchanged += verdict is Verdict.UNCHANGED
                continue
            found.accepted.append(taken)
            found.warnings.update(taken.warnings)
            if taken.problem:
                found.problems.append(f"{taken.problem} {taken.kept}")
            if taken.state == "moved":
                found.warnings["files_moved"] += 1
            if taken.entry:
                found.entries.append(taken.entry)
                self.twins.remember(taken.entry)
            found.fates.update(row["fate"] for row in taken.unused)
            found.fates["pending"] += taken.pending
            found.fates["used"] += taken.joined
            repeated, ignored = self._classify(worker, taken, stored_by, offsets, claimed)
            found.fates["duplicate"] += len(repeated)
            found.fates["ignored"] += len(ignored)
            found.fates["used"] += len(taken.begun) - len(repeated) - len(ignored)
            found.unused += forgotten.rejects(taken, ignored, self.known.by_uid)
        return found

    def _classify(
        self,
        worker: int,
        taken: Taken,
        stored_by: Mapping[str, str],
        offsets: Mapping[str, int],
        claimed: dict[str, Step],
    ) -> tuple[set[int], dict[int, int]]:
        """Sort the steps of one source.

        Returns:
            Its records all of whose steps are elsewhere; and the offsets of those of which
            nothing is left, since some of it was forgotten.
        """
        found = self.found
        repeated = set(taken.begun)
        ignored: dict[int, int] = {}
        for step in taken.steps:
            ordinal, offset = taken.places[step.uid]
            if step.uid in found.forgotten:
                ignored[ordinal] = offset
                step.request.choices = [c for c in step.request.choices if c is not step]
                continue
            owner = stored_by.get(step.uid)
            earlier = claimed.get(step.uid)
            is_elsewhere = owner is not None and owner != taken.source_uid
            # a record of this source that an earlier round has: the log repeats it
            is_elsewhere = is_elsewhere or offsets.get(step.uid, offset) != offset
            if earlier is not None or is_elsewhere:
                if earlier is not None and _differs(earlier.request, step.request):
                    found.warnings["duplicate_differs"] += 1
                found.seen_in.append(
                    {
                        "step_uid": step.uid,
                        "source_uid": taken.source_uid,
                        "source_path": taken.label,
                        "source_offset": offset,
                    }
                )
                # another choice of the call may be new: then it stands without this one
                step.request.choices = [c for c in step.request.choices if c is not step]
                continue
            claimed[step.uid] = step
            if self.places is not None:
                self.places[step.uid] = offset
            found.owners[step.uid] = worker
            (found.new if owner is None else found.again).append(step)
            repeated.discard(ordinal)
        ignored = {ordinal: ignored[ordinal] for ordinal in sorted(repeated & ignored.keys())}
        return repeated - ignored.keys(), ignored

    def _offsets_of(self, uids: set[str]) -> dict[str, int]:
        """Tell where the records are that steps of earlier rounds came from."""
        places = self.places or {}
        told = uids & places.keys()
        return {uid: places[uid] for uid in told} | self.committed.offsets(uids - told)

    def _contradicts(self, taken: Taken, before: Mapping[str, set[str]]) -> ClawError | None:
        """Say that a source which is written anew has lost steps that it had."""
        known = self.known.by_uid.get(taken.source_uid)
        if known is None or not _is_said_again(taken):
            return None
        lost = before[taken.source_uid] - {step.uid for step in taken.steps}
        return sources.changed(taken.found, known) if lost else None


def _is_said_again(taken: Taken) -> bool:
    """Tell whether a source says all again that it said before."""
    return taken.is_whole and taken.state in _SAID_AGAIN


def _differs(first: Request, second: Request) -> bool:
    """Tell whether two logs of one call disagree on what is not in their messages."""
    names = ("system", "tools", "reward", "task_id", "trial")
    return any(getattr(first, name) != getattr(second, name) for name in names)
