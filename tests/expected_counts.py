"""The independent counts that come with the shared corpus."""

import csv

from conftest import SHARED, shared

_TABLE = SHARED / "corpus" / "EXPECTED.tsv"


def expected_rows(*folders):
    """List the rows of the files below some folders as dicts; none where the corpus is missing."""
    if not _TABLE.exists():
        return []
    rows = csv.DictReader(_TABLE.read_text().splitlines(), delimiter="\t")
    return [row for row in rows if row["path"].startswith(folders)]


def expected(folder):
    """List (path, trajectories, steps) of the files below a folder; None = the count is open."""
    with shared("EXPECTED.tsv").open(newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if row[0].startswith(f"{folder}/")]
    assert rows, folder
    return [
        (shared(*path.split("/")), _count(trajectories), _count(steps))
        for path, trajectories, steps, *_ in rows
    ]


def _count(value):
    return None if value == "?" else int(value)
