"""What merging saves: tokens and multiply-adds as single rows, as chains, and as a tree.

The baseline is one causal row for each trained step, which is what a trainer computes that knows
nothing of prefixes. A ratio of tokens alone overstates: attention and the head do not shrink with
it, so what is predicted is a ratio of multiply-adds for a model of a named size.

Pure numpy. R rows in depth-first order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clawcli import pack
from clawcli.cost import Shape, Work, causal_pairs
from clawcli.tree import Forest

ROW_BUDGETS = (8_192, 16_384, 32_768, 65_536, 131_072)
"""Packing targets that are tried, in tokens; also the lengths over which steps are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Savings:
    """What a tree saves of the work on single rows."""

    logical_tokens: int
    """Tokens of all trained rows."""
    chain_tokens: int
    """Tokens of the rows that no other row continues."""
    unique_tokens: int
    """Tokens of the tree."""
    predicted_speedup: float
    """Multiply-adds of single rows over those of the tree."""
    predicted_speedup_chain: float
    """Multiply-adds of single rows over those of chains."""
    tokens_by_row_budget: dict[str, int]
    """Tokens that trained rows leave to compute when packed at a target."""
    merge_factor_by_row_budget: dict[str, float]
    """Logical tokens over those."""
    steps_over_frac_by_tokens: dict[str, float]
    """Share of trained steps whose row is longer."""
    action_tokens: int
    """Tokens with loss, each counted for every step that owns it."""
    action_tokens_shared: int
    """Of these, those that an earlier step owns too: attempts drew the same."""


def measure(
    forest: Forest, ends: np.ndarray, spans: np.ndarray, trained: np.ndarray, shape: Shape
) -> Savings:
    """Measure what a tree saves.

    Args:
        forest: the tree.
        ends: int [R], the segment at whose end each row ends.
        spans: int [R, 2], where each row's trained tokens begin and end.
        trained: bool [R]; other rows only stand in the tree.
        shape: of the model that will be trained.
    """
    rows = pack.depth_first(forest, ends)
    used = pack.depth_first(forest, ends[trained])
    lengths = used.lengths
    owned = int((spans[trained, 1] - spans[trained, 0]).sum())
    distinct = _distinct(forest, ends[trained], spans[trained])
    leaves = rows.lengths[pack.leaves(rows)]
    single = Work(
        tokens=int(lengths.sum()), head_tokens=owned, pairs=int(causal_pairs(lengths).sum())
    )
    chain = Work(tokens=int(leaves.sum()), head_tokens=owned, pairs=int(causal_pairs(leaves).sum()))
    tree = Work(
        tokens=len(forest.token_ids),
        head_tokens=distinct,
        pairs=int(causal_pairs(rows.lengths).sum()) - int(causal_pairs(rows.lcps).sum()),
    )
    base = shape.multiply_adds(single)
    packed = {}
    for target in ROW_BUDGETS:
        runs = pack.cut(used, layout=pack.Layout.TREE, max_tokens=target)
        packed[target] = used.computed_tokens([start for start, _ in runs])
    return Savings(
        logical_tokens=single.tokens,
        chain_tokens=chain.tokens,
        unique_tokens=tree.tokens,
        predicted_speedup=base / shape.multiply_adds(tree),
        predicted_speedup_chain=base / shape.multiply_adds(chain),
        tokens_by_row_budget={str(target): tokens for target, tokens in packed.items()},
        merge_factor_by_row_budget={
            str(target): single.tokens / tokens for target, tokens in packed.items()
        },
        steps_over_frac_by_tokens={
            str(target): float(np.mean(lengths > target)) for target in ROW_BUDGETS
        },
        action_tokens=owned,
        action_tokens_shared=owned - distinct,
    )


def _distinct(forest: Forest, ends: np.ndarray, spans: np.ndarray) -> int:
    """Count the tokens of a tree that some row trains."""
    is_trained = np.zeros(len(forest.token_ids), bool)
    starts, depths = forest.segment_starts, forest.segment_depths()
    for end, (start, stop) in zip(ends.tolist(), spans.tolist(), strict=True):
        segment = end
        # the spans lie near the ends, so a walk up from the end stops soon
        while segment >= 0 and stop > start:
            depth = int(depths[segment])
            low = max(start, depth)
            if low < stop:
                offset = int(starts[segment]) - depth
                is_trained[offset + low : offset + stop] = True
                stop = low
            segment = int(forest.segment_parents[segment])
    return int(is_trained.sum())
