"""From packed rows as stored to what an update needs of them, as arrays.

Shapes: S steps of a row, N action tokens over its steps, in step order; K segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clawcli.errors import DataError
from clawcli.gate import Objective
from clawcli.store.shard_cache import PackedRow, Steps
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
    steps = packed.steps
    segment_S, start_S, end_S = (
        steps.integers(name) for name in ("segment", "response_start", "response_end")
    )
    uids = steps.texts("step_uid")
    lengths_S = end_S - start_S
    _check_spans(packed, uids, segment_S, start_S, end_S)
    kept = np.flatnonzero(lengths_S != 0)
    is_ppo = objective is Objective.PPO
    counts_S, behaviour_N = _behaviour(packed, uids, lengths_S)
    advantages_S = np.zeros(len(steps))
    if is_ppo:
        columns = {name: steps.numbers(name) for name in advantage.COLUMNS}
        advantages_S = advantage.step_advantages(columns, scale_by_std=scale_by_std)
    temperatures_S = temperatures(steps, counts_S) if is_ppo else np.ones(len(steps))
    spans = zip(segment_S[kept].tolist(), start_S[kept].tolist(), end_S[kept].tolist(), strict=True)
    trajectory_uids, policies = steps.texts("trajectory_uid"), steps.texts("policy")
    versions = steps.integers("policy_version").tolist()
    return TrainRow(
        row_id=packed.row_id,
        update=packed.update,
        forest=packed.forest,
        spans=[Span(*span) for span in spans],
        step_uids=[uids[s] for s in kept],
        trajectory_uids=[trajectory_uids[s] for s in kept],
        policies=[policies[s] for s in kept],
        policy_versions=[None if versions[s] < 0 else versions[s] for s in kept],
        weights_S=steps.weights[kept],
        temperatures_S=temperatures_S[kept],
        advantages_S=advantages_S[kept],
        behaviour_N=behaviour_N,
        step_N=np.repeat(np.arange(len(kept)), lengths_S[kept]),
    )


def temperatures(steps: Steps, logged_S: np.ndarray) -> np.ndarray:
    """Temperatures at which the log-probs of steps are compared: float64 [S].

    Where rollout log-probs count, it is the one they were drawn at; else 1, for a logged
    temperature of another model says nothing about this one's.

    Args:
        steps: of a packed row.
        logged_S: int64 [S], how many log-probs each step has.
    """
    temperature_S = steps.numbers("temperature")
    counts_S = (steps.numbers("mu_valid") == 1) & (logged_S > 0) & (temperature_S > 0)
    return np.where(counts_S, temperature_S, 1.0)


def _behaviour(
    packed: PackedRow, uids: list[str], lengths_S: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Read the log-probs of the behaviour policy.

    Returns:
        int64 [S], how many each step has; and float64 [N], of all action tokens, NaN where there is
        no valid one.
    """
    logged_N, counts_S = packed.steps.rollout_logprobs()
    wrong = np.flatnonzero(packed.steps.has_logprobs & (counts_S != lengths_S))
    if len(wrong):
        step = int(wrong[0])
        raise DataError(
            f"shards row {packed.row_id}, step {uids[step]}: rollout_logprobs has "
            f"{counts_S[step]} values, the action {lengths_S[step]} tokens.",
            "Export the shards again; claw verify says whether the tree is intact.",
        )
    behaviour_N = np.full(int(lengths_S.sum()), np.nan)
    behaviour_N[np.repeat(counts_S > 0, lengths_S)] = logged_N
    is_valid_S = packed.steps.numbers("mu_valid") == 1
    behaviour_N[~np.repeat(is_valid_S, lengths_S)] = np.nan
    return counts_S, behaviour_N


def _check_spans(
    packed: PackedRow,
    uids: list[str],
    segment_S: np.ndarray,
    start_S: np.ndarray,
    end_S: np.ndarray,
) -> None:
    """Refuse an action that is not on its path; a step without action tokens is not looked at."""
    row_lengths_K = packed.forest.row_lengths()
    exists_S = (segment_S >= 0) & (segment_S < len(row_lengths_K))
    row_tokens_S = np.where(exists_S, row_lengths_K[np.where(exists_S, segment_S, 0)], 0)
    fits_S = is_action_span(start_S, end_S, row_tokens_S) | (start_S == end_S)
    wrong = np.flatnonzero(~fits_S)
    if len(wrong):
        step = int(wrong[0])
        raise DataError(
            f"shards row {packed.row_id}, step {uids[step]}: its action at depth "
            f"{start_S[step]} to {end_S[step]} is not on the path of segment {segment_S[step]}.",
            "Export the shards again; claw verify says whether the tree is intact.",
        )
