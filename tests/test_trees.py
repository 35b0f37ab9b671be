import errno
import hashlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clawcli import schema, tree
from clawcli.errors import DataError, StoreError, VerifyError
from clawcli.store import artefact, tokenizers, trees


def write(path, forest, paths=()):
    names = [column.name for column in schema.PATHS]
    rows = [{**dict.fromkeys(names), **path} for path in paths]
    table = pa.Table.from_pylist(rows, schema=schema.arrow_schema(schema.PATHS))
    with artefact.create(path, kind=trees.KIND, force=False, config={}, inputs=[]) as draft:
        trees.write(draft.path, forest, table, tokenizers.load("tiny"))
        draft.manifest |= {
            "tokenizer": "tiny",
            "vocab_hash": "",
            "vocab_size": 1024,
            "template_hash": "",
            "eos_token_id": 2,
            "counts": {"steps": len(paths), "logical_tokens": 0, "unique_tokens": 0},
            "note": "no reader needs it",
        }
    return path


FOREST = tree.Forest(np.int32([5, 6, 7, 8, 9]), np.int32([0, 2, 3, 4]), np.int32([-1, 0, 0, -1]))


def test_write_then_read_gives_forest_paths_and_manifest_back(tmp_path):
    paths = [
        {"step_uid": "a", "end_node_id": 1, "rollout_logprobs": [-0.5, None]},
        {"step_uid": "b", "end_node_id": 3},
    ]
    found = trees.read(write(tmp_path / "tree", FOREST, paths))
    for part in ("token_ids", "segment_starts", "segment_parents"):
        read, written = getattr(found.forest, part), getattr(FOREST, part)
        assert read.dtype == np.int32
        assert np.array_equal(read, written)
    assert found.paths["step_uid"].to_pylist() == ["a", "b"]
    assert found.paths["rollout_logprobs"].to_pylist() == [[-0.5, None], None]
    assert found.end_nodes().tolist() == [1, 3]
    assert found.manifest.counts.steps == 2


def test_nodes_file_names_parent_and_depth_of_every_node(tmp_path):
    nodes = pq.read_table(write(tmp_path / "tree", FOREST) / trees.NODES_FILE)
    assert nodes.to_pylist() == [
        {"node_id": 0, "parent_id": -1, "depth": 0, "token_ids": [5, 6]},
        {"node_id": 1, "parent_id": 0, "depth": 2, "token_ids": [7]},
        {"node_id": 2, "parent_id": 0, "depth": 2, "token_ids": [8]},
        {"node_id": 3, "parent_id": -1, "depth": 0, "token_ids": [9]},
    ]


def test_tree_directory_holds_its_tokenizer(tmp_path):
    path = write(tmp_path / "tree", FOREST)
    assert tokenizers.load(str(path)).vocab_hash == tokenizers.load("tiny").vocab_hash


def test_read_other_artefact_is_refused(tmp_path):
    with artefact.create(tmp_path / "run", kind="run", force=False, config={}, inputs=[]):
        pass
    with pytest.raises(DataError, match="holds run, not tree"):
        trees.read(tmp_path / "run")


def test_read_nodes_out_of_order_are_refused(tmp_path):
    forest = tree.Forest(np.int32([5, 6]), np.int32([0, 1]), np.int32([1, -1]))
    path = tmp_path / "tree"
    with pytest.raises(VerifyError, match="not in depth-first pre-order"):
        trees.read(write(path, forest))


def test_read_missing_nodes_file_is_a_verify_error(tmp_path):
    path = write(tmp_path / "tree", FOREST)
    (path / trees.NODES_FILE).unlink()
    with pytest.raises(VerifyError, match=r"nodes/part-00000\.parquet is missing"):
        trees.read(path)


def test_row_hash_is_of_little_endian_int32_whatever_the_integer_type():
    row = np.int32([1, 2, 3])
    stored = b"\x01\0\0\0\x02\0\0\0\x03\0\0\0"
    assert trees.row_hash(row) == hashlib.blake2b(stored, digest_size=16).hexdigest()
    assert trees.row_hash(row) == trees.row_hash(row.astype(np.int64))
    assert trees.row_hash(row) != trees.row_hash(np.int32([1, 2, 4]))
    assert trees.row_hash(row) != trees.row_hash(np.int32([1, 2]))


@pytest.mark.parametrize("tokens_per_group", [1, 2, 3, 100])
def test_nodes_in_many_groups_and_tokens_on_disk_are_the_same_tree(
    tmp_path, monkeypatch, tokens_per_group
):
    monkeypatch.setattr(trees, "_TOKENS_PER_GROUP", tokens_per_group)
    monkeypatch.setattr(trees, "_TOKENS_IN_MEMORY", 2)
    monkeypatch.setattr(trees, "_NODES_PER_READ", 3)
    path = write(tmp_path / "tree", FOREST)
    groups = pq.ParquetFile(path / trees.NODES_FILE).metadata.num_row_groups
    assert (groups > 1) == (tokens_per_group < 5)
    found = trees.read(path, spill=tmp_path)
    assert isinstance(found.forest.token_ids, np.memmap)
    for part in ("token_ids", "segment_starts", "segment_parents"):
        assert np.array_equal(getattr(found.forest, part), getattr(FOREST, part))
    assert [each.name for each in tmp_path.iterdir()] == ["tree"]
    assert not isinstance(trees.read(path).forest.token_ids, np.memmap)


def test_no_room_for_the_tokens_of_a_large_tree_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = write(tmp_path / "tree", FOREST)
    monkeypatch.setattr(trees, "_TOKENS_IN_MEMORY", 2)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match="no room for 20 bytes of tokens: No space left on device"):
        trees.read(path, spill=tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["tree"]
