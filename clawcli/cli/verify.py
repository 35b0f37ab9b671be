"""claw verify: is this artefact intact?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, number, run_verb

if TYPE_CHECKING:
    from clawcli.manage.verify import VerifyReport


NAME = "verify"
EXAMPLE = "Example: claw verify demo/tree"


def command(
    artefact: Annotated[str, typer.Argument(help="Directory of a tree, of shards or of a run.")],
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """Check that an artefact is intact.

    Every file must have the size and hash that the manifest names. Of a tree, every row is rebuilt
    and compared with the hash taken before merging. A mismatch exits with 3.
    """
    from clawcli.manage.verify import VerifyConfig, verify

    run_verb(
        NAME,
        VerifyConfig,
        verify,
        lambda report: _words(artefact, report),
        flags={"input": artefact},
        inputs=[artefact],
        manner=Manner(quiet, verbose, json),
    )


def _words(artefact: str, report: VerifyReport) -> Iterator[str]:
    line = f"{artefact} is intact: {report.kind}, {number(report.files)} files"
    if report.steps is not None:
        line += f", {number(report.steps)} steps, {number(report.tokens)} tokens"
    yield line + "."
