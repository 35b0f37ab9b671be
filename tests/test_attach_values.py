"""Types of a sidecar's columns: found in its first file, kept for the others."""

import json
import math
from collections import Counter
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clawcli.errors import SchemaError
from clawcli.ingest.attach import files, kinds, values
from clawcli.ingest.attach.plan import Plan
from clawcli.schema import TIMESTAMP

NAN, INF = math.nan, math.inf
PLAN = Plan({"step_uid": "step_uid"}, "step")


def json_rows(*column):
    return files.Rows("f", [{"x": value} for value in column], lambda n: f"f line {n + 1}")


def csv_rows(*column):
    table = pa.table({"x": pa.array(column, pa.string())})
    return files.Rows("f", table, lambda n: f"f line {n + 2}", is_text=True)


def parquet_rows(column):
    return files.Rows("f", pa.table({"x": column}), lambda n: f"f row {n + 1}")


def typed(rows, kind=None):
    known = {} if kind is None else {"x": kind}
    found = values.typed(rows, ["x"], known, "judge")
    if "x" not in found.table.column_names:
        return None, [], found.warnings
    column = found.table["x"]
    return kinds.word(column.type), column.to_pylist(), found.warnings


@pytest.mark.parametrize(
    ("given", "kind", "kept"),
    [
        ([True, None, False], "bool", [True, None, False]),
        ([1, -(2**63), None], "int64", [1, -(2**63), None]),
        ([1, 0.5], "float64", [1.0, 0.5]),
        ([2**60, 0.5], "float64", [float(2**60), 0.5]),
        (["good", "", None], "string", ["good", "", None]),
        ([[-0.5, -1], [], None], "list<float32>", [[-0.5, -1.0], [], None]),
        ([[1, 2], [3]], "list<int64>", [[1, 2], [3]]),
        ([["a"], ["b", None]], "list<string>", [["a"], ["b", None]]),
        ([[True]], "list<bool>", [[True]]),
        ([{"a": [1]}, None], "string", ['{"a":[1]}', None]),
        ([[1, "a"], [[2]]], "string", ['[1,"a"]', "[[2]]"]),
        ([None, None], None, []),
    ],
)
def test_type_of_json_values_is_found(given, kind, kept):
    assert typed(json_rows(*given)) == (kind, kept, {})


@pytest.mark.parametrize(
    ("given", "kind", "kept"),
    [
        (["1", "-2", ""], "int64", [1, -2, None]),
        (["1", "2.5", "1e-3", ".5", "3."], "float64", [1.0, 2.5, 0.001, 0.5, 3.0]),
        (["true", "False"], "bool", [True, False]),
        (["007", "1"], "string", ["007", "1"]),
        (["007.5", "1"], "string", ["007.5", "1"]),
        (["12345678901234567890"], "string", ["12345678901234567890"]),
        (["9" * 5000], "string", ["9" * 5000]),
        (["1", "n/a"], "string", ["1", "n/a"]),
        (["nan"], "string", ["nan"]),
        (["[-0.5, -1]", ""], "list<float32>", [[-0.5, -1.0], None]),
        (["[1, 2]"], "list<int64>", [[1, 2]]),
        (["[sic]"], "string", ["[sic]"]),
        (["", ""], None, []),
    ],
)
def test_type_of_csv_texts_is_found(given, kind, kept):
    assert typed(csv_rows(*given)) == (kind, kept, {})


@pytest.mark.parametrize(
    ("column", "kind", "kept"),
    [
        (pa.array([1, None], pa.int8()), "int64", [1, None]),
        (pa.array([0.5], pa.float32()), "float64", [0.5]),
        (pa.array(["a", None], pa.large_string()), "string", ["a", None]),
        (pa.array(["a", "b"]).dictionary_encode(), "string", ["a", "b"]),
        (
            pa.array([[0.5, None], None], pa.list_(pa.float64())),
            "list<float32>",
            [[0.5, None], None],
        ),
        (pa.array([[0.5]], pa.large_list(pa.float64())), "list<float32>", [[0.5]]),
        (pa.array([[0.5, 1.0]], pa.list_(pa.float32(), 2)), "list<float32>", [[0.5, 1.0]]),
        (pa.array([[1]], pa.list_(pa.int32())), "list<int64>", [[1]]),
        (
            pa.array([datetime(2026, 1, 2, 3)], pa.timestamp("ns")),
            "timestamp",
            [datetime(2026, 1, 2, 3, tzinfo=UTC)],
        ),
        (pa.array([date(2026, 1, 2)]), "date", [date(2026, 1, 2)]),
        (pa.array([{"a": 1}]), "string", ['{"a":1}']),
        (pa.nulls(2), None, []),
    ],
)
def test_type_of_parquet_columns_is_found(column, kind, kept):
    assert typed(parquet_rows(column)) == (kind, kept, {})


@pytest.mark.parametrize(
    "rows",
    [
        json_rows(0.5, NAN, INF, 1),
        csv_rows("0.5", "nan", "-Infinity", "1"),
        parquet_rows(pa.array([0.5, NAN, INF, 1.0])),
    ],
)
def test_value_that_is_not_finite_is_null_and_counted(rows):
    assert typed(rows) == ("float64", [0.5, None, None, 1.0], Counter(not_finite=2))


@pytest.mark.parametrize(
    "rows",
    [
        json_rows([-0.5], [-1.0, NAN], None, [-INF], [1e300]),
        csv_rows("[-0.5]", "[-1.0, 1e300]", "", "[-1e300]", "[1e300]"),
        parquet_rows(pa.array([[-0.5], [-1.0, NAN], None, [-INF], [1e300]])),
    ],
)
def test_list_with_a_value_that_is_not_finite_is_null_and_counted(rows):
    assert typed(rows) == (
        "list<float32>",
        [[-0.5], None, None, None, None],
        Counter(not_finite=3),
    )


@pytest.mark.parametrize(
    ("rows", "kind", "kept"),
    [
        (json_rows(1, None), pa.float64(), [1.0, None]),
        (csv_rows("1"), pa.float64(), [1.0]),
        (parquet_rows(pa.array([1, 2])), pa.float64(), [1.0, 2.0]),
        (json_rows(1.0, NAN), pa.int64(), [1, None]),
        (csv_rows("1.0"), pa.int64(), [1]),
        (parquet_rows(pa.array([1.0, NAN])), pa.int64(), [1, None]),
        (csv_rows("7", "x"), pa.string(), ["7", "x"]),
        (json_rows([1, 2]), kinds.LOGPROBS, [[1.0, 2.0]]),
        (csv_rows("[1]"), kinds.LOGPROBS, [[1.0]]),
        (parquet_rows(pa.array([[1]])), kinds.LOGPROBS, [[1.0]]),
        (json_rows({"a": 1}), pa.string(), ['{"a":1}']),
        (json_rows("2026-01-02T03:00:00Z"), TIMESTAMP, [datetime(2026, 1, 2, 3, tzinfo=UTC)]),
        (csv_rows("2026-01-02 03:00"), TIMESTAMP, [datetime(2026, 1, 2, 3, tzinfo=UTC)]),
        (parquet_rows(pa.nulls(1)), TIMESTAMP, [None]),
        (json_rows(None), kinds.LOGPROBS, [None]),
    ],
)
def test_value_fits_the_type_that_is_there(rows, kind, kept):
    assert typed(rows, kind)[:2] == (kinds.word(kind), kept)


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (json_rows(1, 0.5), pa.int64(), r"f line 2: column x is float64 \(0\.5\).*has int64"),
        (csv_rows("1", "0.5"), pa.int64(), r"f line 3: column x is float64 \(0\.5\)"),
        (parquet_rows(pa.array([1.0, 0.5])), pa.int64(), r"f row 2: column x is float64 \(0\.5\)"),
        (json_rows(True), pa.float64(), r"line 1: column x is bool \(true\).*has float64"),
        (json_rows(1), pa.bool_(), r"is int64 \(1\).*has bool"),
        (json_rows("a", 7), pa.string(), r"line 2.*is int64 \(7\).*has string"),
        (csv_rows("0.5", "private"), pa.float64(), r"line 3: column x is string, .*float64"),
        (json_rows("abc"), pa.list_(pa.string()), r"is string, .*has list<string>"),
        (json_rows([0.5]), pa.list_(pa.int64()), r"is a list, .*has list<int64>"),
        (json_rows([True]), kinds.LOGPROBS, r"is a list, .*has list<float32>"),
        (json_rows({"a": 1}), pa.float64(), r"is an object, .*has float64"),
        (json_rows(5), TIMESTAMP, r"is int64 \(5\).*has timestamp"),
        (json_rows("yesterday"), TIMESTAMP, r"is string, .*has timestamp"),
        (json_rows(2**53 + 1, 0.5), None, r"line 1: .*\(9007199254740993\).*float64"),
        (json_rows(2**63), None, r"an integer of more than 64 bits, .*int64"),
        (parquet_rows(pa.array([2**63], pa.uint64())), None, "more than 64 bits"),
        (json_rows(1, "private"), None, r"line 2: column x is string, where the rows before have"),
        (json_rows(None, [1], 2), None, r"line 3: column x is int64 \(2\), .*list<int64>"),
        (json_rows("\ud800"), None, r"line 1: column x is text that is no UTF-8"),
    ],
)
def test_value_that_does_not_fit_is_refused_with_place_column_and_types(rows, kind, message):
    with pytest.raises(SchemaError, match=message) as caught:
        typed(rows, kind)
    assert "private" not in str(caught.value)
    assert caught.value.hint


def fields(*names):
    return files.Rows("f", [dict.fromkeys(("step_uid", *names), 1)], lambda n: "f line 1")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "no field beside its keys: step_uid"),
        (("trajectory_uid",), "--on trajectory_uid=trajectory_uid"),
        (("Trajectory_UID",), "a column of every sidecar"),
        (("sidecar_version",), "a column of every sidecar"),
        (("score", "Score"), "'Score' beside 'score', which SQL cannot tell apart"),
        (("",), "cannot be the name of a column"),
        (("a\nb",), "cannot be the name of a column"),
        (("\ud800",), "cannot be the name of a column"),
        (("n" * 201,), "cannot be the name of a column"),
        (tuple(f"n{i}" for i in range(1001)), "1,001 fields"),
    ],
)
def test_field_that_cannot_be_a_column_is_refused(names, message):
    with pytest.raises(SchemaError, match=message):
        values.names_of(fields(*names), PLAN, {})


def test_field_that_only_differs_in_case_from_a_column_is_refused():
    with pytest.raises(SchemaError, match="'Score' beside 'score'"):
        values.names_of(fields("Score"), PLAN, {"score": pa.float64()})


def test_key_fields_are_no_columns_and_all_others_are():
    names = values.names_of(fields("thumbs up", "reward", "task_id"), PLAN, {})
    assert names == ["thumbs up", "reward", "task_id"]


def test_one_table_in_every_container_gives_the_same_columns(tmp_path):
    rows = [{"step_uid": "a", "x": 0.5, "y": None}, {"step_uid": "b", "x": 2.0, "y": "t"}]
    (tmp_path / "lines").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "array").write_text(json.dumps(rows))
    (tmp_path / "csv").write_text("step_uid,x,y\na,0.5,\nb,2.0,t\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet")
    for name in ("lines", "array", "csv", "parquet"):
        found = files.records(str(tmp_path / name))
        table = values.typed(found, ["x", "y"], {}, "judge").table
        assert table.to_pylist() == [{"x": 0.5, "y": None}, {"x": 2.0, "y": "t"}], name
        assert [str(kind) for kind in table.schema.types] == ["double", "string"], name
