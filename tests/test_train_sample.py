"""PPO on what tiny itself drew: the sample log through the whole line, as a user would run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from clawcli.export.config import ExportShardsConfig
from clawcli.export.shards import export_shards
from clawcli.gate import Objective
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.prefix.run import MergeConfig, merge_prefixes
from clawcli.store import tokenizers
from clawcli.store.shard_cache import PackedRow
from clawcli.store.shards import open_shards
from clawcli.train import loop
from clawcli.train.config import OptimConfig, TrainConfig
from clawcli.train.model import quiet_transformers, tiny_model
from clawcli.train.rows import train_row
from clawcli.train.run import train

LOG = Path(__file__).parents[1] / "sample_data" / "own-policy.jsonl"
BRISK = OptimConfig(learning_rate=1e-2, warmup_updates=0)


def make_shards(tmp_path: Path) -> list[PackedRow]:
    data, tree, shards = (str(tmp_path / name) for name in ("data", "tree", "shards"))
    ingest(IngestConfig(inputs=(str(LOG),), output=data))
    merge_prefixes(MergeConfig(input=data, output=tree, tokenizer="tiny"))
    # small rows, so that the few steps make several updates and phases
    export_shards(
        ExportShardsConfig(input=tree, output=shards, max_tokens_per_row=64, updates_per_phase=4)
    )
    return list(open_shards(Path(shards)).rows())


def winning_probability(model: torch.nn.Module, rows: list[PackedRow]) -> float:
    """Probability that an answer begins with a letter from a to e, which the game rewards."""
    tiny = tokenizers.load("tiny")
    wins = [
        token
        for token in range(tiny.vocab_size)
        if tiny.decode([token]).strip().lower().startswith(tuple("abcde"))
    ]
    prompts = {
        tuple(row.forest.row(step["segment"])[: step["response_start"]].tolist())
        for row in rows
        for step in row.steps.to_pylist()
    }
    with torch.no_grad():
        probabilities = [
            torch.softmax(model(torch.tensor([prompt])).logits[0, -1], -1)[wins].sum().item()
            for prompt in sorted(prompts)
        ]
    return float(np.mean(probabilities))


def answer_logprobs(model: torch.nn.Module, rows: list[PackedRow]) -> dict[float, float]:
    """Mean log-prob of the logged answers by their reward."""
    found: dict[float, list[float]] = {0.0: [], 1.0: []}
    for packed in rows:
        row = train_row(packed, Objective.PPO)
        logprobs_N = loop.score(model, [row])[row.row_id].numpy()
        for step, total in zip(
            packed.steps.to_pylist(), np.bincount(row.step_N, logprobs_N), strict=True
        ):
            found[step["reward"]].append(total)
    return {reward: float(np.mean(values)) for reward, values in found.items()}


def reload(path: str) -> torch.nn.Module:
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(path)


@pytest.mark.slow
def test_ppo_on_the_own_policy_sample_makes_rewarded_answers_more_probable(tmp_path):
    rows = make_shards(tmp_path)
    start = tiny_model(tokenizers.load("tiny").vocab_size)
    config = TrainConfig(
        shards=str(tmp_path / "shards"),
        output=str(tmp_path / "run"),
        model="tiny",
        objective=Objective.PPO,
        optim=BRISK,
    )
    report = train(config)
    assert report.logprob_delta_nats_by_quantile["max"] < 1e-5
    assert report.clip_frac > 0
    before, after = answer_logprobs(start, rows), answer_logprobs(reload(report.checkpoint), rows)
    assert after[1.0] > before[1.0] + 1.0
    assert after[0.0] < before[0.0] - 1.0
    # a second pass over the same log, now of an older policy, weighed by old / behaviour
    again = train(
        replace(
            config,
            model=report.checkpoint,
            output=str(tmp_path / "again"),
            own_policy=("tiny",),
        )
    )
    chances = [
        winning_probability(model, rows)
        for model in (start, reload(report.checkpoint), reload(again.checkpoint))
    ]
    assert chances[1] > 1.15 * chances[0]
    assert chances[2] > 1.5 * chances[0]


@pytest.mark.slow
def test_ppo_on_the_own_policy_sample_without_advantages_changes_nothing(tmp_path):
    packed = make_shards(tmp_path)
    rows = [train_row(each, Objective.PPO) for each in packed]
    rows = [replace(row, advantages_S=np.zeros_like(row.advantages_S)) for row in rows]
    model = tiny_model(tokenizers.load("tiny").vocab_size)
    ref = loop.score(model, rows)
    frozen = {key: loop.Frozen(logprobs_N, logprobs_N) for key, logprobs_N in ref.items()}
    config = TrainConfig(shards="", output="", model="tiny", objective=Objective.PPO, optim=BRISK)
    optimizer = loop.make_optimizer(model, config.optim)
    before = winning_probability(model, packed)
    for _, members in loop.group_updates(rows):
        loop.run_update(model, optimizer, members, frozen, config)
    assert winning_probability(model, packed) == before
