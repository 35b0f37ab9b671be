"""Rules for secrets: claw's own, and those of a --redact-rules file beside them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from clawcli.config import resolve
from clawcli.errors import ConfigError, DataError, NotFoundError
from clawcli.ingest.secrets.search import matches
from clawcli.ingest.secrets.table import RULES
from clawcli.ingest.secrets.values import MinEntropy, Rule

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_LEADING_FLAGS = re.compile(r"\A\(\?([ims]+)\)")
_USER_BEFORE_BYTES, _USER_REACH_BYTES = 1024, 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class _RuleText:
    """One [[rules]] table of a --redact-rules file."""

    name: str
    pattern: str
    keywords: tuple[str, ...] = ()
    min_entropy: float = 0.0


def read_rules(path: str) -> list[Rule]:
    """Read the rules of a --redact-rules file, to be used beside RULES.

    The file is TOML with tables [[rules]]: name, pattern (Python's re on UTF-8 bytes; a group named
    secret, if there is one, is what goes), keywords (texts of which every match holds one, in
    upper or lower case; without any the pattern itself must be one that RE2 can read), min_entropy
    (bits per byte that a secret must have; 0 = any). A match is at most 8 KiB long.

    Raises:
        NotFoundError: there is no such file.
        DataError: it is no TOML.
        ConfigError: a rule is not one that can be used; the message names it.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(
            f"--redact-rules {path} cannot be read ({error.strerror}).", "Name a TOML file."
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is no TOML: {error}.", "Correct it.", path) from error
    rules = tables.pop("rules", None)
    if tables or not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError(f"{path} is no list of rules.", "Write [[rules]] tables alone.", path)
    return [_rule(table, f"rule {number} of {path}") for number, table in enumerate(rules, 1)]


def _rule(table: dict[str, Any], where: str) -> Rule:
    try:
        text = resolve(_RuleText, {}, file=table)
    except ConfigError as error:
        raise ConfigError(f"In {where}: {error.message}", error.hint, where) from error
    where = f"{where} ({text.name})" if _NAME.fullmatch(text.name) else where
    problem = _problem(text)
    if problem is not None:
        raise ConfigError(f"In {where}: {problem[0]}", problem[1], where)
    accept = MinEntropy(text.min_entropy) if text.min_entropy > 0 else None
    if text.keywords:
        trigger = f"(?i:{'|'.join(re.escape(word) for word in text.keywords)})"
        before = _USER_BEFORE_BYTES
    else:
        # flags may stand at the beginning of an expression only, and the triggers become one
        trigger, before = _LEADING_FLAGS.sub("", text.pattern), 0
        flags = _LEADING_FLAGS.match(text.pattern)
        trigger = f"(?{flags[1]}:{trigger})" if flags else trigger
    keywords = tuple(word.lower() for word in text.keywords)
    return Rule(text.name, trigger, text.pattern, keywords, accept, _USER_REACH_BYTES, before)


def _problem(text: _RuleText) -> tuple[str, str] | None:
    """Say what is wrong with a rule, and what to do about it."""
    if not _NAME.fullmatch(text.name):
        return "a name is missing or has other characters.", "Name it like build_badge."
    if text.name in {rule.name for rule in RULES}:
        return "the name is that of one of claw's own rules.", "Choose another."
    if not all(text.keywords):
        return "a keyword is empty.", "Leave it out."
    try:
        pattern = re.compile(text.pattern.encode())
    except re.error as error:
        return f"the pattern is no regular expression ({error}).", "Correct it."
    if pattern.search(b"") is not None:
        return "the pattern matches nothing at all everywhere.", "Ask for at least one character."
    if not text.keywords:
        try:
            matches(pa.array([b""]), text.pattern)
        except pa.ArrowInvalid:
            return (
                "the pattern looks around or back, which the search of whole logs cannot.",
                "Add keywords = [...], of which every match holds one.",
            )
    return None
