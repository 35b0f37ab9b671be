"""From packed rows as stored to what an update needs of them, as arrays.

Shapes: S steps of a row, N action tokens over its steps, in step order; K segments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clawcli.errors import DataError
from clawcli.gate import Objective
from clawcli.store.shards import PackedRow
from clawcli.train import advantage
from clawcli.train.forward import Span
from clawcli.tree import Forest, is_action_span


@dataclass(frozen=True, slots=True)
class TrainRow:
    """One packed row, ready to be scored and trained."""

    row_id: int
    update: int
    forest: Forest
    spans: list[Span]
    step_uids: list[str]
    trajectory_uids: list[str]
    policies: list[str | None]
    policy_versions: list[int | None]
    weights_S: np.ndarray
    """float64 [S], factor on every loss term of the step."""
    temperatures_S: np.ndarray
    """float64 [S], at which log-probs are taken; see temperature."""
    advantages_S: np.ndarray
    """float64 [S]; 0 for sft."""
    behaviour_N: np.ndarray
    """float64 [N], valid rollout log-probs in nats; NaN where there is none."""
    step_N: np.ndarray
    """int64 [N], index of each token's step in the row."""


def train_row(packed: PackedRow, objective: Objective, *, scale_by_std: bool = False) -> TrainRow:
    """Turn a packed row into arrays; steps without action tokens are left out.

    Args:
        packed: as read from the shards.
        objective: sft takes log-probs at temperature 1 and no advantage.
        scale_by_std: as in advantage.group_advantages.

    Raises:
        DataError: a span or a list of log-probs does not fit its row.
    """
    steps = [step for step in packed.steps if step["response_end"] != step["response_start"]]
    row_lengths_K = packed.forest.row_lengths()
    spans = [_span(packed, step, row_lengths_K) for step in steps]
    lengths = np.array([span.end - span.start for span in spans], np.int64)
    is_ppo = objective is Objective.PPO
    return TrainRow(
        row_id=packed.row_id,
        update=packed.update,
        forest=packed.forest,
        spans=spans,
        step_uids=[step["step_uid"] for step in steps],
        trajectory_uids=[step["trajectory_uid"] for step in steps],
        policies=[step["policy"] for step in steps],
        policy_versions=[step["policy_version"] for step in steps],
        weights_S=np.array([step["weight"] for step in steps], np.float64),
        temperatures_S=np.array([temperature(step) if is_ppo else 1.0 for step in steps]),
        advantages_S=(
            advantage.step_advantages(steps, scale_by_std=scale_by_std)
            if is_ppo
            else np.zeros(len(steps))
        ),
        behaviour_N=np.concatenate([np.zeros(0), *(behaviour(packed, step) for step in steps)]),
        step_N=np.repeat(np.arange(len(steps)), lengths),
    )


def temperature(step: Mapping[str, Any]) -> float:
    """Temperature at which a step's log-probs are compared.

    Where rollout log-probs count, it is the one they were drawn at; else 1, for a logged
    temperature of another model says nothing about this one's.
    """
    logged = step["temperature"]
    counts = step["mu_valid"] and step["rollout_logprobs"] is not None
    return float(logged) if counts and logged is not None and logged > 0 else 1.0


def behaviour(packed: PackedRow, step: Mapping[str, Any]) -> np.ndarray:
    """Valid rollout log-probs of a step's action: float64, NaN where there is none."""
    length = step["response_end"] - step["response_start"]
    logged = step["rollout_logprobs"]
    if logged is not None and len(logged) != length:
        raise DataError(
            f"shards row {packed.row_id}, step {step['step_uid']}: rollout_logprobs has "
            f"{len(logged)} values, the action {length} tokens.",
            "Export the shards again; claw verify says whether the tree is intact.",
        )
    if logged is None or not step["mu_valid"]:
        return np.full(length, np.nan)
    return np.array([np.nan if value is None else value for value in logged], np.float64)


def _span(packed: PackedRow, step: Mapping[str, Any], row_lengths_K: np.ndarray) -> Span:
    span = Span(step["segment"], step["response_start"], step["response_end"])
    exists = 0 <= span.segment < len(row_lengths_K)
    if not exists or not is_action_span(span.start, span.end, int(row_lengths_K[span.segment])):
        raise DataError(
            f"shards row {packed.row_id}, step {step['step_uid']}: its action at depth "
            f"{span.start} to {span.end} is not on the path of segment {span.segment}.",
            "Export the shards again; claw verify says whether the tree is intact.",
        )
    return span
