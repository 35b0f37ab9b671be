"""What travels between the process that links and those that read: tasks, and what they gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from clawcli.errors import ClawError
from clawcli.ingest.read.find import Found
from clawcli.ingest.secrets.rules import Rule
from clawcli.ingest.sources import Identity
from clawcli.ingest.stepgraph import Step
from clawcli.store.location import Location


@dataclass(frozen=True, slots=True)
class Setting:
    """What all workers of a run share."""

    place: Location
    source_name: str | None = None
    format: str | None = None
    """Name of a format, or path of a plug-in; null = found by content."""
    mapping: Mapping[str, str] | None = None
    """Column -> path in a record."""
    system: str | None = None
    """System text of logs that hold none."""
    tools: str | None = None
    """Tool schemas (JSON list) of logs that hold none."""
    redaction: tuple[bytes, Sequence[Rule], str | None] | None = None
    """Key, rules and command of a Redactor; null = none."""
    dry_run: bool = False
    keep: Sequence[str] = ()
    """Columns of new steps that a dry run gives back."""
    is_remote: bool = False
    """Steps travel to another process, so they go without their messages."""


@dataclass(slots=True)
class Piece:
    """A task: sources as a whole, or a range of one."""

    found: list[Found]
    start: int | None = None
    """With end: the lines that begin in this range of the one source; None = all of it."""
    end: int | None = None
    identity: Identity | None = None
    """Of a source in ranges; those that are read as a whole are identified by the worker."""
    format: str | None = None
    """NAME of the format of a source in ranges."""
    number: int = 0
    """Place among the pieces of the run, which the Driver gives."""


@dataclass(slots=True)
class Taken:
    """What one source, or a part of it, gave."""

    found: Found
    state: str = "new"
    """As Identity.state, or failed."""
    label: str = ""
    """Path of the source as it is stored, without a secret in it."""
    source_uid: str = ""
    head: str = ""
    """As Identity.head."""
    is_first: bool = True
    """The first part of its source, or all of it."""
    entry: dict[str, Any] | None = None
    """The source for the commit info; null = it is not read through yet, or there is none."""
    is_whole: bool = False
    """All that the source says is here, and it may have been known."""
    steps: list[Step] = field(default_factory=list)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """step_uid -> ordinal and offset of its record."""
    begun: set[int] = field(default_factory=set)
    """Ordinals of the records that calls begin in."""
    joined: int = 0
    """Records that are in a state or an action without beginning a call."""
    unused: list[dict[str, Any]] = field(default_factory=list)
    """Records that gave no step, as values of schema.REJECTS."""
    pending: int = 0
    warnings: Counter[str] = field(default_factory=Counter)
    problem: str | None = None
    """Why it could not be read through; what came before counts."""
    error: ClawError | None = None
    """Why nothing of it counts."""
    bytes_read: int = 0
    stored_bytes: int = 0
    """Of bytes_read, what that was before decompression, about: for progress."""
    new_bytes: int = 0
    """Bytes of messages that were not seen before: about what the rows will hold."""

    @property
    def kept(self) -> str:
        """What there is of a source that has a problem, in one sentence."""
        if self.state == "unchanged":
            return "The records before were ingested earlier."
        return f"The {len(self.begun) + self.joined:,} records before were kept."


@dataclass(slots=True)
class Part:
    """What a worker gives back of a piece."""

    number: int
    taken: list[Taken]
    more: bool = False
    """The piece goes on."""


@dataclass(slots=True)
class Written:
    """What became of linked steps."""

    files: list[Any]
    """Parquet files that no commit names yet."""
    said_again: pa.Table | None
    """Rows of steps that the table may hold already; they are in no file."""
    warnings: Counter[str]
    formats: Counter[str]
    restated: tuple[int, int]
    """Characters of observations that repeat the state before, and of all."""
    secrets: Counter[str]
    hidden: dict[str, dict[str, Any]]
    """step_uid -> digests of messages that lost a secret: columns of the sidecar `links`."""
    kept: pa.Table | None = None
    """New steps with the columns Setting.keep; null = not asked for."""
