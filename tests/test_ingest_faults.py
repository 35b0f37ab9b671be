"""Runs that are killed, stopped, starved of disk, or in each other's way lose nothing."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import assistant, pair, user, write_lines
from fault_runs import (
    assert_same,
    finish,
    kill_and_rerun,
    num_commits,
    read_all,
    run,
    start,
    strays,
    write_requests,
    write_sessions,
)

from clawcli.ingest import reading, rounds
from clawcli.store import table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By name: a log, what a run over it gives, and the seconds that this takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    logs = {
        "requests": write_requests(folder / "requests.jsonl", conversations=30, turns=40),
        "sessions": write_sessions(folder / "sessions", files=60),
    }
    found = {}
    for name, source in logs.items():
        data = folder / f"{name}-data"
        _, seconds = run(source, "-o", data, "--workers", 1)
        assert num_commits(data) >= 3, "rounds must be smaller than the log"
        found[name] = source, read_all(data), seconds
    return found


@pytest.mark.parametrize(("name", "workers"), [("requests", 1), ("requests", 2), ("sessions", 2)])
def test_killed_runs_and_one_to_the_end_give_the_undisturbed_table(
    tmp_path, undisturbed, name, workers
):
    source, wanted, seconds = undisturbed[name]
    kill_and_rerun([source, "--workers", workers], tmp_path / "d", kills=2, seed=3, whole_s=seconds)
    assert_same(read_all(tmp_path / "d"), wanted)
    assert strays(tmp_path / "d") == []


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
def test_stopped_run_says_so_by_its_code_alone(tmp_path, undisturbed, sign, code, delay):
    source, wanted, _ = undisturbed["requests"]
    process = start(source, "-o", tmp_path / "d", "--workers", 3, start_new_session=True)
    time.sleep(delay)  # by then some of the workers have begun to start
    if sign == signal.SIGINT:
        os.killpg(process.pid, sign)  # a terminal sends it to the workers as well
    else:
        process.send_signal(sign)
    assert finish(process) == (code, "", "")
    run(source, "-o", tmp_path / "d")
    assert_same(read_all(tmp_path / "d"), wanted)


def test_second_ctrl_c_ends_a_run_at_once(tmp_path, undisturbed):
    source, _, _ = undisturbed["requests"]
    process = start(source, "-o", tmp_path / "d", "--workers", 3, start_new_session=True)
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.01)
    code, out, err = finish(process)
    assert (out, err) == ("", "")
    assert code in (130, -signal.SIGINT)  # the same in a shell


def test_closed_pipe_ends_the_run_quietly_and_the_table_stays(tmp_path, undisturbed):
    source, wanted, _ = undisturbed["sessions"]
    process = start(source, "-o", tmp_path / "d", "--json")
    process.stdout.close()
    assert process.wait(60) == -signal.SIGPIPE  # 141 in a shell
    with process.stderr as said:
        assert said.read() == ""
    assert_same(read_all(tmp_path / "d"), wanted)


@pytest.mark.parametrize("num_runs", [2, 3])
def test_runs_at_once_over_one_log_give_what_one_gives(tmp_path, undisturbed, num_runs):
    source, wanted, _ = undisturbed["requests"]
    processes = [start(source, "-o", tmp_path / "d") for _ in range(num_runs)]
    assert [finish(process)[0] for process in processes] == [0] * num_runs
    assert_same(read_all(tmp_path / "d"), wanted)


@pytest.mark.parametrize("num_runs", [2, 3])
def test_runs_at_once_over_parts_of_conversations_give_what_one_gives(
    tmp_path, undisturbed, num_runs
):
    whole, _, _ = undisturbed["requests"]
    # line by line, so that most calls have their predecessor in another log
    lines = [line for line in whole.read_bytes().splitlines(True) if b'"conversation"' in line]
    lines = list(dict.fromkeys(lines))  # of a call in two logs either may be the owner
    logs = [tmp_path / f"{number}.jsonl" for number in range(num_runs)]
    for number, log in enumerate(logs):
        log.write_bytes(b"".join(lines[number::num_runs]))
    run(*logs, "-o", tmp_path / "one")
    processes = [start(log, "-o", tmp_path / "d") for log in logs]
    assert [finish(process)[0] for process in processes] == [0] * num_runs
    assert_same(read_all(tmp_path / "d"), read_all(tmp_path / "one"))


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 3 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs to mount a tmpfs, which is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs mount")
@pytest.mark.parametrize("left_kib", [8, 60, 150, 300])
def test_full_disk_is_one_sentence_and_a_rerun_succeeds(
    tmp_path, undisturbed, small_disk, left_kib
):
    source, wanted, _ = undisturbed["requests"]
    ballast = small_disk / "ballast"
    fill(ballast, left_kib)
    code, out, err = finish(start(source, "-o", small_disk / "d"))
    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1
    assert "space" in err
    if table.exists(small_disk / "d" / "steps"):
        read_all(small_disk / "d")
    ballast.unlink()
    run(source, "-o", small_disk / "d")
    assert_same(read_all(small_disk / "d"), wanted)
    assert strays(small_disk / "d") == []


def fill(path, left_kib):
    """Write a file that leaves so much of its disk free."""
    with path.open("wb") as file:
        free = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
        file.write(b"\1" * (free - (left_kib << 10)))


def test_worker_that_dies_is_one_sentence(tmp_path, undisturbed):
    source, wanted, _ = undisturbed["requests"]
    process = start(source, "-o", tmp_path / "d", "--workers", 2)
    os.kill(first_worker(process.pid), signal.SIGKILL)
    code, out, err = finish(process)
    assert (code, out) == (5, "")
    assert len(err.splitlines()) == 1
    assert "memory" in err
    run(source, "-o", tmp_path / "d")
    assert_same(read_all(tmp_path / "d"), wanted)


def first_worker(pid):
    """Wait for a worker process of a run."""
    while True:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)


def test_record_that_a_log_repeats_is_a_duplicate_wherever_a_round_ends(
    tmp_path, claw, monkeypatch
):
    # a run that goes on from a killed one has its rounds elsewhere, and the same table
    records = [pair([user(u)], assistant("a"), uid=u) for u in "ab"]
    log = write_lines(tmp_path / "a.jsonl", [*records, records[0]])
    whole = claw("ingest", log, "-o", tmp_path / "whole", "--json").report
    monkeypatch.setattr(rounds, "_ROUND_STEPS", 1)
    monkeypatch.setattr(reading, "_PART_CALLS", 1)
    cut = claw("ingest", log, "-o", tmp_path / "cut", "--json").report
    dry = claw("ingest", log, "-o", tmp_path / "dry", "--json", "--dry-run").report
    assert num_commits(tmp_path / "cut") > num_commits(tmp_path / "whole")
    assert cut["records_by_fate"] == whole["records_by_fate"] == dry["records_by_fate"]
    assert_same(read_all(tmp_path / "cut"), read_all(tmp_path / "whole"))
