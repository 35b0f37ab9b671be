"""Rewrite data files of a table: rows that changed get their new content, small files become few.

Both are one commit that swaps old files for new ones, so that a reader sees the old rows or the new
ones, and a crash leaves one or the other. A file is rewritten a row group at a time. The caller
holds table.lock; where another writer swapped the same files first, in an object store, the commit
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.errors import DataError, NotFoundError, StoreError
from clawcli.store import arrow, commits, files, log, scan
from clawcli.store.files import AddedFile
from clawcli.store.log import ActiveFile
from clawcli.store.remote import Place

_KEY = "step_uid"
_TARGET_BYTES = 128 << 20


def replace(
    root: Place,
    rows: pa.Table,
    *,
    added: Sequence[AddedFile] = (),
    info: Mapping[str, Any],
    txn: tuple[str, int] | None = None,
) -> int:
    """Give rows of a table new content and add files, in one commit.

    A row is known by its step_uid. Only the files that hold changed rows are written again; a row
    keeps its place there, or moves to another partition where its partition columns changed. Rows
    that the table does not hold are added.

    Args:
        root: directory of the table.
        rows: all columns of the table, each step_uid once.
        added: files that were written with write_files and hold other rows than these.
        info: what made the commit.
        txn: as in commits.commit.

    Returns:
        The version that the commit made.

    Raises:
        ConflictError: another writer took the place of txn, or rewrote one of the files. Nothing
            was committed.
        DataError: a step_uid stands in rows twice.
        NotFoundError: there is no table.
        StoreError: the log is torn, or the disk is full.
    """
    if len(rows[_KEY].unique()) != rows.num_rows:
        raise DataError("Rows that are to be replaced hold a step twice.", "Give each row once.")
    table = log.open_table(root)
    partition_by = table.metadata().partition_columns
    old: list[ActiveFile] = []
    new: list[AddedFile] = []
    waiting = rows
    try:
        for file in log.active(table):
            hits = _hits(root, file, rows)
            if not len(hits):
                continue
            stays = pc.field(_KEY).isin(hits) & files.rows_of(file.partition_values)
            mine = waiting.filter(stays).drop_columns(partition_by)
            waiting = waiting.filter(~stays)
            pieces = _exchanged(_read(root, file, mine.schema), hits, mine)
            new.append(files.write_file(root, pieces, mine.schema, file.partition_values))
            old.append(file)
        new += files.write_files(root, waiting, partition_by)
        return commits.commit(
            root,
            [*added, *_not_empty(root, new)],
            rows.schema,
            info=info,
            txn=txn,
            partition_by=partition_by,
            removed=old,
        )
    except BaseException:
        discard(root, new)
        raise


def compact(
    root: Place,
    *,
    target_bytes: int = _TARGET_BYTES,
    info: Mapping[str, Any],
) -> int:
    """Join small files to few, in one commit. No row changes, nor does their order in a partition.

    The old files stay where they are, for older versions.

    Args:
        root: directory of the table.
        target_bytes: a file of at least half this size stays; joined ones are about as large.
        info: what made the commit.

    Returns:
        The version that the commit made; the present one where there is nothing to join.

    Raises:
        ConflictError: another writer rewrote one of the files. Nothing was committed.
        NotFoundError: there is no table.
        StoreError: the log is torn, or the disk is full.
    """
    table = log.open_table(root)
    schema, partition_by = scan.schema_of(table), table.metadata().partition_columns
    data = pa.schema([field for field in schema if field.name not in partition_by])
    old: list[ActiveFile] = []
    new: list[AddedFile] = []
    try:
        for group in _joinable(log.active(table), target_bytes):
            pieces = (piece for file in group for piece in _read(root, file, data))
            new.append(files.write_file(root, pieces, data, group[0].partition_values))
            old += group
        if not old:
            return table.version()
        return commits.commit(
            root,
            new,
            schema,
            info=info,
            partition_by=partition_by,
            removed=old,
            is_change=False,
        )
    except BaseException:
        discard(root, new)
        raise


def discard(root: Place, added: Iterable[AddedFile]) -> None:
    """Remove data files of a commit that did not come about; what a version refers to stays."""
    try:
        known = {file.path for file in log.active(log.open_table(root))}
    except NotFoundError:
        known = set()
    except StoreError:
        return  # what a damaged log refers to is not known
    files.remove(root, [file for file in added if file.path not in known])


def _read(root: Place, file: ActiveFile, schema: pa.Schema) -> Iterator[pa.Table]:
    return scan.read(root, [file], schema, schema.names)


def _hits(root: Place, file: ActiveFile, rows: pa.Table) -> pa.Array:
    """List the steps of a file that are among some rows."""
    among = pc.field(_KEY).isin(rows[_KEY].combine_chunks())
    pieces = [piece.filter(among) for piece in scan.read(root, [file], rows.schema, [_KEY])]
    return pa.concat_tables([rows.select([_KEY]).slice(0, 0), *pieces])[_KEY].combine_chunks()


def _exchanged(pieces: Iterable[pa.Table], hits: pa.Array, mine: pa.Table) -> Iterator[pa.Table]:
    """Put rows in the place of those with their step_uid; other hits have left the file."""
    keys = mine[_KEY].combine_chunks()
    left = pc.field(_KEY).isin(hits) & ~pc.field(_KEY).isin(keys)
    for piece in pieces:
        kept = piece.filter(~left)
        found = arrow.index_in(kept[_KEY], keys)
        coming = mine.take(found.drop_null())
        places = np.arange(len(found))
        places[found.is_valid().to_numpy(zero_copy_only=False)] = len(found) + np.arange(
            coming.num_rows
        )
        yield pa.concat_tables([kept, coming]).take(pa.array(places)) if coming.num_rows else kept


def _not_empty(root: Place, written: Sequence[AddedFile]) -> list[AddedFile]:
    """Leave out files all of whose rows went to another partition."""
    files.remove(root, [file for file in written if not file.rows])
    return [file for file in written if file.rows]


def _joinable(actives: Iterable[ActiveFile], target_bytes: int) -> Iterator[list[ActiveFile]]:
    """Group the small files of each partition, in their order, to about a size."""
    small: dict[tuple[str | None, ...], list[ActiveFile]] = {}
    for file in actives:
        if file.size_bytes < target_bytes // 2:
            small.setdefault(tuple(file.partition_values.values()), []).append(file)
    for group in small.values():
        joined: list[ActiveFile] = []
        for file in group:
            size = sum(one.size_bytes for one in joined)
            if joined and size + file.size_bytes > target_bytes:
                if len(joined) > 1:
                    yield joined
                joined = []
            joined.append(file)
        if len(joined) > 1:
            yield joined
