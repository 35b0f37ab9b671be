import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from table_data import INFO, PARTITIONS, active, commit, names, place, steps_like, three_days, uids

from clawcli.errors import ConflictError, DataError, NotFoundError
from clawcli.store import commits, table


@pytest.fixture
def root(tmp_path):
    return tmp_path / "d" / "steps"


@pytest.fixture
def spread(root):
    return three_days(root)


def entries(root, version):
    text = (root / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


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
    real = commits.commit

    def late(*args, **kwargs):
        monkeypatch.setattr(commits, "commit", real)
        table.replace(spread, steps_like(5, 6, response="other"), info=INFO)
        return real(*args, **kwargs)

    monkeypatch.setattr(commits, "commit", late)
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


def test_compact_stops_at_the_target_and_leaves_large_files(root):
    for start in range(0, 60, 10):
        commit(root, steps_like(start, start + 10))
    size = active(root)[0].size_bytes
    table.compact(root, target_bytes=size * 3 + 100, info={})
    assert [file.rows for file in active(root)] == [30, 30]
    assert table.compact(root, target_bytes=size, info={}) == 6


def test_compact_leaves_a_large_file_beside_small_ones(root):
    commit(root, steps_like(0, 3_000))
    for start in range(3_000, 3_020, 10):
        commit(root, steps_like(start, start + 10))
    large = max(file.size_bytes for file in active(root))
    table.compact(root, target_bytes=2 * large, info={})
    assert sorted(file.rows for file in active(root)) == [20, 3_000]


def test_compact_while_a_file_is_rewritten_is_a_conflict(spread, monkeypatch):
    commit(spread, steps_like(300, 301))
    real = commits.commit

    def late(*args, **kwargs):
        monkeypatch.setattr(commits, "commit", real)
        table.replace(spread, steps_like(5, 6, response="other"), info=INFO)
        return real(*args, **kwargs)

    monkeypatch.setattr(commits, "commit", late)
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
