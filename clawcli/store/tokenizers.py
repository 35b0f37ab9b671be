"""Load a tokenizer from this machine and name its vocabulary by a hash.

A tokenizer is its tokenizer.json: `tiny` ships with the package, a directory or file is taken as
it is, a hub id only from the local cache. Nothing is downloaded. vocab_hash decides whether token
ids of two places mean the same: logged ids against a tree, a tree against a model.

The `tokenizers` package is imported when a tokenizer is loaded, not before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clawcli.errors import DataError, NotFoundError

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
BUILT_IN = "tiny"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A vocabulary with its rules: text to ids and back, without a chat template."""

    name: str
    """As it was asked for."""
    json_path: Path
    """The tokenizer.json it was read from."""
    backend: tokenizers.Tokenizer
    vocab_size: int
    """One past the largest id, added tokens included: what an embedding must hold."""
    added_tokens: dict[int, str]
    """Id -> text of the tokens that are matched before the text is split."""
    special_ids: frozenset[int]
    """Ids of the added tokens that are flagged special: text of a log must not contain them."""
    vocab_hash: str
    """blake2b-128 hex of all (id, token) pairs and the special ids."""

    @property
    def directory(self) -> Path:
        """Directory of tokenizer.json, where the chat template may lie beside it."""
        return self.json_path.parent

    def encode(self, text: str) -> np.ndarray:
        """Tokenise a text as it is, without adding a begin or end token: int32 ids."""
        # without offsets, which nobody asks for, it is a fifth faster
        (found,) = self.backend.encode_batch_fast([text], add_special_tokens=False)
        return np.array(found.ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Turn ids into text, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def to_file(self, path: Path) -> None:
        """Copy tokenizer.json, byte for byte."""
        shutil.copyfile(self.json_path, path)


def load(name_or_path: str) -> Tokenizer:
    """Load a tokenizer that is on this machine.

    Args:
        name_or_path: `tiny`; a directory with a tokenizer.json, or that file itself; or the hub
            id of a tokenizer that is in the local cache.

    Raises:
        NotFoundError: none of these; the message names what was tried.
        DataError: the file is no tokenizer.json that the tokenizers package can read.

    Example:
        >>> tiny = load("tiny")
        >>> tiny.decode(tiny.encode("naïve <|im_end|>"))
        'naïve <|im_end|>'
    """
    path = _find(name_or_path)
    backend = _read(path)
    vocab = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    special = frozenset(token_id for token_id, token in added.items() if token.special)
    return Tokenizer(
        name=name_or_path,
        json_path=path,
        backend=backend,
        vocab_size=max(vocab.values()) + 1,
        added_tokens={token_id: token.content for token_id, token in added.items()},
        special_ids=special,
        vocab_hash=hash_vocab(((i, token) for token, i in vocab.items()), sorted(special)),
    )


def hash_vocab(pairs: Iterable[tuple[int, str]], special_ids: Sequence[int]) -> str:
    """Hash a vocabulary: blake2b-128 hex over the sorted (id, token) pairs and the special ids.

    Example:
        >>> hash_vocab([(1, "b"), (0, "a")], []) == hash_vocab([(0, "a"), (1, "b")], [])
        True
        >>> hash_vocab([(0, "a")], [0]) == hash_vocab([(0, "a")], [])
        False
    """
    # JSON with ASCII escapes is one unambiguous byte string on every platform, lone surrogates too
    text = json.dumps([sorted(pairs), list(special_ids)], separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def _find(name: str) -> Path:
    if name == BUILT_IN:
        return Path(str(resources.files("clawcli") / "assets" / BUILT_IN / FILE))
    path = Path(name)
    if path.is_file():
        return path
    if (path / FILE).is_file():
        return path / FILE
    if path.is_dir():
        raise NotFoundError(
            f"Tokenizer directory {name} has no {FILE}.",
            "Make one with AutoTokenizer.from_pretrained(DIR).save_pretrained(NEW_DIR) of the "
            "transformers package.",
        )
    cached = _find_in_cache(name)
    if cached is not None:
        return cached
    raise NotFoundError(
        f"There is no tokenizer {name}: it is no directory with a {FILE}, no such file, no hub id "
        "in the local cache, and no built-in name.",
        f"Give the directory of the model's tokenizer, or {BUILT_IN}, which ships with claw.",
    )


def _find_in_cache(repo_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repo_id, FILE)
    except HFValidationError:  # a path is not a hub id
        return None
    return Path(found) if isinstance(found, str) else None


def _read(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exception on every kind of bad file
        raise DataError(
            f"{path} is no readable {FILE}: {error}.", "Give the tokenizer's own directory."
        ) from error
    # a saved training setting must neither cut nor fill our rows
    backend.no_truncation()
    backend.no_padding()
    return backend
