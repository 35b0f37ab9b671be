"""Rebuild what the model saw: a walk up the parents of a step.

A row stores only what is new since its parent. The state of a step is
(messages(parent) + action(parent))[:prefix_messages] + observation, so a state costs one list
concatenation per ancestor; ancestors are kept, because siblings and children ask for them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clawcli.errors import DataError

COLUMNS = (
    "step_uid",
    "parent_step_uid",
    "prefix_messages",
    "system",
    "tools",
    "observation",
    "response",
    "response_parts",
    "reasoning",
    "tool_calls",
)
"""Columns that a walk needs."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The full state of one step, as the model saw it."""

    system: str
    """Leading system text; empty = none."""
    tools: list[dict[str, Any]] | None
    """Tool schemas; [] = none, None = not logged."""
    messages: list[dict[str, Any]]
    """role, and where present content or parts (a list), tool_calls (id, name, arguments,
    arguments_valid), tool_call_id, name, reasoning."""


class States:
    """The states and actions of a table's steps, by row."""

    def __init__(self, table: pa.Table) -> None:
        """Index a table that has the COLUMNS above; it must hold each step's ancestors."""
        self._columns = {name: table[name] for name in COLUMNS}
        self._uids: list[str] = table["step_uid"].to_pylist()
        self._rows = {uid: row for row, uid in enumerate(self._uids)}
        self._parents: list[str | None] = table["parent_step_uid"].to_pylist()
        self._prefixes: list[int] = table["prefix_messages"].to_pylist()
        self._messages: dict[int, list[dict[str, Any]]] = {}

    def row_of(self, step_uid: str) -> int:
        """Return the row of a step.

        Raises:
            KeyError: the table does not hold it.
        """
        return self._rows[step_uid]

    def parent(self, row: int) -> int | None:
        """Return the row of a step's parent; None for a root.

        Raises:
            DataError: the parent is not in the table.
        """
        uid = self._parents[row]
        if uid is None:
            return None
        if uid not in self._rows:
            raise DataError(
                f"Step {self._uids[row]} continues step {uid}, which is not in the table.",
                "Ingest or curate the data again.",
            )
        return self._rows[uid]

    def prompt(self, row: int) -> Prompt:
        """Rebuild the state of a step."""
        tools = self._inherited("tools", row)
        return Prompt(
            self._inherited("system", row) or "",
            None if tools is None else json.loads(tools),
            list(self._state(row)),
        )

    def forget(self) -> None:
        """Let go of the messages that were rebuilt."""
        self._messages.clear()

    def action(self, row: int) -> dict[str, Any]:
        """Return the action of a step as an assistant message."""
        value = {"role": "assistant"}
        parts = self._value("response_parts", row)
        if parts is None:
            value["content"] = self._value("response", row) or ""
        else:
            value["parts"] = json.loads(parts)
        for name in ("tool_calls", "reasoning"):
            if (found := self._value(name, row)) is not None:
                value[name] = found
        return value

    def _value(self, name: str, row: int) -> Any:
        return self._columns[name][row].as_py()

    def _inherited(self, name: str, row: int) -> Any:
        """Find the nearest value up the parents; a row that restates its state ends the walk."""
        above: int | None = row
        while above is not None:
            value = self._value(name, above)
            if value is not None or self._prefixes[above] == 0:
                return value
            above = self.parent(above)
        return None

    def _state(self, row: int) -> list[dict[str, Any]]:
        pending = []
        above: int | None = row
        while above is not None and above not in self._messages:
            pending.append(above)
            above = self.parent(above) if self._prefixes[above] else None
        for current in reversed(pending):
            prefix = self._prefixes[current]
            before: list[dict[str, Any]] = []
            if prefix:
                parent = self.parent(current)
                if parent is None:
                    raise DataError(
                        f"Step {self._uids[current]} shares {prefix} messages with a parent, but "
                        "names none.",
                        "Ingest the data again.",
                    )
                before = [*self._messages[parent], self.action(parent)][:prefix]
            new = [_plain(message) for message in self._value("observation", current) or ()]
            self._messages[current] = before + new
        return self._messages[row]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    value = {key: item for key, item in message.items() if item is not None}
    if "parts" in value:
        value["parts"] = json.loads(value["parts"])
    return value
