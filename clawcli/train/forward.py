"""Score the action tokens of a packed row under a model: the only file that knows of merging.

What comes out is one log-prob per action token, step by step; nothing after this file can tell
whether rows were merged. A token's log-prob is read from the hidden state of its *parent* in the
forest, so the first token of every branch is scored too.

A row of roots alone (chain and none) runs root by root as plain causal calls with the model's own
attention. A row with branches runs whole, with depths as positions, through attention.py. The
language model head runs only where an action token is predicted, once for each such place.

Shapes: T tokens of the packed row, S steps, N action tokens over all steps, U distinct places
that predict one, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from clawcli.train import attention
from clawcli.tree import Forest


@dataclass(frozen=True, slots=True)
class Span:
    """Where the action tokens of a step lie: depths on the path that ends in a segment."""

    segment: int
    start: int
    """Depth of the first action token, at least 1."""
    end: int
    """One past the depth of the last."""


def action_logprobs(
    model: PreTrainedModel,
    forest: Forest,
    spans: Sequence[Span],
    temperatures_S: np.ndarray | None = None,
) -> Tensor:
    """Score every action token of a packed row.

    Args:
        model: a causal language model.
        forest: the packed row.
        spans: the action of each step.
        temperatures_S: float64 [S], positive; logits are divided by it. None = 1 everywhere.

    Returns:
        [N] in nats, in the order of spans; float64 where the model is, else float32.
    """
    if not spans:
        raise ValueError("a row without action tokens has nothing to score")
    places_N = _places(forest, spans)
    parents_N = forest.parents()[places_N].astype(np.int64)
    if parents_N.min() < 0:
        raise ValueError("an action token that begins a row has no state to be predicted from")
    if temperatures_S is None:
        temperatures_S = np.ones(len(spans))
    temperatures_N = np.repeat(temperatures_S, [span.end - span.start for span in spans])
    targets_N = forest.token_ids[places_N].astype(np.int64)
    if (forest.segment_parents < 0).all():
        return _score_roots(model, forest, parents_N, targets_N, temperatures_N)
    return _score_forest(model, forest, parents_N, targets_N, temperatures_N)


def _places(forest: Forest, spans: Sequence[Span]) -> np.ndarray:
    """Find the flat places of all action tokens, step after step: int64 [N]."""
    pieces = [forest.span(span.segment, span.start, span.end) for span in spans]
    return np.concatenate(pieces)


def _score_forest(
    model: PreTrainedModel,
    forest: Forest,
    parents_N: np.ndarray,
    targets_N: np.ndarray,
    temperatures_N: np.ndarray,
) -> Tensor:
    """Run the whole row at once; every token sees its own path."""
    plan = attention.plan_forest(forest, model.device)
    places_U, lookup_N = np.unique(parents_N, return_inverse=True)
    positions_T = torch.from_numpy(forest.depths().astype(np.int64)).to(model.device)
    with attention.forest_attention_on(model):
        logits_UV = _logits(
            model, forest.token_ids, places_U, position_ids=positions_T[None], forest_plan=plan
        )
    layers = model.config.get_text_config().num_hidden_layers
    assert plan.calls == layers, f"{plan.calls} of {layers} layers attended through the forest"
    return _logprobs(logits_UV, lookup_N, targets_N, temperatures_N)


def _score_roots(
    model: PreTrainedModel,
    forest: Forest,
    parents_N: np.ndarray,
    targets_N: np.ndarray,
    temperatures_N: np.ndarray,
) -> Tensor:
    """Run each root as a causal call of its own; needs nothing of the architecture."""
    starts, ends = forest.segment_starts, forest.segment_ends
    root_N = np.searchsorted(starts, parents_N, side="right") - 1
    order_N, pieces = [], []
    for root in np.unique(root_N):
        members = np.flatnonzero(root_N == root)
        places_U, lookup_N = np.unique(parents_N[members] - starts[root], return_inverse=True)
        logits_UV = _logits(model, forest.token_ids[starts[root] : ends[root]], places_U)
        pieces.append(_logprobs(logits_UV, lookup_N, targets_N[members], temperatures_N[members]))
        order_N.append(members)
    return _unsort(pieces, order_N)


def _logits(
    model: PreTrainedModel, token_ids: np.ndarray, places_U: np.ndarray, **extra: Any
) -> Tensor:
    """Run the model over one sequence, its head over some places of it: [U, V]."""
    output = model(
        input_ids=torch.from_numpy(token_ids.astype(np.int64)).to(model.device)[None],
        use_cache=False,
        # the model applies its own head, with whatever scale or cap belongs to it
        logits_to_keep=torch.from_numpy(places_U).to(model.device),
        **extra,
    )
    logits_UV = output.logits[0]
    assert len(logits_UV) == len(places_U), "the model ignored logits_to_keep"
    return logits_UV


def _logprobs(
    logits_UV: Tensor, lookup_N: np.ndarray, targets_N: np.ndarray, temperatures_N: np.ndarray
) -> Tensor:
    """Pick each token's log-prob at its temperature: [N]."""
    if logits_UV.dtype != torch.float64:
        logits_UV = logits_UV.float()
    order_N, pieces = [], []
    for temperature in np.unique(temperatures_N):
        members = np.flatnonzero(temperatures_N == temperature)
        rows, lookup = np.unique(lookup_N[members], return_inverse=True)
        picked = logits_UV.index_select(0, torch.from_numpy(rows).to(logits_UV.device))
        logprobs_UV = torch.log_softmax(picked / temperature, dim=-1)
        flat_N = torch.from_numpy(lookup * logits_UV.shape[1] + targets_N[members])
        # index_select, not indexing: its backward adds in a fixed order where places repeat
        pieces.append(logprobs_UV.flatten().index_select(0, flat_N.to(logits_UV.device)))
        order_N.append(members)
    return _unsort(pieces, order_N)


def _unsort(pieces: list[Tensor], order_N: list[np.ndarray]) -> Tensor:
    """Join pieces and bring them back into the order that their indices name."""
    if len(pieces) == 1:
        return pieces[0]
    back_N = torch.from_numpy(np.argsort(np.concatenate(order_N)))
    joined_N = torch.cat(pieces)
    return joined_N.index_select(0, back_N.to(joined_N.device))
