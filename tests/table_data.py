"""Rows of step tables, for tests of what keeps them."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from clawcli import schema
from clawcli.store import location, log, table

PARTITIONS = schema.PARTITION_COLUMNS


def steps_of(*rows):
    blank = dict.fromkeys(schema.steps_schema().names)
    return pa.Table.from_pylist([{**blank, **row} for row in rows], schema=schema.steps_schema())


def message(role, content):
    return {"role": role, "content": content}


def steps_like(start, end, **values):
    """Rows start..end of a table of chats; values are the same in all of them."""
    return steps_of(
        *(
            {
                "step_uid": f"{i * 2654435761 % 2**32:032x}",
                "trajectory_uid": f"{i // 10:032x}",
                "source_uid": f"{i // 100:032x}",
                "step_index": i % 10,
                "observation": [message("user", f"a secret text {i}")],
                "response": f"said {i}",
                "reward": i / 10,
                "started_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=i),
                "warnings": ["odd"] if i % 2 else [],
                "log_format": "chat",
                "log_date": "2026-01-01",
                **values,
            }
            for i in range(start, end)
        )
    )


INFO = {"command": "ingest"}


def commit(root, rows, **more):
    added = table.write_files(root, rows, PARTITIONS)
    return table.commit(root, added, rows.schema, info=INFO, partition_by=PARTITIONS, **more)


def place(root, version=None):
    return location.Location(root.parent, version)


def uids(rows):
    return rows["step_uid"].to_pylist()


def active(root, version=None):
    """Data files of a version by their partition."""
    found = log.active(table.open_table(root, version))
    return sorted(found, key=lambda file: file.partition_values["log_date"] or "")


def names(root, version=None):
    return {file.name for file in active(root, version)}


def three_days(root):
    """100 rows a day, a commit each."""
    for day in range(3):
        commit(root, steps_like(100 * day, 100 * day + 100, log_date=f"2026-01-0{day + 1}"))
    return root
