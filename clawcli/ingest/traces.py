"""Hash logged token ids, so that what a prompt shares with its parent's is found without them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from clawcli.ingest.stepgraph import TokenTrace

_BLOCK_TOKENS = 256


def trace(prompt: Sequence[int], response: Sequence[int]) -> TokenTrace:
    """Hash logged token ids so that what a child's prompt shares with them can be found."""
    ids = np.fromiter((*prompt, *response), np.int32)
    return TokenTrace(
        len(prompt),
        len(ids),
        hashlib.blake2b(ids.tobytes(), digest_size=16).digest(),
        b"".join(_blocks(ids)),
    )


def _blocks(ids: np.ndarray) -> Iterator[bytes]:
    hasher = hashlib.blake2b(digest_size=8)
    for start in range(0, len(ids) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
        hasher.update(ids[start : start + _BLOCK_TOKENS].tobytes())
        yield hasher.digest()


def shared_tokens(prompt: Sequence[int], parent: TokenTrace) -> int:
    """Count the tokens that a prompt shares with its parent's prompt and response ids.

    Returns:
        All of the parent's where the prompt goes on from them; where the two differ midway, the
        shared ones in whole blocks of 256.
    """
    ids = np.asarray(prompt, np.int32)
    if len(ids) >= parent.total:
        head = hashlib.blake2b(ids[: parent.total].tobytes(), digest_size=16).digest()
        if head == parent.whole:
            return parent.total
    shared = 0
    theirs = (parent.blocks[i : i + 8] for i in range(0, len(parent.blocks), 8))
    for ours, other in zip(_blocks(ids), theirs, strict=False):
        if ours != other:
            break
        shared += _BLOCK_TOKENS
    return shared
