"""What of a conversation a template may treat otherwise in the newest turn than in history.

Whether a template only appends is tried on made-up conversations (prefix/linear.py). Each is made
for the traits of real ones, so that what was tried is what is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

from clawcli.prefix.render import Conversation, printed_text

_ROLES = {"user", "assistant", "tool"}
_THOUGHT = re.compile(r"</?think|/(no_?)?think")
"""Templates find reasoning, or whether to reason, in a text by these."""


class Trait(StrEnum):
    """What a template may treat otherwise in the newest turn than in history."""

    CALLS = "calls"
    """Messages call tools, or are their results."""
    REASONING = "reasoning"
    """Messages of the assistant have reasoning."""
    LEADS = "leads"
    """Texts of the assistant begin with white space."""
    TRAILS = "trails"
    """Texts of the assistant end with white space."""
    OTHER_EDGES = "other_edges"
    """Texts of others begin or end with white space."""
    AGAIN = "again"
    """The user speaks twice in a row."""
    NO_TEXT = "no_text"
    """Messages have no text, or white space alone."""
    SYSTEM = "system"
    """There is a system text."""
    TOOLS = "tools"
    """There are tool schemas."""


_EDGES = (("", ""), ("\n", "\n"), ("\n\n ", " \n\n"), (" ", " "), (" \n", "\n "))
"""White space before and after a text: templates strip line ends alone, or all."""

MadeUp = tuple[str, list[dict[str, Any]] | None, list[dict[str, Any]]]
"""System text, tools and messages of a conversation."""


def is_plain(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the traits say all about a conversation that may matter."""
    lead = messages[:1] if messages and messages[0]["role"] == "system" else []
    rest = messages[len(lead) :]
    roles = [message["role"] for message in rest]
    return (
        set(roles) <= _ROLES
        and all("assistant" not in pair or pair[0] != pair[1] for pair in pairwise(roles))
        and bool(roles)
        and roles[0] != "assistant"
        # a state that ends with an answer has it as its newest turn
        and roles[-1] != "assistant"
        and not any(_THOUGHT.search(printed_text(message)) for message in messages)
        and not any(_says_nothing(message) for message in rest)
    )


def of(state: Conversation) -> frozenset[Trait]:
    """Find the traits of a conversation."""
    traits = {Trait.TOOLS} if state.tools else set()
    for message in state.messages:
        role, text = message["role"], printed_text(message)
        if role == "system":
            traits.add(Trait.SYSTEM)
        if role == "tool" or message.get("tool_calls"):
            traits.add(Trait.CALLS)
        if message.get("reasoning_content"):
            traits.add(Trait.REASONING)
        if not text.strip():
            traits.add(Trait.NO_TEXT)
        if text != text.lstrip():
            traits.add(Trait.LEADS if role == "assistant" else Trait.OTHER_EDGES)
        if text != text.rstrip():
            traits.add(Trait.TRAILS if role == "assistant" else Trait.OTHER_EDGES)
    roles = [message["role"] for message in state.messages]
    if ("user", "user") in pairwise(roles):
        traits.add(Trait.AGAIN)
    return frozenset(traits)


def made_up(traits: frozenset[Trait]) -> Iterator[MadeUp]:
    """Make conversations of four turns and more that have all these traits."""
    edged = {Trait.LEADS, Trait.TRAILS, Trait.OTHER_EDGES} & traits
    for before, after in _EDGES if edged else _EDGES[:1]:
        own = before if Trait.LEADS in traits else "", after if Trait.TRAILS in traits else ""
        others = (before, after) if Trait.OTHER_EDGES in traits else ("", "")
        yield from _with_edges(traits, own, others)


def _with_edges(
    traits: frozenset[Trait], own: tuple[str, str], others: tuple[str, str]
) -> Iterator[MadeUp]:
    system = _between("claw-system", others) if Trait.SYSTEM in traits else ""
    schema = {"type": "object", "properties": {"key": {"type": "string", "description": "k"}}}
    function = {"name": "claw_tool", "description": "d", "parameters": schema}
    tools = [{"type": "function", "function": function}] if Trait.TOOLS in traits else None

    def ask(number: int, role: str = "user", **extra: Any) -> dict[str, Any]:
        return {"role": role, "content": _between(f"claw-{role}-{number}", others), **extra}

    def say(number: int, *, calls: int = 0, thinks: bool = True) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": _between(f"claw-say-{number}", own),
        }
        if calls:
            message["tool_calls"] = [
                {"id": f"call{number:04}{k}", "name": "claw_tool", "arguments": f'{{"key": "{k}"}}'}
                for k in range(calls)
            ]
            if Trait.NO_TEXT in traits and number % 2:
                message["content"] = _between("", own)
        if thinks and Trait.REASONING in traits:
            message["reasoning"] = f"claw-thought-{number}"
        return message

    def answers(number: int, calls: int) -> list[dict[str, Any]]:
        results = [
            ask(10 * number + k, "tool", tool_call_id=f"call{number:04}{k}") for k in range(calls)
        ]
        if Trait.NO_TEXT in traits and number % 2:
            results[0]["content"] = _between("", others)
        return results

    for thinks in (True, False) if Trait.REASONING in traits else (True,):
        talk = []
        for number in range(5):
            talk += [ask(number), say(number, thinks=thinks or number % 2 == 0)]
            if Trait.AGAIN in traits:
                talk.append(ask(number))
        # a call without text, and a question without one, are both of what NO_TEXT stands for
        if Trait.NO_TEXT in traits:
            talk[4]["content"] = _between("", others)
        yield system, tools, [*talk, ask(6), say(6)]
        if Trait.CALLS not in traits:
            continue
        for calls in (1, 2):
            talk = [ask(0)]
            for number in range(1, 5):
                talk += [say(number, calls=calls, thinks=thinks or number % 2 == 0)]
                talk += answers(number, calls)
            yield system, tools, [*talk, say(6)]
            turn = [say(7), ask(7), say(8, calls=calls), *answers(8, calls), say(9)]
            yield system, tools, [*talk, *turn]
            yield (
                system,
                tools,
                [
                    *talk,
                    ask(5),
                    say(6),
                    ask(7),
                    say(7, calls=calls),
                    *answers(7, calls),
                    ask(8),
                    say(8),
                ],
            )


def _between(text: str, edges: tuple[str, str]) -> str:
    before, after = edges
    return before + text + after


def _says_nothing(message: Mapping[str, Any]) -> bool:
    is_said = printed_text(message).strip() or message.get("tool_calls")
    return message["role"] == "assistant" and not is_said
