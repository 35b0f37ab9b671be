import pyarrow as pa
import pyarrow.compute as pc
import pytest
from table_data import commit, place, steps_like, three_days, uids

from clawcli.errors import DataError
from clawcli.store import scan, table


@pytest.fixture
def root(tmp_path):
    return tmp_path / "d" / "steps"


@pytest.fixture
def spread(root):
    return three_days(root)


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


def test_read_where_null_finds_rows_of_files_that_have_bounds_too(root):
    commit(root, pa.concat_tables([steps_like(0, 2), steps_like(2, 3, reward=None)]))
    found = table.read(place(root), where=pc.field("reward").is_null())
    assert uids(found) == uids(steps_like(2, 3))


def test_read_where_over_unknown_columns_is_refused(spread):
    with pytest.raises(DataError, match="does not fit the table"):
        table.read(place(spread), where=pc.field("nothing") == 1)


def test_scan_gives_pieces_of_bounded_size_in_the_order_of_commits(root):
    commit(root, steps_like(0, 5_000))
    commit(root, steps_like(5_000, 5_001))
    pieces = list(table.scan(place(root), columns=["step_uid"]))
    assert [piece.num_rows for piece in pieces] == [4096, 904, 1]
    assert uids(pa.concat_tables(pieces)) == uids(steps_like(0, 5_001))
