"""Updates: how rows add up to a loss, and what one optimiser step does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from train_data import (
    Bigram,
    forest,
    guessing_rows,
    make_step,
    packed_row,
    rewarded_probability,
    with_steps,
)

from clawcli.errors import TrainingError
from clawcli.gate import Objective
from clawcli.store.shard_cache import PackedRow
from clawcli.train import loop
from clawcli.train.config import OptimConfig, PpoConfig, TrainConfig
from clawcli.train.losses import Aggregation
from clawcli.train.model import tiny_model
from clawcli.train.rows import TrainRow, train_row

BRISK = OptimConfig(learning_rate=1e-2, warmup_updates=0)


def make_config(objective: str = "ppo", **fields: object) -> TrainConfig:
    return TrainConfig(shards="", output="", model="tiny", objective=Objective(objective), **fields)


def rows_and_frozen(
    model: torch.nn.Module, packed: list[PackedRow], shift_nats: float = 0.0
) -> tuple[list[TrainRow], dict[int, loop.Frozen]]:
    rows = [train_row(each, Objective.PPO) for each in packed]
    old = loop.score(model, rows)
    return rows, {key: loop.Frozen(lp + shift_nats, lp - shift_nats) for key, lp in old.items()}


def update_gradient(model, rows, frozen, config) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    for row, scales_N in zip(rows, loop.update_scales(rows, config.aggregation), strict=True):
        loop.row_loss(model, row, scales_N, frozen.get(row.row_id), config).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def two_step_rows(cut: bool) -> list[PackedRow]:
    """Three steps of two trajectories, in one packed row or in one each."""
    spans = [(1, 4), (1, 3), (1, 6)]
    bodies = [[7, 8, 9, 4], [7, 8, 5], [7, 1, 2, 3, 4, 5]]
    steps = [
        make_step(i, *span, step_uid=f"s{i}", trajectory_uid=f"t{i % 2}", trajectory_return=i)
        for i, span in enumerate(spans)
    ]
    if not cut:
        return [packed_row(0, 0, 0, forest(*((-1, body) for body in bodies)), steps)]
    return [
        packed_row(i, 0, 0, forest((-1, body)), [step | {"segment": 0}])
        for i, (body, step) in enumerate(zip(bodies, steps, strict=True))
    ]


@pytest.mark.parametrize("aggregation", Aggregation)
@pytest.mark.parametrize("objective", ["sft", "ppo"])
def test_gradient_of_an_update_does_not_depend_on_how_it_is_cut_into_rows(objective, aggregation):
    model = tiny_model(64, dtype=torch.float64)
    config = make_config(objective, aggregation=aggregation)
    whole = update_gradient(model, *rows_and_frozen(model, two_step_rows(False), 0.1), config)
    parts = update_gradient(model, *rows_and_frozen(model, two_step_rows(True), 0.1), config)
    scale = max(float(gradient.norm()) for gradient in whole.values())
    for name, gradient in whole.items():
        assert float((parts[name] - gradient).norm()) <= 1e-12 * scale


@pytest.mark.parametrize("aggregation", Aggregation)
def test_update_scales_over_several_rows_add_up_to_one(aggregation):
    rows = [train_row(each, Objective.SFT) for each in two_step_rows(True)]
    scales = loop.update_scales(rows, aggregation)
    assert [len(each) for each in scales] == [3, 2, 5]
    assert np.concatenate(scales).sum() == pytest.approx(1.0, abs=1e-12)


def test_update_scales_by_trajectory_join_steps_of_different_rows():
    rows = [train_row(each, Objective.SFT) for each in two_step_rows(True)]
    first, second, third = loop.update_scales(rows, Aggregation.TRAJECTORY)
    # trajectory t0 has the 3 + 5 tokens of rows 0 and 2, t1 the 2 of row 1
    np.testing.assert_allclose(first, 1 / 16)
    np.testing.assert_allclose(second, 1 / 4)
    np.testing.assert_allclose(third, 1 / 16)


def test_weight_of_a_step_multiplies_its_loss_and_not_the_denominator():
    model = tiny_model(64, dtype=torch.float64)
    (row,) = [train_row(each, Objective.SFT) for each in two_step_rows(False)]
    config = make_config("sft")
    (scales_N,) = loop.update_scales([row], config.aggregation)

    def loss(*weights: float) -> float:
        weighted = replace(row, weights_S=np.array(weights))
        return loop.row_loss(model, weighted, scales_N, None, config).item()

    assert loss(2.0, 0.5, 0.0) == pytest.approx(2 * loss(1, 0, 0) + loss(0, 1, 0) / 2, rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"ppo": PpoConfig(clip_low=0.01)},
        {"ppo": PpoConfig(clip_high=0.01)},
        {"ppo": PpoConfig(kl_coef=1.0)},
        {"ppo": PpoConfig(importance_cap=0.5)},
        {"aggregation": Aggregation.TOKEN},
        {"aggregation": Aggregation.STEP},
        {"objective": Objective.SFT},
    ],
)
def test_gradient_with_any_knob_turned_is_another(change):
    model = tiny_model(64, dtype=torch.float64)
    rows, frozen = rows_and_frozen(model, two_step_rows(False))
    # ratios below 1 where advantages are negative, above it where they are positive
    frozen = {
        key: loop.Frozen(
            each.old_logprobs_N + torch.linspace(0.15, -0.15, 10), each.ref_logprobs_N - 0.3
        )
        for key, each in frozen.items()
    }
    rows = [replace(row, behaviour_N=frozen[0].old_logprobs_N.numpy() - 0.2) for row in rows]
    base = update_gradient(model, rows, frozen, make_config())
    turned = update_gradient(model, rows, frozen, replace(make_config(), **change))
    scale = max(float(gradient.norm()) for gradient in base.values())
    moved = max(float((turned[name] - base[name]).norm()) for name in base)
    assert moved > 1e-3 * scale


def test_first_updates_of_a_phase_leave_ratio_one_and_the_second_clips():
    model = tiny_model(1024)
    rows, frozen = rows_and_frozen(model, guessing_rows())
    config = make_config(optim=BRISK)
    optimizer = loop.make_optimizer(model, config.optim)
    metrics = [
        loop.run_update(model, optimizer, members, frozen, config).metrics
        for _, members in loop.group_updates(rows)
    ]
    assert metrics[0]["train/ratio_max_deviation"] <= 1e-6
    assert metrics[0]["train/clip_frac"] == 0.0
    assert metrics[0]["train/kl_ref_nats_per_token"] == 0.0
    assert metrics[1]["train/ratio_max_deviation"] > 0.1
    assert metrics[1]["train/clip_frac"] > 0.0
    assert metrics[1]["train/kl_ref_nats_per_token"] > 0.0


def test_first_update_has_the_gradient_of_the_plain_policy_gradient():
    model = tiny_model(64, dtype=torch.float64)
    rows, frozen = rows_and_frozen(model, two_step_rows(False))
    # behaviour = old: every importance weight is 1
    rows = [replace(row, behaviour_N=np.full(len(row.step_N), np.nan)) for row in rows]
    found = update_gradient(model, rows, frozen, make_config())
    weighted = [replace(row, weights_S=row.advantages_S) for row in rows]
    expected = update_gradient(model, weighted, frozen, make_config("sft"))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-13)


def learn(zero_advantages: bool) -> float:
    """Train tiny on 16 updates of the guessing task; return the rewarded probability after."""
    model = tiny_model(1024)
    packed = guessing_rows(attempts=32, updates_per_phase=16)
    rows, frozen = rows_and_frozen(model, packed)
    if zero_advantages:
        rows = [replace(row, advantages_S=np.zeros_like(row.advantages_S)) for row in rows]
    config = make_config(optim=BRISK)
    optimizer = loop.make_optimizer(model, config.optim)
    for first in range(0, len(rows), 16):  # a phase is four updates of four rows
        phase = rows[first : first + 16]
        old = loop.score(model, phase)
        held = {key: loop.Frozen(old[key], frozen[key].ref_logprobs_N) for key in old}
        for _, members in loop.group_updates(phase):
            loop.run_update(model, optimizer, members, held, config)
    return rewarded_probability(model)


@pytest.mark.slow
def test_probability_of_rewarded_answers_rises_only_with_their_advantages():
    start = rewarded_probability(tiny_model(1024))
    assert learn(zero_advantages=True) == start
    assert learn(zero_advantages=False) > 1.5 * start


def test_update_with_an_infinite_loss_is_refused_and_leaves_the_model_as_it_was():
    model = tiny_model(64)
    rows = [train_row(each, Objective.SFT) for each in two_step_rows(True)]
    rows = [replace(row, update=7, weights_S=np.array([np.inf])) for row in rows]
    config = make_config("sft", optim=BRISK)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(TrainingError, match="Update 7: loss inf"):
        loop.run_update(model, loop.make_optimizer(model, config.optim), rows, {}, config)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_gradient_of_an_update_holds_nothing_of_the_one_before():
    model = tiny_model(64)
    rows = [train_row(each, Objective.SFT) for each in two_step_rows(True)]
    config = make_config("sft", optim=OptimConfig(learning_rate=1e-30))
    optimizer = loop.make_optimizer(model, config.optim)
    norms = [
        loop.run_update(model, optimizer, rows, {}, config).metrics["train/grad_norm"]
        for _ in range(2)
    ]
    assert norms[0] == norms[1]


@pytest.mark.parametrize(("limit", "clipped"), [(1e-3, True), (0.0, False)])
def test_gradient_norm_is_logged_before_clipping_and_clipped_unless_off(limit, clipped):
    model = tiny_model(64)
    rows = [train_row(each, Objective.SFT) for each in two_step_rows(True)]
    config = make_config("sft", optim=OptimConfig(max_grad_norm=limit))
    optimizer = loop.make_optimizer(model, config.optim)
    done = loop.run_update(model, optimizer, rows, {}, config)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
    assert done.metrics["train/grad_norm"] > 0.1
    assert norm == pytest.approx(limit if clipped else done.metrics["train/grad_norm"], rel=1e-4)


def bigram_and_row() -> tuple[Bigram, TrainRow, loop.Frozen]:
    """Two tokens of one step with advantage 0.5, at which every policy says something else.

    current 0.22 and 0.3, old 0.2 and 0.4, behaviour 0.16 and 0.5, ref 0.11 and 0.3: the ratios
    are 1.1 and 0.75, the weights old / behaviour 1.25 and 0.8.
    """
    model = Bigram([[0.38, 0.22, 0.4], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]])
    step = make_step(0, 1, 3, rollout_logprobs=np.log([0.16, 0.5]).tolist())
    row = train_row(packed_row(0, 0, 0, forest((-1, [0, 1, 2])), [step]), Objective.PPO)
    # shards hold float32
    row = replace(row, behaviour_N=np.log([0.16, 0.5]))
    old, ref = (torch.tensor(p, dtype=torch.float64).log() for p in ([0.2, 0.4], [0.11, 0.3]))
    return model, row, loop.Frozen(old, ref)


# ratio x (exp(-d) - 1 + d) of the first token, with d = log(0.22 / 0.11); the second has d = 0
KL = 1.1 * (0.5 - 1.0 + math.log(2.0))


def test_ppo_loss_of_a_row_weighs_surrogate_and_kl_by_old_over_behaviour():
    model, row, frozen = bigram_and_row()
    loss = loop.row_loss(model, row, np.array([0.5, 0.5]), frozen, make_config())
    first = 1.25 * (-0.5 * 1.1 + 0.1 * KL)
    second = 0.8 * (-0.5 * 0.75)
    assert loss.item() == pytest.approx((first + second) / 2, abs=1e-12)


def test_ppo_metrics_of_a_row_have_their_closed_form():
    model, row, frozen = bigram_and_row()
    optimizer = loop.make_optimizer(model, BRISK)
    config = make_config(ppo=PpoConfig(importance_cap=1.0, kl_coef=0.0))
    done = loop.run_update(model, optimizer, [row], {0: frozen}, config)
    expected = {
        "train/loss": (-0.5 * 1.1 + 0.8 * -0.5 * 0.75) / 2,
        "train/logprob_mean_nats": math.log(0.22 * 0.3) / 2,
        "train/kl_ref_nats_per_token": KL / 2,
        "train/clip_frac": 0.0,
        "train/ratio_max_deviation": 0.25,
        "train/importance_weight_mean": 0.9,
        "train/importance_truncated_frac": 0.5,
        "train/advantage_mean": 0.5,
        "train/advantage_abs_mean": 0.5,
        "data/rows": 1,
        "data/steps": 1,
        "data/trajectories": 1,
        "data/tokens": 3,
        "data/action_tokens": 2,
    }
    rest = {"train/grad_norm", "train/learning_rate", "perf/update_s", "perf/tokens_per_s"}
    assert set(done.metrics) == set(expected) | rest
    for name, value in expected.items():
        assert done.metrics[name] == pytest.approx(value, abs=1e-12), name
    assert done.logprob_means == {
        row.step_uids[0]: pytest.approx(math.log(0.22 * 0.3) / 2, abs=1e-12)
    }


def test_sft_logprob_means_are_means_over_the_tokens_of_each_step():
    model = tiny_model(64, dtype=torch.float64)
    rows = [train_row(each, Objective.SFT) for each in two_step_rows(False)]
    expected = {}
    for step in two_step_rows(False)[0].steps.to_pylist():
        start, end = step["response_start"], step["response_end"]
        token_ids = torch.from_numpy(rows[0].forest.row(step["segment"])).long()
        with torch.no_grad():
            logprobs_TV = torch.log_softmax(model(token_ids[None]).logits[0], -1)
        own_N = logprobs_TV[start - 1 : end - 1].gather(1, token_ids[start:end, None])
        expected[step["step_uid"]] = own_N.mean().item()
    config = make_config("sft")
    optimizer = loop.make_optimizer(model, config.optim)
    found = loop.run_update(model, optimizer, rows, {}, config).logprob_means
    assert found == pytest.approx(expected, abs=1e-12)


def test_temperature_of_a_step_counts_in_the_frozen_and_in_the_current_log_probs():
    model = tiny_model(64, dtype=torch.float64)
    (packed,) = two_step_rows(False)
    cold = with_steps(packed, [step | {"temperature": 0.7} for step in packed.steps.to_pylist()])
    rows, frozen = rows_and_frozen(model, [cold])
    with torch.no_grad():
        logits_V = model(torch.tensor([[7]])).logits[0, -1]
    expected = torch.log_softmax(logits_V / 0.7, -1)[8].item()
    assert frozen[0].old_logprobs_N[0].item() == pytest.approx(expected, abs=1e-12)
    assert torch.log_softmax(logits_V, -1)[8].item() != pytest.approx(expected, abs=1e-3)
    config = make_config()
    optimizer = loop.make_optimizer(model, config.optim)
    done = loop.run_update(model, optimizer, rows, frozen, config)
    assert done.metrics["train/ratio_max_deviation"] <= 1e-12
    mean = frozen[0].old_logprobs_N.mean().item()
    assert done.metrics["train/logprob_mean_nats"] == pytest.approx(mean, abs=1e-12)


def test_update_steps_with_the_scheduled_learning_rate_and_logs_it():
    model = tiny_model(64, dtype=torch.float64)
    rows = [replace(train_row(each, Objective.SFT), update=1) for each in two_step_rows(False)]
    optim = OptimConfig(learning_rate=0.8, warmup_updates=4, max_grad_norm=0.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    # plain descent shows the rate that it was given
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
    done = loop.run_update(model, optimizer, rows, {}, make_config("sft", optim=optim))
    assert done.metrics["train/learning_rate"] == 0.4
    for old, parameter in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(parameter, old - 0.4 * parameter.grad, rtol=0, atol=1e-14)


def test_updates_follow_the_equations_of_adamw_with_every_knob():
    model = tiny_model(64, dtype=torch.float64)
    row = train_row(two_step_rows(False)[0], Objective.SFT)
    optim = OptimConfig(
        learning_rate=0.02,
        warmup_updates=0,
        weight_decay=0.3,
        beta1=0.6,
        beta2=0.8,
        epsilon=1e-3,
        max_grad_norm=0.0,
    )
    optimizer = loop.make_optimizer(model, optim)
    expected = model.model.norm.weight.detach().clone()
    mean, square = torch.zeros_like(expected), torch.zeros_like(expected)
    for update in (1, 2, 3):
        loop.run_update(model, optimizer, [row], {}, make_config("sft", optim=optim))
        gradient = model.model.norm.weight.grad
        mean = 0.6 * mean + 0.4 * gradient
        square = 0.8 * square + 0.2 * gradient**2
        scale = (square / (1 - 0.8**update)).sqrt() + 1e-3
        expected = expected * (1 - 0.02 * 0.3) - 0.02 * mean / (1 - 0.6**update) / scale
        torch.testing.assert_close(model.model.norm.weight, expected, rtol=0, atol=1e-12)


def test_update_with_a_finite_loss_and_an_infinite_gradient_is_refused():
    model = tiny_model(64)
    rows = [train_row(each, Objective.SFT) for each in two_step_rows(True)]
    # 1e30 fits into float32, its square in the norm does not
    rows = [replace(row, weights_S=np.array([1e30])) for row in rows]
    config = make_config("sft", optim=BRISK)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(TrainingError, match=r"loss \d\S*e\+\d+, gradient norm inf"):
        loop.run_update(model, loop.make_optimizer(model, config.optim), rows, {}, config)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_learning_rate_rises_over_the_warm_up_and_then_stays():
    config = OptimConfig(learning_rate=1.0, warmup_updates=4)
    assert [loop.learning_rate(u, config) for u in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert loop.learning_rate(0, replace(config, warmup_updates=0)) == 1.0
