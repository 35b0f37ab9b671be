"""A log that comes in pieces, in any order, gives the table of the whole log."""

import random
from collections import defaultdict

import pytest
from conftest import write_lines
from request_log import make
from same_tables import EDITED, by_uid, differences, run, states


@pytest.mark.slow
# make faults runs more seeds
@pytest.mark.parametrize("seed", [0])
def test_hourly_runs_in_any_order_give_the_table_of_the_whole(tmp_path, seed):
    log = make(seed)
    run(tmp_path / "whole", write_lines(tmp_path / "all.jsonl", log.records))
    hours = defaultdict(list)
    first = log.records[0]["timestamp"]
    span = (log.records[-1]["timestamp"] - first) / 24 + 1e-6
    for record in log.records:
        hours[int((record["timestamp"] - first) / span)].append(record)
    order = list(hours)
    random.Random(seed).shuffle(order)
    for hour in order:
        run(tmp_path / "hours", write_lines(tmp_path / f"{hour}.jsonl", hours[hour]))
    found = differences(by_uid(tmp_path / "whole"), by_uid(tmp_path / "hours"))
    assert {name for name, _ in found} <= EDITED
    # whatever the links, every state is what was logged
    assert states(tmp_path / "whole") == states(tmp_path / "hours")
