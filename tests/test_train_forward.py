"""Merged rows against separate rows: log-probs and every parameter's gradient, in float64.

Llama's RMSNorm casts to float32, which would floor the comparison at 1e-7; the tests take a norm
without the cast. Agreement is asked to 1e-12 of the largest parameter's gradient norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from train_data import make_step, packed_row
from transformers import (
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.granite import modeling_granite
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen3 import modeling_qwen3

from clawcli.errors import DataError
from clawcli.gate import Objective
from clawcli.train.attention import forest_attention, plan_forest
from clawcli.train.config import TrainConfig
from clawcli.train.forward import Span, action_logprobs
from clawcli.train.loop import Frozen, row_loss, update_scales
from clawcli.train.model import tiny_model, tree_obstacle
from clawcli.train.rows import train_row
from clawcli.tree import Forest, from_sorted, separate

EXACT = 1e-12
VOCAB = 128


def norm_without_cast(self: nn.Module, states: Tensor) -> Tensor:
    scale = torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * (states * scale)


@pytest.fixture(autouse=True)
def _float64_norms(monkeypatch):
    for norm in (
        modeling_granite.GraniteRMSNorm,
        modeling_llama.LlamaRMSNorm,
        modeling_mistral.MistralRMSNorm,
        modeling_qwen3.Qwen3RMSNorm,
    ):
        monkeypatch.setattr(norm, "forward", norm_without_cast)


def sharpened(model: nn.Module) -> nn.Module:
    """Scale the matrices up, so that attention is far from uniform and errors show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5.0)
    return model.double().train()


def llama() -> LlamaForCausalLM:
    return sharpened(tiny_model(VOCAB, dtype=torch.float64))


@dataclass
class Case:
    """Rows of whole steps, each with the depths of its action."""

    rows: list[list[int]]
    spans: list[tuple[int, int]]


def tokens(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


ROOT, OTHER = tokens(0, 9), tokens(1, 6)
CASES = {
    "star": Case([[*ROOT, *tokens(10 + i, 4)] for i in range(4)], [(9, 13)] * 4),
    "star_of_unequal_lengths": Case(
        [[*ROOT, *tokens(20 + i, 2 + i)] for i in range(4)], [(9, 11 + i) for i in range(4)]
    ),
    "chain": Case([ROOT[:4], ROOT[:7], ROOT], [(2, 4), (5, 7), (7, 9)]),
    "depth_four": Case(
        [
            [*ROOT, 1, 2, 3, 4, 5],
            [*ROOT, 1, 2, 3, 9],
            [*ROOT, 1, 2, 8, 9],
            [*ROOT, 1, 7],
            [*ROOT, 6, 7, 8],
        ],
        [(11, 14), (12, 13), (11, 13), (10, 11), (9, 12)],
    ),
    "duplicates": Case([[*ROOT, 5, 6, 7]] * 3, [(9, 12)] * 3),
    "prefix_of_another": Case(
        [[*ROOT, 5, 6], [*ROOT, 5, 6, 7, 8], [*ROOT, 5, 9]], [(9, 11), (8, 13), (10, 11)]
    ),
    "two_trees": Case(
        [[*ROOT, 1, 2], [*ROOT, 3, 4], [*OTHER, 5], [*OTHER, 6, 7]],
        [(9, 11), (9, 11), (6, 7), (4, 8)],
    ),
    "one_token_segments": Case(
        [[3, 4], [3, 5], [3, 5, 6], [3, 5, 7]], [(1, 2), (1, 2), (2, 3), (1, 3)]
    ),
}


def as_separate(case: Case) -> tuple[Forest, list[Span]]:
    spans = [Span(r, start, end) for r, (start, end) in enumerate(case.spans)]
    return separate([np.array(row) for row in case.rows]), spans


def as_chain(case: Case) -> tuple[Forest, list[Span]]:
    """Keep the rows that are no prefix of another; each step goes to the first that holds it."""
    distinct = [list(row) for row in sorted({tuple(row) for row in case.rows})]
    leaves = [
        row for row in distinct if not any(row != o and o[: len(row)] == row for o in distinct)
    ]
    owners = [
        next(i for i, leaf in enumerate(leaves) if leaf[: len(row)] == row) for row in case.rows
    ]
    spans = [Span(owner, *span) for owner, span in zip(owners, case.spans, strict=True)]
    return separate([np.array(leaf) for leaf in leaves]), spans


def as_tree(case: Case) -> tuple[Forest, list[Span]]:
    order = sorted(range(len(case.rows)), key=lambda r: case.rows[r])
    ordered = [case.rows[r] for r in order]
    lcps = [0]
    for before, row in pairwise(ordered):
        pairs = enumerate(zip(before, row, strict=False))
        shorter = min(len(before), len(row))
        lcps.append(next((i for i, (a, b) in pairs if a != b), shorter))
    tails = [np.array(row[lcp:], np.int32) for row, lcp in zip(ordered, lcps, strict=True)]
    lengths = np.array([len(row) for row in ordered])
    forest, ends = from_sorted(np.concatenate(tails), lengths, np.array(lcps))
    segments = dict(zip(order, ends.tolist(), strict=True))
    return forest, [Span(segments[r], *span) for r, span in enumerate(case.spans)]


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference of a parameter's gradient, relative to the largest gradient norm."""
    scale = max(float(gradient.norm()) for gradient in expected.values())
    return max(float((found[n] - expected[n]).norm()) for n in expected) / scale


def objective_loss(
    model: nn.Module, forest: Forest, spans: list[Span], objective: str, seed: int = 5
) -> Tensor:
    """Compute the loss of one packed row as training does, away from ratio 1 for ppo.

    Old, reference and behaviour log-probs are set per step and token from a seed, so that every
    layout gets the same ones: ratios from 0.6 to 1.6, advantages of both signs.
    """
    random = np.random.default_rng(seed)
    steps = [
        make_step(
            span.segment,
            span.start,
            span.end,
            step_uid=f"step-{i}",
            trajectory_uid=f"trajectory-{i // 2}",
            trajectory_return=float(random.normal()),
            weight=float(random.uniform(0.5, 1.5)),
            rollout_logprobs=random.uniform(-9, -2, span.end - span.start).tolist(),
        )
        for i, span in enumerate(spans)
    ]
    config = TrainConfig(shards="", output="", model="tiny", objective=Objective(objective))
    row = train_row(packed_row(0, 0, 0, forest, steps), config.objective)
    (scales_N,) = update_scales([row], config.aggregation)
    with torch.no_grad():
        now_N = action_logprobs(model, forest, spans)
    shift_N = torch.from_numpy(random.uniform(-0.5, 0.5, len(now_N)))
    frozen = Frozen(now_N + shift_N, now_N + torch.from_numpy(random.normal(size=len(now_N))))
    return row_loss(model, row, scales_N, frozen, config)


@pytest.mark.parametrize("objective", ["sft", "ppo"])
@pytest.mark.parametrize("layout", [as_tree, as_chain])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_merged_rows_equal_those_of_separate_rows(name, layout, objective):
    model = llama()
    expected_loss = objective_loss(model, *as_separate(CASES[name]), objective)
    expected = gradients(model, expected_loss)
    loss = objective_loss(model, *layout(CASES[name]), objective)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=EXACT, abs=EXACT)
    assert distance(gradients(model, loss), expected) <= EXACT


def test_gradients_of_random_forests_equal_those_of_separate_rows():
    model = llama()
    random = np.random.default_rng(3)
    for _ in range(5):
        # three token values only, so that rows share prefixes of every length
        rows = [random.integers(0, 3, random.integers(2, 9)).tolist() for _ in range(8)]
        starts = [int(random.integers(1, len(row))) for row in rows]
        case = Case(rows, [(start, len(row)) for start, row in zip(starts, rows, strict=True)])
        expected = gradients(model, objective_loss(model, *as_separate(case), "ppo"))
        found = gradients(model, objective_loss(model, *as_tree(case), "ppo"))
        assert distance(found, expected) <= EXACT


class Wrong(Forest):
    """A forest that tells the model something else than its own geometry."""

    __slots__ = ("answers",)

    def depths(self) -> np.ndarray:
        return self.answers.get("depths", Forest.depths(self))

    def parents(self) -> np.ndarray:
        return self.answers.get("parents", Forest.parents(self))

    def span(self, segment: int, start: int, end: int) -> np.ndarray:
        real = self.answers.get("real")
        return real.span(segment, start, end) if real else Forest.span(self, segment, start, end)


def wrong(forest: Forest, above: np.ndarray | None = None, **answers: object) -> Wrong:
    above = forest.segment_parents if above is None else above
    made = Wrong(forest.token_ids, forest.segment_starts, above)
    object.__setattr__(made, "answers", answers)
    return made


def flat_positions(forest: Forest) -> Forest:
    return wrong(forest, depths=np.arange(len(forest.token_ids), dtype=np.int32))


def sibling_leak(forest: Forest) -> Forest:
    """Let every segment see the one before it, with the true depths."""
    above = np.arange(-1, len(forest.segment_starts) - 1, dtype=np.int32)
    return wrong(forest, above, depths=forest.depths(), parents=forest.parents(), real=forest)


def no_parent_gather(forest: Forest) -> Forest:
    """Predict the first token of a branch from the token before it in the packed row."""
    return wrong(forest, parents=np.arange(-1, len(forest.token_ids) - 1, dtype=np.int32))


@pytest.mark.parametrize("mistake", [flat_positions, sibling_leak, no_parent_gather])
def test_gradients_with_a_wrong_geometry_are_far_off(mistake):
    model = llama()
    expected = gradients(model, objective_loss(model, *as_separate(CASES["star"]), "sft"))
    forest, spans = as_tree(CASES["star"])
    found = gradients(model, objective_loss(model, mistake(forest), spans, "sft"))
    assert distance(found, expected) > 0.1


def test_gradients_with_summed_advantages_on_shared_tokens_are_far_off():
    model = llama()
    forest, spans = as_tree(CASES["duplicates"])
    old_N = action_logprobs(model, forest, spans[:1]).detach() - 0.5

    def loss(advantages: list[float]) -> Tensor:
        steps = [
            make_step(spans[0].segment, 9, 12, trajectory_return=a + 0.5, rollout_logprobs=None)
            for a in advantages
        ]
        config = TrainConfig(shards="", output="", model="tiny", objective=Objective.PPO)
        row = train_row(packed_row(0, 0, 0, forest, steps), config.objective)
        frozen = Frozen(old_N.repeat(len(steps)), old_N.repeat(len(steps)))
        return row_loss(model, row, np.ones(3 * len(steps)), frozen, config)

    expected = gradients(model, loss([1.0, -0.4]))
    assert distance(gradients(model, loss([0.6])), expected) > 0.1


def test_logprobs_at_two_temperatures_equal_those_of_separate_rows():
    model = llama()
    temperatures_S = np.array([1.0, 0.7, 1.0, 0.7])
    expected = action_logprobs(model, *as_separate(CASES["star"]), temperatures_S)
    found = action_logprobs(model, *as_tree(CASES["star"]), temperatures_S)
    torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
    plain = action_logprobs(model, *as_tree(CASES["star"]))
    assert float((found - plain)[4:8].detach().abs().min()) > 1e-3


def small(config_class: type, **fields: object) -> object:
    return config_class(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        **fields,
    )


def windowed_models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    mistral = MistralForCausalLM(small(MistralConfig, sliding_window=4))
    qwen = Qwen3ForCausalLM(
        small(
            Qwen3Config,
            sliding_window=4,
            use_sliding_window=True,
            layer_types=["full_attention", "sliding_attention"],
        )
    )
    return {"mistral": sharpened(mistral), "qwen3": sharpened(qwen)}


@pytest.mark.parametrize("name", ["mistral", "qwen3"])
def test_gradients_under_a_sliding_window_equal_those_of_separate_rows(name):
    model = windowed_models()[name]
    assert tree_obstacle(model) is None
    for case in ("depth_four", "star", "one_token_segments"):
        expected = gradients(model, objective_loss(model, *as_separate(CASES[case]), "sft"))
        found = gradients(model, objective_loss(model, *as_tree(CASES[case]), "sft"))
        assert distance(found, expected) <= EXACT


def test_a_sliding_window_changes_the_logprobs_of_merged_rows():
    model = windowed_models()["mistral"]
    narrow = action_logprobs(model, *as_tree(CASES["star"])).detach()
    model.config.sliding_window = 100
    wide = action_logprobs(model, *as_tree(CASES["star"])).detach()
    assert float((wide - narrow).abs().max()) > 1e-2


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_gradients_with_a_scale_of_the_model_equal_those_of_separate_rows(scale):
    torch.manual_seed(0)
    # 1 / sqrt(head_dim), which attention takes where it is told nothing, would be 0.35
    config = small(GraniteConfig, attention_multiplier=scale, bos_token_id=None, eos_token_id=None)
    model = sharpened(GraniteForCausalLM(config))
    assert tree_obstacle(model) is None
    for case in ("depth_four", "star"):
        expected = gradients(model, objective_loss(model, *as_separate(CASES[case]), "sft"))
        found = gradients(model, objective_loss(model, *as_tree(CASES[case]), "sft"))
        assert distance(found, expected) <= EXACT


@pytest.mark.parametrize("term", ["softcap", "s_aux", "position_bias", "indexer_mask"])
def test_forest_attention_with_a_term_that_it_does_not_know_is_refused(term):
    forest, _ = as_tree(CASES["star"])
    states = torch.zeros(1, 1, len(forest.token_ids), 4)
    plan = plan_forest(forest)
    forest_attention(nn.Identity(), *[states] * 3, None, forest_plan=plan, **{term: None})
    with pytest.raises(DataError, match=f"a term \\({term}\\)") as caught:
        forest_attention(nn.Identity(), *[states] * 3, None, forest_plan=plan, **{term: 1.0})
    assert caught.value.hint == "Export the shards with --merge chain."


class Deaf(LlamaForCausalLM):
    """A model whose layers never hear of the attention that was asked for."""

    def forward(self, *args: object, **kwargs: object) -> object:
        self.config._attn_implementation_internal = "sdpa"
        return super().forward(*args, **kwargs)


def test_forest_attention_that_did_not_run_is_noticed():
    model = Deaf(tiny_model(VOCAB).config)
    with pytest.raises(AssertionError, match="0 of 2 layers"):
        action_logprobs(model, *as_tree(CASES["star"]))


def test_attention_of_the_model_is_its_own_again_after_a_merged_row():
    model = llama()
    before = model.config._attn_implementation
    action_logprobs(model, *as_tree(CASES["star"]))
    assert model.config._attn_implementation == before != "claw_forest"


def test_action_that_begins_a_row_is_refused():
    with pytest.raises(ValueError, match="begins a row"):
        action_logprobs(llama(), separate([np.array([1, 2])]), [Span(0, 0, 2)])


def mixture(model_class: type, config_class: type, **fields: object) -> nn.Module:
    ends = {"bos_token_id": None, "eos_token_id": None}
    return model_class(small(config_class, num_local_experts=2, **ends, **fields))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2)), "not rotary"),
        (lambda: Gemma2ForCausalLM(small(Gemma2Config)), "caps its attention scores"),
        (
            lambda: LlamaForCausalLM(
                small(
                    type(tiny_model(64).config),
                    rope_parameters={
                        "rope_type": "dynamic",
                        "rope_theta": 10000.0,
                        "factor": 2.0,
                    },
                )
            ),
            "depends on the longest sequence",
        ),
        (lambda: mixture(GptOssForCausalLM, GptOssConfig), "has sinks"),
        (lambda: mixture(Llama4ForCausalLM, Llama4TextConfig), "type chunked_attention"),
        (
            lambda: mixture(
                Llama4ForCausalLM, Llama4TextConfig, layer_types=["full_attention"] * 2
            ),
            "works in chunks",
        ),
        (lambda: mixture(MiniMaxForCausalLM, MiniMaxConfig), "type linear_attention"),
        (
            lambda: FalconForCausalLM(
                FalconConfig(
                    vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=4
                )
            ),
            "does not go through the attention registry",
        ),
    ],
)
def test_tree_obstacle_of_an_unfit_architecture_says_why(model, why):
    assert why in tree_obstacle(model())
