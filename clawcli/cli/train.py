"""claw train: flags to TrainConfig, report to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, counts, number, run_verb

if TYPE_CHECKING:
    from clawcli.train.run import TrainReport


NAME = "train"
EXAMPLE = "Example: claw train demo/shards --model tiny --objective sft -o demo/run-sft"


def command(
    shards: Annotated[str, typer.Argument(help="Directory of shards (claw export).")],
    model: Annotated[
        str, typer.Option("--model", help="tiny, or a local directory of a Hugging Face causal LM.")
    ],
    output: opt.Output,
    objective: Annotated[
        str | None, typer.Option("--objective", help="sft or ppo.", show_default=False)
    ] = None,
    allow_off_policy: Annotated[
        bool,
        typer.Option(
            "--allow-off-policy", help="Let ppo train on steps whose behaviour policy is unknown."
        ),
    ] = False,
    own_policy: Annotated[
        list[str] | None,
        typer.Option("--own-policy", help="A value of policy that is this model. Repeatable."),
    ] = None,
    seed: opt.Seed = None,
    force: opt.Force = False,
    dry_run: opt.DryRun = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
    config: opt.Config = None,
    set_: opt.Set = None,
) -> None:
    """Train a model: sft, or ppo behind a gate.

    PPO is for data whose behaviour policy is known. It is refused (exit 3) where log-probs are
    missing, the policy is not the model's own, or the state was not logged. Where no group has
    spread every advantage is zero, and nothing can be learned (exit 6).
    Knobs go through --set, such as --set optim.learning_rate=1e-6 (learning rate, default 1e-5) or
    --set ppo.kl_coef=0.1 (KL to the starting model).
    """
    # without torch this import says what to install
    from clawcli.train.run import TrainConfig, train

    run_verb(
        NAME,
        TrainConfig,
        train,
        _words,
        flags={
            "shards": shards,
            "output": output,
            "model": model,
            "objective": objective,
            "allow_off_policy": allow_off_policy or None,
            "own_policy": own_policy or None,
            "seed": seed,
            "force": force or None,
            "dry_run": dry_run or None,
        },
        inputs=[shards],
        manner=Manner(quiet, verbose, json, config, set_),
    )


def _words(report: TrainReport) -> Iterator[str]:
    yield (
        f"{report.objective}: {number(report.updates)} updates in {number(report.phases)} phases on "
        f"{number(report.steps_trained)} steps, {number(report.action_tokens)} action tokens."
    )
    if report.loss is not None:
        line = f"Last update: loss {report.loss:.4f}, gradient norm {number(report.grad_norm)}"
        if report.kl_ref_nats_per_token is not None:
            line += f", KL to the start {report.kl_ref_nats_per_token:.3g} nats a token"
        if report.clip_frac is not None:
            line += f"; clipped {report.clip_frac:.1%} of tokens over all"
        yield line + "."
    if report.objective == "ppo" and report.loss is not None:
        yield "A ppo loss near 0 is no fault: advantages of a group cancel in value, not in gradient."
    if report.logprob_delta_nats_by_quantile:
        found = ", ".join(f"{k} {v:.2g}" for k, v in report.logprob_delta_nats_by_quantile.items())
        yield f"Logged log-probs differ from the starting model's by (nats): {found}."
    if off := counts(report.steps_off_policy_by_reason):
        yield f"Off-policy steps that were trained because you asked for it: {off}."
    if left := counts(report.steps_left_out_by_reason):
        yield f"Left out: {left}."
    if not report.tokenizer_checked:
        yield "The model brings no tokenizer, so its vocabulary could not be compared."
    if report.checkpoint:
        yield f"The model is in {report.checkpoint}, priorities in {report.priorities}."
        yield "It was not evaluated in an environment."
