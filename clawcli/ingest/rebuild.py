"""Make steps of rows that an earlier run committed, with the messages of their states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from clawcli import messages
from clawcli.ingest import steps, traces
from clawcli.ingest.conversations import EMPTY, Digested, Node, digested
from clawcli.ingest.stepgraph import Placement, Request, Step
from clawcli.messages import Message, ToolCall, hash128
from clawcli.store import state

PLACED = Placement.__struct_fields__


COLUMNS = (
    *state.COLUMNS,
    "source_uid",
    "source_offset",
    "native_id",
    "choice_index",
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
    *(name for name in PLACED if name not in state.COLUMNS),
)
"""Columns that a Rebuilder needs."""


CUT_KINDS = frozenset({"supplied", "reconstructed", "partial", "unknown"})
"""state_kind of calls that were cut from something other than a request."""


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
            steps.set_order(request)
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
            steps.said_by(action.message),
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
        steps.look_back(request, state)
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
            step.tokens = traces.trace(prompt, response)


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
    return steps.text_hash(text) if known is None else bytes.fromhex(known)


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
