"""OpenAI Responses API as it is logged: pairs of HTTP bodies, bare responses, dumps of streams.

One response is one call. A request that names a previous_response_id or a conversation holds what
is new alone, so all records of a file are looked at together, in whatever order they stand: the
state is that of the previous response, its output, and the input. A call of /responses/compact
makes a compaction step, whose output takes the place of the history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context, Session
from clawcli.ingest.conversations import EMPTY, Node, conversation, split_system
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import completions, events, items, pairs, responses, streams
from clawcli.ingest.values import seconds, text

NAME = "openai_responses"

_OBJECTS = (responses.RESPONSE, responses.COMPACTION)


@dataclass(slots=True, eq=False)
class _Turn:
    """One answered request of the file, and the conversation after it."""

    records: list[int]
    request: dict[str, Any] | None
    """Its parameters; null = not logged."""
    response: dict[str, Any]
    beside: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    previous: _Turn | None = None
    call: Call | None = None
    lead: str = ""
    """Leading system text of the input that the chain began with."""
    after: Node = EMPTY
    after_lead: Node = EMPTY
    """The same with the leading system text as a message."""
    is_partial: bool = False
    is_placed: bool = False

    @property
    def uid(self) -> str | None:
        return text(self.response.get("id"))

    @property
    def previous_id(self) -> str | None:
        return text(self._named("previous_response_id"))

    @property
    def talk(self) -> str | None:
        """Id of the conversation that the server keeps."""
        named = self._named("conversation")
        return text(named.get("id") if isinstance(named, dict) else named)

    @property
    def inputs(self) -> list[dict[str, Any]]:
        value = (self.request or {}).get("input")
        return [i for i in value if isinstance(i, dict)] if isinstance(value, list) else []

    def _named(self, key: str) -> Any:
        return (self.request or {}).get(key) or self.response.get(key)


@dataclass(slots=True)
class _File:
    """What the records of one file are."""

    turns: list[_Turn] = field(default_factory=list)
    events: list[streams.Numbered] = field(default_factory=list)
    started: dict[str, Any] = field(default_factory=dict)
    """Items that conversations were created with, by id."""
    added: set[str] = field(default_factory=set)
    """Conversations that items were added to by other calls."""
    fates: dict[int, Fate] = field(default_factory=dict)

    def drop(self, turn: _Turn, fate: Fate) -> None:
        self.fates |= dict.fromkeys(turn.records, fate)


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if record.get("object") in _OBJECTS and "output" in record:
        return None
    if str(record.get("type")).startswith("response."):
        return None if {"response", "output_index"} & record.keys() else "no stream event"
    response, _ = pairs.body_of(record.get("response"))
    if isinstance(response, dict) and response.get("object") in _OBJECTS:
        return None
    request, _ = pairs.body_of(record.get("request"))
    if not isinstance(request, dict) or "input" not in request:
        return "no input in the request"
    logged = record["request"]
    if isinstance(logged, dict) and "url" in logged:
        return None if _is_responses(logged["url"]) else "the request is to another address"
    stream = streams.parse(response)
    if stream is not None and str(stream.events[0].get("type")).startswith("response."):
        return None
    return "the response is none of the Responses API"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Make a call of each response, with the state that its chain adds up to."""
    file = _File()
    for ordinal, record in records.items():
        try:
            _open(ordinal, record, file)
        except Fate as fate:
            file.fates[ordinal] = fate
    for group in events.response_groups(file.events):
        response = events.responses_response(event for _, event in group)
        file.turns.append(_Turn([ordinal for ordinal, _ in group], None, response))
    turns = []
    for turn in _without_repeats(file):
        try:
            responses.check(turn.response)
        except Fate as fate:
            file.drop(turn, fate)
        else:
            turns.append(turn)
    _connect(turns, file)
    for turn in turns:
        for due in _due(turn):
            _place(due, file.started)
    return Session([turn.call for turn in turns if turn.call is not None], file.fates)


def _open(ordinal: int, record: dict[str, Any], file: _File) -> None:
    """Take in one record.

    Raises:
        Fate: no response comes of it.
    """
    if str(record.get("type")).startswith("response.") or record.get("type") == "error":
        file.events.append((ordinal, record))
        return
    if "response" not in record:
        if record.get("object") not in _OBJECTS:
            raise Fate("rejected", "no_response", "the record holds no response")
        file.turns.append(_Turn([ordinal], None, record))
        return
    logged = record.get("request")
    request, _ = pairs.body_of(logged)
    request = request if isinstance(request, dict) and request else None
    response, status = pairs.body_of(record["response"])
    if status is not None and status >= 400:
        raise pairs.failed(f"has status {status}")
    url = logged.get("url") if isinstance(logged, dict) else None
    if url is not None and not _is_responses(url):
        _open_talk(pairs.path_of(url), request or {}, response, file)
        return
    if not isinstance(response, dict):
        stream = streams.parse(response)
        if stream is None:
            raise Fate("rejected", "no_response", "the response is neither an object nor a stream")
        response = events.responses_response(stream.events)
    if response.get("deleted"):
        raise pairs.other_call(None)
    beside = completions.rest(record, frozenset({"request", "response"}))
    file.turns.append(_Turn([ordinal], request, response, beside))


def _is_responses(url: Any) -> bool:
    """Tell whether an address is that of a response, or of the call that compacts one."""
    path = pairs.path_of(url).split("/")
    return "responses" in path[-2:] and path[-1] != "input_tokens"


def _open_talk(path: str, request: dict[str, Any], response: Any, file: _File) -> None:
    """Take in a call that creates a conversation or adds to it.

    Raises:
        Fate: it is another call.
    """
    uid = response.get("id") if isinstance(response, dict) else None
    if path.endswith("/conversations") and isinstance(uid, str):
        file.started[uid] = request.get("items") or []
        return
    if path.endswith("/items") and "/conversations/" in path and "items" in request:
        file.added.add(path.split("/")[-2])
        return
    raise pairs.other_call(path)


def _without_repeats(file: _File) -> list[_Turn]:
    """Leave out responses that were fetched again; what was last said of one stands."""
    by_id: dict[Any, list[_Turn]] = {}
    for turn in file.turns:
        by_id.setdefault(turn.uid or id(turn), []).append(turn)
    kept = []
    for same in by_id.values():
        final = next((t for t in reversed(same) if responses.is_final(t.response)), same[-1])
        first = next((t for t in same if t.request is not None), same[0])
        answers: set[bytes] = set()
        for turn in (first, *(turn for turn in same if turn is not first)):
            was_final = responses.is_final(turn.response)
            if not was_final:
                turn.response = final.response
            answer = msgspec.json.encode(turn.response.get("output"))
            is_known = turn is not first and (not was_final or answer in answers)
            if is_known and turn.request is None:
                file.drop(turn, _FETCHED)
                continue
            answers.add(answer)
            kept.append(turn)
    return kept


_FETCHED = Fate("duplicate", "fetched_again", "the response is that of another record")


def _connect(turns: list[_Turn], file: _File) -> None:
    """Find the turn that each one continues."""
    by_id = {turn.uid: turn for turn in turns if turn.uid}
    compacted = {
        text(item.get("encrypted_content")): turn
        for turn in turns
        for item in turn.response["output"]
        if isinstance(item, dict) and item.get("type") == "compaction"
    }
    talks: dict[str, list[_Turn]] = {}
    for turn in turns:
        if turn.previous_id:
            turn.previous = by_id.get(turn.previous_id)
            if turn.previous is None:
                _mark_partial(turn, "previous_response_missing")
        elif turn.talk:
            talks.setdefault(turn.talk, []).append(turn)
        else:
            opaque = [i for i in turn.inputs if i.get("type") == "compaction"]
            last = text(opaque[-1].get("encrypted_content")) if opaque else None
            turn.previous = None if last is None else compacted.get(last)
    for uid, talk in talks.items():
        ordered = _in_order(talk)
        for before, turn in pairwise(ordered):
            turn.previous = before
        if uid not in file.started:
            _mark_partial(ordered[0], "conversation_start_missing")
        elif uid in file.added:
            _mark_partial(ordered[0], "conversation_items_missing")


def _mark_partial(turn: _Turn, warning: str) -> None:
    turn.is_partial = True
    turn.warnings.append(warning)


def _in_order(talk: list[_Turn]) -> list[_Turn]:
    """Bring the turns of a conversation into order: by time, and results after their calls."""

    def when(turn: _Turn) -> float:
        return seconds(turn.response.get("created_at")) or 0.0

    left = sorted(talk, key=lambda turn: (when(turn), turn.records))
    asked = {call for turn in talk for call in _call_ids(turn.response["output"])}
    seen: set[str] = set()
    ordered: list[_Turn] = []
    while left:
        # times are whole seconds, so several may be equal
        last = next((i for i, t in enumerate(left) if when(t) != when(left[0])), len(left))
        ready = (i for i in range(last) if _call_ids(left[i].inputs) & asked <= seen)
        turn = left.pop(next(ready, 0))
        ordered.append(turn)
        seen |= _call_ids(turn.response["output"])
    return ordered


def _call_ids(values: list[Any]) -> set[str]:
    return {uid for i in values if isinstance(i, dict) and (uid := text(i.get("call_id")))}


def _due(turn: _Turn) -> list[_Turn]:
    """List the turns to be placed before and with this one, earliest first."""
    chain: list[_Turn] = []
    at: _Turn | None = turn
    while at is not None and not at.is_placed:
        at.is_placed = True  # so that a circle of ids ends
        chain.append(at)
        at = at.previous
    return chain[::-1]


def _place(turn: _Turn, started: dict[str, Any]) -> None:
    """Give a turn its state and its call."""
    before = turn.previous if turn.previous and turn.previous.call else None
    request = turn.request or {}
    heard = items.to_messages(request.get("input"))
    if before is not None and (turn.previous_id or turn.talk):
        turn.lead, state, with_lead = before.lead, before.after, before.after_lead
        turn.is_partial |= before.is_partial
    else:
        whole = [*items.to_messages(started.get(turn.talk or "")), *heard]
        turn.lead, heard = split_system(whole)
        state, with_lead = EMPTY, conversation(whole[: len(whole) - len(heard)])
    state = conversation(heard, state)
    with_lead = conversation(heard, with_lead) if turn.lead else state
    # instructions are for one request; its own system text is then a message among others
    named = request.get("instructions") or turn.response.get("instructions")
    instructions = responses.instructions_text(named)
    call = responses.call_of(turn.response, with_lead if instructions else state, turn.request)
    call.system = instructions or turn.lead
    call.record = turn.records[0]
    call.trajectory_key, call.key_is_global = turn.talk, turn.talk is not None
    if before is not None:
        call.follows, call.is_cut = before.call, True
    if turn.request is None:
        call.state_kind, call.is_cut, turn.is_partial = "unknown", True, True
    elif turn.is_partial:
        call.state_kind = "partial"
    call.warnings += turn.warnings
    pairs.set_beside(call, turn.beside)
    turn.call = call
    _close(turn, state, with_lead)


def _close(turn: _Turn, state: Node, with_lead: Node) -> None:
    """Say what the next request of the chain goes on from."""
    assert turn.call is not None
    if turn.call.step_kind == "compaction":
        turn.lead = ""
        output = items.to_messages(turn.response["output"])
        turn.after = turn.after_lead = conversation(output)
        return
    action = turn.call.choices[0].action
    turn.after = state.then(action)
    turn.after_lead = with_lead.then(action) if turn.lead else turn.after
