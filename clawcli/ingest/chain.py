"""Link calls into trajectories: which step did this call continue, and who stays on the live path.

Two phases, so that the order of arrival never matters: all steps are registered by their hashes,
then linked in the order (started_at, number of messages, content hash, native id). The tiers that
find a predecessor, and why each exists, are CHAINING.md's; the stored prefix is then the longest
common prefix of the predecessor's messages plus action and this state. A message counts as common
only where nothing at all of it changed: a client that strips reasoning from its next request has
shown the model another state, which the child restates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from clawcli import messages
from clawcli.ingest.calls import Call, Choice, Digested, History
from clawcli.messages import hash128


@dataclass(slots=True, eq=False)
class Step:
    """One choice of one call, and its place among the others once it is linked."""

    call: Call
    choice: Choice
    state_hash: bytes
    next_hash: bytes
    uid: str = ""
    rank: int = 0
    """Place of the call in the linking order; choices of one call share it."""
    parent: Step | None = None
    prefix_messages: int = 0
    prefix_broken: str | None = None
    ambiguous: bool = False
    children: list[Step] = field(default_factory=list)
    latest: int = 0
    """Highest rank in the subtree below."""
    kind: str = "main"
    trajectory: Trajectory | None = None


@dataclass(slots=True, eq=False)
class Trajectory:
    """Steps of one attempt, in order; a branch or sample begins at its branch point."""

    kind: str
    steps: list[Step]
    parent: Trajectory | None
    first_index: int
    uid: str = ""

    @property
    def root(self) -> Step:
        """First step of the attempt that this trajectory belongs to."""
        trajectory = self
        while trajectory.parent is not None:
            trajectory = trajectory.parent
        return trajectory.steps[0]


def restated_frac(steps: Sequence[Step]) -> float:
    """Measure how much text broken links made steps repeat.

    Returns:
        Characters of observations whose message stood in the predecessor's state or action, by
        the characters of all observations; 0 to 1.
    """
    repeated = total = 0
    for step in steps:
        items = step.call.history.items[step.prefix_messages : step.call.num_messages]
        sizes = [len(item.message.content or item.message.parts or "") for item in items]
        total += sum(sizes)
        if step.parent is None or step.prefix_broken is None:
            continue
        before = step.parent.call
        shown = {item.exact for item in before.history.items[: before.num_messages]}
        shown.add(step.parent.choice.action.exact)
        repeated += sum(
            size for item, size in zip(items, sizes, strict=True) if item.exact in shown
        )
    return repeated / total if total else 0.0


def make_steps(calls: Iterable[Call]) -> list[Step]:
    """Make one step per choice, with its hashes and uid."""
    steps = []
    for call in calls:
        state = call.history.exact[call.num_messages]
        for choice in call.choices:
            after = messages.extend(state, choice.action.exact)
            step = Step(call, choice, state, after)
            key = call.native_id or [call.source_uid, call.record, call.ordinal]
            step.uid = hash128(call.log_format, key, choice.index, after)
            steps.append(step)
    return steps


def link(steps: Sequence[Step]) -> list[Trajectory]:
    """Link steps to their predecessors and cut the trees into trajectories.

    Args:
        steps: distinct steps of one run, in any order; they are changed in place.

    Returns:
        Trajectories, each with its steps in order; every step is in exactly one.
    """
    calls = _ordered_calls(steps)
    index = _Index(calls)
    # edited histories come second: only when all others are linked is it certain that no circle
    # arises, and without timestamps nothing else tells what was earlier
    unlinked = [choices for choices in calls if not index.attach(choices, edited=False)]
    for choices in unlinked:
        index.attach(choices, edited=True)
    return _trajectories([step for choices in calls for step in choices])


def _ordered_calls(steps: Sequence[Step]) -> list[list[Step]]:
    """Group steps by call and bring the calls into the linking order."""
    groups: dict[int, list[Step]] = {}
    for step in steps:
        groups.setdefault(id(step.call), []).append(step)
    calls = sorted(groups.values(), key=_order)
    for rank, choices in enumerate(calls):
        choices.sort(key=lambda s: s.choice.index)
        for step in choices:
            step.rank = step.latest = rank
    return calls


def _order(choices: list[Step]) -> tuple[float, int, bytes, str]:
    call = choices[0].call
    started = call.started_at if call.started_at is not None else 0.0
    return started, call.num_messages, min(s.next_hash for s in choices), call.native_id or ""


def _attach(step: Step, parent: Step, cause: str | None, ambiguous: bool) -> None:
    step.parent, step.ambiguous = parent, ambiguous
    parent.children.append(step)
    step.prefix_messages = _common_prefix(step, parent)
    whole = parent.call.num_messages + 1
    step.prefix_broken = None if step.prefix_messages == whole else cause or "history_edited"


def _common_prefix(step: Step, parent: Step) -> int:
    """Count the messages that a state shares with its predecessor's messages and action."""
    ours, theirs = step.call.history.exact, parent.call.history.exact
    before = parent.call.num_messages
    if step.call.num_messages > before and ours[before + 1] == parent.next_hash:
        return before + 1
    # chained hashes agree up to the first difference and never after it
    low, high = 0, min(before, step.call.num_messages)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ours[middle] == theirs[middle] else (low, middle - 1)
    return low


class _Index:
    """All steps of a run by the hashes that a request can be looked up with."""

    def __init__(self, calls: Sequence[list[Step]]) -> None:
        self.choices: dict[int, list[Step]] = {id(choices[0].call): choices for choices in calls}
        self.by_next: dict[bytes, list[Step]] = defaultdict(list)
        self.by_loose: dict[bytes, list[Step]] = defaultdict(list)
        self.by_state: dict[bytes, list[Step]] = defaultdict(list)
        self.by_action: dict[bytes, list[Step]] = defaultdict(list)
        self.by_call: dict[int, Step] = {}
        for step in (step for choices in calls for step in choices):
            call, action = step.call, step.choice.action
            self.by_call.setdefault(id(call), step)
            if call.is_cut:
                continue  # nobody continues a finished conversation
            self.by_next[step.next_hash].append(step)
            loose = messages.extend(call.history.loose[call.num_messages], action.loose)
            self.by_loose[loose].append(step)
            self.by_state[step.state_hash].append(step)
            self.by_action[action.loose].append(step)

    def attach(self, choices: list[Step], *, edited: bool) -> bool:
        """Link the choices of one call to their predecessor; False where none was found."""
        found = self._predecessor(choices[0], edited=edited)
        if found is None:
            return False
        for step in choices:
            _attach(step, *found)
        return True

    def _predecessor(self, step: Step, *, edited: bool) -> tuple[Step, str | None, bool] | None:
        """Find the step that a call continued, the cause of a break, and whether others fit too."""
        call = step.call
        if call.is_cut:
            if call.follows is None:
                return None
            explicit = self.by_call.get(id(call.follows))
            return None if explicit is None else (explicit, None, False)
        last = _last_assistant(call)
        for cause, candidates in self._tiers(step, last, edited=edited):
            allowed = [c for c in candidates if self._may_precede(c, call)]
            if allowed:
                best, ambiguous = _choose(allowed, step, last, newest=cause == "history_edited")
                return best, _name(cause, best, step, last), ambiguous
        return None

    def _tiers(
        self, step: Step, last: int, *, edited: bool
    ) -> Iterable[tuple[str | None, list[Step]]]:
        """Yield candidates, the strongest evidence first; last is that of _last_assistant."""
        history, timed = step.call.history, step.call.started_at is not None
        if not edited:
            for place in range(step.call.num_messages - 1, last, -1):
                # a state that went on without its action: the user broke in, or the call was lost
                if place and history.items[place].message.role != "assistant":
                    before = self.by_state.get(history.exact[place], ())
                    yield "no_action", [s for s in before if s.rank < step.rank]
            if last:
                yield None, self.by_next.get(history.exact[last], [])
                yield "reasoning_changed", self.by_loose.get(history.loose[last], [])
            return
        if not last:
            return
        # from here on the evidence is weak, so that time and other followers speak against it
        for cause, candidates in self._weak_tiers(history, last):
            yield (
                cause,
                [
                    c
                    for c in candidates
                    if (c.rank < step.rank or not timed)
                    and (cause == "history_edited" or not _is_continued(c))
                ],
            )

    def _weak_tiers(self, history: History, last: int) -> Iterable[tuple[str, list[Step]]]:
        yield "action_differs", self.by_state.get(history.exact[last - 1], [])
        yield "history_edited", self.by_action.get(history.items[last - 1].loose, [])
        for place in range(last - 1, 0, -1):
            chain = history.exact[place]
            yield "gap", self.by_next.get(chain) or self.by_state.get(chain, [])

    def _may_precede(self, candidate: Step, call: Call) -> bool:
        """Tell whether nothing speaks against a link: labels that differ, or a circle."""
        for name in ("task_id", "trial", "agent"):
            ours, theirs = getattr(call, name), getattr(candidate.call, name)
            if ours is not None and theirs is not None and ours != theirs:
                return False
        if candidate.call is call:
            return False
        if not any(step.children for step in self.choices[id(call)]):
            return True
        above: Step | None = candidate
        while above is not None and above.call is not call:
            above = above.parent
        return above is None


def _is_continued(step: Step) -> bool:
    """Tell whether some call went on from a step's own action."""
    return any(child.prefix_broken is None for child in step.children)


def _last_assistant(call: Call) -> int:
    """Number of messages up to and with the last assistant message of the state; 0 = none."""
    for place in range(call.num_messages, 0, -1):
        if call.history.items[place - 1].message.role == "assistant":
            return place
    return 0


def _choose(
    candidates: list[Step], step: Step, last: int | None, *, newest: bool
) -> tuple[Step, bool]:
    """Break ties: the request's tool-call ids, same system and tools, no child yet, the order."""
    items = step.call.history.items
    asked = _call_ids(items[last - 1 : last]) if last else []
    before = _call_ids(items[: step.call.num_messages])

    def same_history(candidate: Step) -> bool:
        ids = _call_ids(candidate.call.history.items[: candidate.call.num_messages])
        return bool(ids) and before[: len(ids)] == ids

    wishes: list[Callable[[Step], bool]] = [
        lambda c: bool(asked) and _call_ids([c.choice.action]) == asked,
        same_history,
        lambda c: (c.call.system, c.call.tools) == (step.call.system, step.call.tools),
        lambda c: not c.children,
    ]
    left = candidates
    for wish in wishes:
        if len(left) > 1:
            left = [c for c in left if wish(c)] or left
    ambiguous = len(left) > 1 and not newest
    return (max if newest else min)(left, key=lambda c: c.rank), ambiguous


def _call_ids(items: Sequence[Digested]) -> list[str]:
    """List the ids of all tool calls in some messages; ids tell equal conversations apart."""
    return [call.id for item in items for call in item.message.tool_calls or () if call.id]


def _name(cause: str | None, parent: Step, step: Step, last: int) -> str | None:
    if cause != "action_differs":
        return cause
    said = messages.text_of(parent.choice.action.message)
    shown = messages.text_of(step.call.history.items[last - 1].message)
    trimmed = said and shown and shown.startswith(said)
    return "stop_trimmed" if trimmed and not parent.choice.action.message.tool_calls else cause


def _trajectories(ordered: Sequence[Step]) -> list[Trajectory]:
    for step in _children_first(ordered):
        if step.parent is not None:
            step.parent.latest = max(step.parent.latest, step.latest)
    heads: list[tuple[list[Step], Trajectory | None, int]] = []
    roots: dict[int, list[Step]] = {}
    for step in ordered:
        if step.parent is None:
            roots.setdefault(id(step.call), []).append(step)
    heads.extend((group, None, 0) for group in roots.values())
    found = []
    while heads:
        siblings, parent, first_index = heads.pop()
        found.extend(_split(siblings, parent, first_index, heads))
    return sorted(found, key=lambda t: t.steps[0].rank)


def _split(
    siblings: list[Step],
    parent: Trajectory | None,
    first_index: int,
    heads: list[tuple[list[Step], Trajectory | None, int]],
) -> Iterable[Trajectory]:
    """Follow the live path from one call's choices; leave what turns off as new heads."""
    live = _live(siblings)
    trajectory = Trajectory("main" if parent is None else live.kind, [], parent, first_index)
    for other in siblings:
        if other is not live:
            yield from _sample(other, trajectory, first_index, heads)
    yield trajectory
    while True:
        trajectory.steps.append(live)
        live.trajectory, live.kind = trajectory, trajectory.kind
        if not live.children:
            return
        next_live = _live(live.children)
        index = first_index + len(trajectory.steps)
        by_call: dict[int, list[Step]] = {}
        for child in live.children:
            if child is not next_live:
                by_call.setdefault(id(child.call), []).append(child)
        for call, group in by_call.items():
            if call == id(next_live.call):
                for other in group:
                    yield from _sample(other, trajectory, index, heads)
            else:
                for member in group:
                    member.kind = "branch"
                heads.append((group, trajectory, index))
        live = next_live


def _sample(
    step: Step,
    beside: Trajectory,
    first_index: int,
    heads: list[tuple[list[Step], Trajectory | None, int]],
) -> Iterable[Trajectory]:
    step.kind = "sample"
    yield from _split([step], beside, first_index, heads)


def _live(siblings: list[Step]) -> Step:
    """Choose who stays: the latest subtree, and choice 0 among choices that nobody followed."""
    return max(siblings, key=lambda s: (s.latest, -s.choice.index))


def _children_first(ordered: Sequence[Step]) -> list[Step]:
    found: list[Step] = []
    stack = [step for step in ordered if step.parent is None]
    while stack:
        step = stack.pop()
        found.append(step)
        stack.extend(step.children)
    return found[::-1]
