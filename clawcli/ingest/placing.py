"""Decide what linking decides about a row: its trajectory, its place there, its group, its reward.

Trees of linked steps come in; each step leaves with a Placement. The same trees give the same
placements however many commits they came in, so what changed in a table is found by comparing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from clawcli.ingest import trajectories
from clawcli.ingest.stepgraph import Placement, Request, Step
from clawcli.ingest.trajectories import Trajectory
from clawcli.messages import hash128

_YEAR_10000_S = 253_402_300_800
_DAY_US = 86_400_000_000


def tree(root: Step) -> Iterator[Step]:
    """Walk a tree of steps, parents first."""
    stack = [root]
    while stack:
        step = stack.pop()
        yield step
        stack.extend(step.children)


def place(roots: Sequence[Step]) -> list[Step]:
    """Give each step of some trees its Placement.

    Args:
        roots: steps without a parent, all choices of a call together.

    Returns:
        All steps of the trees, steps of one trajectory in order.
    """
    alone = [step for step in roots if _is_alone(step)]
    for step in alone:
        _place_alone(step)
    if len(alone) == len(roots):
        return alone
    found = trajectories.trajectories([step for step in roots if not _is_alone(step)])
    _name(found)
    for trajectory in found:
        _place(trajectory)
    return alone + [step for trajectory in found for step in trajectory.steps]


def _is_alone(step: Step) -> bool:
    """Tell whether an attempt is one step, named by itself: most calls of a log of single calls."""
    request = step.request
    return not step.children and len(request.choices) == 1 and request.trajectory is None


def _place_alone(step: Step) -> None:
    request = step.request
    kind = request.kind or "main"
    step.latest = request.order
    reward = request.reward if request.reward is not None else request.trajectory_reward
    step.placed = Placement(
        None,
        step.prefix_messages,
        step.prefix_broken,
        hash128(step.uid, kind),
        request.parent_trajectory,
        kind,
        0,
        _group(request, step, request.task_id, request.agent),
        request.task_id,
        request.trial,
        request.agent,
        reward,
        request.trajectory_reward,
        None if reward is None else "log",
        request.loss_weight,
        _date(request.started_us if request.started_us is not None else request.ended_us),
    )


def _group(root: Request, first: Step, task_id: str | None, agent: str | None) -> str:
    """Name the group of an attempt: of its task where one is logged, else of its beginning."""
    if task_id is not None:
        return hash128(root.log_format, task_id, root.system, root.tools, agent)
    if not root.depth:
        return hash128(first.uid)  # nothing is known of what it was asked
    return hash128(root.system, root.tools, root.state_hash)


def _name(found: Iterable[Trajectory]) -> None:
    """Give each trajectory its uid: of the logged key where there is one, else of its first step."""
    taken: set[str] = set()
    for trajectory in found:
        first = trajectory.steps[0]
        uid = hash128(first.uid, trajectory.kind)
        logged = first.request.trajectory
        # a key that a source uses twice does not join two attempts
        if logged is not None and trajectory.parent is None and logged not in taken:
            uid = logged
        taken.add(uid)
        trajectory.uid = uid


def _place(trajectory: Trajectory) -> None:
    steps = trajectory.steps
    requests = [step.request for step in _lineage(trajectory)]
    begin = _first_step(trajectory)
    first = begin.request
    task_id = _first(request.task_id for request in requests)
    agent = _first(request.agent for request in requests)
    trial = _first(request.trial for request in requests)
    episode = _first(step.request.trajectory_reward for step in reversed(steps))
    rewards = [_reward(step) for step in steps]
    logged = episode is not None or any(reward is not None for reward in rewards)
    if episode is not None and all(reward is None for reward in rewards):
        rewards[-1] = episode
    times = ((step.request.started_us, step.request.ended_us) for step in steps)
    log_date = _date(_first(time for both in times for time in both))
    group_uid = _group(first, begin, task_id, agent)
    parent = trajectory.parent.uid if trajectory.parent else first.parent_trajectory
    # the attempt went another way, and nobody judged this one
    is_unjudged = trajectory.kind == "branch" and not logged
    for place_, step in enumerate(steps):
        step.placed = Placement(
            parent_step_uid=step.parent.uid if step.parent else None,
            prefix_messages=step.prefix_messages,
            prefix_broken=step.prefix_broken,
            trajectory_uid=trajectory.uid,
            parent_trajectory_uid=parent,
            trajectory_kind=trajectory.kind,
            step_index=trajectory.first_index + place_,
            group_uid=group_uid,
            task_id=task_id,
            trial=trial,
            agent=agent,
            reward=rewards[place_],
            trajectory_reward=episode,
            reward_source="log" if logged else None,
            loss_weight=0.0 if is_unjudged else step.request.loss_weight,
            log_date=log_date,
        )


def _reward(step: Step) -> float | None:
    """Give a call's reward to the choice that it was for; of several, to the one gone on with."""
    request = step.request
    return request.reward if len(request.choices) == 1 or step.children else None


def _lineage(trajectory: Trajectory) -> Iterator[Step]:
    above: Trajectory | None = trajectory
    while above is not None:
        yield from above.steps
        above = above.parent


def _first_step(trajectory: Trajectory) -> Step:
    while trajectory.parent is not None:
        trajectory = trajectory.parent
    return trajectory.steps[0]


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def microseconds(seconds: float | None) -> int | None:
    """Turn seconds since the epoch into whole microseconds; null where no column can hold them."""
    if seconds is None or not 0 <= seconds < _YEAR_10000_S:
        return None
    return round(seconds * 1e6)


def _date(us: int | None) -> str:
    if us is None:
        return "unknown"
    day = us // _DAY_US
    if (known := _DATES.get(day)) is None:
        known = _DATES[day] = str(datetime.fromtimestamp(day * 86_400, UTC).date())
    return known


_DATES: dict[int, str] = {}
