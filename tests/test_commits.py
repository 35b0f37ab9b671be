import os

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from table_data import INFO, PARTITIONS, commit, place, steps_like, uids

from clawcli import schema
from clawcli.errors import ConflictError, SchemaError, StoreError
from clawcli.store import artefact, commits, table


@pytest.fixture
def root(tmp_path):
    return tmp_path / "d" / "steps"


def test_commit_creates_then_adds_and_each_version_stays(root):
    assert commit(root, steps_like(0, 3)) == 0
    assert commit(root, steps_like(3, 5)) == 1
    assert uids(table.read(place(root))) == uids(steps_like(0, 5))
    assert uids(table.read(place(root, 0))) == uids(steps_like(0, 3))


def test_commit_syncs_files_before_the_log_and_the_log_before_it_returns(root, monkeypatch):
    synced = []

    def sync(path):
        synced.append((path, table.exists(root)))

    monkeypatch.setattr(artefact, "sync", sync)
    commit(root, steps_like(0, 1))
    (file,) = root.rglob("*.parquet")
    entry = root / "_delta_log" / f"{0:020d}.json"
    before = {path for path, committed in synced if not committed}
    after = {path for path, committed in synced if committed}
    assert {file, file.parent, file.parent.parent, root, root.parent} <= before
    assert {entry, entry.parent, root} <= after


def test_restore_syncs_the_log_before_it_returns(root, monkeypatch):
    commit(root, steps_like(0, 1))
    commit(root, steps_like(1, 2))
    synced = []
    monkeypatch.setattr(artefact, "sync", synced.append)
    assert table.restore(root, 0, info={"command": "restore"}) == 2
    entry = root / "_delta_log" / f"{2:020d}.json"
    assert {entry, entry.parent} <= set(synced)
    assert uids(table.read(place(root))) == uids(steps_like(0, 1))


def test_commit_without_files_records_what_was_read(root):
    assert table.commit(root, [], schema.steps_schema(), info=INFO, partition_by=PARTITIONS) == 0
    assert table.commit(root, [], schema.steps_schema(), info=INFO, partition_by=PARTITIONS) == 1
    assert table.read(place(root)).num_rows == 0
    assert [info["command"] for info in table.history(root)] == ["ingest", "ingest"]


def test_commit_place_in_a_sequence_is_taken_once(root):
    assert table.last_transaction(root, "run") is None
    commit(root, steps_like(0, 1), txn=("run", 3))
    assert table.last_transaction(root, "run") == 3
    assert table.last_transaction(root, "other") is None
    for number in (2, 3):
        with pytest.raises(ConflictError, match="Another run wrote"):
            commit(root, steps_like(1, 2), txn=("run", number))
    commit(root, steps_like(1, 2), txn=("other", 0))
    assert commit(root, steps_like(2, 3), txn=("run", 4)) == 2
    assert uids(table.read(place(root))) == uids(steps_like(0, 3))


def test_commit_of_other_columns_or_partitions_is_refused(root):
    commit(root, steps_like(0, 1))
    fewer = steps_like(1, 2).drop_columns(["reward"])
    with pytest.raises(SchemaError, match="reward is one of them"):
        table.append(root, fewer, info={}, partition_by=PARTITIONS)
    with pytest.raises(SchemaError, match="partitioned in another way"):
        table.append(root, steps_like(1, 2), info={})
    assert len(list(root.rglob("*.parquet"))) == 1


def test_commit_whose_acknowledgement_is_lost_is_not_made_twice(root, monkeypatch):
    commit(root, steps_like(0, 1), txn=("run", 0))
    real = DeltaTable.create_write_transaction

    def cut_off(*args, **kwargs):
        real(*args, **kwargs)
        raise CommitFailedError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", cut_off)
    assert commit(root, steps_like(1, 2), txn=("run", 1)) == 1
    assert uids(table.read(place(root))) == uids(steps_like(0, 2))


def test_commit_that_another_writer_outruns_is_tried_again(root, monkeypatch):
    commit(root, steps_like(0, 1))
    write = DeltaTable.create_write_transaction

    def outrun(self, *args, **kwargs):
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        commit(root, steps_like(1, 2))
        return write(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", outrun)
    assert commit(root, steps_like(2, 3)) == 2
    assert uids(table.read(place(root))) == uids(steps_like(0, 3))


def test_commit_info_keeps_its_values(root):
    info = {"sources": [{"path": "a", "bytes": 2**53 + 1, "frac": 0.1, "none": None}]}
    table.append(root, steps_like(0, 1), info=info, partition_by=PARTITIONS)
    assert table.history(root)[0]["sources"] == info["sources"]


def test_history_of_long_lists_is_read_from_a_version_on(root):
    for start in range(3):
        sources = [{"path": f"{start}-{k}"} for k in range(2_000)]
        table.append(root, steps_like(start, start + 1), info={"sources": sources})
    (last,) = table.history(root, since=2)
    assert last["sources"][-1] == {"path": "2-1999"}
    assert len(table.history(root)) == 3
    assert table.history(root.parent / "none") == []


def test_commit_many_leave_checkpoints_that_hold_everything(root, monkeypatch):
    monkeypatch.setattr(commits, "_CHECKPOINT_EVERY", 10)
    for k in range(11):
        table.append(root, steps_like(k, k + 1), info={"k": k}, partition_by=PARTITIONS)
    commit(root, steps_like(11, 12), txn=("run", 7))
    checkpoint = root / "_delta_log" / f"{9:020d}.checkpoint.parquet"
    assert checkpoint.exists()
    assert uids(table.read(place(root))) == uids(steps_like(0, 12))
    assert uids(table.read(place(root, 5))) == uids(steps_like(0, 6))
    assert [info.get("k") for info in table.history(root)] == [*range(11), None]
    assert table.last_transaction(root, "run") == 7
    os.truncate(checkpoint, 10)
    with pytest.raises(StoreError, match=r"checkpoint\.parquet is torn.*Remove"):
        table.read(place(root))
    checkpoint.unlink()
    with pytest.raises(StoreError, match=r"_last_checkpoint is torn.*Remove"):
        table.read(place(root))
    (root / "_delta_log" / "_last_checkpoint").unlink()
    assert uids(table.read(place(root))) == uids(steps_like(0, 12))


def test_torn_version_is_refused_and_the_one_before_is_read(root):
    commit(root, steps_like(0, 1))
    commit(root, steps_like(1, 2))
    (root / "_delta_log" / f"{1:020d}.json").write_bytes(b"")
    for ask in (table.open_table, table.history, table.check_log):
        with pytest.raises(StoreError, match=r"is torn.*go back to version 0"):
            ask(root)
    assert uids(table.read(place(root, 0))) == uids(steps_like(0, 1))


def test_append_that_is_refused_removes_its_files(root):
    commit(root, steps_like(0, 1))
    (root / "_delta_log" / f"{0:020d}.json").write_bytes(b"")
    with pytest.raises(StoreError, match="is torn"):
        table.append(root, steps_like(1, 2), info={}, partition_by=PARTITIONS)
    assert len(list(root.rglob("*.parquet"))) == 1


def test_discard_removes_only_what_no_version_refers_to(root):
    kept = table.write_files(root, steps_like(0, 1), PARTITIONS)
    table.commit(root, kept, schema.steps_schema(), info={}, partition_by=PARTITIONS)
    lost = table.write_files(root, steps_like(1, 2), PARTITIONS)
    table.discard(root, [*kept, *lost])
    assert [f.relative_to(root).as_posix() for f in root.rglob("*.parquet")] == [kept[0].path]


def test_discard_without_a_table_removes_all(root):
    lost = table.write_files(root, steps_like(1, 2), PARTITIONS)
    table.discard(root, lost)
    assert list(root.rglob("*.parquet")) == []
