"""Where the events of an Inspect sample stand: in whose conversation, and whether they judge it.

Events name their span, and spans their parent. Older logs open and close steps between the events
instead, and nest what a tool or a subtask did in its event. A call of a model is scoring where it
stands in a scorer, was made in the role of a grader, or comes after the last solver.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from clawcli.ingest.values import text

_SCORING = frozenset({"scorer", "scorers"})
_SOLVING = frozenset({"solver", "solvers"})
_AGENTS = frozenset({"agent", "handoff", "subtask", "fork", "tool"})
"""Spans whose calls are a conversation of their own, unless they continue another's."""


class Place(NamedTuple):
    """Where in a sample an event stands."""

    agent: str | None
    """Id of the innermost agent that it belongs to; null = the sample's own."""
    name: str | None
    """Name of that agent."""
    is_scoring: bool


class _Span(NamedTuple):
    """Something that encloses events."""

    kind: str
    name: str
    uid: str


def placed(events: Any) -> Iterator[tuple[dict[str, Any], Place]]:
    """List events, also those nested in others, each with its place in spans and steps."""
    flat = list(_flat(events, ()))
    spans = {event.get("id"): event for event, _ in flat if event.get("event") == "span_begin"}
    solved = max((i for i, (event, _) in enumerate(flat) if _ends_solver(event, spans)), default=-1)
    steps: list[_Span] = []
    for place, (event, owners) in enumerate(flat):
        if event.get("event") == "step":
            if event.get("action") == "begin":
                steps.append(_span(event, f"step {place}"))
            elif steps:
                steps.pop()
            continue
        around = [*steps, *owners, *_around(event, spans)]
        kinds = {span.kind for span in around}
        agents = [span for span in around if span.kind in _AGENTS]
        named = [span.name for span in around if span.kind == "agent"]
        is_late = -1 < solved < place and not kinds & _SOLVING
        yield (
            event,
            Place(
                agents[-1].uid if agents else None,
                named[-1] if named else None,
                bool(kinds & _SCORING) or event.get("role") == "grader" or is_late,
            ),
        )


def _flat(
    events: Any, owners: tuple[_Span, ...]
) -> Iterator[tuple[dict[str, Any], tuple[_Span, ...]]]:
    """List events and those that older logs nest in the event of a tool or a subtask."""
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict):
            continue
        yield event, owners
        if nested := event.get("events"):
            kind = text(event.get("event")) or ""
            name = text(event.get("name")) or text(event.get("function")) or kind
            yield from _flat(nested, (*owners, _Span(kind, name, f"{kind} {id(event)}")))


def _span(event: dict[str, Any], uid: str) -> _Span:
    return _Span(text(event.get("type")) or "", text(event.get("name")) or "", uid)


def _around(event: dict[str, Any], spans: dict[Any, dict[str, Any]]) -> list[_Span]:
    """List the spans around an event, the outermost first."""
    found: list[_Span] = []
    seen: set[Any] = set()
    uid = event.get("span_id")
    while uid in spans and uid not in seen:
        seen.add(uid)
        found.append(_span(spans[uid], text(uid) or ""))
        uid = spans[uid].get("parent_id")
    return found[::-1]


def _ends_solver(event: dict[str, Any], spans: dict[Any, dict[str, Any]]) -> bool:
    """Tell whether a solver ended here: what calls a model after the last one judges its work."""
    if event.get("event") == "span_end":
        return spans.get(event.get("id"), {}).get("type") in _SOLVING
    is_end = event.get("event") == "step" and event.get("action") == "end"
    return is_end and event.get("type") in _SOLVING
