"""claw merge-prefixes: flags to MergeConfig, report to words."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb
from clawcli.errors import UsageError

if TYPE_CHECKING:
    from clawcli.prefix.run import MergeReport


NAME = "merge-prefixes"
EXAMPLE = "Example: claw merge-prefixes demo/spread --tokenizer tiny -o demo/tree"


def command(
    data: Annotated[str, typer.Argument(help="Data directory, also as data@version.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer", help="tiny, a directory with a tokenizer.json, or a cached hub id."
        ),
    ],
    output: opt.Output,
    chat_template: Annotated[
        str | None,
        typer.Option("--chat-template", help="Jinja file in place of the tokenizer's template."),
    ] = None,
    template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--template-kwargs",
            help="""JSON for the template, e.g. '{"enable_thinking": false}'.""",
        ),
    ] = None,
    eos_when_unknown: Annotated[
        str | None,
        typer.Option(
            "--eos-when-unknown",
            help="Train the end token of a closed turn whose finish reason is unknown: include "
            "(default) or exclude.",
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
    """Merge the prompts of all steps into a tree.

    A row is the prompt as the chat template renders it, the action, and the end token. What cannot
    be rendered exactly is left out with its reason. Rows are merged on token ids alone; identical
    attempts keep an entry each.
    """
    from clawcli.prefix.run import MergeConfig, merge_prefixes

    run_verb(
        NAME,
        MergeConfig,
        merge_prefixes,
        _words,
        flags={
            "input": data,
            "output": output,
            "tokenizer": tokenizer,
            "chat_template": chat_template,
            "template_kwargs": _object(template_kwargs),
            "eos_when_unknown": eos_when_unknown,
            "force": force or None,
            "dry_run": dry_run or None,
        },
        inputs=[data],
        manner=Manner(quiet, verbose, json, config, set_),
    )


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = jsonlib.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--template-kwargs {text} is not JSON: {error}.", """Write e.g. '{"key": true}'."""
        ) from error
    if not isinstance(value, dict):
        raise UsageError(f"--template-kwargs {text} is no JSON object.", "Write '{...}'.")
    return value


def _words(report: MergeReport) -> Iterator[str]:
    yield (
        f"{number(report.steps)} of {number(report.steps_in)} steps became rows, each proved "
        "against the chat template."
    )
    yield (
        f"{number(report.logical_tokens)} tokens in rows, {number(report.chain_tokens)} as chains, "
        f"{number(report.unique_tokens)} in the tree"
        + (
            f": {report.logical_tokens / report.unique_tokens:.1f}x fewer."
            if report.unique_tokens
            else "."
        )
    )
    yield (
        f"{number(report.links_unbroken)} of {number(report.links)} links from step to step are "
        "unbroken."
    )
    if breaks := counts(report.prefix_breaks_by_cause):
        yield f"Breaks: {breaks}."
    if excluded := counts(report.steps_excluded_by_reason):
        yield f"Excluded: {excluded}."
    if report.steps_context_without_path:
        yield (
            f"{number(report.steps_context_without_path)} context steps share no row with a trained "
            "step and have no path."
        )
