import json
import os
import pickle
import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from table_data import PARTITIONS, steps_like

from clawcli import schema
from clawcli.errors import ConflictError, DataError, NotFoundError, SchemaError, StoreError
from clawcli.store import artefact, location, log, scan, table

INFO = {"command": "ingest"}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "d" / "steps"


def commit(root, rows, **more):
    added = table.write_files(root, rows, PARTITIONS)
    return table.commit(root, added, rows.schema, info=INFO, partition_by=PARTITIONS, **more)


def place(root, version=None):
    return location.Location(root.parent, version)


def uids(rows):
    return rows["step_uid"].to_pylist()


def names(root, version=None):
    return {file.name for file in log.active(table.open_table(root, version))}


def entries(root, version):
    text = (root / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


# -- files ---------------------------------------------------------------------------------------


def test_write_files_makes_one_file_a_partition_and_no_version(root):
    rows = pa.concat_tables(
        [steps_like(0, 3), steps_like(3, 5, log_date="2026-01-02"), steps_like(5, 6)]
    )
    files = pickle.loads(pickle.dumps(table.write_files(root, rows, PARTITIONS)))
    assert [(f.partition_values["log_date"], f.rows) for f in files] == [
        ("2026-01-01", 4),
        ("2026-01-02", 2),
    ]
    assert all((root / f.path).stat().st_size == f.size_bytes for f in files)
    assert not table.exists(root)


def test_write_files_of_no_rows_writes_none(root):
    assert table.write_files(root, steps_like(0, 0), PARTITIONS) == []


@pytest.mark.parametrize("value", ["../x", "a/b", "", ".", "ü", "x" * 300, "a%20b", "=", "\0"])
def test_write_files_partition_value_that_is_no_name_stays_what_it_is(root, value):
    commit(root, steps_like(0, 2, log_format=value, log_date=None))
    read = table.read(place(root))
    # in Delta an empty partition value is null
    assert read["log_format"].to_pylist() == [value or None] * 2
    assert read["log_date"].to_pylist() == [None, None]
    (name,) = names(root)
    assert re.fullmatch(r"log_format=[A-Za-z0-9_-]+/log_date=\w+/part-[0-9a-f]{32}\.parquet", name)


def test_write_files_stats_hold_numbers_and_keys_and_no_text(root):
    rows = steps_like(0, 40, reward=None)
    rows = rows.set_column(
        rows.schema.get_field_index("reward"), "reward", pa.array([float("nan"), 1.5] * 20)
    ).set_column(
        rows.schema.get_field_index("trajectory_reward"),
        "trajectory_reward",
        pa.array([float("inf"), 0.0] * 20),
    )
    (file,) = table.write_files(root, rows, PARTITIONS)
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 40
    assert stats["minValues"]["step_uid"] == min(uids(rows))
    assert stats["maxValues"]["step_index"] == 9
    assert stats["maxValues"]["started_at"] == "2026-01-01T00:00:39.000000Z"
    assert (stats["minValues"]["reward"], stats["maxValues"]["reward"]) == (1.5, 1.5)
    assert "trajectory_reward" not in stats["maxValues"]
    assert stats["nullCount"]["policy_version"] == 40
    assert not set(stats["minValues"]) - set(schema.steps_schema().names)
    assert "secret" not in file.stats


def test_write_files_compresses_and_keeps_no_text_in_footers(root):
    (file,) = table.write_files(root, steps_like(0, 5_000), PARTITIONS)
    footer = pq.read_metadata(root / file.path)
    group = footer.row_group(0)
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [4096, 904]
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["response"].statistics is None
    assert "PLAIN_DICTIONARY" not in columns["step_uid"].encodings
    assert "RLE_DICTIONARY" not in columns["step_uid"].encodings
    assert "DELTA_BINARY_PACKED" in columns["started_at"].encodings


def test_write_files_large_rows_give_small_row_groups(root):
    (file,) = table.write_files(root, steps_like(0, 24, response="x" * (4 << 20)), PARTITIONS)
    footer = pq.read_metadata(root / file.path)
    assert {footer.row_group(i).num_rows for i in range(footer.num_row_groups)} <= {7, 8, 2, 3}
    assert uids(table.read(place_of(root, file))) == uids(steps_like(0, 24))


def place_of(root, file):
    table.commit(root, [file], schema.steps_schema(), info={}, partition_by=PARTITIONS)
    return place(root)


def test_write_files_that_fail_leave_nothing(root, monkeypatch):
    rows = pa.concat_tables([steps_like(0, 1), steps_like(1, 2, log_date="2026-01-02")])
    synced = []

    def full(path):
        synced.append(path)
        if len([p for p in synced if p.suffix == ".parquet"]) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(artefact, "sync", full)
    with pytest.raises(StoreError, match="No space is left"):
        table.write_files(root, rows, PARTITIONS)
    assert list(root.rglob("*.parquet")) == []


# -- commits -------------------------------------------------------------------------------------


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
    monkeypatch.setattr(log, "_CHECKPOINT_EVERY", 10)
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


# -- reading -------------------------------------------------------------------------------------


@pytest.fixture
def spread(root):
    """100 rows a day on three days, a commit each, in row groups of 4,096 rows at most."""
    for day in range(3):
        commit(root, steps_like(100 * day, 100 * day + 100, log_date=f"2026-01-0{day + 1}"))
    return root


FIELD = pc.field
FILTERS = [
    (FIELD("step_uid").isin([*uids(steps_like(5, 7)), "none"]), 2),
    (FIELD("step_uid").isin(pa.array([], pa.string())), 0),
    (FIELD("source_uid") == f"{1:032x}", 100),
    ((FIELD("log_date") == "2026-01-02") & (FIELD("step_index") == 3), 10),
    (FIELD("log_date").isin(["2026-01-01", "2026-01-03"]), 200),
    (FIELD("parent_step_uid").is_null(), 300),
    (FIELD("parent_step_uid").is_valid(), 0),
    (FIELD("started_at") >= pa.scalar(steps_like(250, 251)["started_at"][0].as_py()), 50),
    ((FIELD("reward") > 29.85) | (FIELD("response") == "said 0"), 2),
    (~(FIELD("step_index") < 9), 30),
]


@pytest.mark.parametrize(("where", "count"), FILTERS, ids=[str(w)[:40] for w, _ in FILTERS])
def test_read_where_gives_the_rows_that_a_filter_of_all_gives(spread, where, count):
    read = table.read(place(spread), where=where)
    assert read.num_rows == count
    assert read.equals(table.read(place(spread)).filter(where).combine_chunks()) or count == 0
    narrow = table.read(place(spread), columns=["response", "log_date"], where=where)
    assert narrow.to_pylist() == read.select(["response", "log_date"]).to_pylist()


def test_read_where_opens_only_files_that_can_hold_wanted_rows(spread, monkeypatch):
    opened = []
    real = scan._opened
    monkeypatch.setattr(scan, "_opened", lambda *args: opened.append(args[1]) or real(*args))
    table.read(place(spread), where=pc.field("source_uid") == f"{1:032x}")
    assert [file.partition_values["log_date"] for file in opened] == ["2026-01-02"]
    table.read(place(spread), where=pc.field("log_date") == "2026-01-03")
    assert [file.partition_values["log_date"] for file in opened[1:]] == ["2026-01-03"]


def test_read_where_skips_row_groups_and_reads_other_columns_of_hits_alone(root, monkeypatch):
    commit(root, steps_like(0, 3 * 4096))
    read = []
    real = scan._group

    def group(opened, number, file, wanted):
        read.append((number, wanted.names))
        return real(opened, number, file, wanted)

    monkeypatch.setattr(scan, "_group", group)
    wanted = uids(steps_like(5000, 5001))
    table.read(place(root), columns=["response"], where=pc.field("step_uid").isin(wanted))
    assert [names for _, names in read].count(["response"]) == 1
    read.clear()
    at = steps_like(9000, 9001)["started_at"][0]
    table.read(place(root), columns=["response"], where=pc.field("started_at") == at)
    assert read == [(2, ["started_at"]), (2, ["response"])]


def test_read_where_over_unknown_columns_is_refused(spread):
    with pytest.raises(DataError, match="does not fit the table"):
        table.read(place(spread), where=pc.field("nothing") == 1)


def test_scan_gives_pieces_of_bounded_size_in_the_order_of_commits(root):
    commit(root, steps_like(0, 5_000))
    commit(root, steps_like(5_000, 5_001))
    pieces = list(table.scan(place(root), columns=["step_uid"]))
    assert [piece.num_rows for piece in pieces] == [4096, 904, 1]
    assert uids(pa.concat_tables(pieces)) == uids(steps_like(0, 5_001))


# -- rewriting -----------------------------------------------------------------------------------


def test_replace_rewrites_only_files_with_changed_rows_and_keeps_places(spread):
    before = names(spread)
    changed = steps_like(120, 122, log_date="2026-01-02", response="new", loss_weight=0.5)
    assert table.replace(spread, changed, info=INFO) == 3
    read = table.read(place(spread)).sort_by("started_at")
    assert uids(read) == uids(steps_like(0, 300))
    texts = read["response"].to_pylist()
    assert [i for i, text in enumerate(texts) if text == "new"] == [120, 121]
    kept = names(spread) & before
    assert len(kept) == 2
    assert len(names(spread)) == 3
    (day,) = [p for p in table.scan(place(spread)) if p["log_date"][0].as_py() == "2026-01-02"]
    assert uids(day) == uids(steps_like(100, 200))
    assert "new" not in table.read(place(spread, 2))["response"].to_pylist()


def test_replace_row_whose_partition_changes_moves(spread):
    moved = steps_like(0, 2, log_date="2026-01-03", response="moved")
    table.replace(spread, moved, info=INFO)
    read = table.read(place(spread))
    assert sorted(uids(read)) == sorted(uids(steps_like(0, 300)))
    there = read.filter(pc.field("response") == "moved")
    assert there["log_date"].to_pylist() == ["2026-01-03"] * 2


def test_replace_all_rows_of_a_file_elsewhere_leaves_no_empty_file(root):
    commit(root, steps_like(0, 3))
    table.replace(root, steps_like(0, 3, log_date=None), info=INFO)
    (name,) = names(root)
    assert "log_date=__HIVE_DEFAULT_PARTITION__" in name
    assert len(list(root.rglob("*.parquet"))) == 2
    table.replace(root, steps_like(0, 1, log_date=None, response="again"), info=INFO)
    assert sorted(table.read(place(root))["response"].to_pylist()) == ["again", "said 1", "said 2"]


def test_replace_adds_files_and_unknown_rows_in_the_same_commit(spread):
    added = table.write_files(spread, steps_like(300, 310), PARTITIONS)
    rows = pa.concat_tables([steps_like(5, 6, response="new"), steps_like(310, 311)])
    version = table.replace(spread, rows, added=added, info=INFO, txn=("run", 0))
    assert version == 3
    assert sorted(uids(table.read(place(spread)))) == sorted(uids(steps_like(0, 311)))
    assert table.last_transaction(spread, "run") == 0
    kinds = [next(iter(entry)) for entry in entries(spread, 3)]
    assert (kinds.count("remove"), kinds.count("add"), kinds.count("txn")) == (1, 3, 1)


def test_replace_that_conflicts_changes_nothing(spread, monkeypatch):
    commit(spread, steps_like(300, 301), txn=("run", 0))
    before, files = names(spread), len(list(spread.rglob("*.parquet")))
    with pytest.raises(ConflictError, match="Another run wrote"):
        table.replace(spread, steps_like(5, 6, response="new"), info=INFO, txn=("run", 0))
    real = log.commit

    def late(*args, **kwargs):
        monkeypatch.setattr(log, "commit", real)
        table.replace(spread, steps_like(5, 6, response="other"), info=INFO)
        return real(*args, **kwargs)

    monkeypatch.setattr(log, "commit", late)
    with pytest.raises(ConflictError, match="Another run rewrote"):
        table.replace(spread, steps_like(5, 6, response="new"), info=INFO)
    assert "other" in table.read(place(spread))["response"].to_pylist()
    assert "new" not in table.read(place(spread))["response"].to_pylist()
    assert len(names(spread) - before) == 1
    assert len(list(spread.rglob("*.parquet"))) == files + 1


def test_replace_of_one_step_twice_is_refused(spread):
    rows = pa.concat_tables([steps_like(5, 6), steps_like(5, 6)])
    with pytest.raises(DataError, match="a step twice"):
        table.replace(spread, rows, info=INFO)
    with pytest.raises(NotFoundError, match="holds no table"):
        table.replace(spread.parent / "none", steps_like(0, 1), info=INFO)


def test_replace_log_holds_no_text(spread):
    table.replace(spread, steps_like(5, 9, response="whispered"), info=INFO)
    table.compact(spread, info=INFO)
    log_text = "".join(p.read_text() for p in (spread / "_delta_log").glob("*.json"))
    assert "whispered" not in log_text
    assert "secret" not in log_text


def test_compact_joins_small_files_of_a_partition_and_changes_no_row(root):
    for start in range(0, 40, 5):
        commit(root, steps_like(start, start + 5, log_date=f"2026-01-0{1 + start // 20}"))
    before = table.read(place(root))
    version = table.compact(root, info={"command": "optimize"})
    assert version == 8
    assert [(f.rows, f.partition_values["log_date"]) for f in active(root)] == [
        (20, "2026-01-01"),
        (20, "2026-01-02"),
    ]
    assert table.read(place(root)).sort_by("started_at").equals(before.combine_chunks())
    assert table.read(place(root, 7)).equals(before)
    assert not any(entry["add"]["dataChange"] for entry in entries(root, 8) if "add" in entry)
    assert table.compact(root, info={}) == 8


def active(root):
    found = log.active(table.open_table(root))
    return sorted(found, key=lambda file: file.partition_values["log_date"])


def test_compact_stops_at_the_target_and_leaves_large_files(root):
    for start in range(0, 60, 10):
        commit(root, steps_like(start, start + 10))
    size = active(root)[0].size_bytes
    table.compact(root, target_bytes=size * 3 + 100, info={})
    assert [file.rows for file in active(root)] == [30, 30]
    assert table.compact(root, target_bytes=size, info={}) == 6


def test_compact_while_a_file_is_rewritten_is_a_conflict(spread, monkeypatch):
    commit(spread, steps_like(300, 301))
    real = log.commit

    def late(*args, **kwargs):
        monkeypatch.setattr(log, "commit", real)
        table.replace(spread, steps_like(5, 6, response="other"), info=INFO)
        return real(*args, **kwargs)

    monkeypatch.setattr(log, "commit", late)
    with pytest.raises(ConflictError, match="Another run rewrote"):
        table.compact(spread, info={})
    assert table.read(place(spread)).num_rows == 301


def test_tables_are_read_by_other_engines(spread):
    import duckdb
    import polars

    table.replace(spread, steps_like(5, 6, response="new"), info=INFO)
    files = [str(spread / name) for name in names(spread)]
    with duckdb.connect() as connection:
        counted = connection.execute(
            "SELECT count(*), sum(len(observation)) FROM read_parquet(?)", [files]
        ).fetchone()
    assert counted == (300, 300)
    scanned = polars.scan_delta(str(spread)).filter(polars.col("response") == "new").collect()
    assert scanned["observation"].to_list()[0][0]["content"] == "a secret text 5"
    assert DeltaTable(str(spread)).count() == 300
