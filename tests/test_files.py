import json
import pickle
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_data import PARTITIONS, commit, names, place, steps_like, uids

from clawcli import schema
from clawcli.errors import StoreError
from clawcli.store import artefact, table


@pytest.fixture
def root(tmp_path):
    return tmp_path / "d" / "steps"


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
