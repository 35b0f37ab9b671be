import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from table_data import PARTITIONS, steps_like

from clawcli.errors import StoreError
from clawcli.store import location, log, table

WORKER = Path(__file__).with_name("crash_worker.py")
pytestmark = pytest.mark.slow


def run(requests):
    """Run requests one after the other in processes that may die; see crash_worker.py."""
    done = subprocess.run(
        [sys.executable, WORKER],
        input=json.dumps([[str(root), *rest] for root, *rest in requests]),
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A table of two small files: rows 0..6, of which replace and compact find some."""
    root = tmp_path_factory.mktemp("old") / "steps"
    for start in (0, 3):
        table.append(root, steps_like(start, start + 3), info={}, partition_by=PARTITIONS)
    return root


def copy(old, tmp_path, name):
    return Path(shutil.copytree(old, tmp_path / str(name) / "steps"))


def rows(root):
    read = table.read(location.Location(root.parent)).sort_by("started_at")
    return [
        tuple(row.values()) for row in read.select(["step_uid", "response", "log_date"]).to_pylist()
    ]


def orphans(root):
    known = {root / file.name for file in log.active(table.open_table(root))}
    for version in range(table.open_table(root).version()):
        known |= {root / file.name for file in log.active(table.open_table(root, version))}
    return set(root.rglob("*.parquet")) - known


WORK = {
    "append": lambda root: table.append(root, steps_like(10, 14), info={}, partition_by=PARTITIONS),
    "replace": lambda root: table.replace(
        root,
        steps_like(0, 2, response="new", log_date="2026-01-02"),
        added=table.write_files(root, steps_like(10, 14), PARTITIONS),
        info={},
        txn=("run", 1),
    ),
    "compact": lambda root: table.compact(root, info={}),
}


@pytest.mark.parametrize("work", WORK)
def test_crash_by_a_kill_at_each_sync_leaves_the_old_or_the_new_table(old, tmp_path, work):
    roots = [copy(old, tmp_path, number) for number in range(12)]
    ended = run([root, work, "sync", number] for number, root in enumerate(roots))
    before, (code, _), after = rows(old), ended[0], rows(roots[0])
    assert code == 0
    killed = [root for root, (code, _) in zip(roots, ended, strict=True) if code == -9]
    assert len(killed) >= 5
    found = [rows(root) for root in killed]
    assert all(state in (before, after) for state in found)
    # files first, then the entry: kills come on both sides of it
    versions = {table.open_table(root).version() for root in killed}
    assert versions == {1, 2}
    for root in killed:
        WORK[work](root) if table.open_table(root).version() == 1 else None
        assert rows(root) == after


@pytest.mark.parametrize("work", WORK)
def test_crash_by_a_failing_sync_is_an_error_and_leaves_old_or_new(
    old, tmp_path, monkeypatch, work
):
    real = os.fsync
    for number in range(1, 30):
        root, calls = copy(old, tmp_path, number), []

        def fsync(descriptor, calls=calls, number=number):
            calls.append(descriptor)
            if len(calls) == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        failed = False
        try:
            WORK[work](root)
        except StoreError:
            failed = True
        monkeypatch.setattr(os, "fsync", real)
        version = table.open_table(root).version()
        if version == 1:
            assert rows(root) == rows(old)
            if work != "replace":  # there the caller's own files stay, for another try
                assert not orphans(root)
        if not failed:
            assert len(calls) < number
            break
    else:
        pytest.fail("no number of syncs was enough")
    assert number > 5


@pytest.mark.parametrize("num_bytes", [100, 5_000, 30_000, 200_000])
def test_crash_by_a_full_disk_is_one_sentence_and_the_old_table(old, tmp_path, num_bytes):
    # a file that may not grow fails as a full disk does, in each library at its own place
    roots = [copy(old, tmp_path, work) for work in ("append", "replace")]
    ended = run([root, root.parent.name, "size", num_bytes] for root in roots)
    for root, (code, said) in zip(roots, ended, strict=True):
        assert code in (0, 4)
        if code == 4:
            assert len(said) == 1
            assert "cannot be" in said[0]
            assert rows(root) == rows(old)
            assert table.open_table(root).version() == 1
    assert ended[1][0] == 4


def test_crash_by_kills_at_any_moment_loses_no_acknowledged_commit(tmp_path):
    root = tmp_path / "d" / "steps"
    said = []
    for delay in (0.35, 0.5, 0.42, 0.61, 0.47):
        ((code, told),) = run([[root, "keep", "kill", delay]])
        assert code == -9
        said += told
        if not table.exists(root):
            continue
        last = table.last_transaction(root, "run")
        found = [uid for uid, _, _ in rows(root)]
        assert found == steps_like(0, 2 * (last + 1))["step_uid"].to_pylist()
        assert set(said) <= set(range(last + 1))
    assert len(said) > 5


@pytest.mark.parametrize("work", ["race", "race_alone"])
def test_two_processes_lose_nothing_and_see_each_other(tmp_path, work):
    root = tmp_path / "d" / "steps"
    (ended,) = run([[root, work, "", 0]])
    assert [code for code, _ in ended] == [0, 0]
    conflicts = sum(len(said) for _, said in ended)
    assert (conflicts > 0) == (work == "race")
    assert table.last_transaction(root, "run") == 39
    wanted = {
        uid
        for who in range(2)
        for uid in steps_like(100 * who, 100 * who + 20)["step_uid"].to_pylist()
    }
    found = [uid for uid, _, _ in rows(root)]
    assert sorted(found) == sorted(wanted)
    assert not orphans(root)
