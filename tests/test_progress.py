"""What is shown while a verb works, and what ingest tells of how far it is."""

import logging
import os
import pty
import subprocess
import sys
import threading
import time

import pytest
from conftest import ROOT, assistant, pair, user, write_lines

from clawcli.cli import console, progress
from clawcli.cli.progress import Meter
from clawcli.ingest import plan
from clawcli.ingest.run import IngestConfig, ingest


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_words_before_anything_is_known_hold_no_rate_and_no_time(clock):
    assert Meter(clock).words() == "0 bytes, 0 steps"


def test_words_without_a_total_hold_no_time_left(clock):
    meter = Meter(clock)
    clock.now = 2.0
    meter.tell(4_000, 0, 7)
    assert meter.words() == "4.0 kB, 2.0 kB/s, 7 steps"


def test_words_while_nothing_comes_the_time_left_grows(clock):
    meter = Meter(clock)
    clock.now = 1.0
    meter.tell(1_000, 11_000, 1)
    assert "0:00:10 left" in meter.words()
    clock.now = 10.0
    assert "0:01:40 left" in meter.words()


def test_words_rate_is_that_of_the_last_half_minute(clock):
    meter = Meter(clock)
    for second in range(1, 101):
        clock.now = float(second)
        # a start that is slow, such as one over files that are not there yet
        meter.tell(max(0, second - 50) * 1_000_000, 100_000_000, second)
    assert "1.0 MB/s, 0:00:50 left" in meter.words()


def test_words_of_all_that_was_read_hold_no_time_left(clock):
    meter = Meter(clock)
    clock.now = 2.0
    meter.tell(2_000, 2_000, 9)
    assert meter.words() == "2.0 kB of 2.0 kB, 1.0 kB/s, 9 steps"


def test_in_lines_says_one_line_each_period_and_none_afterwards(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.05)
    said, came = [], threading.Event()

    def say(line):
        said.append(line)
        if len(said) == 2:
            came.set()

    with progress.in_lines("claw x", Meter(), say):
        assert came.wait(10)
    count = len(said)
    assert all(line.startswith("claw x: 0 bytes") and line.endswith(".") for line in said)
    time.sleep(0.12)
    assert len(said) == count


def terminal(code, **env):
    """Run code with a terminal for stderr; gives stdout and what the terminal got."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, shown
    return out.decode(), shown.decode()


WORK = """
import dataclasses, logging, time
from clawcli.cli import console, progress
from clawcli.cli.progress import Meter
progress.DELAY_S, progress.LINE_EVERY_S = {delay}, 0.2

@dataclasses.dataclass
class Config: ...

@dataclasses.dataclass
class Report: ...

meter = Meter() if {metered} else None

def work(config):
    if meter:
        meter.tell(5_000_000, 20_000_000, 1_234)
    time.sleep(0.5)
    print("row", flush=True)
    logging.getLogger("clawcli.x").warning("odd \\x1b[31m [bold]file[/bold]")
    return Report()

manner = console.Manner({manner})
console.run_verb("x", Config, work, lambda r: ["done"], flags={{}}, inputs=[], manner=manner,
                 meter=meter)
"""


def work(delay=0.05, metered=True, manner=""):
    return WORK.format(delay=delay, metered=metered, manner=manner)


def test_on_terminal_shows_a_bar_and_keeps_stdout_and_log_lines_whole():
    out, shown = terminal(work())
    assert out == "row\n"
    assert "5.0 MB of 20.0 MB" in shown
    assert "1,234 steps" in shown
    assert "claw: odd \\x1b[31m [bold]file[/bold]" in shown
    # the bar is gone before the last words are said
    assert shown.rstrip().endswith("done")
    assert shown.rindex("\x1b[2K") < shown.rindex("done")


def test_on_terminal_without_a_meter_shows_that_work_goes_on():
    out, shown = terminal(work(metered=False))
    assert out == "row\n"
    assert "claw x" in shown


@pytest.mark.parametrize(
    "options", [{"delay": 30}, {"manner": "quiet=True"}, {"manner": "json=True"}]
)
def test_on_terminal_short_work_quiet_and_json_show_nothing(options):
    _, shown = terminal(work(**options))
    assert "steps" not in shown
    assert "\x1b[" not in shown


def test_on_dumb_terminal_lines_say_how_far_it_is():
    _, shown = terminal(work(), TERM="dumb")
    assert "claw x: 5.0 MB of 20.0 MB, " in shown
    assert "\x1b[" not in shown


def test_without_a_terminal_lines_say_how_far_it_is():
    done = subprocess.run(
        [sys.executable, "-c", work()], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "row\n"
    assert "\nclaw x: 5.0 MB of 20.0 MB, " in f"\n{done.stderr}"
    assert "\x1b" not in done.stderr


def test_logging_goes_to_what_stderr_is_now(capsys):
    console._attach_logging(0, quiet=False)
    logging.getLogger("clawcli.x").warning("one")
    assert capsys.readouterr().err == "claw: one\n"


def calls(num, name="r"):
    return [
        pair([user(f"{name}{i} " + "u" * 500)], assistant("a"), uid=f"{name}{i}", at=float(i))
        for i in range(num)
    ]


def told(*inputs, output, **config):
    """What ingest tells of how far it is, in order."""
    found = []
    inputs = tuple(map(str, inputs))
    ingest(
        IngestConfig(inputs=inputs, output=str(output), **config),
        progress=lambda *counts: found.append(counts),
    )
    return found


def test_ingest_tells_all_bytes_of_all_files_in_the_end(tmp_path):
    paths = [write_lines(tmp_path / f"{n}.jsonl", calls(3, n)) for n in "ab"]
    size = sum(path.stat().st_size for path in paths)
    assert told(*paths, output=tmp_path / "d")[-1][:2] == (size, size)


def test_ingest_tells_bytes_of_files_that_are_unchanged_too(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", calls(3))
    told(path, output=tmp_path / "d")
    assert told(path, output=tmp_path / "d")[-1] == (path.stat().st_size, path.stat().st_size, 0)


def test_ingest_tells_no_more_than_there_is_of_a_file_in_ranges(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(plan, "_SMALL_BYTES", 1)
    monkeypatch.setattr(plan, "_LARGE_BYTES", 1)
    path = write_lines(tmp_path / "a.jsonl", calls(200))
    size = path.stat().st_size
    found = told(path, output=tmp_path / "d")
    assert len(found) > 5
    assert [counts[0] for counts in found] == sorted(counts[0] for counts in found)
    assert found[-1][0] == size
    with path.open("a") as file:
        file.write(write_lines(tmp_path / "more", calls(200, "s")).read_text())
    found = told(path, output=tmp_path / "d")
    # what the run before consumed counts from the start
    assert size < found[0][0] < found[-1][0] == path.stat().st_size
