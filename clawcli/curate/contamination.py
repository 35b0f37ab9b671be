"""Leave out attempts at tasks that an evaluation uses.

The file names tasks (task_id) or holds their prompts. A prompt is found again where a user message
at the beginning of an attempt has it word by word, or shares 13 words in a row with it; case,
punctuation and spaces do not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clawcli.curate import selection
from clawcli.errors import DataError, NotFoundError
from clawcli.store.expressions import PLACE
from clawcli.store.frame import Frame

_GRAM_WORDS = 13
"""As GPT-3's authors counted overlap (arXiv 2005.14165, appendix C)."""
_ID_KEYS = ("task_id", "instance_id", "id")
_TEXT_KEYS = ("prompt", "question", "problem", "problem_statement", "instruction", "input", "text")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a file says of the tasks of an evaluation."""

    task_ids: frozenset[str]
    prompts: frozenset[str]
    """Whole texts, normal."""
    grams: frozenset[str]
    """Each 13 words in a row of longer ones."""


def read(path: str) -> Evaluation:
    """Read a file of tasks: a JSON list or lines of objects or strings, or plain lines.

    A string without a blank in it is a task id, any other a prompt.

    Raises:
        NotFoundError: there is no such file.
        DataError: it is no text, or an entry has neither an id nor a prompt.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist.", "Check --decontaminate.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}.", "Write JSON lines.") from error
    ids: set[str] = set()
    prompts: set[str] = set()
    for number, entry in enumerate(_entries(text), 1):
        found_ids, found_prompts = _of_entry(entry)
        if not found_ids and not found_prompts:
            raise DataError(
                f"{path}, entry {number}: neither a task id nor a prompt is in it.",
                f"Name one of {', '.join((*_ID_KEYS, *_TEXT_KEYS))} or messages.",
            )
        ids |= found_ids
        prompts |= {normal(prompt) for prompt in found_prompts} - {""}
    if not ids and not prompts:
        raise DataError(f"{path} names no task.", "Write a task id or a prompt a line.")
    grams = frozenset(gram for prompt in prompts for gram in _grams(prompt))
    return Evaluation(frozenset(ids), frozenset(prompts), grams)


def _entries(text: str) -> Iterator[Any]:
    if text.lstrip().startswith("["):
        try:
            yield from json.loads(text)
            return
        except (json.JSONDecodeError, TypeError):
            pass  # a prompt may begin with a bracket
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            entry = line.strip()
        yield entry if isinstance(entry, dict | str) else line.strip()


def _of_entry(entry: Any) -> tuple[set[str], set[str]]:
    if isinstance(entry, str):
        return (set(), {entry}) if re.search(r"\s", entry) else ({entry}, set())
    if not isinstance(entry, dict):
        return {str(entry)}, set()
    ids = {str(entry[key]) for key in _ID_KEYS if isinstance(entry.get(key), str | int)}
    prompts = {entry[key] for key in _TEXT_KEYS if isinstance(entry.get(key), str)}
    for message in entry.get("messages") or ():
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            prompts |= {content} if isinstance(content, str) else set()
    return ids, prompts


def normal(text: str) -> str:
    r"""Bring a text to its words.

    Example:
        >>> normal("  What's 2 + 2?\n")
        'what s 2 2'
    """
    return " ".join(re.findall(r"\w+", text.casefold()))


def _grams(words: str) -> Iterator[str]:
    listed = words.split()
    for start in range(len(listed) - _GRAM_WORDS + 1):
        yield " ".join(listed[start : start + _GRAM_WORDS])


def clean(frame: Frame, evaluation: Evaluation) -> np.ndarray:
    """Tell which steps belong to no task of an evaluation: bool [N]."""
    roots = selection.roots(frame.parents)
    is_root = np.zeros(frame.num_rows, bool)
    is_root[roots] = True
    found = np.zeros(frame.num_rows, bool)
    if evaluation.prompts:
        for batch in frame.reader(["observation"]):
            start = batch[PLACE][0].as_py() if batch.num_rows else 0
            for row in np.flatnonzero(is_root[start : start + batch.num_rows]).tolist():
                found[start + row] = _asks(batch["observation"][row].as_py() or (), evaluation)
        found = found[roots]
    if evaluation.task_ids:
        ids = frame.column("task_id").combine_chunks().dictionary_encode()
        known = [name in evaluation.task_ids for name in [*ids.dictionary.to_pylist(), None]]
        codes = ids.indices.fill_null(len(ids.dictionary)).to_numpy()
        found |= np.array(known)[codes]
    return ~found


def _asks(messages: Iterable[dict[str, Any]], evaluation: Evaluation) -> bool:
    for message in messages:
        if message["role"] != "user":
            continue
        words = normal(_text(message))
        if words in evaluation.prompts:
            return True
        if any(gram in evaluation.grams for gram in _grams(words)):
            return True
    return False


def _text(message: dict[str, Any]) -> str:
    if message["content"] is not None:
        return message["content"]
    try:
        parts = json.loads(message["parts"] or "[]")
    except json.JSONDecodeError:
        return ""
    return " ".join(
        p["text"] for p in parts if isinstance(p, dict) and isinstance(p.get("text"), str)
    )
