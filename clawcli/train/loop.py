"""Updates and phases: from rows to gradients, optimiser steps and metrics.

An update is one optimiser step over the rows that the shards' plan assigns to it. Its loss is a
sum over rows of scaled token losses, so rows run one at a time and their gradients add up; the
scales are fixed over the whole update before the first row runs. A phase is several updates whose
old log-probs are those of the phase's start, scored in the same packed layout: at the first
update of a phase the ratio is 1.

What would surprise: the importance weight old / behaviour also multiplies the KL term, because
both are means over the same drawn tokens.

Shapes: S steps, N action tokens, of one row.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from clawcli.errors import TrainingError
from clawcli.gate import Objective
from clawcli.train import losses
from clawcli.train.config import OptimConfig, PpoConfig, TrainConfig
from clawcli.train.forward import action_logprobs
from clawcli.train.rows import TrainRow

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a phase holds fixed for one row."""

    old_logprobs_N: Tensor
    """[N], of the model at the start of the phase."""
    ref_logprobs_N: Tensor
    """[N], of the starting model."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did."""

    metrics: Metrics
    logprob_means: dict[str, float]
    """step_uid -> mean log-prob of its action before the optimiser step."""


@dataclass(slots=True)
class _Totals:
    """Sums over the tokens of an update, from which its metrics come."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ratio_max_deviation: float = 0.0
    logprob_means: dict[str, float] = field(default_factory=dict)

    def add(self, **tensors: Tensor) -> None:
        """Add up each tensor under its name."""
        for name, tensor in tensors.items():
            self.sums[name] += float(tensor.detach().sum())


def make_optimizer(model: PreTrainedModel, config: OptimConfig) -> torch.optim.AdamW:
    """Build AdamW over all parameters."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )


def learning_rate(update: int, config: OptimConfig) -> float:
    """Learning rate of an update: linear warm-up, then constant.

    Example:
        >>> [learning_rate(u, OptimConfig(learning_rate=1.0, warmup_updates=2)) for u in range(3)]
        [0.5, 1.0, 1.0]
    """
    return config.learning_rate * min(1.0, (update + 1) / max(config.warmup_updates, 1))


@torch.no_grad()
def score(model: PreTrainedModel, rows: Iterable[TrainRow]) -> dict[int, Tensor]:
    """Take the log-probs of all action tokens under the model as it is.

    Returns:
        row_id -> [N] in nats; rows without action tokens are left out.
    """
    return {
        row.row_id: action_logprobs(model, row.forest, row.spans, row.temperatures_S)
        for row in rows
        if row.spans
    }


def group_updates(rows: Sequence[TrainRow]) -> list[tuple[int, list[TrainRow]]]:
    """Cut a phase into updates; rows without action tokens are left out."""
    trained = [row for row in rows if row.spans]
    return [(key, list(members)) for key, members in groupby(trained, lambda row: row.update)]


def run_update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[TrainRow],
    frozen: Mapping[int, Frozen],
    config: TrainConfig,
) -> UpdateResult:
    """Take one optimiser step over the rows of an update.

    Args:
        model: in training mode, without dropout.
        optimizer: over the model's parameters, its learning rate is set here.
        rows: of one update, each with action tokens.
        frozen: of the phase, by row_id; not read by sft.
        config: objective, aggregation and knobs.

    Raises:
        TrainingError: loss or gradient is not finite; the model is as before the update.
    """
    started = time.perf_counter()
    update = rows[0].update
    rate = learning_rate(update, config.optim)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    totals = _Totals()
    for row, scales_N in zip(rows, update_scales(rows, config.aggregation), strict=True):
        loss = row_loss(model, row, scales_N, frozen.get(row.row_id), config, totals)
        loss.backward()
    limit = config.optim.max_grad_norm or math.inf
    grad_norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))
    if not (math.isfinite(totals.sums["loss"]) and math.isfinite(grad_norm)):
        raise TrainingError(
            f"Update {update}: loss {totals.sums['loss']}, gradient norm {grad_norm}.",
            "Lower optim.learning_rate, or look for odd steps in rows "
            f"{rows[0].row_id} to {rows[-1].row_id} of the shards.",
        )
    optimizer.step()
    metrics = _metrics(totals, rows, config)
    metrics |= {"train/grad_norm": grad_norm, "train/learning_rate": rate}
    seconds = time.perf_counter() - started
    metrics |= {
        "perf/update_s": seconds,
        "perf/tokens_per_s": metrics["data/tokens"] / seconds,
    }
    return UpdateResult(metrics, totals.logprob_means)


def update_scales(rows: Sequence[TrainRow], aggregation: losses.Aggregation) -> list[np.ndarray]:
    """Share of each token in an update's loss, row by row: float64 [N] each."""
    trajectory_uids = [uid for row in rows for uid in row.trajectory_uids]
    _, trajectory_S = np.unique(trajectory_uids, return_inverse=True)
    offsets = np.cumsum([0, *(len(row.step_uids) for row in rows)])
    step_N = np.concatenate(
        [row.step_N + offset for row, offset in zip(rows, offsets[:-1], strict=True)]
    )
    scales_N = losses.token_scales(step_N, trajectory_S[step_N], aggregation)
    return np.split(scales_N, np.cumsum([len(row.step_N) for row in rows])[:-1])


def row_loss(
    model: PreTrainedModel,
    row: TrainRow,
    scales_N: np.ndarray,
    frozen: Frozen | None,
    config: TrainConfig,
    totals: _Totals | None = None,
) -> Tensor:
    """Compute one row's part of the loss of its update.

    Args:
        model: the model being trained.
        row: with action tokens.
        scales_N: float64 [N], of update_scales.
        frozen: of this row; None for sft.
        config: objective and knobs.
        totals: where the sums behind the metrics go.

    Returns:
        A scalar with its graph.
    """
    totals = _Totals() if totals is None else totals
    logprobs_N = action_logprobs(model, row.forest, row.spans, row.temperatures_S)
    if config.objective is Objective.SFT:
        losses_N = losses.sft_loss(logprobs_N)
        totals.add(nll=losses_N)
    else:
        assert frozen is not None, "ppo needs the phase's frozen log-probs"
        losses_N = _ppo_losses(logprobs_N, row, frozen, config.ppo, totals)
    weights_N = _like(row.weights_S[row.step_N] * scales_N, logprobs_N)
    loss = (weights_N * losses_N).sum()
    totals.add(loss=loss, logprob=logprobs_N)
    sums_S = np.bincount(row.step_N, logprobs_N.detach().double().cpu().numpy())
    means_S = sums_S / np.bincount(row.step_N)
    totals.logprob_means |= dict(zip(row.step_uids, means_S.tolist(), strict=True))
    return loss


def _ppo_losses(
    logprobs_N: Tensor, row: TrainRow, frozen: Frozen, config: PpoConfig, totals: _Totals
) -> Tensor:
    advantages_N = _like(row.advantages_S[row.step_N], logprobs_N)
    behaviour_N = _like(row.behaviour_N, logprobs_N)
    valid_N = ~behaviour_N.isnan()
    ratios_N = losses.exp_ratio(logprobs_N - frozen.old_logprobs_N)
    surrogate_N, clipped_N = losses.ppo_loss(
        ratios_N, advantages_N, clip_low=config.clip_low, clip_high=config.clip_high
    )
    kl_N = losses.anchor_kl(logprobs_N, frozen.ref_logprobs_N, ratios_N)
    importance_N = losses.importance_weights(
        frozen.old_logprobs_N, behaviour_N, valid_N, cap=config.importance_cap
    )
    totals.add(
        clipped=clipped_N,
        kl_ref=kl_N,
        importance=importance_N,
        truncated=importance_N >= config.importance_cap,
        advantage=advantages_N,
        abs_advantage=advantages_N.abs(),
    )
    deviation = float((ratios_N.detach() - 1.0).abs().max())
    totals.ratio_max_deviation = max(totals.ratio_max_deviation, deviation)
    return importance_N * (surrogate_N + config.kl_coef * kl_N)


def _like(values: np.ndarray, tensor: Tensor) -> Tensor:
    return torch.from_numpy(values).to(tensor)


def _metrics(totals: _Totals, rows: Sequence[TrainRow], config: TrainConfig) -> Metrics:
    """Turn the sums of an update into named metrics."""
    tokens = sum(len(row.step_N) for row in rows)
    means = {name: total / tokens for name, total in totals.sums.items()}
    metrics: Metrics = {
        "train/loss": totals.sums["loss"],
        "train/logprob_mean_nats": means["logprob"],
    }
    if config.objective is Objective.SFT:
        metrics["train/nll_nats_per_token"] = means["nll"]
    else:
        metrics |= {
            "train/kl_ref_nats_per_token": means["kl_ref"],
            "train/clip_frac": means["clipped"],
            "train/ratio_max_deviation": totals.ratio_max_deviation,
            "train/importance_weight_mean": means["importance"],
            "train/importance_truncated_frac": means["truncated"],
            "train/advantage_mean": means["advantage"],
            "train/advantage_abs_mean": means["abs_advantage"],
        }
    return metrics | {
        "data/rows": len(rows),
        "data/steps": sum(len(row.step_uids) for row in rows),
        "data/trajectories": len({uid for row in rows for uid in row.trajectory_uids}),
        "data/tokens": sum(len(row.forest.token_ids) for row in rows),
        "data/action_tokens": tokens,
    }
