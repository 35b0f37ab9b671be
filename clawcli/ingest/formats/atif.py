"""ATIF, the agent trajectory interchange format of Harbor: one JSON document is one attempt.

A step with source agent is one call of a model; its state is not logged and is rebuilt from the
steps before it: messages, tool calls, and observations as tool messages (user messages where no
tool was called). Steps that another document logged first (is_copied_context), and dispatches
without a model (llm_call_count 0), are state and no calls. A system step that manages the context
starts the state anew. Logged token ids are the exact state and action; messages may be cleaned.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice, Context
from clawcli.ingest.chat import to_message
from clawcli.ingest.conversations import Digested, digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import documents
from clawcli.ingest.formats.completions import ids, rest
from clawcli.ingest.formats.documents import filled, object_of, objects
from clawcli.ingest.values import integer, number, seconds, text
from clawcli.messages import Message, text_of

NAME = "atif"
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_KEEPS_TASK = "terminus"
"""Agents of this name go on from a summary with the message of the task still in place."""
_STEP_KEYS = frozenset(
    {"source", "message", "reasoning_content", "tool_calls", "observation", "is_copied_context"}
)
_CALLED_KEYS = _STEP_KEYS | {"timestamp", "model_name", "metrics"}
"""Keys of a step that have a column where the step is a call."""
_METRICS_KEYS = frozenset(
    {
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "cost_usd",
        "prompt_token_ids",
        "completion_token_ids",
        "logprobs",
    }
)
_DOCUMENT_KEYS = frozenset({"steps", "agent", "subagent_trajectories"})
_AGENT_KEYS = frozenset({"name", "model_name", "tool_definitions"})
_TOOL_CALL_KEYS = frozenset({"function_name", "arguments"})
_RESULT_KEYS = frozenset({"source_call_id", "content"})


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    version = record.get("schema_version")
    if not isinstance(version, str) or not version.startswith("ATIF-"):
        return "no schema_version ATIF-..."
    return None if isinstance(record.get("steps"), list) else "no list of steps"


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one document into its calls, those of its embedded subagents after its own.

    Raises:
        Fate: no model was called in it, or its steps are no list.
    """
    document = msgspec.json.decode(raw)
    found = _attempt(document, None, 0)
    if not found:
        raise Fate("rejected", "empty_trajectory", "the attempt holds no call of a model")
    for ordinal, call in enumerate(found):
        call.ordinal = ordinal
    return found


def _attempt(document: dict[str, Any], above: _Attempt | None, place: int) -> list[Call]:
    if not isinstance(document.get("steps"), list):
        raise Fate("rejected", "no_steps", "the document has no list of steps")
    attempt = _Attempt(document, above, place)
    for step in objects(document["steps"]):
        attempt.take(step)
    attempt.close()
    found = attempt.calls
    for inner, subagent in enumerate(objects(document.get("subagent_trajectories"))):
        found = found + _attempt(subagent, attempt, inner)
    return found


class _Attempt:
    """One document as its steps are read in order."""

    def __init__(self, document: dict[str, Any], above: _Attempt | None, place: int) -> None:
        self.document = document
        self.agent = object_of(document.get("agent"))
        self.extra = object_of(self.agent.get("extra"))
        self.calls: list[Call] = []
        self.system: str | None = None
        self.items: list[Digested] = []
        """The state: all that the next call would be shown."""
        self.path = documents.Path()
        self.since: list[Message] = []
        """Messages after the newest action."""
        self.aside: list[dict[str, Any]] = []
        """What steps that are no calls hold beside their messages."""
        self.warnings: list[str] = []
        """For the next call."""
        self.has_gap = False
        """The state lacks what a context management put into it."""
        tools = self.agent.get("tool_definitions")
        self.tools = msgspec.json.encode(tools).decode() if isinstance(tools, list) else None
        self.key, self.parent_key = self._keys(above, place)
        self.is_subagent = above is not None or "parent_session_id" in self.extra
        # older documents do not flag the copies at their head, but log metrics of calls alone
        self.copies_unflagged = "continuation_index" in self.extra and any(
            step.get("metrics") for step in objects(document["steps"])
        )
        if "continuation_index" in self.extra:
            self.warnings.append("continuation")

    def _keys(self, above: _Attempt | None, place: int) -> tuple[str | None, str | None]:
        """Name the attempt and the one that started it; session ids are those of a whole run."""
        own = text(self.document.get("trajectory_id"))
        run = text(self.document.get("session_id")) or own
        if above is not None:
            inner = own or run or str(place)
            return (f"{above.key}/{inner}" if above.key else None), above.key
        if run is None:
            return None, None
        if (index := self.extra.get("continuation_index")) is not None:
            run = f"{run}/cont-{text(index)}"
        parent = text(self.extra.get("parent_session_id"))
        if parent is not None and parent == run:
            run = f"{run}/{own or text(self.agent.get('name'))}"
        return run, parent

    def take(self, step: dict[str, Any]) -> None:
        """Read one step: a call, a change of the context, or messages of the state."""
        source = step.get("source")
        if source == "system" and _manages_context(step):
            self._manage(step)
            return
        message = _message(step)
        is_call = (
            source == "agent"
            and not step.get("is_copied_context")
            and step.get("llm_call_count") != 0
            and not (self.copies_unflagged and not self.calls and not step.get("metrics"))
        )
        if is_call:
            self._call(step, message)
            self.since = []
        else:
            self.aside.extend(_aside(step))
        shown = [] if is_call else [message]
        if is_call:
            self.items.append(self.calls[-1].choices[0].action)
        elif source == "system" and self.system is None and not self.items:
            self.system = text_of(message)
            shown = [] if self.system is not None else shown
        self._show([*shown, *_results(step)])

    def _show(self, messages: list[Message]) -> None:
        self.items.extend(digested(message) for message in messages)
        self.since.extend(messages)

    def _manage(self, step: dict[str, Any]) -> None:
        """Begin the state anew where the step says that it replaces what came before."""
        managed = object_of(object_of(step.get("extra")).get("context_management"))
        replaces = managed.get("boundary", "replace") == "replace"
        summary = _results(step)
        if replaces:
            name = text(self.agent.get("name")) or ""
            actions = [i for i, m in enumerate(self.items) if m.message.role == "assistant"]
            task = self.items[: actions[0] if actions else None]
            self.items = task if name.startswith(_KEEPS_TASK) else []
        self._show(summary)
        self.has_gap = not (replaces and summary)
        self.warnings.append("context_reset" if replaces else "context_managed")
        self.aside.extend(_aside(step, _STEP_KEYS - {"message"}))

    def _call(self, step: dict[str, Any], message: Message) -> None:
        metrics = object_of(step.get("metrics"))
        response_ids = ids(metrics.get("completion_token_ids"))
        logprobs, odd = documents.read_logprobs(metrics.get("logprobs"), response_ids)
        choice = Choice(digested(message), response_ids=response_ids, logprobs=logprobs)
        choice.warnings = odd + documents.odd_arguments(choice)
        model = text(step.get("model_name")) or text(self.agent.get("model_name"))
        at = seconds(step.get("timestamp"))
        several = (integer(step.get("llm_call_count")) or 1) > 1
        call = Call(
            state=self.path.to(self.items),
            choices=[choice],
            system=self.system or "",
            tools=self.tools,
            is_cut=True,
            follows=self.calls[-1] if self.calls else None,
            trajectory_key=self.key,
            key_is_global=True,
            parent_key=self.parent_key,
            trajectory_kind="subagent" if self.is_subagent else None,
            step_kind="compaction" if "summarization_index" in self.extra else "policy",
            agent=text(self.agent.get("name")),
            model=model,
            policy=model,
            temperature=number(self.extra.get("temperature")),
            prompt_ids=ids(metrics.get("prompt_token_ids")),
            input_tokens=integer(metrics.get("prompt_tokens")),
            output_tokens=integer(metrics.get("completion_tokens")),
            cached_tokens=integer(metrics.get("cached_tokens")),
            reasoning_tokens=integer(object_of(metrics.get("extra")).get("reasoning_tokens")),
            cost_usd=number(metrics.get("cost_usd")),
            started_at=at,
            state_kind="partial" if self.has_gap or several else "reconstructed",
            warnings=self.warnings,
        )
        call.warnings.extend(_odd(step, at, several))
        call.metadata = filled(
            steps_before=self.aside,
            **_beside(step, _CALLED_KEYS),
            metrics=rest(metrics, _METRICS_KEYS),
            timestamp=step.get("timestamp") if at is None else None,
        )
        self.calls.append(call)
        self.warnings, self.aside = [], []

    def close(self) -> None:
        """Give the last call what belongs to the attempt as a whole."""
        if not self.calls:
            return
        last = self.calls[-1]
        last.final_observation = self.since
        last.metadata = {
            **(last.metadata or {}),
            **filled(
                steps_after=self.aside,
                document=rest(self.document, _DOCUMENT_KEYS),
                agent=rest(self.agent, _AGENT_KEYS),
            ),
        }
        if self.document.get("continued_trajectory_ref") is not None:
            last.warnings.append("continued_elsewhere")
        documents.mark_missing_tools(self.calls)


def _manages_context(step: dict[str, Any]) -> bool:
    """Tell whether a system step changes the context: it says so, or summaries were made for it."""
    if isinstance(object_of(step.get("extra")).get("context_management"), dict):
        return True
    return any("subagent_trajectory_ref" in result for result in _logged_results(step))


def _logged_results(step: dict[str, Any]) -> list[dict[str, Any]]:
    return objects(object_of(step.get("observation")).get("results"))


def _message(step: dict[str, Any]) -> Message:
    """Read what a step says, its tool calls included."""
    return to_message(
        {
            "role": _ROLES.get(step.get("source") or "", "user"),
            "content": step.get("message"),
            "reasoning_content": step.get("reasoning_content"),
            "tool_calls": [
                {
                    "id": call.get("tool_call_id"),
                    "function": {
                        "name": call.get("function_name"),
                        "arguments": call.get("arguments"),
                    },
                }
                for call in objects(step.get("tool_calls"))
            ],
        }
    )


def _results(step: dict[str, Any]) -> list[Message]:
    """Read what a step was answered: to its tool calls by id, else by position, else as a user."""
    asked = [text(call.get("tool_call_id")) for call in objects(step.get("tool_calls"))]
    results = [r for r in _logged_results(step) if r.get("content") is not None]
    found = []
    for place, result in enumerate(results):
        answers = text(result.get("source_call_id"))
        if answers is None and len(asked) == len(results):
            answers = asked[place]
        role = "tool" if asked or answers is not None else "user"
        found.append(
            to_message({"role": role, "content": result["content"], "tool_call_id": answers})
        )
    return found


def _beside(step: dict[str, Any], known: Set[str]) -> dict[str, Any]:
    """Collect what a step holds that has no column and no place in its messages."""
    held = rest(step, known)
    for key, items, known in (
        ("tool_calls", objects(step.get("tool_calls")), _TOOL_CALL_KEYS),
        ("results", _logged_results(step), _RESULT_KEYS),
    ):
        more = [rest(item, known) for item in items]
        # ids alone are in the messages
        if any(set(item) - {"tool_call_id"} for item in more):
            held[key] = more
    return held


def _aside(step: dict[str, Any], known: Set[str] = _STEP_KEYS) -> list[dict[str, Any]]:
    """List a step that is no call, if it holds more than its messages."""
    held = _beside(step, known)
    return [held] if set(held) - {"step_id"} else []


def _odd(step: dict[str, Any], at: float | None, several: bool) -> list[str]:
    odd = []
    if step.get("timestamp") is not None and at is None:
        odd.append("timestamp_unparsable")
    if several:
        odd.append("several_llm_calls")
    asked = [call.get("tool_call_id") for call in objects(step.get("tool_calls"))]
    if len(set(map(str, asked))) < len(asked):
        odd.append("duplicate_tool_call_id")
    return odd
