"""claw attach: what became known later of steps and attempts, as sidecars of any name."""

import json
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import assistant, pair, user, write_lines
from test_rewards import harbor
from test_sidecars import data, scanned, step

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import DataError, NotFoundError, SchemaError, UsageError
from clawcli.ingest.attach.run import AttachConfig, attach
from clawcli.store import location, log, sidecars, table


@pytest.fixture
def calls(tmp_path):
    """Two attempts: a of two calls s0, s1 (task 7, trial 0), b of one call s2 (trial 1)."""
    keys = {"task_id": "7", "agent": "x"}
    logs = tmp_path / "logs"
    a = {**keys, "trial": 0, "source_path": str(logs / "one" / "a.json")}
    b = {**keys, "trial": 1, "source_path": str(logs / "two" / "b.json")}
    return data(
        tmp_path / "data",
        step("s0", "a", 0, native_id="r0", metadata='{"user": 5}', **a),
        step("s1", "a", 1, native_id="r1", metadata='{"user": 6}', **a),
        step("s2", "b", 0, native_id="r2", **b),
    )


def put(place, rows, name="feedback", *, on=(), dry_run=False):
    """Attach rows, or a file that is there."""
    path = rows
    if isinstance(rows, list):
        path = write_lines(place.path.parent / "rows.jsonl", rows)
    return attach(
        AttachConfig(data=str(place.path), file=str(path), name=name, on=on, dry_run=dry_run)
    )


def held(place, *columns, name="feedback"):
    """What a sidecar says now, by key."""
    return {
        row["step_uid"] or row["trajectory_uid"]: tuple(row[c] for c in columns)
        for row in sidecars.read(place, name).to_pylist()
    }


FEEDBACK = [
    {"step_uid": "s0", "thumbs": 1, "score": 0.5, "text": "good", "author": "ada"},
    {"step_uid": "s2", "thumbs": -1, "score": None, "text": "odd", "author": "bo"},
]


# what is attached


def test_every_field_that_is_no_key_becomes_a_column_with_a_type(calls):
    before = table.read(calls)
    report = put(calls, FEEDBACK)
    assert report.columns == {
        "thumbs": "int64",
        "score": "float64",
        "text": "string",
        "author": "string",
    }
    assert held(calls, "thumbs", "score", "text") == {
        "s0": (1, 0.5, "good"),
        "s2": (-1, None, "odd"),
    }
    assert table.read(calls).equals(before)


def test_report_accounts_for_all_rows_and_both_sides(calls):
    rows = [
        {"id": "r0", "score": 1},
        {"id": "r0", "score": 1.0},
        {"id": "zz", "score": 1},
        {"id": None, "score": 1},
        {"id": "r1", "score": None},
    ]
    report = put(calls, rows, on=("native_id=id",))
    assert (report.rows, report.matched, report.duplicates) == (5, 1, 1)
    assert (report.unmatched_rows, report.without_value) == (2, 1)
    assert (report.steps, report.trajectories) == (1, 1)
    assert (report.unmatched_steps, report.unmatched_trajectories) == (2, 1)
    assert (report.new, report.sidecar_version) == (1, 0)
    assert report.on == ("native_id=id",)


def test_rows_are_kept_in_the_order_of_the_file(calls):
    put(calls, [{"step_uid": uid, "x": 1} for uid in ("s2", "s0", "s1")])
    assert list(held(calls, "x")) == ["s2", "s0", "s1"]


def test_same_file_again_adds_nothing_and_a_changed_one_what_changed(calls):
    put(calls, FEEDBACK)
    again = put(calls, FEEDBACK)
    assert (again.matched, again.new, again.sidecar_version) == (2, 0, 0)
    changed = put(calls, [FEEDBACK[0], {**FEEDBACK[1], "thumbs": 1}])
    assert (changed.new, changed.sidecar_version) == (1, 1)
    assert held(calls, "thumbs") == {"s0": (1,), "s2": (1,)}
    assert table.read(calls, "sidecars/feedback").num_rows == 3


def test_row_that_was_said_before_another_is_said_again(calls):
    for value in (1, 2, 1):
        assert put(calls, [{"step_uid": "s0", "x": value}]).new == 1
    assert held(calls, "x") == {"s0": (1,)}


def test_dry_run_counts_the_same_and_writes_nothing(calls):
    put(calls, FEEDBACK[:1])
    before = sorted(calls.path.rglob("*"))
    dry = put(calls, FEEDBACK, dry_run=True)
    assert sorted(calls.path.rglob("*")) == before
    real = put(calls, FEEDBACK)
    assert (dry.new, dry.matched, dry.columns) == (real.new, real.matched, real.columns)
    assert (dry.sidecar_version, real.sidecar_version) == (0, 1)


def test_lists_of_numbers_are_log_probs_and_differ_by_any_of_them(calls):
    put(calls, [{"step_uid": "s0", "logprobs": [-0.5, -0.25]}], "teacher")
    for logprobs, new in (([-0.5, -0.25], 0), ([-0.5, -0.125], 1), ([-0.5], 1)):
        assert put(calls, [{"step_uid": "s0", "logprobs": logprobs}], "teacher").new == new
    found = sidecars.read(calls, "teacher")
    assert found.schema.field("logprobs").type == pa.list_(pa.float32())
    assert held(calls, "logprobs", name="teacher") == {"s0": ([-0.5],)}


def test_records_of_calls_are_no_reports_of_benchmarks(calls):
    rows = [{"step_uid": "s0", "results": [{"a": 1}]}, {"step_uid": "s1", "results": []}]
    report = put(calls, rows)
    assert (report.rows, report.matched) == (2, 2)
    mapped = [{"id": "r0", "resolved": ["x"]}, {"id": "r2", "resolved": []}]
    assert put(calls, mapped, "other", on=("native_id=id",)).matched == 2


def test_harbor_trials_give_each_of_their_rewards_a_column(calls, tmp_path):
    harbor(tmp_path / "logs" / "one", {"style": 0.25, "tests": 1.0})
    harbor(tmp_path / "logs" / "two", {"style": 0.5, "tests": 0.0})
    report = put(calls, tmp_path / "logs", "tests", on=("source_path=source_path",))
    assert report.trajectories == 2
    assert held(calls, "style", "tests", name="tests") == {"a": (0.25, 1.0), "b": (0.5, 0.0)}


# keys


@pytest.mark.parametrize(
    ("rows", "on", "key"),
    [
        ([{"trajectory_uid": "b", "x": 1}], (), "b"),
        ([{"task_id": 7, "trial": 1.0, "x": 1}], (), "b"),
        ([{"call": {"id": "r1"}, "x": 1}], ("native_id=call.id",), "s1"),
        ([{"who": 6, "x": 1}], ("metadata.user=who",), "s1"),
        ([{"run": "a", "n": "1", "x": 1}], ("trajectory_uid=run", "step_index=n"), "s1"),
    ],
)
def test_row_is_about_the_step_or_attempt_that_its_keys_name(calls, rows, on, key):
    assert put(calls, rows, on=on).matched == 1
    assert held(calls, "x") == {key: (1,)}


def test_steps_and_attempts_share_a_sidecar(calls):
    put(calls, [{"step_uid": "s0", "x": 1}])
    put(calls, [{"trajectory_uid": "a", "x": 2}])
    assert held(calls, "x") == {"s0": (1,), "a": (2,)}


def test_two_uids_are_joined_by_and_where_both_are_named(calls):
    rows = [
        {"step_uid": "s0", "trajectory_uid": "a", "x": 1},
        {"step_uid": "s1", "trajectory_uid": "b", "x": 1},
    ]
    with pytest.raises(SchemaError, match="joined by step_uid"):
        put(calls, rows)
    both = ("step_uid=step_uid", "trajectory_uid=trajectory_uid")
    report = put(calls, rows, on=both)
    assert (report.matched, report.unmatched_rows) == (1, 1)
    assert held(calls, "x") == {"s0": (1,)}


def test_field_called_like_a_key_that_is_none_stays_a_column(calls):
    put(calls, [{"step_uid": "s0", "task_id": "other", "x": 1}])
    assert held(calls, "task_id") == {"s0": ("other",)}


def test_row_that_names_several_attempts_is_refused(calls):
    with pytest.raises(DataError, match="line 2 names 2 attempts by task_id") as caught:
        put(calls, [{"task_id": "none", "x": 1}, {"task_id": "7", "x": 1}])
    assert "trial" in caught.value.hint
    assert sidecars.versions(calls) == {}


def test_file_that_matches_nothing_is_refused_with_keys_and_examples_of_both(calls):
    rows = [{"id": f"call-{i}", "x": i} for i in range(5)]
    with pytest.raises(DataError) as caught:
        put(calls, rows, on=("native_id=id",))
    message = str(caught.value)
    assert "None of the 5 rows of" in message
    assert 'id is "call-0", "call-1", "call-2"' in message
    assert 'native_id of the table "r0", "r1", "r2"' in message
    assert "call-3" not in message
    assert "--on COLUMN=FIELD" in caught.value.hint
    assert sidecars.versions(calls) == {}
    with pytest.raises(DataError, match='is "call-0", "call-1", "call-2"'):
        put(calls, [{**row, "reward": 1} for row in rows], "rewards", on=("native_id=id",))


def test_key_that_no_step_has_is_said_where_nothing_matches(tmp_path):
    place = data(tmp_path / "d", step("s0"))
    with pytest.raises(DataError, match="native_id of the table nowhere logged"):
        put(place, [{"native_id": "r0", "x": 1}])


def test_sidecar_of_another_table_is_refused(calls, tmp_path):
    other = data(tmp_path / "other" / "data", step("0" * 32))
    put(other, [{"step_uid": "0" * 32, "x": 1}])
    (path,) = (other.path / "sidecars" / "feedback").glob("*.parquet")
    rows = pq.read_table(path).drop_columns(["sidecar_version", "trajectory_uid"])
    pq.write_table(rows, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r'step_uid is "0+", and step_uid of the table "s0", "s1"'):
        put(calls, tmp_path / "rows.parquet")
    with pytest.raises(NotFoundError, match="holds no report"):
        put(calls, other.path / "sidecars" / "feedback")


def test_file_without_any_value_attaches_nothing(calls):
    report = put(calls, [{"step_uid": "s0", "x": None}, {"step_uid": "s1", "x": float("nan")}])
    assert (report.without_value, report.matched, report.unmatched_steps) == (2, 0, 3)
    assert report.warnings_by_code == {"not_finite": 1}
    assert sidecars.versions(calls) == {}


@pytest.mark.parametrize("text", ["", "step_uid,x\n", "[]"])
def test_file_without_rows_attaches_nothing(calls, tmp_path, text):
    (tmp_path / "f").write_text(text)
    report = put(calls, tmp_path / "f")
    assert (report.rows, report.new, report.unmatched_steps) == (0, 0, 3)
    assert report.sidecar_version is None
    assert sidecars.versions(calls) == {}


def test_rows_that_contradict_each_other_are_refused_with_both_places(calls):
    rows = [
        {"step_uid": "s1", "x": 1, "note": "mine"},
        {"step_uid": "s0", "x": 1, "note": "mine"},
        {"step_uid": "s0", "x": 2, "note": "mine"},
    ]
    with pytest.raises(DataError, match=r"line 2 and .*line 3 .* step s0: 1 and 2 in x"):
        put(calls, rows)
    rows[2] = {"step_uid": "s0", "x": 1, "note": "private"}
    with pytest.raises(DataError, match="different things about step s0 in note") as caught:
        put(calls, rows)
    assert "private" not in str(caught.value)
    logprobs = [{"step_uid": "s0", "p": [-1.0]}, {"step_uid": "s0", "p": [-1.0, -2.0]}]
    with pytest.raises(DataError, match="in p"):
        put(calls, logprobs)
    assert sidecars.versions(calls) == {}


# columns over time


def test_types_are_kept_and_a_later_file_must_fit(calls):
    put(calls, [{"step_uid": "s0", "x": 0.5}])
    assert put(calls, [{"step_uid": "s1", "x": 2}]).columns == {"x": "float64"}
    with pytest.raises(SchemaError, match=r"line 2: column x is string, .*feedback has float64"):
        put(calls, [{"step_uid": "s1", "x": 1}, {"step_uid": "s2", "x": "high"}])
    assert held(calls, "x") == {"s0": (0.5,), "s1": (2.0,)}


def test_column_of_a_later_file_is_added(calls):
    put(calls, [{"step_uid": "s0", "x": 1, "empty": None}])
    report = put(calls, [{"step_uid": "s1", "empty": [0.5]}, {"step_uid": "s2", "x": 2}])
    assert report.columns == {"empty": "list<float32>", "x": "int64"}
    assert held(calls, "x", "empty") == {"s0": (1, None), "s1": (None, [0.5]), "s2": (2, None)}
    assert put(calls, [{"step_uid": "s1", "empty": [0.5]}]).new == 0
    assert put(calls, [{"step_uid": "s1", "empty": [0.5], "y": "z"}]).new == 1


def test_column_that_a_killed_run_added_is_of_no_harm(calls):
    put(calls, [{"step_uid": "s0", "x": 1}])
    added = pa.schema([("y", pa.string())])
    table.add_columns(calls.sidecar("feedback"), added, info={"command": "attach"})
    assert put(calls, [{"step_uid": "s0", "x": 1}]).new == 0
    put(calls, [{"step_uid": "s1", "x": 1, "y": "z"}])
    assert held(calls, "x", "y") == {"s0": (1, None), "s1": (1, "z")}


def test_columns_called_like_those_of_steps_keep_their_own_types(calls):
    names = ("reward", "trial", "started_at", "input_tokens", "log_date", "group_uid", "metadata")
    odd = ("thumbs up", 'a"b', "select", "a.b", "ünï", "x=y")
    row = {"step_uid": "s0", **{name: f"text of {name}" for name in (*names, *odd)}}
    for _ in range(2):
        put(calls, [row])
    assert held(calls, *names, *odd)["s0"] == tuple(row[name] for name in (*names, *odd))
    assert scanned(calls, "reward", "trial")[0] == (None, 0)


def test_log_of_a_sidecar_holds_no_text(calls):
    put(calls, [{"step_uid": "s0", "group_uid": "private", "reward": "private", "x": "private"}])
    (entry,) = (calls.sidecar("feedback") / "_delta_log").glob("*.json")
    assert "private" not in entry.read_text()
    (file,) = log.active(table.open_table(calls.sidecar("feedback")))
    assert file.bounds == {"step_uid": ("s0", "s0")}


# names and places


@pytest.mark.parametrize("name", ["links", "seen_in", "forgotten"])
def test_name_that_is_claws_own_is_refused(calls, name):
    with pytest.raises(UsageError, match="claw itself writes"):
        put(calls, FEEDBACK, name)


@pytest.mark.parametrize("name", ["", "Feedback", "a-b", "../x", "a b", "1a", "é", "n" * 101])
def test_name_that_is_no_name_is_refused(calls, name):
    with pytest.raises(UsageError, match="cannot be called"):
        put(calls, FEEDBACK, name)


def test_version_and_what_is_no_data_directory_are_refused(calls, tmp_path):
    with pytest.raises(UsageError, match="names a version"):
        attach(AttachConfig(data=f"{calls.path}@0", file="-", name="x"))
    with pytest.raises(NotFoundError):
        attach(AttachConfig(data=str(tmp_path / "none"), file="-", name="x"))
    with pytest.raises(NotFoundError, match=r"none\.csv does not exist"):
        put(calls, tmp_path / "none.csv")


def test_values_are_no_keys_but_for_rewards(calls):
    with pytest.raises(UsageError, match="--on reward: judge is no sidecar of rewards"):
        put(calls, [{"step_uid": "s0", "score": 1}], "judge", on=("reward=score",))


# rewards


def test_rewards_count_as_those_of_ingest_do(calls):
    report = put(
        calls,
        [{"native_id": "r1", "score": 0.5}],
        "rewards",
        on=("reward=score", "native_id=native_id"),
    )
    assert (report.matched, report.columns) == (1, {"reward": "float64"})
    assert (report.unmatched_steps, report.unmatched_trajectories) == (2, 1)
    assert scanned(calls, "step_uid", "reward", "trajectory_return")[1] == ("s1", 0.5, 0.5)
    (info,) = table.history(calls.sidecar("rewards"))
    assert info["command"] == "attach"


def test_curated_directory_takes_all_but_rewards(calls, tmp_path):
    curate(CurateConfig(input=str(calls.path), output=str(tmp_path / "c"), where="true"))
    curated = location.existing(str(tmp_path / "c"))
    with pytest.raises(DataError, match="frozen"):
        put(curated, [{"step_uid": "s0", "reward": 1}], "rewards")
    put(curated, FEEDBACK)
    assert held(curated, "thumbs") == {"s0": (1,), "s2": (-1,)}
    assert len(scanned(curated, "step_uid")) == 3


# secrets


SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"


def test_secrets_are_taken_out_of_all_texts(calls):
    rows = [{"step_uid": "s0", "log_date": f"use {SECRET}", "more": [SECRET], "o": {"k": SECRET}}]
    dry = put(calls, rows, dry_run=True)
    report = put(calls, rows)
    assert sum(report.secrets_by_rule.values()) == 3
    assert dry.secrets_by_rule == report.secrets_by_rule
    text, more, kept = held(calls, "log_date", "more", "o")["s0"]
    assert text.startswith("use [REDACTED:")
    assert more[0].startswith("[REDACTED:")
    assert json.loads(kept)["k"].startswith("[REDACTED:")
    assert put(calls, rows).new == 0
    files = [path for path in calls.path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in path.read_bytes() for path in files)


def test_secret_in_the_name_of_the_file_is_not_in_the_log(calls):
    put(calls, write_lines(calls.path.parent / f"{SECRET}.jsonl", FEEDBACK))
    (info,) = table.history(calls.sidecar("feedback"))
    assert SECRET not in json.dumps(info)
    assert "[REDACTED:" in info["file"]


def test_secrets_stay_where_ingest_was_told_to_leave_them(tmp_path, claw):
    source = write_lines(tmp_path / "a.jsonl", [pair([user("hi")], assistant("yo"), uid="r0")])
    claw("ingest", source, "-o", tmp_path / "d", "--no-redact")
    place = location.existing(str(tmp_path / "d"))
    report = put(place, [{"native_id": "r0", "x": SECRET}])
    assert report.secrets_by_rule == {}
    assert [x for (x,) in held(place, "x").values()] == [SECRET]


# at once


def test_attaches_at_once_all_land(calls):
    meeting, failed = threading.Barrier(4), []

    def work(number):
        path = write_lines(
            calls.path.parent / f"{number}.jsonl",
            [{"step_uid": f"s{number % 3}", f"x{number}": number, "same": 1}],
        )
        meeting.wait()
        try:
            put(calls, path)
        except Exception as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failed == []
    rows = table.read(calls, "sidecars/feedback")
    assert sorted(sum(row[f"x{n}"] == n for row in rows.to_pylist()) for n in range(4)) == [1] * 4


def test_attach_beside_an_ingest_loses_nothing(tmp_path, claw):
    records = [pair([user(f"u{i}")], assistant("a"), uid=f"r{i}") for i in range(40)]
    source = write_lines(tmp_path / "a.jsonl", records[:20])
    claw("ingest", source, "-o", tmp_path / "d")
    place = location.existing(str(tmp_path / "d"))
    write_lines(tmp_path / "a.jsonl", records)
    path = write_lines(tmp_path / "f.jsonl", [{"native_id": f"r{i}", "x": i} for i in range(20)])
    attaching = threading.Thread(target=put, args=(place, path))
    attaching.start()
    assert claw("ingest", source, "-o", tmp_path / "d").code == 0
    attaching.join()
    assert table.read(place).num_rows == 40
    assert sidecars.read(place, "feedback").num_rows == 20


# the command


def test_command_says_what_it_did(calls, claw, tmp_path):
    path = write_lines(tmp_path / "f.jsonl", [*FEEDBACK, {"step_uid": "none", "score": 1}])
    result = claw("attach", calls.path, path, "--name", "feedback")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines() == [
        "feedback: 2 of 3 rows matched, about 2 steps in 2 trajectories (--on step_uid=step_uid).",
        "Not joined: rows that match nothing 1, steps without a row 1.",
        "Columns: thumbs int64, score float64, text string, author string.",
        "2 rows are new in the sidecar feedback (version 0).",
    ]


def test_command_reports_in_json_and_reads_standard_input(calls, claw, tmp_path):
    path = write_lines(tmp_path / "f.jsonl", FEEDBACK)
    result = claw("attach", calls.path, path, "--name", "feedback", "-n", "--json")
    assert (result.code, result.err) == (0, "")
    assert list(result.report) == [
        *("claw_version", "command", "inputs", "output", "dry_run", "name", "on", "rows"),
        *("matched", "duplicates", "unmatched_rows", "without_value", "steps", "trajectories"),
        *("unmatched_steps", "unmatched_trajectories", "new", "columns", "warnings_by_code"),
        *("secrets_by_rule", "sidecar_version", "duration_s"),
    ]
    assert result.report["command"] == "attach"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{data}", "{file}", "--name", "Links"], 2, "cannot be called"),
        (["{data}", "{file}", "--name", "links"], 2, "claw itself writes"),
        (["{data}", "{file}", "--name", "x", "--on", "response=a"], 2, "cannot be joined on"),
        (["{data}", "{file}"], 2, "name"),
        (
            [
                "{data}",
                "{file}",
                "--name",
                "x",
                "--on",
                "native_id=text",
                "--on",
                "step_uid=step_uid",
            ],
            3,
            "names a step of",
        ),
        (["{data}", "{data}/none", "--name", "x"], 4, "none does not exist"),
        (["{data}/none", "{file}", "--name", "x"], 4, "none does not exist"),
    ],
)
def test_command_refuses_in_one_sentence_with_the_right_code(
    calls, claw, tmp_path, arguments, code, message
):
    path = write_lines(tmp_path / "f.jsonl", FEEDBACK)
    filled = [part.format(data=calls.path, file=path) for part in arguments]
    result = claw("attach", *filled, "--json")
    assert (result.code, result.out) == (code, "")
    assert message in result.error["message"]
    assert result.error["hint"]
