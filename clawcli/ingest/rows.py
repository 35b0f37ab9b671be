"""Turn linked steps into rows of the step table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from clawcli import messages, schema
from clawcli.ingest.chain import Step, Trajectory
from clawcli.messages import hash128


def build(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Build the rows of linked trajectories.

    Returns:
        schema.STEPS, trajectory by trajectory, steps in order.
    """
    name(trajectories)
    rows = [row for trajectory in trajectories for row in _trajectory_rows(trajectory)]
    return pa.Table.from_pylist(rows, schema=schema.steps_schema())


def name(trajectories: Iterable[Trajectory]) -> None:
    """Give each trajectory its uid: of the logged key where there is one, else of its first step."""
    taken: set[str] = set()
    for trajectory in trajectories:
        first = trajectory.steps[0]
        key = first.call.trajectory_key
        uid = hash128(first.uid, trajectory.kind)
        if key is not None and trajectory.kind == "main":
            logged = hash128(first.call.log_format, first.call.source_uid, key)
            # a key that a source uses twice does not join two attempts
            uid = logged if logged not in taken else uid
        taken.add(uid)
        trajectory.uid = uid


def _trajectory_rows(trajectory: Trajectory) -> Iterable[dict[str, Any]]:
    steps = trajectory.steps
    task_id = _first(step.call.task_id for step in _lineage(trajectory))
    trial = _first(step.call.trial for step in _lineage(trajectory))
    agent = _first(step.call.agent for step in _lineage(trajectory))
    episode = _first(step.call.trajectory_reward for step in reversed(steps))
    rewards = [_reward(step) for step in steps]
    logged = episode is not None or any(reward is not None for reward in rewards)
    if episode is not None and not any(reward is not None for reward in rewards):
        rewards[-1] = episode
    started = _first(_moment(step.call.started_at) for step in steps)
    shared = {
        "trajectory_uid": trajectory.uid,
        "parent_trajectory_uid": trajectory.parent.uid if trajectory.parent else None,
        "trajectory_kind": trajectory.kind,
        "group_uid": _group_uid(trajectory, task_id, agent),
        "task_id": task_id,
        "trial": trial,
        "agent": agent,
        "trajectory_reward": episode,
        "reward_source": "log" if logged else None,
        "log_date": "unknown" if started is None else str(started.date()),
    }
    for place, step in enumerate(steps):
        row = {
            **shared,
            **_step_columns(step),
            "step_index": trajectory.first_index + place,
            "reward": rewards[place],
        }
        if trajectory.kind == "branch" and not logged:
            # the attempt went another way, and nobody judged this one
            row["loss_weight"] = 0.0
        yield row


def _reward(step: Step) -> float | None:
    """Give a call's reward to the choice that it was for; of several, to the one gone on with."""
    return step.call.reward if len(step.call.choices) == 1 or step.children else None


def _lineage(trajectory: Trajectory) -> Iterable[Step]:
    above: Trajectory | None = trajectory
    while above is not None:
        yield from above.steps
        above = above.parent


def _group_uid(trajectory: Trajectory, task_id: str | None, agent: str | None) -> str:
    call = trajectory.root.call
    if task_id is not None:
        return hash128(call.log_format, task_id, call.system, call.tools, agent)
    return hash128(call.system, call.tools, call.history.exact[call.num_messages])


def _step_columns(step: Step) -> dict[str, Any]:
    call, choice, parent = step.call, step.choice, step.parent
    action = choice.action.message
    inherited = parent.call if parent is not None and step.prefix_messages else None
    prefix_tokens, observation_ids = _token_delta(step)
    warnings = [*call.warnings, *choice.warnings]
    if step.ambiguous:
        warnings.append("ambiguous_parent")
    if step.call.reward is not None and _reward(step) is None:
        warnings.append("reward_of_another_choice")
    return {
        "step_uid": step.uid,
        "source_uid": call.source_uid,
        "native_id": call.native_id,
        "parent_step_uid": parent.uid if parent else None,
        "prefix_messages": step.prefix_messages,
        "prefix_broken": step.prefix_broken,
        "system": None if inherited and call.system == inherited.system else call.system,
        "tools": None if inherited and call.tools == inherited.tools else call.tools,
        "observation": [
            messages.to_row(item.message)
            for item in call.history.items[step.prefix_messages : call.num_messages]
        ],
        "final_observation": None
        if call.final_observation is None
        else [messages.to_row(message) for message in call.final_observation],
        "response": action.content if action.parts is None else messages.text_of(action),
        "reasoning": action.reasoning,
        "response_parts": action.parts,
        "tool_calls": messages.to_row(action)["tool_calls"],
        "finish_reason": choice.finish_reason,
        "finish_reason_raw": choice.finish_reason_raw,
        "choice_index": choice.index,
        "terminated": call.terminated,
        "truncated": call.truncated,
        "is_last": call.is_last,
        "model": call.model,
        "policy": call.policy,
        "policy_version": call.policy_version,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "sampling": _json(call.sampling),
        "tokenizer": call.tokenizer,
        "prefix_tokens": prefix_tokens,
        "observation_ids": observation_ids,
        "response_ids": choice.response_ids,
        "rollout_logprobs": choice.logprobs,
        "token_provenance": _provenance(step),
        "input_tokens": call.input_tokens,
        "output_tokens": call.output_tokens,
        "cached_tokens": call.cached_tokens,
        "reasoning_tokens": call.reasoning_tokens,
        "latency_s": call.latency_s,
        "cost_usd": call.cost_usd,
        "started_at": _moment(call.started_at),
        "ended_at": _moment(call.ended_at),
        "step_kind": "policy",
        "state_kind": call.state_kind,
        "loss_weight": call.loss_weight,
        "warnings": warnings or None,
        "state_hash": step.state_hash.hex(),
        "next_hash": step.next_hash.hex(),
        "log_format": call.log_format,
        "source_path": call.source_path,
        "source_offset": call.offset,
        "metadata": _json(_metadata(step)),
    }


def _token_delta(step: Step) -> tuple[int | None, list[int] | None]:
    """Store logged prompt ids as what is new after the parent's prompt and response ids."""
    ids, parent = step.call.prompt_ids, step.parent
    if ids is None:
        return None, None
    before: list[int] = []
    # a row that restates its messages restates its tokens: curation may drop the parent
    if parent is not None and step.prefix_messages and parent.call.prompt_ids is not None:
        before = parent.call.prompt_ids + (parent.choice.response_ids or [])
    shared = 0
    for ours, theirs in zip(ids, before, strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared, ids[shared:]


def _metadata(step: Step) -> dict[str, Any]:
    own = {"choice": step.choice.metadata} if step.choice.metadata else {}
    return {**(step.call.metadata or {}), **own}


def _provenance(step: Step) -> str:
    if step.choice.response_ids is None:
        return "text"
    return "engine_ids" if step.choice.logprobs is None else "engine_logprobs"


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _moment(seconds: float | None) -> Any:
    if seconds is None or not math.isfinite(seconds):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _json(value: dict[str, Any] | None) -> str | None:
    return None if not value else msgspec.json.encode(value).decode()
