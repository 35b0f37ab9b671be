"""Put the lines of Claude Code together into turns, and the turns into a tree.

An answer, all its tool results and what was said in between are one turn, so that parallel results
and results written between the blocks of a response are no branches, and what is left of the tree
forks where the user went back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from clawcli.ingest.conversations import Digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import blocks
from clawcli.ingest.formats.claude_lines import SILENT, Line, is_sent, said
from clawcli.ingest.formats.turns import Turn, path, rest
from clawcli.ingest.values import text


def build(lines: Sequence[Line]) -> list[Turn]:
    """Make the turns of one source, each with its parent, in the order of the log.

    Args:
        lines: those of an answer share a turn that has its call, or its fate; all others get
            theirs filled here. Their turn is changed in place.
    """
    for line in lines:
        if line.turn.call is None and line.turn.fate is None:
            _listen(line)
    _gather_results(lines)
    _connect(lines)
    _keep_segments(lines)
    return list({id(line.turn): line.turn for line in lines}.values())


def _listen(line: Line) -> None:
    """Fill the turn of a line that is no answer: what was said, or why that is nothing."""
    turn = line.turn
    turn.said = said(line)
    if line.kind == "user" and not line.message:
        turn.said = []
        turn.fate = Fate("rejected", "bad_record", "the line holds no message")
    elif turn.said:
        note = rest(line.value, "type", "message", "content", "attachment")
        content = line.message.get("content") if line.kind == "user" else None
        if isinstance(attachment := line.value.get("attachment"), dict):
            note["attachment"] = rest(attachment, "content", "prompt")
        if kept := blocks.leftovers(content):
            note["blocks"] = kept
        turn.notes = [note]
    elif line.kind == "attachment" and is_sent(line):
        turn.codes.append("attachment_left_out")
        turn.fate = Fate("ignored", "attachment_not_text", "the client made its text from this")
    elif line.subtype == "api_error":
        turn.fate = Fate("failed_call", "api_error", "the call failed and was tried again")
    elif line.kind in SILENT or line.kind == "attachment":
        turn.fate = Fate("ignored", "not_sent", "no model saw this line")
        turn.resets = line.subtype == "compact_boundary"
        if turn.resets or line.subtype == "init":
            turn.notes = [rest(line.value)]
    else:
        turn.fate = Fate("ignored", "unknown_type", f"lines of type {line.kind!r} are not known")


def _gather_results(lines: Sequence[Line]) -> None:
    """Move tool results, and what stands between the lines of a response, behind their answer.

    Different results of one call mean that the session was rewound: those stay where they stand,
    each on its own branch. One that says the same again is a copy.
    """
    owners: dict[Any, Turn] = {}
    inside: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        if line.turn.call:
            inside[id(line.turn)].append(line)
            for call in line.turn.call.choices[0].action.message.tool_calls or ():
                owners[line.session, line.agent, call.id] = line.turn
    owned: list[tuple[Line, Turn]] = []
    variants: dict[Any, set[bytes]] = defaultdict(set)
    for line in lines:
        results = _results(line)
        of = [owners.get(key) for key in results]
        if of and of[0] is not None and all(owner is of[0] for owner in of):
            owned.append((line, of[0]))
            for key, item in results.items():
                variants[key].add(item.exact)
    given: set[Any] = set()
    for line, owner in owned:
        results = _results(line)
        if any(len(variants[key]) > 1 for key in results):
            continue
        copies = {id(item) for key, item in results.items() if key in given}
        line.turn.said = [item for item in line.turn.said if id(item) not in copies]
        given |= results.keys()
        if line.turn.said:
            inside[id(owner)].append(line)
        else:
            line.turn.fate = Fate("duplicate", "same_result", "this result was logged before")
    for members in inside.values():
        _gather(members[0].turn, members)


def _results(line: Line) -> dict[Any, Digested]:
    """List the tool results of a line by session, agent and id of their call."""
    if line.kind != "user" or line.turn.call:
        return {}
    results = [item for item in line.turn.said if item.message.role == "tool"]
    return {(line.session, line.agent, item.message.tool_call_id): item for item in results}


def _gather(owner: Turn, members: Sequence[Line]) -> None:
    """Make one turn of an answer's own lines, its results, and the lines between them."""
    moved: dict[int, Line] = {}
    for line in members[1:]:
        climbed: dict[int, Line] = {} if line.turn is owner else {id(line): line}
        at = line.parent
        while at and at.turn is not owner and not at.turn.call and id(at) not in climbed:
            climbed[id(at)] = at
            at = at.parent
        if at is not None and at.turn is owner:
            moved |= {key: between for key, between in climbed.items() if not between.turn.fate}
        elif line.turn is not owner:
            moved[id(line)] = line
    heard = sorted(moved.values(), key=lambda line: line.place)
    for line in heard:
        owner.records += line.turn.records
        owner.notes += line.turn.notes
        owner.codes += line.turn.codes
    items = [item for line in heard for item in line.turn.said]
    # a request has the results first, whatever was said while they came in
    owner.said = sorted(items, key=lambda item: item.message.role != "tool")
    for line in heard:
        line.turn = owner


def _connect(lines: Sequence[Line]) -> None:
    """Let each turn continue another; of an answer, its first line that leads out of it tells."""
    connected: set[int] = set()
    for line in lines:
        turn, parent = line.turn, line.parent
        is_inside = turn.call is not None and line.kind != "assistant"
        if is_inside or id(turn) in connected or (parent and parent.turn is turn):
            continue
        connected.add(id(turn))
        turn.parent = parent.turn if parent else None
        if line.is_orphan:
            turn.damage.append("parent_missing")
    for line in lines:
        if line.value.get("isCompactSummary") and line.turn.said:
            at = line.turn.parent
            while at and not at.said and not at.call and not at.resets:
                at = at.parent
            # older versions mark the summary alone, without a boundary before it
            line.turn.resets = at is None or not at.resets


def _keep_segments(lines: Sequence[Line]) -> None:
    """Put the turns that a compaction kept behind its summary, and what follows behind those."""
    by_uuid = {
        uuid: line.turn for line in reversed(lines) if (uuid := text(line.value.get("uuid")))
    }
    for line in lines:
        logged = line.value.get("compactMetadata") if line.turn.resets else None
        segment = logged.get("preservedSegment") if isinstance(logged, dict) else None
        if not isinstance(segment, dict):
            continue
        head, tail, anchor = (
            by_uuid.get(text(segment.get(key)) or "")
            for key in ("headUuid", "tailUuid", "anchorUuid")
        )
        anchor = anchor or line.turn
        anchor.keep = path(head, tail)
        if not anchor.keep:
            anchor.damage.append("kept_history_missing")
        for later in lines:
            is_next = later.place > line.place and later.turn is not anchor
            if is_next and anchor.keep and later.turn.parent is tail:
                later.turn.parent = anchor
