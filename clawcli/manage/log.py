"""`claw log`: the versions of a data directory, newest first: when, by which command, with what."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from clawcli.store import location, log, tags
from clawcli.store.log import Commit


@dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """What `claw log` is asked for."""

    input: str
    """Data directory."""
    limit: Annotated[int, Meta(ge=1)] | None = None
    """List that many versions, the newest; null = all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """What the log says of one version of the step table; null = it does not say."""

    version: int
    committed_at: str | None
    """ISO 8601, UTC, by the clock of whoever committed."""
    command: str | None
    """Command of claw; for other programs what they did, as they call it."""
    steps_added: int | None
    """Steps that it has and the version before it has not."""
    steps_removed: int | None
    steps_changed: int | None
    """Steps whose content is another."""
    restored_version: int | None
    """Version whose rows became the newest ones again; null = it was no restore."""
    tags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReport:
    """The versions of a step table."""

    versions: tuple[Version, ...]
    """Newest first."""
    versions_total: int
    """All that there are, listed or not."""
    versions_by_tag: dict[str, int]
    """All tags, by name."""


def log_of(config: LogConfig) -> LogReport:
    """List the versions of a data directory's step table.

    Raises:
        NotFoundError: the directory is not there.
        DataError: it is no data directory.
        StoreError: the newest log entry is torn, or the tags are damaged.
        UsageError: a version is named, where all of them are listed.
    """
    location.whole(config.input)
    place = location.existing(config.input)
    named = tags.read(place)
    by_version: dict[int, list[str]] = defaultdict(list)
    for name, version in named.items():
        by_version[version].append(name)
    listed = itertools.islice(log.commits(place.steps), config.limit)
    return LogReport(
        versions=tuple(_versions(listed, by_version)),
        versions_total=log.count(place.steps),
        versions_by_tag=named,
    )


def _versions(listed: Iterator[Commit], by_version: Mapping[int, list[str]]) -> Iterator[Version]:
    for commit in listed:
        added, removed, changed = _steps(commit)
        yield Version(
            version=commit.version,
            committed_at=None
            if commit.at is None
            else f"{commit.at:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            command=_text(commit.info.get("command")) or commit.operation,
            steps_added=added,
            steps_removed=removed,
            steps_changed=changed,
            restored_version=commit.restored,
            tags=tuple(by_version.get(commit.version, ())),
        )


def _steps(commit: Commit) -> tuple[int | None, int | None, int | None]:
    """Tell how many steps a commit added, removed and changed, where the log tells."""
    if not commit.is_change:
        return 0, 0, 0
    if commit.files_removed == 0 and commit.restored is None:
        # whoever only adds files to a step table adds steps
        added = commit.info.get("steps_added", commit.rows_added)
        return _count(added), 0, 0
    said = [_count(commit.info.get(f"steps_{what}")) for what in ("added", "removed", "changed")]
    if commit.info.get("command") == "ingest" and said[0] is not None:
        said[1] = 0  # it never removes any
    return said[0], said[1], said[2]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
