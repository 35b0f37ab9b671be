"""claw attach: flags to AttachConfig, report to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb

if TYPE_CHECKING:
    from clawcli.ingest.attach.run import AttachReport


NAME = "attach"
EXAMPLE = "Example: claw attach demo/data sample_data/judge.csv --name judge"


def command(
    data: Annotated[str, typer.Argument(help="Data directory.")],
    file: Annotated[
        str,
        typer.Argument(
            help="File with a row for each step or attempt (JSON, JSON lines, CSV, Parquet; also "
            ".gz, .zst), URL, or folder of benchmark reports; - is standard input."
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Sidecar that the rows go into: lower-case letters, digits and _. rewards counts "
            "as ingest --rewards does.",
        ),
    ],
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="COLUMN=FIELD",
            help="Column of the steps and field of the file that must agree. Repeatable; by "
            "default keys of the same name.",
        ),
    ] = None,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Attach what became known later of steps or attempts.

    Feedback, scores, rewards or log-probs go into a table beside the step table, which stays as it
    is. Types of columns are found in the first file and kept. Of several rows about one step the
    latest attached counts; attaching a file again adds nothing.
    """
    from clawcli.ingest.attach.run import AttachConfig, attach

    run_verb(
        NAME,
        AttachConfig,
        attach,
        _words,
        flags={
            "data": data,
            "file": file,
            "name": name,
            "on": on or None,
            "dry_run": dry_run or None,
        },
        inputs=[data, file],
        manner=Manner(quiet, verbose, json, config, set_),
    )


def _words(report: AttachReport) -> Iterator[str]:
    yield (
        f"{report.name}: {number(report.matched)} of {number(report.rows)} rows matched, about "
        f"{number(report.steps)} steps in {number(report.trajectories)} trajectories (--on "
        f"{' --on '.join(report.on)})."
    )
    others = {
        "rows that match nothing": report.unmatched_rows,
        "rows that repeat others": report.duplicates,
        "rows without a value": report.without_value,
        "steps without a row": report.unmatched_steps,
        "attempts without a row": report.unmatched_trajectories,
    }
    if left := counts(others):
        yield f"Not joined: {left}."
    if report.warnings_by_code:
        yield f"Warnings: {counts(report.warnings_by_code)}."
    if report.secrets_by_rule:
        yield f"Secrets taken out: {counts(report.secrets_by_rule)}."
    if report.columns:
        columns = ", ".join(f"{name} {kind}" for name, kind in report.columns.items())
        yield f"Columns: {columns}."
    version = "" if report.sidecar_version is None else f" (version {report.sidecar_version})"
    yield f"{number(report.new)} rows are new in the sidecar {report.name}{version}."
