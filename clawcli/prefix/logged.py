"""Token ids that the engine logged, and whether they are ids of this tokenizer.

Ids of another tokenizer would train nonsense without an error, so they are believed only where the
log names this vocabulary, or where the ids of nearly all of a model's steps decode to the text that
was logged with them. A step whose own ids do not decode to its text is rendered from text either
way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from clawcli.gate import TRUSTED_FRAC
from clawcli.prefix.exclude import Excluded
from clawcli.prefix.probe import Habits
from clawcli.prefix.render import content_text
from clawcli.store.state import States
from clawcli.store.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Logged:
    """Ids of one step as the engine saw and drew them."""

    prompt_ids: np.ndarray | None
    """int32, the whole prompt; None = not logged."""
    response_ids: np.ndarray
    """int32, the action, end token included where it was drawn."""
    logprobs: list[float | None] | None
    """One per response id, nats; None = not logged."""


class LoggedIds:
    """The logged ids of a table, judged per model."""

    def __init__(
        self,
        table: pa.Table,
        parents: Sequence[int | None],
        states: States,
        tokenizer: Tokenizer,
        habits: Habits,
    ) -> None:
        """Decode the ids of every step that has some, and decide whose are believed."""
        self._parents = parents
        self._states = states
        self._size = tokenizer.vocab_size
        self._prefixes: list[int | None] = table["prefix_tokens"].to_pylist()
        self._observations = _arrays(table["observation_ids"])
        self._responses = _arrays(table["response_ids"])
        self._logprobs: pa.ChunkedArray = table["rollout_logprobs"]
        self._prompts: dict[int, np.ndarray | None] = {}
        self.steps_by_verdict: Counter[str] = Counter()
        """used, text_differs (the step's own ids), other_tokenizer (its model's)."""
        self.decoded_frac_by_model: dict[str, float] = {}
        """Share of each model's steps whose ids decode to the logged text."""
        self._used = self._judge(table, tokenizer, habits)

    def of(self, row: int) -> Logged | None:
        """Return the ids of one step; None where there are none, or none to believe."""
        response = self._responses[row]
        if row not in self._used or response is None:
            return None
        logprobs = self._logprobs[row].as_py()
        if logprobs is not None and len(logprobs) != len(response):
            logprobs = None
        return Logged(self._prompt(row), response, logprobs)

    def forget(self) -> None:
        """Let go of the prompts that were put together."""
        self._prompts.clear()

    def _judge(self, table: pa.Table, tokenizer: Tokenizer, habits: Habits) -> set[int]:
        models = [model or "unknown" for model in table["model"].to_pylist()]
        named = table["tokenizer"].to_pylist()
        decodes: dict[int, bool] = {}
        for row, response in enumerate(self._responses):
            if response is not None:
                decodes[row] = self._fits(response) and decodes_to(
                    tokenizer, habits, response, self._states.action(row)
                )
        totals = Counter(models[row] for row in decodes)
        hits = Counter(models[row] for row, good in decodes.items() if good)
        self.decoded_frac_by_model = {model: hits[model] / totals[model] for model in totals}
        used = set()
        for row, good in decodes.items():
            is_named = named[row] == tokenizer.vocab_hash and self._fits(self._responses[row])
            is_trusted = hits[models[row]] >= TRUSTED_FRAC * totals[models[row]]
            if is_named or (good and is_trusted):
                used.add(row)
                verdict = "used"
            else:
                verdict = "text_differs" if is_trusted else "other_tokenizer"
            self.steps_by_verdict[verdict] += 1
        return used

    def _fits(self, ids: np.ndarray | None) -> bool:
        return ids is not None and (len(ids) == 0 or 0 <= ids.min() <= ids.max() < self._size)

    def _prompt(self, row: int) -> np.ndarray | None:
        """Walk from the root: (prompt(parent) + response(parent))[:prefix_tokens] + new ids."""
        pending = []
        above: int | None = row
        while above is not None and above not in self._prompts:
            pending.append(above)
            above = self._parents[above] if self._prefixes[above] else None
        for current in reversed(pending):
            self._prompts[current] = self._extend(current)
        return self._prompts[row]

    def _extend(self, row: int) -> np.ndarray | None:
        new, shared = self._observations[row], self._prefixes[row]
        if new is None or shared is None or not self._fits(new):
            return None
        if shared == 0:
            return new
        parent = self._parents[row]
        if parent is None:
            return None
        before, response = self._prompts[parent], self._responses[parent]
        if before is None:
            return None
        known = before if response is None else np.concatenate([before, response])
        return np.concatenate([known[:shared], new]) if len(known) >= shared else None


def decodes_to(
    tokenizer: Tokenizer, habits: Habits, response: np.ndarray, action: dict[str, Any]
) -> bool:
    """Tell whether ids decode to the action that was logged with them.

    Where the action is text alone, the decoded text must be that text, up to white space at its
    edges and the turn's end. Engines parse reasoning and tool calls out of what was drawn, so there
    each text and name must occur, and the values of arguments.
    """
    ends = {end.token_id for end in habits.turn_ends}
    ids = response.tolist()
    if ids and ids[-1] in ends:
        ids.pop()
    text = tokenizer.decode(ids)
    try:
        content = content_text(action)
    except Excluded:
        content = ""
    calls = action.get("tool_calls") or []
    reasoning = action.get("reasoning") or ""
    if not calls and not reasoning:
        # most engines leave special tokens out of the text that they log
        bare = tokenizer.decode(i for i in ids if i not in tokenizer.special_ids)
        return content.strip() in (text.strip(), bare.strip())
    pieces = [content, reasoning]
    for call in calls:
        pieces += [call["name"] or "", *_values(call["arguments"] or "")]
    return all(piece.strip() in text for piece in pieces)


def _values(arguments: str) -> list[str]:
    """Return what must be found of logged arguments, whose JSON an engine may have rewritten."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return [arguments]
    pieces, pending = [], [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pieces += item
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, str) and item.isascii() and item.isalnum():
            pieces.append(item)  # others may be escaped in more than one way
    return pieces


def _arrays(column: pa.ChunkedArray) -> list[np.ndarray | None]:
    return [
        None if not scalar.is_valid else scalar.values.to_numpy(zero_copy_only=False)
        for scalar in column
    ]
