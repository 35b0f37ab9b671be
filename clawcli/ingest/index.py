"""Find steps by all hashes that a request can be looked up with."""

from __future__ import annotations

from collections import defaultdict

from clawcli.ingest.stepgraph import Step


class Index:
    """Steps by all hashes that a request can be looked up with, those of earlier commits too."""

    def __init__(self) -> None:
        self.by_uid: dict[str, Step] = {}
        self.by_next: dict[bytes, list[Step]] = defaultdict(list)
        self.by_loose: dict[bytes, list[Step]] = defaultdict(list)
        self.by_state: dict[bytes, list[Step]] = defaultdict(list)
        self.by_action: dict[bytes, list[Step]] = defaultdict(list)
        self.by_trajectory: dict[str, list[Step]] = defaultdict(list)
        self.waiting: dict[bytes, list[Step]] = defaultdict(list)
        """Steps by the next_hash, or the state, of what they would continue."""

    def add(self, step: Step) -> None:
        """Register a step."""
        request = step.request
        self.by_uid[step.uid] = step
        if request.trajectory is not None:
            self.by_trajectory[request.trajectory].append(step)
        if request.is_cut:
            return  # nobody continues a finished conversation but by its key
        self.by_next[step.next_hash].append(step)
        if step.next_loose != step.next_hash:
            self.by_loose[step.next_loose].append(step)
        self.by_state[request.state_hash].append(step)
        self.by_action[step.action_loose].append(step)
        if request.last or request.tail:
            for key in request.waits_for():
                self.waiting[key].append(step)

    def discard(self, step: Step) -> None:
        """Forget a step; the table still has it."""
        if self.by_uid.get(step.uid) is not step:
            return
        del self.by_uid[step.uid]
        request = step.request
        if request.trajectory is not None:
            _remove(self.by_trajectory, request.trajectory, step)
        if request.is_cut:
            return
        _remove(self.by_next, step.next_hash, step)
        _remove(self.by_loose, step.next_loose, step)
        _remove(self.by_state, request.state_hash, step)
        _remove(self.by_action, step.action_loose, step)
        for key in request.waits_for():
            _remove(self.waiting, key, step)

    def ending(self, loose: bytes) -> list[Step]:
        """List the steps whose messages and action, reasoning left out, hash to loose."""
        # where there is no reasoning the two hashes are one, and by_next has the step
        return [*self.by_loose.get(loose, ()), *self.by_next.get(loose, ())]


def _remove(places: dict, key: bytes | str, step: Step) -> None:
    found = places.get(key)
    if found is not None and step in found:
        found.remove(step)
        if not found:
            del places[key]
