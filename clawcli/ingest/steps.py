"""Make steps of calls that were just read: hash what linking asks for."""

from __future__ import annotations

import hashlib

import xxhash

from clawcli import messages
from clawcli.ingest import traces
from clawcli.ingest.calls import Call
from clawcli.ingest.conversations import Node
from clawcli.ingest.placing import microseconds
from clawcli.ingest.stepgraph import Request, Step
from clawcli.messages import Message, hash128


def of_call(call: Call, *, grows: bool) -> list[Step]:
    """Make one step per choice of a call.

    Args:
        call: with the fields that the pipeline fills.
        grows: the format may log more of an action later, so the uid does not cover it.
    """
    request = _request(call)
    key = call.native_id or [call.source_uid, call.record, call.ordinal]
    for choice in call.choices:
        action = choice.action
        after = messages.extend(request.state_hash, action.exact)
        loose = (
            after
            if action.loose == action.exact and call.state.loose == call.state.exact
            else messages.extend(call.state.loose, action.loose)
        )
        step = Step(
            hash128(call.log_format, key, choice.index, None if grows else after),
            request,
            choice.index,
            after,
            loose,
            action.exact,
            action.loose,
            messages.chain_ids(action.message),
            said_by(action.message),
        )
        if call.prompt_ids is not None:
            step.tokens = traces.trace(call.prompt_ids, choice.response_ids or [])
        request.choices.append(step)
    set_order(request)
    call.step_uid = request.choices[0].uid
    return request.choices


def set_order(request: Request) -> None:
    """Give a call with all its choices its place among the others."""
    choices = request.choices
    first = choices[0].next_hash if len(choices) == 1 else min(s.next_hash for s in choices)
    request.order = (request.started_us or 0, request.depth, first, request.native_id)


def _request(call: Call) -> Request:
    state = call.state
    request = Request(
        depth=state.depth,
        state_hash=state.exact,
        system=text_hash(call.system),
        tools=text_hash(call.tools),
        started_us=microseconds(call.started_at),
        ended_us=microseconds(call.ended_at),
        native_id=call.native_id or "",
        log_format=call.log_format,
        task_id=call.task_id,
        trial=call.trial,
        agent=call.agent,
        trajectory_reward=call.trajectory_reward,
        reward=call.reward,
        loss_weight=call.loss_weight,
        source_uid=call.source_uid,
        is_cut=call.is_cut,
        kind=call.trajectory_kind,
        ids_state=state.ids,
        node=state,
    )
    look_back(request, state)
    scope = None if call.key_is_global else call.source_uid
    if call.trajectory_key is not None:
        request.trajectory = hash128(call.log_format, scope, call.trajectory_key)
    if call.parent_key is not None:
        request.parent_trajectory = hash128(call.log_format, scope, call.parent_key)
    return request


def look_back(request: Request, state: Node) -> None:
    """Fill in what a call can be looked up with: its last answer, and states since then."""
    last = state.assistant
    if last is not None and last.item is not None and last.parent is not None:
        request.last, request.lookup, request.lookup_loose = last.depth, last.exact, last.loose
        request.asked_loose = last.item.loose
        request.ids_asked, request.ids_before = (
            messages.chain_ids(last.item.message),
            last.parent.ids,
        )
    if state.depth > request.last + 1:
        tail, node = [], state.parent
        while node is not None and node.depth > request.last:
            tail.append(node.exact)
            node = node.parent
        request.tail = tuple(reversed(tail))


def text_hash(text: str | None) -> bytes:
    """Hash a system text or tool schemas; they repeat, so the last few are remembered.

    Returns:
        16 bytes; empty for null.
    """
    if text is None:
        return b""
    if (known := _TEXT_HASHES.get(text)) is None:
        if len(_TEXT_HASHES) > 256:
            _TEXT_HASHES.clear()
        known = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        _TEXT_HASHES[text] = known
    return known


_TEXT_HASHES: dict[str, bytes] = {}


def said_by(message: Message) -> tuple[int, bytes] | None:
    """Length and hash of an action's text; null where it calls tools, or says nothing."""
    text = None if message.tool_calls else messages.text_of(message)
    return said(text) if text else None


def said(text: str) -> tuple[int, bytes]:
    """Length and hash of a text, to find it at the beginning of another."""
    return len(text), xxhash.xxh3_128_digest(text.encode(errors="surrogatepass"))
