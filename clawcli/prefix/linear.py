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
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clawcli.prefix import traits
from clawcli.prefix.exclude import Excluded
from clawcli.prefix.probe import TurnEnd
from clawcli.prefix.render import Conversation, Renderer
from clawcli.prefix.rows import Row, RowMaker


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
        self._tried: dict[frozenset[traits.Trait], bool] = {}
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
        if not self.works or not traits.is_plain(state.messages):
            return False
        found = traits.of(state)
        if found not in self._tried:
            self._tried[found] = all(map(self._agrees, traits.made_up(found)))
        return self._tried[found]

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

    def _agrees(self, made_up: traits.MadeUp) -> bool:
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
        said = [0, *accumulate(message["role"] == "assistant" for message in state.messages)]
        for row in chain:
            length = lead + self._lengths[row]
            try:
                if row == leaf:
                    last = maker.renderer.step(state, prompt, maker.states.action(row))
                    made = maker.from_text(row, ids(len(prompt)), last.action, last.end)
                else:
                    piece = pieces[said[length]]
                    maker.renderer.past_action(piece.action, maker.states.action(row))
                    start = ids(piece.prompt_end)
                    made = maker.from_text(row, start, piece.action, piece.end)
            except Excluded:
                continue
            if maker.proves(row):
                own = Conversation(state.messages[:length], state.tools)
                alone = prompt if row == leaf else maker.renderer.prompt(own)
                maker.prove(alone, made.tokens[: made.response_start])
                if row != leaf:
                    self._prove_action(row, own, alone, made)
            yield row, made

    def _prove_action(self, row: int, state: Conversation, prompt: str, made: Row) -> None:
        maker = self._maker
        alone = maker.renderer.step(state, prompt, maker.states.action(row))
        action = np.append(maker.encode.action(alone.action), np.int32(alone.end.token_id))
        maker.same(made.tokens[made.response_start :], action)
