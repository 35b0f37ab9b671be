"""Turn the tree of a session into calls, each with the conversation that it saw.

A session log is a tree of turns: what the model answered, what was said to it, what it never saw.
A format builds the turns and says which one each continues; `weave` walks the tree and gives every
call its state and the call before it, and every record that came to nothing its fate.

What would surprise: a turn that compacts the conversation `resets` it, and may `keep` earlier
turns, whose messages then come again behind its own. The call after it follows the call before it
all the same: the attempt goes on, with another history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clawcli.ingest.calls import Call, Session
from clawcli.ingest.conversations import EMPTY, Digested, Node
from clawcli.ingest.fates import Fate


@dataclass(slots=True, eq=False)
class Turn:
    """One turn of a session: an answer with its tool results, or something else in the log."""

    records: list[int]
    """Ordinals of the records that it consists of."""
    said: list[Digested] = field(default_factory=list)
    """Messages that later calls see; of an answer, those behind its action."""
    call: Call | None = None
    """The call, where the turn is an answer."""
    parent: Turn | None = None
    """The turn that this one continues; null = it begins a conversation."""
    attempt: str | None = None
    """Key of the attempt that it belongs to."""
    resets: bool = False
    """Later calls see nothing of what came before this turn."""
    keep: list[Turn] = field(default_factory=list)
    """Earlier turns whose messages come again behind this one's."""
    fate: Fate | None = None
    """Why its records are in no state and no action, where the turn itself tells."""
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What was logged beside its messages; becomes metadata of the first call that sees it."""
    codes: list[str] = field(default_factory=list)
    """Warnings for the first call that sees it."""
    damage: list[str] = field(default_factory=list)
    """Warnings for all calls that see it."""
    # filled by weave
    end: Node = EMPTY
    """The conversation after this turn."""
    newest: Turn | None = None
    """The newest answer up to and with this turn."""
    visible: Turn | None = None
    """The same, unless the conversation began anew since."""
    is_used: bool = False

    @property
    def messages(self) -> list[Digested]:
        """All that this turn adds to a conversation."""
        return [self.call.choices[0].action, *self.said] if self.call else self.said


def parents_first(turns: Sequence[Turn]) -> list[Turn]:
    """Order turns so that each comes behind the one that it continues.

    A circle has no beginning: it is cut before the member that comes first in the log, and all
    that see it are warned with parent_cycle.
    """
    places = {id(turn): place for place, turn in enumerate(turns)}
    found: list[Turn] = []
    done: set[int] = set()
    for turn in turns:
        climbed: dict[int, Turn] = {}
        at: Turn | None = turn
        while at is not None and id(at) not in done:
            if id(at) in climbed:
                circle = list(climbed.values())[list(climbed).index(id(at)) :]
                first = min(circle, key=lambda member: places[id(member)])
                first.parent = None
                first.damage.append("parent_cycle")
                climbed, at = {}, turn
            else:
                climbed[id(at)] = at
                at = at.parent
        done.update(climbed)
        found.extend(reversed(climbed.values()))
    return found


def path(first: Turn | None, last: Turn | None) -> list[Turn]:
    """List the turns from one to a later one that continues it; none where it does not."""
    found: dict[int, Turn] = {}
    while first is not None and last is not None and id(last) not in found:
        found[id(last)] = last
        if last is first:
            return list(found.values())[::-1]
        last = last.parent
    return []


def weave(turns: Sequence[Turn]) -> Session:
    """Give each answer its place in the conversation, and each record without one its fate.

    Args:
        turns: all turns of one source in the order of the log, each with its parent among them.
            Their calls are changed in place: state, follows, is_cut, final_observation; warnings
            and metadata["observation"] grow by what the turns before them say.

    Returns:
        The calls in the order of the log, and the fates of the records that are in none.
    """
    for turn in parents_first(turns):
        _place(turn)
    answers = [turn for turn in turns if turn.call is not None]
    followed = {id(turn.parent.visible) for turn in answers if turn.parent and not turn.resets}
    # of several ends behind the last answer, the newest in the log is where the session stands
    ends = {id(turn.visible): turn for turn in turns if not turn.call and not turn.fate}
    for turn in answers:
        _see(turn)
        if id(turn) not in followed:
            _finish(turn, ends.get(id(turn)))
    session = Session([turn.call for turn in answers if turn.call], _fates(turns))
    for turn in turns:
        turn.newest = turn.visible = None  # a circle of itself would keep its whole source
    return session


def _place(turn: Turn) -> None:
    """Continue the conversation of the parent with one turn."""
    before = turn.parent
    turn.newest = before.newest if before else None
    if before and not turn.resets:
        turn.end, turn.visible = before.end, before.visible
        turn.damage = list(dict.fromkeys(before.damage + turn.damage))
    if turn.call:
        turn.call.is_cut, turn.call.state = True, turn.end
        turn.call.follows = turn.newest.call if turn.newest else None
        if turn.visible and not _is_answered(turn.visible, turn.end):
            turn.damage = list(dict.fromkeys([*turn.damage, "tool_result_missing"]))
        turn.newest = turn.visible = turn
    for item in (*turn.messages, *(item for kept in turn.keep for item in kept.messages)):
        turn.end = turn.end.then(item)


def _is_answered(answer: Turn, end: Node) -> bool:
    """Tell whether each tool call of an answer has a result in what came after it."""
    action, *after = end.after(answer.end.depth - len(answer.messages))
    wanted = [call.id for call in action.message.tool_calls or ()]
    given = [item.message.tool_call_id for item in after if item.message.role == "tool"]
    return len(given) >= len(wanted) and (None in (*wanted, *given) or set(given) >= set(wanted))


def _see(turn: Turn) -> None:
    """Mark what one call was the first to see, and take over what was logged with it."""
    call = turn.call
    assert call is not None
    turn.is_used = True
    seen = [] if turn.resets else _since_answer(turn.parent)
    before = turn.parent.visible if turn.parent and not turn.resets else None
    if before:
        seen.insert(0, before)
    for other in seen:
        for used in (other, *other.keep):
            used.is_used = True
    codes = [*turn.damage, *(code for other in seen for code in other.codes)]
    call.warnings = list(dict.fromkeys([*call.warnings, *codes]))
    if notes := [note for other in seen for note in other.notes]:
        call.metadata = {**(call.metadata or {}), "observation": notes}


def _finish(turn: Turn, end: Turn | None) -> None:
    """Give the last call of a conversation what came after its action."""
    call = turn.call
    assert call is not None
    rest = [turn, *_since_answer(end)]
    for other in rest:
        other.is_used = True
    call.final_observation = [item.message for other in rest for item in other.said] or None
    if notes := [note for other in rest for note in other.notes]:
        call.metadata = {**(call.metadata or {}), "final_observation": notes}


def _since_answer(turn: Turn | None) -> list[Turn]:
    """List the turns of one conversation behind its newest answer, up to and with this one."""
    found: list[Turn] = []
    while turn is not None and turn.call is None:
        found.append(turn)
        turn = None if turn.resets else turn.parent
    return found[::-1]


def _fates(turns: Sequence[Turn]) -> dict[int, Fate]:
    fates: dict[int, Fate] = {}
    answered = {turn.attempt for turn in turns if turn.call}
    empty: set[str | None] = set()
    used = {record for turn in turns if turn.is_used and not turn.fate for record in turn.records}
    for turn in turns:
        fate = turn.fate
        if fate is None and turn.attempt in answered:
            fate = Fate("ignored", "dead_branch", "the session went on elsewhere, unanswered here")
        elif fate is None and turn.attempt in empty:
            fate = Fate("ignored", "no_answer", "the session holds no answer of a model")
        elif fate is None:
            empty.add(turn.attempt)
            fate = Fate("rejected", "empty_trajectory", "the session holds no answer of a model")
        for record in turn.records:
            if record not in used:
                fates.setdefault(record, fate)
    return fates


def rest(values: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """Keep of logged values what has no place of its own and says something: the metadata.

    Example:
        >>> rest({"id": "a", "model": "m", "isMeta": False, "cwd": "/x"}, "model")
        {'id': 'a', 'cwd': '/x'}
    """
    silent = (None, False, "", [], {})
    return {key: value for key, value in values.items() if key not in known and value not in silent}
