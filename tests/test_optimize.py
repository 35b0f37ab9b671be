import os
import time

import pytest
from conftest import assistant, pair, user, write_lines
from table_data import PARTITIONS, commit, names, place, steps_like

from clawcli.errors import ConflictError, StoreError
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.manage.log import LogConfig, log_of
from clawcli.manage.optimize import OptimizeConfig, optimize
from clawcli.manage.restore import RestoreConfig, restore
from clawcli.manage.tag import TagConfig, tag
from clawcli.store import table


@pytest.fixture
def root(tmp_path):
    """Twelve commits of five rows in one partition; rows of the fourth changed in the last one."""
    root = tmp_path / "data" / "steps"
    for start in range(0, 60, 5):
        commit(root, steps_like(start, start + 5))
    table.replace(root, steps_like(15, 17, response="another"), info={"command": "ingest"})
    return root


def run(root, **options):
    return optimize(OptimizeConfig(input=str(root.parent), **options))


def rows(root, version=None):
    return table.read(place(root, version)).sort_by("step_uid")


def on_disk(root):
    found = root.rglob("*.parquet")
    return {path.relative_to(root).as_posix() for path in found if "_delta_log" not in path.parts}


def age(paths, days):
    then = time.time() - days * 86_400
    for path in paths:
        os.utime(path, (then, then))


def test_optimize_joins_small_files_and_changes_no_row(root):
    before = table.read(place(root))
    report = run(root)
    assert (report.files_before, report.files_after) == (12, 1)
    assert 0 < report.bytes_after < report.bytes_before
    assert report.table_version == 13
    assert table.read(place(root)).equals(before)


def test_optimize_within_the_retention_keeps_all_versions(root):
    before = [rows(root, version) for version in range(13)]
    report = run(root)
    assert (report.files_removed, report.bytes_removed) == (0, 0)
    assert report.files_kept == 13
    assert all(rows(root, v).equals(then) for v, then in enumerate(before))


def test_optimize_past_the_retention_spares_tags_and_the_newest_row_for_row(root):
    tagged, newest = rows(root, 4), rows(root)
    tag(TagConfig(input=f"{root.parent}@4", name="gold"))
    size = sum((root / name).stat().st_size for name in on_disk(root) - names(root, 4))
    report = run(root, retention_hours=0)
    assert report.versions_by_tag == {"gold": 4}
    assert on_disk(root) == names(root) | names(root, 4)
    assert (report.files_removed, report.files_kept) == (8, 5)
    assert report.bytes_removed == size
    assert rows(root, 4).equals(tagged)
    assert rows(root).equals(newest)
    with pytest.raises(StoreError, match=r"is gone.*claw optimize"):
        rows(root, 5)


def test_optimize_spares_each_of_several_tags_after_checkpoints(root, monkeypatch):
    then = {version: rows(root, version) for version in (2, 12)}
    for version in then:
        tag(TagConfig(input=f"{root.parent}@{version}", name=f"v{version}"))
    table.open_table(root).create_checkpoint()
    for _ in range(2):
        run(root, retention_hours=0)
    table.open_table(root).create_checkpoint()
    run(root, retention_hours=0)
    assert all(rows(root, version).equals(before) for version, before in then.items())


def test_optimize_restored_tag_is_whole_again(root):
    tagged = rows(root, 4)
    tag(TagConfig(input=f"{root.parent}@4", name="gold"))
    run(root, retention_hours=0)
    restore(RestoreConfig(input=f"{root.parent}@gold"))
    run(root, retention_hours=0)
    assert rows(root).equals(tagged)


def test_optimize_twice_finds_nothing_to_do(root):
    first = run(root, retention_hours=0)
    second = run(root, retention_hours=0)
    assert second.table_version == first.table_version
    assert (second.files_before, second.files_after) == (1, 1)
    assert (second.files_removed, second.files_kept) == (0, 0)


def test_optimize_removes_what_crashes_left_when_it_is_old_and_nothing_else(root):
    old, new = (table.write_files(root, steps_like(k, k + 1), PARTITIONS)[0] for k in (90, 91))
    foreign = root / "notes.txt"
    foreign.write_text("mine")
    age([root / old.path, foreign], 8)
    report = run(root)
    assert report.files_removed == 1
    assert not (root / old.path).exists()
    assert (root / new.path).exists()
    assert foreign.read_text() == "mine"


def test_optimize_while_a_run_is_at_work_is_refused(root):
    coming = table.write_files(root, steps_like(90, 91), PARTITIONS)
    with table.at_work(root.parent), pytest.raises(ConflictError, match="at work"):
        run(root, retention_hours=0)
    version = table.commit(
        root, coming, steps_like(90, 91).schema, info={}, partition_by=PARTITIONS
    )
    assert rows(root, version).num_rows == 61


def test_optimize_waits_for_nobody_who_holds_the_lock(root):
    with table.lock(root.parent), pytest.raises(ConflictError, match="at work"):
        run(root)


def test_optimize_is_told_by_the_log(root):
    run(root)
    newest = log_of(LogConfig(input=str(root.parent))).versions[0]
    told = (newest.steps_added, newest.steps_removed, newest.steps_changed)
    assert (newest.command, told) == ("optimize", (0, 0, 0))


def test_optimize_joins_rejects_and_sidecars_too_and_ingest_goes_on(tmp_path):
    same = pair([user("u")], assistant("a"), uid="same")
    for k in range(4):
        orphan = pair([user("u"), assistant(f"{k}"), user("v")], assistant("b"), uid=f"{k}")
        path = write_lines(tmp_path / f"{k}.jsonl", [same, orphan, {"role": f"no call {k}"}])
        ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    parts = ("steps", "rejects", "sidecars/seen_in", "sidecars/links")
    data = place(tmp_path / "data" / "steps")
    before = {part: table.read(data, part) for part in parts}
    assert before["rejects"].num_rows == 4
    report = run(tmp_path / "data" / "steps", retention_hours=0)
    assert report.files_before > report.files_after == len(parts)
    assert report.files_kept == 0
    assert all(table.read(data, part).equals(before[part]) for part in parts)
    new = pair([user("new")], assistant("n"), uid="new")
    write_lines(tmp_path / "4.jsonl", [new, same])
    again = ingest(IngestConfig(inputs=(str(tmp_path),), output=str(tmp_path / "data")))
    assert (again.files_unchanged, again.files_read, again.steps) == (4, 1, 1)
    assert table.read(data, "sidecars/seen_in").num_rows == before[parts[2]].num_rows + 1


def test_optimize_words_say_what_was_before_and_after(root, claw):
    result = claw("optimize", root.parent, "--set", "retention_hours=0")
    assert (result.code, result.out) == (0, "")
    assert "12 data files" in result.err
    assert "became 1 (" in result.err
    assert "Removed 13 files (" in result.err
