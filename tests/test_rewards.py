"""Rewards from files: reading, matching with steps and attempts, attaching."""

import csv
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_sidecars import data, scanned, step

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import DataError, NotFoundError, UsageError
from clawcli.ingest.attach import reports as reward_files
from clawcli.ingest.attach.plan import parse_on
from clawcli.ingest.attach.rewards import attach_rewards
from clawcli.store import location, sidecars, table


@pytest.fixture
def calls(tmp_path):
    """Two attempts: a of two calls r0, r1 (task 7, trial 0), b of one call r2 (task 7, trial 1)."""
    keys = {"task_id": "7", "agent": "x", "source_path": str(tmp_path / "logs" / "one" / "a.json")}
    other = {**keys, "source_path": str(tmp_path / "logs" / "two" / "b.json")}
    return data(
        tmp_path / "data",
        step("s0", "a", 0, native_id="r0", trial=0, metadata='{"user": {"id": 5}}', **keys),
        step("s1", "a", 1, native_id="r1", trial=0, metadata='{"user": {"id": 5}}', **keys),
        step("s2", "b", 0, native_id="r2", trial=1, metadata='{"user": {"id": 6}}', **other),
    )


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rewards(place):
    return scanned(place, "step_uid", "reward", "trajectory_reward")


def values(path, **options):
    return [
        (row.fields.get("task_id"), row.fields.get("reward"))
        for row in reward_files.read(str(path), **options)
    ]


# files


def test_one_table_in_every_container_gives_the_same_rewards(calls, tmp_path):
    rows = [{"native_id": "r0", "reward": 0.5}, {"native_id": "r2", "reward": 1}]
    lines(tmp_path / "lines", *rows)
    (tmp_path / "array").write_text(json.dumps(rows, indent=2))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet")
    for name, delimiter in (("csv", ","), ("tsv", "\t")):
        with (tmp_path / name).open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, ["native_id", "reward"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    for name in ("lines", "array", "parquet", "csv", "tsv"):
        report = attach_rewards(calls, str(tmp_path / name), dry_run=True)
        assert (report.rewards_rows, report.rewards_matched) == (2, 2), name
    (tmp_path / "gz").write_bytes(gzip.compress((tmp_path / "csv").read_bytes()))
    attach_rewards(calls, str(tmp_path / "gz"))
    assert rewards(calls) == [("s0", 0.5, None), ("s1", None, None), ("s2", 1.0, None)]


def test_swebench_run_report_judges_what_was_submitted_and_run(tmp_path):
    report = {
        "total_instances": 9,
        "completed_ids": ["a", "b"],
        "incomplete_ids": ["never-tried"],
        "empty_patch_ids": ["c"],
        "submitted_ids": ["a", "b", "c", "d"],
        "resolved_ids": ["a"],
        "unresolved_ids": ["b"],
        "error_ids": ["d"],
        "schema_version": 2,
    }
    (tmp_path / "m.run.json").write_text(json.dumps(report))
    assert values(tmp_path / "m.run.json") == [("a", 1.0), ("b", 0.0), ("c", 0.0), ("d", None)]


def test_swebench_results_overlap_and_the_best_outcome_counts(tmp_path):
    results = {
        "no_generation": ["c"],
        "generated": ["a", "b", "d", "e"],
        "with_logs": ["a", "b", "d"],
        "install_fail": ["d"],
        "applied": ["a", "b"],
        "resolved": ["a"],
        "no_logs": ["e"],
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = dict(values(tmp_path / "results.json"))
    assert found == {"a": 1.0, "b": 0.0, "c": 0.0, "d": None, "e": None}


def test_swebench_reports_of_a_folder_are_read_by_instance(calls, tmp_path):
    for name, resolved in (("7", True), ("8", False)):
        folder = tmp_path / "eval" / name
        folder.mkdir(parents=True)
        outcome = {"patch_exists": True, "resolved": resolved, "tests_status": {}}
        (folder / "report.json").write_text(json.dumps({name: outcome}))
    rows = reward_files.read(str(tmp_path / "eval"))
    assert [(r.fields["task_id"], r.fields["resolved"]) for r in rows] == [
        ("7", True),
        ("8", False),
    ]


def test_terminal_bench_results_are_read_one_by_one(calls, tmp_path):
    results = [{"task_id": "7", "trial_name": "7.1", "is_resolved": True}, {"task_id": "8"}]
    (tmp_path / "results.json").write_text(json.dumps({"results": results, "accuracy": 0.5}))
    rows = reward_files.read(str(tmp_path / "results.json"))
    assert [row.fields["task_id"] for row in rows] == ["7", "8"]


def harbor(folder, rewards, **extra):
    folder.mkdir(parents=True, exist_ok=True)
    trial = {
        "task_name": "org/task",
        "trial_name": folder.name,
        "task_id": {"path": "tasks/task"},
        "agent_info": {"name": "terminus-2", "version": "2"},
        "verifier_result": None if rewards is None else {"rewards": rewards},
        **extra,
    }
    (folder / "result.json").write_text(json.dumps(trial))


def test_harbor_trials_find_the_logs_in_their_own_folders(calls, tmp_path, monkeypatch):
    logs = tmp_path / "logs"
    harbor(logs / "one", {"reward": 1.0, "style": 0.2})
    harbor(logs / "two", {"passed": 0.0})
    harbor(logs / "three", None)
    (logs / "result.json").write_text(json.dumps({"n_total_trials": 3, "stats": {}}))
    monkeypatch.chdir(tmp_path)
    report = attach_rewards(calls, "logs")
    assert report.rewards_on == ("source_path=source_path", "trajectory_reward=reward")
    assert (report.rewards_rows, report.rewards_matched, report.rewards_without_value) == (3, 2, 1)
    assert rewards(calls) == [("s0", None, 1.0), ("s1", 1.0, 1.0), ("s2", 0.0, 0.0)]


def test_harbor_trial_with_several_rewards_asks_which(calls, tmp_path):
    harbor(tmp_path / "logs" / "one", {"style": 0.2, "tests": 1.0})
    path = str(tmp_path / "logs" / "one" / "result.json")
    with pytest.raises(DataError, match="style, tests") as caught:
        attach_rewards(calls, path)
    assert "--on reward=verifier_result.rewards.style" in str(caught.value)
    attach_rewards(calls, path, on={"reward": "verifier_result.rewards.tests"})
    assert rewards(calls)[0] == ("s0", None, 1.0)


def test_harbor_job_summary_alone_is_refused_with_the_way(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"n_total_trials": 3, "stats": {}}))
    with pytest.raises(DataError, match="sums up a Harbor job"):
        reward_files.read(str(tmp_path / "result.json"))
    with pytest.raises(NotFoundError, match="holds no report"):
        reward_files.read(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"native_id": "a", "reward": 1}\n{"native_id": "b", \n', "line 2 is not JSON"),
        (b"[1, 2]", "element 1 is not an object"),
        (b'{"a": 1}\n"text"\n', "line 2 is not an object"),
        (b"native_id,reward\na,1\nb\n", "line 3 has not as many fields"),
        (b"native_id,reward\na,1,2\n", "line 2 has not as many fields"),
        (b'native_id,reward\n"a,1\n', "is no CSV"),
        (b"\xff\xfe\x00", "neither Parquet nor UTF-8"),
        (b"PAR1 and no more", "no whole Parquet"),
        (b"[" * 100_000, "not JSON"),
        (gzip.compress(b"native_id,reward\na,1\n" * 99, mtime=0)[:-20], "breaks off"),
    ],
)
def test_file_that_is_broken_is_one_sentence_that_says_where(tmp_path, content, message):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match=message):
        reward_files.read(str(tmp_path / "f"))


def test_file_without_rows_attaches_nothing(calls, tmp_path):
    for content in ("", "native_id,reward\n", "[]"):
        (tmp_path / "f").write_text(content)
        report = attach_rewards(calls, str(tmp_path / "f"))
        assert (report.rewards_rows, report.rewards_unmatched_trajectories) == (0, 2)
    assert sidecars.versions(calls) == {}


def test_file_that_is_not_there_is_said(calls, tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        attach_rewards(calls, str(tmp_path / "none.csv"))


# keys


def test_key_of_another_name_is_mapped_and_nested_fields_are_dotted(calls, tmp_path):
    path = lines(tmp_path / "f", {"call": {"id": "r1"}, "grade": {"score": 0.25}})
    report = attach_rewards(calls, path, on={"native_id": "call.id", "reward": "grade.score"})
    assert report.rewards_on == ("native_id=call.id", "reward=grade.score")
    assert rewards(calls)[1] == ("s1", 0.25, None)


def test_keys_are_joined_by_and_whatever_their_types(calls, tmp_path):
    (tmp_path / "f.csv").write_text("task_id,trial,reward\n7,1.0,1\n7,2,1\n8,1,1\n")
    report = attach_rewards(calls, str(tmp_path / "f.csv"))
    assert report.rewards_on == ("task_id=task_id", "trial=trial", "trajectory_reward=reward")
    assert (report.rewards_matched, report.rewards_unmatched_rows) == (1, 2)
    assert (report.rewards_unmatched_trajectories, report.trajectories_rewarded) == (1, 1)
    assert rewards(calls) == [("s0", None, None), ("s1", None, None), ("s2", 1.0, 1.0)]


def test_numbers_of_a_file_find_keys_that_are_text(calls, tmp_path):
    report = attach_rewards(calls, lines(tmp_path / "f", {"task_id": 7, "trial": 0, "reward": 1}))
    assert (report.rewards_matched, report.steps_rewarded) == (1, 2)


def test_row_that_names_several_attempts_is_refused_with_counts(calls, tmp_path):
    path = lines(tmp_path / "f", {"task_id": "7", "reward": 1}, {"task_id": 7.0, "reward": 0})
    with pytest.raises(
        DataError, match=r"line 1 names 2 attempts by task_id, and 1 more"
    ) as caught:
        attach_rewards(calls, path)
    assert "trial" in caught.value.hint
    assert sidecars.versions(calls) == {}


def test_row_that_names_several_choices_of_a_call_is_refused_until_choice_index_is_there(tmp_path):
    place = data(
        tmp_path / "d",
        step("s0", "a", native_id="r"),
        step("s1", "b", native_id="r", choice_index=1, trajectory_kind="sample"),
    )
    path = lines(tmp_path / "f", {"id": "r", "choice": 1, "reward": 1})
    with pytest.raises(DataError, match="names 2 steps by native_id"):
        attach_rewards(place, path, on={"native_id": "id"})
    attach_rewards(place, path, on={"native_id": "id", "choice_index": "choice"})
    assert rewards(place) == [("s0", None, None), ("s1", 1.0, None)]


def test_attempt_keys_mean_the_attempt_and_not_its_branches(tmp_path):
    keys = {"task_id": "7", "trial": 0, "metadata": '{"session": "x"}'}
    place = data(
        tmp_path / "d",
        step("s0", "a", **keys),
        step("s1", "a/branch", 1, trajectory_kind="branch", parent_step_uid="s0", **keys),
        step("s2", "a/sub", trajectory_kind="subagent", **keys),
    )
    path = lines(tmp_path / "f", {"task_id": 7, "trial": 0, "reward": 1, "session": "x"})
    for on in ({}, {"metadata.session": "session", "trajectory_reward": "reward"}):
        report = attach_rewards(place, path, on=on)
        assert (report.rewards_matched, report.rewards_unmatched_trajectories) == (1, 0)
    assert rewards(place) == [("s0", 1.0, 1.0), ("s1", None, None), ("s2", None, None)]


def test_trajectory_reward_of_a_step_goes_to_its_attempt(calls, tmp_path):
    path = lines(tmp_path / "f", {"id": "r0", "outcome": "true"})
    on = {"native_id": "id", "trajectory_reward": "outcome"}
    report = attach_rewards(calls, path, on=on)
    assert (report.trajectories_rewarded, report.steps_rewarded) == (1, 2)
    assert rewards(calls)[:2] == [("s0", None, 1.0), ("s1", 1.0, 1.0)]


def test_metadata_path_is_a_key(calls, tmp_path):
    path = lines(tmp_path / "f", {"user": 5, "trajectory_reward": 0.5})
    report = attach_rewards(calls, path, on={"metadata.user.id": "user"})
    assert (report.trajectories_rewarded, report.rewards_unmatched_trajectories) == (1, 1)
    assert rewards(calls)[:2] == [("s0", None, 0.5), ("s1", 0.5, 0.5)]


def test_source_path_is_the_file_or_a_folder_above_that_holds_one_attempt(calls, tmp_path):
    folder = str(tmp_path / "logs" / "one") + os.sep
    attach_rewards(calls, lines(tmp_path / "f", {"source_path": folder, "reward": 1}))
    file = str(tmp_path / "logs" / "two" / "b.json")
    attach_rewards(calls, lines(tmp_path / "g", {"source_path": file, "reward": 0}))
    assert rewards(calls) == [("s0", None, 1.0), ("s1", 1.0, 1.0), ("s2", 0.0, 0.0)]
    both = lines(tmp_path / "h", {"source_path": str(tmp_path / "logs"), "reward": 1})
    with pytest.raises(DataError, match="names 2 attempts by source_path"):
        attach_rewards(calls, both)


def test_file_without_key_or_reward_says_what_fields_it_has(calls, tmp_path):
    with pytest.raises(DataError, match="names steps or attempts; its fields: id, reward"):
        attach_rewards(calls, lines(tmp_path / "f", {"id": "r0", "reward": 1}))
    with pytest.raises(DataError, match="no field reward; its fields: native_id, score"):
        attach_rewards(calls, lines(tmp_path / "g", {"native_id": "r0", "score": 1}))
    with pytest.raises(DataError, match="no field scor; its fields: native_id, score"):
        attach_rewards(calls, str(tmp_path / "g"), on={"reward": "scor"})


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["native_id"], "no COLUMN=FIELD"),
        (["=id"], "no COLUMN=FIELD"),
        (["native_id=a", "native_id=b"], "given twice"),
        (["response=a"], "cannot be joined on response"),
        (["reward=a", "trajectory_reward=b"], "both"),
    ],
)
def test_on_that_cannot_be_is_a_usage_error(pairs, message):
    with pytest.raises(UsageError, match=message):
        parse_on(pairs)


# values


@pytest.mark.parametrize(
    ("value", "reward"),
    [(1, 1.0), (-0.5, -0.5), (True, 1.0), (False, 0.0), ("0.5", 0.5), (" TRUE ", 1.0), ("0", 0.0)],
)
def test_value_is_a_number_a_bool_or_text_of_either(calls, tmp_path, value, reward):
    attach_rewards(calls, lines(tmp_path / "f", {"native_id": "r0", "reward": value}))
    assert rewards(calls)[0] == ("s0", reward, None)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (float("nan"), "reward_not_finite"),
        (float("-inf"), "reward_not_finite"),
        (10**400, "reward_not_finite"),
        ("pass", "reward_not_a_number"),
        ([1], "reward_not_a_number"),
        (None, "reward_missing"),
        ("", "reward_missing"),
    ],
)
def test_value_that_is_no_finite_number_attaches_nothing_and_is_counted(
    calls, tmp_path, value, code
):
    report = attach_rewards(calls, lines(tmp_path / "f", {"native_id": "r0", "reward": value}))
    assert report.rewards_warnings_by_code == {code: 1}
    assert (report.rewards_without_value, report.rewards_matched) == (1, 0)
    assert sidecars.versions(calls) == {}


def test_rows_that_repeat_count_once_and_all_rows_are_accounted_for(calls, tmp_path):
    row = {"native_id": "r0", "reward": 1}
    path = lines(
        tmp_path / "f",
        row,
        {**row, "reward": "1.0"},
        {**row, "native_id": "zz"},
        {**row, "native_id": None},
        {**row, "reward": None},
    )
    report = attach_rewards(calls, path)
    assert report.rewards_rows == 5
    assert (report.rewards_matched, report.rewards_duplicates) == (1, 1)
    assert (report.rewards_unmatched_rows, report.rewards_without_value) == (2, 1)


def test_rows_that_contradict_each_other_are_refused_with_both_places(calls, tmp_path):
    path = lines(
        tmp_path / "f", {"native_id": "r0", "reward": 1}, {"native_id": "r0", "reward": 0.5}
    )
    with pytest.raises(DataError, match=r"f line 1 and .*f line 2 .* step s0: 1 and 0\.5"):
        attach_rewards(calls, path)


def test_two_keys_of_one_attempt_that_contradict_each_other_are_refused(calls, tmp_path):
    rows = [{"id": "r0", "r": 1}, {"id": "r1", "r": 0}]
    with pytest.raises(DataError, match="trajectory a"):
        attach_rewards(
            calls, lines(tmp_path / "f", *rows), on={"native_id": "id", "trajectory_reward": "r"}
        )


def test_ends_are_attached_where_they_are_named(calls, tmp_path):
    path = lines(tmp_path / "f", {"task_id": 7, "trial": 0, "reward": 1, "done": True})
    attach_rewards(calls, path)
    assert scanned(calls, "terminated")[1] == (None,)
    on = {"task_id": "task_id", "trial": "trial", "terminated": "done"}
    assert attach_rewards(calls, path, on=on).rewards_new == 1
    assert scanned(calls, "terminated")[:2] == [(None,), (True,)]


# attaching


def test_same_file_again_adds_nothing(calls, tmp_path):
    path = lines(tmp_path / "f", {"native_id": "r0", "reward": 1}, {"native_id": "r1", "reward": 0})
    first, again = attach_rewards(calls, path), attach_rewards(calls, path)
    assert (first.rewards_new, first.rewards_version) == (2, 0)
    assert (again.rewards_new, again.rewards_version, again.rewards_matched) == (0, 0, 2)


def test_corrected_file_attaches_what_changed(calls, tmp_path):
    rows = [{"native_id": "r0", "reward": 1}, {"native_id": "r1", "reward": 0}]
    attach_rewards(calls, lines(tmp_path / "f", *rows))
    rows[1]["reward"] = 0.75
    assert attach_rewards(calls, lines(tmp_path / "f", *rows)).rewards_new == 1
    assert rewards(calls)[:2] == [("s0", 1.0, None), ("s1", 0.75, None)]


def test_reward_source_names_the_file(calls, tmp_path):
    path = lines(tmp_path / "f", {"native_id": "r0", "reward": 1})
    attach_rewards(calls, path)
    assert scanned(calls, "reward_source") == [(f"rewards:{path}",), (None,), (None,)]


def test_file_whose_name_is_no_utf8_is_attached(calls, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")
    with open(path, "w") as file:  # noqa: PTH123 - as a shell would hand it over
        file.write('{"native_id": "r0", "reward": 1}')
    attach_rewards(calls, path)
    assert scanned(calls, "reward_source")[0][0].endswith("/\\xff.jsonl")


def test_dry_run_counts_the_same_and_writes_nothing(calls, tmp_path):
    path = lines(tmp_path / "f", {"native_id": "r0", "reward": 1}, {"native_id": "x", "reward": 1})
    before = sorted(p for p in calls.path.rglob("*"))
    dry = attach_rewards(calls, path, dry_run=True)
    assert sorted(p for p in calls.path.rglob("*")) == before
    real = attach_rewards(calls, path)
    assert (dry.rewards_version, real.rewards_version) == (None, 0)
    assert dry.rewards_new == real.rewards_new == 1


def test_dry_run_of_an_ingest_matches_steps_that_are_not_stored(calls, tmp_path):
    pending = table.read(calls)
    nowhere = location.Location(tmp_path / "none")
    path = lines(tmp_path / "f", {"native_id": "r0", "reward": 1})
    report = attach_rewards(nowhere, path, dry_run=True, pending=pending)
    assert (report.rewards_matched, report.rewards_unmatched_trajectories) == (1, 1)
    assert not nowhere.path.exists()


def test_attempts_with_step_rewards_of_their_own_are_counted(tmp_path):
    place = data(
        tmp_path / "d",
        step("s0", "a", 0, reward=0.5),
        step("s1", "a", 1),
        step("s2", "b", 0, reward=1.0, trajectory_reward=1.0),
        step("s3", "c", 0),
    )
    rows = [{"trajectory_uid": uid, "reward": 0.0} for uid in "abc"]
    report = attach_rewards(place, lines(tmp_path / "f", *rows))
    assert report.rewards_warnings_by_code == {"step_rewards_kept": 1}
    assert [row[1] for row in rewards(place)] == [0.5, None, 0.0, 0.0]


def test_curated_directory_is_refused_with_the_way(calls, tmp_path):
    curate(CurateConfig(input=str(calls.path), output=str(tmp_path / "c"), where="true"))
    path = lines(tmp_path / "f", {"native_id": "r0", "reward": 1})
    with pytest.raises(DataError, match="frozen"):
        attach_rewards(location.existing(str(tmp_path / "c")), path)
