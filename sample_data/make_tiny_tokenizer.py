"""Train the tokenizer that ships as `tiny`: byte-level BPE, 1,024 tokens, ChatML turns.

Run as `python sample_data/make_tiny_tokenizer.py`; it rewrites tokenizer.json and
tokenizer_config.json in clawcli/assets/tiny (the chat template there is written by hand). The text
that it learns from is tiny_corpus.txt beside this file and nothing else, so that the same version
of the tokenizers package gives the same bytes again.

The vocabulary is special tokens, then all 256 bytes, then 765 merges: every id can be decoded, and
every text can be encoded, whatever its language.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
CORPUS = HERE / "tiny_corpus.txt"
ASSETS = HERE.parent / "clawcli" / "assets" / "tiny"

VOCAB_SIZE = 1024
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# Words take the space before them; a digit stands alone, so that numbers of equal length have
# equally many tokens; trailing spaces of a run stay together without the one before a word.
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": TURN_END,
    "pad_token": END_OF_TEXT,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 131072,
}


def train(corpus: str) -> Tokenizer:
    """Learn the merges from a text; the same text gives the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.splitlines(keepends=True), trainer)
    return tokenizer


def write(directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into a directory."""
    tokenizer = train(CORPUS.read_text(encoding="utf-8"))
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"{CORPUS} is too short for {VOCAB_SIZE} tokens.")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", "utf-8")
    config = json.dumps(CONFIG, indent=2)
    (directory / "tokenizer_config.json").write_text(config + "\n", "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS)
