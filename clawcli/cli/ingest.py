"""claw ingest: flags to IngestConfig, report to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import console
from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb
from clawcli.errors import DataError

if TYPE_CHECKING:
    from clawcli.ingest.run import IngestReport


NAME = "ingest"
EXAMPLE = "Example: claw ingest sample_data/agent-logs -o demo/data"


def command(
    inputs: Annotated[
        list[str],
        typer.Argument(help="Log files (also .gz, .zst), folders, globs; - is standard input."),
    ],
    output: opt.Output,
    source_name: Annotated[
        str | None,
        typer.Option(
            "--source-name",
            help="Name that identifies the one input, in place of its file name: for another log "
            "under a name that was read before.",
        ),
    ] = None,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> int:
    """Read logs into a step table.

    Formats are found by content: OpenAI chat logs ({request, response} lines, one file per call),
    transcripts ({messages, ...}), tau-bench results. Each record has one fate, and records that
    give no step are kept in DATA/rejects with the reason. Sources that were read before add nothing.
    """
    from clawcli.ingest.run import IngestConfig, ingest

    report = run_verb(
        NAME,
        IngestConfig,
        ingest,
        _words,
        flags={
            "inputs": inputs,
            "output": output,
            "source_name": source_name,
            "dry_run": dry_run or None,
        },
        inputs=inputs,
        manner=Manner(quiet, verbose, json, config, set_),
    )
    for problem in report.problems:
        console.show_error(DataError(problem, "The other sources were ingested."), as_json=json)
    return DataError.exit_code if report.problems else 0


def _words(report: IngestReport) -> Iterator[str]:
    yield (
        f"{number(report.steps)} steps in {number(report.trajectories)} trajectories from "
        f"{number(report.records)} records of {number(report.files_read)} files"
        + (f"; {number(report.files_unchanged)} files unchanged" if report.files_unchanged else "")
        + "."
    )
    if others := counts({k: v for k, v in report.records_by_fate.items() if k != "used"}):
        yield f"Records without a step of their own: {others}."
    if report.rejects_by_reason:
        yield f"Rejected because: {counts(report.rejects_by_reason)} (see rejects/ in the output)."
    if report.warnings_by_code:
        yield f"Warnings: {counts(report.warnings_by_code)}."
    if report.warnings_by_code.get("history_restated"):
        yield (
            f"{report.restated_frac:.0%} of the observations' text repeats what the state before "
            "held: the client edits its history."
        )
    if report.table_version is not None:
        yield (
            f"The table now holds {number(report.steps_total)} steps in "
            f"{number(report.trajectories_total)} trajectories (version {report.table_version})."
        )
