"""`claw forget`: take steps out of a data directory so that nothing in it holds their text.

Rows, sidecar rows, what rejects tell, older versions, log entries and data files go; hashes of the
steps stay, so that ingest does not bring them back. The work is idempotent and its plan lies on the
disk until it is done: after a crash the same command ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from clawcli.errors import DataError, UsageError
from clawcli.manage import forget_infos, forget_plan, forget_rows
from clawcli.manage.forget_plan import Plan
from clawcli.store import erase, location, log, registry, sidecars, table, tags, tombstones
from clawcli.store.erase import Removed
from clawcli.store.location import Location


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetConfig:
    """What to forget."""

    input: str
    """Data directory that claw ingest made."""
    where: str
    """Boolean SQL expression over one step's columns."""
    yes_drop_tags: bool = False
    """Drop the tags on versions that hold such steps."""
    dry_run: bool = False
    """Count, change nothing."""
    where_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """Seconds after which the expression is stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgetReport:
    """The receipt: steps = matched + descendants + context."""

    steps: int
    """Steps that were taken out."""
    steps_matched: int
    steps_descendants: int
    """Steps that did not match but go on from one that did, so that their states hold its text."""
    steps_context: int
    """Steps of weight 0 that only such steps needed as ancestors."""
    steps_null: int
    """Steps for which the expression is NULL, which is not true: they stay."""
    steps_total: int
    """Steps that are left."""
    trajectories: int
    """Trajectories that have no step left."""
    trajectories_cut: int
    """Trajectories that lost steps and keep others."""
    sources: int
    """Sources whose path was masked, for they logged nothing else."""
    sidecar_rows_by_name: dict[str, int]
    rejects: int
    """Rejects about what was forgotten: of each only its place and its fate are left."""
    rejects_without_text: int
    """Other rejects of the same sources, which lost what they quote."""
    versions_removed: int
    """Older versions of all tables that can no longer be read."""
    files_removed: int | None
    """Data files, log entries and checkpoints; null in a dry run."""
    bytes_removed: int | None
    """Their size together; null in a dry run."""
    tombstones_total: int
    """Steps that ingest keeps out from now on."""
    tags_dropped: tuple[str, ...]
    derived: tuple[dict[str, Any], ...]
    """What the registry says was made of the directory, and may still hold the text: path, kind,
    version, exists."""
    table_version: int
    """Newest version of the step table."""


def forget(config: ForgetConfig) -> ForgetReport:
    """Take the steps out for which an expression is true, with all that holds their text.

    Raises:
        UsageError: the input names a version or is in an object store, or tags are on versions
            that hold such steps and yes_drop_tags is off.
        NotFoundError: the input is not there.
        DataError: it is a curated directory, or no data directory.
        WhereError: the expression is no single boolean expression over the columns.
        ConflictError: another run is at work on the directory.
        StoreError: the disk is full, or a table is torn. The same command ends what was begun.
    """
    place = location.parse(config.input)
    if place.version is not None:
        raise UsageError(
            f"{config.input} names a version.", "Forget in the directory: it reaches all versions."
        )
    root = location.here(place)
    location.existing(config.input)
    if log.first_info(place.steps).get("command") == "curate":
        raise DataError(
            f"{config.input} was curated, so its steps stand elsewhere too.",
            "Forget in the directory that it was curated from (claw lineage names it), and curate "
            "again.",
        )
    with nullcontext() if config.dry_run else table.alone(root):
        found, null = forget_plan.make(place, config.where, timeout_s=config.where_timeout_s)
        if found.tags and not config.yes_drop_tags:
            raise UsageError(
                f"Versions with these tags hold such steps: {', '.join(sorted(found.tags))}.",
                "Add --yes-drop-tags to drop the tags and what they name.",
            )
        plan = forget_plan.unfinished(place).joined(found)
        done = _count(place, plan)
        removed = None
        if not config.dry_run:
            removed = _erase(place, plan) if plan.steps else Removed()
    return _report(place, plan, null, done, removed)


@dataclass(frozen=True, slots=True)
class _Done:
    """What went besides steps."""

    sidecar_rows: dict[str, int]
    rejects: int
    rejects_without_text: int
    removed: Removed
    tombstones: int


def _count(place: Location, plan: Plan) -> _Done:
    """Count what a plan takes out besides steps."""
    rows = {
        name: erase.count(_local(place.sidecar(name)), *wanted)
        for name, wanted in _sidecars(place, plan)
    }
    about, near = (
        erase.count(_local(place.rejects), forget_rows.OF_REJECTS, wanted)
        for wanted in (forget_rows.rejects_about(plan), forget_rows.rejects_near(plan))
    )
    known = tombstones.read(place)
    return _Done(
        sidecar_rows=rows,
        rejects=about,
        rejects_without_text=near,
        removed=Removed(_older(place, plan) if plan.steps else 0),
        tombstones=len(known.keys() | plan.steps.keys()),
    )


def _sidecars(place: Location, plan: Plan) -> Iterator[tuple[str, tuple[list[str], erase.Hits]]]:
    for name in sidecars.versions(place):
        if name != tombstones.NAME:
            columns = log.open_table(place.sidecar(name)).schema().to_arrow().names
            keys = [key for key in sidecars.KEYS if key in columns]
            yield name, (keys, forget_rows.of_sidecar(plan, keys))


def _older(place: Location, plan: Plan) -> int:
    """Count the versions that will no longer be there."""
    roots = [place.sidecar(name) for name, _ in _sidecars(place, plan)]
    roots += [place.rejects] if table.exists(place.rejects) else []
    older = sum(1 for root in roots for _ in log.commits(root))
    kept = {version for name, version in tags.read(place).items() if name not in plan.tags}
    return older + sum(commit.version not in kept for commit in log.commits(place.steps))


def _erase(place: Location, plan: Plan) -> Removed:
    """Carry out a plan. Steps go last, so that until then the same --where finds them again."""
    forget_plan.begin(place, plan)
    tags.drop(place, plan.tags)
    # from here on ingest keeps them out; what stands in the table still counts as there
    tombstones.add(place, plan.steps, command="forget")
    removed = Removed()
    for name, (keys, hits) in _sidecars(place, plan):
        root = _local(place.sidecar(name))
        info = forget_infos.of_sidecar(root, keys, hits)
        erase.rewrite(root, keys, hits, _without(hits), info=info)
        removed += erase.collapse(root)
    if table.exists(place.rejects):
        root = _local(place.rejects)
        hits = forget_rows.rejects_of(plan)
        erase.rewrite(
            root,
            forget_rows.OF_REJECTS,
            hits,
            lambda rows: forget_rows.without_text(rows, plan),
            info={"command": "forget"},
        )
        removed += erase.collapse(root)
    removed += _erase_steps(place, plan)
    forget_plan.end(place)
    return removed


def _erase_steps(place: Location, plan: Plan) -> Removed:
    root, hits = _local(place.steps), forget_rows.of_steps(plan)
    masks = forget_infos.Masks(place, plan)
    erase.rewrite(
        root,
        ["step_uid"],
        hits,
        _without(hits),
        info=masks.joined(),
    )
    return erase.collapse(root, keep=tags.read(place).values(), info=masks.joined)


def _without(hits: erase.Hits) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.filter(pa.array(~hits(rows)))


def _local(place: Any) -> Path:
    assert isinstance(place, Path)
    return place


def _report(
    place: Location, plan: Plan, null: int, done: _Done, removed: Removed | None
) -> ForgetReport:
    newest = table.open_table(place.steps)
    total = sum(file.rows or 0 for file in log.active(newest))
    return ForgetReport(
        steps=len(plan.steps),
        steps_matched=len(plan.matched),
        steps_descendants=len(plan.steps) - len(plan.matched | plan.context),
        steps_context=len(plan.context),
        steps_null=null,
        steps_total=total,
        trajectories=len(plan.trajectories),
        trajectories_cut=len(plan.trajectories_cut),
        sources=len(plan.sources),
        sidecar_rows_by_name=done.sidecar_rows,
        rejects=done.rejects,
        rejects_without_text=done.rejects_without_text,
        versions_removed=(removed or done.removed).versions,
        files_removed=None if removed is None else removed.files,
        bytes_removed=None if removed is None else removed.bytes,
        tombstones_total=done.tombstones,
        tags_dropped=tuple(sorted(plan.tags)),
        derived=tuple(_derived(place)),
        table_version=newest.version(),
    )


def _derived(place: Location) -> Iterator[dict[str, Any]]:
    """List what was made of the directory, and of curated directories among that."""
    waiting, seen = [place], set()
    while waiting:
        for row in registry.read(waiting.pop()):
            if row.path in seen:
                continue
            seen.add(row.path)
            path = Path(row.path)
            yield {
                "path": row.path,
                "kind": row.kind,
                "version": row.version,
                "exists": path.exists(),
            }
            if row.kind == "data" and path.exists():
                waiting.append(Location(path))
