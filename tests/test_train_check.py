"""What is refused once the model is there: merged rows that it would score wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from train_data import guessing_rows, packed_row, write_shards
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DogeConfig,
    DogeForCausalLM,
    LlamaForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
)

from clawcli.errors import DataError
from clawcli.gate import Objective
from clawcli.store.shard_cache import PackedRow
from clawcli.store.shards import open_shards
from clawcli.train import check
from clawcli.train.config import TrainConfig
from clawcli.train.model import tiny_model, tree_obstacle
from clawcli.tree import separate


def fits(path: Path, model: nn.Module, rows: list[PackedRow]) -> bool:
    shards = open_shards(write_shards(path / "shards", rows))
    config = TrainConfig(shards="", output="", model="tiny", objective=Objective.SFT)
    return check.model_fits(model, "tiny", shards, check.survey(shards, config))


def unmerged(rows: list[PackedRow]) -> list[PackedRow]:
    """Keep the first step of the first row, as a row of its own."""
    step = rows[0].steps.to_pylist()[0]
    forest = separate([rows[0].forest.row(step["segment"])])
    return [packed_row(0, 0, 0, forest, [step | {"segment": 0}])]


def small(config_class: type) -> object:
    return config_class(
        vocab_size=1024,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


class FlatPositions(LlamaForCausalLM):
    """A model that counts its tokens itself, whatever positions it is told."""

    def forward(self, *args: object, position_ids: object = None, **kwargs: object) -> object:
        return super().forward(*args, **kwargs)


class NotANumber(LlamaForCausalLM):
    """A model whose weights are broken."""

    def forward(self, *args: object, **kwargs: object) -> object:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * torch.nan
        return output


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: NemotronForCausalLM(small(NemotronConfig)), r"forward lost forest_plan\."),
        (lambda: DogeForCausalLM(small(DogeConfig)), r"a mask was built beside the plan\."),
        (lambda: DiffLlamaForCausalLM(small(DiffLlamaConfig)), "4 of 2 layers"),
        (lambda: FlatPositions(tiny_model(1024).config), r"differ by 0\.\d+ nats"),
        (lambda: NotANumber(tiny_model(1024).config), "differ by nan nats"),
    ],
    ids=["nemotron", "doge", "diff_llama", "flat_positions", "not_a_number"],
)
def test_model_fits_of_merged_rows_that_fail_a_trial_points_to_chain(tmp_path, make, why):
    torch.manual_seed(0)
    model = make()
    assert tree_obstacle(model) is None
    with pytest.raises(DataError, match=f"cannot train on merged rows: .*{why}") as caught:
        fits(tmp_path, model, guessing_rows(tasks=1))
    assert caught.value.hint == "Export the shards with --merge chain."


def test_model_fits_without_merged_rows_needs_no_trial(tmp_path):
    model = NemotronForCausalLM(small(NemotronConfig))
    assert fits(tmp_path, model, unmerged(guessing_rows(tasks=1)))


def test_model_fits_of_merged_rows_that_are_exact(tmp_path):
    assert fits(tmp_path, tiny_model(1024), guessing_rows(tasks=1))
