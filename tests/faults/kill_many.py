"""What `make faults` runs: many kills at random moments, and then the table of a run without any.

pytest collects this file only where it is named.
"""

import random
import signal
import subprocess

import pytest
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

KILLS = {signal.SIGKILL: 13, signal.SIGTERM: 2, signal.SIGINT: 2}
"""By signal, for each of the two logs with one worker and with two: 52 of kill -9."""
IN_A_ROW = 5
"""Kills between two comparisons, so that some hit what an earlier one left."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By name: a log, what a run over it gives, and the seconds that this takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    logs = {
        "requests": write_requests(folder / "requests.jsonl"),
        "sessions": write_sessions(folder / "sessions"),
    }
    found = {}
    for name, source in logs.items():
        data = folder / f"{name}-data"
        _, seconds = run(source, "-o", data, "--workers", 1)
        assert num_commits(data) >= 5
        found[name] = source, read_all(data), seconds
    return found


@pytest.mark.parametrize("sign", KILLS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["requests", "sessions"])
def test_kills_at_random_moments_change_nothing(tmp_path, undisturbed, name, workers, sign):
    source, wanted, seconds = undisturbed[name]
    killed = attempt = 0
    while killed < KILLS[sign]:
        output = tmp_path / str(attempt)
        killed += kill_and_rerun(
            [source, "--workers", workers],
            output,
            kills=min(IN_A_ROW, KILLS[sign]),
            seed=attempt,
            whole_s=seconds,
            sign=sign,
        )
        assert_same(read_all(output), wanted)
        assert strays(output) == []
        attempt += 1


@pytest.mark.parametrize("seed", range(6))
def test_runs_at_once_of_which_some_are_killed_change_nothing(tmp_path, undisturbed, seed):
    source, wanted, seconds = undisturbed["requests"]
    chance = random.Random(seed)
    processes = [start(source, "-o", tmp_path / "d") for _ in range(3)]
    for process in processes[1:]:
        try:
            process.wait(chance.uniform(0, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
    for process in processes:
        code, _, err = finish(process)
        assert code in (0, -signal.SIGKILL), err
    run(source, "-o", tmp_path / "d")
    assert_same(read_all(tmp_path / "d"), wanted)
