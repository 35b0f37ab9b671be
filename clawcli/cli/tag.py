"""claw tag: a name for a version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, run_verb

if TYPE_CHECKING:
    from clawcli.manage.tag import TagReport


NAME = "tag"
EXAMPLE = "Example: claw tag demo/data gold"


def command(
    data: Annotated[str, typer.Argument(help="Data directory, also as data@version.")],
    name: Annotated[
        str, typer.Argument(help="Letters, digits, dots, dashes and _; no number and no date.")
    ],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Move a tag that names another version.")
    ] = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """Give a version of a data directory a name.

    data@NAME is that version then, wherever a data directory is asked for, and claw optimize spares
    its files. claw log lists the tags.
    """
    from clawcli.manage.tag import TagConfig, tag

    run_verb(
        NAME,
        TagConfig,
        tag,
        _words,
        flags={"input": data, "name": name, "force": force or None},
        inputs=[data],
        manner=Manner(quiet, verbose, json),
    )


def _words(report: TagReport) -> Iterator[str]:
    line = f"{report.tag} is version {report.table_version}"
    if report.version_before is not None:
        line += f"; it was version {report.version_before}"
    yield f"{line}."
