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
    output: opt.Output,
    where: Annotated[
        str | None, typer.Option("--where", help="Boolean SQL expression over one step's columns.")
    ] = None,
    where_trajectory: Annotated[
        str | None,
        typer.Option(
            help="The same over the steps of a trajectory; aggregates too: 'count(*) < 30'."
        ),
    ] = None,
    where_group: Annotated[
        str | None,
        typer.Option(help="The same over the trajectories of a group: 'group_solved_frac < 1'."),
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(min=0, help="Most versions that a policy may be behind its newest."),
    ] = None,
    decontaminate: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Leave out attempts at these tasks: ids or prompts, one a line."
        ),
    ] = None,
    dedupe: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Keep the first of equal ones: response, state, trajectory, or near (responses).",
        ),
    ] = None,
    limit_per_group: Annotated[
        int | None, typer.Option(min=1, help="Most trajectories of a group: the best, else drawn.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Keep so many trajectories, the best by --top-by.")
    ] = None,
    top_by: Annotated[
        str | None, typer.Option(metavar="EXPR", help="Numeric SQL expression, highest first.")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(metavar="N|FRAC", help="Draw so many trajectories, or a share such as 0.1."),
    ] = None,
    seed: opt.Seed = None,
    unit: Annotated[
        str | None,
        typer.Option(help="What limits and draws count: trajectory or step. Default trajectory."),
    ] = None,
    reward_expr: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR", help="Reward of each attempt: '0.8*tests.pass + 0.2*judge.score'."
        ),
    ] = None,
    assign: Annotated[
        str | None,
        typer.Option(
            metavar="reward=EXPR", help="Reward of each step: 'reward=reward / train.reward_std'."
        ),
    ] = None,
    regroup: Annotated[
        bool, typer.Option("--regroup", help="Compute group statistics from the kept rows alone.")
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=SHARE,...", help="Write OUTPUT/train, OUTPUT/val: train=0.9,val=0.1."
        ),
    ] = None,
    split_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Equal values go to one split. Default group_uid."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what each clause dropped, in their order.")
    ] = False,
    force: opt.Force = False,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Keep the steps that match, in SQL, with the reason for everything that is dropped.

    Matched steps keep their weight, the steps that their states are built from stay with weight 0,
    and all else goes. NULL is not true and is counted apart. Group statistics are frozen as the
    input has them. docs/step-table.md lists the columns; of a sidecar they are NAME.COLUMN.
    """
    from clawcli.curate.run import CurateConfig, curate

    run_verb(
        NAME,
        CurateConfig,
        curate,
        _explained if explain else _words,
        flags={
            "input": data,
            "output": output,
            "where": where,
            "where_trajectory": where_trajectory,
            "where_group": where_group,
            "max_staleness": max_staleness,
            "decontaminate": decontaminate,
            "dedupe": dedupe,
            "limit_per_group": limit_per_group,
            "top_k": top_k,
            "top_by": top_by,
            "sample": sample,
            "seed": seed,
            "unit": unit,
            "reward_expr": reward_expr,
            "assign": assign,
            "regroup": regroup or None,
            "split": split,
            "split_by": split_by,
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
    if report.steps_kept_by_split:
        yield f"By split: {counts(report.steps_kept_by_split)}."
    if dropped := counts(report.steps_dropped_by_clause):
        yield f"Dropped: {dropped}."
    if report.steps_null:
        yield f"The expression is NULL, which is not true, for {number(report.steps_null)} steps."
    if not report.steps_kept:
        yield "Nothing matched: the output holds no step to train."


def _explained(report: CurateReport) -> Iterator[str]:
    yield from _words(report)
    yield f"{number(report.steps_in):>12}  steps in the input"
    left = report.steps_in
    for entry in report.ledger:
        left -= entry.steps
        stay = f", {number(entry.steps_context)} of them as context" if entry.steps_context else ""
        yield f"{'-' + number(entry.steps):>12}  {entry.clause}: {entry.detail}{stay}"
    yield f"{number(left):>12}  steps kept"
