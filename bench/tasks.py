"""Be the command line of a bench, and run its tasks in processes of their own.

A process of its own starts with the same memory and caches for each side that is measured. Each
bench is a script; started with --task it does one of its tasks and prints what that took.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from figures import Figure, show

OUT = Path(__file__).parent / "out"
"""Where inputs are generated and outputs written; removed at the end."""


class Run(msgspec.Struct):
    """What a task took; the memory is the highest, start-up included."""

    cpu_s: float
    wall_s: float
    resident_mb: float


def timed(task: Callable[[], Any]) -> Run:
    """Do something, and say what it took, the processes that it started and that ended included."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    before = [resource.getrusage(who) for who in kinds]
    started = time.perf_counter()
    task()
    wall_s = time.perf_counter() - started
    after = [resource.getrusage(who) for who in kinds]
    spent = [
        a.ru_utime + a.ru_stime - b.ru_utime - b.ru_stime
        for a, b in zip(after, before, strict=True)
    ]
    return Run(sum(spent), wall_s, max(usage.ru_maxrss for usage in after) / 1024)


def run(task: str, argument: object = "", *, kind: Any = dict) -> Any:
    """Do one task of the bench that runs, in a process of its own.

    Args:
        task: its name.
        argument: of the task.
        kind: type of what it gives.
    """
    command = [sys.executable, sys.argv[0], "--task", task, str(argument)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)


def main(
    doc: str | None,
    serve: Callable[[str, str], Any],
    measure: Callable[[bool], Iterable[Figure]],
    *,
    quick: str = "smaller inputs",
) -> None:
    """Be the command line of a bench.

    Args:
        doc: of the bench.
        serve: does a task with an argument, and returns what it gives.
        measure: gives the figures; its argument is whether they are to come quickly.
        quick: what that means.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    parser.add_argument("--task", nargs=2, metavar=("TASK", "ARGUMENT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        given = msgspec.json.encode(serve(*arguments.task))
        sys.stdout.write(f"{given.decode()}\n")
        return
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    try:
        show(measure(arguments.quick), as_json=arguments.json)
    finally:
        shutil.rmtree(OUT, ignore_errors=True)
