"""All steps of an attempt from one rendering, where the template only ever appends.

The prompt of an attempt's last step holds the prompts of all steps before it, each up to where the
template opens the assistant's turn, and their actions, each up to the token that closes it. Both
places are found by special tokens, which no text of a log may spell, so one rendering is cut into
the rows of all steps: linear in the number of turns, where rendering each step is quadratic.

Whether a template only appends depends on what is said: most drop reasoning from history, some
close a turn of tool calls otherwise, some strip white space in the newest turn alone. So it is
tried, for each such trait, on made-up conversations: cut and rendered step by step, all texts must
be the same. What was not tried, or did not hold, is left to the path that renders each step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.prefix.exclude import Excluded
from clawcli.prefix.probe import TurnEnd
from clawcli.prefix.render import Conversation, Renderer
from clawcli.prefix.rows import Row, RowMaker

_ROLES = {"user", "assistant", "tool"}
_THOUGHT = re.compile(r"</?think")
"""Templates find reasoning in a text by these, and treat it as what it says."""


class Trait(StrEnum):
    """What a template may treat otherwise in the newest turn than in history."""

    CALLS = "calls"
    """Messages call tools, or are their results."""
    REASONING = "reasoning"
    """Messages of the assistant have reasoning."""
    EDGES = "edges"
    """Texts of the assistant begin or end with white space."""
    OTHER_EDGES = "other_edges"
    """Texts of others begin or end with white space."""
    NO_TEXT = "no_text"
    """Messages have no text."""
    SYSTEM = "system"
    """There is a system text."""
    TOOLS = "tools"
    """There are tool schemas."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One step cut out of a later prompt."""

    prompt_end: int
    """Place in the text where its prompt ends."""
    action: str
    end: TurnEnd


class Cutter:
    """Cut the steps of an attempt out of the prompt of its last one."""

    def __init__(self, renderer: Renderer, special: Sequence[str]) -> None:
        """Find out how the template opens the assistant's turn.

        Args:
            renderer: of the template.
            special: texts that no message may spell.
        """
        self._renderer = renderer
        self._ends = {end.token: end for end in renderer.habits.turn_ends}
        self._tried: dict[frozenset[Trait], bool] = {}
        self._opening = self._find_opening()
        # only a border that no text can spell is found without doubt
        self.works = any(token in self._opening for token in special) and all(
            end.token in special for end in renderer.habits.turn_ends
        )
        """False: nothing can be cut with this template."""
        self._closing = re.compile("|".join(map(re.escape, self._ends)))

    def cut(self, state: Conversation, prompt: str) -> list[Piece] | None:
        """Cut a prompt into the steps before it.

        Args:
            state: of the last step.
            prompt: its rendering.

        Returns:
            A piece for each message of the assistant in the state, in order; None where that
            cannot be told.
        """
        if not self.works:
            return None
        opened = [found.end() for found in re.finditer(re.escape(self._opening), prompt)]
        said = sum(message["role"] == "assistant" for message in state.messages)
        if len(opened) != said + 1 or opened[-1] != len(prompt):
            return None
        pieces = []
        for start, following in pairwise(opened):
            closing = self._closing.search(prompt, start, following)
            if closing is None:
                return None
            action = prompt[start : closing.start()]
            pieces.append(Piece(start, action, self._ends[closing.group()]))
        return pieces

    def appends(self, state: Conversation) -> bool:
        """Tell whether the template only appends in conversations with the traits of this one."""
        if not self.works or not _is_plain(state.messages):
            return False
        traits = _traits(state)
        if traits not in self._tried:
            self._tried[traits] = all(map(self._agrees, _made_up(traits)))
        return self._tried[traits]

    def _find_opening(self) -> str:
        ask = self._message({"role": "user", "content": "claw-question"})
        try:
            past = self._renderer.template.render([ask])
            prompt = self._renderer.template.render([ask], generation_prompt=True)
        except Excluded:
            return ""
        return prompt[len(past) :] if prompt.startswith(past) else ""

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return self._renderer.state("", None, [message]).messages[0]

    def _agrees(self, made_up: _MadeUp) -> bool:
        """Compare, for one conversation, what is cut with what each step renders to."""
        system, tools, messages = made_up
        places = [k for k, message in enumerate(messages) if message["role"] == "assistant"]
        try:
            states = [self._renderer.state(system, tools, messages[:place]) for place in places]
            prompts = [self._renderer.prompt(state) for state in states]
            pieces = self.cut(states[-1], prompts[-1])
            if pieces is None:
                return False
            for place, state, prompt, piece in zip(places, states, prompts, pieces, strict=False):
                alone = self._renderer.step(state, prompt, messages[place])
                cut = prompts[-1][: piece.prompt_end], piece.action, piece.end
                if cut != (alone.prompt, alone.action, alone.end):
                    return False
        except Excluded:
            return False
        return True


class Linear:
    """The rows of a table that can be had from one rendering for each attempt."""

    def __init__(self, maker: RowMaker, table: pa.Table) -> None:
        """Find the links on which a state is the parent's state and action, and more."""
        self._maker = maker
        special = [maker.tokenizer.added_tokens[k] for k in maker.tokenizer.special_ids]
        self._cutter = Cutter(maker.renderer, special)
        observed = pc.call_function("list_value_length", [table["observation"]]).to_pylist()
        prefixes = table["prefix_messages"].to_pylist()
        self._lengths = [(a or 0) + (b or 0) for a, b in zip(prefixes, observed, strict=True)]
        restates = [
            system is not None or tools is not None
            for system, tools in zip(
                table["system"].to_pylist(), table["tools"].to_pylist(), strict=True
            )
        ]
        broken = table["prefix_broken"].to_pylist()
        self._above = [
            parent
            if parent is not None
            and broken[row] is None
            and not restates[row]
            and prefixes[row] == self._lengths[parent] + 1
            else None
            for row, parent in enumerate(maker.parents)
        ]
        self._continued = set(self._above)

    def rows(self, places: Iterable[int]) -> Iterator[tuple[int, Row]]:
        """Make rows; steps that are not among them are to be made one by one.

        Args:
            places: rows of the table, whole attempts.

        Raises:
            Disproved: a prompt is not what the template gives.
        """
        encode = self._maker.encode
        if not (self._cutter.works and encode.splits):
            return
        done: set[int] = set()
        for leaf in places:
            if leaf in self._continued or self._above[leaf] is None:
                continue
            chain = [row for row in self._chain(leaf) if row not in done]
            done.update(chain)
            # a step without a row of its own is made alone, where its reason is found
            try:
                yield from self._attempt(leaf, chain)
            except Excluded:
                continue

    def _chain(self, leaf: int) -> list[int]:
        chain = []
        row: int | None = leaf
        while row is not None:
            if self._maker.logged_ids(row) is not None:
                return []
            chain.append(row)
            row = self._above[row]
        return chain

    def _attempt(self, leaf: int, chain: Sequence[int]) -> Iterator[tuple[int, Row]]:
        maker = self._maker
        if not chain:
            return
        asked = maker.states.prompt(leaf)
        state = maker.renderer.state(asked.system, asked.tools, asked.messages)
        if not self._cutter.appends(state):
            return
        prompt = maker.renderer.prompt(state)
        pieces = self._cutter.cut(state, prompt)
        if pieces is None:
            return
        lead = len(state.messages) - self._lengths[leaf]
        ids = maker.encode.prefixes(prompt)
        for row in chain:
            messages = state.messages[: lead + self._lengths[row]]
            own = Conversation(messages, state.tools)
            try:
                if row == leaf:
                    last = maker.renderer.step(state, prompt, maker.states.action(row))
                    made = maker.from_text(row, ids(len(prompt)), last.action, last.end)
                else:
                    said = sum(message["role"] == "assistant" for message in messages)
                    piece = pieces[said]
                    maker.renderer.past_action(piece.action, maker.states.action(row))
                    start = ids(piece.prompt_end)
                    made = maker.from_text(row, start, piece.action, piece.end)
            except Excluded:
                continue
            if maker.proves(row):
                maker.prove(row, own, made.tokens[: made.response_start])
                if row != leaf:
                    self._prove_action(row, own, made)
            yield row, made

    def _prove_action(self, row: int, state: Conversation, made: Row) -> None:
        maker = self._maker
        alone = maker.renderer.step(state, maker.renderer.prompt(state), maker.states.action(row))
        action = np.append(maker.encode.action(alone.action), np.int32(alone.end.token_id))
        maker.same(made.tokens[made.response_start :], action)


_MadeUp = tuple[str, list[dict[str, Any]] | None, list[dict[str, Any]]]
"""System text, tools and messages of a conversation."""


def _is_plain(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the traits say all about a conversation that may matter."""
    lead = messages[:1] if messages and messages[0]["role"] == "system" else []
    rest = messages[len(lead) :]
    roles = [message["role"] for message in rest]
    return (
        set(roles) <= _ROLES
        and all("assistant" not in pair or pair[0] != pair[1] for pair in pairwise(roles))
        and bool(roles)
        and roles[0] != "assistant"
        and not any(_THOUGHT.search(_text(message)) for message in messages)
    )


def _traits(state: Conversation) -> frozenset[Trait]:
    traits = {Trait.TOOLS} if state.tools else set()
    for message in state.messages:
        role, text = message["role"], _text(message)
        if role == "system":
            traits.add(Trait.SYSTEM)
        if role == "tool" or message.get("tool_calls"):
            traits.add(Trait.CALLS)
        if message.get("reasoning_content"):
            traits.add(Trait.REASONING)
        if not text:
            traits.add(Trait.NO_TEXT)
        elif text != text.strip():
            traits.add(Trait.EDGES if role == "assistant" else Trait.OTHER_EDGES)
    return frozenset(traits)


def _made_up(traits: frozenset[Trait]) -> Iterator[_MadeUp]:
    """Make conversations of four turns and more that have all these traits."""
    system = "claw-system" if Trait.SYSTEM in traits else ""
    schema = {"type": "object", "properties": {"key": {"type": "string", "description": "k"}}}
    function = {"name": "claw_tool", "description": "d", "parameters": schema}
    tools = [{"type": "function", "function": function}] if Trait.TOOLS in traits else None
    edge = " \n claw-{} \n\n" if Trait.EDGES in traits else "claw-{}"
    other = "\n\n claw-{} \n" if Trait.OTHER_EDGES in traits else "claw-{}"

    def ask(number: int, role: str = "user", **extra: Any) -> dict[str, Any]:
        return {"role": role, "content": other.format(f"{role}-{number}"), **extra}

    def say(number: int, *, calls: int = 0, thinks: bool = True) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": edge.format(f"say-{number}")}
        if calls:
            message["tool_calls"] = [
                {"id": f"call{number:04}{k}", "name": "claw_tool", "arguments": f'{{"key": "{k}"}}'}
                for k in range(calls)
            ]
            if Trait.NO_TEXT in traits and number % 2:
                message["content"] = ""
        if thinks and Trait.REASONING in traits:
            message["reasoning"] = f"claw-thought-{number}"
        return message

    def answers(number: int, calls: int) -> list[dict[str, Any]]:
        return [
            ask(10 * number + k, "tool", tool_call_id=f"call{number:04}{k}") for k in range(calls)
        ]

    for thinks in (True, False):
        talk = []
        for number in range(5):
            talk += [ask(number), say(number, thinks=thinks or number % 2 == 0)]
        # a call without text, and a question without one, are both of what NO_TEXT stands for
        if Trait.NO_TEXT in traits:
            talk[4]["content"] = ""
        yield system, tools, talk
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


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
