"""Export rows for other trainers: from a data directory to JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from clawcli.errors import UsageError
from clawcli.export.rows import sft
from clawcli.store import artefact, location, query, registry, table


class RowKind(StrEnum):
    """What the rows train."""

    SFT = "sft"
    """Supervised fine-tuning: the action after its prompt."""


class RowUnit(StrEnum):
    """What one row holds."""

    STEP = "step"
    """One trained step: prompt and completion."""
    TRAJECTORY = "trajectory"
    """One trajectory: all its messages."""


_WRITERS: dict[tuple[RowKind, RowUnit], Callable[[pa.Table], Iterator[dict[str, Any]]]] = {
    (RowKind.SFT, RowUnit.STEP): sft.step_rows,
    (RowKind.SFT, RowUnit.TRAJECTORY): sft.trajectory_rows,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportRowsConfig:
    """What to hand over and where to."""

    input: str
    """Data directory, also as data@version."""
    output: str
    """File of JSON lines; - is standard output."""
    as_: RowKind = RowKind.SFT
    """What the rows train."""
    rows: RowUnit = RowUnit.STEP
    """What one row holds."""
    force: bool = False
    """Replace a file that is there."""
    dry_run: bool = False
    """Make all rows, write none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportRowsReport:
    """Counts of one export of rows."""

    steps: int
    """Trained steps in the rows."""
    steps_left_out_by_reason: dict[str, int]
    """weight_zero: context that is not trained."""
    rows: int


def export_rows(config: ExportRowsConfig, stdout: TextIO | None = None) -> ExportRowsReport:
    """Write the trained steps of a data directory as rows.

    Args:
        config: what and where.
        stdout: where rows go if the output is "-".

    Raises:
        NotFoundError: the input is not there.
        OutputExistsError: the output is there and force is off.
        DataError: --rows trajectory does not fit the data.
    """
    source = location.existing(config.input)
    output = Path(config.output)
    if config.output != "-":
        artefact.check_apart(output, source.on_disk)
        artefact.check_free(output, force=config.force, ours=_is_export)
    version = table.open_table(source.steps, source.version).version()
    steps = query.load_steps(location.Location(source.path, version))
    make = _WRITERS[config.as_, config.rows](steps)
    if config.rows is RowUnit.TRAJECTORY:
        # all are checked before the first is printed
        make = iter(list(make))
    if config.dry_run:
        count = sum(1 for _ in make)
    elif config.output == "-":
        if stdout is None:
            raise UsageError("Standard output is closed.", "Name a file in place of -.")
        count = _write(make, stdout)
    else:
        with (
            artefact.replacing(output, force=config.force, ours=_is_export) as temporary,
            temporary.open("w", encoding="utf-8") as handle,
        ):
            count = _write(make, handle)
        registry.add(source, output, kind="rows", version=version)
    trained = sum((weight or 0) > 0 for weight in steps["loss_weight"].to_pylist())
    return ExportRowsReport(
        steps=trained,
        steps_left_out_by_reason={"weight_zero": steps.num_rows - trained},
        rows=count,
    )


def _is_export(path: Path) -> bool:
    """Tell whether a file holds rows of this verb, or nothing: only such a file is replaced."""
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        first = handle.readline()
    try:
        row = json.loads(first or "{}")
    except ValueError:
        return False
    return not first or (isinstance(row, dict) and not row.keys().isdisjoint(sft.OWN_KEYS))


def _write(rows: Iterator[dict[str, Any]], handle: TextIO) -> int:
    count = 0
    for row in rows:
        handle.write(sft.to_line(row))
        count += 1
    return count
