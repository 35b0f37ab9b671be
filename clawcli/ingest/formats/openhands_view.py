"""The view of a list of OpenHands events that a model was shown: what V0 and V1 logs share.

Both keep all events and show the model a part of them. An answer and its tool results enter the
messages together, once all results are there; an answer without them is left out. Condensation
takes events away and puts a summary in their place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from clawcli.ingest.calls import Call
from clawcli.ingest.conversations import Digested, digested
from clawcli.messages import Message


@dataclass(slots=True, eq=False)
class Answer:
    """One answer of a model; several events can carry it out."""

    call: Call

    @property
    def item(self) -> Digested:
        """The answer as a message."""
        return self.call.choices[0].action

    @property
    def asked(self) -> list[str]:
        """Ids of its tool calls."""
        return [call.id for call in self.item.message.tool_calls or () if call.id is not None]

    def keep(self, key: str, held: dict[str, Any]) -> None:
        """Keep what an event holds beside its message in a list of the call's metadata."""
        if held:
            self.call.metadata = self.call.metadata or {}
            self.call.metadata.setdefault(key, []).append(held)


@dataclass(slots=True, eq=False)
class Shown:
    """One event of the view."""

    id: Any
    item: Digested | None = None
    """Its message; null = it shows nothing of its own, and still counts as a place."""
    answer: Answer | None = None
    """The answer that it carries out."""
    result_of: str | None = None
    """Id of the tool call that the message answers."""


@dataclass(slots=True, eq=False)
class View:
    """Events that the next call would be shown, in order."""

    events: list[Shown] = field(default_factory=list)

    def forget(self, ids: Collection[str]) -> None:
        """Take events away; ids are compared as text."""
        self.events = [shown for shown in self.events if str(shown.id) not in ids]

    def summarise(self, summary_id: Any, summary: str, place: int | None) -> None:
        """Put a summary at a place of the view; null = at its end."""
        where = len(self.events) if place is None else place
        self.events.insert(where, Shown(summary_id, digested(Message("user", summary))))

    def messages(self) -> list[Digested]:
        """List the messages, each answer followed by the results of its tool calls.

        Example:
            >>> from clawcli.ingest.conversations import EMPTY
            >>> from clawcli.ingest.calls import Choice
            >>> from clawcli.messages import ToolCall
            >>> said = Message("assistant", "", tool_calls=(ToolCall("c", "ls", "{}", True),))
            >>> answer = Answer(Call(EMPTY, [Choice(digested(said))]))
            >>> result = Shown(3, digested(Message("tool", "a.txt", tool_call_id="c")), None, "c")
            >>> [len(View(events).messages()) for events in ([Shown(2, answer=answer)], [result])]
            [0, 0]
            >>> len(View([Shown(2, answer=answer), result]).messages())
            2
        """
        found: list[Digested] = []
        waiting: dict[int, Answer] = {}
        results: dict[str, Digested] = {}
        for shown in self.events:
            if shown.answer is not None:
                waiting.setdefault(id(shown.answer), shown.answer)
            elif shown.result_of is not None and shown.item is not None:
                results[shown.result_of] = shown.item
            elif shown.item is not None:
                found.append(shown.item)
            for key, answer in list(waiting.items()):
                if all(asked in results for asked in answer.asked):
                    found.append(answer.item)
                    found.extend(results.pop(asked) for asked in answer.asked)
                    del waiting[key]
        return found


def shell_output(output: str, about: dict[str, Any]) -> str:
    r"""Render what a command printed as the model was shown it.

    Args:
        output: the text itself.
        about: prefix, suffix, working_dir, py_interpreter_path, exit_code (-1 = still running).

    Example:
        >>> shell_output("a.txt", {"working_dir": "/w", "exit_code": 0})
        'a.txt\n[Current working directory: /w]\n[Command finished with exit code 0]'
    """
    shown = f"{about.get('prefix') or ''}{output}{about.get('suffix') or ''}"
    if directory := about.get("working_dir"):
        shown += f"\n[Current working directory: {directory}]"
    if python := about.get("py_interpreter_path"):
        shown += f"\n[Python interpreter: {python}]"
    if (code := about.get("exit_code")) not in (None, -1):
        shown += f"\n[Command finished with exit code {code}]"
    return shown
