"""One round of the fuzzer: ingest a log, twice, and check what holds for every log there is."""

import json
from collections import Counter
from pathlib import Path

from clawcli.store import location, table

FATES = ("used", "duplicate", "failed_call", "ignored", "pending", "rejected")
KEPT = ("failed_call", "ignored", "rejected")


def check(claw, data, folder, name="log.jsonl"):
    """Ingest bytes into a new data directory and once more; gives the first report, or None.

    None: there was no log in them, which was told in one sentence.
    """
    path, output = Path(folder, name), Path(folder, "data")
    path.write_bytes(data)
    first = _ingest(claw, path, output)
    if not first.out:
        assert len(first.err.splitlines()) == 1
        assert not output.exists()
        return None
    report = json.loads(first.out)
    balances(report, output)
    again = _ingest(claw, path, output)
    if again.out:
        assert json.loads(again.out)["steps_changed"] == 0
        balances({**report, "steps_total": json.loads(again.out)["steps_total"]}, output)
    return report


def _ingest(claw, path, output):
    done = claw("ingest", path, "-o", output, "--json")
    assert "Traceback" not in done.err, done.err
    assert done.code in (0, 3), done.err
    assert done.code == 0 or len(done.err.splitlines()) >= 1
    return done


def balances(report, output):
    """Compare what a report says with what is in the tables."""
    by_fate = report["records_by_fate"]
    assert sum(by_fate[fate] for fate in FATES) == report["records"]
    assert report["rejects"] == by_fate["rejected"] == sum(report["rejects_by_reason"].values())
    place = location.parse(str(output))
    steps = table.read(place, columns=["step_uid", "parent_step_uid"])
    uids = set(steps["step_uid"].to_pylist())
    assert len(uids) == steps.num_rows == report["steps"] == report["steps_total"]
    assert set(steps["parent_step_uid"].to_pylist()) <= uids | {None}
    kept = Counter()
    if table.exists(place.rejects):
        kept.update(table.read(place, "rejects", ["fate"])["fate"].to_pylist())
    assert {fate: kept[fate] for fate in KEPT} == {fate: by_fate[fate] for fate in KEPT}
    # of a record whose calls all stand elsewhere the sidecar seen_in tells
    assert kept["duplicate"] <= by_fate["duplicate"]
    assert kept.keys() <= {*KEPT, "duplicate"}
