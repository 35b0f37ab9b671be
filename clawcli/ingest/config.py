"""What a run of ingest is asked for: checked, and as its workers and its commits take it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from clawcli.errors import ConfigError, NotFoundError, UsageError
from clawcli.ingest.attach import files as reward_files
from clawcli.ingest.attach.plan import parse_on
from clawcli.ingest.attach.rewards import PENDING
from clawcli.ingest.parts import Setting
from clawcli.ingest.secrets import redact
from clawcli.ingest.secrets import rules as secret_rules
from clawcli.ingest.sources import KnownSources
from clawcli.ingest.values import seconds
from clawcli.store import table, tombstones
from clawcli.store.location import Location

_TOLD = (
    "source_name",
    "format",
    "map",
    "system",
    "tools",
    "since",
    "redact_rules",
    "redact_with",
    "rewards",
    "on",
)
"""Settings that decide what a run writes, for the commit infos: from them claw lineage makes the
command again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """What to read and where to put it."""

    inputs: tuple[str, ...]
    """Files, folders, globs, URLs, or - for standard input."""
    output: str
    """Data directory; appended to if it exists."""
    source_name: str | None = None
    """Name that the identity of the one source rests on, in place of its file name."""
    format: str | None = None
    """Name of a log format, or path of a plug-in; null = found by content."""
    map: dict[str, str] = field(default_factory=dict)
    """Column -> path in a record, for logs in no known format."""
    system: str | None = None
    """File with the system text of logs that hold none."""
    tools: str | None = None
    """File with the tool schemas (JSON list) of logs that hold none."""
    since: str | None = None
    """Leave out files that were last modified before: a date, a time (ISO 8601), or seconds."""
    redact: bool = True
    """Take secrets out before anything is written."""
    redact_rules: str | None = None
    """TOML file with more rules."""
    redact_with: str | None = None
    """Command of an outside scanner."""
    rewards: str | None = None
    """File or folder with rewards, to be joined to the steps."""
    on: tuple[str, ...] = ()
    """COLUMN=FIELD: what joins steps and rewards; empty = columns of the same name."""
    workers: int = 0
    """Processes that read; 0 = one for each processor, where there is enough to read."""
    dry_run: bool = False
    """Read and check all, write nothing."""


def since(config: IngestConfig) -> float | None:
    """Read --since; seconds since the epoch."""
    if config.since is None:
        return None
    since = seconds(config.since)
    if since is None:
        raise UsageError(
            f"--since {config.since!r} is no time.", "Write 2026-11-30 or 2026-11-30T12:00:00Z."
        )
    return since


def rewards_on(config: IngestConfig) -> dict[str, str]:
    """Read --on, once it is certain that there are rewards."""
    if config.on and config.rewards is None:
        raise UsageError(
            "--on says what joins rewards to steps, and there are no rewards.", "Give --rewards."
        )
    if config.rewards is not None:
        reward_files.refuse_missing(config.rewards)
    return parse_on(config.on)


def setting(config: IngestConfig, place: Location, *, is_remote: bool) -> Setting:
    """Read what the workers need to know, files that flags name included."""
    system = None if config.system is None else _text(config.system)
    tools = None if config.tools is None else _tools(config.tools)
    redaction = None
    if config.redact:
        rules = [*secret_rules.RULES]
        if config.redact_rules is not None:
            rules += secret_rules.read_rules(config.redact_rules)
        # a dry run leaves nothing behind, so that a new directory's key would be of no use
        is_new = config.dry_run and not table.exists(place.steps)
        key = bytes(32) if is_new else redact.key_of(str(place.path))
        redaction = key, rules, config.redact_with
    elif config.redact_rules or config.redact_with:
        raise UsageError(
            "--no-redact leaves nothing for the other --redact flags to do.", "Drop it."
        )
    return Setting(
        place=place,
        source_name=config.source_name,
        format=config.format,
        mapping=dict(config.map) or None,
        system=system,
        tools=tools,
        redaction=redaction,
        dry_run=config.dry_run,
        keep=PENDING if config.dry_run and config.rewards is not None else (),
        is_remote=is_remote,
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", "Name a UTF-8 text file.") from error


def _tools(path: str) -> str:
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON: {error}.", "Write a list of tool schemas."
        ) from error
    if not isinstance(value, list):
        raise ConfigError(f"{path} is no JSON list.", "Write a list of tool schemas.")
    return msgspec.json.encode(value).decode()


def info(config: IngestConfig, setting: Setting, known: KnownSources) -> dict[str, Any]:
    """Make what the commit infos say besides the sources, without a secret or a path to be forgotten."""
    redactor = None
    if setting.redaction is not None:
        key, rules, _ = setting.redaction
        redactor = redact.Redactor(key, rules)

    def plain(text: str) -> str:
        text = os.fsencode(text).decode(errors="backslashreplace")
        return text if redactor is None else redactor.text(text)

    told = {name: _told(getattr(config, name), plain) for name in _TOLD}
    inputs = [plain(text) for text in config.inputs]
    sources = [known.at(text) for text in inputs]
    return {
        "command": "ingest",
        "inputs": [
            source.path if source is not None and tombstones.is_masked(source.path) else text
            for text, source in zip(inputs, sources, strict=True)
        ],
        "redacted": config.redact,
        "config": {name: value for name, value in told.items() if value},
    }


def _told(value: Any, plain: Callable[[str], str]) -> Any:
    """Take what a user wrote, through plain, as JSON has it."""
    if isinstance(value, Mapping):
        return {key: plain(text) for key, text in value.items()}
    if isinstance(value, tuple):
        return [plain(text) for text in value]
    return value and plain(value)
