"""Builders of training data for the tests of clawcli/train: forests, steps, shards, draws."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from clawcli import schema
from clawcli.store import artefact, shards, tokenizers
from clawcli.store.shard_cache import PackedRow, StepColumns, Steps
from clawcli.train.model import tiny_model
from clawcli.tree import Forest


class Bigram(nn.Module):
    """A language model that is a table: logits of the next token by the current one, float64."""

    device = torch.device("cpu")

    def __init__(self, probabilities: list[list[float]]) -> None:
        super().__init__()
        self.logits_VV = nn.Parameter(torch.tensor(probabilities, dtype=torch.float64).log())

    def forward(self, input_ids: Tensor, use_cache: bool, logits_to_keep: Tensor) -> object:
        return SimpleNamespace(logits=self.logits_VV[input_ids][:, logits_to_keep])


def make_step(segment: int, start: int, end: int, **fields: Any) -> dict[str, Any]:
    """Build a step that ppo accepts: own policy, full state, a group of two with spread."""
    step: dict[str, Any] = {column.name: None for column in schema.SHARD_STEP}
    step |= {
        "step_uid": f"step-{segment}-{start}-{end}",
        "trajectory_uid": f"trajectory-{segment}-{start}-{end}",
        "trajectory_kind": "main",
        "group_uid": "group",
        "step_index": 0,
        "is_last": True,
        "policy": "tiny",
        "policy_version": 1,
        "temperature": 1.0,
        "trajectory_return": 1.0,
        "group_size": 2,
        "group_reward_mean": 0.5,
        "group_reward_std": 0.7071067811865476,
        "finish_reason": "stop",
        "state_kind": "full",
        "token_provenance": "engine_logprobs",
        "mu_valid": True,
        "loss_weight": 1.0,
        "sampling_weight": 1.0,
        "pi": 1.0,
        "weight": 1.0,
        "segment": segment,
        "response_start": start,
        "response_end": end,
        "rollout_logprobs": [-6.9] * (end - start),
    }
    return step | fields


def forest(*segments: tuple[int, list[int]]) -> Forest:
    """Build a forest from (parent, tokens) pairs in depth-first pre-order."""
    lengths = [len(tokens) for _, tokens in segments]
    return Forest(
        np.concatenate([tokens for _, tokens in segments]).astype(np.int32),
        np.cumsum([0, *lengths[:-1]]).astype(np.int32),
        np.array([parent for parent, _ in segments], np.int32),
    )


def packed_row(
    row_id: int, phase: int, update: int, forest: Forest, steps: list[dict[str, Any]]
) -> PackedRow:
    """Build a packed row of steps as Python values."""
    kind = schema.arrow_schema(schema.SHARDS).field("steps").type.value_type
    columns = StepColumns(pa.array(steps, kind))
    return PackedRow(row_id, phase, update, forest, Steps(columns, 0, len(steps)))


def with_steps(row: PackedRow, steps: list[dict[str, Any]]) -> PackedRow:
    """Let a packed row have other steps."""
    return packed_row(row.row_id, row.phase, row.update, row.forest, steps)


def write_shards(path: Path, rows: list[PackedRow], **manifest: Any) -> Path:
    """Write a shards artefact with the tiny tokenizer."""
    tokenizer = tokenizers.load("tiny")
    fields = schema.arrow_schema(schema.SHARDS)
    entries = [
        {
            "row_id": row.row_id,
            "stage": 0,
            "phase": row.phase,
            "update": row.update,
            "cost": len(row.forest.token_ids),
            "token_ids": row.forest.token_ids.tolist(),
            "segment_starts": row.forest.segment_starts.tolist(),
            "segment_parents": row.forest.segment_parents.tolist(),
            "steps": row.steps.to_pylist(),
        }
        for row in rows
    ]
    updates = [
        {"phase": members[0].phase, "stage": 0, "epoch": 0, "rows": [[r.row_id for r in members]]}
        for members in (list(each) for _, each in groupby(rows, lambda row: row.update))
    ]
    with artefact.create(path, kind="shards", force=False, config={}, inputs=[]) as draft:
        with shards.Writer(draft.path) as writer:
            for part, each in enumerate(entries):
                writer.write(pa.Table.from_pylist([each], schema=fields), part // 4)
        tokenizer.to_file(draft.path / "tokenizer.json")
        draft.manifest |= {
            "tokenizer": "tiny",
            "vocab_hash": tokenizer.vocab_hash,
            "vocab_size": tokenizer.vocab_size,
            "template_hash": "",
            "num_phases": rows[-1].phase + 1,
            "num_updates": rows[-1].update + 1,
            "rows": len(rows),
            "steps": sum(len(row.steps) for row in rows),
            "tokens": sum(len(row.forest.token_ids) for row in rows),
            "counts": {
                "steps": sum(len(row.steps) for row in rows),
                "trajectories": 1,
                "rows": len(rows),
                "shards": 1,
                "tokens": 1,
                "phases": 1,
                "updates": 1,
                "fillers": 0,
                "epochs": 1,
                "ranks": 1,
                "importance_weight_max": 1.0,
            },
            "plan": {
                "seed": 0,
                "unit": "trajectory",
                "beta": 1.0,
                "stages": [{"units": 1, "threshold": None, "importance_weight_bound": 1.0}],
                "epochs": 1,
                "ranks": 1,
                "rank_imbalance_frac": 0.0,
                "whole_trajectories": False,
                "updates": updates,
            },
            "tokenizer_file": "tokenizer.json",
            "eos_token_id": 2,
        } | manifest
    return path


def is_rewarded(token_id: int) -> bool:
    """Say which answers of the guessing task are right: a quarter of the vocabulary."""
    return token_id % 4 == 0


@torch.no_grad()
def guessing_rows(
    *,
    tasks: int = 4,
    attempts: int = 16,
    updates_per_phase: int = 2,
    phases: int = 1,
    seed: int = 0,
) -> list[PackedRow]:
    """Draw one-token answers from tiny itself, each task a star: prompt and its answers.

    Every update holds all tasks; each phase sees fresh draws, all from the starting model.
    """
    model = tiny_model(tokenizers.load("tiny").vocab_size)
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for update in range(phases * updates_per_phase):
        for task in range(tasks):
            prompt = torch.arange(10 + 7 * task, 22 + 7 * task)
            logprobs_V = torch.log_softmax(model(input_ids=prompt[None]).logits[0, -1], -1)
            answers = torch.multinomial(
                logprobs_V.exp(), attempts, replacement=True, generator=generator
            ).tolist()
            rows.append(
                _star(len(rows), update, updates_per_phase, task, prompt, answers, logprobs_V)
            )
    return rows


def _star(
    row_id: int,
    update: int,
    updates_per_phase: int,
    task: int,
    prompt: torch.Tensor,
    answers: list[int],
    logprobs: torch.Tensor,
) -> PackedRow:
    leaves = sorted(set(answers))
    returns = np.array([float(is_rewarded(answer)) for answer in answers])
    steps = [
        make_step(
            1 + leaves.index(answer),
            len(prompt),
            len(prompt) + 1,
            step_uid=f"step-{row_id}-{i}",
            trajectory_uid=f"trajectory-{row_id}-{i}",
            group_uid=f"group-{row_id}",
            trajectory_return=returns[i],
            group_size=len(answers),
            group_reward_mean=float(returns.mean()),
            group_reward_std=float(returns.std(ddof=1)),
            rollout_logprobs=[float(logprobs[answer])],
        )
        for i, answer in enumerate(answers)
    ]
    tree = forest((-1, prompt.tolist()), *((0, [answer]) for answer in leaves))
    return packed_row(row_id, update // updates_per_phase, update, tree, steps)


def rewarded_probability(model: torch.nn.Module, *, tasks: int = 4) -> float:
    """Mean probability that a model gives to the right answers of the guessing tasks."""
    probabilities = []
    for task in range(tasks):
        prompt = torch.arange(10 + 7 * task, 22 + 7 * task)
        with torch.no_grad():
            probability_V = torch.softmax(model(input_ids=prompt[None]).logits[0, -1], -1)
        right = [token for token in range(len(probability_V)) if is_rewarded(token)]
        probabilities.append(float(probability_V[right].sum()))
    return float(np.mean(probabilities))
