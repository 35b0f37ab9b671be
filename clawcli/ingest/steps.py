"""Make steps: of calls that were just read, and of rows that an earlier run committed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash

from clawcli import messages
from clawcli.ingest.calls import Call
from clawcli.ingest.chain import Placement, Request, Step, TokenTrace
from clawcli.ingest.conversations import EMPTY, Digested, Node, digested
from clawcli.ingest.placing import microseconds
from clawcli.messages import Message, ToolCall, hash128

_BLOCK_TOKENS = 256
PLACED = Placement.__struct_fields__
COLUMNS = (
    "step_uid",
    "source_uid",
    "source_offset",
    "native_id",
    "choice_index",
    "system",
    "tools",
    "observation",
    "response",
    "response_parts",
    "reasoning",
    "tool_calls",
    "started_at",
    "ended_at",
    "state_kind",
    "state_hash",
    "next_hash",
    "log_format",
    "prefix_tokens",
    "observation_ids",
    "response_ids",
    "warnings",
    *PLACED,
)
"""Columns that of_rows needs."""
CUT_KINDS = frozenset({"supplied", "reconstructed", "partial", "unknown"})
"""state_kind of calls that were cut from something other than a request."""


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
            _said(action.message),
        )
        if call.prompt_ids is not None:
            step.tokens = trace(call.prompt_ids, choice.response_ids or [])
        request.choices.append(step)
    _order(request)
    call.step_uid = request.choices[0].uid
    return request.choices


def _order(request: Request) -> None:
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
    _look_back(request, state)
    scope = None if call.key_is_global else call.source_uid
    if call.trajectory_key is not None:
        request.trajectory = hash128(call.log_format, scope, call.trajectory_key)
    if call.parent_key is not None:
        request.parent_trajectory = hash128(call.log_format, scope, call.parent_key)
    return request


def _look_back(request: Request, state: Node) -> None:
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


def _said(message: Message) -> tuple[int, bytes] | None:
    text = None if message.tool_calls else messages.text_of(message)
    return said(text) if text else None


def said(text: str) -> tuple[int, bytes]:
    """Length and hash of a text, to find it at the beginning of another."""
    return len(text), xxhash.xxh3_128_digest(text.encode(errors="surrogatepass"))


def trace(prompt: Sequence[int], response: Sequence[int]) -> TokenTrace:
    """Hash logged token ids so that what a child's prompt shares with them can be found."""
    ids = np.fromiter((*prompt, *response), np.int32)
    return TokenTrace(
        len(prompt),
        len(ids),
        hashlib.blake2b(ids.tobytes(), digest_size=16).digest(),
        b"".join(_blocks(ids)),
    )


def _blocks(ids: np.ndarray) -> Iterator[bytes]:
    hasher = hashlib.blake2b(digest_size=8)
    for start in range(0, len(ids) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
        hasher.update(ids[start : start + _BLOCK_TOKENS].tobytes())
        yield hasher.digest()


def shared_tokens(prompt: Sequence[int], parent: TokenTrace) -> int:
    """Count the tokens that a prompt shares with its parent's prompt and response ids.

    Returns:
        All of the parent's where the prompt goes on from them; where the two differ midway, the
        shared ones in whole blocks of 256.
    """
    ids = np.asarray(prompt, np.int32)
    if len(ids) >= parent.total:
        head = hashlib.blake2b(ids[: parent.total].tobytes(), digest_size=16).digest()
        if head == parent.whole:
            return parent.total
    shared = 0
    theirs = (parent.blocks[i : i + 8] for i in range(0, len(parent.blocks), 8))
    for ours, other in zip(_blocks(ids), theirs, strict=False):
        if ours != other:
            break
        shared += _BLOCK_TOKENS
    return shared


class Rebuilder:
    """Makes steps of rows again, with the messages of their states."""

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        known: dict[str, Step],
        links: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Take rows with COLUMNS; parents that are not among them must be known.

        Args:
            rows: whole trees.
            known: steps that there are already.
            links: step_uid -> row of the sidecar `links`, of those that have one.
        """
        self._links = links
        self._rows = {row["step_uid"]: row for row in rows if row["step_uid"] not in known}
        self._known = known
        self._made: dict[str, Step] = {}
        self._states: dict[str, Node] = {}
        self._actions: dict[str, Digested] = {}
        self._texts: dict[str, tuple[str, str | None]] = {}
        self._text_hashes: dict[str, tuple[bytes, bytes]] = {}
        self._prompts: dict[str, list[int]] = {}
        self._ids: dict[str, list[int]] = {}
        self._calls: dict[tuple[Any, ...], Request] = {}
        self._requests: list[Request] = []
        self._keyed = self._find_keyed()

    def steps(self) -> list[Step]:
        """Make all steps, each linked to its parent."""
        for uid in self._rows:
            path: list[str] = []
            above: str | None = uid
            while above is not None and above in self._rows and above not in self._made:
                path.append(above)
                above = self._rows[above]["parent_step_uid"]
            for step_uid in reversed(path):
                self._made[step_uid] = self._step(self._rows[step_uid])
        for request in self._requests:
            _order(request)
        return list(self._made.values())

    def state(self, uid: str) -> Node:
        """Return the messages that a step saw."""
        return self._states[uid]

    def texts(self, uid: str) -> tuple[str, str | None]:
        """Return the system text and the tools of a step, inherited ones too."""
        return self._texts[uid]

    def prompt_ids(self, uid: str) -> list[int] | None:
        """Return the logged prompt ids of a step; null = not logged, or dropped."""
        return self._prompts.get(uid)

    def _find_keyed(self) -> set[str]:
        """List trajectories that are named by a logged key, not by their first step."""
        first: dict[str, dict[str, Any]] = {}
        for row in self._rows.values():
            seen = first.get(row["trajectory_uid"])
            if seen is None or row["step_index"] < seen["step_index"]:
                first[row["trajectory_uid"]] = row
        return {
            uid
            for uid, row in first.items()
            if uid != hash128(row["step_uid"], row["trajectory_kind"])
        }

    def _step(self, row: dict[str, Any]) -> Step:
        uid, parent_uid = row["step_uid"], row["parent_step_uid"]
        prefix = row["prefix_messages"]
        base = EMPTY
        if prefix and parent_uid in self._states:
            base = self._states[parent_uid].then(self._actions[parent_uid])
            while base.depth > prefix and base.parent is not None:
                base = base.parent
        link = self._links.get(uid, {})
        state = base
        new = row["observation"] or ()
        for value, known in zip(
            new, link.get("hidden_observation") or [None] * len(new), strict=True
        ):
            state = state.then(_digested(message_of(value), known))
        action = _digested(action_of(row), link.get("hidden_action"))
        before = self._texts.get(parent_uid, ("", None)) if prefix else ("", None)
        system = before[0] if row["system"] is None else row["system"]
        tools = before[1] if row["tools"] is None else row["tools"]
        self._states[uid], self._actions[uid] = state, action
        self._texts[uid] = (system, tools)
        above = self._text_hashes.get(parent_uid, (b"", b"")) if prefix else (b"", b"")
        self._text_hashes[uid] = (
            above[0]
            if row["system"] is None and prefix
            else _hash_of(system, link.get("hidden_system")),
            above[1] if row["tools"] is None else _hash_of(tools, link.get("hidden_tools")),
        )
        request = self._request(row, state, link)
        step = Step(
            uid,
            request,
            row["choice_index"],
            bytes.fromhex(row["next_hash"]),
            messages.extend(state.loose, action.loose),
            action.exact,
            action.loose,
            messages.chain_ids(action.message),
            _said(action.message),
            prefix_messages=prefix,
            prefix_broken=row["prefix_broken"],
            ambiguous="ambiguous_parent" in (row["warnings"] or ()),
        )
        step.placed = Placement(**{name: row[name] for name in PLACED})
        step.settle()
        request.choices.append(step)
        parent = self._made.get(parent_uid) or self._known.get(parent_uid)
        if parent is not None:
            step.parent = parent
            parent.children.append(step)
        self._trace_tokens(row, step)
        return step

    def _request(self, row: dict[str, Any], state: Node, link: Mapping[str, Any]) -> Request:
        key = (row["native_id"], row["source_uid"], row["source_offset"], row["state_hash"])
        known = self._calls.get(key)
        # a document may hold a call and its retry: then each has this choice
        if known is not None and row["choice_index"] not in [s.choice_index for s in known.choices]:
            return known
        started, ended = row["started_at"], row["ended_at"]
        is_main = row["trajectory_kind"] in ("main", "subagent")
        system, tools = self._text_hashes[row["step_uid"]]
        request = Request(
            depth=state.depth,
            state_hash=bytes.fromhex(row["state_hash"]),
            system=system,
            tools=tools,
            started_us=None if started is None else round(started.timestamp() * 1e6),
            ended_us=None if ended is None else round(ended.timestamp() * 1e6),
            native_id=row["native_id"] or "",
            log_format=row["log_format"],
            source_uid=row["source_uid"],
            is_cut=row["state_kind"] in CUT_KINDS,
            follows=row["parent_step_uid"],
            parent_trajectory=row["parent_trajectory_uid"] if is_main else None,
            ids_state=state.ids,
            node=state,
        )
        if is_main and row["trajectory_uid"] in self._keyed:
            request.trajectory = row["trajectory_uid"]
        _look_back(request, state)
        logged = msgspec.json.decode(link["logged"]) if link.get("logged") else {}
        for name, value in {**told(row), **logged}.items():
            setattr(request, name, value)
        if link.get("ids_asked") is not None:
            # it may hang on another call that said the same, and then its row has the ids of that
            request.ids_asked = bytes.fromhex(link["ids_asked"])
            request.ids_before = bytes.fromhex(link["ids_before"])
        self._calls.setdefault(key, request)
        self._requests.append(request)
        return request

    def _trace_tokens(self, row: dict[str, Any], step: Step) -> None:
        shared, own = row["prefix_tokens"], row["observation_ids"]
        if own is None:
            return
        before = self._ids.get(row["parent_step_uid"]) or [] if shared else []
        if len(before) >= shared:
            prompt = [*before[:shared], *own]
            response = row["response_ids"] or []
            self._prompts[row["step_uid"]] = prompt
            self._ids[row["step_uid"]] = [*prompt, *response]
            step.tokens = trace(prompt, response)


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """Tell from the columns that linking fills in what was logged of a call.

    Returns:
        Fields of a Request; where something else was logged, the sidecar `links` says so.
    """
    episode, kind = row["trajectory_reward"], row["trajectory_kind"]
    # an episode reward stands on the last step too, without having been logged there
    is_given = episode is not None and row["reward"] == episode
    return {
        "task_id": row["task_id"],
        "trial": row["trial"],
        "agent": row["agent"],
        "trajectory_reward": episode,
        "reward": None if is_given else row["reward"],
        "loss_weight": 1.0 if kind == "branch" else row["loss_weight"],
        "kind": "subagent" if kind == "subagent" else None,
    }


def _digested(message: Message, known: str | None) -> Digested:
    """Digest a message, or give it the digests that it had before a secret was taken out."""
    if known is None:
        return digested(message)
    both = bytes.fromhex(known)
    return Digested(message, both[:16], both[16:])


def _hash_of(text: str | None, known: str | None) -> bytes:
    return text_hash(text) if known is None else bytes.fromhex(known)


def message_of(value: dict[str, Any]) -> Message:
    """Read a value of schema.MESSAGE."""
    calls = value["tool_calls"]
    return Message(
        **{
            **value,
            "tool_calls": None if calls is None else tuple(ToolCall(**call) for call in calls),
        }
    )


def action_of(row: dict[str, Any]) -> Message:
    """Read the action of a row of the step table as a message."""
    calls = row["tool_calls"]
    parts = row["response_parts"]
    return Message(
        role="assistant",
        content=None if parts is not None else row["response"],
        parts=parts,
        tool_calls=None if calls is None else tuple(ToolCall(**call) for call in calls),
        reasoning=row["reasoning"],
    )
