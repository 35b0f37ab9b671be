"""What formats share whose records are whole attempts: states that grow, answers that stand inside.

A document logs an attempt once, not request by request, so its states are rebuilt from one list
of messages. Objects of a wrong type read as empty ones: a document with one odd step still gives
its other steps.
"""

from __future__ import annotations

from typing import Any

from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.conversations import EMPTY, Digested, Node
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import completions
from clawcli.ingest.values import number


class Path:
    """The conversations of one attempt, each sharing its nodes with the one before it."""

    def __init__(self) -> None:
        """Begin with no message."""
        self._items: list[Digested] = []
        self._nodes = [EMPTY]

    def to(self, items: list[Digested]) -> Node:
        """Give the conversation of some messages; those of the one before are found by identity.

        Example:
            >>> from clawcli.ingest.conversations import digested
            >>> from clawcli.messages import Message
            >>> a, b, c = (digested(Message("user", content)) for content in "abc")
            >>> path = Path()
            >>> path.to([a, b]).parent is path.to([a, c]).parent
            True
        """
        same = 0
        for ours, theirs in zip(self._items, items, strict=False):
            if ours is not theirs:
                break
            same += 1
        del self._nodes[same + 1 :]
        for item in items[same:]:
            self._nodes.append(self._nodes[-1].then(item))
        self._items = list(items)
        return self._nodes[-1]


def answer_of(completion: Any) -> Call | None:
    """Read a chat completion that stands in a document.

    Args:
        completion: what the provider returned, as logged.

    Returns:
        A call that lacks its state; null where there is no completion with an answer.
    """
    if not isinstance(completion, dict):
        return None
    try:
        return completions.call_of(completion)
    except Fate:
        return None


def read_logprobs(value: Any, ids: list[int] | None) -> tuple[list[float] | None, list[str]]:
    """Check a list of log-probs against the ids of the action.

    Returns:
        (log-probs in nats, warnings): null and a code where one is not finite
        (logprobs_not_finite) or there are not as many as ids (logprobs_length_mismatch).

    Example:
        >>> read_logprobs([-0.5], [7, 8])
        (None, ['logprobs_length_mismatch'])
    """
    if not isinstance(value, list) or not value:
        return None, []
    finite = [logprob for entry in value if (logprob := number(entry)) is not None]
    if len(finite) != len(value):
        return None, ["logprobs_not_finite"]
    if ids is not None and len(ids) != len(finite):
        return None, ["logprobs_length_mismatch"]
    return finite, []


def odd_arguments(choice: Choice) -> list[str]:
    """Warn about tool calls of an action whose arguments are no JSON object."""
    calls = choice.action.message.tool_calls or ()
    return ["arguments_invalid"] if any(not call.arguments_valid for call in calls) else []


def mark_missing_tools(calls: list[Call]) -> None:
    """Call states partial where tools were called whose schemas the log does not hold."""
    if not calls or calls[0].tools is not None:
        return
    # what was called before the first call stands in its state
    items = [*calls[0].state.after(), *(call.choices[0].action for call in calls)]
    if any(item.message.tool_calls for item in items):
        for call in calls:
            call.state_kind = "partial"


def objects(value: Any) -> list[dict[str, Any]]:
    """List the objects of a list; anything else is none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def object_of(value: Any) -> dict[str, Any]:
    """Return an object as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def filled(**values: Any) -> dict[str, Any]:
    """Keep what is there: nulls and empty lists and objects are left out."""
    return {key: value for key, value in values.items() if value not in (None, [], {})}
