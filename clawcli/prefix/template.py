"""The chat template: one renderer (transformers' own), and what a few probes say of its habits.

A template can drop a message, edit a text or make up a reasoning block without an error, and no
two agree on what a tool call's arguments are. So before the first step is rendered, short made-up
conversations are, and what they print decides how real ones are handed over. What the probes
cannot settle is refused here; what depends on a step is left to prefix/render.py.

transformers is imported when a template is loaded. Texts come from apply_chat_template alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from clawcli.errors import DataError, NotFoundError, UsageError
from clawcli.store import tokenizers
from clawcli.store.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

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


class Reason(StrEnum):
    """Why a step has no row; the codes are stable."""

    NO_ACTION = "no_action"
    """The action is empty, or nothing of it may be trained."""
    MEDIA = "media"
    """A message holds an image, sound or file, which is not text."""
    PARTS_NOT_TEXT = "parts_not_text"
    """A message holds a part of another kind that is not text."""
    SPECIAL_TOKEN_IN_TEXT = "special_token_in_text"
    """A text of the log spells a special token, which would close or open a turn."""
    ARGUMENTS_NOT_RENDERABLE = "arguments_not_renderable"
    """The template needs arguments as a mapping, but the logged string is no JSON object."""
    TEMPLATE_RAISES = "template_raises"
    """The template refuses the conversation."""
    TEMPLATE_DROPS_MESSAGE = "template_drops_message"
    """A message does not appear in the rendering."""
    TEMPLATE_DROPS_TOOLS = "template_drops_tools"
    """The tool schemas do not appear in the rendering."""
    TEMPLATE_DROPS_CALLS = "template_drops_calls"
    """A tool call does not appear in the rendering."""
    TEMPLATE_DROPS_REASONING = "template_drops_reasoning"
    """The action's reasoning does not appear in the rendering."""
    TEMPLATE_EDITS_TEXT = "template_edits_text"
    """A message appears, but not with its text."""
    ACTION_NOT_LOCATED = "action_not_located"
    """The full rendering does not continue the prompt, or not by a closed turn."""
    PROMPT_DIFFERS = "prompt_differs"
    """The prompt's ids are not those of apply_chat_template."""


class Excluded(Exception):  # noqa: N818  it is an outcome that is counted, no error
    """A step that cannot be rendered truthfully; caught and counted by prefix/run.py."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        """Keep the code and, in words, what was found."""
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


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


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template with its settings and habits."""

    engine: Any
    """The transformers tokenizer that renders."""
    text: Any
    """The template: a string, or named ones as a mapping."""
    kwargs: Mapping[str, Any]
    """Variables for the template, such as enable_thinking."""
    template_hash: str
    """blake2b-128 hex of the template and its variables."""
    habits: Habits

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """Render messages of the template's own form to text.

        Raises:
            Excluded: the template raises.
        """
        return _render(
            self.engine,
            self.text,
            self.kwargs,
            messages,
            tools,
            generation_prompt=generation_prompt,
        )

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Ids that apply_chat_template itself gives for a prompt: what the proof compares with."""
        return self.engine.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            chat_template=self.text if isinstance(self.text, str) else None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self.kwargs,
        )


def load(
    tokenizer: Tokenizer, *, file: str | None = None, kwargs: Mapping[str, Any] | None = None
) -> Template:
    """Load the chat template of a tokenizer and probe it.

    Args:
        tokenizer: whose directory holds the template.
        file: a Jinja file to use instead.
        kwargs: variables for the template.

    Raises:
        NotFoundError: the file does not exist.
        UsageError: there is no template.
        DataError: transformers cannot load the tokenizer, or the template prints no conversation,
            or ends a turn with something that is not one token.
    """
    engine = _engine(tokenizer)
    text = _read(file) if file is not None else engine.chat_template
    if not text:
        raise UsageError(
            f"Tokenizer {tokenizer.name} has no chat template.",
            "Give one with --chat-template FILE.",
        )
    kwargs = dict(kwargs or {})
    if "strftime_now" in json.dumps(text):
        logger.warning("The chat template can print today's date: rows may change from day to day.")

    def render(messages: Any, tools: Any = None, *, generation_prompt: bool = False) -> str:
        return _render(engine, text, kwargs, messages, tools, generation_prompt=generation_prompt)

    described = json.dumps([text, kwargs], sort_keys=True).encode()
    return Template(
        engine=engine,
        text=text,
        kwargs=kwargs,
        template_hash=hashlib.blake2b(described, digest_size=16).hexdigest(),
        habits=probe(render, tokenizer),
    )


def probe(render: Render, tokenizer: Tokenizer) -> Habits:
    """Find out how a template treats text, tool calls, reasoning, tools and the end of a turn.

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


def _render(
    engine: Any,
    text: Any,
    kwargs: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    generation_prompt: bool,
) -> str:
    try:
        return engine.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            chat_template=text if isinstance(text, str) else None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **kwargs,
        )
    except Exception as error:  # a template is a program: it may raise anything
        raise Excluded(Reason.TEMPLATE_RAISES, f"{type(error).__name__}: {error}") from error


def _engine(tokenizer: Tokenizer) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = tokenizer.directory / "tokenizer_config.json"
    try:
        if tokenizer.json_path.name == tokenizers.FILE and config.is_file():
            engine = AutoTokenizer.from_pretrained(
                str(tokenizer.directory), local_files_only=True, trust_remote_code=False
            )
        else:
            engine = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer.json_path))
    except Exception as error:  # transformers raises many kinds for a directory it cannot use
        raise DataError(
            f"transformers cannot load the tokenizer in {tokenizer.directory}: {error}.",
            "Give a directory that AutoTokenizer.from_pretrained opens.",
        ) from error
    engine.model_max_length = 10**9  # a long prompt is no reason for a warning: nothing is cut
    return engine


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except FileNotFoundError:
        raise NotFoundError(f"Chat template {file} does not exist.", "Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"Chat template {file} cannot be read: {error}.", "Give a Jinja text file."
        ) from error
