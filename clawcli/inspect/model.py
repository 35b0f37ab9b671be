"""Compare a log with a model: is its policy the model, and are its ids the model's?

Only names, the tokenizer and logged text are looked at. Whether a policy is the model itself is
measured by claw train, which has its log-probs; a name that differs is told here already.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from clawcli.errors import DataError, NotFoundError
from clawcli.gate import TRUSTED_FRAC
from clawcli.store import table, tokenizers
from clawcli.store.location import Location
from clawcli.store.tokenizers import Tokenizer

_CONFIG = "config.json"
_SAMPLE_STEPS = 100
"""Steps whose ids are decoded for each pair of model and tokenizer of a log."""
_COLUMNS = (
    "model",
    "tokenizer",
    "response",
    "response_parts",
    "reasoning",
    "tool_calls",
    "response_ids",
)

Source = tuple[str | None, str | None]
"""The columns model and tokenizer of a step: whose ids they are, as the log says."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a model without loading it."""

    names: frozenset[str]
    """What a log may call it, in lower case."""
    tokenizer: Tokenizer | None
    """None = its directory has none."""

    def acted_as(self, policy: str | None) -> bool | None:
        """Tell by its name whether a policy is this model; None where none is logged."""
        return None if policy is None else not self.names.isdisjoint(_names(policy))

    def ids_are_own(self, location: Location, sources: Collection[Source]) -> dict[Source, bool]:
        """Decide whose logged ids are of the model's tokenizer; what is missing is not known.

        A log that names the vocabulary by its hash is believed. Else a sample is decoded, which
        must give the logged text: only actions that are text alone are, because engines parse
        reasoning and tool calls out of what was drawn.

        Args:
            location: the data directory.
            sources: those of all steps with ids.
        """
        if self.tokenizer is None:
            return {}
        hash_ = self.tokenizer.vocab_hash
        decided = {source: True for source in sources if source[1] == hash_}
        asked = set(sources) - set(decided)
        seen, hits = Counter[Source](), Counter[Source]()
        for piece in table.scan(location, columns=_COLUMNS) if asked else ():
            for row, source in _with_ids(piece):
                if source in asked and seen[source] < _SAMPLE_STEPS:
                    fits = _decodes(self.tokenizer, piece, row)
                    seen[source] += fits is not None
                    hits[source] += fits is True
            if all(seen[each] >= _SAMPLE_STEPS for each in asked):
                break
        return decided | {
            each: hits[each] >= TRUSTED_FRAC * count for each, count in seen.items() if count
        }


def load(name_or_path: str) -> Model:
    """Look at a model that is on this machine.

    Args:
        name_or_path: `tiny`, or a local Hugging Face directory.

    Raises:
        NotFoundError: there is no such directory.
        DataError: it is no model, or its tokenizer.json cannot be read.
    """
    if name_or_path == tokenizers.BUILT_IN:
        return Model(frozenset({name_or_path}), tokenizers.load(name_or_path))
    path = Path(name_or_path)
    if not path.is_dir():
        raise NotFoundError(
            f"There is no model directory {name_or_path}.",
            f"Give a local Hugging Face directory, or {tokenizers.BUILT_IN}.",
        )
    names = {*_names(name_or_path), *_names(str(path.resolve())), *_names(_named(path))}
    names |= {name.removeprefix("models--").replace("--", "/") for name in path.resolve().parts}
    has_tokenizer = (path / tokenizers.FILE).is_file()
    return Model(
        frozenset(filter(None, names)),
        tokenizers.load(name_or_path) if has_tokenizer else None,
    )


def _named(path: Path) -> str:
    """Return the name that a model's configuration says it was loaded by; empty = none."""
    try:
        value = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path} is no model: it has no {_CONFIG}.", "Give a Hugging Face model directory."
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path / _CONFIG} cannot be read: {error}.", "Save the model again."
        ) from error
    name = value.get("_name_or_path") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""


def _names(text: str) -> set[str]:
    """Spell a name as others may: org/name, or name alone."""
    whole = text.strip().rstrip("/").lower()
    return {whole, whole.rpartition("/")[2]}


def _with_ids(piece: pa.Table) -> Iterator[tuple[int, Source]]:
    """Yield the rows that have ids, and whose they are."""
    sources = zip(piece["model"].to_pylist(), piece["tokenizer"].to_pylist(), strict=True)
    has_ids = piece["response_ids"].is_valid().to_pylist()
    return ((row, source) for row, source in enumerate(sources) if has_ids[row])


def _decodes(tokenizer: Tokenizer, piece: pa.Table, row: int) -> bool | None:
    """Tell whether a step's ids decode to its text; None where that cannot be compared."""
    ids: list[int] = piece["response_ids"][row].as_py()
    if ids and not 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
        return False
    text = piece["response"][row].as_py()
    beside = [piece[name][row].as_py() for name in ("response_parts", "reasoning", "tool_calls")]
    if not ids or not text or any(beside):
        return None
    # most engines leave special tokens out of the text that they log
    plain = tokenizer.decode(i for i in ids if i not in tokenizer.special_ids)
    return text.strip() in (plain.strip(), tokenizer.decode(ids).strip())
