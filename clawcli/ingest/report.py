"""Tell what a run of ingest did, and what its table is good for now."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import msgspec

from clawcli.errors import ClawError
from clawcli.ingest.rounds import Rounds
from clawcli.store import facts, table
from clawcli.store.location import Location

logger = logging.getLogger(__name__)

_RESTATED_WARNING = 0.2
_OUTLOOK_STEPS = 100_000
"""A table of so many steps is looked through in half a second, however little was added to it."""
FATES = ("used", "duplicate", "failed_call", "ignored", "pending", "rejected")


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


def report_on(place: Location, rounds: Rounds, rewards: Any) -> IngestReport:
    """Make the report of a run; rewards = what became of --rewards."""
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
