"""The steps of a table version as curation sees them, read as far as columns are asked for.

Keys and numbers of all steps are held in memory; text is only ever streamed past. A step is known
by its place, its row in the order of the scan, which a version never changes. Rewards that a
sidecar holds count as if they had been logged, and every other sidecar is one column, a struct,
so that feedback.score is an expression like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import duckdb
import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.store import arrow, derived, log, query, scan, sidecars, table, uids
from clawcli.store.derived import OF_STEP, SIGNAL_INPUTS, SIGNAL_NAMES, Order
from clawcli.store.expressions import PLACE
from clawcli.store.location import SIDECARS, Location
from clawcli.store.location import parse as location_of
from clawcli.store.log import ActiveFile

_KEYS = (
    "step_uid",
    "parent_step_uid",
    "prefix_messages",
    "loss_weight",
    *SIGNAL_INPUTS,
)
_AS_UID = frozenset({"step_uid", "parent_step_uid", "trajectory_uid", "group_uid"})
_REPEATED = "repeated_action"


class Frame:
    """The steps of a table version. It reads through table.scan, and holds no text."""

    def __init__(self, location: Location) -> None:
        """Read the keys of all steps.

        Raises:
            NotFoundError: the table or the version is not there.
            StoreError: a step stands in the table twice, or a file is torn.
            DataError: rewards were attached to a curated directory, whose returns are frozen.
        """
        opened = table.open_table(location.steps, location.version)
        self.version = opened.version()
        self.location = Location(location.path, self.version)
        self.files = log.active(opened)
        """Data files in the order of the scan."""
        self.starts: list[int] = []
        """Place of the first row of each file."""
        self.stored = table.schema_of(self.location)
        self.keys = self._read_keys()
        self.num_rows = self.keys.num_rows
        self.is_frozen = any(name in self.stored.names for name in schema.FROZEN_NAMES)
        self.sidecars = _sidecars(self.location)
        self._rewards = self._read_rewards()
        self._frozen: Mapping[str, pa.Array | pa.ChunkedArray] = {}

    # -- keys ------------------------------------------------------------------------------------

    def _read_keys(self) -> pa.Table:
        parts: dict[str, list[pa.Array]] = {name: [] for name in _KEYS}
        start = 0
        for file in self.files:
            self.starts.append(start)
            for piece in self._scan(_KEYS, file):
                for name in _KEYS:
                    parts[name].append(_narrow(name, piece[name].combine_chunks()))
                start += piece.num_rows
        # one after the other, so that only one of them is in memory twice
        keys = pa.table({name: _joined(parts.pop(name), self.stored.field(name)) for name in _KEYS})
        halves = uids.native(keys["step_uid"].chunk(0))
        first = np.sort(halves[:, 0])
        if (first[1:] == first[:-1]).any():  # else no two are equal
            repeated = keys.num_rows - len(keys["step_uid"].unique())
            if repeated:
                raise query.twice(self.location, repeated)
        return keys

    def _scan(self, names: Sequence[str], file: ActiveFile | None = None) -> Iterator[pa.Table]:
        files = self.files if file is None else [file]
        return scan.read(self.location.steps, files, self.stored, list(names))

    @cached_property
    def parents(self) -> np.ndarray:
        """Place of the step whose messages each state goes on from, int64 [N].

        -1 = none is needed: the row holds its whole state; -2 = the table lacks it.
        """
        found = arrow.index_in(self.keys["parent_step_uid"], self.keys["step_uid"])
        places = found.fill_null(-2).to_numpy().astype(np.int64)
        needed = self.keys["parent_step_uid"].is_valid().to_numpy()
        needed &= self.keys["prefix_messages"].fill_null(0).to_numpy() > 0
        places[~needed] = -1
        return places

    @cached_property
    def order(self) -> Order:
        """The steps of each trajectory, one after the other."""
        return derived.order(self.keys)

    @cached_property
    def groups(self) -> np.ndarray:
        """Number of each step's group, int32 [N]."""
        return uids.codes(self.keys["group_uid"].combine_chunks())[0]

    def _stored(self, names: Sequence[str]) -> pa.Table:
        wanted = pa.schema([self.stored.field(name) for name in names])
        return pa.concat_tables([wanted.empty_table(), *self._scan(names)])

    # -- rewards and signal ----------------------------------------------------------------------

    def _read_rewards(self) -> pa.Table | None:
        """Lay attached rewards over the logged ones; null = there are none."""
        rewards = query.attached_rewards(self.location, self.stored.names)
        if rewards is None:
            return None
        base = self._stored(query.REWARD_INPUTS)
        found = query.with_rewards(base, rewards)
        return found.select(list(query.REWARD_COLUMNS))

    @property
    def rewards(self) -> pa.Table | None:
        """query.REWARD_COLUMNS by place, where they are not those that are stored."""
        return self._rewards

    def set_rewards(
        self, rewards: pa.Table, frozen: Mapping[str, pa.Array | pa.ChunkedArray] | None = None
    ) -> None:
        """Let other rewards count from here on.

        Args:
            rewards: some or all of query.REWARD_COLUMNS, by place.
            frozen: FROZEN_NAMES that follow from them, by place; null = they are computed over the
                steps of this table.
        """
        before = self._stored(query.REWARD_COLUMNS) if self._rewards is None else self._rewards
        for name in rewards.column_names:
            field = before.schema.field(name)
            place = before.schema.get_field_index(name)
            before = before.set_column(place, field, rewards[name].cast(field.type))
        self._rewards, self._frozen, self.is_frozen = before, frozen or {}, False
        self.__dict__.pop("signal", None)

    @property
    def signal_inputs(self) -> pa.Table:
        """derived.SIGNAL_INPUTS of all steps, rewards as they count."""
        if self._rewards is None:
            return self.keys
        place = self.keys.schema.get_field_index("reward")
        return self.keys.set_column(place, "reward", self._rewards["reward"])

    @cached_property
    def signal(self) -> dict[str, pa.Array]:
        """SIGNAL_NAMES by place; what a curation froze is read, never computed from survivors."""
        found = derived.signal(self.signal_inputs, self.order)
        if self.is_frozen:
            names = [name for name in schema.FROZEN_NAMES if name in self.stored.names]
            kept = self._stored(names)
            # a statistic that an older claw did not freeze is not known
            found |= {
                name: kept[name].combine_chunks()
                if name in names
                else pa.nulls(self.num_rows, found[name].type)
                for name in schema.FROZEN_NAMES
            }
        return found | dict(self._frozen)

    @cached_property
    def actions(self) -> np.ndarray:
        """A number that equal actions (text and tool calls) share, uint64 [N]."""
        found = [
            self._computed(piece, [derived.ACTION])[0].to_numpy()
            for _, piece in self._pieces(derived.ACTION.inputs)
        ]
        return np.concatenate([np.zeros(0, np.uint64), *found]).astype(np.uint64)

    # -- columns ---------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns: schema.STEPS, schema.DERIVED, and a struct for each sidecar."""
        columns = schema.arrow_schema([*schema.STEPS, *schema.DERIVED])
        for name in self.sidecars:
            if name not in columns.names:
                columns = columns.append(pa.field(name, pa.struct(self._values_of(name))))
        return columns

    def reader(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Read columns of schema and PLACE, once, in the order of the table."""
        wanted = pa.schema([*(self.schema.field(name) for name in names), (PLACE, pa.int64())])
        return pa.RecordBatchReader.from_batches(wanted, self._batches(wanted))

    def column(self, name: str) -> pa.ChunkedArray:
        """Read one column of schema whole."""
        return self.reader([name]).read_all()[name]

    def _batches(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        names = [name for name in wanted.names if name != PLACE]
        computed = {name: OF_STEP[name] for name in names if name in OF_STEP}
        asked = [*names, *(name for column in computed.values() for name in column.inputs)]
        for start, piece in self._pieces(asked):
            end = start + piece.num_rows
            beside = dict(
                zip(computed, self._computed(piece, list(computed.values())), strict=True)
            )
            columns = [
                pa.array(np.arange(start, end))
                if name == PLACE
                else beside[name]
                if name in beside
                else piece[name]
                for name in wanted.names
            ]
            columns = [
                column.cast(field.type) for column, field in zip(columns, wanted, strict=True)
            ]
            yield from pa.table(columns, schema=wanted).combine_chunks().to_batches()

    def _pieces(self, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Stream columns that are stored or the same for all pieces, with the place of the first."""
        asked = list(dict.fromkeys(names))
        whole = {name: found for name in asked if (found := self._whole(name)) is not None}
        stored = [n for n in asked if n not in whole and n not in OF_STEP]
        start = 0
        for piece in self._scan(stored or ["step_index"]):
            length = piece.num_rows
            columns = {
                name: whole[name].slice(start, length) if name in whole else piece[name]
                for name in asked
                if name not in OF_STEP
            }
            yield start, pa.table(columns) if columns else piece
            start += length

    def _whole(self, name: str) -> pa.Array | pa.ChunkedArray | None:
        """Return a column that is at hand for all steps; None = it is read piece by piece."""
        if name in SIGNAL_NAMES:
            return self.signal[name]
        if name == _REPEATED:
            return derived.repeated(self.actions, self.order)
        if name == "is_last":
            stored = self._stored([name])[name]
            return arrow.coalesce(stored, arrow.equal(self.signal["steps_to_end"], 0))
        if self._rewards is not None and name in self._rewards.column_names:
            return self._rewards[name]
        if name in self.sidecars and name not in self.stored.names:
            return self._beside(name)
        return None

    def _computed(self, piece: pa.Table, wanted: Sequence[derived.OfStep]) -> list[pa.ChunkedArray]:
        return derived.of_step(self._connection, piece, wanted) if wanted else []

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return duckdb.connect(config={"temp_directory": "", "threads": "1"})

    # -- sidecars --------------------------------------------------------------------------------

    def _beside(self, name: str) -> pa.StructArray:
        """Return what a sidecar says of each step: of the step itself, else of its trajectory."""
        rows = sidecars.read(self.sidecars[name], name)
        fields = self._values_of(name)
        values = rows.select([field.name for field in fields])
        found = pa.nulls(self.num_rows, pa.int32())
        for key in sidecars.KEYS:
            if key in rows.column_names:
                told = uids.binary(rows[key])
                places = arrow.index_in(self.keys[key], told)
                found = arrow.coalesce(found, places)
        columns = [column.combine_chunks() for column in values.take(found).columns]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=found.is_null())

    def _values_of(self, name: str) -> list[pa.Field]:
        stored = table.schema_of(self.sidecars[name], f"{SIDECARS}/{name}")
        return [f for f in stored if f.name not in (*sidecars.KEYS, sidecars.VERSION)]


def _narrow(name: str, values: pa.Array) -> pa.Array:
    """Hold uids as bytes, and text that repeats as codes."""
    if name in _AS_UID:
        return uids.binary(values)
    return values.dictionary_encode() if pa.types.is_string(values.type) else values


def _joined(parts: list[pa.Array], field: pa.Field) -> pa.ChunkedArray:
    if not parts:
        parts = [_narrow(field.name, pa.array([], field.type))]
    joined = pa.chunked_array(parts).unify_dictionaries()
    parts.clear()
    return pa.chunked_array([joined.combine_chunks()])


def _sidecars(location: Location) -> dict[str, Location]:
    """Find the sidecars that a directory has, and those of what it was curated from.

    Returns:
        Name -> the directory that has it; of the same name, the nearest.
    """
    found: dict[str, Location] = {}
    waiting, seen = [location], set()
    while waiting:
        place = waiting.pop(0)
        if place.path in seen or not table.exists(place.steps):
            continue  # an input that is gone has none
        seen.add(place.path)
        for name in sidecars.versions(place):
            if name not in sidecars.INTERNAL:
                found.setdefault(name, place)
        for info in table.history(place.steps):
            for origin in info.get("inputs", ()):
                if isinstance(origin, dict) and origin.get("kind") == "data":
                    waiting.append(location_of(origin["path"]))
    return found
