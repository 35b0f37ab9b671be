"""claw with small rounds, parts and ranges, so that a small log is many commits.

    python fault_worker.py ingest LOG -o DATA

Worker processes import this file again, so the sizes hold in them too. A line on stderr says when
the run begins: what is killed before is no test of anything.
"""

import sys

from clawcli.cli import app
from clawcli.ingest import plan, reading, rounds
from clawcli.ingest import run as _all_that_a_run_imports  # noqa: F401

READY = "ready\n"

# where a test imports READY, the sizes are not to change for all other tests
if __name__ in ("__main__", "__mp_main__"):
    rounds._ROUND_STEPS = 300
    reading._PART_CALLS = 100
    plan.RANGE_BYTES = 1 << 19
    plan._LARGE_BYTES = 1 << 20
    plan._SMALL_FILES = 7


def run(arguments):
    """Say that the run begins: imports are done and signals have their handlers."""
    sys.stderr.write(READY)
    sys.stderr.flush()
    return app_run(arguments)


if __name__ == "__main__":
    app_run, app.run = app.run, run
    app.main()
