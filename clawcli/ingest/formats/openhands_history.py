"""What a model saw of a list of OpenHands events, and what it answered: one call per answer.

One call of a model can be several action events; those of one model_response.id are one call, and
the model_response is what the model really said.

What would surprise: what microagents and the workspace add to the prompt is logged as facts and
not as text (recall_not_rendered), so nearly every state is partial. Actions that were logged
without their model_response are tool calls made of the action's own fields
(action_reconstructed). message is text for the screen and not kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.chat import to_message
from clawcli.ingest.conversations import EMPTY, digested, split_system
from clawcli.ingest.formats import documents
from clawcli.ingest.formats.completions import rest
from clawcli.ingest.formats.documents import filled, object_of, objects
from clawcli.ingest.formats.openhands_view import Answer, Shown, View, shell_output
from clawcli.ingest.values import integer, seconds, text
from clawcli.messages import Message, text_of

_HIDDEN = frozenset({"null", "change_agent_state", "agent_state_changed", "condensation_request"})
"""Events that a model's view of the history does not count."""
_NO_ANSWERS = frozenset({"system", "recall", "condensation", "pause", "resume", "loop_recovery"})
"""Actions with source agent that no model chose."""
_EVENT_KEYS = frozenset(
    {"source", "message", "action", "observation", "content", "args", "tool_call_metadata"}
    | {"extras"}
)
_NO_ARGUMENTS = frozenset(
    {"thought", "hidden", "blocking", "is_confirmed", "confirmation_state", "keep_prompt"}
)
"""Fields of an action that are the agent's bookkeeping and no arguments."""
_SUMMARY = "summary"


def is_event(value: dict[str, Any]) -> bool:
    """Tell whether an object is an event: it names its action or its observation."""
    return isinstance(value.get("action"), str) or isinstance(value.get("observation"), str)


def flat(history: Any) -> list[dict[str, Any]]:
    """List the events of a history; the oldest are pairs of an action and its observation."""
    found = []
    for entry in history if isinstance(history, list) else []:
        found.extend(objects(entry) if isinstance(entry, list) else objects([entry]))
    return found


def attempt(events: list[dict[str, Any]]) -> list[Call]:
    """Turn the events of one attempt into its calls, in order.

    Args:
        events: as logged.

    Returns:
        One call per answer of a model, each following the one before; record is the place of its
        first event.
    """
    run = _Run()
    for place, event in enumerate(events):
        run.take(place, event)
    return run.close()


class _Run:
    """One attempt as its events are read in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.path = documents.Path()
        self.view = View()
        self.answers: dict[str, Answer] = {}
        self.by_event: dict[Any, Answer] = {}
        """Answers by the ids of their action events: what an observation's cause names."""
        self.call_ids: dict[Any, str | None] = {}
        self.cause: Any = None
        """Id of the action that the event before this one was; the oldest logs name no cause."""
        self.finished: Call | None = None
        self.since: list[Message] = []
        """Messages after the newest answer."""
        self.tools: str | None = None
        self.has_system = self.has_gap = False
        self.before: list[dict[str, Any]] = []
        """What events that are no calls hold beside their messages."""
        self.warnings: list[str] = []

    def take(self, place: int, event: dict[str, Any]) -> None:
        """Read one event."""
        kind = text(event.get("action"))
        cause, self.cause = event.get("cause", self.cause), None
        if kind is None:
            self._observe(event, cause)
        elif kind in _HIDDEN:
            self.before.append(_beside(event, ""))
        elif kind == "condensation":
            self._condense(event)
        elif kind == "system":
            self._begin(event)
        elif event.get("source") == "agent" and kind not in _NO_ANSWERS and not _is_idle(event):
            self._act(place, kind, event)
        else:
            self._say(kind, event)

    def _begin(self, event: dict[str, Any]) -> None:
        args = object_of(event.get("args"))
        tools = args.get("tools")
        self.tools = msgspec.json.encode(tools).decode() if isinstance(tools, list) else None
        self.has_system = True
        beside = {**event, "args": rest(args, frozenset({"tools"}))}
        self._show(beside, to_message({"role": "system", "content": args.get("content")}))

    def _show(
        self,
        event: dict[str, Any],
        message: Message | None,
        answer: Answer | None = None,
        result_of: str | None = None,
    ) -> None:
        """Put an event into the view, and what it holds beside its message with its call."""
        item = None if message is None else digested(message)
        self.view.events.append(Shown(event.get("id"), item, result_of=result_of))
        if message is not None:
            self.since.append(message)
        held = _beside(event, "" if message is None else text_of(message) or "")
        if answer is None:
            self.before.append(held)
        else:
            answer.keep("results", held)

    def _say(self, kind: str, event: dict[str, Any]) -> None:
        """Read an action that no model chose: of the user, or one that only looks things up."""
        args = object_of(event.get("args"))
        if kind == "message":
            images = args.get("image_urls") or []
            parts = [{"type": "text", "text": args.get("content") or ""}]
            parts += [{"type": "image_url", "image_url": {"url": url}} for url in images]
            self._show(event, to_message({"role": "user", "content": parts}))
        elif kind == "run":
            said = f"User executed the command:\n{args.get('command')}"
            self._show(event, to_message({"role": "user", "content": said}))
        else:
            self._show(event, None)

    def _act(self, place: int, kind: str, event: dict[str, Any]) -> None:
        """Read an action that a model chose; the first one of an answer is its call."""
        told = object_of(event.get("tool_call_metadata"))
        response = object_of(told.get("model_response"))
        name = text(response.get("id")) or f"event {place}"
        answer = self.answers.get(name)
        if answer is None:
            answer = self.answers[name] = self._call(kind, event, response)
            answer.call.record = place
        self.cause = event.get("id", f"event {place}")
        self.by_event[self.cause] = answer
        self.call_ids[self.cause] = text(told.get("tool_call_id"))
        self.finished = answer.call if kind == "finish" else self.finished
        shown = answer.item.message
        spoken = (text_of(shown) or "") + "".join(c.arguments for c in shown.tool_calls or ())
        answer.keep("events", _beside(event, spoken))
        if kind == "finish" and told:
            item = digested(to_message(_finish(event, shown)))
            self.view.events.append(Shown(event.get("id"), item))
        else:
            self.view.events.append(Shown(event.get("id"), answer=answer))

    def _call(self, kind: str, event: dict[str, Any], response: dict[str, Any]) -> Answer:
        call = documents.answer_of(response)
        if call is None:
            choice = Choice(digested(to_message(_reconstruct(kind, event))))
            call = Call(EMPTY, [choice], ended_at=seconds(event.get("timestamp")))
            if kind != "message":
                call.warnings.append("action_reconstructed")
        system, items = split_system(self.view.messages())
        call.state, call.system, call.tools = self.path.to(items), system, self.tools
        call.is_cut = True
        call.follows = self.calls[-1] if self.calls else None
        call.state_kind = "reconstructed" if self.has_system and not self.has_gap else "partial"
        call.warnings.extend(self.warnings)
        call.metadata = filled(**(call.metadata or {}), before=self.before)
        self.before, self.warnings, self.since = [], [], []
        self.calls.append(call)
        return Answer(call)

    def _observe(self, event: dict[str, Any], cause: Any) -> None:
        kind = text(event.get("observation"))
        if kind in _HIDDEN:
            self.before.append(_beside(event, ""))
            return
        if kind == "recall":
            extras = rest(object_of(event.get("extras")), frozenset({"recall_type"}))
            if any(extras.values()):
                self.has_gap = True
                self.warnings.append("recall_not_rendered")
            self._show(event, None)
            return
        answer = self.by_event.get(cause)
        call_id = text(object_of(event.get("tool_call_metadata")).get("tool_call_id"))
        call_id = call_id or self.call_ids.get(cause)
        is_result = answer is not None and answer.item.message.tool_calls
        message = to_message(
            {
                "role": "tool" if call_id or is_result else "user",
                "content": _rendered(kind, event),
                "tool_call_id": call_id,
            }
        )
        self._show(event, message, answer, call_id)

    def _condense(self, event: dict[str, Any]) -> None:
        """Take forgotten events out of the view and put their summary in."""
        args = object_of(event.get("args"))
        forgotten = set(map(str, args.get("forgotten_event_ids") or ()))
        first, last = (integer(args.get(f"forgotten_events_{end}_id")) for end in ("start", "end"))
        if first is not None and last is not None:
            ids = [integer(shown.id) for shown in self.view.events]
            forgotten.update(str(i) for i in ids if i is not None and first <= i <= last)
        self.view.forget(forgotten)
        if summary := text(args.get("summary")):
            # only the newest summary is shown: the older one was condensed into it
            self.view.forget({_SUMMARY})
            self.view.summarise(_SUMMARY, summary, integer(args.get("summary_offset")))
        self.before.append(_beside(event, text(args.get("summary")) or ""))

    def close(self) -> list[Call]:
        """Give the last call what came after it."""
        if self.calls:
            last = self.calls[-1]
            last.final_observation = self.since
            last.terminated = True if self.finished is last else None
            last.metadata = {**(last.metadata or {}), **filled(after=self.before)}
            documents.mark_missing_tools(self.calls)
        return self.calls


def _is_idle(event: dict[str, Any]) -> bool:
    """Tell whether a finish is the controller's own: no model said anything with it."""
    said = object_of(event.get("args")).get("thought") or event.get("tool_call_metadata")
    return event.get("action") == "finish" and not said


def _reconstruct(kind: str, event: dict[str, Any]) -> dict[str, Any]:
    """Make an answer of an action that was logged without what the model said."""
    args = object_of(event.get("args"))
    if kind == "message":
        return {"role": "assistant", "content": args.get("content")}
    said = {"role": "assistant", "content": args.get("thought")}
    if kind == "finish":
        return said
    call = {"function": {"name": kind, "arguments": rest(args, _NO_ARGUMENTS)}}
    return {**said, "tool_calls": [call]}


def _finish(event: dict[str, Any], answer: Message) -> dict[str, Any]:
    """Show a finish as later calls see it: the text alone, without the call of the tool."""
    thought = text(object_of(event.get("args")).get("thought")) or ""
    said = text_of(answer) or ""
    both = thought if said in ("", thought) else f"{thought}\n{said}" if thought else said
    return {"role": "assistant", "content": both}


def _rendered(kind: str | None, event: dict[str, Any]) -> Any:
    """Render an observation as the model was shown it."""
    content, extras = event.get("content"), object_of(event.get("extras"))
    if kind == "run" and isinstance(about := extras.get("metadata"), dict):
        return shell_output(text(content) or "", about)
    if kind == "error":
        return f"{content or ''}\n[Error occurred in processing last action]"
    if kind == "user_rejected":
        return f"OBSERVATION:\n{content or ''}\n[Last action has been rejected by the user]"
    if kind == "delegate":
        return object_of(extras.get("outputs")).get("content", content)
    return content


def _beside(event: dict[str, Any], shown: str) -> dict[str, Any]:
    """Collect what an event holds beside the text that it shows."""
    held = rest(event, _EVENT_KEYS)
    for key in ("args", "extras"):
        values = object_of(event.get(key))
        if more := {k: v for k, v in values.items() if v and str(v) not in shown}:
            held[key] = more
    return held
