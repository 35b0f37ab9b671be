"""A log that comes in pieces, in any order, gives the table of the whole log."""

import json
import random
from collections import defaultdict

import pytest
from conftest import write_lines
from request_log import make

from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, table
from clawcli.store.state import States

OF_THE_SOURCE = ("source_uid", "source_path", "source_offset")
EDITED = {
    "condenser_ends",
    "summary_only",
    "masked",
    "rewrites",
    "clock_in_message",
    "condenser_keeps_ends",
}


def run(output, *files, **options):
    return ingest(IngestConfig(inputs=tuple(str(f) for f in files), output=str(output), **options))


def by_uid(directory):
    steps = table.read(location.parse(str(directory)))
    return {row["step_uid"]: row for row in steps.drop_columns(OF_THE_SOURCE).to_pylist()}


def states(directory):
    steps = table.read(location.parse(str(directory)))
    walk = States(steps)
    return {uid: walk.prompt(row) for row, uid in enumerate(steps["step_uid"].to_pylist())}


def differences(whole, pieces):
    assert whole.keys() == pieces.keys()
    return {
        (json.loads(whole[uid]["metadata"] or "{}").get("run"), name)
        for uid, row in whole.items()
        for name, value in row.items()
        if pieces[uid][name] != value
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
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
