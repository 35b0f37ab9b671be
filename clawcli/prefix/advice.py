"""Say what to do about a template that shares nothing from step to step."""

from __future__ import annotations

import logging

import pyarrow as pa

from clawcli.prefix import template
from clawcli.prefix.config import MergeConfig
from clawcli.prefix.exclude import Excluded
from clawcli.prefix.links import Links
from clawcli.prefix.render import Renderer
from clawcli.prefix.rows import render_step
from clawcli.store.state import States
from clawcli.store.tokenizers import Tokenizer

logger = logging.getLogger(__name__)


def warn(
    found: Links,
    table: pa.Table,
    tokenizer: Tokenizer,
    renderer: Renderer,
    config: MergeConfig,
) -> None:
    """Say when the template breaks every link, where, and which setting would not."""
    causes = [cause for cause in found.breaks_by_cause if cause.startswith("template:")]
    if found.links_unbroken or not causes:
        return
    cause = max(causes, key=found.breaks_by_cause.__getitem__)
    example = found.examples_by_cause[cause][0]
    logger.warning(
        "The template breaks every link (%s): where the row of step %s has %r, the prompt of step "
        "%s that continues it has %r. Prompts are shared up to there only. %s",
        cause,
        example.parent_step_uid,
        example.parent_text,
        example.step_uid,
        example.child_text,
        _advice(example.row, table, tokenizer, renderer, config),
    )


def _advice(
    row: int,
    table: pa.Table,
    tokenizer: Tokenizer,
    renderer: Renderer,
    config: MergeConfig,
) -> str:
    states = States(table)
    for key in config.template_kwargs:
        kwargs = {name: value for name, value in config.template_kwargs.items() if name != key}
        chat = template.load(tokenizer, file=config.chat_template, kwargs=kwargs)
        if _mends(states, row, Renderer(chat, tokenizer, reasoning=config.reasoning)):
            return f"Without {key} in --template-kwargs this link would not break."
    if config.reasoning != "drop" and _mends(
        states, row, Renderer(renderer.template, tokenizer, reasoning="drop")
    ):
        return "With --reasoning drop this link would not break."
    return "Another --chat-template may not."


def _mends(states: States, row: int, renderer: Renderer) -> bool:
    """Tell whether a step's prompt continues its parent's row where a renderer makes both."""
    parent = states.parent(row)
    if parent is None:
        return False
    try:
        before = render_step(states, parent, renderer)
        return render_step(states, row, renderer).prompt.startswith(before.row)
    except Excluded:
        return False
