"""claw diff: what do two data directories, or two versions of one, differ in?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, answer, number, run_verb

if TYPE_CHECKING:
    from clawcli.manage.diff import DiffReport


NAME = "diff"
EXAMPLE = "Example: claw diff demo/data@0 demo/data"
_MODELS_SHOWN = 10


def command(
    a: Annotated[str, typer.Argument(help="Data directory, also as data@version.")],
    b: Annotated[str, typer.Argument(help="The same; what it has more is added.")],
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """Compare two data directories, or two versions of one.

    Steps and trajectories that only one side has, steps whose reward changed, and how length,
    reward and model shifted. Rewards are those in the step table, without what was attached later.
    """
    from clawcli.manage.diff import DiffConfig, diff

    run_verb(
        NAME,
        DiffConfig,
        diff,
        _words,
        flags={"a": a, "b": b},
        inputs=[a, b],
        manner=Manner(quiet, verbose, json),
        out=answer,
    )


def _words(report: DiffReport) -> Iterator[str]:
    yield (
        f"steps: {number(report.steps_a)} -> {number(report.steps_b)} "
        f"(+{number(report.steps_added)} -{number(report.steps_removed)}, "
        f"{number(report.steps_reward_changed)} with another reward)"
    )
    yield (
        f"trajectories: {number(report.trajectories_a)} -> {number(report.trajectories_b)} "
        f"(+{number(report.trajectories_added)} -{number(report.trajectories_removed)})"
    )
    yield (
        f"steps with a reward: {number(report.steps_rewarded_a)} -> "
        f"{number(report.steps_rewarded_b)}"
    )
    for name, before, after in (
        (
            "steps of a trajectory",
            report.length_steps_by_quantile_a,
            report.length_steps_by_quantile_b,
        ),
        (
            "output tokens of a step",
            report.output_tokens_by_quantile_a,
            report.output_tokens_by_quantile_b,
        ),
        ("reward of a step", report.reward_by_quantile_a, report.reward_by_quantile_b),
    ):
        shown = (f"{key} {number(before[key])} -> {number(after[key])}" for key in before)
        yield f"{name}: {', '.join(shown)}"
    yield from _models(report.steps_by_model_a, report.steps_by_model_b)


def _models(before: dict[str, int], after: dict[str, int]) -> Iterator[str]:
    names = sorted({*before, *after}, key=lambda name: -before.get(name, 0) - after.get(name, 0))
    for name in names[:_MODELS_SHOWN]:
        yield (
            f"steps of model {name}: {number(before.get(name, 0))} -> {number(after.get(name, 0))}"
        )
    if (left := len(names) - _MODELS_SHOWN) > 0:
        yield f"and {number(left)} more models"
