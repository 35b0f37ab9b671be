"""One step of a tree, token by token: what the model saw, what it wrote, and what is trained."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from tokenizers.decoders import DecodeStream

from clawcli import schema
from clawcli.errors import NotFoundError, UsageError
from clawcli.store.tokenizers import Tokenizer
from clawcli.store.trees import Tree

Role = Literal["context", "action", "end"]
_SHOWN = 5
"""Steps that a message names."""
_NO_SCALARS = ("step_uid", "rollout_logprobs", "row_hash", "row_tokens", "end_node_id")


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a row."""

    depth: int
    """Its place in the row, from 0."""
    token_id: int
    text: str
    """What it adds to the text; empty where a later token completes its character."""
    role: Role
    trained: bool
    """It carries loss."""
    logprob: float | None
    """Of the behaviour policy, nats; None = not logged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepView:
    """A step and its row."""

    step_uid: str
    row_tokens: int
    context_tokens: int
    """Tokens of the prompt."""
    action_tokens: int
    """Tokens of the action, without the end token."""
    trained_tokens: int
    """Tokens with loss; 0 where the step's weight is."""
    scalars: dict[str, Any]
    """The path's other columns, as `claw merge-prefixes` wrote them."""
    tokens: list[Token]


def view_step(tree: Tree, tokenizer: Tokenizer, step: str) -> StepView:
    """Look at one step.

    Args:
        tree: holds its path.
        tokenizer: of the tree.
        step: step_uid, or its first characters.

    Raises:
        NotFoundError: no step begins so.
        UsageError: several do.
    """
    uids = tree.paths["step_uid"]
    found = np.flatnonzero(pc.call_function("starts_with", [uids], pc.MatchSubstringOptions(step)))
    if not len(found):
        raise _unknown(step, uids.to_pylist(), tree)
    if len(found) > 1 and uids[int(found[0])].as_py() != step:
        shown = ", ".join(uids[int(row)].as_py() for row in found[:_SHOWN])
        raise UsageError(
            f"{len(found):,} steps of {tree.path} begin with {step}: {shown}"
            f"{', ...' if len(found) > _SHOWN else ''}.",
            "Give more of the step_uid.",
        )
    path = tree.paths.slice(int(found[0]), 1).to_pylist()[0]
    row = tree.forest.row(path["end_node_id"])
    tokens = list(_tokens(row.tolist(), path, tokenizer))
    names = [column.name for column in schema.PATHS if column.name not in _NO_SCALARS]
    return StepView(
        step_uid=path["step_uid"],
        row_tokens=len(row),
        context_tokens=path["response_start"],
        action_tokens=len(row) - path["response_start"] - 1,
        trained_tokens=sum(token.trained for token in tokens),
        scalars={name: path[name] for name in names},
        tokens=tokens,
    )


def _unknown(step: str, uids: Sequence[str], tree: Tree) -> NotFoundError:
    near = difflib.get_close_matches(step, uids, n=3, cutoff=0.8)
    hint = f"Is it {' or '.join(near)}?" if near else f"The first is {uids[0]}." if uids else ""
    return NotFoundError(f"{tree.path} has no path of a step {step}.", hint or None)


def _tokens(row: list[int], path: dict[str, Any], tokenizer: Tokenizer) -> Iterator[Token]:
    start, stop = path["response_start"], path["response_end"]
    is_trained = (path["loss_weight"] or 0) > 0
    logprobs = path["rollout_logprobs"]
    found = texts(row, tokenizer, borders=(start, len(row) - 1))
    for depth, (token_id, text) in enumerate(zip(row, found, strict=True)):
        in_action = start <= depth < stop
        yield Token(
            depth=depth,
            token_id=token_id,
            text=text,
            role="context" if depth < start else "end" if depth == len(row) - 1 else "action",
            trained=is_trained and in_action,
            logprob=logprobs[depth - start] if logprobs is not None and in_action else None,
        )


def texts(
    ids: Sequence[int], tokenizer: Tokenizer, *, borders: Sequence[int] = ()
) -> Iterator[str]:
    """Give the text that each token adds: together they are the text of all.

    A token that ends inside a character adds nothing, the one that completes it the whole
    character. Bytes that complete none become U+FFFD, on their own side of a border.

    Args:
        ids: of a row.
        tokenizer: whose ids they are.
        borders: places of tokens that begin a part of the row: no text is carried over to them.
    """
    stream, pending = DecodeStream(skip_special_tokens=False), 0
    ends = {*borders, len(ids)}
    for place, token_id in enumerate(ids):
        broken = ""
        try:
            text = stream.step(tokenizer.backend, token_id)
        # the package raises bare Exception where bytes that make no character change text that it
        # has already given out, as byte-fallback decoders do after a line end
        except Exception:
            broken = tokenizer.decode(ids[place - pending : place])
            stream, pending = _resumed(tokenizer), 0
            text = stream.step(tokenizer.backend, token_id)
        pending = pending + 1 if text is None else 0
        if pending and place + 1 in ends:
            text = tokenizer.decode(ids[place + 1 - pending : place + 1])
            stream, pending = _resumed(tokenizer), 0
        yield broken + (text or "")


def _resumed(tokenizer: Tokenizer) -> DecodeStream:
    """Start a stream within a text: at the start of one, some decoders take away a blank."""
    return DecodeStream(tokenizer.encode("a").tolist(), skip_special_tokens=False)
