"""Loading models: what opens, and what is refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from clawcli.errors import DataError, NotFoundError
from clawcli.train.model import embedding_rows, load_model, quiet_transformers, tiny_model


def saved(model: torch.nn.Module, path: Path) -> str:
    with quiet_transformers():
        model.save_pretrained(path)
    return str(path)


def test_tiny_model_has_the_same_weights_whatever_the_random_state():
    torch.manual_seed(1)
    first = tiny_model(1000)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)
    second = load_model("tiny", vocab_size=1000)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_tiny_model_rounds_its_vocabulary_up():
    assert [embedding_rows(tiny_model(size)) for size in (1, 64, 65)] == [64, 64, 128]


def test_load_model_of_a_saved_directory_has_equal_logits(tmp_path):
    model = tiny_model(64)
    loaded = load_model(saved(model, tmp_path), vocab_size=64)
    token_ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(token_ids).logits, loaded(token_ids).logits)
    assert loaded.training


def test_load_model_with_dropout_sets_it_to_zero(tmp_path):
    config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=64, resid_pdrop=0.5)
    model = load_model(saved(GPT2LMHeadModel(config), tmp_path), vocab_size=64)
    token_ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(token_ids).logits, model(token_ids).logits)
    assert model.config.attn_pdrop == model.config.embd_pdrop == model.config.resid_pdrop == 0.0


def test_load_model_of_a_missing_directory_names_tiny(tmp_path):
    with pytest.raises(NotFoundError, match="tiny"):
        load_model(str(tmp_path / "absent"), vocab_size=64)


def test_load_model_of_a_directory_without_config_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no model"):
        load_model(str(tmp_path), vocab_size=64)


def test_load_model_of_an_unknown_architecture_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    with pytest.raises(DataError, match="holds no model that transformers knows"):
        load_model(str(tmp_path), vocab_size=64)


def test_load_model_of_an_encoder_decoder_is_refused(tmp_path):
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=64)
    path = saved(T5ForConditionalGeneration(config), tmp_path)
    with pytest.raises(DataError, match="no causal language model"):
        load_model(path, vocab_size=64)


def test_load_model_that_looks_ahead_is_refused(tmp_path):
    config = BertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        vocab_size=64,
        initializer_range=1.0,
    )
    with quiet_transformers():
        path = saved(BertLMHeadModel(config), tmp_path)
    with pytest.raises(DataError, match="looks ahead"):
        load_model(path, vocab_size=64)


def test_load_model_with_a_weight_missing_is_refused(tmp_path):
    path = saved(tiny_model(64), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"lacks 1 weights .*layers\.1\.mlp\.up_proj"):
        load_model(path, vocab_size=64)


def test_load_model_with_a_truncated_file_is_refused(tmp_path):
    path = saved(tiny_model(64), tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        load_model(path, vocab_size=64)


def test_load_model_smaller_than_the_vocabulary_is_refused(tmp_path):
    path = saved(tiny_model(64), tmp_path)
    with pytest.raises(DataError, match=r"has 65 tokens, but .* embeds 64"):
        load_model(path, vocab_size=65)
