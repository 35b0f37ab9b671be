"""claw log: which versions does this data directory have?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, answer, number, run_verb

if TYPE_CHECKING:
    from clawcli.manage.log import LogReport, Version


NAME = "log"
EXAMPLE = "Example: claw log demo/data"


def command(
    data: Annotated[str, typer.Argument(help="Data directory.")],
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="List that many, the newest.")
    ] = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """List the versions of a data directory, newest first.

    Each with its time (UTC), the command that made it, the steps that it added (+), removed (-) and
    changed (~) where the log tells, and its tags. data@3, data@tag and data@2026-10-31 name one
    wherever a data directory is asked for.
    """
    from clawcli.manage.log import LogConfig, log_of

    run_verb(
        NAME,
        LogConfig,
        log_of,
        _words,
        flags={"input": data, "limit": limit},
        inputs=[data],
        manner=Manner(quiet, verbose, json),
        out=answer,
    )


def _words(report: LogReport) -> Iterator[str]:
    width = len(str(report.versions[0].version)) if report.versions else 0
    for version in report.versions:
        yield _line(version, width)
    if left := report.versions_total - len(report.versions):
        yield f"and {number(left)} older"


def _line(version: Version, width: int) -> str:
    made_by = version.command or "-"
    if version.restored_version is not None:
        made_by += f" of version {version.restored_version}"
    signs = (
        ("+", version.steps_added),
        ("-", version.steps_removed),
        ("~", version.steps_changed),
    )
    steps = [f"{sign}{number(count)}" for sign, count in signs if count]
    told = any(count is not None for _, count in signs)
    parts = [
        f"{version.version:>{width}}",
        (version.committed_at or "-")[:19].replace("T", " "),
        made_by,
        f"steps {' '.join(steps)}" if steps else "no steps" if told else "steps not told",
        *([f"({', '.join(version.tags)})"] if version.tags else []),
    ]
    return "  ".join(parts)
