"""What a chat template does, found out by rendering short made-up conversations.

No two templates agree on what a tool call's arguments are, and a template can drop a message or
make up a reasoning block without an error. What a few probes print decides how real conversations
are handed over; what they cannot settle is refused before the first step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clawcli.errors import DataError
from clawcli.prefix.exclude import Excluded
from clawcli.store.tokenizers import Tokenizer

Render = Callable[..., str]
"""(messages, tools=None, generation_prompt=False) -> text; raises Excluded where it cannot."""

_QUESTION, _ANSWER, _REASONING = "claw-question", "claw-answer", "claw-reasoning"
_NAME, _KEY, _VALUE = "claw_name", "claw_key", "claw_value"
# two spaces, which no JSON dump writes: found again only where the string is printed as it is
_ARGUMENTS = f'{{"{_KEY}":  "{_VALUE}"}}'
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "claw-description",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "claw-argument"}},
            "required": [_KEY],
        },
    },
}


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn of the assistant closes: one token, and what the template prints after it."""

    token_id: int
    token: str
    after: str
    """Text after the token; it belongs to the next observation."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What the probes found."""

    content_as_parts: bool
    """Message text is handed over as a list of one text part; a plain string is not printed."""
    arguments_form: str | None
    """string: printed as they are; mapping: only printed when parsed; None: never printed."""
    prints_tools: bool
    """Tool schemas are printed."""
    empty_thought: str
    """Reasoning block that the newest turn gets where the log has none; "" = none is made up."""
    open_thought: str
    """What closes the reasoning block that the prompt opened, where the log has no reasoning."""
    turn_ends: tuple[TurnEnd, ...]
    """Of a turn of text first; another one where a turn of tool calls closes otherwise."""


def probe(render: Render, tokenizer: Tokenizer) -> Habits:
    """Find out how a template treats text, tool calls, reasoning, tools and the end of a turn.

    Args:
        render: Template.render.
        tokenizer: whose tokens may end a turn.

    Raises:
        DataError: it prints no conversation, or ends a turn with something that is not one token.
    """
    as_parts, ask = _content_form(render)

    def say(**extra: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": _content(_ANSWER, as_parts), **extra}

    prompt = render([ask], generation_prompt=True)
    full = _try(render, [ask, say()])
    if _ANSWER not in full:
        raise DataError(
            "The chat template prints no text of the assistant.", "Give another --chat-template."
        )
    end = _turn_end(full[full.rindex(_ANSWER) + len(_ANSWER) :], tokenizer)
    form, call_end = _arguments_form(render, ask, tokenizer, end)
    made_up, opened = _thoughts(
        prompt, full, _try(render, [ask, say(reasoning_content=_REASONING)])
    )
    return Habits(
        content_as_parts=as_parts,
        arguments_form=form,
        prints_tools=_NAME in _try(render, [ask], [_TOOL], generation_prompt=True),
        empty_thought=made_up,
        open_thought=opened,
        turn_ends=(end,) if call_end in (None, end) else (end, call_end),
    )


def _content(text: str, as_parts: bool) -> Any:
    return [{"type": "text", "text": text}] if as_parts else text


def _content_form(render: Render) -> tuple[bool, dict[str, Any]]:
    problem = "it prints no text of the user"
    for as_parts in (False, True):
        ask = {"role": "user", "content": _content(_QUESTION, as_parts)}
        try:
            if _QUESTION in render([ask], generation_prompt=True):
                return as_parts, ask
        except Excluded as error:
            problem = error.detail
    raise DataError(
        f"The chat template cannot render one question: {problem}.",
        "Give another --chat-template.",
    )


def _turn_end(tail: str, tokenizer: Tokenizer) -> TurnEnd:
    closing = tail.lstrip()  # white space before the token belongs to the action
    found = _leading_token(closing, tokenizer)
    if found is None:
        raise DataError(
            f"The chat template ends a turn of the assistant with {tail!r}, which does not begin "
            f"with one token of tokenizer {tokenizer.name}.",
            "Give the tokenizer that belongs to the template, or another --chat-template.",
        )
    token_id, token = found
    return TurnEnd(token_id, token, closing[len(token) :])


def _leading_token(text: str, tokenizer: Tokenizer) -> tuple[int, str] | None:
    fitting = [item for item in tokenizer.added_tokens.items() if text.startswith(item[1])]
    return max(fitting, key=lambda item: len(item[1]), default=None)


def _arguments_form(
    render: Render, ask: dict[str, Any], tokenizer: Tokenizer, end: TurnEnd
) -> tuple[str | None, TurnEnd | None]:
    """Return how arguments are printed, and how a turn of tool calls ends."""
    for form, arguments in (("string", _ARGUMENTS), ("mapping", {_KEY: _VALUE})):
        function = {"name": _NAME, "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        say = {"role": "assistant", "content": "", "tool_calls": [call]}
        text = _try(render, [ask, say], [_TOOL]) or _try(render, [ask, say])
        printed = _ARGUMENTS in text if form == "string" else _KEY in text and _VALUE in text
        if not printed or _NAME not in text:
            continue
        if text.endswith(end.token + end.after):
            return form, end
        tail = text[text.rindex(_VALUE) :]
        specials = [tokenizer.added_tokens[token_id] for token_id in tokenizer.special_ids]
        place = max((tail.rfind(token) for token in specials), default=-1)
        if place >= 0:
            return form, _turn_end(tail[place:], tokenizer)
    return None, None


def _thoughts(prompt: str, full: str, thinking: str) -> tuple[str, str]:
    """Return the reasoning block made up for a turn without one, and what closes an open one."""
    if not full.startswith(prompt) or not thinking.startswith(prompt):
        return "", ""
    before = full[len(prompt) : full.rindex(_ANSWER)]
    thought = thinking[len(prompt) : thinking.rindex(_ANSWER)] if _ANSWER in thinking else ""
    opening, found, closing = thought.partition(_REASONING)
    if not before.strip() or not found:
        return "", ""
    if opening.strip() and _squeezed(before) == _squeezed(opening + closing):
        return before, ""
    if not opening.strip() and _squeezed(before) == _squeezed(closing):
        return "", before
    return "", ""


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _try(render: Render, *args: Any, **kwargs: Any) -> str:
    """Render a probe; a template that refuses it prints nothing."""
    try:
        return render(*args, **kwargs)
    except Excluded:
        return ""
