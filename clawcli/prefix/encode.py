"""Text to ids, each distinct run between two special tokens tokenised once.

A special token is matched before anything else, so the text between two of them is tokenised
without knowledge of the rest. That makes a cache per run exact, and the prompts of one attempt,
which repeat each other, cheap. Whether it holds for a tokenizer is tried at the start; where it
does not (a marker at the start of the text, white space that a token swallows), texts are
tokenised whole.

SentencePiece marks the start of a text with a space. An action goes on after a prompt, so it must
not get that mark: it would train a space that no model has written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from clawcli.store.tokenizers import Tokenizer

_NONE = np.zeros(0, np.int32)
_LEAD = "\n"
"""Text to tokenise an action behind; one token or one byte that joins with no other text."""
_PROBES = ("a", " a", "\n\na\n", "  a  b \n")


class Encoder:
    """Tokenise texts of one tokenizer with a cache of runs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find the special tokens that split a text, and try whether they really do."""
        self._tokenizer = tokenizer
        self._runs: dict[str, np.ndarray] = {}
        added = tokenizer.backend.get_added_tokens_decoder()
        self._ids = {
            token.content: np.array([token_id], np.int32)
            for token_id, token in added.items()
            if token.special
            and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        }
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._borders = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self.splits = bool(self._ids) and self._try()
        """True where the text on both sides of a special token is tokenised on its own."""
        ids = [int(token_ids[0]) for token_ids in self._ids.values()]
        self.borders = frozenset(ids if self.splits else ())
        """Ids after which a text goes on as if it began there."""
        self._lead = tokenizer.encode(_LEAD)
        behind = self._behind_lead("a")
        self._marks_start = behind is not None and behind.tolist() != tokenizer.encode("a").tolist()

    def __call__(self, text: str) -> np.ndarray:
        """Tokenise a text, special tokens in it included: int32 ids."""
        if not self.splits:
            return self._run(text)
        found = [self._piece(piece) for piece in self._borders.split(text)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def prefixes(self, text: str) -> Callable[[int], np.ndarray]:
        """Tokenise a text once, to give the ids of any first part of it.

        Args:
            text: as for a call.

        Returns:
            A function of the length of a part, in characters: the ids that a call with that part
            would give. The encoder must split.
        """
        pieces = self._borders.split(text)
        found = [self._piece(piece) for piece in pieces]
        ids = np.concatenate(found)
        ends = np.cumsum([len(piece) for piece in pieces]).tolist()
        id_ends = np.cumsum([len(each) for each in found]).tolist()

        def first(length: int) -> np.ndarray:
            whole = bisect_right(ends, length)  # pieces that lie in the part
            known = ids[: id_ends[whole - 1]] if whole else _NONE
            rest = text[ends[whole - 1] if whole else 0 : length]
            return np.concatenate([known, self._run(rest)]) if rest else known

        return first

    def action(self, text: str) -> np.ndarray:
        """Tokenise a text that goes on after another, without a mark of its start: int32 ids."""
        behind = self._behind_lead(text) if self._marks_start else None
        return self(text) if behind is None else behind

    def _behind_lead(self, text: str) -> np.ndarray | None:
        ids, length = self(_LEAD + text), len(self._lead)
        return ids[length:] if np.array_equal(ids[:length], self._lead) else None

    def _piece(self, text: str) -> np.ndarray:
        """Tokenise a special token, or what stands between two."""
        if not text:
            return _NONE
        return self._ids[text] if text in self._ids else self._run(text)

    def _run(self, text: str) -> np.ndarray:
        ids = self._runs.get(text)
        if ids is None:
            ids = self._runs[text] = self._tokenizer.encode(text)
        return ids

    def _try(self) -> bool:
        for token in self._ids:
            for left in _PROBES:
                for right in _PROBES:
                    pieces = (left, token, right)
                    apart = np.concatenate([self._tokenizer.encode(piece) for piece in pieces])
                    whole = self._tokenizer.encode("".join(pieces))
                    if not np.array_equal(apart, whole):
                        return False
        return True
