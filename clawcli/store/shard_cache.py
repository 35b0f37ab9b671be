"""Read packed rows without decoding them twice: each shard file once, as mapped Arrow memory.

A compressed file has no random access; a row of it costs milliseconds. So a file is decoded at its
first use into an uncompressed one, which all processes map: pages are shared, a row is a view, and
what does not fit into memory is read again from disk. The name is the hash of the shard file, so
that a cached file is never another file's, and it takes its name only when it is whole.

CLAW_CACHE_DIR says where; the default is claw below XDG_CACHE_HOME or ~/.cache. What lies there may
be removed at any time.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clawcli.errors import StoreError, VerifyError
from clawcli.tree import Forest

_UNFINISHED = ".unfinished"
_ABANDONED_S = 3600


def directory() -> Path:
    """Where decoded shards lie."""
    if given := os.environ.get("CLAW_CACHE_DIR"):
        return Path(given) / "shards"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "claw" / "shards"


class StepColumns:
    """Steps of many packed rows as arrays, each made when it is first asked for."""

    def __init__(self, steps: pa.StructArray) -> None:
        """View steps.

        Args:
            steps: fields of schema.SHARD_STEP.
        """
        self.steps = steps
        self._made: dict[tuple[str, pa.DataType], np.ndarray] = {}

    def column(self, name: str, kind: pa.DataType, null: float) -> np.ndarray:
        """Make an array of a column, with a value in place of null."""
        key = name, kind
        if key not in self._made:
            self._made[key] = self.steps.field(name).cast(kind).fill_null(null).to_numpy()
        return self._made[key]

    @cached_property
    def logprobs(self) -> tuple[np.ndarray, np.ndarray]:
        """Log-probs of all steps, joined: float32, NaN for null; and where each step's begin."""
        lists = self.steps.field("rollout_logprobs")
        # a null list may stand over values, which are none of its own
        lengths = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        values = lists.flatten()
        if values.null_count:
            values = values.fill_null(pa.scalar(np.nan, values.type))
        return values.to_numpy(), np.append(0, np.cumsum(lengths))


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a packed row, column by column."""

    columns: StepColumns
    start: int
    """First of them."""
    end: int
    """One past the last."""
    has_weight: bool = True
    """False for a row that only fills up: its steps weigh nothing."""

    def __len__(self) -> int:
        return self.end - self.start

    def __reduce__(self) -> tuple[Any, ...]:
        # to another process go the steps of this row alone, not those of its whole group
        own = self.columns.steps.take(pa.array(range(self.start, self.end)))
        return _steps, (own, self.has_weight)

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers or truth values: float64 [S], NaN for null."""
        return self.columns.column(name, pa.float64(), np.nan)[self.start : self.end]

    def integers(self, name: str) -> np.ndarray:
        """A column of integers: int64 [S], -1 for null."""
        return self.columns.column(name, pa.int64(), -1)[self.start : self.end]

    def texts(self, name: str) -> list[Any]:
        """A column of texts, None for null."""
        return self.columns.steps.field(name)[self.start : self.end].to_pylist()

    @property
    def weights(self) -> np.ndarray:
        """float64 [S], weight in the loss."""
        return self.numbers("weight") if self.has_weight else np.zeros(len(self))

    def rollout_logprobs(self) -> tuple[np.ndarray, np.ndarray]:
        """Logged log-probs: float64, all steps joined, NaN for null; and int64 [S], how many.

        A step without any has none among the joined; has_logprobs tells null from an empty list.
        """
        values, edges = self.columns.logprobs
        mine = edges[self.start : self.end + 1]
        return values[mine[0] : mine[-1]].astype(np.float64), np.diff(mine)

    @property
    def has_logprobs(self) -> np.ndarray:
        """Bool [S]: log-probs were logged, be it an empty list of them."""
        lists = self.columns.steps.field("rollout_logprobs")[self.start : self.end]
        return lists.is_valid().to_numpy(zero_copy_only=False)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Fields of schema.SHARD_STEP as Python values."""
        steps = self.columns.steps[self.start : self.end].to_pylist()
        return steps if self.has_weight else [{**step, "weight": 0.0} for step in steps]


def _steps(own: pa.StructArray, has_weight: bool) -> Steps:
    return Steps(StepColumns(own), 0, len(own), has_weight)


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One packed training row: a forest of tokens and the steps that are trained on it."""

    row_id: int
    phase: int
    update: int
    forest: Forest
    steps: Steps

    def without_weight(self) -> PackedRow:
        """Let the row train nothing."""
        return replace(self, steps=replace(self.steps, has_weight=False))


class Group:
    """Rows of one row group, as arrays in mapped memory."""

    def __init__(self, first_row: int, batch: pa.RecordBatch) -> None:
        """View rows.

        Args:
            first_row: row_id of the first.
            batch: schema.SHARDS, no column null.
        """
        self.first_row, self.num_rows = first_row, batch.num_rows
        self._phases, self._updates = (batch.column(n).to_numpy() for n in ("phase", "update"))
        self.stages = batch.column("stage").to_numpy()
        """int32 [rows]."""
        names = ("token_ids", "segment_starts", "segment_parents")
        lists = [batch.column(name) for name in names]
        self._lists = [(each.values.to_numpy(), each.offsets.to_numpy()) for each in lists]
        steps = batch.column("steps")
        self.columns, self.step_edges = StepColumns(steps.values), steps.offsets.to_numpy()
        """The steps of all rows, and where those of each row begin: int32 [rows + 1]."""

    def row(self, place: int) -> PackedRow:
        """Read one row by its place in the group."""
        # copies, because mapped memory is read-only and torch warns of such arrays
        parts = [values[edges[place] : edges[place + 1]].copy() for values, edges in self._lists]
        start, end = self.step_edges[place : place + 2].tolist()
        return PackedRow(
            row_id=self.first_row + place,
            phase=int(self._phases[place]),
            update=int(self._updates[place]),
            forest=Forest(*parts),
            steps=Steps(self.columns, start, end),
        )


def open_part(path: Path, blake2b: str, first_row: int) -> list[Group]:
    """Map the rows of a shard file, decoded before if it was not yet.

    Args:
        path: the file, of schema.SHARDS; what it holds was compared with its hash.
        blake2b: its hash.
        first_row: row_id of its first row.

    Raises:
        VerifyError: the file cannot be read.
        StoreError: the cache cannot be written.
    """
    cached = directory() / f"{blake2b[:32]}.arrow"
    batches = _mapped(cached)
    if batches is None:
        _decode(path, cached)
        batches = _mapped(cached)
        if batches is None:
            raise StoreError(f"{cached} cannot be read.", "Set CLAW_CACHE_DIR to another place.")
    groups = []
    for batch in batches:
        groups.append(Group(first_row, batch))
        first_row += batch.num_rows
    return groups


def whole_group(file: pq.ParquetFile, number: int, path: Path) -> pa.RecordBatch:
    """Read one row group of a shard file in one piece.

    Raises:
        VerifyError: a row has a null.
    """
    rows = file.read_row_group(number)
    if any(column.null_count for column in rows.columns):
        raise VerifyError(f"{path} has a row with a null.", "Export again.")
    (batch,) = rows.combine_chunks().to_batches()
    return batch


def _mapped(path: Path) -> list[pa.RecordBatch] | None:
    """Map a cached file; None = there is none that is whole."""
    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            return [reader.get_batch(place) for place in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException):
        return None


def _decode(path: Path, cached: Path) -> None:
    temporary = cached.with_name(f"{cached.stem}-{uuid.uuid4().hex}{_UNFINISHED}")
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        _clear(cached.parent)
        try:
            with pq.ParquetFile(path) as file, temporary.open("wb") as sink:
                with pa.ipc.new_file(sink, file.schema_arrow) as writer:
                    for number in range(file.num_row_groups):
                        writer.write_batch(whole_group(file, number, path))
                sink.flush()
                os.fsync(sink.fileno())
            temporary.replace(cached)
        finally:
            temporary.unlink(missing_ok=True)
    except pa.ArrowException as error:
        raise VerifyError(f"{path} cannot be read: {error}.", "Export again.") from error
    except OSError as error:
        raise StoreError(
            f"Decoded shards cannot be written to {cached.parent}: {error.strerror or error}.",
            "Free space there, or set CLAW_CACHE_DIR to another place.",
        ) from error


def _clear(folder: Path) -> None:
    """Remove what processes that were killed left unfinished."""
    for path in folder.glob(f"*{_UNFINISHED}"):
        # another process may be at work on it, on another machine too, but none for hours; one
        # that has just finished has taken it away
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()
