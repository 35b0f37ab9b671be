"""Load the model that is trained: the seeded `tiny`, or a local Hugging Face causal LM directory.

Nothing is downloaded and no remote code runs. Every dropout is set to 0: with dropout the ratio of
current to old log-probs would leave 1 before any update. What tree rows need of an architecture
is decided here (tree_obstacle), so that a model is refused before it is silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from clawcli.errors import DataError, NotFoundError

TINY = "tiny"
_TINY_SEED = 20260101
# layer types whose attention is a function of the path from the root alone
_TREE_LAYERS = {"full_attention", "sliding_attention"}
# rotary scalings whose frequencies follow the longest sequence of the call, not the position
_CALL_DEPENDENT_ROPE = {"dynamic", "longrope"}


def tiny_model(
    vocab_size: int, *, eos_token_id: int | None = None, dtype: torch.dtype = torch.float32
) -> LlamaForCausalLM:
    """Build the two-layer Llama that ships with claw; the same weights on every call.

    Args:
        vocab_size: tokens of the tokenizer; the embedding has this many rows, rounded up to a
            multiple of 64.
        eos_token_id: written into the configuration for generation; no effect on the weights.
        dtype: of the weights. They are drawn in float32 and then converted.

    Example:
        >>> embedding_rows(tiny_model(1000))
        1024
    """
    config = LlamaConfig(
        vocab_size=-(-vocab_size // 64) * 64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_TINY_SEED)
        model = LlamaForCausalLM(config)
    model.to(dtype)  # pyright: ignore  transformers wraps nn.Module.to without types
    return model.train()


def load_model(
    name_or_path: str,
    *,
    vocab_size: int,
    eos_token_id: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Load a causal language model without dropout, in training mode.

    Args:
        name_or_path: `tiny`, or a directory with config.json and safetensors weights.
        vocab_size: tokens of the shards' tokenizer; the model must have an embedding for each.
        eos_token_id: end of sequence for `tiny`; a directory brings its own.
        dtype: of the weights.

    Raises:
        NotFoundError: there is no such directory.
        DataError: it holds no causal language model, or its weights are incomplete, damaged, or
            fewer than the tokenizer's tokens.
    """
    if name_or_path == TINY:
        return tiny_model(vocab_size, eos_token_id=eos_token_id, dtype=dtype)
    path = Path(name_or_path)
    if not path.is_dir():
        raise NotFoundError(
            f"There is no model directory {name_or_path}.",
            f"Give a local Hugging Face model directory, or {TINY}.",
        )
    with quiet_transformers():
        config = _read_config(path)
        _remove_dropout_settings(config)
        model = _read_weights(path, config, dtype)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    rows = embedding_rows(model)
    if vocab_size > rows:
        raise DataError(
            f"The tokenizer of the shards has {vocab_size:,} tokens, but {path} embeds {rows:,}.",
            "Merge with the model's own tokenizer, or resize the model's embedding.",
        )
    _check_causal(model, path)
    return model.train()


def embedding_rows(model: PreTrainedModel) -> int:
    """Count the token ids that a model can embed."""
    return len(next(model.get_input_embeddings().parameters()))


def tree_obstacle(model: PreTrainedModel) -> str | None:
    """Say why merged rows would be wrong on this architecture; None where they are exact.

    Needed are: attention that goes through transformers' registry, full or sliding-window layers
    only, and rotary positions that depend on a token's own position alone.
    """
    config = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention does not go through the attention registry of transformers"
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _TREE_LAYERS)
    if other:
        return f"it has layers of type {', '.join(other)}"
    if getattr(config, "attention_chunk_size", None):
        return "its attention works in chunks"
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps its attention scores"
    if any(name.rpartition(".")[2] == "sinks" for name, _ in model.named_parameters()):
        return "its attention has sinks"
    if not any("rotary" in type(module).__name__.lower() for module in model.modules()):
        return "its positions are not rotary"
    scalings = _rope_types(getattr(config, "rope_parameters", None)) & _CALL_DEPENDENT_ROPE
    if scalings:
        return f"its rotary scaling ({scalings.pop()}) depends on the longest sequence of a call"
    return None


def _rope_types(parameters: Any) -> set[str]:
    """Collect rope types; models with several layer types keep one mapping for each."""
    if not isinstance(parameters, dict):
        return set()
    nested = [_rope_types(value) for value in parameters.values()]
    return {str(parameters.get("rope_type"))}.union(*nested)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep the warnings and progress bars of transformers off stderr while it loads or saves."""
    level = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()


def _read_config(path: Path) -> PreTrainedConfig:
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} holds no model that transformers knows: {first_line(error)}",
            "Give a directory with config.json and safetensors weights.",
        ) from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise DataError(
            f"{path} holds a {config.model_type} model, which is no causal language model.",
            "Choose a model that AutoModelForCausalLM opens.",
        )
    return config


def _read_weights(path: Path, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # safetensors, torch and transformers each raise their own
        raise DataError(
            f"The weights of {path} cannot be read: {first_line(error)}",
            "Copy the model again, with all its safetensors files.",
        ) from error
    model, info = loaded
    # transformers fills what is missing with random numbers and only warns
    absent = sorted([*info["missing_keys"], *(str(key[0]) for key in info["mismatched_keys"])])
    if absent:
        raise DataError(
            f"{path} lacks {len(absent)} weights that its config.json asks for ({absent[0]}, ...).",
            "Copy the model again, with all its safetensors files.",
        )
    return model


def first_line(error: Exception) -> str:
    """First line of what an error of another library says, as a sentence."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".") + "."


def _remove_dropout_settings(config: PreTrainedConfig) -> None:
    """Set dropout and router noise to 0, however the architecture names them."""
    for name, value in config.get_text_config().to_dict().items():
        is_random = any(word in name for word in ("dropout", "pdrop", "layerdrop", "jitter"))
        if is_random and isinstance(value, float):
            setattr(config.get_text_config(), name, 0.0)


@torch.no_grad()
def _check_causal(model: PreTrainedModel, path: Path) -> None:
    """Refuse a model whose earlier outputs change with a later token."""
    token_ids = torch.tensor([[0, 1, 2], [0, 1, 0]])
    first, second = (model(input_ids=row[None], use_cache=False).logits for row in token_ids)
    if not torch.allclose(first[:, :2], second[:, :2], rtol=1e-4, atol=1e-4):
        raise DataError(
            f"{path} looks ahead: its output at a token depends on later tokens.",
            "Choose a causal language model.",
        )
