"""claw show: flags to ShowConfig, a tree or one of its steps to a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from clawcli.cli import options as opt
from clawcli.cli.console import Manner, number, plain, run_verb

if TYPE_CHECKING:
    from rich.text import Text

    from clawcli.inspect.step_view import StepView, Token
    from clawcli.inspect.tree_view import Branch, TreeView


NAME = "show"
EXAMPLE = "Example: claw show demo/tree"
_HEAD_TOKENS, _TAIL_TOKENS = 60, 160
"""Of a long context these are shown, and what is between is folded."""
_STYLES = {"context": "dim", "trained": "bold green", "untrained": "yellow"}
_LIKELY, _UNLIKELY = -0.1, -2.0
"""Log-probs above and below which a token is coloured as expected and as a surprise."""


def command(
    tree: Annotated[str, typer.Argument(help="Tree that claw merge-prefixes made.")],
    step: Annotated[
        str | None,
        typer.Option("--step", help="step_uid, or its first characters: show that step's row."),
    ] = None,
    verbose: opt.Verbose = 0,
    json: opt.Json = False,
) -> None:
    """Show a token tree, or one step of it token by token.

    The tree is folded to a page: where prompts fork, how many tokens and steps, and the returns of
    trajectories where they end. A step is shown as the row that is trained: context, action and
    end token, with log-probs where they were logged.
    """
    from clawcli.inspect.show import ShowConfig, show
    from clawcli.inspect.step_view import StepView

    report = run_verb(
        NAME,
        ShowConfig,
        show,
        lambda _: iter(()),
        flags={"input": tree, "step": step},
        inputs=[tree],
        manner=Manner(False, verbose, json),
    )
    if json:
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=isinstance(report, StepView))
    drawn = _step(report) if isinstance(report, StepView) else _tree(report, console.width)
    for line in drawn:
        console.print(line)


def _step(view: StepView) -> Iterator[Text]:
    from rich.text import Text

    scalars = view.scalars
    yield Text(f"step {view.step_uid}", "bold")
    told = ("trajectory_uid", "step_index", "trajectory_kind", "model", "finish_reason")
    yield Text("  " + ", ".join(f"{key} {_value(scalars[key])}" for key in told))
    told = ("reward", "trajectory_return", "group_reward_mean", "loss_weight", "token_provenance")
    yield Text("  " + ", ".join(f"{key} {_value(scalars[key])}" for key in told))
    yield Text(
        f"  {number(view.row_tokens)} tokens: {number(view.context_tokens)} context, "
        f"{number(view.action_tokens)} action, 1 end token; {number(view.trained_tokens)} are "
        "trained"
    )
    logged = [token.logprob for token in view.tokens if token.logprob is not None]
    if logged:
        yield Text(
            f"  log-probs of {number(len(logged))} tokens: mean {sum(logged) / len(logged):.3f}, "
            f"least {min(logged):.3f}"
        )
    else:
        yield Text("  no log-probs were logged")
    for role, group in groupby(view.tokens, key=lambda token: (token.role, token.trained)):
        yield Text("")
        yield from _section(role[0], list(group), trained=role[1], logged=bool(logged))


def _section(role: str, tokens: Sequence[Token], *, trained: bool, logged: bool) -> Iterator[Text]:
    from rich.text import Text

    folded = 0
    if role == "context" and len(tokens) > _HEAD_TOKENS + _TAIL_TOKENS:
        folded = len(tokens) - _HEAD_TOKENS - _TAIL_TOKENS
    what = {"context": "context", "action": "action", "end": "end token"}[role]
    state = "" if role == "context" else ", trained" if trained else ", not trained"
    count = f" of {number(len(tokens))} tokens" if role != "end" else ""
    yield Text(f"--- {what}{count}{state}", "bold")
    style = _STYLES["context" if role == "context" else "trained" if trained else "untrained"]
    if folded:
        yield _joined(tokens[:_HEAD_TOKENS], style)
        yield Text(f"[... {number(folded)} tokens folded ...]", "italic")
        yield _joined(tokens[-_TAIL_TOKENS:], style)
    elif role == "context" or not logged:
        yield _joined(tokens, style)
    else:
        yield _with_logprobs(tokens, style)


def _joined(tokens: Sequence[Token], style: str) -> Text:
    from rich.text import Text

    return Text(plain("".join(token.text for token in tokens)), style)


def _with_logprobs(tokens: Sequence[Token], style: str) -> Text:
    """Write each token's log-prob behind it, where one was logged."""
    from rich.text import Text

    text = Text()
    for token in tokens:
        text.append(plain(token.text), style)
        if token.logprob is not None:
            colour = "green" if token.logprob > _LIKELY else "white"
            text.append(f"({token.logprob:.2f})", "red" if token.logprob < _UNLIKELY else colour)
    return text


def _tree(view: TreeView, width: int) -> Iterator[Text]:
    from rich.text import Text

    yield Text(
        f"{_many(view.steps, 'step')}, {number(view.logical_tokens)} tokens in rows, "
        f"{number(view.unique_tokens)} in {_many(view.nodes, 'node')}; "
        f"{_many(view.roots, 'root')}, {_many(view.leaves, 'leaf', 'leaves')}",
        "bold",
    )
    closed: list[bool] = []
    for branch in view.branches:
        closed = [*closed[: branch.level], branch.is_last]
        lead = "".join("  " if is_last else "| " for is_last in closed[:-1])
        line = Text()  # a style of the whole would dim what is appended
        line.append(lead + ("`-" if branch.is_last else "|-"), "dim")
        line.append(_counts(branch), "bold" if branch.node_id is not None else "italic")
        if branch.ends:
            line.append(f"  {_returns(branch)}", "green" if branch.return_max else "yellow")
        room = width - line.cell_len - 3
        if branch.text and room > 8:
            snippet = Text("  " + plain(" ".join(branch.text.split())), "dim")
            snippet.truncate(room, overflow="ellipsis")
            line.append_text(snippet)
        yield line


def _counts(branch: Branch) -> str:
    tokens, steps = _many(branch.tokens, "token"), _many(branch.steps, "step")
    if branch.node_id is None:
        return f"... {number(branch.branches)} more: {tokens}, {steps}"
    below = f", {_many(branch.leaves, 'leaf', 'leaves')} below" if branch.is_closed else ""
    return f"{tokens}, {steps}{below}"


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{number(count)} {one if count == 1 else more or one + 's'}"


def _returns(branch: Branch) -> str:
    if branch.return_mean is None:
        return "return -" if branch.ends == 1 else f"{number(branch.ends)} returns -"
    if branch.ends == 1:
        return f"return {branch.return_mean:g}"
    low, high = branch.return_min, branch.return_max
    spread = (
        f"all {low:g}" if low == high else f"mean {branch.return_mean:.3g}, {low:g} to {high:g}"
    )
    return f"{number(branch.ends)} returns, {spread}"


def _value(value: object) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
