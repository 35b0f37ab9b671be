"""claw curate: flags to CurateConfig, report to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb

if TYPE_CHECKING:
    from clawcli.curate.run import CurateReport


NAME = "curate"
EXAMPLE = "Example: claw curate demo/data --where 'group_reward_std > 0' -o demo/spread"


def command(
    data: Annotated[str, typer.Argument(help="Data directory, also as data@version.")],
    where: Annotated[
        str, typer.Option("--where", help="Boolean SQL expression over one step's columns.")
    ],
    output: opt.Output,
    force: opt.Force = False,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Keep the steps that match an expression.

    Matched steps keep their weight, the steps that their states are built from stay with weight 0,
    and all else goes. NULL is not true and is counted apart. Group statistics are frozen as the
    input has them. docs/step-table.md lists the columns.
    """
    from clawcli.curate.run import CurateConfig, curate

    run_verb(
        NAME,
        CurateConfig,
        curate,
        _words,
        flags={
            "input": data,
            "output": output,
            "where": where,
            "force": force or None,
            "dry_run": dry_run or None,
        },
        inputs=[data],
        manner=Manner(quiet, verbose, json, config, set_),
    )


def _words(report: CurateReport) -> Iterator[str]:
    yield (
        f"Kept {number(report.steps_kept)} of {number(report.steps_in)} steps, in "
        f"{number(report.trajectories_kept)} trajectories and {number(report.groups_kept)} groups; "
        f"{number(report.steps_context)} more stay as context with weight 0."
    )
    if dropped := counts(report.steps_dropped_by_clause):
        yield f"Dropped: {dropped}."
    if report.steps_null:
        yield f"The expression is NULL, which is not true, for {number(report.steps_null)} steps."
    if not report.steps_kept:
        yield "Nothing matched: the output holds no step to train."
