"""Runs of the store that end in the middle, each in a process of its own.

    python crash_worker.py < requests.json

A request is [root, work, way, number]; one line of JSON per request says how its process ended
(the signal, or the exit code) and what it had said by then. Nothing of deltalake is used before a
fork, because its threads do not survive one.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from table_data import PARTITIONS, steps_like

from clawcli.errors import ConflictError, StoreError
from clawcli.store import table

INFO = {"command": "ingest"}


def append(root, say):
    rows = steps_like(10, 14)
    table.append(root, rows, info=INFO, partition_by=PARTITIONS)


def replace(root, say):
    added = table.write_files(root, steps_like(10, 14), PARTITIONS)
    rows = steps_like(0, 2, response="new", log_date="2026-01-02")
    table.replace(root, rows, added=added, info={**INFO, "long": "x" * 300_000}, txn=("run", 1))


def compact(root, say):
    table.compact(root, info=INFO)


def keep_committing(root, say):
    number = -1 if (last := table.last_transaction(root, "run")) is None else last
    while True:
        number += 1
        days = steps_like(2 * number, 2 * number + 1), steps_like(2 * number + 1, 2 * number + 2)
        added = [
            *table.write_files(root, days[0], PARTITIONS),
            *table.write_files(root, days[1], PARTITIONS),
        ]
        table.commit(
            root, added, days[0].schema, info=INFO, txn=("run", number), partition_by=PARTITIONS
        )
        say(number)


def race(root, say, *, alone=False, who=0):
    for turn in range(20):
        rows = steps_like(100 * who + turn, 100 * who + turn + 1)
        done = False
        while not done:
            if alone:
                with table.lock(root.parent):
                    done = _try(root, rows, say)
            else:
                done = _try(root, rows, say)


def _try(root, rows, say):
    last = table.last_transaction(root, "run")
    added = table.write_files(root, rows, PARTITIONS)
    number = 0 if last is None else last + 1
    try:
        table.commit(
            root, added, rows.schema, info=INFO, txn=("run", number), partition_by=PARTITIONS
        )
    except ConflictError:
        table.discard(root, added)
        say("conflict")
        return False
    return True


WORKS = {"append": append, "replace": replace, "compact": compact, "keep": keep_committing}


def die_at_sync(number):
    real, count = os.fsync, 0

    def fsync(descriptor):
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        real(descriptor)

    os.fsync = fsync


def start(root, work, way, number):
    """Fork a process; return its id and a pipe with what it says."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        return pid, reading
    code = 0
    try:
        if way == "sync":
            die_at_sync(number)
        if way == "size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))

        def say(what):
            os.write(writing, f"{json.dumps(what)}\n".encode())

        if work.startswith("race"):
            race(Path(root), say, alone=work == "race_alone", who=number)
        else:
            WORKS[work](Path(root), say)
    except StoreError as error:
        say(str(error))
        code = error.exit_code
    os._exit(code)


def finish(pid, reading):
    status = os.waitpid(pid, 0)[1]
    with os.fdopen(reading) as said:
        return [os.waitstatus_to_exitcode(status), [json.loads(line) for line in said]]


def tell(what):
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def main():
    for root, work, way, number in json.load(sys.stdin):
        if work.startswith("race"):
            started = [start(root, work, way, who) for who in range(2)]
            tell([finish(*one) for one in started])
            continue
        pid, reading = start(root, work, way, number)
        if way == "kill":
            time.sleep(number)
            os.kill(pid, signal.SIGKILL)
        tell(finish(pid, reading))


if __name__ == "__main__":
    main()
