import pytest
from table_data import commit, place, steps_like, steps_of, three_days

from clawcli.manage import diff as module
from clawcli.manage.diff import DiffConfig, diff
from clawcli.store import table


def compare(a, b):
    return diff(DiffConfig(a=str(a), b=str(b)))


def step(uid, trajectory="t", **values):
    partitions = {"log_format": "chat", "log_date": "unknown"}
    return {"step_uid": uid, "trajectory_uid": trajectory, **partitions, **values}


def data(tmp_path, name, *rows):
    commit(tmp_path / name / "steps", steps_of(*rows))
    return tmp_path / name


def test_diff_counts_steps_and_trajectories_of_one_side_alone(tmp_path):
    a = data(tmp_path, "a", step("1"), step("2"), step("3", "u"))
    b = data(tmp_path, "b", step("2"), step("4"), step("5"), step("6", "v"), step("7", "w"))
    report = compare(a, b)
    assert (report.steps_a, report.steps_b) == (3, 5)
    assert (report.steps_added, report.steps_removed) == (4, 2)
    assert (report.trajectories_a, report.trajectories_b) == (2, 3)
    assert (report.trajectories_added, report.trajectories_removed) == (2, 1)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [(1.0, 1.0, 0), (1.0, 0.5, 1), (None, 0.0, 1), (0.0, None, 1), (None, None, 0)],
)
def test_diff_of_rewards_tells_null_from_zero(tmp_path, before, after, changed):
    a = data(tmp_path, "a", step("1", reward=before), step("2", reward=7.0))
    b = data(tmp_path, "b", step("1", reward=after), step("3", reward=8.0))
    report = compare(a, b)
    assert report.steps_reward_changed == changed
    assert report.steps_rewarded_a == 1 + (before is not None)
    assert report.steps_rewarded_b == 1 + (after is not None)


def test_diff_shows_how_length_tokens_and_reward_shift(tmp_path):
    a = data(tmp_path, "a", *(step(f"a{k}", reward=float(k)) for k in range(11)))
    b = data(
        tmp_path,
        "b",
        *(step(f"b{k}", f"t{k}", reward=k / 10, output_tokens=k * 10) for k in range(11)),
    )
    report = compare(a, b)
    assert report.length_steps_by_quantile_a == dict.fromkeys(
        ("min", "p10", "p50", "p90", "max", "mean"), 11.0
    )
    assert report.length_steps_by_quantile_b["max"] == 1
    assert set(report.output_tokens_by_quantile_a.values()) == {None}
    tokens = report.output_tokens_by_quantile_b
    assert [tokens[key] for key in ("min", "p10", "p50", "p90", "max", "mean")] == [
        *(0, 10, 50, 90, 100),
        50,
    ]
    assert report.reward_by_quantile_a["p90"] == 9
    assert report.reward_by_quantile_b["mean"] == pytest.approx(0.5)


def test_diff_counts_steps_by_model_and_those_without_one_apart(tmp_path):
    a = data(tmp_path, "a", step("1", model="x"), step("2", model="x"), step("3"))
    b = data(tmp_path, "b", step("1", model="y"))
    report = compare(a, b)
    assert list(report.steps_by_model_a.items()) == [("x", 2), ("(not logged)", 1)]
    assert report.steps_by_model_b == {"y": 1}


def test_diff_of_versions_of_one_directory(tmp_path):
    root = three_days(tmp_path / "data" / "steps")
    table.replace(root, steps_like(5, 8, reward=9.0), info={})
    report = compare(f"{tmp_path}/data@1", tmp_path / "data")
    assert (report.version_a, report.version_b) == (1, 3)
    assert (report.steps_added, report.steps_removed) == (100, 0)
    assert report.steps_reward_changed == 3
    assert (report.trajectories_added, report.trajectories_removed) == (10, 0)


def test_diff_of_empty_sides_is_all_zero_and_null(tmp_path):
    a = data(tmp_path, "a")
    report = compare(a, a)
    assert (report.steps_a, report.steps_added, report.trajectories_b) == (0, 0, 0)
    assert set(report.reward_by_quantile_a.values()) == {None}
    assert report.steps_by_model_a == {}


def test_diff_reads_all_rows_however_they_are_cut(tmp_path, monkeypatch):
    three_days(tmp_path / "data" / "steps")
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 150)
    report = compare(tmp_path / "data", f"{tmp_path}/data@0")
    assert (report.steps_a, report.steps_b, report.steps_removed) == (300, 100, 200)


def test_diff_never_reads_text(tmp_path, monkeypatch):
    three_days(tmp_path / "data" / "steps")
    asked = []
    real = table.scan

    def scan(*args, **options):
        asked.append(options["columns"])
        return real(*args, **options)

    monkeypatch.setattr(table, "scan", scan)
    compare(tmp_path / "data", tmp_path / "data")
    fields = table.read(place(tmp_path / "data" / "steps")).schema
    text = {"observation", "response", "reasoning", "system", "tools", "tool_calls", "metadata"}
    assert asked
    assert not {name for columns in asked for name in columns} & text
    assert {name for columns in asked for name in columns} <= set(fields.names)


def test_diff_answers_on_stdout(tmp_path, claw):
    a = data(tmp_path, "a", step("1", model="x\x1b[31m", reward=1.0), step("2"))
    b = data(tmp_path, "b", step("1", model="x\x1b[31m", reward=0.0))
    result = claw("diff", a, b)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "steps: 2 -> 1 (+0 -1, 1 with another reward)"
    assert lines[1] == "trajectories: 1 -> 1 (+0 -0)"
    assert "\\x1b[31m: 1 -> 1" in result.out
    assert "\x1b" not in result.out
