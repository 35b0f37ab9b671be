"""What a run leaves on disk beside its metrics and priorities: checkpoint and frozen arrays."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from clawcli.store import artefact, tokenizers
from clawcli.train.loop import Frozen
from clawcli.train.model import TINY, quiet_transformers
from clawcli.train.rows import TrainRow

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def save_checkpoint(
    model: PreTrainedModel,
    directory: Path,
    *,
    model_name: str,
    tokenizer: tokenizers.Tokenizer,
) -> None:
    """Write a model that AutoModelForCausalLM.from_pretrained opens, with its tokenizer.

    Args:
        model: tied weights are written once.
        directory: created.
        model_name: `tiny` or the directory that the model came from; its tokenizer files are
            copied. Where it has none, the shards' tokenizer.json is.
        tokenizer: of the shards.
    """
    with quiet_transformers():
        model.save_pretrained(directory)
    source = Path(model_name)
    if model_name == TINY:
        built_in = tokenizers.load(tokenizers.BUILT_IN)
        is_built_in = built_in.vocab_hash == tokenizer.vocab_hash
        source = built_in.directory if is_built_in else tokenizer.directory
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        tokenizer.to_file(directory / tokenizers.FILE)


def describe_model(name_or_path: str) -> dict[str, Any]:
    """Name the starting model as an input of the run, with the hash of each of its files."""
    if name_or_path == TINY:
        return {"path": TINY, "kind": "model"}
    files = sorted(
        path
        for path in Path(name_or_path).iterdir()
        if path.name == "config.json" or path.suffix == ".safetensors"
    )
    hashes = {path.name: artefact.file_hash(path) for path in files}
    return {"path": name_or_path, "kind": "model", "blake2b": hashes}


def save_phase(path: Path, rows: Sequence[TrainRow], frozen: Mapping[int, Frozen]) -> None:
    """Write what a phase holds fixed, rows one after another.

    The file has row_ids [R], token_offsets [R + 1] and step_offsets [R + 1] (int64), old_logprobs
    and ref_logprobs [all action tokens], advantages [all steps] (float64).
    """
    trained = [row for row in rows if row.row_id in frozen]
    save_file(
        {
            "row_ids": torch.tensor([row.row_id for row in trained]),
            "token_offsets": torch.tensor(np.cumsum([0, *(len(row.step_N) for row in trained)])),
            "step_offsets": torch.tensor(np.cumsum([0, *(len(row.spans) for row in trained)])),
            "old_logprobs": torch.cat([frozen[row.row_id].old_logprobs_N for row in trained]),
            "ref_logprobs": torch.cat([frozen[row.row_id].ref_logprobs_N for row in trained]),
            "advantages": torch.tensor(np.concatenate([row.advantages_S for row in trained])),
        },
        path,
    )
