"""claw forget: flags to ForgetConfig, receipt to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb

if TYPE_CHECKING:
    from clawcli.manage.forget import ForgetReport


NAME = "forget"
EXAMPLE = "Example: claw forget demo/data --where \"task_id = '7'\" --dry-run"


def command(
    data: Annotated[str, typer.Argument(help="Data directory that claw ingest made.")],
    where: Annotated[
        str, typer.Option("--where", help="Boolean SQL expression over one step's columns.")
    ],
    yes_drop_tags: Annotated[
        bool,
        typer.Option("--yes-drop-tags", help="Drop the tags on versions that hold such steps."),
    ] = False,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Take steps out for good, with everything that holds their text.

    Steps that match go, and all steps that go on from them; so do their rows in sidecars, what
    rejects tell of them, and older versions. Hashes stay, so that the next ingest does not bring
    the steps back. Versions under a tag stay if they hold no such step. What was made of the
    directory is listed, and stays. It cannot be undone: try --dry-run first.
    """
    from clawcli.manage.forget import ForgetConfig, forget

    run_verb(
        NAME,
        ForgetConfig,
        forget,
        _words,
        flags={
            "input": data,
            "where": where,
            "yes_drop_tags": yes_drop_tags or None,
            "dry_run": dry_run or None,
        },
        inputs=[data],
        manner=Manner(quiet, verbose, json, config, set_),
    )


def _words(report: ForgetReport) -> Iterator[str]:
    yield (
        f"Forgotten: {number(report.steps)} steps ({number(report.steps_matched)} matched, "
        f"{number(report.steps_descendants)} go on from those, {number(report.steps_context)} were "
        f"context of them alone), all of {number(report.trajectories)} trajectories and parts of "
        f"{number(report.trajectories_cut)}; {number(report.steps_total)} steps in the directory."
    )
    if report.steps_null:
        yield f"The expression is NULL, which is not true, for {number(report.steps_null)} steps."
    if not report.steps:
        yield "Nothing matched, so nothing was changed."
        return
    if rows := counts(report.sidecar_rows_by_name):
        yield f"Rows of sidecars: {rows}."
    if report.rejects or report.rejects_without_text:
        yield (
            f"Rejects without all they told: {number(report.rejects)}; without what they quoted: "
            f"{number(report.rejects_without_text)}."
        )
    yield (
        f"Removed: {number(report.versions_removed)} versions, {number(report.files_removed)} "
        f"files, {number(report.bytes_removed)} bytes. Ingest keeps out "
        f"{number(report.tombstones_total)} steps."
    )
    if report.tags_dropped:
        yield f"Tags dropped: {', '.join(report.tags_dropped)}."
    for row in report.derived:
        state = "may hold the text" if row["exists"] else "is not there any more"
        yield f"Made of version {row['version']}: {row['path']} ({row['kind']}) {state}."
    yield (
        "Copies made by hand, what was made of trees, and the logs themselves are not known here."
    )
