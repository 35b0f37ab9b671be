"""`claw train`: shards and a model in, a run directory out.

The order is: look at the shards, refuse what must be refused, load the model, score the anchor,
measure whether the policy is the model's own, then train phase by phase. The run directory holds
metrics.jsonl (a line an update), checkpoint/, priorities.parquet and, for ppo, what each phase
held fixed; it appears whole when training is done, or not at all.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from clawcli import config as configuration
from clawcli import gate
from clawcli.gate import Objective
from clawcli.store import artefact, tokenizers
from clawcli.store.manifest import load_tokenizer
from clawcli.store.shards import Shards, open_shards
from clawcli.train import check, checkpoint, loop
from clawcli.train.config import TrainConfig
from clawcli.train.dataset import ShardUpdates
from clawcli.train.model import TINY, load_model
from clawcli.train.priorities import StepPriorities
from clawcli.train.rows import train_row

logger = logging.getLogger(__name__)

KIND = "run"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainReport:
    """What a run did. Numbers of a loss are those of its last update; null = none was made."""

    objective: str
    updates: int
    phases: int
    steps_trained: int
    tokens: int
    """Tokens that the forward computed, once for each update."""
    action_tokens: int
    """Tokens with a loss."""
    tokens_per_s: float | None
    """tokens by the time of the updates, backward included."""
    loss: float | None
    kl_ref_nats_per_token: float | None
    """Null for sft."""
    clip_frac: float | None
    """Mean over all updates; null for sft."""
    grad_norm: float | None
    """Before clipping."""
    checkpoint: str | None
    priorities: str | None
    steps_off_policy_by_reason: dict[str, int]
    """Steps that ppo took though the gate has a reason against them (allow_off_policy)."""
    steps_left_out_by_reason: dict[str, int]
    logprob_delta_nats_by_quantile: dict[str, float]
    """|logged - starting model's own log-prob|; empty where none is logged, or for sft."""
    tokenizer_checked: bool
    """False where the model brings no tokenizer.json to compare."""
    dry_run: bool


@dataclass(frozen=True, slots=True)
class _Anchor:
    """What one pass over the shards with the starting model gives."""

    ref_logprobs: dict[int, Tensor]
    delta_by_policy: dict[str | None, np.ndarray]


def train(config: TrainConfig) -> TrainReport:
    """Train a model on shards and write the run directory.

    Raises:
        UsageError: the output is an input, or touches an artefact.
        GateError: ppo on data whose behaviour policy is not known.
        NoSignalError: every advantage is zero.
        TokenizerMismatchError: the model's tokenizer is not the shards'.
        DataError: the shards or the model are damaged, or do not fit each other.
        TrainingError: loss or gradient is not finite.
        StoreError: an input is missing, or the output exists or cannot be written.
    """
    output = Path(config.output)
    inputs = [Path(config.shards)] + [Path(config.model)] * (config.model != TINY)
    artefact.check_output(output, kind=KIND, force=config.force, inputs=inputs)
    shards = open_shards(Path(config.shards))
    found = check.survey(shards, config)
    check.refuse_without_model(found, config)
    tokenizer = load_tokenizer(shards.path, shards.manifest)
    model = load_model(
        config.model,
        vocab_size=tokenizer.vocab_size,
        eos_token_id=shards.manifest.eos_token_id,
    )
    tokenizer_checked = check.model_fits(model, config.model, shards, found)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        anchor = _score_anchor(model, shards, config)
        if config.objective is Objective.PPO:
            check.refuse_foreign(found, config, anchor.delta_by_policy)
        result = None if config.dry_run else _run(config, output, shards, model, tokenizer, anchor)
    return _report(config, found, anchor, result, tokenizer_checked)


@dataclass(slots=True)
class _Result:
    """Metrics of all updates, and what was learned of the steps."""

    metrics: list[loop.Metrics]
    priorities: StepPriorities
    phases: int = 0


def _score_anchor(model: PreTrainedModel, shards: Shards, config: TrainConfig) -> _Anchor:
    """Score all action tokens with the starting model, and compare with what was logged."""
    if config.objective is not Objective.PPO:
        return _Anchor({}, {})
    ref_logprobs: dict[int, Tensor] = {}
    deltas: defaultdict[str | None, list[np.ndarray]] = defaultdict(list)
    for packed in shards.rows():
        row = train_row(packed, config.objective)
        scored = loop.score(model, [row])
        ref_logprobs |= scored
        if row.spans:
            delta_N = np.abs(scored[row.row_id].double().cpu().numpy() - row.behaviour_N)
            for s, policy in enumerate(row.policies):
                deltas[policy].append(delta_N[(row.step_N == s) & np.isfinite(delta_N)])
    return _Anchor(ref_logprobs, {p: np.concatenate(pieces) for p, pieces in deltas.items()})


def _run(
    config: TrainConfig,
    output: Path,
    shards: Shards,
    model: PreTrainedModel,
    tokenizer: tokenizers.Tokenizer,
    anchor: _Anchor,
) -> _Result:
    """Train and write the artefact."""
    inputs = [artefact.describe_input(shards.path), checkpoint.describe_model(config.model)]
    settings = configuration.to_dict(config)
    with artefact.create(
        output, kind=KIND, force=config.force, config=settings, inputs=inputs
    ) as draft:
        result = _train_phases(config, draft.path, shards, model, anchor)
        checkpoint.save_checkpoint(
            model, draft.path / "checkpoint", model_name=config.model, tokenizer=tokenizer
        )
        result.priorities.save(draft.path / "priorities.parquet")
        draft.manifest |= {
            "objective": config.objective.value,
            "phases": result.phases,
            "updates": len(result.metrics),
            "vocab_hash": tokenizer.vocab_hash,
            "torch_version": torch.__version__,
            "transformers_version": transformers.__version__,
            "torch_threads": torch.get_num_threads(),
        }
    return result


def _train_phases(
    config: TrainConfig, directory: Path, shards: Shards, model: PreTrainedModel, anchor: _Anchor
) -> _Result:
    result = _Result([], StepPriorities(shards.manifest.steps))
    optimizer = loop.make_optimizer(model, config.optim)
    is_ppo = config.objective is Objective.PPO
    with (directory / "metrics.jsonl").open("w") as lines:
        for phase, updates in groupby(ShardUpdates(shards), key=lambda update: update.phase):
            rows = [
                train_row(packed, config.objective, scale_by_std=config.ppo.scale_by_std)
                for update in updates
                for packed in update.rows
            ]
            frozen: dict[int, loop.Frozen] = {}
            if is_ppo:
                # the first phase starts from the anchor itself: scored once, used twice
                old = loop.score(model, rows) if phase else anchor.ref_logprobs
                frozen = {
                    row.row_id: loop.Frozen(old[row.row_id], anchor.ref_logprobs[row.row_id])
                    for row in rows
                    if row.spans
                }
            if frozen:
                checkpoint.save_phase(directory / f"phase_{phase:04d}.safetensors", rows, frozen)
            for update, members in loop.group_updates(rows):
                done = loop.run_update(model, optimizer, members, frozen, config)
                metrics = {"update": update, "phase": phase} | done.metrics
                lines.write(json.dumps(metrics) + "\n")
                result.metrics.append(metrics)
                result.priorities.learn(members, done.logprob_means, is_ppo=is_ppo)
                logger.info("update %d: loss %.6g", update, metrics["train/loss"])
            result.phases += 1
    return result


def _report(
    config: TrainConfig,
    found: check.Survey,
    anchor: _Anchor,
    result: _Result | None,
    tokenizer_checked: bool,
) -> TrainReport:
    reasons = check.count_reasons(found, config)
    deltas = np.concatenate([np.zeros(0), *anchor.delta_by_policy.values()])
    metrics = result.metrics if result else []
    last = metrics[-1] if metrics else {}
    clip_fracs = [each["train/clip_frac"] for each in metrics if "train/clip_frac" in each]
    tokens = int(sum(each["data/tokens"] for each in metrics))
    seconds = sum(each["perf/update_s"] for each in metrics)
    output = Path(config.output)
    return TrainReport(
        objective=config.objective.value,
        updates=len(metrics),
        phases=result.phases if result else 0,
        steps_trained=found.steps_trained,
        tokens=tokens if result else found.tokens,
        action_tokens=found.action_tokens,
        tokens_per_s=tokens / seconds if metrics else None,
        loss=last.get("train/loss"),
        kl_ref_nats_per_token=last.get("train/kl_ref_nats_per_token"),
        clip_frac=float(np.mean(clip_fracs)) if clip_fracs else None,
        grad_norm=last.get("train/grad_norm"),
        checkpoint=str(output / "checkpoint") if result else None,
        priorities=str(output / "priorities.parquet") if result else None,
        steps_off_policy_by_reason={
            reason.value: reasons[reason] for reason in gate.OFF_POLICY if reasons[reason]
        },
        steps_left_out_by_reason={
            reason.value: reasons[reason]
            for reason in (gate.Reason.NO_ACTION_TOKENS,)
            if reasons[reason]
        },
        logprob_delta_nats_by_quantile=gate.delta_quantiles(deltas) if len(deltas) else {},
        tokenizer_checked=tokenizer_checked,
        dry_run=config.dry_run,
    )
