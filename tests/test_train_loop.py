"""Updates: how rows add up to a loss, and what one optimiser step does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from train_data import forest, guessing_rows, make_step, rewarded_probability

from clawcli.errors import TrainingError
from clawcli.gate import Objective
from clawcli.store.shards import PackedRow
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
        return [PackedRow(0, 0, 0, forest(*((-1, body) for body in bodies)), steps)]
    return [
        PackedRow(i, 0, 0, forest((-1, body)), [step | {"segment": 0}])
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


def test_learning_rate_rises_over_the_warm_up_and_then_stays():
    config = OptimConfig(learning_rate=1.0, warmup_updates=4)
    assert [loop.learning_rate(u, config) for u in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert loop.learning_rate(0, replace(config, warmup_updates=0)) == 1.0
