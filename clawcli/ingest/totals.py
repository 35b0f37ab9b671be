"""Count what a run did, for its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from clawcli.errors import ClawError
from clawcli.ingest.stepgraph import Step


@dataclass(slots=True)
class Totals:
    """Counts of a run, for its report."""

    files_read: int = 0
    files_unchanged: int = 0
    bytes_read: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    steps_changed: int = 0
    trajectories: set[str] = field(default_factory=set)
    """Those that new steps are in, as far as they are still called so."""
    placed: set[str] = field(default_factory=set)
    """All that were placed; a dry run cannot ask the table for them."""
    left: set[str] = field(default_factory=set)
    """Those that have no steps any more, because a late call joined them to others."""
    rejected: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    secrets: Counter[str] = field(default_factory=Counter)
    restated_chars: int = 0
    observation_chars: int = 0
    problems: list[str] = field(default_factory=list)
    """Sources that broke off."""
    errors: list[ClawError] = field(default_factory=list)
    """Sources of which nothing counts."""

    def count_trajectories(self, placed: Sequence[Step]) -> None:
        """Follow trajectories through their names: whole trees are placed, so what is gone is known."""
        now, before, of_new = set(), set(), set()
        for step in placed:
            assert step.placed is not None
            uid, was = step.placed.trajectory_uid, step.stored and step.stored.trajectory_uid
            now.add(uid)
            if was is not None:
                before.add(was)
            if was is None or was in self.trajectories:
                of_new.add(uid)
        left = before - now
        self.trajectories = (self.trajectories - left) | of_new
        self.left = (self.left | left) - now
        self.placed |= now


def split_tasks(placed: Iterable[Step]) -> dict[str, int]:
    """Count tasks whose attempts differ in their system text alone, as a clock in it does."""
    systems: dict[tuple[Any, ...], set[bytes]] = {}
    for step in placed:
        request = step.request
        if request.task_id is not None and step.parent is None and request.kind is None:
            key = (request.log_format, request.task_id, request.tools, request.agent)
            systems.setdefault(key, set()).add(request.system)
    split = sum(len(texts) > 1 for texts in systems.values())
    return {"task_split_by_system": split} if split else {}
