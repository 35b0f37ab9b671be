"""claw restore: an old version becomes the newest one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, number, run_verb

if TYPE_CHECKING:
    from clawcli.manage.restore import RestoreReport


NAME = "restore"
EXAMPLE = "Example: claw restore demo/data@0"


def command(
    version: Annotated[
        str, typer.Argument(metavar="DATA@VERSION", help="data@3, data@tag or data@2026-10-31.")
    ],
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """Make an old version of a data directory the newest one.

    That is a new version with the rows of the old one, and those in between stay. What claw ingest
    consumed since counts as not consumed: to ingest the logs again brings the steps back. Refused
    while another run is at work on the directory.
    """
    from clawcli.manage.restore import RestoreConfig, restore

    run_verb(
        NAME,
        RestoreConfig,
        restore,
        _words,
        flags={"input": version},
        inputs=[version],
        manner=Manner(quiet, verbose, json),
    )


def _words(report: RestoreReport) -> Iterator[str]:
    if report.table_version == report.version_before:
        yield f"Version {report.version} is the newest one: nothing to do."
        return
    yield (
        f"Version {report.table_version} has the rows of version {report.version}: "
        f"{number(report.steps_total)} steps, {number(report.steps_added)} came back and "
        f"{number(report.steps_removed)} went. Version {report.version_before} still has them."
    )
    if report.sources_taken_back:
        yield (
            f"What {number(report.sources_taken_back)} sources gave since is not consumed any "
            "more: claw ingest reads it again."
        )
