"""Attach: what became known later of steps or attempts, as a sidecar beside the step table.

The sidecar rewards has columns of its own (rewards.py). Every other one takes all fields of the
file that are no keys, with the types that its first file gave them (values.py). Secrets are taken
out of texts as ingest does, unless the directory was ingested with --no-redact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from clawcli import schema
from clawcli.errors import UsageError
from clawcli.ingest.attach import commit, kinds, match, plan, reports, rewards
from clawcli.ingest.attach import files as attached_files
from clawcli.ingest.attach import values as attached_values
from clawcli.ingest.attach.files import Rows
from clawcli.ingest.attach.match import Matches
from clawcli.ingest.attach.plan import Plan
from clawcli.ingest.secrets import redact
from clawcli.store import location, sidecars, table
from clawcli.store.location import Location

_STEP_COLUMNS = ("step_uid", "trajectory_uid", "trajectory_kind")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachConfig:
    """What to attach to which data directory."""

    data: str
    """Data directory; the newest version of its steps counts."""
    file: str
    """JSON lines, JSON, CSV or Parquet, also compressed; a URL, - or a folder of reports."""
    name: str
    """Sidecar: lower-case letters, digits and _. rewards has columns of its own."""
    on: tuple[str, ...] = ()
    """COLUMN=FIELD: what joins steps and rows; empty = columns of the same name."""
    dry_run: bool = False
    """Match and count all, write nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachReport:
    """Counts of one file: rows = matched + duplicates + unmatched_rows + without_value."""

    name: str
    """The sidecar."""
    on: tuple[str, ...]
    """COLUMN=FIELD that joined, guessed ones included."""
    rows: int
    matched: int
    """Rows that are the first about their step or attempt."""
    duplicates: int
    """Rows that only repeat what an earlier one says."""
    unmatched_rows: int
    """Rows that name no step and no attempt of the table."""
    without_value: int
    """Rows in which every value is null; they attach nothing."""
    steps: int
    """Steps that rows are about, themselves or through their attempt."""
    trajectories: int
    unmatched_steps: int
    """Steps of the table that no row is about."""
    unmatched_trajectories: int
    """Attempts (main, sample) of the table that no row is about."""
    new: int
    """Matched rows that say what was not attached before."""
    columns: dict[str, str]
    """Columns of the sidecar that the file has a value for, with their types."""
    warnings_by_code: dict[str, int]
    """not_finite: values that became null. For rewards the codes of ingest --rewards."""
    secrets_by_rule: dict[str, int]
    """Secrets that were taken out, by rule."""
    sidecar_version: int | None
    """Newest version of the sidecar; null = there is none."""


def attach(config: AttachConfig) -> AttachReport:
    """Attach what a file says about steps or attempts, as a sidecar of a data directory.

    Of several rows about one step the latest commit's counts. What a sidecar says already is not
    added again.

    Raises:
        UsageError: the name is no sidecar's or one of claw's own, the directory names a version,
            or --on names what is no key.
        NotFoundError: there is no data directory or no file.
        DataError: no row names a step or an attempt, one names several, two contradict each other,
            a value does not fit its column (SchemaError), the file cannot be read, or rewards are
            for a directory that was curated.
        StoreError: the sidecar cannot be written.
    """
    sidecars.check_name(config.name)
    if config.name in sidecars.INTERNAL:
        raise UsageError(
            f"The sidecar {config.name} is one that claw itself writes.", "Choose another --name."
        )
    if any(column.name == config.name for column in (*schema.STEPS, *schema.DERIVED)):
        raise UsageError(
            f"{config.name} is a column of the step table, so that an expression would mean that.",
            "Choose another --name.",
        )
    on = plan.parse_on(config.on)
    place = location.existing(config.data)
    if place.version is not None:
        raise UsageError(
            f"{config.data} names a version, but a sidecar belongs to all of them.",
            f"Name {place.path}.",
        )
    attached_files.refuse_missing(config.file)
    if config.name == rewards.NAME:
        return _attach_rewards(config, place, on)
    return _Attaching(config, place, on).run()


def _attach_rewards(config: AttachConfig, place: Location, on: Mapping[str, str]) -> AttachReport:
    found = rewards.attach_rewards(
        place, config.file, on=on, dry_run=config.dry_run, must_match=True, command="attach"
    )
    attached = [pair.partition("=")[0] for pair in found.rewards_on]
    words = {c.name: kinds.word(c.type) for c in schema.SIDECARS[rewards.NAME]}
    return AttachReport(
        name=config.name,
        on=found.rewards_on,
        rows=found.rewards_rows,
        matched=found.rewards_matched,
        duplicates=found.rewards_duplicates,
        unmatched_rows=found.rewards_unmatched_rows,
        without_value=found.rewards_without_value,
        steps=found.steps_rewarded,
        trajectories=found.trajectories_rewarded,
        unmatched_steps=found.rewards_unmatched_steps,
        unmatched_trajectories=found.rewards_unmatched_trajectories,
        new=found.rewards_new,
        columns={name: words[name] for name in attached if name in rewards.SAID},
        warnings_by_code=found.rewards_warnings_by_code,
        secrets_by_rule={},
        sidecar_version=found.rewards_version,
    )


@dataclass(slots=True)
class _Attaching:
    """One file on its way into an undeclared sidecar."""

    config: AttachConfig
    place: Location
    on: Mapping[str, str]
    rows: Rows = field(init=False)
    plan: Plan = field(init=False)
    steps: pa.Table = field(init=False)
    # as the last attempt made them: the types are those that the sidecar has by then
    found: Matches = field(init=False)
    values: pa.Table = field(init=False)
    warnings: Counter[str] = field(default_factory=Counter)
    secrets: Counter[str] = field(default_factory=Counter)

    def run(self) -> AttachReport:
        name, rows = self.config.name, self._read()
        done = commit.add_new(
            self.place,
            name,
            self._make,
            info={"command": "attach", "file": self._label(), "on": list(self.plan.words())},
            dry_run=self.config.dry_run,
        )
        reached = match.reach(self.found, self.plan, self.steps)
        return AttachReport(
            name=name,
            on=self.plan.words(),
            rows=len(rows),
            matched=len(self.found.uids),
            duplicates=self.found.duplicates,
            unmatched_rows=self.found.unmatched,
            without_value=self.found.without_value,
            steps=reached.steps,
            trajectories=reached.trajectories,
            unmatched_steps=reached.unmatched_steps,
            unmatched_trajectories=reached.unmatched_trajectories,
            new=done.new,
            columns={f.name: kinds.word(f.type) for f in self.values.schema},
            warnings_by_code=dict(sorted(self.warnings.items())),
            secrets_by_rule=dict(sorted((+self.secrets).items())),
            sidecar_version=done.version,
        )

    def _read(self) -> Rows:
        self.rows = reports.read(self.config.file, any_reward=True, named_by=plan.named_by(self.on))
        self.plan = plan.plan_values(self.config.name, self.rows, self.on)
        names = list(dict.fromkeys((*_STEP_COLUMNS, *self.plan.columns)))
        self.steps = table.read(Location(self.place.path), columns=names)
        return self.rows

    def _make(self) -> pa.Table:
        """Make the rows of the sidecar, of the columns that it has by now."""
        name = self.config.name
        known = sidecars.columns(self.place, name)
        names = attached_values.names_of(self.rows, self.plan, known)
        typed = attached_values.typed(self.rows, names, known, name)
        self.values, self.warnings = typed.table, typed.warnings
        self.found = match.match(self.rows, self.values, self.plan, self.steps)
        match.refuse_nothing(self.found, self.rows, self.plan, self.steps, str(self.place.path))
        said = self._without_secrets(self.values.take(pa.array(self.found.rows)))
        keys = {
            key: self.found.uids
            if key == self.plan.uid
            else pa.nulls(len(self.found.uids), pa.string())
            for key in sidecars.KEYS
        }
        return pa.table({**keys, **dict(zip(said.column_names, said.columns, strict=True))})

    def _without_secrets(self, said: pa.Table) -> pa.Table:
        redactor = self._redactor()
        if redactor is None:
            return said
        said = redactor.columns(said)
        self.secrets = redactor.hits
        return said

    def _label(self) -> str:
        """Name the file for the commit info; a signed URL holds a secret."""
        redactor = self._redactor()
        return self.rows.label if redactor is None else redactor.text(self.rows.label)

    def _redactor(self) -> redact.Redactor | None:
        infos = table.history(self.place.steps)
        if not next((info["redacted"] for info in infos if "redacted" in info), True):
            return None
        is_kept = (self.place.path / location.REDACTION_KEY).exists() or not self.config.dry_run
        # a dry run leaves no key behind, and what it makes is not compared with anything of it
        return redact.Redactor(redact.key_of(str(self.place.path)) if is_kept else bytes(32))
