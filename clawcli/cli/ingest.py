"""claw ingest: flags to IngestConfig, report to words."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clawcli.cli import console
from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb
from clawcli.cli.progress import Meter
from clawcli.errors import DataError

if TYPE_CHECKING:
    from clawcli.ingest.run import IngestReport


NAME = "ingest"
EXAMPLE = "Example: claw ingest sample_data/agent-logs -o demo/data"


def command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Log files (also .gz, .zst), folders, globs, URLs (s3://, gs://, hf://); - is "
            "standard input."
        ),
    ],
    output: opt.Output,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Name of a log format, or a Python file that reads one (./my_format.py); by "
            "default the format is found by content.",
        ),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=PATH",
            help="Where a column is in the records of a log in no known format, such as "
            "messages=body.input.0. Repeatable; a [map] table in TOML does the same.",
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", help="File with the system text that the logs do not hold."),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            "--tools", help="JSON file with the list of tool schemas that the logs do not hold."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Leave out files last modified before this date or time (ISO 8601)."
        ),
    ] = None,
    source_name: Annotated[
        str | None,
        typer.Option(
            "--source-name",
            help="Name that identifies the one input, in place of its file name: for another log "
            "under a name that was read before.",
        ),
    ] = None,
    rewards: Annotated[
        str | None,
        typer.Option(
            "--rewards",
            help="File or folder with rewards (JSON, JSON lines, CSV, Parquet, SWE-bench report, "
            "Harbor result.json), to be joined to the steps.",
        ),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="COLUMN=FIELD",
            help="Column of the steps and field of the rewards that must agree. Repeatable; by "
            "default keys of the same name.",
        ),
    ] = None,
    redact: Annotated[
        bool,
        typer.Option("--redact/--no-redact", help="Take secrets out before anything is written."),
    ] = True,
    redact_rules: Annotated[
        str | None,
        typer.Option("--redact-rules", help="TOML file with more rules for secrets."),
    ] = None,
    redact_with: Annotated[
        str | None,
        typer.Option(
            "--redact-with",
            metavar="CMD",
            help="Command of an outside scanner: reads JSON lines {id, text}, answers {id, start, "
            "end, rule} for each secret and {id} after each text.",
        ),
    ] = None,
    workers: opt.Workers = None,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> int:
    """Read logs into a step table.

    Formats are found by content. Each record has one fate, and records that give no step are kept
    in DATA/rejects with the reason. Sources that were read before add what is new in them: a file
    may grow, move or be read twice. Secrets are taken out on the way.
    """
    from clawcli.ingest.formats import mapped
    from clawcli.ingest.run import IngestConfig, ingest

    meter = Meter()
    report = run_verb(
        NAME,
        IngestConfig,
        functools.partial(ingest, progress=meter.tell),
        lambda report: _words(report, output),
        flags={
            "inputs": inputs,
            "output": output,
            "format": format_,
            "map": mapped.parse(map_) if map_ else None,
            "system": system,
            "tools": tools,
            "since": since,
            "source_name": source_name,
            "rewards": rewards,
            "on": on or None,
            "redact": None if redact else False,
            "redact_rules": redact_rules,
            "redact_with": redact_with,
            "workers": workers,
            "dry_run": dry_run or None,
        },
        inputs=inputs,
        manner=Manner(quiet, verbose, json, config, set_),
        meter=meter,
    )
    for problem in report.problems:
        console.show_error(DataError(problem, "The other sources were ingested."), as_json=json)
    return DataError.exit_code if report.problems else 0


def _words(report: IngestReport, output: str) -> Iterator[str]:
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
    if report.secrets_by_rule:
        yield f"Secrets taken out: {counts(report.secrets_by_rule)}."
    if report.steps_changed:
        yield f"{number(report.steps_changed)} steps that were there before changed."
    if report.rewards is not None:
        yield from _reward_words(report.rewards)
    if report.table_version is not None:
        yield (
            f"The table now holds {number(report.steps_total)} steps in "
            f"{number(report.trajectories_total)} trajectories (version {report.table_version})."
        )
    if report.readiness is not None:
        yield report.readiness
    elif report.table_version is not None:
        yield f"claw readiness {output} says what it can train."


def _reward_words(rewards: dict[str, Any]) -> Iterator[str]:
    yield (
        f"Rewards: {number(rewards['rewards_matched'])} of {number(rewards['rewards_rows'])} rows "
        f"matched, about {number(rewards['steps_rewarded'])} steps in "
        f"{number(rewards['trajectories_rewarded'])} trajectories (--on "
        f"{' --on '.join(rewards['rewards_on'])})."
    )
    others = {
        "rows that match nothing": rewards["rewards_unmatched_rows"],
        "rows that repeat others": rewards["rewards_duplicates"],
        "rows without a value": rewards["rewards_without_value"],
        "attempts without a row": rewards["rewards_unmatched_trajectories"],
    }
    if left := counts(others):
        yield f"Not joined: {left}."
    if rewards["rewards_warnings_by_code"]:
        yield f"Warnings about rewards: {counts(rewards['rewards_warnings_by_code'])}."
