"""Compare the tables that one log gives in two ways."""

import json

from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, table
from clawcli.store.state import States

EDITED = {"condenser", "summary_only", "masked", "rewrites", "clock_in_message"}
"""Runs of request_log.py that edit their history: where these hang may depend on the order."""
OF_THE_SOURCE = ("source_uid", "source_path", "source_offset")


def run(output, *files, **options):
    return ingest(IngestConfig(inputs=tuple(str(f) for f in files), output=str(output), **options))


def by_uid(directory, *, drop=OF_THE_SOURCE):
    steps = table.read(location.parse(str(directory)))
    return {row["step_uid"]: row for row in steps.drop_columns(list(drop)).to_pylist()}


def differences(whole, pieces):
    """Columns that differ, with the run that their step belongs to."""
    assert whole.keys() == pieces.keys()
    return {
        (json.loads(whole[uid]["metadata"] or "{}").get("run"), name)
        for uid, row in whole.items()
        for name, value in row.items()
        if pieces[uid][name] != value
    }


def states(directory):
    steps = table.read(location.parse(str(directory)))
    walk = States(steps)
    return {uid: walk.prompt(row) for row, uid in enumerate(steps["step_uid"].to_pylist())}
