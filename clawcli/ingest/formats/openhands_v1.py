"""OpenHands SDK (V1): the events of one conversation, as JSON lines or a file for each event.

Action events of one llm_response_id are one call, an agent's message is one of its own. The state
is the view of the events before it: results at their tool calls, condensation applied. Accumulated
token counts (stats) become those of a call where the log itself confirms the difference.

What would surprise: results whose answer was left out of the log were not shown either
(orphan_result), and tools are logged without the schemas that the model saw in newer versions, so
that the state is partial.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice, Context, Session
from clawcli.ingest.chat import to_message
from clawcli.ingest.conversations import digested, split_system
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import documents, openhands_sdk
from clawcli.ingest.formats.completions import ids, rest
from clawcli.ingest.formats.documents import filled, object_of
from clawcli.ingest.formats.openhands_view import Answer, Shown, View
from clawcli.ingest.values import integer, number, seconds, text
from clawcli.messages import Message

NAME = "openhands_v1"
_RESULTS = frozenset({"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"})
_KINDS = _RESULTS | {
    "SystemPromptEvent",
    "MessageEvent",
    "ActionEvent",
    "Condensation",
    "CondensationRequest",
    "CondensationSummaryEvent",
    "ConversationStateUpdateEvent",
    "ConversationErrorEvent",
    "PauseEvent",
    "TokenEvent",
}
_COUNTS = ("prompt_tokens", "completion_tokens", "cache_read_tokens", "reasoning_tokens")
_MAIN_USAGE = ("agent", "default")
"""Names under which the usage of the agent itself is counted; others are side calls."""


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if text(record.get("kind")) not in _KINDS:
        return "no kind of an SDK event"
    return None if {"id", "timestamp", "source"} <= record.keys() else "no id, timestamp, source"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Turn the events of one conversation into its calls."""
    run = _Run(records)
    for ordinal, event in records.items():
        try:
            run.take(ordinal, event)
        except Fate as fate:
            run.fates[ordinal] = fate
    return run.close()


class _Run:
    """One conversation as its events are read in order."""

    def __init__(self, records: dict[int, dict[str, Any]]) -> None:
        self.records = records
        self.fates: dict[int, Fate] = {}
        self.calls: list[Call] = []
        self.path = documents.Path()
        self.view = View()
        self.seen: set[str] = set()
        self.actions: dict[str, list[dict[str, Any]]] = {}
        """Action events by the answer that they carry out."""
        for event in records.values():
            if event.get("kind") == "ActionEvent":
                self.actions.setdefault(openhands_sdk.answer_id(event), []).append(event)
        self.answers: dict[str, Answer] = {}
        self.by_call: dict[str, Answer] = {}
        """Answers by the ids of their tool calls; of equal ids the newest."""
        self.tools: str | None = None
        self.has_system = False
        self.key: str | None = None
        self.model: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.usage: dict[str, int] = {}
        """Of the call that comes next."""
        self.tokens: dict[str, Any] = {}
        self.before: list[dict[str, Any]] = []
        self.since: list[Message] = []

    def take(self, ordinal: int, event: dict[str, Any]) -> None:
        """Read one event."""
        kind, name = event.get("kind"), text(event.get("id"))
        if name is not None and name in self.seen:
            self.fates[ordinal] = Fate("duplicate", "event_repeated", f"event {name} came before")
            return
        self.seen.add(name or "")
        if kind == "ConversationStateUpdateEvent":
            self._update(ordinal, event)
            return
        if kind == "ActionEvent":
            self._act(ordinal, event)
        elif kind == "MessageEvent" and event.get("source") == "agent":
            self._speak(ordinal, event)
        elif kind in _RESULTS:
            self._observe(ordinal, event)
        elif kind == "SystemPromptEvent":
            self._begin(event)
        elif kind in ("MessageEvent", "CondensationSummaryEvent"):
            self._show(event, openhands_sdk.user_message(event))
        elif kind == "Condensation":
            self._condense(event)
        elif kind == "TokenEvent":
            self._take_tokens(event)
        else:
            self.fates[ordinal] = Fate("ignored", "not_shown", f"the model never saw a {kind}")
        self.usage = {}

    def _begin(self, event: dict[str, Any]) -> None:
        prompt = [object_of(event.get(key)) for key in ("system_prompt", "dynamic_context")]
        self.has_system = True
        if isinstance(tools := event.get("tools"), list):
            self.tools = msgspec.json.encode(tools).decode()
        self._show(
            event,
            to_message(
                {"role": "system", "content": openhands_sdk.parts_of([p for p in prompt if p])}
            ),
        )

    def _show(self, event: dict[str, Any], message: Message) -> None:
        self.view.events.append(Shown(event.get("id"), digested(message)))
        self.since.append(message)
        self.before.append(openhands_sdk.beside(event, message))

    def _act(self, ordinal: int, event: dict[str, Any]) -> None:
        """Read an action; the first one of an answer is its call."""
        name = openhands_sdk.answer_id(event)
        answer = self.answers.get(name)
        if answer is None:
            said = self.actions[name]
            answer = self.answers[name] = self._call(ordinal, event, openhands_sdk.spoken(said))
            answer.call.native_id = text(event.get("llm_response_id"))
        call_id = text(event.get("tool_call_id")) or text(
            object_of(event.get("tool_call")).get("id")
        )
        if call_id is not None:
            self.by_call[call_id] = answer
        answer.keep("events", openhands_sdk.beside(event, answer.item.message))
        self.view.events.append(Shown(event.get("id"), answer=answer))

    def _speak(self, ordinal: int, event: dict[str, Any]) -> None:
        """Read a message of the agent: an answer without a tool call."""
        logged = object_of(event.get("llm_message"))
        message = to_message(
            {
                **logged,
                "role": "assistant",
                "content": openhands_sdk.parts_of(logged.get("content")),
            }
        )
        answer = self._call(ordinal, event, message)
        answer.call.native_id = text(event.get("llm_response_id"))
        answer.keep("events", openhands_sdk.beside(event, message))
        self.view.events.append(Shown(event.get("id"), answer=answer))

    def _call(self, ordinal: int, event: dict[str, Any], message: Message) -> Answer:
        system, items = split_system(self.view.messages())
        choice = Choice(digested(message))
        choice.warnings = documents.odd_arguments(choice)
        call = Call(
            state=self.path.to(items),
            choices=[choice],
            system=system,
            tools=self.tools,
            is_cut=True,
            follows=self.calls[-1] if self.calls else None,
            input_tokens=self.usage.get("prompt_tokens"),
            output_tokens=self.usage.get("completion_tokens"),
            cached_tokens=self.usage.get("cache_read_tokens"),
            reasoning_tokens=self.usage.get("reasoning_tokens"),
            ended_at=seconds(event.get("timestamp")),
            state_kind="reconstructed"
            if self.has_system and openhands_sdk.are_schemas(self.tools)
            else "partial",
            metadata=filled(before=self.before),
            record=ordinal,
        )
        self.calls.append(call)
        self.before, self.since = [], []
        if self.tokens:
            self._set_tokens(call, self.tokens)
            self.tokens = {}
        return Answer(call)

    def _observe(self, ordinal: int, event: dict[str, Any]) -> None:
        call_id = text(event.get("tool_call_id"))
        answer = self.by_call.get(call_id or "")
        if answer is None or call_id is None:
            self.fates[ordinal] = Fate(
                "ignored", "orphan_result", "the log does not hold the tool call of this result"
            )
            return
        message = to_message(
            {
                "role": "tool",
                "content": openhands_sdk.result_of(event),
                "tool_call_id": call_id,
                "name": event.get("tool_name"),
            }
        )
        self.view.events.append(Shown(event.get("id"), digested(message), result_of=call_id))
        self.since.append(message)
        answer.keep("results", openhands_sdk.beside(event, message))

    def _condense(self, event: dict[str, Any]) -> None:
        forgotten = event.get("forgotten_event_ids")
        self.view.forget(set(map(str, forgotten if isinstance(forgotten, list) else ())))
        summary = text(event.get("summary"))
        place = integer(event.get("summary_offset"))
        if summary and place is not None:
            self.view.summarise(f"{event.get('id')}-summary", summary, place)
            event = rest(event, frozenset({"summary"}))
        self.before.append(openhands_sdk.beside(event, None))

    def _take_tokens(self, event: dict[str, Any]) -> None:
        """Give logged token ids to the call that has none: they stand on either side of it."""
        if self.calls and self.calls[-1].choices[0].response_ids is None:
            self._set_tokens(self.calls[-1], event)
        else:
            self.tokens = event

    def _set_tokens(self, call: Call, event: dict[str, Any]) -> None:
        call.prompt_ids = ids(event.get("prompt_token_ids"))
        call.choices[0].response_ids = ids(event.get("response_token_ids"))

    def _update(self, ordinal: int, event: dict[str, Any]) -> None:
        """Read who acts, and what the next call used, from an update of the state."""
        value = object_of(event.get("value"))
        key = event.get("key")
        if key == "full_state":
            self.key = text(value.get("id")) or self.key
            self.model = object_of(object_of(value.get("agent")).get("llm")) or self.model
            value = object_of(value.get("stats"))
        used = object_of(value.get("usage_to_metrics"))
        metrics = next((used[name] for name in _MAIN_USAGE if name in used), None)
        if key not in ("stats", "full_state") or not isinstance(metrics, dict):
            if key != "full_state":
                self.fates[ordinal] = Fate("ignored", "not_shown", "the model never saw the state")
            return
        self.model = {"model": metrics.get("model_name"), **self.model}
        total = object_of(metrics.get("accumulated_token_usage"))
        counts = {name: integer(total.get(name)) or 0 for name in _COUNTS}
        used_now = {name: counts[name] - self.counts.get(name, 0) for name in _COUNTS}
        both = used_now["prompt_tokens"] + used_now["completion_tokens"]
        # the sum that the log gives for the newest response tells whether it was the only one
        confirmed = both > 0 and both == integer(total.get("per_turn_token"))
        self.counts, self.usage = counts, used_now if confirmed else {}

    def close(self) -> Session:
        """Finish the calls with what the log says about the whole conversation."""
        if not self.calls:
            for ordinal in self.records.keys() - self.fates.keys():
                self.fates[ordinal] = Fate("ignored", "no_call", "no model was called in this log")
            return Session([], self.fates)
        model = text(self.model.get("model"))
        for call in self.calls:
            call.model = call.policy = model
            call.temperature = number(self.model.get("temperature"))
            call.top_p = number(self.model.get("top_p"))
            call.trajectory_key, call.key_is_global = self.key, self.key is not None
            call.metadata = call.metadata or None
        last = self.calls[-1]
        called = last.choices[0].action.message.tool_calls or ()
        last.terminated = True if any(c.name == "finish" for c in called) else None
        errors = [e for e in self.records.values() if e.get("kind") == "ConversationErrorEvent"]
        if any("maxiteration" in str(e.get("code")).lower().replace("_", "") for e in errors):
            last.truncated = True
        last.final_observation = self.since
        if self.before:
            last.metadata = {**(last.metadata or {}), "after": self.before}
        documents.mark_missing_tools(self.calls)
        return Session(self.calls, self.fates)
