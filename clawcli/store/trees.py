"""Write and read token trees: nodes and paths in Parquet, the tokenizer beside them.

A tree artefact holds every distinct prefix once (nodes) and, per step, where its row ends and what
is trained of it (paths). prefix/ writes, export/ and `claw verify` read.

    nodes/part-00000.parquet    schema.NODES in depth-first pre-order
    paths/part-00000.parquet    schema.PATHS in the order of the step table
    tokenizer.json              the tokenizer whose ids these are
    manifest.json               counts, hashes of vocabulary and template, proof
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clawcli import schema
from clawcli.errors import StoreError, VerifyError
from clawcli.store import artefact, tokenizers
from clawcli.store.manifest import TreeManifest, decode
from clawcli.store.shards import TOKEN_OPTIONS
from clawcli.tree import Forest

KIND = "tree"
NODES_FILE = "nodes/part-00000.parquet"
PATHS_FILE = "paths/part-00000.parquet"
_TOKENS_PER_GROUP = 1 << 22
_NODES_PER_READ, _PATHS_PER_READ = 2048, 16_384
_TOKEN_COLUMN = [column.name for column in schema.NODES].index("token_ids")
_NODE_PLACES = pa.schema(
    [("node_id", pa.int32()), ("parent_id", pa.int32()), ("tokens", pa.int64())]
)
_TOKENS_IN_MEMORY = 1 << 28
"""1 GB of ids; of a larger tree they may be mapped from disk."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A token tree in memory: node k of the files is segment k of the forest."""

    path: Path
    manifest: TreeManifest
    forest: Forest
    paths: pa.Table
    """schema.PATHS, one row per step."""

    def end_nodes(self) -> np.ndarray:
        """int32 [paths]: the node at whose end each path's row ends."""
        return self.paths["end_node_id"].to_numpy()


def row_hash(row: np.ndarray) -> str:
    """Hash a row's tokens: blake2b-128 hex of its little-endian int32 bytes."""
    return hashlib.blake2b(row.astype("<i4").tobytes(), digest_size=16).hexdigest()


def write(
    directory: Path, forest: Forest, paths: pa.Table, tokenizer: tokenizers.Tokenizer
) -> None:
    """Write the files of a tree into an artefact's directory; the manifest is the caller's.

    Args:
        directory: the draft's directory.
        forest: one segment per node.
        paths: schema.PATHS.
        tokenizer: whose tokenizer.json is copied.
    """
    for name in (NODES_FILE, PATHS_FILE):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
    arrow = schema.arrow_schema(schema.NODES)
    with pq.ParquetWriter(directory / NODES_FILE, arrow, **TOKEN_OPTIONS) as writer:
        for group in _node_groups(forest):
            writer.write_table(group)
    options = {**TOKEN_OPTIONS, "use_byte_stream_split": ["rollout_logprobs.list.element"]}
    pq.write_table(paths, directory / PATHS_FILE, **options)
    tokenizer.to_file(directory / tokenizers.FILE)


def _node_groups(forest: Forest) -> Iterator[pa.Table]:
    """Cut the nodes into tables of a few megabytes: tokens may lie on disk, more than memory."""
    starts, depths = forest.segment_starts, forest.segment_depths()
    edges = np.append(starts, len(forest.token_ids))
    start = 0
    while start < len(starts):
        full = int(np.searchsorted(starts, starts[start] + _TOKENS_PER_GROUP))
        end = max(full, start + 1)
        offsets = edges[start : end + 1] - edges[start]
        values = forest.token_ids[edges[start] : edges[end]]
        yield pa.table(
            {
                "node_id": np.arange(start, end, dtype=np.int32),
                "parent_id": forest.segment_parents[start:end],
                "depth": depths[start:end],
                "token_ids": pa.ListArray.from_arrays(
                    pa.array(offsets.astype(np.int32)), pa.array(values)
                ),
            },
            schema=schema.arrow_schema(schema.NODES),
        )
        start = end


def read(path: Path, *, spill: Path | None = None) -> Tree:
    """Read a tree artefact whose files are those of its manifest.

    Args:
        path: the tree.
        spill: directory on whose disk the tokens of a large tree may lie while it is used, in a
            file without a name; null = they go into memory.

    Raises:
        NotFoundError: the directory is missing.
        DataError: it is no finished artefact, or of another kind.
        VerifyError: a file or the manifest was damaged, or its nodes are not in depth-first
            pre-order.
        StoreError: there is no room on disk for its tokens.
    """
    manifest = decode(artefact.verify_files(path, kind=KIND), TreeManifest, path)
    try:
        nodes, tokens = _read_nodes(path / NODES_FILE, spill)
        with pq.ParquetFile(path / PATHS_FILE) as file:
            if not file.schema_arrow.equals(schema.arrow_schema(schema.PATHS)):
                raise pa.ArrowInvalid(f"{PATHS_FILE} has other columns than paths have")
            batches = file.iter_batches(_PATHS_PER_READ, use_threads=False)
            paths = pa.Table.from_batches(batches, file.schema_arrow)
    except StoreError:
        raise  # it is an OSError too
    except (OSError, pa.ArrowException) as error:
        raise VerifyError(f"{path} cannot be read: {error}.", "Merge again.") from error
    sizes = nodes["tokens"].to_numpy()
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    forest = Forest(tokens, starts, nodes["parent_id"].to_numpy())
    place = np.arange(len(nodes))
    if not np.array_equal(nodes["node_id"].to_numpy(), place) or not np.all(
        forest.segment_parents < place
    ):
        raise VerifyError(f"{path}: nodes are not in depth-first pre-order.", "Merge again.")
    return Tree(path, manifest, forest, paths)


def _read_nodes(path: Path, spill: Path | None) -> tuple[pa.Table, np.ndarray]:
    """Read the nodes, some at a time.

    Returns:
        node_id, parent_id and the number of tokens of each; and all tokens: int32, in memory, or
        mapped from disk where they are many.
    """
    with pq.ParquetFile(path) as file:
        if not file.schema_arrow.equals(schema.arrow_schema(schema.NODES)):
            raise pa.ArrowInvalid(f"{path.name} has other columns than nodes have")
        meta = file.metadata
        groups = (meta.row_group(number) for number in range(meta.num_row_groups))
        total = sum(group.column(_TOKEN_COLUMN).num_values for group in groups)
        tokens = np.empty(0, np.int32)
        if spill is not None and total > _TOKENS_IN_MEMORY:
            tokens = _on_disk(spill, total)
        elif total:
            # numpy and arrow ask for huge pages, which a machine may have to make first
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
            tokens = np.frombuffer(mmap.mmap(-1, 4 * total, flags=flags), np.int32)
        parts, filled = [], 0
        # small pieces on one thread: their memory is used again, not asked of the system anew
        for batch in file.iter_batches(_NODES_PER_READ, use_threads=False):
            lists = batch.column("token_ids")
            values = lists.flatten().to_numpy()
            tokens[filled : filled + len(values)] = values
            filled += len(values)
            sizes = lists.value_lengths().cast(pa.int64())
            ids = [batch.column(name) for name in ("node_id", "parent_id")]
            parts.append(pa.record_batch([*ids, sizes], names=["node_id", "parent_id", "tokens"]))
    nodes = pa.Table.from_batches(parts, _NODE_PLACES)
    if any(column.null_count for column in nodes.columns):
        raise pa.ArrowInvalid(f"{path.name} has a node with a null")
    return nodes, tokens[:filled]


def _on_disk(directory: Path, count: int) -> np.ndarray:
    """Make room for int32 values on a disk, in a file that goes when they do."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # a file with holes would end the process, not raise, where the disk is full
            os.posix_fallocate(file.fileno(), 0, 4 * count)
            return np.memmap(file, np.int32, "r+", shape=(count,))
    except OSError as error:
        raise StoreError(
            f"{directory} has no room for {4 * count:,} bytes of tokens: {error.strerror}.",
            "Free space there, or export to another disk.",
        ) from error
