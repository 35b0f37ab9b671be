"""claw readiness: flags to ReadinessConfig, report to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb

if TYPE_CHECKING:
    from clawcli.inspect.readiness import ReadinessReport, Slice


NAME = "readiness"
EXAMPLE = "Example: claw readiness demo/data"
_MOST_SLICES = 10
_OUTCOMES = {"0": "all fail", "1": "all pass"}
"""What attempts of a group without spread did, by the return that they share."""


def command(
    data: Annotated[str, typer.Argument(help="Data directory, also as data@version.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Model to train: tiny, or a local Hugging Face directory. Its tokenizer and its "
            "name are compared with the log.",
        ),
    ] = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """Say what a log can train: sft, kto, dpo, awr, reinforce, ppo.

    Counts, for each log format, model and policy, the steps that are valid for each objective,
    those that carry signal, and the reasons against the others, each with what to do about it. The
    same rules are the gate of claw train. docs/readiness.md lists them.
    """
    from clawcli.inspect.readiness import ReadinessConfig, readiness

    run_verb(
        NAME,
        ReadinessConfig,
        readiness,
        lambda report: _words(report, with_model=model is not None),
        flags={"input": data, "model": model},
        inputs=[data],
        manner=Manner(quiet, verbose, json),
    )


def _words(report: ReadinessReport, *, with_model: bool) -> Iterator[str]:
    yield report.headline
    if report.groups:
        yield _group_words(report)
    for each in report.slices[:_MOST_SLICES]:
        yield from _slice_words(each)
    if (more := len(report.slices) - _MOST_SLICES) > 0:
        yield f"{number(more)} more formats, models and policies: --json lists all."
    for reason, steps in report.steps_by_reason.items():
        against = ", ".join(report.objectives_by_reason[reason]) or "a caution"
        yield (
            f"{reason}: {report.column_by_reason[reason]} in {number(steps)} steps "
            f"({report.frac_by_reason[reason]:.1%}); {against}. {report.fix_by_reason[reason]}"
        )
    hint = "" if with_model else ", or --model DIR compares its name"
    if report.steps_policy_unknown:
        yield (
            f"Whether the policy is the model's own is not known for "
            f"{number(report.steps_policy_unknown)} steps: claw train measures it{hint}."
        )
    if report.steps_tokenizer_unknown:
        means = "the model brings no tokenizer that tells" if with_model else "--model DIR tells"
        yield (
            f"Whether logged ids are of the model's tokenizer is not known for "
            f"{number(report.steps_tokenizer_unknown)} steps: {means}."
        )


def _group_words(report: ReadinessReport) -> str:
    line = (
        f"{number(report.groups_without_spread)} of {number(report.groups)} groups have no spread"
    )
    if report.groups_without_spread_by_return:
        found = report.groups_without_spread_by_return.items()
        alike = (
            f"{number(count)} {_OUTCOMES.get(value, f'all return {value}')}"
            for value, count in found
        )
        line += f" ({', '.join(alike)})"
    if report.groups_of_one:
        line += f", {number(report.groups_of_one)} are of one attempt"
    if report.groups_without_return:
        line += f", {number(report.groups_without_return)} have no return"
    steps = report.steps - report.steps_by_reason.get("loss_weight_zero", 0)
    silent = steps - report.steps_with_signal_by_objective["reinforce"]
    return f"{line}: {number(silent)} of {number(steps)} steps train nothing in groups."


def _slice_words(each: Slice) -> Iterator[str]:
    signal = each.steps_with_signal_by_objective
    objectives = (
        f"{name} {number(valid)}"
        + (f" ({number(signal[name])} with signal)" if signal[name] < valid else "")
        for name, valid in each.steps_valid_by_objective.items()
    )
    yield (
        f"{each.log_format or '-'}, model {each.model or '-'}, policy {each.policy or '-'}: "
        f"{number(each.steps)} steps; valid for {', '.join(objectives)}."
    )
    if each.steps_by_reason:
        yield f"  Against them: {counts(each.steps_by_reason)}."
