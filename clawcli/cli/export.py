"""claw export: rows for other trainers from a data directory, shards for claw train from a tree."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb
from clawcli.errors import UsageError

if TYPE_CHECKING:
    from clawcli.export.config import ExportShardsReport
    from clawcli.export.run import ExportRowsReport


NAME = "export"
EXAMPLE = (
    "Examples: claw export demo/spread --as sft -o demo/sft.jsonl\n\n"
    "claw export demo/tree -o demo/shards"
)


def command(
    input: Annotated[
        str, typer.Argument(help="Data directory (with --as) or tree directory (for shards).")
    ],
    output: opt.Output,
    as_: Annotated[
        str | None,
        typer.Option("--as", help="Rows for other trainers: sft. Without it: shards from a tree."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option("--rows", help="With --as: one row per step or trajectory. Default step."),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option("--merge", help="Shards: tree, chain (a row per leaf) or none. Default tree."),
    ] = None,
    max_tokens_per_row: Annotated[
        int | None,
        typer.Option(
            "--max-tokens-per-row",
            help="Shards: packing target in tokens. Default: 99th percentile of row lengths, "
            "rounded up to a power of two, at least 2,048.",
        ),
    ] = None,
    max_step_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-step-tokens",
            help="Shards: longer steps are left out and counted. Default 131,072.",
        ),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="N|SHARE|all",
            help="Shards: units to draw, such as 1000 or 0.1, without replacement. Default all.",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="Shards: what is drawn, trajectory or step. Default trajectory."),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help="Shards: the chance to be drawn rises with it: 'max(priorities.priority)'. Weights "
            "make up for it.",
        ),
    ] = None,
    tokens_per_update: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-update",
            help="Shards: computed tokens per optimiser step. Default: one packing target a rank.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Shards: processes that the rows of an update are split over, as many for each. "
            "Default 1."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Shards: orders over the rows. Default 1.")
    ] = None,
    seed: opt.Seed = None,
    reward_expr: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR", help="Reward of each attempt: '0.8*tests.pass + 0.2*judge.score'."
        ),
    ] = None,
    force: opt.Force = False,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Write rows for other trainers, or shards.

    With --as sft: JSON lines {prompt, completion, tools, step_uid}, one per trained step (TRL's
    prompt-completion form); --rows trajectory gives {messages, tools, step_uids}. Without --as:
    shards of packed token rows, shuffled by the seed, with the plan of phases, updates and ranks.
    --sample draws trajectories or steps; stages of a curriculum are [[stages]] of --config.
    """
    shards_only = {
        "merge": merge,
        "max_tokens_per_row": max_tokens_per_row,
        "max_step_tokens": max_step_tokens,
        "sample": sample,
        "unit": unit,
        "priority": priority,
        "tokens_per_update": tokens_per_update,
        "ranks": ranks,
        "epochs": epochs,
        "seed": seed,
        "reward_expr": reward_expr,
    }
    shared = {
        "input": input,
        "output": output,
        "force": force or None,
        "dry_run": dry_run or None,
    }
    manner = Manner(quiet, verbose, json, config, set_)
    if as_ is None:
        if rows is not None:
            raise UsageError("--rows goes with --as.", "Add --as sft.")
        from clawcli.export.config import ExportShardsConfig
        from clawcli.export.shards import export_shards

        run_verb(
            NAME,
            ExportShardsConfig,
            export_shards,
            _shard_words,
            flags={**shared, **shards_only},
            inputs=[input],
            manner=manner,
        )
        return
    if given := [name for name, value in shards_only.items() if value is not None]:
        raise UsageError(
            f"--{given[0].replace('_', '-')} is for shards and does not go with --as.",
            "Leave one of them out.",
        )
    if output == "-" and json:
        raise UsageError("--json and -o - both ask for stdout.", "Leave one of them out.")
    from clawcli.export.run import ExportRowsConfig, export_rows

    run_verb(
        NAME,
        ExportRowsConfig,
        lambda settings: export_rows(settings, sys.stdout),
        _row_words,
        flags={**shared, "as_": as_, "rows": rows},
        inputs=[input],
        manner=manner,
    )


def _row_words(report: ExportRowsReport) -> Iterator[str]:
    yield f"{number(report.rows)} rows with {number(report.steps)} trained steps."
    if left := counts(report.steps_left_out_by_reason):
        yield f"Left out: {left}."


def _shard_words(report: ExportShardsReport) -> Iterator[str]:
    yield (
        f"{number(report.steps)} steps of {number(report.trajectories)} trajectories in "
        f"{number(report.rows)} packed rows of {number(report.tokens)} tokens, "
        f"{number(report.updates)} updates in {number(report.phases)} phases."
    )
    yield (
        f"Rows of up to {number(report.max_tokens_per_row)} tokens keep {report.merge_kept_frac:.0%} "
        "of what merging saves."
    )
    if left := counts(report.steps_left_out_by_reason):
        yield f"Left out: {left}."
    if len(report.units_by_stage) > 1:
        yield f"Units by stage: {counts(report.units_by_stage)}."
    if kinds := counts(report.priorities_by_kind):
        yield (
            f"Units by priority: {kinds}. Missing counts as the highest known, zero as no chance "
            "but the uniform share."
        )
    if report.importance_weight_max > 1:
        yield (
            f"Weights make up for the draw: {report.importance_weight_max:.3g} at most, "
            f"{report.importance_weight_bound:.3g} for the least likely unit."
        )
    if report.ranks > 1:
        yield (
            f"Of {number(report.ranks)} ranks the dearest computes {report.rank_imbalance_frac:.1%} "
            f"more than the mean; {number(report.fillers)} rows fill up without weight."
        )
