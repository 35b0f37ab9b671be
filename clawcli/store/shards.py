"""Write and read shards: packed training rows in Parquet, a file per phase, plan in the manifest.

export/ writes, train/ reads; both meet here, and neither torch nor a tree is needed. Rows stand in
the order in which they are trained: row_id ascends over the files, so a reader's state is one
integer. Files are zstd 1 without dictionaries, token ids byte-stream split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clawcli import schema
from clawcli.errors import VerifyError
from clawcli.store import artefact
from clawcli.store.manifest import ShardsManifest, decode
from clawcli.tree import Forest

KIND = "shards"
TOKEN_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "use_byte_stream_split": ["token_ids.list.element"],
}
"""Parquet settings for files that are mostly token ids: a dictionary hides repeats from zstd."""
ROWS_PER_GROUP = 32
"""Small row groups keep a reader's memory at a few megabytes."""


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One packed training row: a forest of tokens and the steps that are trained on it."""

    row_id: int
    phase: int
    update: int
    forest: Forest
    steps: list[dict[str, Any]]
    """Fields of schema.SHARD_STEP as Python values."""


@dataclass(frozen=True, slots=True)
class Shards:
    """A shards artefact that is open for reading."""

    path: Path
    manifest: ShardsManifest

    @property
    def num_phases(self) -> int:
        """Number of phases of the plan."""
        return self.manifest.num_phases

    @property
    def num_updates(self) -> int:
        """Number of updates of the plan, over all phases."""
        return self.manifest.num_updates

    def rows(self) -> Iterator[PackedRow]:
        """Read all rows in the order of their row_id."""
        for phase in range(self.num_phases):
            yield from _read(self.path / phase_file(phase))

    def read_phase(self, phase: int) -> list[PackedRow]:
        """Read the rows of one phase in the order of their row_id."""
        if not 0 <= phase < self.num_phases:
            raise IndexError(f"phase {phase} of {self.num_phases}")
        return list(_read(self.path / phase_file(phase)))


def open_shards(path: Path) -> Shards:
    """Open a shards artefact whose files, plan and counts agree.

    Every file is hashed and the place of every row compared with the plan, because a reader that
    trusts a damaged plan trains less, or other rows, without a word.

    Raises:
        NotFoundError: the directory is missing.
        DataError: it is no finished artefact, or of another kind.
        VerifyError: a file or the manifest was damaged; the message names what differs.
    """
    manifest = decode(artefact.verify_files(path, kind=KIND), ShardsManifest, path)
    problems = list(manifest.contradictions()) or list(_misplaced(path, manifest))
    if problems:
        raise VerifyError(f"{path}: {'; '.join(problems)}.", "Export again.")
    return Shards(path, manifest)


def phase_file(phase: int) -> str:
    """Name of the file that holds the rows of one phase, relative to the artefact."""
    return f"rows/phase-{phase:05d}.parquet"


def write_phase(directory: Path, phase: int, rows: Iterable[PackedRow]) -> None:
    """Write the rows of one phase, a row group at a time.

    Args:
        directory: the artefact's directory.
        phase: the phase of all rows.
        rows: in the order of their row_id.
    """
    path = directory / phase_file(phase)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow = schema.arrow_schema(schema.SHARDS)
    with pq.ParquetWriter(path, arrow, **TOKEN_OPTIONS) as writer:
        group: list[PackedRow] = []
        for row in rows:
            group.append(row)
            if len(group) == ROWS_PER_GROUP:
                writer.write_table(_table(group, arrow))
                group = []
        if group:
            writer.write_table(_table(group, arrow))


def int_lists(arrays: Sequence[np.ndarray]) -> pa.ListArray:
    """Build an Arrow list<int32> array of numpy arrays without a Python object per number."""
    offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])])
    values = np.concatenate(arrays) if arrays else np.zeros(0)
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(values.astype(np.int32))
    )


def _table(rows: list[PackedRow], arrow: pa.Schema) -> pa.Table:
    columns = {
        "row_id": pa.array([row.row_id for row in rows], pa.int64()),
        "phase": pa.array([row.phase for row in rows], pa.int32()),
        "update": pa.array([row.update for row in rows], pa.int32()),
        "token_ids": int_lists([row.forest.token_ids for row in rows]),
        "segment_starts": int_lists([row.forest.segment_starts for row in rows]),
        "segment_parents": int_lists([row.forest.segment_parents for row in rows]),
        "steps": pa.array([row.steps for row in rows], arrow.field("steps").type),
    }
    return pa.table(columns, schema=arrow)


def _misplaced(path: Path, manifest: ShardsManifest) -> Iterator[str]:
    """Name the phases whose rows are not those of the plan; the tokens stay unread."""
    updates = np.repeat(np.arange(manifest.num_updates), manifest.plan.rows_per_update)
    phases = updates // manifest.updates_per_phase
    steps = 0
    for phase in range(manifest.num_phases):
        rows = np.flatnonzero(phases == phase)
        with _open(path / phase_file(phase)) as file:
            found = file.read(["row_id", "phase", "update", "steps.list.element.segment"])
        planned = {"row_id": rows, "phase": phases[rows], "update": updates[rows]}
        if any(found[name].to_pylist() != want.tolist() for name, want in planned.items()):
            yield f"the rows of {phase_file(phase)} are not those of the plan"
        steps += sum(len(row or ()) for row in found["steps"].to_pylist())
    if steps != manifest.steps:
        yield f"the files hold {steps} steps, the manifest says {manifest.steps}"


@contextmanager
def _open(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema.arrow_schema(schema.SHARDS)):
                raise VerifyError(f"{path} has other columns than shards have.", "Export again.")
            yield file
    except FileNotFoundError:
        raise VerifyError(f"{path} is missing.", "Export again.") from None
    except (OSError, pa.ArrowException) as error:
        raise VerifyError(f"{path} cannot be read: {error}.", "Export again.") from error


def _read(path: Path) -> Iterator[PackedRow]:
    with _open(path) as file:
        for batch in file.iter_batches(ROWS_PER_GROUP):
            columns = {name: batch.column(name) for name in batch.schema.names}
            if any(column.null_count for column in columns.values()):
                raise VerifyError(f"{path} has a row with a null.", "Export again.")
            steps = columns["steps"].to_pylist()
            for i in range(len(batch)):
                yield PackedRow(
                    row_id=columns["row_id"][i].as_py(),
                    phase=columns["phase"][i].as_py(),
                    update=columns["update"][i].as_py(),
                    forest=Forest(
                        _ints(columns["token_ids"][i]),
                        _ints(columns["segment_starts"][i]),
                        _ints(columns["segment_parents"][i]),
                    ),
                    steps=steps[i],
                )


def _ints(scalar: pa.Scalar) -> np.ndarray:
    # a copy, because Arrow's memory is read-only and torch warns of arrays that it cannot write to
    return scalar.values.to_numpy(zero_copy_only=False).copy()  # type: ignore[attr-defined]
