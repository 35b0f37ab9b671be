"""What claw says: a report in words on stderr or as JSON on stdout, and errors.

stdout holds what was asked for and nothing else; how it went is on stderr.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import clawcli
from clawcli.cli import progress
from clawcli.cli.progress import Meter
from clawcli.config import resolve
from clawcli.errors import ClawError, ConfigError, NotFoundError

C = TypeVar("C")
R = TypeVar("R")
_DUMB = ("dumb", "unknown")
"""Values of TERM that stand for terminals on which no cursor moves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manner:
    """How a verb is to be configured and reported: the flags that all verbs share."""

    quiet: bool = False
    verbose: int = 0
    json: bool = False
    config: Path | None = None
    set_: Sequence[str] | None = None


def run_verb(
    command: str,
    kind: type[C],
    work: Callable[[C], R],
    words: Callable[[R], Iterator[str]],
    *,
    flags: Mapping[str, Any],
    inputs: Sequence[str],
    manner: Manner,
    meter: Meter | None = None,
    out: Callable[[str], None] | None = None,
) -> R:
    """Configure one verb, run it, and report on it.

    Args:
        command: name of the verb.
        kind: its configuration class.
        work: does it: configuration -> report.
        words: the lines that a person reads of a report.
        flags: field of the configuration -> value of the flag; None = not given.
        inputs: what the verb reads, for the report.
        manner: the flags that all verbs share.
        meter: what the work tells how far it is; None = it does not.
        out: prints a line of words; by default on stderr, where what went on is told.

    Returns:
        The report of the work, already shown.
    """
    started = time.monotonic()
    settings = resolve(kind, flags, sets=manner.set_ or (), file=read_toml(manner.config))
    _attach_logging(manner.verbose, quiet=manner.quiet)
    with _working(command, manner, meter):
        report = work(settings)
    dry_run = bool(getattr(settings, "dry_run", False))
    if manner.json:
        head = {
            "claw_version": clawcli.__version__,
            "command": command,
            "inputs": list(inputs),
            "output": getattr(settings, "output", None),
        }
        if dry_run:
            head["dry_run"] = True
        body = dataclasses.asdict(report)  # type: ignore[call-overload]
        print_json({**head, **body, "duration_s": round(time.monotonic() - started, 3)})
    elif not manner.quiet:
        for line in words(report):
            (out or say)(line)
        if dry_run:
            say("Nothing was written (--dry-run).")
    return report


def _working(command: str, manner: Manner, meter: Meter | None) -> AbstractContextManager[None]:
    """Show that work goes on if it takes long, to whoever may be looking."""
    if manner.quiet or manner.json:
        return nullcontext()
    if sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in _DUMB:
        return progress.on_terminal(f"claw {command}", meter)
    return progress.in_lines(f"claw {command}", meter, say) if meter else nullcontext()


def say(line: str) -> None:
    """Print one line on stderr, without control characters."""
    print(plain(line), file=sys.stderr)  # noqa: T201 - this is the layer that prints


def answer(line: str) -> None:
    """Print one line of what was asked for on stdout, without control characters."""
    print(plain(line), flush=True)  # noqa: T201


def plain(text: str) -> str:
    """Make text safe for a terminal: no escape sequences, whatever a log put into it."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)  # noqa: T201


def show_error(error: ClawError, *, as_json: bool) -> None:
    """Print an error: a sentence, or one JSON object with --json; both on stderr."""
    if as_json:
        body = {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "where": error.where,
        }
        print(json.dumps({"error": body}, ensure_ascii=False), file=sys.stderr)  # noqa: T201
    else:
        say(f"claw: {error}")


def number(count: float | None) -> str:
    """Write a count for people: 1,234; a dash for null."""
    if count is None:
        return "-"
    return f"{count:,}" if isinstance(count, int) else f"{count:,.4g}"


def counts(values: Mapping[str, int]) -> str:
    """Write a map of counts for people, without its zeros: bad_json 2, no_messages 1."""
    return ", ".join(f"{key} {number(value)}" for key, value in values.items() if value)


def read_toml(path: Path | None) -> dict[str, Any]:
    """Read a configuration file.

    Raises:
        NotFoundError: it is not there.
        ConfigError: it is not TOML.
    """
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist.", "Check --config.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", "Name a file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.", "Correct the file.") from error


def _attach_logging(verbose: int, *, quiet: bool) -> None:
    level = (
        logging.ERROR if quiet else [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)]
    )
    handler = _Says()
    handler.setFormatter(logging.Formatter("claw: %(message)s"))
    root = logging.getLogger("clawcli")
    root.handlers[:] = [handler]
    root.setLevel(level)


class _Says(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Say it on whatever stderr is now: lines go above a bar while one is shown."""
        say(self.format(record))
