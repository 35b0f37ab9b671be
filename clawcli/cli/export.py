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
    from clawcli.export.run import ExportRowsReport
    from clawcli.export.shards import ExportShardsReport


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
    tokens_per_update: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-update",
            help="Shards: computed tokens per optimiser step. Default: one packing target.",
        ),
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
    shards of packed token rows, shuffled by the seed, with the plan of phases and updates.
    """
    shards_only = {
        "merge": merge,
        "max_tokens_per_row": max_tokens_per_row,
        "max_step_tokens": max_step_tokens,
        "tokens_per_update": tokens_per_update,
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
        from clawcli.export.shards import ExportShardsConfig, export_shards

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
        f"{number(report.steps)} steps in {number(report.rows)} packed rows of "
        f"{number(report.tokens)} tokens, {number(report.updates)} updates in "
        f"{number(report.phases)} phases."
    )
    yield (
        f"Rows of up to {number(report.max_tokens_per_row)} tokens keep {report.merge_kept_frac:.0%} "
        "of what merging saves."
    )
    if left := counts(report.steps_left_out_by_reason):
        yield f"Left out: {left}."
