"""One step to tokens: logged ids where they are believed, else the rendering, and what is trained.

row(step) = ids(prompt) ++ ids(action) ++ end token. The end token always stands in the row; whether
it is trained depends on why the call ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from clawcli.prefix.encode import Encoder
from clawcli.prefix.exclude import Disproved, Excluded, Reason
from clawcli.prefix.logged import Logged, LoggedIds
from clawcli.prefix.probe import TurnEnd
from clawcli.prefix.render import Conversation, Rendered, Renderer
from clawcli.store.state import States
from clawcli.store.tokenizers import Tokenizer

_SAME_TURN = (None, "reasoning_changed")
"""Causes of a link (null = none) that still show the parent's turn closed in the child's state."""
_CUT_TURN = "stop_trimmed"
"""Cause that shows more text than the model wrote: a stop string ended it, no end token."""


@dataclass(frozen=True, slots=True)
class Row:
    """One step as tokens."""

    tokens: np.ndarray
    """int32: prompt, action, end token."""
    response_start: int
    """Length of the prompt."""
    response_end: int
    """One past the last trained token: without the end token where that is not trained."""
    logprobs: list[float | None] | None
    """Behaviour log-probs of response_start..response_end; None = not logged for these ids."""
    provenance: str
    """engine_logprobs, engine_ids, text, mixed."""


@dataclass(slots=True)
class Proof:
    """What was checked, counted."""

    prompts_proved: int = 0
    """Prompts whose ids equal those of apply_chat_template."""
    prompts_continued: int = 0
    """Prompts that continue logged ids of the parent by rendered text."""
    prompts_logged: int = 0
    """Prompts taken from the log."""
    prompts_logged_equal: int = 0
    """Those of them that equal apply_chat_template's."""
    prompts_cut: int = 0
    """Prompts cut out of the rendering of a later step."""
    end_tokens_by_cause: Counter[str] = field(default_factory=Counter)
    """Why the end token is trained or not: a finish reason, drawn, stop_string, ..."""

    def add(self, other: Proof) -> None:
        """Count what was checked of other steps too."""
        self.prompts_proved += other.prompts_proved
        self.prompts_cut += other.prompts_cut
        self.prompts_continued += other.prompts_continued
        self.prompts_logged += other.prompts_logged
        self.prompts_logged_equal += other.prompts_logged_equal
        self.end_tokens_by_cause += other.end_tokens_by_cause


class RowMaker:
    """Make the rows of a table's steps, parents before children."""

    def __init__(
        self,
        table: pa.Table,
        tokenizer: Tokenizer,
        renderer: Renderer,
        *,
        eos_when_unknown: str = "include",
        proves: np.ndarray | None = None,
    ) -> None:
        """Judge the logged ids and find the turns that a later message closed.

        Args:
            table: steps, with each step's ancestors.
            tokenizer: whose ids the rows have.
            renderer: of its template.
            eos_when_unknown: include or exclude, as for trains_end.
            proves: bool per row, the prompts whose ids are compared with apply_chat_template's;
                one that differs raises Disproved. None = all; one that differs has no row.
        """
        self.states = States(table)
        self.parents = parent_rows(table)
        """Row of each step's parent; None for a root, or where the table lacks the parent."""
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.logged = LoggedIds(table, self.parents, self.states, tokenizer, renderer.habits)
        self.proof = Proof()
        self.encode = Encoder(tokenizer)
        self._eos_when_unknown = eos_when_unknown
        self._proves = proves
        self._ends = {end.token_id for end in renderer.habits.turn_ends}
        self._broken: list[str | None] = table["prefix_broken"].to_pylist()
        self._finish: list[str | None] = table["finish_reason"].to_pylist()
        self._sampling: list[str | None] = table["sampling"].to_pylist()
        self._closed = self._closed_turns(table)
        self._reasons = _reasons(table, self.parents)
        links = zip(self.parents, self._broken, strict=True)
        self._cut = {parent for parent, cause in links if cause == _CUT_TURN}

    def text(self, row: int) -> Rendered:
        """Render a step.

        Raises:
            Excluded: it cannot be rendered truthfully.
        """
        return render_step(self.states, row, self.renderer)

    def forget(self) -> None:
        """Let go of the states that were looked at."""
        self.states.forget()
        self.logged.forget()

    def row(self, row: int, parent: Row | None) -> Row:
        """Make the tokens of one step and prove its prompt.

        Args:
            row: row of the table.
            parent: the parent's row of tokens, where there is one.

        Raises:
            Excluded: it has no true row; the reason says why.
        """
        logged = self.logged_ids(row)
        if logged is not None and self._lacks_reasoning(row):
            raise Excluded(Reason.REASONING_MISSING)
        if logged is not None and logged.prompt_ids is not None:
            self._count_logged(row, logged.prompt_ids)
            return self._from_engine(row, logged, logged.prompt_ids, mixed=False)
        if logged is not None:
            _, prompt = _prompt(self.states, row, self.renderer)
            ids, _ = self._prompt_ids(row, prompt, parent)
            return self._from_engine(row, logged, ids, mixed=True)
        rendered = self.text(row)
        ids, continued = self._prompt_ids(row, rendered.prompt, parent)
        return self.from_text(row, ids, rendered.action, rendered.end, continues=continued)

    def logged_ids(self, row: int) -> Logged | None:
        """Return the ids of one step as the engine logged them; None = none that may be used."""
        # ids that were drawn with reasoning are not those of a row without
        if self.renderer.reasoning == "drop" and self._reasons[row]:
            return None
        return self.logged.of(row)

    def from_text(
        self, row: int, prompt: np.ndarray, text: str, end: TurnEnd, *, continues: bool = False
    ) -> Row:
        """Make the tokens of a step of its prompt's ids and the text of its action.

        Args:
            row: row of the table.
            prompt: int32 ids.
            text: of the action.
            end: how its turn closes.
            continues: the prompt continues ids that the parent's engine logged.

        Raises:
            Excluded: nothing of it would be trained.
        """
        action = self.encode.action(text)
        is_trained, cause = self._trains_end(row)
        if not len(action) and not is_trained:
            raise Excluded(Reason.NO_ACTION, "nothing but an end token that is not trained")
        self.proof.end_tokens_by_cause[cause] += 1
        tokens = np.concatenate([prompt, action, np.array([end.token_id], np.int32)])
        return Row(
            tokens=tokens,
            response_start=len(prompt),
            response_end=len(tokens) if is_trained else len(tokens) - 1,
            logprobs=None,
            provenance="mixed" if continues else "text",
        )

    def proves(self, row: int) -> bool:
        """Tell whether the ids of a step's prompt are compared with apply_chat_template's.

        All are where texts are tokenised whole: then no step stands for another.
        """
        return self._proves is None or bool(self._proves[row]) or not self.encode.splits

    def prove(self, prompt: str, ids: np.ndarray) -> None:
        """Compare the ids of a step's prompt with those of apply_chat_template.

        Args:
            prompt: what apply_chat_template prints for the step's state.
            ids: int32.

        Raises:
            Disproved: they differ, and this step stands for others.
            Excluded: they differ, and all steps are compared.
        """
        self.same(ids, self.renderer.template.ids(prompt))
        self.proof.prompts_proved += 1

    def same(self, found: np.ndarray, proved: ArrayLike) -> None:
        """Compare ids with those that they must be.

        Raises:
            Disproved: they differ, and the step stands for others.
            Excluded: they differ, and all steps are compared.
        """
        if not np.array_equal(found, proved):
            if self._proves is not None:
                raise Disproved
            raise Excluded(Reason.PROMPT_DIFFERS)

    def _prompt_ids(self, row: int, prompt: str, parent: Row | None) -> tuple[np.ndarray, bool]:
        """Tokenise a prompt and prove it, or continue the ids that the parent's engine logged."""
        continued = self._continue(row, prompt, parent)
        if continued is not None:
            self.proof.prompts_continued += 1
            return continued, True
        ids = self.encode(prompt)
        if self.proves(row):
            self.prove(prompt, ids)
        return ids, False

    def _continue(self, row: int, prompt: str, parent: Row | None) -> np.ndarray | None:
        if parent is None or parent.provenance == "text" or self._broken[row] is not None:
            return None
        if int(parent.tokens[-1]) not in self.encode.borders:
            return None
        before = self.tokenizer.decode(parent.tokens.tolist())
        if not prompt.startswith(before):
            return None
        return np.concatenate([parent.tokens, self.encode(prompt[len(before) :])])

    def _from_engine(self, row: int, logged: Logged, prompt: np.ndarray, *, mixed: bool) -> Row:
        response, logprobs = logged.response_ids, logged.logprobs
        provenance = "engine_ids" if logprobs is None else "engine_logprobs"
        if not len(response):
            raise Excluded(Reason.NO_ACTION, "no id was drawn")
        pieces, end = [prompt, response], len(prompt) + len(response)
        last = int(response[-1])
        if last in self._ends:
            self.proof.end_tokens_by_cause["drawn"] += 1
        else:
            has_calls = bool(self.states.action(row).get("tool_calls"))
            closing = self.renderer.habits.turn_ends[-1 if has_calls else 0]
            pieces.append(np.array([closing.token_id], np.int32))
            if last in self.tokenizer.special_ids:
                # the model closed its turn in another way; ours only stands in the history
                self.proof.end_tokens_by_cause["other_end_drawn"] += 1
            else:
                is_trained, cause = self._trains_end(row)
                self.proof.end_tokens_by_cause[cause] += 1
                if is_trained:
                    end += 1
                    logprobs = None if logprobs is None else [*logprobs, None]
        return Row(
            tokens=np.concatenate(pieces).astype(np.int32),
            response_start=len(prompt),
            response_end=end,
            logprobs=logprobs,
            provenance="mixed" if mixed else provenance,
        )

    def _count_logged(self, row: int, ids: np.ndarray) -> None:
        self.proof.prompts_logged += 1
        try:
            _, prompt = _prompt(self.states, row, self.renderer)
        except Excluded:
            return
        self.proof.prompts_logged_equal += self.renderer.template.ids(prompt) == ids.tolist()

    def _trains_end(self, row: int) -> tuple[bool, str]:
        return trains_end(
            self._finish[row],
            stop_strings=row in self._cut or _has_stop_strings(self._sampling[row]),
            closed=row in self._closed,
            when_unknown=self._eos_when_unknown,
        )

    def _lacks_reasoning(self, row: int) -> bool:
        if self.renderer.reasoning != "require":
            return False
        return not (self.states.action(row).get("reasoning") or "").strip()

    def _closed_turns(self, table: pa.Table) -> set[int]:
        observed = pc.call_function("list_value_length", [table["final_observation"]]).to_pylist()
        closed = {row for row, messages in enumerate(observed) if messages}
        for parent, cause in zip(self.parents, self._broken, strict=True):
            if parent is not None and cause in _SAME_TURN:
                closed.add(parent)
        return closed


def render_step(states: States, row: int, renderer: Renderer) -> Rendered:
    """Render a step of a table.

    Raises:
        Excluded: it cannot be rendered truthfully.
    """
    state, prompt = _prompt(states, row, renderer)
    return renderer.step(state, prompt, states.action(row))


def _prompt(states: States, row: int, renderer: Renderer) -> tuple[Conversation, str]:
    asked = states.prompt(row)
    state = renderer.state(asked.system, asked.tools, asked.messages)
    return state, renderer.prompt(state)


def trains_end(
    finish_reason: str | None, *, stop_strings: bool, closed: bool, when_unknown: str
) -> tuple[bool, str]:
    """Decide whether the end token of a step is trained.

    Args:
        finish_reason: as in the step table.
        stop_strings: the request carried some, so that "stop" need not mean an end token.
        closed: a later message shows that the turn was closed.
        when_unknown: include or exclude, for finish reasons that are not known.

    Returns:
        The decision, and a stable code of what decided.

    Example:
        >>> trains_end("length", stop_strings=False, closed=True, when_unknown="include")
        (False, 'length')
        >>> trains_end(None, stop_strings=False, closed=True, when_unknown="include")
        (True, 'unknown_closed')
    """
    if finish_reason in (None, "unknown"):
        cause = "unknown_closed" if closed else "unknown_open"
        return closed and when_unknown == "include", cause
    if finish_reason == "stop" and stop_strings:
        return False, "stop_string"
    return finish_reason in ("stop", "tool_calls", "refusal"), finish_reason


def parent_rows(table: pa.Table) -> list[int | None]:
    """Find the row of each step's parent.

    Curation drops the parent of a step that restates its whole state, so a parent that is named
    need not be there.
    """
    uids = table["step_uid"].to_pylist()
    rows = {uid: row for row, uid in enumerate(uids)}
    return [rows.get(uid) for uid in table["parent_step_uid"].to_pylist()]


def parents_first(parents: Sequence[int | None]) -> list[int]:
    """Order rows so that each stands behind its parent, as near to the given order as can be.

    Example:
        >>> parents_first([None, 3, 1, 0])
        [0, 3, 1, 2]
    """
    order: list[int] = []
    seen = [False] * len(parents)
    for row in range(len(parents)):
        chain: list[int] = []
        above: int | None = row
        while above is not None and not seen[above]:
            seen[above] = True
            chain.append(above)
            above = parents[above]
        order += reversed(chain)
    return order


def _reasons(table: pa.Table, parents: Sequence[int | None]) -> list[bool]:
    """Tell which steps have reasoning in their action, or in a step that they continue."""
    reasons = [bool(reasoning) for reasoning in table["reasoning"].to_pylist()]
    for row in parents_first(parents):
        above = parents[row]
        reasons[row] = reasons[row] or (above is not None and reasons[above])
    return reasons


def _has_stop_strings(sampling: str | None) -> bool:
    value: Any = json.loads(sampling) if sampling else None
    return bool(isinstance(value, dict) and value.get("stop"))
