"""What claw forget takes out, decided before anything is changed.

Steps that match go, and all that go on from them, for a state is a delta up the parents. Context
(weight 0) that only they needed goes too. Steps that older versions hold are asked as well. The
plan names everything by hashes, so that it can lie on disk until the work is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from clawcli.errors import StoreError
from clawcli.messages import hash128
from clawcli.store import artefact, log, query, sidecars, table, tags
from clawcli.store.location import FORGETTING, Location

_COLUMNS = (
    "step_uid",
    "next_hash",
    "parent_step_uid",
    "loss_weight",
    "trajectory_uid",
    "source_uid",
    "source_offset",
    "task_id",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is to go."""

    steps: dict[str, str] = field(default_factory=dict)
    """step_uid -> next_hash."""
    matched: set[str] = field(default_factory=set)
    """Those of the steps that matched."""
    context: set[str] = field(default_factory=set)
    """Those of them that were context which nothing else needs."""
    trajectories: set[str] = field(default_factory=set)
    """Trajectories that have no step left."""
    trajectories_cut: set[str] = field(default_factory=set)
    """Trajectories that lose steps and keep others."""
    sources: set[str] = field(default_factory=set)
    """Sources that logged steps which go, and none that stays."""
    sources_mixed: set[str] = field(default_factory=set)
    """Sources that logged both."""
    places: set[tuple[str, int]] = field(default_factory=set)
    """Source and offset of the records of steps that go."""
    tasks: set[str] = field(default_factory=set)
    """Hashes of the task ids that no step has any more."""
    tags: set[str] = field(default_factory=set)
    """Tags on versions that hold steps which go."""

    def joined(self, other: Plan) -> Plan:
        """Add what another plan says."""
        return Plan(
            **{f.name: getattr(self, f.name) | getattr(other, f.name) for f in fields(Plan)}
        )


class _Version:
    """The steps of a version, without their text."""

    def __init__(self, steps: pa.Table) -> None:
        self.rows = {row["step_uid"]: row for row in steps.select(_COLUMNS).to_pylist()}
        self.children: dict[str, list[str]] = defaultdict(list)
        for uid, row in self.rows.items():
            if row["parent_step_uid"] is not None:
                self.children[row["parent_step_uid"]].append(uid)

    def with_descendants(self, uids: set[str]) -> set[str]:
        """Add all steps that go on from some, in this version or from steps that it lacks."""
        found, left = set(uids), list(uids)
        while left:
            new = [child for child in self.children[left.pop()] if child not in found]
            found.update(new)
            left += new
        return found

    def context_of(self, gone: set[str]) -> set[str]:
        """List steps of weight 0 that only steps which go need, as ancestors."""
        found: set[str] = set()
        left = [self.rows[uid]["parent_step_uid"] for uid in gone & self.rows.keys()]
        while left:
            row = self.rows.get(left.pop())
            if row is None or row["step_uid"] in found | gone or (row["loss_weight"] or 0) > 0:
                continue
            if all(child in found or child in gone for child in self.children[row["step_uid"]]):
                found.add(row["step_uid"])
                left.append(row["parent_step_uid"])
        return found


def make(location: Location, where: str, *, timeout_s: float) -> tuple[Plan, int]:
    """Find out what an expression asks to forget.

    Returns:
        The plan; and the number of steps of the newest version for which the expression is NULL,
        which is not true.

    Raises:
        WhereError: the expression is no single boolean expression over the columns.
    """
    named = tags.read(location)
    matched: set[str] = set()
    versions: dict[int | None, _Version] = {}
    null = 0
    for version in (None, *_others(location, set(named.values()))):
        steps = query.load_steps(Location(location.path, version))
        said = query.match(steps, where, timeout_s=timeout_s)
        matched |= said.matched
        null = len(said.null) if version is None else null
        versions[version] = _Version(steps)
    gone = _closed(matched, versions)
    context = versions[None].context_of(gone)
    gone |= context
    dropped = {
        name
        for name, version in named.items()
        if version in versions and versions[version].rows.keys() & gone
    }
    stay = [versions[None]] + [
        versions[version]
        for name, version in named.items()
        if version in versions and name not in dropped
    ]
    return _plan(location, matched, context, gone, list(versions.values()), stay, dropped), null


def _others(location: Location, tagged: set[int]) -> Iterator[int]:
    """List versions to look into besides the newest: tagged ones, and those that hold other steps."""
    there = [commit.version for commit in log.commits(location.steps)]
    listed = [version for version in there[1:] if version in tagged]
    yield from listed
    lost = _lost(location)
    for version in there[1:]:
        if not lost:
            return
        try:
            here = _uids(Location(location.path, version))
        except StoreError:  # files of it are gone, or a killed run let go of what it begins with
            continue
        if here & lost and version not in listed:
            yield version
        lost -= here


def _lost(location: Location) -> set[str]:
    """List steps that only files hold which the newest version does not refer to."""
    root = location.steps
    assert isinstance(root, Path)
    named = {root / file.name for file in log.active(log.open_table(root))}
    found: set[str] = set()
    for path in set(root.rglob("part-*.parquet")) - named:
        try:
            found.update(pq.ParquetFile(path).read(["step_uid"])["step_uid"].to_pylist())
        except (OSError, pa.ArrowException):  # a killed run left half of it; it is removed
            continue
    if not found:
        return found
    return found - _uids(Location(root.parent))


def _uids(location: Location) -> set[str]:
    return set(table.read(location, columns=["step_uid"])["step_uid"].to_pylist())


def _closed(matched: set[str], versions: dict[int | None, _Version]) -> set[str]:
    gone, size = set(matched), -1
    while size < len(gone):
        size = len(gone)
        for version in versions.values():
            gone = version.with_descendants(gone)
    return gone


def _plan(
    location: Location,
    matched: set[str],
    context: set[str],
    gone: set[str],
    versions: list[_Version],
    stay: list[_Version],
    dropped: set[str],
) -> Plan:
    going = [v.rows[uid] for v in versions for uid in v.rows.keys() & gone]
    staying = [v.rows[uid] for v in stay for uid in v.rows.keys() - gone]
    seen = sidecars.read(location, "seen_in").to_pylist()
    seen_gone = [row for row in seen if row["step_uid"] in gone]
    live = {row["step_uid"] for row in staying}
    logged = _values(staying, "source_uid")
    logged |= _values([row for row in seen if row["step_uid"] in live], "source_uid")
    touched = _values([*going, *seen_gone], "source_uid")
    cut = _values(going, "trajectory_uid")
    left = _values(staying, "trajectory_uid")
    return Plan(
        steps={row["step_uid"]: row["next_hash"] for row in going},
        matched=matched,
        context=context,
        trajectories=cut - left,
        trajectories_cut=cut & left,
        sources=touched - logged,
        sources_mixed=touched & logged,
        places={
            (row["source_uid"], row["source_offset"])
            for row in [*going, *seen_gone]
            if row["source_offset"] is not None
        },
        tasks={hash128(task) for task in _values(going, "task_id") - _values(staying, "task_id")},
        tags=dropped,
    )


def _values(rows: list[dict], column: str) -> set:
    return {row[column] for row in rows if row[column] is not None}


def unfinished(location: Location) -> Plan:
    """Read the plan of a claw forget that was killed; an empty one where there is none.

    Raises:
        StoreError: it cannot be read.
    """
    place = location.path / FORGETTING
    try:
        return msgspec.json.decode(place.read_bytes(), type=Plan)
    except FileNotFoundError:
        return Plan()
    except msgspec.DecodeError as error:
        raise StoreError(
            f"{place} is damaged: {error}.", "Remove it, and forget with the same --where again."
        ) from error


def begin(location: Location, plan: Plan) -> None:
    """Put the plan on the disk, so that the work can be ended after a crash."""
    place = location.path / FORGETTING
    assert isinstance(place, Path)
    with artefact.replacing(place, force=True, ours=Path.is_file) as temporary:
        temporary.write_bytes(msgspec.json.encode(plan))


def end(location: Location) -> None:
    """Remove the plan: the work is done."""
    place = location.path / FORGETTING
    assert isinstance(place, Path)
    place.unlink()
    artefact.sync(place.parent)
