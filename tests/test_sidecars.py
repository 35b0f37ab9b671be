"""Sidecars: append, newest row of a key, and rewards laid over logged ones at scan."""

import math

import pyarrow as pa
import pytest

from clawcli import schema
from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import ConflictError, DataError, SchemaError, UsageError
from clawcli.store import location, query, sidecars, table


def step(uid, trajectory="a", index=0, **columns):
    return {
        "step_uid": uid,
        "trajectory_uid": trajectory,
        "trajectory_kind": "main",
        "step_index": index,
        "choice_index": 0,
        "group_uid": "g",
        "prefix_messages": 0,
        "response": "x",
        "loss_weight": 1.0,
        "log_format": "test",
        "log_date": "unknown",
        **columns,
    }


def data(path, *steps):
    """A data directory with these steps."""
    rows = pa.Table.from_pylist(steps, schema=schema.steps_schema())
    info = {"command": "ingest"}
    table.append(path / "steps", rows, info=info, partition_by=schema.PARTITION_COLUMNS)
    return location.Location(path)


def attach(place, *rows):
    return sidecars.append(place, "rewards", pa.Table.from_pylist(list(rows)), info={})


def scanned(place, *columns):
    return [tuple(row[c] for c in columns) for row in query.load_steps(place).to_pylist()]


def test_append_of_a_key_again_newest_commit_wins(tmp_path):
    place = location.Location(tmp_path)
    for value in (1.0, 3.0, 2.0):
        attach(place, {"step_uid": "s", "reward": value})
    (row,) = sidecars.read(place, "rewards").to_pylist()
    assert (row["reward"], row["sidecar_version"]) == (2.0, 2)
    assert table.read(place, "sidecars/rewards").num_rows == 3


def test_append_step_and_trajectory_with_one_uid_are_two_keys(tmp_path):
    place = location.Location(tmp_path)
    attach(place, {"step_uid": "x", "reward": 1.0})
    attach(place, {"trajectory_uid": "x", "trajectory_reward": 2.0})
    assert sidecars.read(place, "rewards").num_rows == 2


def test_seen_in_of_a_key_again_all_rows_count(tmp_path):
    place = location.Location(tmp_path)
    for path in ("a.jsonl", "b.jsonl"):
        row = {"step_uid": "s", "source_uid": "u", "source_path": path, "source_offset": 0}
        sidecars.append(place, "seen_in", pa.Table.from_pylist([row, row]), info={})
    assert sidecars.read(place, "seen_in").num_rows == 4


def test_read_without_sidecar_is_empty_and_leaves_nothing(tmp_path):
    place = data(tmp_path / "d", step("s"))
    rows = sidecars.read(place, "rewards")
    assert rows.schema == schema.arrow_schema(schema.SIDECARS["rewards"])
    assert (rows.num_rows, sidecars.versions(place)) == (0, {})
    assert not (tmp_path / "d" / "sidecars").exists()


def test_versions_lists_each_sidecar_with_its_newest(tmp_path):
    place = location.Location(tmp_path)
    attach(place, {"step_uid": "s", "reward": 1.0})
    attach(place, {"step_uid": "s", "reward": 2.0})
    sidecars.append(place, "scores", pa.table({"step_uid": ["s"], "length": [3]}), info={})
    assert sidecars.versions(place) == {"rewards": 1, "scores": 0}


@pytest.mark.parametrize(
    "rows",
    [
        [{"reward": 1.0}],
        [{"step_uid": None, "reward": 1.0}],
        [{"step_uid": "s", "trajectory_uid": "t", "reward": 1.0}],
        [{"step_uid": "s", "reward": 1.0}, {"step_uid": "s", "reward": 2.0}],
    ],
)
def test_append_without_one_key_a_row_is_refused(tmp_path, rows):
    with pytest.raises(DataError):
        attach(location.Location(tmp_path), *rows)
    assert not (tmp_path / "sidecars").exists()


def test_append_other_columns_than_declared_is_refused(tmp_path):
    place = location.Location(tmp_path)
    with pytest.raises(SchemaError, match="no column score"):
        attach(place, {"step_uid": "s", "score": 1.0})
    with pytest.raises(SchemaError, match="do not fit"):
        attach(place, {"step_uid": "s", "reward": "high"})


def test_name_that_leaves_the_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"\.\./x"):
        sidecars.read(location.Location(tmp_path), "../x")
    with pytest.raises(UsageError):
        sidecars.append(location.Location(tmp_path), "../x", pa.table({"step_uid": ["s"]}), info={})


def test_append_while_another_writer_takes_the_version_adds_nothing(tmp_path, monkeypatch):
    place = location.Location(tmp_path)
    attach(place, {"step_uid": "s", "reward": 1.0})
    write_files = table.write_files

    def overtaken(*arguments, **more):
        monkeypatch.undo()
        attach(place, {"step_uid": "s", "reward": 2.0})
        return write_files(*arguments, **more)

    monkeypatch.setattr(table, "write_files", overtaken)
    with pytest.raises(ConflictError):
        attach(place, {"step_uid": "s", "reward": 3.0})
    assert [r["reward"] for r in sidecars.read(place, "rewards").to_pylist()] == [2.0]
    assert len(list((tmp_path / "sidecars" / "rewards").glob("*.parquet"))) == 2


def test_append_after_another_version_than_there_is_adds_nothing(tmp_path):
    place, rows = location.Location(tmp_path), pa.table({"step_uid": ["s"], "x": [1]})
    assert sidecars.append(place, "scores", rows, info={}, after=-1) == 0
    for after in (-1, 1):
        with pytest.raises(ConflictError, match="sidecar scores first"):
            sidecars.append(place, "scores", rows, info={}, after=after)
    assert sidecars.append(place, "scores", rows, info={}, after=0) == 1


def test_rows_differ_where_any_value_is_another_and_nulls_are_alike():
    left = pa.table({"a": [1, None, 1, None], "l": [[1.0], None, [1.0, 2.0], []]})
    right = pa.table({"a": [1, None, 1, 1], "l": [[1.0], None, [1.0], []]})
    assert sidecars.differing(left, right).tolist() == [False, False, True, True]


def test_log_of_a_sidecar_holds_no_path_outside_the_commit_info(tmp_path):
    place = location.Location(tmp_path)
    row = {"step_uid": "s", "source_uid": "u", "source_path": "secret-name.jsonl"}
    sidecars.append(place, "seen_in", pa.Table.from_pylist([row]), info={})
    entry = (tmp_path / "sidecars" / "seen_in" / "_delta_log" / f"{0:020d}.json").read_text()
    assert "secret-name" not in entry


def test_step_reward_attached_replaces_the_logged_one_and_names_its_source(tmp_path):
    place = data(
        tmp_path,
        step("s0", index=0, reward=0.1, reward_source="log"),
        step("s1", index=1, reward=0.2, reward_source="log"),
    )
    attach(place, {"step_uid": "s0", "reward": 5.0, "reward_source": "rewards:f.csv"})
    assert scanned(place, "reward", "reward_source", "trajectory_return", "return_to_go") == [
        (5.0, "rewards:f.csv", 5.2, 5.2),
        (0.2, "log", 5.2, 0.2),
    ]


def test_episode_reward_attached_stands_on_all_steps_and_in_the_last_reward(tmp_path):
    place = data(tmp_path, step("s0", index=0), step("s1", index=1), step("o", "b"))
    attach(place, {"trajectory_uid": "a", "trajectory_reward": 1.0, "reward_source": "rewards:f"})
    assert scanned(place, "step_uid", "reward", "trajectory_reward", "reward_source") == [
        ("s0", None, 1.0, "rewards:f"),
        ("s1", 1.0, 1.0, "rewards:f"),
        ("o", None, None, None),
    ]


def test_episode_reward_attached_replaces_the_logged_episode_reward_on_the_last_step(tmp_path):
    logged = {"trajectory_reward": 1.0, "reward_source": "log"}
    place = data(tmp_path, step("s0", index=0, **logged), step("s1", index=1, reward=1.0, **logged))
    attach(place, {"trajectory_uid": "a", "trajectory_reward": 0.0})
    assert scanned(place, "reward", "trajectory_reward", "trajectory_return") == [
        (None, 0.0, 0.0),
        (0.0, 0.0, 0.0),
    ]


def test_episode_reward_attached_leaves_logged_step_rewards_alone(tmp_path):
    place = data(tmp_path, step("s0", index=0, reward=0.5), step("s1", index=1))
    attach(place, {"trajectory_uid": "a", "trajectory_reward": 9.0})
    assert scanned(place, "reward", "trajectory_reward") == [(0.5, 9.0), (None, 9.0)]


def test_attempts_that_no_reward_is_attached_to_stay_as_they_are(tmp_path):
    lone = step("b0", "b", trajectory_reward=1.0, reward_source="log")
    place = data(tmp_path, step("a0", "a"), lone, step("c0", "c", reward=0.5))
    attach(place, {"trajectory_uid": "a", "trajectory_reward": 0.0})
    assert scanned(place, "reward", "trajectory_reward") == [(0.0, 0.0), (None, 1.0), (0.5, None)]


def test_step_reward_attached_takes_the_episode_reward_out_of_the_last_step(tmp_path):
    logged = {"trajectory_reward": 1.0, "reward_source": "log"}
    place = data(tmp_path, step("s0", index=0, **logged), step("s1", index=1, reward=1.0, **logged))
    attach(place, {"step_uid": "s0", "reward": 0.25})
    assert scanned(place, "reward", "trajectory_reward", "trajectory_return") == [
        (0.25, 1.0, 0.25),
        (None, 1.0, 0.25),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_attached_value_that_is_no_number_leaves_the_logged_one(tmp_path, value):
    place = data(tmp_path, step("s", reward=0.5, reward_source="log"))
    rows = pa.table({"step_uid": ["s"], "reward": pa.array([value], pa.float64())})
    sidecars.append(place, "rewards", rows, info={})
    assert scanned(place, "reward", "reward_source") == [(0.5, "log")]


def test_ends_attached_to_an_attempt_stand_on_its_last_step(tmp_path):
    place = data(tmp_path, step("s0", index=0), step("s1", index=1))
    attach(place, {"trajectory_uid": "a", "trajectory_reward": 1.0, "terminated": True})
    assert scanned(place, "terminated", "truncated") == [(None, None), (True, None)]


def test_scan_of_an_old_version_sees_the_rewards_of_today(tmp_path):
    data(tmp_path, step("s"))
    place = data(tmp_path, step("t", "b"))
    attach(place, {"step_uid": "s", "reward": 1.0}, {"step_uid": "t", "reward": 2.0})
    assert scanned(location.parse(f"{tmp_path}@0"), "step_uid", "reward") == [("s", 1.0)]


def test_scan_with_rewards_keeps_all_other_columns(tmp_path):
    steps = [step(f"s{i}", f"t{i % 3}", i // 3, response=str(i), reward=0.5) for i in range(9)]
    place = data(tmp_path, *steps)
    before = query.load_steps(place)
    attach(place, {"step_uid": "s4", "reward": 1.0})
    after = query.load_steps(place)
    assert after.schema == before.schema
    changed = {name for name in before.column_names if not after[name].equals(before[name])}
    returns = {"trajectory_return", "return_to_go", "group_reward_mean", "group_reward_std"}
    assert changed == {"reward"} | returns


def test_group_statistics_are_of_the_attached_rewards(tmp_path):
    place = data(tmp_path, *(step(t, t) for t in "abcd"))
    attach(place, *({"trajectory_uid": t, "trajectory_reward": float(t in "ad")} for t in "abcd"))
    assert set(scanned(place, "group_size", "group_reward_mean")) == {(4, 0.5)}


def test_curate_freezes_the_rewards_that_it_saw(tmp_path):
    place = data(tmp_path / "d", step("a", "a"), step("b", "b"))
    attach(
        place,
        {"trajectory_uid": "a", "trajectory_reward": 1.0},
        {"trajectory_uid": "b", "trajectory_reward": 0.0},
    )
    output = str(tmp_path / "c")
    curate(CurateConfig(input=str(place.path), output=output, where="trajectory_reward > 0"))
    attach(place, {"trajectory_uid": "a", "trajectory_reward": 7.0})
    curated = location.existing(output)
    columns = ("step_uid", "reward", "trajectory_return", "group_size", "group_reward_mean")
    assert scanned(curated, *columns) == [("a", 1.0, 1.0, 2, 0.5)]
    (info,) = table.history(curated.steps)
    assert info["inputs"][0]["sidecars"] == {"rewards": 0}


def test_rewards_beside_a_curated_table_are_refused(tmp_path):
    place = data(tmp_path / "d", step("a", reward=1.0))
    curate(CurateConfig(input=str(place.path), output=str(tmp_path / "c"), where="reward > 0"))
    curated = location.existing(str(tmp_path / "c"))
    attach(curated, {"step_uid": "a", "reward": 2.0})
    with pytest.raises(DataError, match="frozen"):
        query.load_steps(curated)
