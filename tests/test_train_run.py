"""`claw train` as a whole: shards in, a run directory or a refusal out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file
from train_data import (
    forest,
    guessing_rows,
    make_step,
    packed_row,
    with_steps,
    write_shards,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from clawcli.config import resolve
from clawcli.errors import (
    ConfigError,
    DataError,
    GateError,
    NoSignalError,
    NotFoundError,
    OutputExistsError,
    TokenizerMismatchError,
    TrainingError,
)
from clawcli.gate import Objective
from clawcli.store import artefact, tokenizers
from clawcli.store.shard_cache import PackedRow
from clawcli.train import loop
from clawcli.train.config import OptimConfig, PpoConfig, TrainConfig
from clawcli.train.model import quiet_transformers, tiny_model
from clawcli.train.rows import train_row
from clawcli.train.run import TrainReport, train

BRISK = OptimConfig(learning_rate=1e-2, warmup_updates=0)


def make_config(tmp_path: Path, objective: str = "ppo", **fields: object) -> TrainConfig:
    values = {
        "shards": str(tmp_path / "shards"),
        "output": str(tmp_path / "run"),
        "model": "tiny",
        "objective": Objective(objective),
        "optim": BRISK,
    }
    return TrainConfig(**(values | fields))


def run(tmp_path: Path, rows: list[PackedRow], objective: str = "ppo", **fields) -> TrainReport:
    write_shards(tmp_path / "shards", rows)
    return train(make_config(tmp_path, objective, **fields))


def edit_steps(rows: list[PackedRow], **fields: object) -> list[PackedRow]:
    return [
        with_steps(
            row,
            [step | {k: v(step) for k, v in fields.items()} for step in row.steps.to_pylist()],
        )
        for row in rows
    ]


def separate_rows() -> list[PackedRow]:
    """Two rows of two roots each, as --merge chain and none write them."""
    rows = []
    for row_id in range(2):
        bodies = [[5, 6, 7, 8], [5, 6, 9]]
        steps = [
            make_step(
                s,
                2,
                len(body),
                step_uid=f"{row_id}-{s}",
                trajectory_uid=f"{row_id}-{s}",
                trajectory_return=float(s),
                rollout_logprobs=None,
                policy="other",
            )
            for s, body in enumerate(bodies)
        ]
        rows.append(packed_row(row_id, 0, row_id, forest(*((-1, b) for b in bodies)), steps))
    return rows


def read_metrics(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_train_ppo_writes_a_run_directory_that_verifies(tmp_path):
    report = run(tmp_path, guessing_rows(phases=2))
    manifest = artefact.verify_files(tmp_path / "run")
    assert manifest["kind"] == "run"
    assert manifest["config"]["optim"]["learning_rate"] == 1e-2
    assert [each["kind"] for each in manifest["inputs"]] == ["shards", "model"]
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [(each["update"], each["phase"]) for each in metrics] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert (report.updates, report.phases) == (4, 2)
    assert report.steps_trained == report.action_tokens == 256
    assert report.tokens == sum(each["data/tokens"] for each in metrics)
    assert report.loss == metrics[-1]["train/loss"]
    assert report.kl_ref_nats_per_token == metrics[-1]["train/kl_ref_nats_per_token"] > 0
    assert report.clip_frac == pytest.approx(np.mean([m["train/clip_frac"] for m in metrics]))
    assert report.logprob_delta_nats_by_quantile["max"] < 1e-5
    assert report.steps_off_policy_by_reason == {}


def test_train_ppo_starts_every_phase_at_ratio_one(tmp_path):
    run(tmp_path, guessing_rows(phases=2))
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    deviations = [each["train/ratio_max_deviation"] for each in metrics]
    assert deviations[0] <= 1e-6
    assert deviations[2] <= 1e-6
    assert min(deviations[1], deviations[3]) > 0.1
    assert metrics[1]["train/clip_frac"] > 0
    # the anchor stays the starting model: the KL to it does not go back to 0 with the phase
    assert metrics[2]["train/kl_ref_nats_per_token"] > 1e-3


def test_train_ppo_saves_what_each_phase_held_fixed(tmp_path):
    rows = guessing_rows(phases=2)
    run(tmp_path, rows)
    first, second = (
        load_arrays(tmp_path / "run" / f"phase_{phase:04d}.safetensors") for phase in range(2)
    )
    np.testing.assert_array_equal(first["old_logprobs"], first["ref_logprobs"])
    assert np.abs(second["old_logprobs"] - second["ref_logprobs"]).max() > 0.1
    logged = [step["rollout_logprobs"][0] for row in rows[:8] for step in row.steps.to_pylist()]
    np.testing.assert_allclose(first["old_logprobs"], logged, rtol=0, atol=1e-5)
    steps = [step for row in rows[:8] for step in row.steps.to_pylist()]
    expected = [step["trajectory_return"] - step["group_reward_mean"] for step in steps]
    np.testing.assert_array_equal(first["advantages"], expected)
    assert first["row_ids"].tolist() == list(range(8))
    assert first["token_offsets"][-1] == first["step_offsets"][-1] == len(steps)


def test_train_ppo_scaled_by_std_divides_the_advantages(tmp_path):
    rows = guessing_rows()
    run(tmp_path, rows, ppo=PpoConfig(scale_by_std=True))
    frozen = load_arrays(tmp_path / "run" / "phase_0000.safetensors")
    expected = [
        (step["trajectory_return"] - step["group_reward_mean"]) / (step["group_reward_std"] + 1e-6)
        for row in rows
        for step in row.steps.to_pylist()
    ]
    np.testing.assert_allclose(frozen["advantages"], expected, rtol=1e-12)
    assert np.abs(frozen["advantages"]).max() > 1.0  # a return is 0 or 1: no difference is


@pytest.mark.parametrize("objective", ["sft", "ppo"])
def test_train_writes_a_priority_for_each_trained_step(tmp_path, objective):
    rows = guessing_rows()
    run(tmp_path, rows, objective)
    table = pl.read_parquet(tmp_path / "run" / "priorities.parquet")
    steps = {step["step_uid"]: (row.update, step) for row in rows for step in row.steps.to_pylist()}
    assert sorted(table["step_uid"]) == sorted(steps)
    for entry in table.iter_rows(named=True):
        update, step = steps[entry["step_uid"]]
        assert entry["update"] == update
        assert entry["policy_version"] == 1
        if objective == "ppo":
            advantage = step["trajectory_return"] - step["group_reward_mean"]
            assert (entry["advantage"], entry["priority"]) == (advantage, abs(advantage))
        else:
            assert (entry["advantage"], entry["priority"]) == (None, 1.0)
        if update == 0:
            assert entry["logprob_mean"] == pytest.approx(step["rollout_logprobs"][0], abs=1e-5)


def test_train_sft_lowers_the_nll_of_what_it_trains(tmp_path):
    rows = guessing_rows(tasks=1, updates_per_phase=12)
    same = [replace(row, forest=rows[0].forest, steps=rows[0].steps) for row in rows]
    run(tmp_path, same, "sft")
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert metrics[-1]["train/nll_nats_per_token"] < metrics[0]["train/nll_nats_per_token"] - 1.0
    assert "train/clip_frac" not in metrics[0]
    assert not list((tmp_path / "run").glob("phase_*"))


def test_train_leaves_a_checkpoint_that_reloads_and_trains_on(tmp_path):
    run(tmp_path, guessing_rows())
    path = tmp_path / "run" / "checkpoint"
    weights = load_file(path / "model.safetensors")
    assert "lm_head.weight" not in weights
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(path)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, weights["model.embed_tokens.weight"])
    assert not torch.equal(model.lm_head.weight, tiny_model(1024).lm_head.weight)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    # lr near 0: the second run's checkpoint is the first one's
    still = OptimConfig(learning_rate=1e-30)
    report = train(
        make_config(
            tmp_path,
            model=str(path),
            output=str(tmp_path / "again"),
            optim=still,
            own_policy=("tiny",),
        )
    )
    assert report.tokenizer_checked
    with quiet_transformers():
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "again" / "checkpoint")
    token_ids = torch.arange(20)[None]
    assert torch.equal(model(token_ids).logits, again(token_ids).logits)


def test_train_writes_the_trained_weights_to_the_bit(tmp_path):
    packed = guessing_rows()
    run(tmp_path, packed, "sft")
    # the same two updates once more, in memory
    model = tiny_model(tokenizers.load("tiny").vocab_size)
    config = make_config(tmp_path, "sft")
    optimizer = loop.make_optimizer(model, config.optim)
    rows = [train_row(each, Objective.SFT) for each in packed]
    for _, members in loop.group_updates(rows):
        loop.run_update(model, optimizer, members, {}, config)
    weights = load_file(tmp_path / "run" / "checkpoint" / "model.safetensors")
    trained = {name: p for name, p in model.named_parameters() if name in weights}
    assert set(trained) == set(weights)
    for name, parameter in trained.items():
        assert weights[name].dtype == torch.float32
        assert torch.equal(weights[name], parameter), name
    with quiet_transformers():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoint")
    token_ids = torch.arange(20)[None]
    assert torch.equal(loaded(token_ids).logits, model(token_ids).logits)


@pytest.mark.parametrize("objective", ["sft", "ppo"])
def test_train_twice_gives_the_same_metrics_and_weights_to_the_bit(tmp_path, objective):
    write_shards(tmp_path / "shards", guessing_rows(phases=2))
    found = []
    for name in ("a", "b"):
        train(make_config(tmp_path, objective, output=str(tmp_path / name)))
        metrics = read_metrics(tmp_path / name / "metrics.jsonl")
        kept = [{k: v for k, v in m.items() if not k.startswith("perf/")} for m in metrics]
        weights = (tmp_path / name / "checkpoint" / "model.safetensors").read_bytes()
        found.append((kept, weights))
    assert found[0] == found[1]


def test_train_on_separate_rows_gives_the_metrics_of_the_tree(tmp_path):
    trees = guessing_rows(attempts=6)
    separated = []
    for row in trees:
        ends = [step["segment"] for step in row.steps.to_pylist()]
        roots = forest(*((-1, row.forest.row(segment).tolist()) for segment in ends))
        steps = [step | {"segment": s} for s, step in enumerate(row.steps.to_pylist())]
        separated.append(with_steps(replace(row, forest=roots), steps))
    found = []
    for name, rows in (("tree", trees), ("none", separated)):
        (tmp_path / name).mkdir()
        run(tmp_path / name, rows)
        found.append(read_metrics(tmp_path / name / "run" / "metrics.jsonl"))
    for tree, none in zip(*found, strict=True):
        assert tree["data/tokens"] < none["data/tokens"]
        for key in ("train/loss", "train/grad_norm", "train/clip_frac", "train/logprob_mean_nats"):
            assert tree[key] == pytest.approx(none[key], rel=1e-4, abs=1e-5)


def test_train_ppo_on_a_foreign_log_is_refused_before_the_model_is_looked_at(tmp_path):
    rows = edit_steps(
        separate_rows(), state_kind=lambda _: "reconstructed", mu_valid=lambda _: False
    )
    with pytest.raises(GateError) as caught:
        run(tmp_path, rows, model=str(tmp_path / "absent"))
    assert "rollout_logprobs is null in 4 of 4 steps (100.0%)" in caught.value.message
    assert "policy is not known to be the model's own in 4 of 4" in caught.value.message
    assert "state_kind is reconstructed in 4 of 4" in caught.value.message
    assert caught.value.exit_code == 3
    assert not (tmp_path / "run").exists()


def test_train_ppo_with_allow_off_policy_takes_a_foreign_log_and_says_so(tmp_path):
    report = run(tmp_path, separate_rows(), allow_off_policy=True)
    assert report.steps_off_policy_by_reason == {"logprobs_missing": 4, "policy_foreign": 4}
    assert report.logprob_delta_nats_by_quantile == {}
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [each["train/importance_weight_mean"] for each in metrics] == [1.0, 1.0]


def shifted(step: dict) -> list[float]:
    return [value - 0.5 for value in step["rollout_logprobs"]]


def test_train_ppo_on_log_probs_of_another_model_is_refused_with_the_distance(tmp_path):
    rows = edit_steps(guessing_rows(), rollout_logprobs=shifted)
    with pytest.raises(GateError, match=r"differ by 0\.5 nats at the median") as caught:
        run(tmp_path, rows)
    assert "policy is not known to be the model's own in 128 of 128" in caught.value.message


def half_by_another_model() -> list[PackedRow]:
    """Rows in which every second step comes from another policy, with other log-probs."""
    rows = []
    for row in guessing_rows():
        steps = row.steps.to_pylist()
        for step in steps[::2]:
            step |= {"policy": "other", "rollout_logprobs": shifted(step)}
        rows.append(with_steps(row, steps))
    return rows


@pytest.mark.parametrize("own_policy", [(), ("tiny",)])
def test_train_ppo_on_own_and_foreign_steps_in_one_row_names_the_foreign_share(
    tmp_path, own_policy
):
    with pytest.raises(GateError) as caught:
        run(tmp_path, half_by_another_model(), own_policy=own_policy)
    refused = "ppo: policy is not known to be the model's own in 64 of 128 steps (50.0%)."
    assert refused in caught.value.message
    report = train(make_config(tmp_path, own_policy=own_policy, allow_off_policy=True))
    assert report.steps_off_policy_by_reason == {"policy_foreign": 64}


def test_train_ppo_on_a_foreign_policy_named_as_own_takes_both(tmp_path):
    report = run(tmp_path, half_by_another_model(), own_policy=("other",))
    assert report.steps_off_policy_by_reason == {}


@pytest.mark.parametrize(
    ("shift_nats", "weight", "truncated"), [(0.5, np.exp(0.5), 0.0), (1.0, 2.0, 1.0)]
)
def test_train_ppo_on_a_policy_named_as_own_weighs_by_its_log_probs(
    tmp_path, shift_nats, weight, truncated
):
    rows = edit_steps(
        guessing_rows(), rollout_logprobs=lambda s: [s["rollout_logprobs"][0] - shift_nats]
    )
    report = run(tmp_path, rows, own_policy=("tiny",))
    assert report.logprob_delta_nats_by_quantile["p50"] == pytest.approx(shift_nats, abs=1e-5)
    first = read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
    assert first["train/importance_weight_mean"] == pytest.approx(weight, rel=1e-5)
    assert first["train/importance_truncated_frac"] == truncated


def test_train_ppo_gives_log_probs_that_are_not_valid_no_weight(tmp_path):
    rows = edit_steps(guessing_rows(), rollout_logprobs=shifted, mu_valid=lambda _: False)
    report = run(tmp_path, rows, allow_off_policy=True)
    assert report.logprob_delta_nats_by_quantile == {}
    assert report.steps_off_policy_by_reason == {"logprobs_invalid": 128, "policy_foreign": 128}
    first = read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
    assert first["train/importance_weight_mean"] == 1.0


def test_train_ppo_without_spread_has_no_signal_and_says_why(tmp_path):
    rows = edit_steps(
        guessing_rows(tasks=2, updates_per_phase=1),
        group_reward_std=lambda _: 0.0,
        group_reward_mean=lambda step: step["trajectory_return"],
    )
    with pytest.raises(NoSignalError, match="of 2 groups 2 have equal returns") as caught:
        run(tmp_path, rows)
    assert caught.value.exit_code == 6


def test_train_dry_run_checks_all_and_writes_nothing(tmp_path):
    report = run(tmp_path, guessing_rows(), dry_run=True)
    assert report.dry_run
    assert (report.updates, report.loss, report.checkpoint) == (0, None, None)
    assert report.steps_trained == 128
    assert report.logprob_delta_nats_by_quantile["max"] < 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    with pytest.raises(GateError):
        train(make_config(tmp_path, dry_run=True, shards=str(foreign_shards(tmp_path))))


def foreign_shards(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "foreign", separate_rows())


def test_train_into_an_output_that_exists_is_refused_unless_forced(tmp_path):
    run(tmp_path, guessing_rows())
    with pytest.raises(OutputExistsError):
        train(make_config(tmp_path))
    assert train(make_config(tmp_path, force=True)).updates == 2


def test_train_that_diverges_leaves_no_run_directory(tmp_path):
    rows = edit_steps(guessing_rows(), weight=lambda _: float("inf"))
    with pytest.raises(TrainingError, match="Update 0"):
        run(tmp_path, rows)
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


def test_train_on_missing_shards_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match="shards does not exist"):
        train(make_config(tmp_path))


def test_train_leaves_out_steps_without_tokens_and_counts_them(tmp_path):
    rows = guessing_rows()
    empty = make_step(1, 12, 12, step_uid="empty", rollout_logprobs=[])
    rows[0] = with_steps(rows[0], [*rows[0].steps.to_pylist(), empty])
    report = run(tmp_path, rows, "sft")
    assert report.steps_left_out_by_reason == {"no_action_tokens": 1}
    assert report.steps_trained == 128


def with_an_empty_step(rows: list[PackedRow]) -> list[PackedRow]:
    """Add a step without action tokens, by a policy and in a state that nobody knows."""
    empty = make_step(
        1,
        12,
        12,
        step_uid="empty",
        rollout_logprobs=[],
        policy=None,
        mu_valid=None,
        state_kind=None,
    )
    rows[0] = with_steps(rows[0], [*rows[0].steps.to_pylist(), empty])
    return rows


def test_train_ppo_leaves_out_a_step_without_tokens_whatever_its_columns_say(tmp_path):
    report = run(tmp_path, with_an_empty_step(guessing_rows()))
    assert report.steps_left_out_by_reason == {"no_action_tokens": 1}
    assert report.steps_off_policy_by_reason == {}
    assert report.steps_trained == 128


def test_train_ppo_refusal_counts_shares_of_the_steps_that_would_be_trained(tmp_path):
    with pytest.raises(GateError, match=r"own in 64 of 128 steps"):
        run(tmp_path, with_an_empty_step(half_by_another_model()))
    rows = edit_steps(guessing_rows(), state_kind=lambda _: None)
    write_shards(tmp_path / "unknown", with_an_empty_step(rows))
    with pytest.raises(GateError, match=r"state_kind is unknown or null in 128 of 128 steps"):
        train(make_config(tmp_path, shards=str(tmp_path / "unknown")))


def test_train_on_log_probs_of_another_length_names_row_and_step(tmp_path):
    rows = edit_steps(guessing_rows(), rollout_logprobs=lambda _: [-1.0, -1.0])
    with pytest.raises(DataError, match=r"row 0, step step-0-0: rollout_logprobs has 2 values"):
        run(tmp_path, rows)


def test_train_on_a_span_off_its_path_names_row_and_step(tmp_path):
    rows = edit_steps(guessing_rows(), response_end=lambda step: step["response_end"] + 9)
    with pytest.raises(DataError, match=r"row 0, step step-0-0: its action .* is not on the path"):
        run(tmp_path, rows)


def saved_model(model: torch.nn.Module, path: Path) -> str:
    with quiet_transformers():
        model.save_pretrained(path)
    return str(path)


def test_train_with_another_tokenizer_than_the_shards_is_refused(tmp_path):
    path = saved_model(tiny_model(1100), tmp_path / "model")
    vocabulary = json.loads(tokenizers.load("tiny").json_path.read_text())
    added = vocabulary["added_tokens"][-1]
    vocabulary["added_tokens"].append(added | {"id": 1090, "content": "<|extra|>"})
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(TokenizerMismatchError, match="vocab_hash"):
        run(tmp_path, guessing_rows(), model=path)


def test_train_with_a_model_without_tokenizer_says_that_it_was_not_checked(tmp_path):
    path = saved_model(tiny_model(1024), tmp_path / "model")
    assert not run(tmp_path, guessing_rows(), model=path).tokenizer_checked
    assert (tmp_path / "run" / "checkpoint" / "tokenizer.json").is_file()


def gpt2(path: Path) -> str:
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=1024, n_positions=16)
    return saved_model(GPT2LMHeadModel(config), path)


def test_train_on_merged_rows_with_absolute_positions_points_to_chain(tmp_path):
    with pytest.raises(DataError, match="positions are not rotary") as caught:
        run(tmp_path, guessing_rows(), "sft", model=gpt2(tmp_path / "model"))
    assert "--merge chain" in caught.value.hint


def test_train_on_separate_rows_needs_nothing_of_the_architecture(tmp_path):
    report = run(tmp_path, separate_rows(), model=gpt2(tmp_path / "model"), allow_off_policy=True)
    assert report.updates == 2
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    # the model's dropout would move the ratio
    assert metrics[0]["train/ratio_max_deviation"] <= 1e-6


def test_train_on_rows_longer_than_the_model_names_the_limit(tmp_path):
    long = [packed_row(0, 0, 0, forest((-1, list(range(20)))), [make_step(0, 18, 20)])]
    with pytest.raises(DataError, match=r"has 20 tokens, but .* has 16 positions"):
        run(tmp_path, long, "sft", model=gpt2(tmp_path / "model"))


@pytest.mark.parametrize("seed", [-1, 2**63, 10**20])
def test_train_seed_out_of_range_is_a_config_error(seed):
    flags = {"shards": "s", "output": "r", "model": "tiny", "objective": "sft", "seed": seed}
    with pytest.raises(ConfigError, match=str(seed)):
        resolve(TrainConfig, flags)


def test_train_goes_through_the_rows_once_for_each_epoch(tmp_path):
    rows = guessing_rows(tasks=2, attempts=4, updates_per_phase=2)
    manifest = json.loads((write_shards(tmp_path / "once", rows) / "manifest.json").read_text())
    plan = manifest["plan"]
    again = [
        {**update, "epoch": 1, "phase": 1, "rows": [mine[::-1] for mine in update["rows"]]}
        for update in plan["updates"][::-1]
    ]
    plan |= {"epochs": 2, "updates": plan["updates"] + again}
    counts = {"num_phases": 2, "num_updates": 4}
    write_shards(tmp_path / "shards", rows, plan=plan, **counts)
    report = train(make_config(tmp_path))
    assert (report.updates, report.phases, report.steps_trained) == (4, 2, 16)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [each["data/steps"] for each in metrics] == [8] * 4
    # what was trained twice was trained last in the second epoch
    told = pq.read_table(tmp_path / "run" / "priorities.parquet")["update"].to_pylist()
    assert sorted(set(told)) == [2, 3]


def test_the_weight_of_a_step_scales_its_loss_and_not_its_ratio(tmp_path):
    rows = guessing_rows(tasks=2, attempts=4)
    found = []
    for weight in (1.0, 0.25):
        (tmp_path / str(weight)).mkdir()
        run(tmp_path / str(weight), edit_steps(rows, weight=lambda step, w=weight: w))
        found.append(read_metrics(tmp_path / str(weight) / "run" / "metrics.jsonl")[0])
    whole, part = found
    assert part["train/loss"] == pytest.approx(whole["train/loss"] / 4, rel=1e-5)
    for name in ("train/importance_weight_mean", "train/ratio_max_deviation", "train/clip_frac"):
        assert part[name] == whole[name]
