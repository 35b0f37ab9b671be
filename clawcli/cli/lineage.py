"""claw lineage: commands on stdout, what became of their inputs on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, number, plain, run_verb

if TYPE_CHECKING:
    from clawcli.manage.lineage import Input, LineageReport


NAME = "lineage"
EXAMPLE = "Example: claw lineage demo/tree"
_SHOWN = 5
"""Inputs of which something is to be said; a directory can have thousands."""


def command(
    artefact: Annotated[
        str,
        typer.Argument(help="Data directory (also as data@version), tree, shards or run."),
    ],
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """Print the commands that rebuild an artefact.

    The commands go to stdout, oldest first, quoted for a shell, with paths as they were typed. On
    stderr stands which of their inputs are gone or have changed since, and what cannot be known.
    """
    from clawcli.manage.lineage import LineageConfig, lineage

    report = run_verb(
        NAME,
        LineageConfig,
        lineage,
        _words,
        flags={"input": artefact},
        inputs=[artefact],
        manner=Manner(quiet, verbose, json),
    )
    if not json:
        for line in report.commands:
            print(plain(line))  # noqa: T201 - asked for on stdout


def _words(report: LineageReport) -> Iterator[str]:
    fine = sum(bool(source.same) for source in report.sources)
    yield (
        f"{number(len(report.commands))} commands; {number(fine)} of {number(len(report.sources))} "
        "inputs are what they were."
    )
    others = [source for source in report.sources if not source.same]
    for source in others[:_SHOWN]:
        yield f"{_name(source)}: {_state(source)}."
    if len(others) > _SHOWN:
        yield f"And {number(len(others) - _SHOWN)} more; --json lists all."
    yield from report.unknown


def _name(source: Input) -> str:
    version = "" if source.version is None else f"@{source.version}"
    return f"{source.kind} {source.path}{version}"


def _state(source: Input) -> str:
    if source.note is not None:
        return source.note
    if source.exists is None:
        return "whether it is there cannot be known from here"
    if not source.exists:
        return "is not there"
    return (
        "has changed since"
        if source.same is False
        else "is there; whether it is the same cannot be known"
    )
