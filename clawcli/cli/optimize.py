"""claw optimize: few files, and none that nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, number, run_verb

if TYPE_CHECKING:
    from clawcli.manage.optimize import OptimizeReport


NAME = "optimize"
EXAMPLE = "Example: claw optimize demo/data"


def command(
    data: Annotated[str, typer.Argument(help="Data directory.")],
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Join small files, and remove what no version needs.

    Files of the newest version and of tagged ones stay, and so does what was given up within
    retention_hours, a week by default; older versions cannot be read any more. Refused while
    another run is at work on the directory.
    """
    from clawcli.manage.optimize import OptimizeConfig, optimize

    run_verb(
        NAME,
        OptimizeConfig,
        optimize,
        _words,
        flags={"input": data},
        inputs=[data],
        manner=Manner(quiet, verbose, json, config, set_),
    )


def _words(report: OptimizeReport) -> Iterator[str]:
    yield (
        f"Version {report.table_version}: {number(report.files_before)} data files "
        f"({number(report.bytes_before)} bytes) became {number(report.files_after)} "
        f"({number(report.bytes_after)} bytes)."
    )
    yield f"Removed {number(report.files_removed)} files ({number(report.bytes_removed)} bytes)."
    if report.files_kept:
        yield (
            f"{number(report.files_kept)} more ({number(report.bytes_kept)} bytes) stay for older "
            "versions, tagged or within the retention."
        )
