"""Closed forms of the loss terms, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from train_data import Bigram

from clawcli.train import losses
from clawcli.train.forward import Span, action_logprobs
from clawcli.train.losses import Aggregation
from clawcli.tree import separate

EXACT = {"rtol": 0.0, "atol": 1e-9}


def doubles(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_action_logprobs_of_known_rows_reads_each_token_from_the_one_before():
    model = Bigram([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]])
    row = separate([np.array([0, 1, 2, 0])])
    logprobs_N = action_logprobs(model, row, [Span(0, 1, 4)])
    torch.testing.assert_close(logprobs_N.exp(), doubles(0.2, 0.1, 0.25), **EXACT)


def test_action_logprobs_at_a_temperature_divides_the_logits_before_the_softmax():
    model = Bigram([[0.64, 0.32, 0.04], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    row = separate([np.array([0, 1, 2])])
    cold, plain = action_logprobs(
        model, row, [Span(0, 1, 2), Span(0, 2, 3)], np.array([0.5, 1.0])
    ).exp()
    assert cold.item() == pytest.approx(0.32**2 / (0.64**2 + 0.32**2 + 0.04**2), abs=1e-12)
    assert plain.item() == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("advantage", "clip_high", "expected", "gradient"),
    [
        (1.0, 0.2, (-0.5, -0.9, -1, -1.1, -1.2, -1.2), (-0.5, -0.9, -1, -1.1, 0, 0)),
        (-1.0, 0.2, (0.8, 0.9, 1, 1.1, 1.5, 4), (0, 0.9, 1, 1.1, 1.5, 4)),
        (1.0, 0.28, (-0.5, -0.9, -1, -1.1, -1.28, -1.28), (-0.5, -0.9, -1, -1.1, 0, 0)),
    ],
)
def test_ppo_loss_at_six_ratios_has_its_closed_form(advantage, clip_high, expected, gradient):
    logprobs_N = doubles(0.5, 0.9, 1, 1.1, 1.5, 4).log().requires_grad_()
    ratios_N = losses.exp_ratio(logprobs_N)
    loss_N, clipped_N = losses.ppo_loss(
        ratios_N, torch.full((6,), advantage, dtype=torch.float64), clip_high=clip_high
    )
    loss_N.sum().backward()
    torch.testing.assert_close(loss_N, doubles(*expected), **EXACT)
    torch.testing.assert_close(logprobs_N.grad, doubles(*gradient), **EXACT)
    assert clipped_N.tolist() == [value == 0 for value in gradient]


P, Q = doubles(0.5, 0.3, 0.2), doubles(0.2, 0.3, 0.5)


def kl_gradient(logits: Tensor, value: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(value, logits, retain_graph=True)
    return gradient


def test_anchor_kl_at_ratio_one_has_the_values_of_k3():
    one = torch.ones(3, dtype=torch.float64)
    k3_V = losses.anchor_kl(P.log(), Q.log(), one)
    log = math.log(2.5)
    torch.testing.assert_close(k3_V, doubles(0.4 - 1 + log, 0, 2.5 - 1 - log), **EXACT)
    torch.testing.assert_close(k3_V, doubles(0.3162907, 0, 0.5837093), rtol=0, atol=5e-8)
    assert (P * k3_V).sum().item() == pytest.approx(0.3 * math.log(2.5), abs=1e-12)
    assert (P * k3_V).sum().item() == pytest.approx(0.2748872196, abs=1e-9)


def test_anchor_kl_on_policy_has_the_gradient_of_the_kl_to_the_anchor():
    logits_V = P.log().requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, -1)
    ratios_V = losses.exp_ratio(logprobs_V - P.log())
    true = (logprobs_V.exp() * (logprobs_V - Q.log())).sum()
    estimate = (P * losses.anchor_kl(logprobs_V, Q.log(), ratios_V)).sum()
    expected, gradient = kl_gradient(logits_V, true), kl_gradient(logits_V, estimate)
    torch.testing.assert_close(gradient, expected, **EXACT)
    torch.testing.assert_close(gradient, doubles(0.320702, -0.082466, -0.238236), rtol=0, atol=5e-7)


def test_anchor_kl_without_the_ratio_would_have_the_gradient_of_the_other_kl():
    logits_V = P.log().requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, -1)
    estimate = (P * losses.anchor_kl(logprobs_V, Q.log(), torch.ones_like(P))).sum()
    torch.testing.assert_close(kl_gradient(logits_V, estimate), P - Q, **EXACT)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [(Aggregation.TOKEN, 1.5), (Aggregation.STEP, 2.0), (Aggregation.TRAJECTORY, 2.0)],
)
def test_token_scales_of_two_rows_give_the_mean_of_their_unit(aggregation, expected):
    unit_N = np.repeat([0, 1], [6, 2])
    loss_N = np.repeat([1.0, 3.0], [6, 2])
    scales_N = losses.token_scales(unit_N, unit_N, aggregation)
    assert (scales_N * loss_N).sum() == pytest.approx(expected, abs=1e-12)


def test_token_scales_with_opposite_steps_of_unequal_length_cancel_only_per_step():
    step_N, loss_N = np.array([0, 0, 0, 1]), np.array([-1.0, -1.0, -1.0, 1.0])
    per_token = losses.token_scales(step_N, step_N, Aggregation.TOKEN)
    per_step = losses.token_scales(step_N, step_N, Aggregation.STEP)
    assert (per_token * loss_N).sum() == pytest.approx(-0.5, abs=1e-12)
    assert (per_step * loss_N).sum() == pytest.approx(0.0, abs=1e-12)


def test_token_scales_per_trajectory_do_not_depend_on_how_it_is_cut_into_steps():
    trajectory_N = np.array([0, 0, 0, 1])
    one = losses.token_scales(np.array([0, 0, 0, 1]), trajectory_N, Aggregation.TRAJECTORY)
    three = losses.token_scales(np.array([0, 1, 2, 3]), trajectory_N, Aggregation.TRAJECTORY)
    np.testing.assert_array_equal(one, three)


def test_importance_weights_above_the_cap_are_truncated():
    weights_N = losses.importance_weights(
        doubles(0.1, -1, 2), doubles(0, 0, 0), torch.ones(3, dtype=torch.bool)
    )
    torch.testing.assert_close(weights_N, doubles(math.exp(0.1), math.exp(-1), 2), **EXACT)


def test_importance_weight_and_clip_together_give_the_decoupled_loss():
    old, behaviour = doubles(0.2, grad=True), doubles(0.1, grad=True)
    current = doubles(0.22, grad=True)
    weight = losses.importance_weights(old.log(), behaviour.log(), torch.tensor([True]))
    loss, _ = losses.ppo_loss(losses.exp_ratio(current.log() - old.detach().log()), doubles(1))
    (weight * loss).sum().backward()
    assert (weight * loss).item() == pytest.approx(-2.2, abs=1e-9)
    assert behaviour.grad is None
    assert old.grad is None
    assert current.grad.item() == pytest.approx(-2.0 / 0.2, abs=1e-9)


def test_importance_weights_where_nothing_is_logged_are_one():
    weights_N = losses.importance_weights(
        doubles(-1, -2), doubles(math.nan, -1), torch.tensor([False, True])
    )
    torch.testing.assert_close(weights_N, doubles(1, math.exp(-1)), **EXACT)


def test_exp_ratio_of_an_overflow_under_the_mask_has_a_finite_gradient():
    log_ratio_N = doubles(0, 1e4, grad=True)
    valid_N = torch.tensor([True, False])
    loss = (losses.exp_ratio(log_ratio_N, valid_N) * valid_N).sum()
    loss.backward()
    assert loss.item() == 1.0
    assert log_ratio_N.grad.tolist() == [1.0, 0.0]


def test_exp_ratio_beyond_float32_range_stays_finite():
    log_ratio_N = torch.tensor([100.0, -100.0], requires_grad=True)
    losses.exp_ratio(log_ratio_N).sum().backward()
    assert log_ratio_N.grad.tolist() == [0.0, 0.0]
