"""What a forward and a backward pass cost: multiply-adds of a dense decoder, in tokens and pairs.

A token costs the same linear layers wherever it stands; attention costs by the pairs of a token and
a token that it sees; the head is computed only for tokens that carry loss. A backward pass costs
twice a forward pass in each of the three, so ratios are those of the forward pass.

    multiply-adds = tokens * per_token + head_tokens * per_head_token + pairs * per_pair
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

N = TypeVar("N", int, np.ndarray)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a dense decoder with gated MLPs and grouped-query attention."""

    layers: int
    hidden: int
    """Width of the residual stream."""
    intermediate: int
    """Width inside the MLP."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def per_token(self) -> int:
        """Multiply-adds of the linear layers for one token."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def per_pair(self) -> int:
        """Multiply-adds of attention for a token and one that it sees, itself included."""
        return 2 * self.layers * self.heads * self.head_dim

    @property
    def per_head_token(self) -> int:
        """Multiply-adds of the head for one token with loss."""
        return self.hidden * self.vocab

    def multiply_adds(self, work: Work[N]) -> N:
        """Multiply-adds of one forward pass, or of several (int64)."""
        return (
            work.tokens * self.per_token
            + work.head_tokens * self.per_head_token
            + work.pairs * self.per_pair
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Work(Generic[N]):
    """What one pass over some rows computes, or each of several (int64 arrays)."""

    tokens: N
    """Tokens that go through the linear layers."""
    head_tokens: N
    """Tokens with loss."""
    pairs: N
    """Pairs of a token and one that it sees, itself included."""


def causal_pairs(tokens: N) -> N:
    """Pairs of a token and one that it sees, itself included, of the first tokens of a row.

    Args:
        tokens: how many; an integer, or an int64 array of them.
    """
    return tokens * (tokens + 1) // 2


def _shape(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocab: int
) -> Shape:
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        vocab=vocab,
    )


SIZES = {
    "0.6b": _shape(28, 1024, 3072, 16, 8, 151_936),
    "1.7b": _shape(28, 2048, 6144, 16, 8, 151_936),
    "4b": _shape(36, 2560, 9728, 32, 8, 151_936),
    "8b": _shape(36, 4096, 12_288, 32, 8, 151_936),
    "14b": _shape(40, 5120, 17_408, 40, 8, 151_936),
    "32b": _shape(64, 5120, 25_600, 64, 8, 151_936),
    "70b": _shape(80, 8192, 28_672, 64, 8, 128_256),
}
"""Sizes by name: the dense models of Qwen3, and Llama 3 at 70b, as their config.json gives them."""

DEFAULT_SIZE = "8b"
