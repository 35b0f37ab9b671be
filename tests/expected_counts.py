"""The independent counts that come with the shared corpus."""

import csv

from conftest import shared


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
