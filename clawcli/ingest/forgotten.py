"""Steps that claw forget took out stay out, however their log comes again.

A call that goes on from a forgotten step repeats its text, so it stays out as well: by the step
that it names as its predecessor, or by the hashes of the messages that its state begins with. Where
a step that was kept has the same messages, the call goes on from that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clawcli.ingest.committed import Committed
from clawcli.ingest.parts import Taken
from clawcli.ingest.sources import Source
from clawcli.ingest.stepgraph import Step
from clawcli.store import tombstones
from clawcli.store.location import Location

REASON = "forgotten"


class Forgotten:
    """The tombstones of a data directory."""

    def __init__(self, place: Location) -> None:
        """Read them."""
        self._uids = tombstones.read(place)
        self._nexts = set(self._uids.values())

    def add(self, steps: Mapping[str, str]) -> None:
        """Take in steps that were found to be forgotten too."""
        self._uids |= steps
        self._nexts.update(steps.values())

    def not_known(self, steps: Mapping[str, str]) -> dict[str, str]:
        """Leave out the steps that have a tombstone."""
        return {uid: hash_ for uid, hash_ in steps.items() if uid not in self._uids}

    def among(self, steps: Sequence[Step], committed: Committed) -> dict[str, str]:
        """Find the steps of a round that are not to come in.

        Args:
            steps: those that the table does not hold.
            committed: what it holds.

        Returns:
            step_uid -> next_hash.
        """
        if not self._uids:
            return {}
        found = {step.uid: step.next_hash.hex() for step in steps if step.uid in self._uids}
        live = {step.next_hash.hex() for step in steps if step.uid not in found}
        left = [step for step in steps if step.uid not in found]
        for step in left:
            if self._goes_on(step, live, committed):
                found[step.uid] = step.next_hash.hex()
        # keys name steps in any order, and each that is found may have others after it
        size = -1
        while size < len(found):
            size = len(found)
            for step in left:
                if step.request.follows in found or step.request.follows in self._uids:
                    found[step.uid] = step.next_hash.hex()
        return found

    def _goes_on(self, step: Step, live: set[str], committed: Committed) -> bool:
        begins = {hash_.hex() for hash_ in step.request.chain()[1:]} & self._nexts
        begins -= live
        return bool(begins - committed.may_hold("next_hash", begins).keys())


def rejects(
    taken: Taken, ignored: Mapping[int, int], known: Mapping[str, Source]
) -> list[dict[str, Any]]:
    """List the rows of rejects that one source gives.

    A record that was forgotten is there with its place and no text. Where a source gives nothing
    else, the other records that gave no step go without their text too, and so does its path.

    Args:
        taken: what was read of the source.
        ignored: ordinal -> offset of its records of which nothing is left.
        known: sources of earlier commits, by source_uid.
    """
    source = known.get(taken.source_uid)
    was_forgotten = source is None or tombstones.is_masked(source.path)
    others = taken.unused
    if was_forgotten and len(ignored) == len(taken.begun) > 0:
        others = [{**row, **dict.fromkeys(tombstones.TOLD_BY_REJECTS)} for row in others]
        if taken.entry is not None:
            taken.entry["path"] = tombstones.mask(taken.entry["path"])
    place = {"source_uid": taken.source_uid, "fate": "ignored", "reason": REASON}
    return [*others, *({**place, "source_offset": offset} for offset in ignored.values())]


def masked(accepted: Sequence[Taken]) -> set[str]:
    """List the paths of sources that rejects() has masked."""
    return {
        taken.label
        for taken in accepted
        if taken.entry is not None and tombstones.is_masked(taken.entry["path"])
    }
