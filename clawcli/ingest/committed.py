"""What the table holds already, as far as new calls can touch it.

Of every committed step 24 bytes stay in memory: the first half of its uid and of its two chained
hashes. What these say may be there is read from the table, whole trees at a time, and linked again
by the rules that linked it first. Trees that this run itself made or read are kept up to a limit.
What rows do not tell of their steps is in the sidecar `links`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.ingest import chain, placing, rebuild, stepgraph
from clawcli.ingest.index import Index
from clawcli.ingest.links import Links
from clawcli.ingest.stepgraph import Step
from clawcli.store import table
from clawcli.store.location import Location

_RESIDENT_STEPS = 20_000
_KEYS = ("step_uid", "next_hash", "state_hash")


class Halves:
    """128-bit values of which the first 64 bits are kept."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        """Add uint64 values."""
        if not len(values):
            return
        self._runs.append(np.sort(values))
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            last = self._runs.pop()
            self._runs[-1] = np.sort(np.concatenate([self._runs[-1], last]))

    def counts(self, values: np.ndarray) -> np.ndarray:
        """Count for each uint64 value how often it was added."""
        found = np.zeros(len(values), np.int64)
        for run in self._runs:
            found += np.searchsorted(run, values, "right") - np.searchsorted(run, values, "left")
        return found


def _halves(texts: Iterable[str]) -> np.ndarray:
    """Read the first 64 bits of hex strings."""
    joined = bytes.fromhex("".join([text[:16] for text in texts]))
    return np.frombuffer(joined, ">u8").astype(np.uint64)


class Committed:
    """The steps of a data directory, and an Index of those that this run has to do with."""

    def __init__(self, place: Location) -> None:
        """Read the hashes of all steps.

        Raises:
            StoreError: the table cannot be read.
        """
        self.place = place
        self.index = Index()
        self.num_steps = 0
        self._sets = {name: Halves() for name in _KEYS}
        self.links = Links(place)
        self._roots: dict[str, Step] = {}
        if table.exists(place.steps):
            keys = table.read(place, columns=_KEYS)
            self.num_steps = keys.num_rows
            for name in _KEYS:
                self._sets[name].add(_halves(keys[name].to_pylist()))

    def may_hold(self, column: str, values: Collection[str]) -> dict[str, int]:
        """Count how many rows the table may hold with values (hex) of a column of hashes.

        Returns:
            step_uid, next_hash or state_hash -> number of rows; values that it lacks left out.
        """
        listed = sorted(values)
        if not listed or not self.num_steps:
            return {}
        counts = self._sets[column].counts(_halves(listed)).tolist()
        return {value: count for value, count in zip(listed, counts, strict=True) if count}

    def owners(self, uids: Collection[str]) -> dict[str, str]:
        """Tell which of some steps the table holds, and the source of each: step_uid -> uid."""
        index = self.index.by_uid
        found = {uid: index[uid].request.source_uid for uid in uids if uid in index}
        if asked := self.may_hold("step_uid", set(uids) - found.keys()):
            rows = self._read(["step_uid", "source_uid"], pc.field("step_uid").isin(list(asked)))
            found |= dict(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))
        return found

    def offsets(self, uids: Collection[str]) -> dict[str, int]:
        """Tell which records committed steps came from: step_uid -> source_offset."""
        if not uids:
            return {}
        rows = self._read(["step_uid", "source_offset"], pc.field("step_uid").isin(list(uids)))
        return dict(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))

    def of_sources(self, source_uids: Collection[str]) -> dict[str, set[str]]:
        """List the step_uids that some sources gave."""
        found: dict[str, set[str]] = {uid: set() for uid in source_uids}
        if found and self.num_steps:
            rows = self._read(["source_uid", "step_uid"], pc.field("source_uid").isin(list(found)))
            for row in rows.to_pylist():
                found[row["source_uid"]].add(row["step_uid"])
        return found

    def fetch(self, new: Sequence[Step], regrown: Collection[str] = ()) -> None:
        """Bring all committed trees into the index that new steps can touch.

        Args:
            new: steps that the table does not hold.
            regrown: step_uids that it holds, and that their source has said again.

        Raises:
            StoreError: a data file is missing or torn.
        """
        if not self.num_steps:
            return
        uids = {step.request.follows for step in new if step.request.follows} | set(regrown)
        calls = [step for step in new if not step.request.is_cut]
        nexts = {step.request.lookup for step in calls if step.request.last}
        nexts |= {step.next_hash for step in calls}
        states = {hash_ for step in calls for hash_ in step.request.tail}
        keyed = {s.request.trajectory for s in new if s.request.trajectory is not None}
        there = {*self.may_hold("step_uid", uids), *self.links.asked_by(calls)}
        self._load(
            {
                "step_uid": [uid for uid in there if uid not in self.index.by_uid],
                "next_hash": self._missing("next_hash", nexts, self.index.by_next),
                "state_hash": self._missing("state_hash", states, self.index.by_state),
                "trajectory_uid": [k for k in keyed if k not in self.index.by_trajectory],
            }
        )
        edited = self._edited(calls)
        self._load({"state_hash": self._missing("state_hash", edited, self.index.by_state)})

    def _missing(
        self, column: str, values: Iterable[bytes], known: dict[bytes, list[Step]]
    ) -> list[str]:
        """List the hashes of which the table may hold more steps than the index."""
        counts = self.may_hold(column, {value.hex() for value in values})
        return [
            value for value, n in counts.items() if n > len(known.get(bytes.fromhex(value), ()))
        ]

    def _edited(self, calls: Sequence[Step]) -> set[bytes]:
        """List the states before the last answer of calls that nothing else explains so far."""
        # the others of this round are not in the index yet
        ending: dict[bytes, list[Step]] = defaultdict(list)
        for step in calls:
            ending[step.next_hash].append(step)
            if step.next_loose != step.next_hash:
                ending[step.next_loose].append(step)
        states: set[bytes] = set()
        index = self.index
        for request in {id(s.request): s.request for s in calls if s.request.last}.values():
            candidates = itertools.chain(
                ending.get(request.lookup, ()),
                index.by_next.get(request.lookup, ()),
                ending.get(request.lookup_loose, ()),
                index.ending(request.lookup_loose),
            )
            if not any(chain.may_precede(candidate, request) for candidate in candidates):
                states.update(request.chain()[1 : request.last])
        return states

    def _load(self, wanted: dict[str, list[str]]) -> None:
        """Load the whole trees that some rows belong to."""
        trajectories: set[str] = set()
        for column, values in wanted.items():
            if values:
                rows = self._read(["trajectory_uid"], pc.field(column).isin(values))
                trajectories.update(rows["trajectory_uid"].to_pylist())
        rows = self.tree_rows(trajectories)
        made = self.rebuilder(rows, self.index.by_uid).steps()
        for step in made:
            self.index.add(step)
        self._touch(stepgraph.root(step) for step in made)

    def tree_rows(self, trajectories: set[str]) -> list[dict[str, Any]]:
        """Read all rows of the trees that some trajectories are part of."""
        known: set[str] = set()
        found = trajectories
        while found:
            known |= found
            listed = pa.array(found)
            lineage = self._read(
                ["trajectory_uid", "parent_trajectory_uid"],
                pc.field("trajectory_uid").isin(listed)
                | pc.field("parent_trajectory_uid").isin(listed),
            )
            both = [*lineage["trajectory_uid"].unique(), *lineage["parent_trajectory_uid"].unique()]
            found = {uid.as_py() for uid in both if uid.is_valid} - known
        if not known:
            return []
        return self._read(rebuild.COLUMNS, pc.field("trajectory_uid").isin(list(known))).to_pylist()

    def rebuilder(self, rows: list[dict[str, Any]], known: dict[str, Step]) -> rebuild.Rebuilder:
        """Begin to make steps of rows of the table again."""
        return rebuild.Rebuilder(rows, known, self.links.read(row["step_uid"] for row in rows))

    def _read(self, columns: Sequence[str], where: pc.Expression) -> pa.Table:
        return table.read(self.place, columns=list(columns), where=where)

    def settle(self, roots: Iterable[Step], new: Sequence[Step], *, keep: bool = False) -> None:
        """Take in what was just committed: trees by their roots, and the steps that were new.

        With keep nothing is let go of: the table does not have it.
        """
        self._sets["step_uid"].add(_halves([step.uid for step in new]))
        self._sets["next_hash"].add(_halves([step.next_hash.hex() for step in new]))
        self._sets["state_hash"].add(_halves([step.request.state_hash.hex() for step in new]))
        self.num_steps += len(new)
        roots = list(roots)
        for root in roots:
            for step in placing.tree(root):
                step.request.let_go()
                step.settle()
        self._touch(roots)
        if not keep:
            self._evict()

    def _touch(self, roots: Iterable[Step]) -> None:
        for root in roots:
            self._roots.pop(root.uid, None)
            self._roots[root.uid] = root

    def _evict(self) -> None:
        """Let go of the trees that were touched longest ago, down to the limit."""
        for uid in list(self._roots):
            if len(self.index.by_uid) <= _RESIDENT_STEPS:
                return
            top = self._roots.pop(uid, None)
            if top is None or top.parent is not None or self.index.by_uid.get(uid) is not top:
                continue  # another tree has it now
            # the choices of one call stand or fall together, for they share what is known of it
            for choice in list(top.request.choices):
                self._roots.pop(choice.uid, None)
                for step in list(placing.tree(choice)):
                    self.index.discard(step)
                    step.unlink()  # in a circle with its tree it would stay for ever
                    step.request.choices = []
