import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import assistant, pair, user, write_lines
from forget_data import WHERE, both, files, rows, rows_hash, run, search
from table_data import commit, steps_like, steps_of
from test_curate import HOSTILE

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import (
    ConflictError,
    DataError,
    NotFoundError,
    StoreError,
    UsageError,
    WhereError,
)
from clawcli.manage.forget import ForgetConfig, forget
from clawcli.store import location, log, query, registry, sidecars, table, tags, tombstones
from clawcli.store.location import Location
from clawcli.store.state import States


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    place = tmp_path_factory.mktemp("both")
    return place, both(place)[1].all


@pytest.fixture
def data(template, tmp_path):
    """The directory, beside it the logs."""
    shutil.copytree(template[0], tmp_path, dirs_exist_ok=True)
    return tmp_path / "data"


@pytest.fixture
def words(template):
    return template[1]


def run_forget(data, where=WHERE, **options):
    return forget(ForgetConfig(input=str(data), where=where, **options))


def states(data):
    walk = query.load_steps(location.existing(str(data)))
    found = States(walk)
    return {uid: found.prompt(row) for row, uid in enumerate(walk["step_uid"].to_pylist())}


def made(tmp_path, *given):
    """A directory with rows as they are given: uid, parent, and other columns."""
    steps = steps_of(
        *(
            {
                "step_uid": uid,
                "next_hash": f"n{uid}",
                "parent_step_uid": parent,
                "prefix_messages": 0 if parent is None else 1,
                "trajectory_uid": "t",
                "source_uid": "s",
                "source_path": "p",
                "source_offset": place,
                "step_index": place,
                "choice_index": 0,
                "loss_weight": 1.0,
                "log_format": "chat",
                "log_date": "2026-01-01",
                **more,
            }
            for place, (uid, parent, more) in enumerate(given)
        )
    )
    commit(tmp_path / "data" / "steps", steps)
    return tmp_path / "data"


def uids(data):
    return set(rows(data))


def test_forget_leaves_none_of_100_planted_strings_in_any_byte(data, words, tmp_path):
    assert len(words) >= 100
    assert search(data, words) == set(words)
    before, seen = rows(data), states(data)
    report = run_forget(data)
    assert search(data, ["PLANT", *words]) == set()
    kept = {uid: row for uid, row in before.items() if "PLANT" not in row["source_path"]}
    assert rows(data) == kept != {}
    assert states(data) == {uid: seen[uid] for uid in kept}
    assert report.steps == len(before) - len(kept) == report.steps_matched
    assert report.sidecar_rows_by_name["seen_in"] == 2
    assert report.sidecar_rows_by_name["rewards"] == 1
    assert report.sources == 3
    assert report.versions_removed >= 10
    assert report.tombstones_total == report.steps
    assert set(tombstones.read(Location(data))) == before.keys() - kept.keys()


def test_forget_next_ingest_of_the_same_logs_brings_nothing_back(data, tmp_path):
    run_forget(data)
    before = rows(data)
    report = run(data, tmp_path / "logs")
    assert (report.steps, report.rejects, rows(data)) == (0, 0, before)
    assert search(data, ["PLANT"]) == set()


def test_forget_a_step_takes_all_that_goes_on_from_it_and_leaves_what_it_needs(tmp_path):
    data = made(
        tmp_path,
        ("a", None, {}),
        ("b", "a", {"response": "x"}),
        ("c", "b", {}),
        ("d", "c", {"prefix_messages": 0}),
        ("e", "a", {}),
    )
    report = run_forget(data, "response = 'x'")
    assert uids(data) == {"a", "e"}
    assert (report.steps_matched, report.steps_descendants, report.steps_context) == (1, 2, 0)
    assert (report.trajectories, report.trajectories_cut, report.steps_total) == (0, 1, 2)
    assert report.steps_null == 4


def test_forget_context_goes_with_the_last_step_that_needed_it(tmp_path):
    context = {"loss_weight": 0.0}
    data = made(
        tmp_path,
        ("a", None, context),
        ("b", "a", context),
        ("c", "b", {"response": "x"}),
        ("d", "a", {"response": "y"}),
    )
    report = run_forget(data, "response = 'x'")
    assert (uids(data), report.steps_context) == ({"a", "d"}, 1)
    assert run_forget(data, "response = 'y'").steps_context == 1
    assert uids(data) == set()


def test_forget_that_matches_nothing_is_an_answer_and_rewrites_nothing(data, tmp_path, claw):
    run(data, tmp_path / "logs" / "stays.jsonl")
    before = files(data)
    result = claw("forget", data, "--where", "task_id = 'nobody'", "--json")
    assert (result.code, result.err) == (0, "")
    counts = (result.report[key] for key in ("steps", "versions_removed", "files_removed"))
    assert list(counts) == [0, 0, 0]
    assert files(data) == before


def test_forget_dry_run_counts_the_same_and_changes_nothing(data, tmp_path):
    before = files(data)
    said = run_forget(data, dry_run=True)
    assert files(data) == before
    done = run_forget(data)
    for name in ("steps", "trajectories", "sources", "sidecar_rows_by_name", "rejects"):
        assert getattr(said, name) == getattr(done, name)
    assert said.versions_removed == done.versions_removed
    assert (said.tombstones_total, said.files_removed) == (done.tombstones_total, None)
    assert said.steps_total == done.steps_total + done.steps


def test_forget_keeps_a_tagged_version_without_such_rows_hash_for_hash(data, words, tmp_path):
    tags.put(Location(data), "clean", 0)
    before = rows_hash(data, 0)
    run_forget(data)
    assert rows_hash(data, 0) == before
    assert location.parse(f"{data}@clean").version == 0
    assert search(data, words) == set()
    # and once more, when the log begins anew already
    run_forget(data, "task_id = '2'")
    assert rows_hash(data, 0) == before
    with pytest.raises(NotFoundError, match="has no version 1 any more: claw forget let go of it"):
        table.read(Location(data, 1))


def test_forget_masks_paths_that_a_tagged_version_names_without_a_row(tmp_path):
    data, log = tmp_path / "data", tmp_path / "acme.jsonl"
    failed = {"request": {"model": "m", "messages": [user("x")]}, "response": {"error": "x"}}
    write_lines(log, [failed])
    run(data, write_lines(tmp_path / "stays.jsonl", [pair([user("s")], assistant("s"))]), log)
    tags.put(Location(data), "clean", 0)
    before = rows_hash(data, 0)
    with log.open("a") as file:
        file.write(json.dumps(pair([user("a")], assistant("a"), uid="a")) + "\n")
    run(data, log)
    assert run_forget(data, "native_id = 'a'").steps == 1
    assert rows_hash(data, 0) == before
    assert search(data, ["acme"]) == set()
    table.restore(data / "steps", 0, info={"command": "restore"})
    assert run(data, tmp_path / "stays.jsonl").files_unchanged == 1


def test_forget_refuses_tags_on_such_rows_and_drops_them_when_told(data, words, tmp_path, claw):
    for name, version in (("clean", 0), ("old", 1), ("new", 2)):
        tags.put(Location(data), name, version)
    before = files(data)
    result = claw("forget", data, "--where", WHERE)
    assert (result.code, result.out) == (2, "")
    assert "new, old" in result.err
    assert "--yes-drop-tags" in result.err
    assert files(data) == before
    report = run_forget(data, yes_drop_tags=True)
    assert report.tags_dropped == ("new", "old")
    assert tags.read(Location(data)) == {"clean": 0}
    assert search(data, words) == set()


def test_forget_finds_steps_that_only_an_older_version_holds(data, words, tmp_path):
    table.restore(data / "steps", 0, info={"command": "restore"})
    assert not any("PLANT" in row["source_path"] for row in rows(data).values())
    report = run_forget(data)
    assert report.steps > 0
    assert search(data, words) == set()


def test_forget_removes_what_a_killed_run_left_beside(data, tmp_path):
    table.write_files(data / "steps", steps_like(0, 3, response="PLANT left"))
    (data / "steps" / "part-torn.parquet").write_bytes(b"PLANT torn")
    assert search(data, ["PLANT left", "PLANT torn"]) == {"PLANT left", "PLANT torn"}
    run_forget(data)
    assert search(data, ["PLANT"]) == set()


def test_forget_sidecar_rows_go_with_their_step_or_their_whole_trajectory(tmp_path):
    data = made(
        tmp_path,
        ("a", None, {"trajectory_uid": "t"}),
        ("b", "a", {"trajectory_uid": "t", "response": "x"}),
        ("c", None, {"trajectory_uid": "u", "response": "x"}),
        ("d", None, {"trajectory_uid": "v", "response": "y"}),
    )
    place = Location(data)
    told = [("a", None), ("b", None), ("c", None), (None, "t"), (None, "u")]
    feedback = pa.table(
        {
            "step_uid": pa.array([step for step, _ in told], pa.string()),
            "trajectory_uid": pa.array([trajectory for _, trajectory in told], pa.string()),
            "text": [f"PLANT {step}{trajectory}" for step, trajectory in told],
        }
    )
    for start in range(5):
        info = {"command": "attach", "file": f"of {start}"}
        sidecars.append(place, "feedback", feedback.slice(start, 1), info=info)
    report = run_forget(data, "response = 'x'")
    assert report.sidecar_rows_by_name == {"feedback": 3}
    left = sidecars.read(place, "feedback").to_pylist()
    assert [row["text"] for row in left] == ["PLANT aNone", "PLANT Nonet"]
    assert [row["sidecar_version"] for row in left] == [0, 3]
    assert search(data, ["PLANT bNone", "PLANT cNone", "PLANT Noneu", "of 1", "of 2"]) == set()
    assert search(data, ["of 0", "of 3"]) == {"of 0", "of 3"}
    assert run_forget(data, "response = 'y'").sidecar_rows_by_name == {"feedback": 0}
    assert search(data, ["of 0", "of 3"]) == {"of 0", "of 3"}
    # its versions go on, so that what comes later counts as newer
    later = feedback.slice(0, 1).set_column(2, "text", pa.array(["later"]))
    assert sidecars.append(place, "feedback", later, info={}) == 7
    assert sidecars.read(place, "feedback")["text"].to_pylist() == ["PLANT Nonet", "later"]
    assert run_forget(data, "step_uid = 'a'").sidecar_rows_by_name == {"feedback": 3}
    assert search(data, ["of 0", "of 3", "PLANT", "later"]) == set()


def reject(source, offset, **more):
    told = {"detail": "PLANT d", "first_bytes": "PLANT f", "source_path": "p", "reward": 1.0}
    place = {"source_uid": source, "source_offset": offset, "fate": "rejected", "reason": "r"}
    return {**place, **told, **more}


def test_forget_rejects_lose_what_they_tell_by_source_offset_and_task(tmp_path):
    data = made(
        tmp_path,
        ("a", None, {"source_uid": "whole", "response": "x"}),
        ("b", None, {"source_uid": "mixed", "response": "x", "task_id": "gone"}),
        ("c", None, {"source_uid": "mixed", "task_id": "both"}),
        ("d", None, {"source_uid": "mixed", "task_id": "both", "response": "x"}),
        ("e", None, {"source_uid": "other", "task_id": "t"}),
    )
    given = [
        reject("whole", 9),
        reject("mixed", 1),
        reject("mixed", 7, task_id="both"),
        reject("other", 8, task_id="gone"),
        reject("other", 9, task_id="t"),
    ]
    from clawcli import schema

    rejects = pa.Table.from_pylist(given, schema=schema.arrow_schema(schema.REJECTS))
    table.append(data / "rejects", rejects, info={})
    report = run_forget(data, "response = 'x'")
    assert (report.rejects, report.rejects_without_text) == (3, 1)
    found = table.read(Location(data), "rejects").to_pylist()
    told = ("source_path", "task_id", "reward", "detail", "first_bytes")
    assert [[row[name] for name in told] for row in found] == [
        [None] * 5,
        [None] * 5,
        ["p", "both", 1.0, None, None],
        [None] * 5,
        ["p", "t", 1.0, "PLANT d", "PLANT f"],
    ]
    assert [row["source_offset"] for row in found] == [9, 1, 7, 8, 9]
    assert {row["reason"] for row in found} == {"r"}


def test_forget_lists_what_was_made_of_the_directory(data, tmp_path, claw):
    for source, name in ((data, "one"), (tmp_path / "one", "two"), (data, "lost")):
        output = str(tmp_path / name)
        curate(CurateConfig(input=str(source), output=output, where="true"))
    (tmp_path / "lost").rename(tmp_path / "elsewhere")
    version = table.open_table(data / "steps").version()
    result = claw("forget", data, "--where", WHERE)
    assert result.code == 0
    assert f"Made of version {version}: {tmp_path}/one (data) may hold the text." in result.err
    assert f"{tmp_path}/two (data) may hold the text." in result.err
    assert f"{tmp_path}/lost (data) is not there any more." in result.err
    assert "Copies made by hand" in result.err
    assert [Path(row.path).name for row in registry.read(Location(data))] == ["one", "lost"]


def test_forget_receipt_is_flat_and_complete(data, tmp_path, claw):
    report = claw("forget", data, "--where", WHERE, "--json").report
    assert report["command"] == "forget"
    assert report["steps"] == report["steps_matched"] + report["steps_descendants"]
    assert report["bytes_removed"] > 10_000
    assert report["files_removed"] > report["versions_removed"] > 0
    assert report["table_version"] == table.open_table(data / "steps").version()
    assert (report["derived"], report["tags_dropped"]) == ([], [])


def test_forget_a_curated_directory_is_refused(data, tmp_path, claw):
    curate(CurateConfig(input=str(data), output=str(tmp_path / "out"), where="true"))
    result = claw("forget", tmp_path / "out", "--where", WHERE)
    assert result.code == DataError.exit_code
    assert "was curated" in result.err


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("data@1", UsageError, "names a version"),
        ("data@clean", UsageError, "names a version"),
        ("no", NotFoundError, "does not exist"),
        ("logs", DataError, "no data directory|not a data directory"),
        ("s3://bucket/data", UsageError, "is in an object store"),
    ],
)
def test_forget_elsewhere_is_one_sentence(data, tmp_path, monkeypatch, name, error, said):
    tags.put(Location(data), "clean", 0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=said):
        run_forget(name)


@pytest.mark.parametrize(("where", "problem"), HOSTILE)
def test_forget_hostile_expression_is_refused_and_changes_nothing(tmp_path, where, problem):
    data = made(tmp_path, ("a", None, {"reward": 1.0}))
    table.append(data / "rejects", pa.table({"source_uid": ["s"]}), info={})
    before = files(data)
    with pytest.raises(WhereError, match=problem):
        run_forget(data, where)
    assert {**files(data), ".lock": b"", ".runs": b""} == {**before, ".lock": b"", ".runs": b""}


def test_forget_endless_expression_is_stopped(tmp_path):
    data = made(tmp_path, ("a", None, {}))
    with pytest.raises(WhereError, match=r"did not end within 0\.3 s"):
        run_forget(data, "(select count(*) from range(100000000000)) > 0", where_timeout_s=0.3)


def test_forget_waits_for_nobody_and_is_refused_while_a_run_is_at_work(tmp_path):
    data = made(tmp_path, ("a", None, {"response": "x"}))
    with table.at_work(data), pytest.raises(ConflictError, match="Another run is at work"):
        run_forget(data, "response = 'x'")
    assert uids(data) == {"a"}


def test_forget_with_a_damaged_plan_is_one_sentence(tmp_path):
    data = made(tmp_path, ("a", None, {"response": "x"}))
    (data / "forgetting.json").write_text("{")
    with pytest.raises(StoreError, match=r"forgetting\.json is damaged"):
        run_forget(data, "response = 'x'")


def test_forget_plan_of_a_killed_run_is_ended_by_any_other(tmp_path):
    from clawcli.manage import forget_plan

    data = made(tmp_path, ("a", None, {"response": "x"}), ("b", None, {"response": "y"}))
    plan, _ = forget_plan.make(Location(data), "response = 'x'", timeout_s=9)
    forget_plan.begin(Location(data), plan)
    assert run_forget(data, "response = 'z'").steps == 1
    assert uids(data) == {"b"}
    assert not (data / "forgetting.json").exists()


def test_forget_masks_inputs_and_settings_of_runs_that_read_nothing_else(tmp_path):
    data = tmp_path / "data"
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("acme", "stays"):
        write_lines(logs / f"{name}.jsonl", [pair([user(name)], assistant(name), uid=name)])
    run(data, logs / "acme.jsonl", source_name="acme inc")
    run(data, logs / "stays.jsonl", since="2020-01-01")
    run(data, f"{logs}/a*.jsonl", f"{logs}/st*.jsonl", logs)
    run_forget(data, "native_id = 'acme'")
    assert search(data, ["acme", "a*.jsonl"]) == set()
    (info,) = log.history(data / "steps")
    first, second, *_ = info["runs"]
    assert "config" not in first
    assert (second["inputs"], second["config"]) == (
        [f"{logs}/stays.jsonl"],
        {"since": "2020-01-01"},
    )
    assert "where" not in json.dumps(info)
