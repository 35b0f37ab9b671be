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

from collections.abc import Callable, Collection, Iterator, Sequence

from clawcli.ingest.index import Index
from clawcli.ingest.stepgraph import Order, Request, Step, root


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
        allowed = [c for c in candidates if may_precede(c, request)]
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


def may_precede(candidate: Step, request: Request) -> bool:
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
