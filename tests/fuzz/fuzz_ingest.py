"""What `make fuzz` runs: damaged logs of every format until the time is over.

pytest collects this file only where it is named. A log that fails is kept, and its seed is in the
name of its folder.
"""

import os
import random
import shutil
import time

import pytest
from fuzz_logs import damaged, valid_logs
from fuzz_runs import check

LOGS = valid_logs()
SECONDS = float(os.environ.get("FUZZ_SECONDS", "480"))
SEED = int(os.environ.get("FUZZ_SEED", "0")) or time.time_ns()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LOGS)
def test_damaged_log_costs_its_records_at_most(claw, tmp_path, name):
    others, until, number = list(LOGS.values()), time.monotonic() + SECONDS / len(LOGS), 0
    while time.monotonic() < until:
        seed = f"{SEED}-{number}"
        folder = tmp_path / seed
        folder.mkdir()
        check(claw, damaged(LOGS[name], random.Random(f"{name}-{seed}"), others), folder)
        shutil.rmtree(folder)
        number += 1
