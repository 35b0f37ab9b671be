"""Ingest: logs to a step table, each record with one fate.

Sources are cut into pieces, workers turn these into calls, rounds of calls are linked and committed
one after the other; the commit infos name the sources with hashes of what was consumed, so that a
later run goes on where this one ended.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from clawcli.engine import Workers, without_gc
from clawcli.errors import (
    ClawError,
    ConfigError,
    ConflictError,
    DataError,
    NotFoundError,
    UsageError,
)
from clawcli.ingest import plan
from clawcli.ingest.attach import files as reward_files
from clawcli.ingest.attach.plan import parse_on
from clawcli.ingest.attach.rewards import PENDING, attach_rewards
from clawcli.ingest.batch import Batch
from clawcli.ingest.driver import Driver, Meter, Progress
from clawcli.ingest.formats import plugin
from clawcli.ingest.parts import Piece, Setting
from clawcli.ingest.read.find import Found, find
from clawcli.ingest.rounds import Rounds
from clawcli.ingest.secrets import redact
from clawcli.ingest.secrets import rules as secret_rules
from clawcli.ingest.sources import KnownSources
from clawcli.ingest.totals import Totals
from clawcli.ingest.values import seconds
from clawcli.store import facts, location, log, table, tombstones
from clawcli.store.location import Location

logger = logging.getLogger(__name__)

_RESTATED_WARNING = 0.2
_PARALLEL_BYTES = 48 << 20
_PARALLEL_FILES = 2_000
_FILES_PER_PARTITION = 16
_FILES_TOO_MANY = 256
_SMALL_FILE_BYTES = 32 << 20
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
_OUTLOOK_STEPS = 100_000
"""A table of so many steps is looked through in half a second, however little was added to it."""
FATES = ("used", "duplicate", "failed_call", "ignored", "pending", "rejected")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestReport:
    """Counts of this run; *_total of the data directory."""

    files_read: int
    files_unchanged: int
    bytes_read: int
    records: int
    records_by_fate: dict[str, int]
    steps: int
    steps_changed: int
    steps_total: int
    trajectories: int
    trajectories_total: int
    trajectories_empty: int
    rejects: int
    rejects_by_reason: dict[str, int]
    warnings_by_code: dict[str, int]
    steps_by_format: dict[str, int]
    secrets_by_rule: dict[str, int]
    """Secrets that were taken out, by rule."""
    restated_frac: float
    """Share of observation text that stood in the predecessor's state already: what clients that
    edit their history cost."""
    rewards: dict[str, Any] | None
    """What became of --rewards; null = not asked for."""
    table_version: int | None
    readiness: str | None
    """What the table is good for, in one sentence, as claw readiness says it. Null = not asked: of
    a dry run, and of a large table to which little was added."""
    problems: tuple[str, ...] = ()
    """Sources that could not be read through, one sentence each; the rest was committed."""


def ingest(config: IngestConfig, progress: Progress | None = None) -> IngestReport:
    """Read logs into the step table of a data directory.

    Args:
        config: what to read and where to put it.
        progress: is told how far the run is.

    Raises:
        NotFoundError: an input names nothing.
        DataError: no source could be read at all; where only some could not, they are in
            IngestReport.problems.
        StoreError: the output cannot be written.
    """
    place = location.whole(config.output)
    if not location.may_hold_data(place.path):
        raise DataError(
            f"{place.path} is there, but is no data directory.", "Choose another --output."
        )
    plugin.choose(config.format, config.map)  # what is asked for wrongly is said before all work
    _on(config)
    is_new = not place.path.exists()
    since = _since(config)
    found, problems = find(config.inputs, since=since)
    if not found and problems:
        raise NotFoundError(problems[0], "Check the path.")
    if config.source_name is not None and len(found) != 1:
        raise UsageError(
            f"--source-name names one source, and here are {len(found):,}.",
            "Ingest them one by one.",
        )
    with _at_work(config, place, is_new=is_new):
        return _ingest(config, place, found, problems, progress)


def _ingest(
    config: IngestConfig,
    place: Location,
    found: list[Found],
    problems: list[str],
    progress: Progress | None,
) -> IngestReport:
    infos = _refuse_curated(config, place)
    count = _count(config, found)
    setting = _setting(config, place, is_remote=count > 1)
    known = KnownSources(infos)
    with without_gc(), Workers(Batch, (setting, known), count) as workers:
        rounds = Rounds(
            place, workers, info=_info(config, setting, known), known=known, dry_run=config.dry_run
        )
        rounds.totals.problems.extend(problems)
        _run(plan.pieces(found, setting, known), workers, rounds, Meter(found, progress))
    totals = rounds.totals
    if totals.errors and not (totals.files_read or totals.files_unchanged):
        raise _nothing_read(found, totals)
    if not config.dry_run:
        _finish(place, rounds)
    rewards = None
    if config.rewards is not None:
        rewards = attach_rewards(
            place, config.rewards, on=_on(config), dry_run=config.dry_run, pending=rounds.pending()
        )
    return _report(place, rounds, rewards)


@contextmanager
def _at_work(config: IngestConfig, place: Location, *, is_new: bool) -> Iterator[None]:
    """Let nobody restore or clean up what this run has not committed yet."""
    try:
        with nullcontext() if config.dry_run else table.at_work(place.path):
            yield
    except ClawError:
        if is_new and isinstance(place.path, Path) and place.path.is_dir():
            # of a run that read nothing, nothing is left behind; another may have begun there
            with suppress(ConflictError), table.alone(place.path):
                location.clear(place)
        raise


def _run(pieces: Iterator[Piece | None], workers: Workers, rounds: Rounds, meter: Meter) -> None:
    """Keep all workers busy; commit when a round is full, and at the end."""
    driver = Driver(workers, rounds, meter)
    for piece in pieces:
        if piece is None:
            driver.finish()
        else:
            driver.give(piece)
    driver.finish()
    while deferred := rounds.twins.take_deferred():
        for source in deferred:
            driver.give(Piece([source]))
            driver.finish()


def _count(config: IngestConfig, found: list[Found]) -> int:
    """Decide how many processes read: starting some costs more than reading a little."""
    if any(source.path == "-" for source in found):
        return 1  # only this process has the standard input
    if config.workers:
        return config.workers
    num_bytes = sum(source.size or 0 for source in found)
    if num_bytes < _PARALLEL_BYTES and len(found) < _PARALLEL_FILES:
        return 1
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 16)


def _since(config: IngestConfig) -> float | None:
    if config.since is None:
        return None
    since = seconds(config.since)
    if since is None:
        raise UsageError(
            f"--since {config.since!r} is no time.", "Write 2026-11-30 or 2026-11-30T12:00:00Z."
        )
    return since


def _on(config: IngestConfig) -> dict[str, str]:
    if config.on and config.rewards is None:
        raise UsageError(
            "--on says what joins rewards to steps, and there are no rewards.", "Give --rewards."
        )
    if config.rewards is not None:
        reward_files.refuse_missing(config.rewards)
    return parse_on(config.on)


def _refuse_curated(config: IngestConfig, place: Location) -> list[dict[str, Any]]:
    infos = table.history(place.steps) if table.exists(place.steps) else []
    if infos and infos[0].get("command") == "curate":
        raise DataError(
            f"{config.output} was curated, so no log can be added to it.",
            "Ingest into the directory that it was curated from, and curate again.",
        )
    return infos


def _setting(config: IngestConfig, place: Location, *, is_remote: bool) -> Setting:
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


def _info(config: IngestConfig, setting: Setting, known: KnownSources) -> dict[str, Any]:
    """What the commit infos say besides the sources, without a secret or a path to be forgotten."""
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


def _nothing_read(found: list[Found], totals: Totals) -> ClawError:
    if len(found) == 1:
        return totals.errors[0]
    return DataError(
        f"None of {len(found):,} sources could be read. {totals.errors[0]}",
        "Correct or leave out what is named.",
    )


def _finish(place: Location, rounds: Rounds) -> None:
    """Make a table where there is nothing yet, and few files of many."""
    if not table.exists(place.steps):
        rounds.commit_empty()
    elif rounds.commits.count and _is_scattered(place):
        with table.lock(place.path):
            table.compact(place.steps, info={"command": "ingest", "compacted": True})


def _is_scattered(place: Location) -> bool:
    """Tell whether some partition consists of many small files, or many of several."""
    files = log.active(table.open_table(place.steps))
    small = Counter(str(f.partition_values) for f in files if f.size_bytes < _SMALL_FILE_BYTES)
    too_many = small.total() - len(small)
    return max(small.values(), default=0) > _FILES_PER_PARTITION or too_many > _FILES_TOO_MANY


def _report(place: Location, rounds: Rounds, rewards: Any) -> IngestReport:
    totals = rounds.totals
    restated_frac = totals.restated_chars / (totals.observation_chars or 1)
    if restated_frac > _RESTATED_WARNING:
        totals.warnings["history_restated"] += 1
    trajectories_total = len(totals.trajectories)
    version = None
    if table.exists(place.steps):
        stored = table.read(place, columns=["trajectory_uid"])["trajectory_uid"]
        version = table.open_table(place.steps).version()
        if rounds.dry_run:
            trajectories_total = len({*stored.to_pylist(), *totals.placed} - totals.left)
        else:
            trajectories_total = len(stored.unique())
    return IngestReport(
        files_read=totals.files_read,
        files_unchanged=totals.files_unchanged,
        bytes_read=totals.bytes_read,
        records=totals.fates.total(),
        records_by_fate={fate: totals.fates[fate] for fate in FATES},
        steps=totals.steps,
        steps_changed=totals.steps_changed,
        steps_total=rounds.committed.num_steps,
        trajectories=len(totals.trajectories),
        trajectories_total=trajectories_total,
        trajectories_empty=totals.rejected["empty_trajectory"],
        rejects=totals.fates["rejected"],
        rejects_by_reason=dict(sorted(totals.rejected.items())),
        warnings_by_code=dict(sorted((+totals.warnings).items())),
        steps_by_format=dict(sorted(totals.formats.items())),
        secrets_by_rule=dict(sorted((+totals.secrets).items())),
        restated_frac=restated_frac,
        rewards=None if rewards is None else msgspec.to_builtins(rewards),
        table_version=None if rounds.dry_run else version,
        readiness=_readiness(place, rounds),
        problems=(*totals.problems, *(str(error) for error in totals.errors)),
    )


def _readiness(place: Location, rounds: Rounds) -> str | None:
    """Say what the table is good for, where that costs little beside the run."""
    written = rounds.totals.steps + rounds.totals.steps_changed
    if rounds.dry_run or rounds.committed.num_steps > max(_OUTLOOK_STEPS, 2 * written):
        return None
    try:
        return facts.outlook(place)
    except ClawError as error:  # what was read is committed all the same
        logger.warning("What the table is good for cannot be told: %s", error)
        return None
