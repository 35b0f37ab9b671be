"""One step to text: prompt, action, turn end, each part proved to be there.

The prompt is what the template prints for the state; the action is what the full rendering adds,
without a reasoning block that the template made up and without what follows the turn's end. State
and action are tokenised apart, so that the border between them is a border between tokens. Where
the log's texts do not all occur, the step is left out with a reason, never repaired.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from clawcli.messages import part_text
from clawcli.prefix.exclude import Excluded, Reason
from clawcli.prefix.probe import Habits, TurnEnd, probe
from clawcli.prefix.template import Template
from clawcli.store.tokenizers import Tokenizer

Reasoning = Literal["keep", "drop", "require"]

_MEDIA_WORDS = ("image", "audio", "video", "file", "document", "media")
_MARK = "claw-mark"
_TELLING_CHARS = 16
"""Text of this length does not stand in a rendering by chance."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A state as the template takes it, with the action as its last message where there is one."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Rendered:
    """The texts of one step: its row is prompt, action and the token of end."""

    prompt: str
    action: str
    end: TurnEnd
    state: Conversation

    @property
    def row(self) -> str:
        """The whole row as text."""
        return self.prompt + self.action + self.end.token


class Renderer:
    """Render steps with one template and check what it printed."""

    def __init__(
        self, template: Template, tokenizer: Tokenizer, *, reasoning: Reasoning = "keep"
    ) -> None:
        """Probe the template.

        Args:
            template: renders.
            tokenizer: whose special tokens no text may spell.
            reasoning: keep = hand the log's reasoning to the template; drop = do not; require =
                exclude a step whose action has none.

        Raises:
            DataError: it prints no conversation, or ends a turn with something that is not one
                token.
        """
        self.template = template
        self.reasoning: Reasoning = reasoning
        self.habits = probe(template.render, tokenizer)
        texts = [tokenizer.added_tokens[token_id] for token_id in sorted(tokenizer.special_ids)]
        # an alternation of nothing would match everywhere
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._clean: set[str] = set()
        self._printed_roles: set[str] = set()

    def state(
        self,
        system: str,
        tools: Sequence[Mapping[str, Any]] | None,
        messages: Sequence[Mapping[str, Any]],
    ) -> Conversation:
        """Turn a state of the step table into the template's own form.

        Raises:
            Excluded: there is no message; one holds what is not text, spells a special token, or
                has arguments that the template cannot take; the tools are no objects, or the
                template has no place for them.
        """
        if tools and not _are_objects(tools):
            raise Excluded(Reason.TOOLS_NOT_OBJECTS)
        if tools and not self.habits.prints_tools:
            raise Excluded(Reason.TEMPLATE_DROPS_TOOLS)
        self._refuse_special(system)
        self._refuse_special(_spelled(tools) if tools else "")
        lead: list[Mapping[str, Any]] = [{"role": "system", "content": system}] if system else []
        turned = [self._message(message) for message in [*lead, *messages]]
        if not turned:
            raise Excluded(Reason.NO_STATE)
        return Conversation(turned, [dict(tool) for tool in tools] if tools else None)

    def prompt(self, state: Conversation) -> str:
        """Render a state up to where the model begins to write, all its texts found in it.

        Raises:
            Excluded: the template raises, drops a message or edits a text.
        """
        text = self._render(state.messages, state.tools, generation_prompt=True)
        for tool in state.tools or []:
            if (name := _tool_name(tool)) and name not in text:
                raise Excluded(Reason.TEMPLATE_DROPS_TOOLS, name)
        place = 0
        for index, message in enumerate(state.messages):
            # some templates print the system text after the tools, or in a later turn
            is_lead = index == 0 and message["role"] == "system"
            found = _find(message, text, place)
            if found is None or not self._prints_role(state, message):
                raise self._missing(state, message)
            place = 0 if is_lead else found
        return text

    def step(self, state: Conversation, prompt: str, action: Mapping[str, Any]) -> Rendered:
        """Render the action of a state and cut it out of the full rendering.

        Args:
            state: from state().
            prompt: from prompt().
            action: the assistant's message as the step table gives it.

        Raises:
            Excluded: the action is empty, cannot be handed over, is not printed whole, or does
                not stand between the prompt and one turn end.
        """
        message = self._message({**action, "role": "assistant"})
        reasoning = message.get("reasoning_content", "")
        if not (printed_text(message) or reasoning or message.get("tool_calls")):
            raise Excluded(Reason.NO_ACTION)
        if not reasoning and self.reasoning == "require":
            raise Excluded(Reason.REASONING_MISSING)
        full = self._render([*state.messages, message], state.tools)
        if not full.startswith(prompt):
            raise Excluded(Reason.ACTION_NOT_LOCATED, "the full rendering has another prompt")
        text, end = _cut_end(full[len(prompt) :], self.habits)
        if not reasoning:
            text = _without_made_up(text, printed_text(message), self.habits)
        place = text.find(reasoning.strip())
        if place < 0:
            raise Excluded(Reason.TEMPLATE_DROPS_REASONING)
        if _find(message, text, place + len(reasoning.strip())) is None:
            raise self._missing(Conversation([*state.messages, message], state.tools), message)
        return Rendered(prompt, text, end, state)

    def past_action(self, text: str, action: Mapping[str, Any]) -> None:
        """Check that an action is printed whole in the text that a history has of it.

        Raises:
            Excluded: it is empty, cannot be handed over, or is not printed whole.
        """
        message = self._message({**action, "role": "assistant"})
        if not (printed_text(message) or message.get("tool_calls")):
            raise Excluded(Reason.NO_ACTION)
        if _find(message, text, 0) is None:
            raise Excluded(Reason.TEMPLATE_EDITS_TEXT)

    def without_generation_prompt(self, state: Conversation) -> str:
        """Render a state as history, to tell which part of a prompt a template takes back."""
        return self.template.render(state.messages, state.tools)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        text = self.template.render(messages, tools, generation_prompt=generation_prompt)
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can spell what no tokenizer takes
            raise Excluded(Reason.NOT_UNICODE, ascii(text[error.start])) from None
        return text

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        text = content_text(message)
        self._refuse_special(text)
        as_parts = self.habits.content_as_parts
        turned: dict[str, Any] = {
            "role": message["role"],
            "content": [{"type": "text", "text": text}] if as_parts else text,
        }
        if calls := message.get("tool_calls"):
            turned["tool_calls"] = [self._call(call) for call in calls]
        reasoning = message.get("reasoning") or ""
        if reasoning.strip() and self.reasoning != "drop":
            self._refuse_special(reasoning)
            turned["reasoning_content"] = reasoning
        for key in ("tool_call_id", "name"):
            if message.get(key):
                turned[key] = message[key]
        return turned

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        arguments: Any = call.get("arguments") or ""
        self._refuse_special(arguments)
        form = self.habits.arguments_form
        if form is None:
            raise Excluded(Reason.TEMPLATE_DROPS_CALLS)
        if form == "mapping":
            arguments = _mapping(arguments)
        function = {"name": call.get("name") or "", "arguments": arguments}
        turned = {"type": "function", "function": function}
        return {"id": call["id"], **turned} if call.get("id") else turned

    def _refuse_special(self, text: str) -> None:
        if text in self._clean:
            return
        if found := self._special.search(text):
            raise Excluded(Reason.SPECIAL_TOKEN_IN_TEXT, found.group())
        self._clean.add(text)

    def _prints_role(self, state: Conversation, message: Mapping[str, Any]) -> bool:
        """Tell whether a message with little text is printed: that little may stand anywhere."""
        role = message["role"]
        if role in self._printed_roles or message.get("tool_calls"):
            return True
        is_printed = len(printed_text(message)) >= _TELLING_CHARS or self._prints_mark(
            state, message
        )
        if is_printed:
            self._printed_roles.add(role)
        return is_printed

    def _prints_mark(self, state: Conversation, message: Mapping[str, Any]) -> bool:
        """Tell whether a mark in place of a message's text appears in the rendering."""
        mark = [{"type": "text", "text": _MARK}] if self.habits.content_as_parts else _MARK
        marked = [{**m, "content": mark} if m is message else m for m in state.messages]
        with contextlib.suppress(Excluded):  # a mark may break what the template demands
            return _MARK in self.template.render(marked, state.tools)
        return False

    def _missing(self, state: Conversation, message: Mapping[str, Any]) -> Excluded:
        """Tell a message that is dropped from one whose text is edited: does a mark appear?"""
        is_printed = self._prints_mark(state, message)
        reason = Reason.TEMPLATE_EDITS_TEXT if is_printed else Reason.TEMPLATE_DROPS_MESSAGE
        return Excluded(reason, f"{message['role']}: {printed_text(message)[:80]!r}")


def _without_made_up(text: str, logged: str, habits: Habits) -> str:
    """Drop the reasoning block that the template made up; refuse one that it only closed."""
    made_up, opened = habits.empty_thought, habits.open_thought
    if made_up and text.startswith(made_up) and not logged.startswith(made_up):
        return text[len(made_up) :]
    if opened and text.startswith(opened):
        raise Excluded(
            Reason.ACTION_NOT_LOCATED, "the prompt opens a reasoning block that the log lacks"
        )
    return text


def _find(message: Mapping[str, Any], text: str, place: int) -> int | None:
    """Find a message's texts from a place on; return where the last of them ends."""
    end = place
    for spellings in _pieces(message):
        found = [(at, len(s)) for s in spellings if (at := text.find(s, place)) >= 0]
        if not found:
            return None
        end = max(end, sum(min(found)))
    return end


def _cut_end(text: str, habits: Habits) -> tuple[str, TurnEnd]:
    for end in habits.turn_ends:
        closing = end.token + end.after
        if text.endswith(closing):
            return text[: -len(closing)], end
    raise Excluded(Reason.ACTION_NOT_LOCATED, f"the turn closes with {text[-40:]!r}")


def content_text(message: Mapping[str, Any]) -> str:
    """Join a message's text; a part that is not text excludes the step."""
    parts = message.get("parts")
    if not parts:
        return message.get("content") or ""
    texts = []
    for part in json.loads(parts) if isinstance(parts, str) else parts:
        text = part_text(part)
        if text is None:
            kind = str(part.get("type", "")) if isinstance(part, dict) else type(part).__name__
            is_media = any(word in kind for word in _MEDIA_WORDS)
            raise Excluded(Reason.MEDIA if is_media else Reason.PARTS_NOT_TEXT, kind)
        texts.append(text)
    return "".join(texts)


def _mapping(arguments: str) -> dict[str, Any]:
    """Parse arguments for a template that prints mappings only; nothing may get lost."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise Excluded(Reason.ARGUMENTS_NOT_RENDERABLE, "a key stands twice")
        return dict(pairs)

    try:
        value = json.loads(arguments or "{}", object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Excluded(Reason.ARGUMENTS_NOT_RENDERABLE, str(error)) from error
    if not isinstance(value, dict):
        raise Excluded(Reason.ARGUMENTS_NOT_RENDERABLE, f"{type(value).__name__}, not an object")
    return value


def _pieces(message: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield what must occur in a message's rendering, each as the spellings that will do."""
    # some templates print results of tools as JSON strings
    yield _spellings(printed_text(message).strip())
    for call in message.get("tool_calls", ()):
        yield (call["function"]["name"],)
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            yield (arguments.strip(),)
        else:
            yield from map(_spellings, _leaves(arguments))


def _leaves(value: Any) -> Iterator[str]:
    """Yield all keys and strings; a stack, because logs nest as deep as they like."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield from item
            stack += item.values()
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, str):
            yield item


def _spellings(text: str) -> tuple[str, ...]:
    """Return a text as templates print it: bare, or inside JSON."""
    return text, *(json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (False, True))


def printed_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message of a Conversation."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _spelled(tools: Sequence[Mapping[str, Any]]) -> str:
    try:
        return json.dumps(tools, ensure_ascii=False)
    except RecursionError as error:
        raise Excluded(Reason.TOOLS_NOT_OBJECTS, "nested too deeply") from error


def _are_objects(tools: object) -> bool:
    return isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)


def _tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""
