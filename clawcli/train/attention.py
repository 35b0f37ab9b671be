"""Attention over a token forest: each segment against its ancestors' keys, no T x T mask.

transformers calls forest_attention through its attention registry; the plan arrives as a keyword
of the model's forward (`forest_plan=`). A segment sees the whole path above it and itself
causally, which is what its tokens saw as separate rows. Segments with the same parent and length
run as one batch. Sliding windows are measured in depth, not in places of the packed row.

The classic bug is that some other attention runs instead and nobody notices: Plan counts its
calls, and forward.py compares the count with the number of layers.

Shapes: T tokens of a packed row, H heads, D head size, B segments of one length L, A tokens of
their common ancestors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from clawcli.errors import DataError
from clawcli.tree import Forest

NAME = "claw_forest"


@dataclass(frozen=True, slots=True)
class Block:
    """Segments that share their ancestors and their length, and attend as one batch."""

    own_BL: Tensor
    """int64 [B, L], places of the segments' tokens in the packed row."""
    ancestors: list[tuple[int, int]]
    """Runs of places of the path above, root first; empty for roots."""
    depth: int
    """Depth of the segments' first tokens, which is the number of ancestor tokens A."""

    @property
    def keys(self) -> int:
        """Number of keys of each segment: A + L."""
        return self.depth + self.own_BL.shape[1]


@dataclass(slots=True)
class Plan:
    """How one packed row attends, and how often it really did."""

    blocks: list[Block]
    order_T: Tensor | None
    """int64 [T], place in the concatenated block outputs of each token; None = the same place."""
    calls: int = 0
    bands: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)
    """(window, dtype) -> what to add to a score by distance in depth; see mask."""

    def mask(self, block: Block, window: int | None, query: Tensor) -> Tensor | None:
        """View what to add to a block's scores: 0 where a token may look, else -inf.

        Who sees whom depends on the distance in depth alone. With the queries in reverse order
        each row of a mask is therefore the row above it, shifted by one: all masks of all blocks
        and layers are overlapping views of one vector, and none takes memory of its own.

        Returns:
            [L, A + L] with the last query first; None = plain causal, which needs no mask.
        """
        if block.depth == 0 and (window is None or window >= block.keys):
            return None
        farthest = max(each.keys for each in self.blocks) - 1
        key = (window, query.dtype)
        if key not in self.bands:
            distance = torch.arange(farthest, -farthest - 1, -1, device=query.device)
            hidden = (distance < 0) | (distance >= window if window is not None else False)
            zeros = torch.zeros(len(distance), dtype=query.dtype, device=query.device)
            self.bands[key] = zeros.masked_fill_(hidden, -torch.inf)
        length = block.own_BL.shape[1]
        offset = farthest - (block.keys - 1)
        return self.bands[key].as_strided((length, block.keys), (1, 1), offset)


def plan_forest(forest: Forest, device: torch.device | None = None) -> Plan:
    """Cut a forest into blocks of segments that attend together.

    Args:
        forest: one packed row.
        device: where the model is.
    """
    starts, ends = forest.segment_starts.tolist(), forest.segment_ends.tolist()
    parents, depths = forest.segment_parents.tolist(), forest.segment_depths().tolist()
    groups: dict[tuple[int, int], list[int]] = {}
    for k, parent in enumerate(parents):
        groups.setdefault((parent, ends[k] - starts[k]), []).append(k)
    blocks = []
    for (parent, length), members in groups.items():
        first = torch.tensor([starts[k] for k in members], device=device)
        own_BL = first[:, None] + torch.arange(length, device=device)
        runs = [(starts[k], ends[k]) for k in forest.path(parent)]
        blocks.append(Block(own_BL, _join(runs), depths[members[0]]))
    places = torch.cat([block.own_BL.flatten() for block in blocks])
    order_T = torch.argsort(places)
    in_order = torch.equal(order_T, torch.arange(len(order_T), device=device))
    return Plan(blocks, None if in_order else order_T)


def _join(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join runs that touch, so that an unbranched path is read as one slice."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


@contextmanager
def forest_attention_on(model: PreTrainedModel) -> Iterator[None]:
    """Let a model attend through forest_attention while the block runs."""
    before = model.config._attn_implementation or "eager"
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def forest_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    forest_plan: Plan | None = None,
    sliding_window: int | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attend within one packed row; the signature is that of transformers' registry.

    Args:
        module: the attention layer; unused.
        query: [1, H, T, D].
        key: [1, H_kv, T, D]; H is a multiple of H_kv.
        value: [1, H_kv, T, D_v].
        attention_mask: must be None; the plan says who sees whom.
        scaling: factor on the scores; None = 1 / sqrt(D).
        dropout: must be 0.
        forest_plan: of this packed row.
        sliding_window: a token sees keys less than this many depths above; None = all.
        extra: what other architectures pass; terms that would change the result are refused.

    Returns:
        [1, T, H, D_v] and None for the attention weights.

    Raises:
        DataError: the architecture adds a term to its attention that is not known here.
    """
    del module
    assert forest_plan is not None, "the model's forward lost forest_plan"
    assert attention_mask is None, "a mask was built beside the plan"
    assert dropout == 0.0, "dropout is set to 0 when a model is loaded"
    for name in ("softcap", "s_aux", "position_bias", "indexer_mask"):
        if extra.get(name) is not None:
            raise DataError(
                f"The model's attention has a term ({name}) that merged rows do not support.",
                "Export the shards with --merge chain.",
            )
    forest_plan.calls += 1
    outputs = [
        _attend(block, forest_plan.mask(block, sliding_window, query), query, key, value, scaling)
        for block in forest_plan.blocks
    ]
    packed = torch.cat(outputs, dim=2)
    if forest_plan.order_T is not None:
        packed = packed.index_select(2, forest_plan.order_T)
    return packed.transpose(1, 2).contiguous(), None


def _attend(
    block: Block,
    mask: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
) -> Tensor:
    """Attend one block; returns [1, H, B * L, D_v] in the order of its segments."""
    own_query, own_key, own_value = (_take(block, states) for states in (query, key, value))
    if block.ancestors:
        own_key = torch.cat([_above(block, key), own_key], dim=2)
        own_value = torch.cat([_above(block, value), own_value], dim=2)
    output = scaled_dot_product_attention(
        own_query if mask is None else own_query.flip(2),
        own_key,
        own_value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    output = output if mask is None else output.flip(2)
    return output.transpose(0, 1).flatten(1, 2)[None]


def _take(block: Block, states: Tensor) -> Tensor:
    """Pick the block's own tokens out of [1, H, T, D] as [B, H, L, D]."""
    num_segments, length = block.own_BL.shape
    if num_segments == 1:
        start = int(block.own_BL[0, 0])
        return states[:, :, start : start + length]
    picked = states[0].index_select(1, block.own_BL.flatten())
    return picked.unflatten(1, (num_segments, length)).transpose(0, 1)


def _above(block: Block, states: Tensor) -> Tensor:
    """Pick the ancestors' tokens as [B, H, A, D], the same for every segment of the block."""
    runs = [states[:, :, start:end] for start, end in block.ancestors]
    joined = torch.cat(runs, dim=2) if len(runs) > 1 else runs[0]
    return joined.expand(len(block.own_BL), -1, -1, -1)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """Stand in for transformers' mask builders, which would read depths as packed sequences."""


AttentionInterface.register(NAME, forest_attention)
AttentionMaskInterface.register(NAME, _no_mask)
