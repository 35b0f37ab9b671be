"""claw log, tag and restore: versions of a data directory, by the command line and by functions."""

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import ROOT, assistant, pair, system, user, write_lines
from deltalake import write_deltalake
from table_data import steps_like, three_days

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import ConflictError, StoreError, UsageError
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.manage.forget import ForgetConfig, forget
from clawcli.manage.log import LogConfig, log_of
from clawcli.manage.optimize import OptimizeConfig, optimize
from clawcli.manage.restore import RestoreConfig, restore
from clawcli.manage.tag import TagConfig, tag
from clawcli.store import location, sidecars, table


def run(data, *inputs, **options):
    return ingest(IngestConfig(inputs=tuple(map(str, inputs)), output=str(data), **options))


def back(data, version):
    return restore(RestoreConfig(input=f"{data}@{version}"))


def rows(data, part="steps"):
    found = table.read(location.parse(str(data)), part)
    keys = [name for name in ("step_uid", "sidecar_version") if name in found.column_names]
    return found.sort_by([(name, "ascending") for name in keys]) if keys else found


def chat(turns, name="m"):
    """Records of one conversation, a call each."""
    records, messages = [], [system("s"), user(f"{name} begins")]
    for turn in range(turns):
        said = assistant(f"{name} says {turn}")
        records.append(pair(messages, said, at=float(turn), uid=f"{name}{turn}"))
        messages = [*messages, said, user(f"{name} on {turn}")]
    return records


@pytest.fixture
def logs(tmp_path):
    """Two logs, each a version of its own in the directory data."""
    write_lines(tmp_path / "a.jsonl", chat(2, "a"))
    write_lines(tmp_path / "b.jsonl", chat(3, "b"))
    for name in "ab":
        run(tmp_path / "data", tmp_path / f"{name}.jsonl")
    return tmp_path


# -- log ---------------------------------------------------------------------------------------


def test_log_lists_versions_newest_first_with_what_made_them(logs):
    tag(TagConfig(input=f"{logs}/data@0", name="first"))
    report = log_of(LogConfig(input=f"{logs}/data"))
    told = [(v.version, v.command, v.steps_added, v.steps_removed) for v in report.versions]
    assert told == [(1, "ingest", 3, 0), (0, "ingest", 2, 0)]
    assert [v.tags for v in report.versions] == [(), ("first",)]
    assert (report.versions_total, report.versions_by_tag) == (2, {"first": 0})
    assert report.versions[0].committed_at > report.versions[1].committed_at


def test_log_of_changed_steps_counts_them_apart(logs):
    late = write_lines(logs / "late.jsonl", chat(4, "late")[1:])
    first = write_lines(logs / "first.jsonl", chat(4, "late")[:1])
    run(logs / "data", late)
    changed = run(logs / "data", first)
    newest = log_of(LogConfig(input=f"{logs}/data", limit=1)).versions[0]
    assert changed.steps_changed > 0
    told = (newest.steps_added, newest.steps_removed, newest.steps_changed)
    assert told == (1, 0, changed.steps_changed)


def test_log_with_a_limit_lists_the_newest_and_counts_all(logs):
    report = log_of(LogConfig(input=f"{logs}/data", limit=1))
    assert [v.version for v in report.versions] == [1]
    assert report.versions_total == 2


def test_log_of_joined_files_says_that_no_step_changed(logs):
    table.compact(logs / "data" / "steps", info={"command": "optimize"})
    newest = log_of(LogConfig(input=f"{logs}/data")).versions[0]
    assert (newest.command, newest.steps_added, newest.steps_removed) == ("optimize", 0, 0)


def test_log_of_what_another_program_wrote_says_only_what_is_known(tmp_path):
    root = three_days(tmp_path / "data" / "steps")
    write_deltalake(str(root), steps_like(0, 5), mode="overwrite")
    newest = log_of(LogConfig(input=f"{tmp_path}/data")).versions[0]
    assert newest.command == "WRITE"
    assert (newest.steps_added, newest.steps_removed, newest.steps_changed) == (None, None, None)


# -- tag ---------------------------------------------------------------------------------------


def test_tag_names_the_newest_version_or_the_one_that_is_asked_for(logs):
    assert tag(TagConfig(input=f"{logs}/data", name="new")).table_version == 1
    assert tag(TagConfig(input=f"{logs}/data@0", name="old")).table_version == 0
    assert rows(f"{logs}/data@old").num_rows == 2
    moved = tag(TagConfig(input=f"{logs}/data@old", name="new", force=True))
    assert (moved.version_before, moved.table_version) == (1, 0)
    assert moved.versions_by_tag == {"new": 0, "old": 0}


def test_tag_of_a_version_that_lost_its_files_is_refused(logs):
    for file in (logs / "data" / "steps").rglob("*.parquet"):
        file.rename(file.with_suffix(".gone"))
    with pytest.raises(StoreError, match=r"Version 0 .* cannot be read any more: 1 data"):
        tag(TagConfig(input=f"{logs}/data@0", name="old"))


def test_tag_is_what_other_verbs_read(logs):
    tag(TagConfig(input=f"{logs}/data@0", name="old"))
    curate(CurateConfig(input=f"{logs}/data@old", output=f"{logs}/c", where="true"))
    assert rows(logs / "c").num_rows == 2


# -- restore -----------------------------------------------------------------------------------


def test_restore_makes_old_rows_the_newest_and_loses_nothing(logs):
    first, second = rows(f"{logs}/data@0"), rows(logs / "data")
    report = back(logs / "data", 0)
    assert asdict(report) == {
        "version": 0,
        "version_before": 1,
        "table_version": 2,
        "steps_added": 0,
        "steps_removed": 3,
        "steps_total": 2,
        "sources_taken_back": 1,
    }
    assert rows(logs / "data").equals(first)
    assert rows(f"{logs}/data@1").equals(second)
    again = back(logs / "data", 1)
    assert (again.table_version, again.steps_added, again.steps_removed) == (3, 3, 0)
    assert rows(logs / "data").equals(second)


def test_restore_is_told_by_the_log(logs):
    back(logs / "data", 0)
    newest = log_of(LogConfig(input=f"{logs}/data")).versions[0]
    assert (newest.command, newest.restored_version) == ("restore", 0)
    assert (newest.steps_added, newest.steps_removed) == (0, 3)


def test_restore_of_the_newest_version_commits_nothing(logs):
    report = back(logs / "data", 1)
    assert (report.table_version, report.steps_added, report.steps_removed) == (1, 0, 0)
    assert log_of(LogConfig(input=f"{logs}/data")).versions_total == 2


def test_ingest_after_a_restore_brings_back_what_the_version_lacks(logs):
    before = rows(logs / "data")
    back(logs / "data", 0)
    report = run(logs / "data", logs / "a.jsonl", logs / "b.jsonl")
    assert (report.steps, report.files_read, report.files_unchanged) == (3, 1, 1)
    assert rows(logs / "data").equals(before)


def test_ingest_after_a_restore_reads_only_what_grew_since(logs):
    write_lines(logs / "a.jsonl", chat(5, "a"))
    run(logs / "data", logs / "a.jsonl")
    before = rows(logs / "data")
    back(logs / "data", 1)
    report = run(logs / "data", logs / "a.jsonl")
    assert report.steps == 3
    assert 0 < report.bytes_read < (logs / "a.jsonl").stat().st_size
    assert rows(logs / "data").equals(before)


def test_ingest_after_a_restore_forward_finds_nothing_new(logs):
    back(logs / "data", 0)
    back(logs / "data", 1)
    report = run(logs / "data", logs / "a.jsonl", logs / "b.jsonl")
    assert (report.steps, report.files_unchanged) == (0, 2)


def test_ingest_after_a_restore_and_joined_files_goes_on(logs):
    write_lines(logs / "c.jsonl", chat(2, "c"))
    run(logs / "data", logs / "c.jsonl")
    before = rows(logs / "data")
    back(logs / "data", 1)
    table.compact(logs / "data" / "steps", info={"command": "optimize"})
    report = run(logs / "data", logs)
    assert (report.steps, report.files_unchanged) == (2, 2)
    assert rows(logs / "data").equals(before)


def test_ingest_after_a_restore_links_late_parents_as_it_did(tmp_path):
    secret = "ghp_" + "a1B2" * 9
    records = chat(4, secret)
    late = write_lines(tmp_path / "late.jsonl", records[2:])
    first = write_lines(tmp_path / "first.jsonl", records[:2])
    run(tmp_path / "data", late)
    run(tmp_path / "data", first)
    place = location.parse(str(tmp_path / "data"))
    before, links = rows(tmp_path / "data"), rows(place.path, "sidecars/links")
    assert len(before["trajectory_uid"].unique()) == 1
    back(tmp_path / "data", 0)
    assert rows(place.path, "sidecars/links").num_rows < links.num_rows
    run(tmp_path / "data", first)
    assert rows(tmp_path / "data").equals(before)
    assert same_rows(rows(place.path, "sidecars/links"), links)


def is_at_work(data):
    time.sleep(0.05)
    try:
        with table.alone(data):
            return False
    except ConflictError:
        return True


def test_restore_that_a_crash_cut_off_is_finished_when_it_is_run_again(tmp_path):
    records = chat(4, "late")
    late = write_lines(tmp_path / "late.jsonl", records[2:])
    first = write_lines(tmp_path / "first.jsonl", records[:2])
    run(tmp_path / "data", late)
    run(tmp_path / "data", first)
    before = [rows(tmp_path / "data", part) for part in ("steps", "sidecars/links")]
    table.restore(tmp_path / "data" / "steps", 0, info={"command": "restore"})
    back(tmp_path / "data", 0)
    assert rows(tmp_path / "data", "sidecars/links").num_rows < before[1].num_rows
    run(tmp_path / "data", first)
    after = [rows(tmp_path / "data", part) for part in ("steps", "sidecars/links")]
    assert after[0].equals(before[0])
    assert same_rows(after[1], before[1])


def test_restore_of_a_tag_finds_the_sidecars_that_belong_to_it(tmp_path):
    records = chat(3, "late")
    logs = [write_lines(tmp_path / f"{k}.jsonl", records[k : k + 1]) for k in (2, 1, 0)]
    for log in logs:
        run(tmp_path / "data", log)
    tag(TagConfig(input=f"{tmp_path}/data", name="all"))
    parts = ("steps", "sidecars/links")
    before = [rows(tmp_path / "data", part) for part in parts]
    back(tmp_path / "data", 0)
    assert rows(tmp_path / "data", parts[1]).num_rows < before[1].num_rows
    for _ in range(2):
        optimize(OptimizeConfig(input=f"{tmp_path}/data", retention_hours=0))
    back(tmp_path / "data", "all")
    assert [rows(tmp_path / "data", part) for part in parts] == before
    assert run(tmp_path / "data", *logs).steps == 0


def test_restore_cuts_sidecars_whose_old_files_are_gone(tmp_path):
    logs = []
    for day in range(1, 5):
        asked = [user(f"u{day}"), assistant("not logged"), user("v")]
        record = pair(asked, assistant("a"), at=f"2026-10-0{day}T00:00:00Z", uid=str(day))
        logs.append(write_lines(tmp_path / f"{day}.jsonl", [record]))
        run(tmp_path / "data", logs[-1])
    links = rows(tmp_path / "data", "sidecars/links")
    optimize(OptimizeConfig(input=f"{tmp_path}/data", retention_hours=0))
    # files of steps are one a day, so that none was joined
    back(tmp_path / "data", 1)
    left = rows(tmp_path / "data", "sidecars/links")
    assert left.equals(links.filter(pc.field("sidecar_version") <= 1))
    assert left.num_rows == 2
    assert run(tmp_path / "data", *logs).steps == 2
    assert same_rows(rows(tmp_path / "data", "sidecars/links"), links)


def same_rows(one, other):
    return one.drop_columns(["sidecar_version"]).equals(other.drop_columns(["sidecar_version"]))


def test_ingest_after_a_restore_says_once_where_else_a_call_was_seen(logs):
    (logs / "copy").mkdir()
    records = [*chat(1, "other"), *chat(2, "a")]
    run(logs / "data", write_lines(logs / "copy" / "mixed.jsonl", records))
    before = rows(logs / "data", "sidecars/seen_in")
    assert before.num_rows == 2
    back(logs / "data", 1)
    assert rows(logs / "data", "sidecars/seen_in").num_rows == 0
    run(logs / "data", logs / "copy")
    after = rows(logs / "data", "sidecars/seen_in")
    assert same_rows(after, before)


def test_ingest_after_a_restore_lists_rejects_once(logs):
    path = logs / "bad.jsonl"
    write_lines(path, chat(2, "bad"))
    path.write_text(path.read_text() + "{no json}\n")
    first = run(logs / "data", path)
    back(logs / "data", 1)
    again = run(logs / "data", path)
    assert first.rejects == again.rejects == 1
    assert rows(logs / "data", "rejects").num_rows == 1


def test_restore_keeps_rewards_that_were_attached_since(logs):
    place = location.parse(str(logs / "data"))
    uid = rows(f"{logs}/data@0")["step_uid"][0].as_py()
    reward = pa.Table.from_pylist([{"step_uid": uid, "reward": 1.0}])
    sidecars.append(place, "rewards", reward, info={})
    back(logs / "data", 0)
    assert sidecars.read(place, "rewards")["reward"].to_pylist() == [1.0]


def test_restore_to_a_forget_keeps_rewards_that_were_attached_since(logs):
    place = location.parse(str(logs / "data"))
    kept, gone = (table.read(place)["step_uid"][k].as_py() for k in (0, -1))
    for number, uid in enumerate((kept, gone)):
        reward = pa.Table.from_pylist([{"step_uid": uid, "reward": float(number)}])
        sidecars.append(place, "rewards", reward, info={})
    forget(ForgetConfig(input=f"{logs}/data", where=f"step_uid = '{gone}'"))
    version = table.open_table(place.steps).version()
    later = pa.Table.from_pylist([{"step_uid": kept, "reward": 7.0}])
    sidecars.append(place, "rewards", later, info={})
    run(logs / "data", write_lines(logs / "c.jsonl", chat(2, "c")))
    back(logs / "data", version)
    assert sidecars.read(place, "rewards")["reward"].to_pylist() == [7.0]


def test_restore_while_a_run_is_at_work_is_refused(logs):
    with (
        table.at_work(logs / "data"),
        pytest.raises(ConflictError, match="has not committed all of it yet"),
    ):
        back(logs / "data", 0)
    with table.lock(logs / "data"), pytest.raises(ConflictError, match="at work"):
        back(logs / "data", 0)
    assert back(logs / "data", 0).table_version == 2


@pytest.mark.slow
def test_restore_is_refused_until_an_ingest_that_reads_ends_or_is_killed(logs):
    command = [sys.executable, "-c", "from clawcli.cli.app import main; main()", "ingest", "-"]
    with subprocess.Popen(
        [*command, "-o", str(logs / "data"), "-q"], stdin=subprocess.PIPE, cwd=ROOT
    ) as process:
        process.stdin.write((json.dumps(chat(1, "c")[0]) + "\n").encode())
        process.stdin.flush()
        assert any(is_at_work(logs / "data") for _ in range(600))
        with pytest.raises(ConflictError, match="Another run is at work"):
            back(logs / "data", 0)
        process.kill()
        process.wait()
        assert back(logs / "data", 0).table_version == 2


def test_dry_run_of_ingest_is_not_at_work(logs, tmp_path):
    run(tmp_path / "none", logs / "a.jsonl", dry_run=True)
    assert not (tmp_path / "none").exists()


def test_restore_of_a_version_whose_files_are_gone_is_refused(logs):
    write_lines(logs / "late.jsonl", chat(4, "late")[1:])
    write_lines(logs / "first.jsonl", chat(4, "late")[:1])
    run(logs / "data", logs / "late.jsonl")
    run(logs / "data", logs / "first.jsonl")
    root = logs / "data" / "steps"
    newest = set(table.open_table(root).file_uris())
    old = [uri for uri in table.open_table(root, 2).file_uris() if uri not in newest]
    for path in old:
        Path(path).unlink()
    with pytest.raises(StoreError, match=r"cannot come back: 1 data files are gone.*tags"):
        back(logs / "data", 2)
    with pytest.raises(StoreError, match=r"Version 2 .* cannot come back"):
        table.restore(root, 2, info={})
    assert table.open_table(root).version() == 3


def test_restore_of_a_curated_directory_is_refused_with_no_version(logs):
    curate(CurateConfig(input=f"{logs}/data", output=f"{logs}/c", where="true"))
    with pytest.raises(UsageError, match="names no version"):
        restore(RestoreConfig(input=f"{logs}/c"))
    assert back(logs / "c", 0).table_version == 0


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["tag", "{tmp}/data", "first"], 4, "has the tag first already: it is version 0"),
        (["tag", "{tmp}/data", "3"], 2, "reads as a version"),
        (["tag", "{tmp}/data", "2026-10-31"], 2, "reads as a date"),
        (["tag", "{tmp}/data", "a b"], 2, "cannot be called"),
        (["tag", "{tmp}/data@9", "x"], 4, "has no version 9. Versions run from 0 to 1"),
        (["tag", "{tmp}/data@no", "x"], 4, "has no tag no. Its tags: first. Versions run from"),
        (["tag", "{tmp}", "x"], 3, "is not a data directory"),
        (["tag", "{tmp}/no", "x"], 4, "does not exist"),
        (["tag", "{tmp}/data"], 2, "Missing argument 'name'"),
        (["restore", "{tmp}/data"], 2, "names no version"),
        (["restore", "{tmp}/data@9"], 4, "has no version 9. Versions run from 0 to 1"),
        (["restore", "{tmp}/data@no"], 4, "has no tag no"),
        (["restore", "{tmp}/data@2020-01-01"], 4, "had no version yet on 2020-01-01"),
        (["restore", "{tmp}/data@2020-02-31"], 2, "no day of the calendar"),
        (["restore", "{tmp}@1"], 3, "is not a data directory"),
        (["log", "{tmp}"], 3, "is not a data directory"),
        (["log", "{tmp}/no"], 4, "does not exist"),
        (["log", "{tmp}/data@1"], 2, "names a version"),
        (["log", "{tmp}/data", "--limit", "0"], 2, "--limit"),
        (["log", "{tmp}/torn"], 4, "is torn"),
        (["tag", "{tmp}/torn", "x"], 4, "is torn"),
        (["restore", "{tmp}/torn@0"], 4, "is torn"),
        (["optimize", "{tmp}/torn"], 4, "is torn"),
        (["optimize", "{tmp}/data@first"], 2, "names a version"),
        (["optimize", "{tmp}"], 3, "is not a data directory"),
        (["optimize", "{tmp}/data", "--set", "retention_hours=169"], 2, "retention_hours"),
        (["optimize", "{tmp}/data", "--set", "retention_hours=-1"], 2, "retention_hours"),
        (["diff", "{tmp}/data", "{tmp}"], 3, "is not a data directory"),
        (["diff", "{tmp}/data@7", "{tmp}/data"], 4, "has no version 7"),
        (["diff", "{tmp}/data"], 2, "Missing argument 'b'"),
        (["curate", "{tmp}/data", "--where", "true", "-o", "{tmp}/data@1"], 2, "names a version"),
        (["ingest", "{tmp}/a.jsonl", "-o", "{tmp}/data@first"], 2, "names a version"),
    ],
)
def test_bad_input_is_one_sentence_and_the_right_exit_code(logs, claw, arguments, code, sentence):
    assert claw("tag", f"{logs}/data@0", "first", "-q").code == 0
    root = three_days(logs / "torn" / "steps")
    (root / "_delta_log" / f"{2:020d}.json").write_bytes(b"")
    before = sorted(path.name for path in logs.iterdir())
    result = claw(*[a.format(tmp=logs) for a in arguments])
    assert result.code == code, result.err
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert sorted(path.name for path in logs.iterdir()) == before


def test_log_answers_on_stdout(logs, claw):
    claw("tag", f"{logs}/data@0", "first", "-q")
    claw("restore", f"{logs}/data@first", "-q")
    result = claw("log", f"{logs}/data")
    assert (result.code, result.err) == (0, "")
    lines = [line.split("  ") for line in result.out.splitlines()]
    assert [(line[0], *line[2:]) for line in lines] == [
        ("2", "restore of version 0", "steps -3"),
        ("1", "ingest", "steps +3"),
        ("0", "ingest", "steps +2", "(first)"),
    ]
    limited = claw("log", f"{logs}/data", "--limit", "1")
    assert limited.out.splitlines()[1:] == ["and 2 older"]


def test_json_reports_are_flat_and_have_the_keys_of_all_reports(logs, claw):
    for arguments in (
        ["log", f"{logs}/data"],
        ["tag", f"{logs}/data", "x"],
        ["diff", f"{logs}/data@0", f"{logs}/data"],
        ["restore", f"{logs}/data@0"],
        ["optimize", f"{logs}/data"],
    ):
        result = claw(*arguments, "--json")
        assert (result.code, result.err) == (0, "")
        assert list(result.report)[:4] == ["claw_version", "command", "inputs", "output"]
        assert list(result.report)[-1] == "duration_s"
        assert result.report["command"] == arguments[0]
