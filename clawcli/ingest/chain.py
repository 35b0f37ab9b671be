"""Link calls into trajectories: which step did this call continue, and who stays on the live path.

Two phases, so that the order of arrival never matters: all calls are registered by their hashes,
then linked in the order (started_at, number of messages, content hash, native id). The tiers that
find a predecessor, and why each exists, are CHAINING.md's; the stored prefix is then the longest
common prefix of the predecessor's messages plus action and this state. A message counts as common
only where nothing at all of it changed: a client that strips reasoning from its next request has
shown the model another state, which the child restates.

What was linked before stays in the Index. A call that arrives late takes back the steps that
waited for it, so a log in hourly pieces gives the trajectories of the whole. Hashes are all that
is needed: no message is looked at here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from clawcli import messages
from clawcli.ingest.conversations import Node

_HASH_BYTES = 16
_LOOSE, _STATE = b"loose:", b"state:"
Order = tuple[int, int, bytes, str]


class Request(msgspec.Struct, eq=False):
    """What chaining needs to know about one call: hashes of its state, times, labels."""

    depth: int
    """Number of messages in the state."""
    state_hash: bytes
    last: int = 0
    """Number of messages up to and with the last assistant message of the state; 0 = none."""
    lookup: bytes = messages.EMPTY_CHAIN
    """Chained hash up to last: the next_hash of the step that this call continues."""
    lookup_loose: bytes = messages.EMPTY_CHAIN
    """The same without reasoning."""
    asked_loose: bytes = b""
    """Loose digest of the last assistant message."""
    ids_asked: bytes = b""
    """Hash of the tool-call ids of the last assistant message; empty = none."""
    ids_before: bytes = b""
    """Chained hash of all tool-call ids before it."""
    ids_state: bytes = b""
    """Chained hash of all tool-call ids of the state."""
    system: bytes = b""
    tools: bytes = b""
    log_format: str = ""
    started_us: int | None = None
    """Microseconds since the epoch, as the column holds them."""
    ended_us: int | None = None
    native_id: str = ""
    task_id: str | None = None
    trial: int | None = None
    agent: str | None = None
    trajectory_reward: float | None = None
    reward: float | None = None
    loss_weight: float = 1.0
    source_uid: str = ""
    is_cut: bool = False
    """follows says all there is to know about the place of this call."""
    follows: str | None = None
    """step_uid of the step that this call continues: an explicit key."""
    trajectory: str | None = None
    """trajectory_uid from a logged key."""
    parent_trajectory: str | None = None
    """trajectory_uid of the attempt that started this one."""
    kind: str | None = None
    """subagent, where the log says so."""
    tail: tuple[bytes, ...] = ()
    """Chained hashes after last + 1 ... depth - 1 messages: states that went on without an answer
    would be there."""
    node: Node | None = None
    """The state itself, while its messages are at hand."""
    items: bytes = b""
    """Without node: exact digests of the messages of the state, 16 bytes each."""
    choices: list[Step] = []
    order: Order = (0, 0, b"", "")
    """Place of the call among all others."""

    def digests(self) -> list[bytes]:
        """List the exact digests of the messages of the state."""
        if self.node is not None:
            return [item.exact for item in self.node.after()]
        items = self.items
        return [items[i : i + _HASH_BYTES] for i in range(0, len(items), _HASH_BYTES)]

    def chain(self) -> list[bytes]:
        """List the chained hashes after 0, 1, ... depth messages."""
        if self.node is not None:
            found, node = [], self.node
            while node is not None:
                found.append(node.exact)
                node = node.parent
            return found[::-1]
        return list(accumulate(self.digests(), messages.extend, initial=messages.EMPTY_CHAIN))

    def waits_for(self) -> list[bytes]:
        """List keys of the steps that this call may continue: see Step.awaited_by."""
        found = [_STATE + hash_ for hash_ in self.tail]
        if self.last:
            found.append(self.lookup)
            found.append(_LOOSE + self.lookup_loose)
        return found

    def let_go(self) -> None:
        """Keep digests in place of messages: for a call that is committed, or that travels."""
        if self.node is not None:
            self.items, self.node = b"".join(self.digests()), None


class TokenTrace(msgspec.Struct, eq=False):
    """Hashes of the prompt and response ids that an engine logged, to find what a child shares."""

    prompt: int
    """Number of prompt ids."""
    total: int
    """Number of prompt and response ids."""
    whole: bytes
    """Hash of all of them."""
    blocks: bytes
    """Chained hashes of every 256 ids, 8 bytes each."""


class Placement(msgspec.Struct, eq=False):
    """What linking decides about a step: the columns of its row that later calls can change."""

    parent_step_uid: str | None
    prefix_messages: int
    prefix_broken: str | None
    trajectory_uid: str
    parent_trajectory_uid: str | None
    trajectory_kind: str
    step_index: int
    group_uid: str
    task_id: str | None
    trial: int | None
    agent: str | None
    reward: float | None
    trajectory_reward: float | None
    reward_source: str | None
    loss_weight: float
    log_date: str

    def values(self) -> tuple[object, ...]:
        """List the values in the order of their columns."""
        return msgspec.structs.astuple(self)


class Step(msgspec.Struct, eq=False):
    """One choice of one call, and its place among the others once it is linked."""

    uid: str
    request: Request
    choice_index: int
    next_hash: bytes
    next_loose: bytes
    action: bytes = b""
    """Exact digest of the action."""
    action_loose: bytes = b""
    ids_action: bytes = b""
    said: tuple[int, bytes] | None = None
    """Length and hash of the action's text where it has no tool calls and is not empty."""
    tokens: TokenTrace | None = None
    parent: Step | None = None
    prefix_messages: int = 0
    prefix_broken: str | None = None
    ambiguous: bool = False
    children: list[Step] = []
    latest: Order = (0, 0, b"", "")
    """Highest order in the subtree below."""
    placed: Placement | None = None
    """Where it stands now."""
    stored: Placement | None = None
    """Where it stands in the table; null = it is new."""
    stored_ambiguous: bool = False
    """Its row in the table has the warning."""

    def unlink(self) -> None:
        """Forget all about the place of the step among others."""
        self.parent, self.prefix_messages, self.prefix_broken = None, 0, None
        self.children, self.ambiguous = [], False
        self.placed = self.stored = None

    def settle(self) -> None:
        """Take in that the table says of the place what is said here."""
        self.stored, self.stored_ambiguous = self.placed, self.ambiguous

    @property
    def has_moved(self) -> bool:
        """The table says something else of its place."""
        if self.stored is None or self.placed is None:
            return False
        is_same = self.stored.values() == self.placed.values()
        return not is_same or self.stored_ambiguous != self.ambiguous

    def awaited_by(self) -> tuple[bytes, bytes, bytes]:
        """List the keys under which calls wait that may continue this step."""
        return self.next_hash, _LOOSE + self.next_loose, _STATE + self.request.state_hash


@dataclass(slots=True, eq=False)
class Trajectory:
    """Steps of one attempt, in order; a branch or sample begins at its branch point."""

    kind: str
    steps: list[Step]
    parent: Trajectory | None
    first_index: int
    uid: str = ""


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


def link(new: Sequence[Step], index: Index) -> list[Step]:
    """Link new steps to their predecessors, and steps that waited for them.

    Args:
        new: distinct steps that the index does not hold yet, in any order.
        index: what was linked before and may be touched; new steps are added to it.

    Returns:
        The roots of all trees that changed, choices of one call each by itself.
    """
    for step in new:
        index.add(step)
    requests = {id(step.request): step.request for step in new}
    touched = [root(step) for step in _take_back(new, index, requests)]
    ordered = sorted(
        (r for r in requests.values() if r.last or r.tail or r.is_cut or r.trajectory is not None),
        key=lambda request: request.order,
    )
    # edited histories come second: only when all others are linked is it certain that no circle
    # arises, and without timestamps nothing else tells what was earlier
    unlinked = [r for r in ordered if not _attach(r, index, edited=False)]
    for request in unlinked:
        _attach(request, index, edited=True)
    touched.extend(root(step) for request in requests.values() for step in request.choices)
    # two trees may have one key, and only together can they be told apart by name
    for key in {step.request.trajectory for step in new}:
        if key is not None:
            touched.extend(step for step in index.by_trajectory[key] if step.parent is None)
    roots = {step.uid: step for top in touched for step in root(top).request.choices}
    return sorted(roots.values(), key=lambda s: (s.request.order, s.choice_index))


def root(step: Step) -> Step:
    """Walk up to the step that a tree begins with."""
    while step.parent is not None:
        step = step.parent
    return step


def _take_back(new: Sequence[Step], index: Index, requests: dict[int, Request]) -> list[Step]:
    """Loosen linked steps whose predecessor is to be sought again; return what they hung on."""
    arrived = {id(step) for step in new}
    again: dict[int, Step] = {}
    if not index.waiting and not index.by_trajectory:
        return []
    for key, first in _first_orders(new).items():
        # these hang on the newest call before them with their key, or on none
        for other in index.by_trajectory[key]:
            is_weak = other.parent is None or other.prefix_broken == "history_edited"
            is_later = other.request.order > first and not other.request.is_cut
            if is_weak and is_later and id(other) not in arrived:
                again[id(other)] = other
    for step in new:
        if step.request.is_cut:
            continue
        for key in step.awaited_by():
            for waiting in index.waiting.get(key, ()):
                if id(waiting) not in arrived:
                    again[id(waiting)] = waiting
        if step.request.last and len(index.by_next.get(step.request.lookup, ())) > 1:
            # among equal candidates the order decides, so all who ask for them are asked again
            waiting = index.waiting.get(step.request.lookup, ())
            again.update((id(s), s) for s in waiting if id(s) not in arrived)
    hung_on = []
    for step in again.values():
        requests[id(step.request)] = step.request
        if step.parent is not None:
            hung_on.append(step.parent)
            step.parent.children.remove(step)
            step.parent, step.prefix_messages, step.prefix_broken = None, 0, None
            step.ambiguous = False
    return hung_on


def _first_orders(new: Sequence[Step]) -> dict[str, Order]:
    """Find the first call of each logged key among new ones that are not cut."""
    first: dict[str, Order] = {}
    for request in (step.request for step in new if not step.request.is_cut):
        key = request.trajectory
        if key is not None and (key not in first or request.order < first[key]):
            first[key] = request.order
    return first


def _attach(request: Request, index: Index, *, edited: bool) -> bool:
    """Link the choices of one call to their predecessor; False where none was found."""
    found = _predecessor(request, index, edited=edited)
    if found is None:
        return False
    parent, cause, ambiguous = found
    prefix = _common_prefix(request, parent)
    whole = parent.request.depth + 1
    for step in request.choices:
        step.parent, step.ambiguous, step.prefix_messages = parent, ambiguous, prefix
        step.prefix_broken = None if prefix == whole else cause or "history_edited"
        parent.children.append(step)
    return True


def _common_prefix(request: Request, parent: Step) -> int:
    """Count the messages that a state shares with its predecessor's messages and action."""
    before = parent.request.depth
    if request.last == before + 1 and request.lookup == parent.next_hash:
        return before + 1
    if request.depth >= before and request.chain()[before] == parent.request.state_hash:
        return before  # its action is not what the request shows, or there would be no break
    theirs = [*parent.request.digests(), parent.action]
    shared = 0
    for ours, other in zip(request.digests(), theirs, strict=False):
        if ours != other:
            break
        shared += 1
    return shared


def _predecessor(
    request: Request, index: Index, *, edited: bool
) -> tuple[Step, str | None, bool] | None:
    """Find the step that a call continued, the cause of a break, and whether others fit too."""
    if request.is_cut:
        explicit = index.by_uid.get(request.follows) if request.follows else None
        return None if explicit is None else (explicit, None, False)
    tiers = _weak_tiers(request, index) if edited else _strong_tiers(request, index)
    for cause, candidates in tiers:
        allowed = [c for c in candidates if _may_precede(c, request)]
        if allowed:
            best, ambiguous = _choose(allowed, request, newest=cause in ("history_edited", "key"))
            return best, "history_edited" if cause == "key" else cause, ambiguous
    return None


def _strong_tiers(request: Request, index: Index) -> Iterator[tuple[str | None, list[Step]]]:
    """Yield candidates, the strongest evidence first."""
    for state in reversed(request.tail):
        # a state that went on without its action: the user broke in, or the call was lost
        before = index.by_state.get(state, ())
        yield "no_action", [s for s in before if s.request.order < request.order]
    if request.last:
        yield None, index.by_next.get(request.lookup, [])
        yield "reasoning_changed", index.ending(request.lookup_loose)


def _weak_tiers(request: Request, index: Index) -> Iterator[tuple[str | None, list[Step]]]:
    """Yield candidates on weak evidence, so that time and other followers speak against them."""
    timed, order = request.started_us is not None, request.order
    for cause, candidates in _weak_candidates(request, index):
        yield (
            cause,
            [
                c
                for c in candidates
                if (c.request.order < order or not timed)
                and (cause in ("history_edited", "key") or not _is_continued(c))
            ],
        )


def _weak_candidates(request: Request, index: Index) -> Iterator[tuple[str, list[Step]]]:
    if request.last:
        chain = request.chain()
        yield "action_differs", index.by_state.get(chain[request.last - 1], [])
        yield "history_edited", index.by_action.get(request.asked_loose, [])
        for place in range(request.last - 1, 0, -1):
            yield "gap", index.by_next.get(chain[place]) or index.by_state.get(chain[place], [])
    if request.trajectory is not None:
        same = index.by_trajectory.get(request.trajectory, ())
        yield "key", [s for s in same if s.request.order < request.order]


def _may_precede(candidate: Step, request: Request) -> bool:
    """Tell whether nothing speaks against a link: labels that differ, or a circle."""
    theirs = candidate.request
    if theirs is request or theirs.is_cut:
        return False
    for ours, other in (
        (request.task_id, theirs.task_id),
        (request.trial, theirs.trial),
        (request.agent, theirs.agent),
        (request.trajectory, theirs.trajectory),
    ):
        if ours is not None and other is not None and ours != other:
            return False
    if not any(step.children for step in request.choices):
        return True
    above: Step | None = candidate
    while above is not None and above.request is not request:
        above = above.parent
    return above is None


def _is_continued(step: Step) -> bool:
    """Tell whether some call went on from a step's own action."""
    return any(child.prefix_broken is None for child in step.children)


def _choose(candidates: list[Step], request: Request, *, newest: bool) -> tuple[Step, bool]:
    """Break ties: the request's tool-call ids, same system and tools, no child yet, the order."""
    if len(candidates) == 1:
        return candidates[0], False
    wishes: list[Callable[[Step], bool]] = [
        lambda c: bool(request.ids_asked) and c.ids_action == request.ids_asked,
        lambda c: bool(c.request.ids_state) and c.request.ids_state == request.ids_before,
        lambda c: (c.request.system, c.request.tools) == (request.system, request.tools),
        lambda c: not c.children,
    ]
    left = candidates
    for wish in wishes:
        if len(left) > 1:
            left = [c for c in left if wish(c)] or left
    ambiguous = len(left) > 1 and not newest
    return (max if newest else min)(left, key=lambda c: c.request.order), ambiguous


def restated(step: Step) -> Collection[int]:
    """Find the messages that a broken link made a step repeat.

    Returns:
        Places in the state, from prefix_messages on, whose message stood in the predecessor's
        state or was its action.
    """
    if step.parent is None or step.prefix_broken is None:
        return ()
    shown = {*step.parent.request.digests(), step.parent.action}
    ours = step.request.digests()
    return [i for i in range(step.prefix_messages, len(ours)) if ours[i] in shown]


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
