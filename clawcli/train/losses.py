"""Loss terms of single action tokens, as pure functions from [N] tensors to [N] tensors.

Nothing here takes a mean: the caller multiplies by token_scales and sums, so that an update's
loss does not depend on how its tokens were cut into rows. All logs are natural (nats).

Three policies: *behaviour* drew the tokens (rollout_logprobs), *old* is the model at the start of
the phase, and *current* is the model now. The ratio is current / old; the weight old / behaviour
corrects for the draw. The anchor (ref) is the starting model.

Shapes: N action tokens.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

_MAX_LOG_RATIO = 20.0
"""exp(20) is far beyond any clip; on stale data a log ratio can pass 88, where float32 overflows."""


class Aggregation(StrEnum):
    """How token losses become the loss of an update."""

    TRAJECTORY = "trajectory"
    """Mean over the tokens of each trajectory, then over trajectories."""
    STEP = "step"
    """Mean over the tokens of each step, then over steps."""
    TOKEN = "token"
    """Mean over all tokens."""


def exp_ratio(log_ratio_N: Tensor, valid_N: Tensor | None = None) -> Tensor:
    """Exponentiate log ratios; 1 with gradient 0 where they are not valid.

    The fill comes before exp: a product with a mask after it would turn an overflow into NaN
    gradients. Beyond 20 nats the ratio is constant, with gradient 0.

    Args:
        log_ratio_N: [N] in nats; any value, NaN included, where valid_N is false.
        valid_N: bool [N]; None = all.
    """
    if valid_N is not None:
        log_ratio_N = log_ratio_N.masked_fill(~valid_N, 0.0)
    return log_ratio_N.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def sft_loss(logprobs_N: Tensor) -> Tensor:
    """Negative log-likelihood of each token: [N] in nats."""
    return -logprobs_N


def ppo_loss(
    ratios_N: Tensor, advantages_N: Tensor, *, clip_low: float = 0.2, clip_high: float = 0.2
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate of each token.

    Args:
        ratios_N: [N], current / old.
        advantages_N: [N], of each token's step.
        clip_low: how far below 1 a ratio counts.
        clip_high: how far above 1 a ratio counts.

    Returns:
        [N] loss, and bool [N], true where the clip binds and the gradient is 0.

    Source:
        PPO, arXiv 1707.06347 equation 7.
    """
    plain_N = -advantages_N * ratios_N
    clipped_N = -advantages_N * ratios_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return torch.maximum(plain_N, clipped_N), clipped_N > plain_N


def anchor_kl(logprobs_N: Tensor, ref_logprobs_N: Tensor, ratios_N: Tensor) -> Tensor:
    """Estimate KL(current || anchor) at each token: ratio x (exp(-d) - 1 + d).

    d is the log ratio of current and anchor. The bracket alone (k3) has the right value but, as a
    loss, the gradient of the *other* KL; times the ratio, value and gradient are both those of
    KL(current || anchor) in expectation over tokens of the old policy.

    Args:
        logprobs_N: [N], current.
        ref_logprobs_N: [N], of the starting model.
        ratios_N: [N], current / old, with its gradient.

    Returns:
        [N] in nats, never negative.

    Source:
        k3: J. Schulman, "Approximating KL divergence", 2020.
    """
    d_N = (logprobs_N - ref_logprobs_N).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return ratios_N * (torch.exp(-d_N) - 1.0 + d_N)


def importance_weights(
    old_logprobs_N: Tensor, behaviour_logprobs_N: Tensor, valid_N: Tensor, *, cap: float = 2.0
) -> Tensor:
    """Weigh tokens by old / behaviour, truncated at cap; no gradient passes.

    Args:
        old_logprobs_N: [N], of the model at the start of the phase.
        behaviour_logprobs_N: [N], as logged; any value where valid_N is false.
        valid_N: bool [N]; where false the weight is 1.
        cap: largest weight. Truncation trades a little bias for bounded variance.

    Source:
        E. Ionides, "Truncated importance sampling", 2008; here per token.
    """
    log_ratio_N = (old_logprobs_N - behaviour_logprobs_N).detach()
    return exp_ratio(log_ratio_N, valid_N).clamp(max=cap)


def token_scales(
    step_N: np.ndarray, trajectory_N: np.ndarray, aggregation: Aggregation
) -> np.ndarray:
    """Share of each token in the loss of its update; the shares add up to 1.

    Computed over the whole update, before its rows are cut apart, so that the loss is a sum over
    rows. Weights of steps are not part of it: dividing by their sum would undo them.

    Args:
        step_N: int64 [N], equal numbers are one step.
        trajectory_N: int64 [N], equal numbers are one trajectory.
        aggregation: whose mean the loss is.

    Returns:
        float64 [N].

    Example:
        >>> token_scales(np.array([0, 0, 0, 1]), np.array([5, 5, 5, 5]), Aggregation.STEP)
        array([0.16666667, 0.16666667, 0.16666667, 0.5       ])
    """
    if aggregation is Aggregation.TOKEN:
        return np.full(len(step_N), 1.0 / max(len(step_N), 1))
    units_N = trajectory_N if aggregation is Aggregation.TRAJECTORY else step_N
    _, unit_N, lengths = np.unique(units_N, return_inverse=True, return_counts=True)
    return 1.0 / (lengths[unit_N] * len(lengths))
