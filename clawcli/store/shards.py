"""Write and read shards: packed training rows in Parquet, the plan in the manifest.

export/ writes, train/ reads; both meet here, and neither torch nor a tree is needed. The plan says
which rows each update reads, on each rank, so a reader's state is one integer: the number of the
next update. Rows are decoded once, into a cache from which any of them is read without a copy
(shard_cache.py). Files are zstd 1 without dictionaries, token ids byte-stream split.

    rows/part-00000.parquet     schema.SHARDS, rows in the order of their row_id
    tokenizer.json              the tokenizer whose ids these are
    manifest.json               counts, and the plan: updates of phases, with the rows of each rank
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clawcli import ranks, schema
from clawcli.errors import VerifyError
from clawcli.store import artefact
from clawcli.store.manifest import ShardsManifest, decode
from clawcli.store.shard_cache import Group, PackedRow, open_part, whole_group

KIND = "shards"
TOKEN_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": False,
    "use_byte_stream_split": ["token_ids.list.element"],
}
"""Parquet settings for files that are mostly token ids: a dictionary hides repeats from zstd."""
_OPTIONS: dict[str, Any] = TOKEN_OPTIONS | {
    "use_byte_stream_split": [
        *TOKEN_OPTIONS["use_byte_stream_split"],
        "steps.list.element.rollout_logprobs.list.element",
    ]
}
_TOKENS_PER_PART = 1 << 24
"""64 MB of ids: large enough for few files, small enough to decode while others are trained."""


def part_file(part: int) -> str:
    """Name of a file of rows, relative to the artefact."""
    return f"rows/part-{part:05d}.parquet"


def parts(tokens: Sequence[int]) -> list[int]:
    """Number the file that each row group goes into, given how many tokens each has."""
    found: list[int] = []
    part, held = 0, 0
    for count in tokens:
        if held and held + count > _TOKENS_PER_PART:
            part, held = part + 1, 0
        held += count
        found.append(part)
    return found


class Writer:
    """Writes the rows of shards, a row group at a time; a context manager."""

    def __init__(self, directory: Path) -> None:
        """Begin to write into an artefact's directory."""
        self._directory = directory
        self._file: pq.ParquetWriter | None = None
        self._part = -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, rows: pa.Table, part: int) -> None:
        """Write rows of schema.SHARDS, in the order of their row_id, as one row group of a file."""
        if self._file is None or part != self._part:
            if self._file is not None:
                self._file.close()
            path = self._directory / part_file(part)
            path.parent.mkdir(exist_ok=True)
            self._file = pq.ParquetWriter(path, rows.schema, **_OPTIONS)
            self._part = part
        self._file.write_table(rows, row_group_size=rows.num_rows)


@dataclass(frozen=True, slots=True)
class Update:
    """What one rank reads for one optimiser step."""

    number: int
    """From 0, over all phases."""
    phase: int
    rows: list[PackedRow]


@dataclass(frozen=True, slots=True)
class Shards:
    """A shards artefact that is open for reading."""

    path: Path
    manifest: ShardsManifest
    costs: np.ndarray
    """int64 [rows], by row_id."""
    stages: np.ndarray
    """int32 [rows], by row_id."""
    first_rows: np.ndarray
    """int64 [parts], row_id of the first row of each file."""
    _groups: dict[int, list[Group]]
    """Row groups of the parts that were read so far."""

    @property
    def num_phases(self) -> int:
        """Number of phases of the plan."""
        return self.manifest.num_phases

    @property
    def num_updates(self) -> int:
        """Number of updates of the plan, over all phases."""
        return self.manifest.num_updates

    def updates(self, rank: int = 0, num_ranks: int = 1, start: int = 0) -> Iterator[Update]:
        """Read what one of some ranks trains, from an update on.

        All ranks together read the same rows for an update, however many there are, and each has
        as many. A row that fills up has steps of weight 0.

        Args:
            rank: from 0.
            num_ranks: processes that read together; what the plan says of another number is split
                anew, always alike.
            start: number of the first update.
        """
        if not 0 <= rank < num_ranks or not 0 <= start <= self.num_updates:
            raise IndexError(f"rank {rank} of {num_ranks}, update {start} of {self.num_updates}")
        for number in range(start, self.num_updates):
            yield self.update(number, rank, num_ranks)

    def update(self, number: int, rank: int = 0, num_ranks: int = 1) -> Update:
        """Read what one of some ranks trains in one update."""
        planned = self.manifest.plan.updates[number]
        of_ranks = planned.rows
        if num_ranks != len(of_ranks):
            ids = np.array(planned.row_ids)
            of_ranks = [ids[m].tolist() for m in ranks.split(self.costs[ids], num_ranks)]
        seen = {row for mine in of_ranks[:rank] for row in mine}
        rows = []
        for row_id in of_ranks[rank]:
            row = replace(self.row(row_id), update=number, phase=planned.phase)
            rows.append(row.without_weight() if row_id in seen else row)
            seen.add(row_id)
        return Update(number, planned.phase, rows)

    def row(self, row_id: int) -> PackedRow:
        """Read one row; phase and update are those that read it first."""
        part = int(np.searchsorted(self.first_rows, row_id, side="right")) - 1
        for group in self._part(part):
            if row_id < group.first_row + group.num_rows:
                return group.row(row_id - group.first_row)
        raise IndexError(f"row {row_id} of {self.manifest.rows}")

    def rows(self) -> Iterator[PackedRow]:
        """Read all rows in the order of their row_id."""
        for part in range(len(self.first_rows)):
            for group in self._part(part):
                yield from map(group.row, range(group.num_rows))

    def _part(self, part: int) -> list[Group]:
        if part not in self._groups:
            name = part_file(part)
            (entry,) = (file for file in self.manifest.files if file.path == name)
            first = int(self.first_rows[part])
            self._groups[part] = open_part(self.path / name, entry.blake2b, first)
        return self._groups[part]


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
    problems = list(manifest.contradictions())
    found = pa.table({})
    first_rows = np.zeros(0, np.int64)
    if not problems:
        found, first_rows = _places(path, manifest)
        problems = list(_misplaced(found, manifest))
    if problems:
        raise VerifyError(f"{path}: {'; '.join(problems)}.", "Export again.")
    costs, stages = found["cost"].to_numpy(), found["stage"].to_numpy()
    return Shards(path, manifest, costs, stages, first_rows, {})


def read_groups(path: Path, manifest: ShardsManifest) -> Iterator[Group]:
    """Read all rows from their files, a row group at a time and past the cache.

    Raises:
        VerifyError: a file cannot be read, or a row of it has a null.
    """
    first_row = 0
    for part in range(_num_parts(manifest)):
        with _open(path / part_file(part)) as file:
            for number in range(file.num_row_groups):
                group = Group(first_row, whole_group(file, number, path / part_file(part)))
                first_row += group.num_rows
                yield group


def _num_parts(manifest: ShardsManifest) -> int:
    return sum(file.path.startswith("rows/") for file in manifest.files)


_PLACE = ("row_id", "stage", "phase", "update", "cost")


def _places(path: Path, manifest: ShardsManifest) -> tuple[pa.Table, np.ndarray]:
    """Read where the rows stand, and how many steps each has; the tokens stay unread."""
    found, first_rows, count = [], [], 0
    for part in range(_num_parts(manifest)):
        with _open(path / part_file(part)) as file:
            rows = file.read([*_PLACE, "steps.list.element.segment"])
        if any(rows[name].null_count for name in _PLACE):
            raise VerifyError(f"{path / part_file(part)} has a row with a null.", "Export again.")
        steps = pa.chunked_array([c.value_lengths() for c in rows["steps"].chunks], pa.int32())
        found.append(rows.select(_PLACE).append_column("steps", steps))
        first_rows.append(count)
        count += rows.num_rows
    if not found:
        raise VerifyError(f"{path} holds no rows.", "Export again.")
    return pa.concat_tables(found), np.array(first_rows, np.int64)


def _misplaced(found: pa.Table, manifest: ShardsManifest) -> Iterator[str]:
    """Name what the files hold in another place than the plan says."""
    if found.num_rows != manifest.rows:
        yield f"the files hold {found.num_rows} rows, the manifest says {manifest.rows}"
        return
    stages, phases, updates = (np.full(manifest.rows, -1) for _ in range(3))
    for number, update in enumerate(manifest.plan.updates):
        if not update.epoch:
            rows = update.row_ids
            stages[rows], phases[rows], updates[rows] = update.stage, update.phase, number
    planned = {
        "row_id": np.arange(manifest.rows),
        "stage": stages,
        "phase": phases,
        "update": updates,
    }
    for name, want in planned.items():
        if (found[name].to_numpy() != want).any():
            yield f"the rows of the files are not those of the plan: {name} differs"
    steps = int(found["steps"].fill_null(0).to_numpy().sum())
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
