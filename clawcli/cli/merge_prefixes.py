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
    reasoning: Annotated[
        str | None,
        typer.Option(
            "--reasoning",
            help="Reasoning that the log holds: keep (default) hands it to the template, drop does "
            "not, require leaves out steps whose action has none.",
        ),
    ] = None,
    prove: Annotated[
        str | None,
        typer.Option(
            "--prove",
            help="Prompts to compare with apply_chat_template: sample (default), which is the last "
            "step of each trajectory and 2% of the others, or all.",
        ),
    ] = None,
    keep_context: Annotated[
        bool,
        typer.Option(
            "--keep-context",
            help="Give steps of weight 0 a path even where no trained row holds their tokens.",
        ),
    ] = False,
    model_size: Annotated[
        str | None,
        typer.Option(
            "--model-size",
            help="Dense model to predict the speed-up for: 0.6b, 1.7b, 4b, 8b (default), 14b, 32b "
            "or 70b.",
        ),
    ] = None,
    workers: opt.Workers = None,
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
            "reasoning": reasoning,
            "prove": prove,
            "keep_context": keep_context or None,
            "model_size": model_size,
            "workers": workers,
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


def _packed(factor_by_row_budget: dict[str, float]) -> str:
    """Say what row budgets leave, up to the first that leaves as much as the largest does."""
    said = []
    shown = {int(target): f"{factor:.1f}x" for target, factor in factor_by_row_budget.items()}
    most = shown[max(shown)]
    for target, factor in sorted(shown.items()):
        if factor == most:
            return ", ".join([*said, f"{factor} at {number(target)} tokens and more"])
        said.append(f"{factor} at {number(target)}")
    return ", ".join(said)


def _words(report: MergeReport) -> Iterator[str]:
    yield (
        f"{number(report.steps)} of {number(report.steps_in)} steps became rows; "
        f"{number(report.prompts_proved)} prompts were compared with apply_chat_template and are "
        "the same."
    )
    yield (
        f"{number(report.logical_tokens)} tokens in rows, {number(report.chain_tokens)} as chains, "
        f"{number(report.unique_tokens)} in the tree."
    )
    yield (
        f"Predicted speed-up of training ({report.model_size} model, against one causal row per "
        f"step): {report.predicted_speedup:.1f}x as a tree, {report.predicted_speedup_chain:.1f}x "
        "as chains."
    )
    yield f"Fewer tokens when packed into rows: {_packed(report.merge_factor_by_row_budget)}."
    if over := {key: frac for key, frac in report.steps_over_frac_by_tokens.items() if frac}:
        shares = ", ".join(f"{frac:.1%} over {number(int(key))}" for key, frac in over.items())
        yield f"Long steps: {shares} tokens."
    yield (
        f"{number(report.links_unbroken)} of {number(report.links)} links from step to step are "
        "unbroken."
    )
    if breaks := counts(report.prefix_breaks_by_cause):
        yield f"Breaks: {breaks}."
    if report.decoded_frac_by_model:
        rates = ", ".join(f"{m} {frac:.1%}" for m, frac in report.decoded_frac_by_model.items())
        yield f"Logged ids that decode to the logged text: {rates}."
    if excluded := counts(report.steps_excluded_by_reason):
        yield f"Excluded: {excluded}."
    if report.action_tokens_shared:
        yield (
            f"{number(report.action_tokens_shared)} of {number(report.action_tokens)} trained "
            "tokens are those of an earlier step too, and are trained for each."
        )
    if report.steps_context_without_path:
        yield (
            f"{number(report.steps_context_without_path)} context steps share no row with a trained "
            "step and have no path."
        )
