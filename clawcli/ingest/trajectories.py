"""Cut trees of linked steps into trajectories: who stays on the live path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clawcli.ingest.stepgraph import Step


@dataclass(slots=True, eq=False)
class Trajectory:
    """Steps of one attempt, in order; a branch or sample begins at its branch point."""

    kind: str
    steps: list[Step]
    parent: Trajectory | None
    first_index: int
    uid: str = ""


def trajectories(roots: Sequence[Step]) -> list[Trajectory]:
    """Cut trees into trajectories.

    Args:
        roots: steps without a parent; choices of one call are samples of one another.

    Returns:
        Trajectories, each with its steps in order; every step below the roots is in exactly one.
    """
    for step in _children_first(roots):
        step.latest = max([step.request.order, *(c.latest for c in step.children)])
    heads: list[tuple[list[Step], Trajectory | None, int]] = []
    by_call: dict[int, list[Step]] = {}
    for step in roots:
        by_call.setdefault(id(step.request), []).append(step)
    heads.extend((group, None, 0) for group in by_call.values())
    found: list[Trajectory] = []
    while heads:
        siblings, parent, first_index = heads.pop()
        found.extend(_split(siblings, parent, first_index, heads))
    return sorted(found, key=lambda t: (t.steps[0].request.order, t.steps[0].choice_index))


def _split(
    siblings: list[Step],
    parent: Trajectory | None,
    first_index: int,
    heads: list[tuple[list[Step], Trajectory | None, int]],
) -> Iterable[Trajectory]:
    """Follow the live path from one call's choices; leave what turns off as new heads."""
    live = _live(siblings)
    kind = "branch" if parent is not None else live.request.kind or "main"
    trajectory = Trajectory(kind, [], parent, first_index)
    for other in siblings:
        if other is not live:
            yield from _sample(other, trajectory, first_index, heads)
    yield trajectory
    yield from _follow(live, trajectory, heads)


def _follow(
    live: Step,
    trajectory: Trajectory,
    heads: list[tuple[list[Step], Trajectory | None, int]],
) -> Iterable[Trajectory]:
    while True:
        trajectory.steps.append(live)
        if not live.children:
            return
        next_live = _live(live.children)
        index = trajectory.first_index + len(trajectory.steps)
        by_call: dict[int, list[Step]] = {}
        for child in live.children:
            if child is not next_live:
                by_call.setdefault(id(child.request), []).append(child)
        for call, group in by_call.items():
            if call == id(next_live.request):
                for other in group:
                    yield from _sample(other, trajectory, index, heads)
            else:
                heads.append((group, trajectory, index))
        live = next_live


def _sample(
    step: Step,
    beside: Trajectory,
    first_index: int,
    heads: list[tuple[list[Step], Trajectory | None, int]],
) -> Iterable[Trajectory]:
    trajectory = Trajectory("sample", [], beside, first_index)
    yield trajectory
    yield from _follow(step, trajectory, heads)


def _live(siblings: list[Step]) -> Step:
    """Choose who stays: the latest subtree, and choice 0 among choices that nobody followed."""
    return max(siblings, key=lambda s: (s.latest, -s.choice_index))


def _children_first(roots: Sequence[Step]) -> list[Step]:
    found: list[Step] = []
    stack = list(roots)
    while stack:
        step = stack.pop()
        found.append(step)
        stack.extend(step.children)
    return found[::-1]
