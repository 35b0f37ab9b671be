"""Ingest: logs to a step table, each record with one fate.

Sources are cut into pieces, workers turn these into calls, rounds of calls are linked and committed
one after the other; the commit infos name the sources with hashes of what was consumed, so that a
later run goes on where this one ended.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from clawcli.engine import Workers, processors, without_gc
from clawcli.errors import (
    ClawError,
    ConflictError,
    DataError,
    NotFoundError,
    UsageError,
)
from clawcli.ingest import commits, plan
from clawcli.ingest import config as asked
from clawcli.ingest.attach.rewards import attach_rewards
from clawcli.ingest.batch import Batch
from clawcli.ingest.config import IngestConfig
from clawcli.ingest.driver import Driver, Meter, Progress
from clawcli.ingest.formats import plugin
from clawcli.ingest.parts import Piece
from clawcli.ingest.read.find import Found, find
from clawcli.ingest.report import IngestReport, report_on
from clawcli.ingest.rounds import Rounds
from clawcli.ingest.sources import KnownSources
from clawcli.ingest.totals import Totals
from clawcli.store import location, log, table
from clawcli.store.location import Location

logger = logging.getLogger(__name__)

_PARALLEL_BYTES = 48 << 20
_PARALLEL_FILES = 2_000
_FILES_PER_PARTITION = 16
_FILES_TOO_MANY = 256
_SMALL_FILE_BYTES = 32 << 20


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
    asked.rewards_on(config)
    is_new = not place.path.exists()
    since = asked.since(config)
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
    since_commit = commits.newest(place)  # before all that another run may add to meanwhile
    infos = _refuse_curated(config, place)
    count = _count(config, found)
    setting = asked.setting(config, place, is_remote=count > 1)
    known = KnownSources(infos)
    with without_gc(), Workers(Batch, (setting, known), count) as workers:
        rounds = Rounds(
            place,
            workers,
            info=asked.info(config, setting, known),
            known=known,
            since=since_commit,
            dry_run=config.dry_run,
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
            place,
            config.rewards,
            on=asked.rewards_on(config),
            dry_run=config.dry_run,
            pending=rounds.pending(),
        )
    return report_on(place, rounds, rewards)


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
    return processors()


def _refuse_curated(config: IngestConfig, place: Location) -> list[dict[str, Any]]:
    infos = table.history(place.steps) if table.exists(place.steps) else []
    if infos and infos[0].get("command") == "curate":
        raise DataError(
            f"{config.output} was curated, so no log can be added to it.",
            "Ingest into the directory that it was curated from, and curate again.",
        )
    return infos


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
