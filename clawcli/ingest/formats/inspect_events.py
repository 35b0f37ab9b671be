"""The model events of one Inspect sample as calls, and how they follow each other.

Events of agents that run at the same time are interleaved. A call continues the call whose action
its input ends with (and then what the environment said); where histories were edited, the latest
call of the same agent; else it begins a thread. The main thread is the one that the sample's own
messages are of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clawcli.ingest.calls import Call, Choice
from clawcli.ingest.conversations import Node, split_system
from clawcli.ingest.formats import completions, documents, transcript
from clawcli.ingest.formats.documents import object_of, objects
from clawcli.ingest.formats.inspect_messages import Messages, is_redacted
from clawcli.ingest.formats.inspect_spans import Place, placed
from clawcli.ingest.values import integer, number, seconds, text
from clawcli.messages import Message

_CANCELLED = frozenset({"Cancelled by operator", "Cancelled by limit", "Cancelled by system"})
_RENAMED = {"stop_seqs": "stop", "response_schema": "response_format"}
_SAMPLED = ("top_k", "frequency_penalty", "presence_penalty", "logit_bias")
_EVENT_KEYS = frozenset(
    {
        "event",
        "uuid",
        "timestamp",
        "completed",
        "model",
        "input",
        "input_refs",
        "tools",
        "config",
        "output",
        "call",
        "error",
        "pending",
    }
)
_OUTPUT_KEYS = frozenset({"model", "choices", "usage", "time", "completion"})
_REPEATED = frozenset({"messages", "contents", "input", "tools", "system", "choices", "content"})
"""Keys of raw requests and responses that say again what the event says."""
_Key = tuple[bool, str | None]


@dataclass(slots=True)
class Events:
    """The calls of one sample."""

    calls: list[Call] = field(default_factory=list)
    """All of them, in the order of the log."""
    threads: list[list[Call]] = field(default_factory=list)
    """The same, by the thread that each is in."""
    main: list[Call] | None = None
    """The thread of the attempt itself; null where only graders called a model."""
    failed: list[dict[str, Any]] = field(default_factory=list)
    """Calls that gave no answer."""
    final_observation: list[Message] | None = None
    """What was said after the last action of main; null where the sample does not tell."""


def read(sample: dict[str, Any], messages: Messages) -> Events:
    """Turn the model events of a sample into linked calls."""
    found, linker = Events(), _Linker()
    for event, place in placed(sample.get("events")):
        if event.get("event") == "compaction":
            linker.compacted(event.get("type"), place)
        if event.get("event") != "model" or event.get("pending"):
            continue
        if (call := _call(event, place, messages)) is None:
            kept = ("uuid", "timestamp", "model", "error")
            found.failed.append({key: event[key] for key in kept if event.get(key) is not None})
            continue
        call.ordinal = len(found.calls)
        found.calls.append(call)
        linker.link(call, place)
    found.threads = linker.threads
    _end(found, sample, messages)
    return found


def _end(found: Events, sample: dict[str, Any], messages: Messages) -> None:
    """Find the thread that the sample's own messages are of (else the longest), and its end."""
    final = messages.items(sample.get("messages"))
    spoken = [place for place, item in enumerate(final) if item.message.role == "assistant"]
    last = final[spoken[-1]].exact if spoken else None
    policy = [thread for thread in found.threads if thread[0].step_kind != "grader"]
    named = [thread for thread in policy if any(_action(call) == last for call in thread)]
    found.main = max(named or policy, key=len, default=None)
    if found.main and spoken and _action(found.main[-1]) == last:
        found.final_observation = [item.message for item in final[spoken[-1] + 1 :]]


def _action(call: Call) -> bytes:
    return call.choices[0].action.exact


class _Linker:
    """Finds what each call of a sample continues; graders and the attempt do not mix."""

    def __init__(self) -> None:
        self.threads: list[list[Call]] = []
        self._thread: dict[int, list[Call]] = {}
        self._by_next: dict[tuple[bool, bytes], Call] = {}
        self._by_state: dict[tuple[bool, bytes], Call] = {}
        self._by_action: dict[tuple[_Key, bytes], Call] = {}
        self._of_agent: dict[_Key, list[Call]] = {}
        self._compacted: dict[_Key, str] = {}

    def link(self, call: Call, place: Place) -> None:
        """Link one call to those before it."""
        is_grader = call.step_kind == "grader"
        key: _Key = is_grader, place.agent
        agent = self._of_agent.setdefault(key, [])
        kind = self._compacted.pop(key, None)
        if kind == "summary":
            _mark_summary(agent, call)
        call.follows = self._before(call, key, is_compacted=kind is not None)
        if call.follows is None:
            thread: list[Call] = []
            self.threads.append(thread)
        else:
            thread = self._thread[id(call.follows)]
        thread.append(call)
        agent.append(call)
        self._thread[id(call)] = thread
        self._by_state[is_grader, call.state.exact] = call
        for choice in call.choices:
            after = call.state.then(choice.action)
            self._by_next[is_grader, after.exact] = self._by_next[is_grader, after.loose] = call
            self._by_action[key, choice.action.loose] = call

    def compacted(self, kind: Any, place: Place) -> None:
        """Note that an agent's history was shortened: its next call goes on all the same."""
        self._compacted[False, place.agent] = text(kind) or ""

    def _before(self, call: Call, key: _Key, *, is_compacted: bool) -> Call | None:
        """Find the call that one continues, the strongest evidence first."""
        of_agent = [other for other in self._of_agent[key] if other.step_kind != "compaction"]
        if is_compacted and of_agent:
            return of_agent[-1]
        (is_grader, _), answer = key, call.state.assistant
        if answer is None or answer.item is None:
            return self._unanswered(call, is_grader)
        return (
            self._next(answer, is_grader)
            or self._unanswered(call, is_grader)
            or self._by_action.get((key, answer.item.loose))
            or self._boundary(answer, is_grader)
            or next((other for other in of_agent[::-1] if _begins_alike(other, call)), None)
        )

    def _next(self, node: Node, is_grader: bool) -> Call | None:
        by_next = self._by_next
        return by_next.get((is_grader, node.exact)) or by_next.get((is_grader, node.loose))

    def _unanswered(self, call: Call, is_grader: bool) -> Call | None:
        """Find a call whose state went on without its action: it was lost, or broken off."""
        node = call.state.parent
        while node is not None and node.item and node.item.message.role != "assistant":
            if found := self._by_state.get((is_grader, node.exact)):
                return found
            node = node.parent
        return None

    def _boundary(self, node: Node, is_grader: bool) -> Call | None:
        """Find the longest shorter conversation that a call left behind."""
        above = node.parent
        while above is not None:
            if found := self._next(above, is_grader):
                return found
            above = above.parent
        return None


def _mark_summary(agent: list[Call], after: Call) -> None:
    """Tell the call that wrote a summary: its answer is in what the agent was given next."""
    said = agent[-1].choices[0].action.message.content if agent else None
    shown = (item.message.content or "" for item in after.state.after())
    if said and any(said in content for content in shown):
        agent[-1].step_kind, agent[-1].loss_weight = "compaction", 0.0


def _begins_alike(one: Call, other: Call) -> bool:
    ours, theirs = one.state.after()[:1], other.state.after()[:1]
    return [item.exact for item in ours] == [item.exact for item in theirs]


def _call(event: dict[str, Any], place: Place, messages: Messages) -> Call | None:
    """Read one model event; None where no answer came of it."""
    output = object_of(event.get("output"))
    error = text(event.get("error"))
    if error and error not in _CANCELLED:
        return None
    choices = _choices(output, error, messages)
    if not choices:
        return None
    given, warnings = messages.given(event)
    system, items = split_system(given)
    tools, padding = transcript.tools_json(
        transcript.as_functions(messages.resolved(event.get("tools")))
    )
    model = text(output.get("model")) or text(event.get("model"))
    config = object_of(event.get("config"))
    is_cached = event.get("cache") == "read"
    state = messages.state(items)
    rest = _rest(event, output, config)
    seen = [item.extra for item in state.after(state.assistant.depth if state.assistant else 0)]
    if any(seen):
        rest["observation"] = seen
    return Call(
        state=state,
        choices=choices,
        system=system,
        tools=tools,
        native_id=text(event.get("uuid")),
        is_cut=True,
        step_kind="grader" if place.is_scoring else "policy",
        agent=place.name or text(event.get("role")),
        model=model,
        policy=model,
        temperature=number(config.get("temperature")),
        top_p=number(config.get("top_p")),
        sampling=_sampling(config),
        latency_s=None if is_cached else number(output.get("time")),
        started_at=seconds(event.get("timestamp")),
        ended_at=seconds(event.get("completed")),
        state_kind="partial" if warnings else "full",
        loss_weight=0.0 if is_cached or place.is_scoring else 1.0,
        warnings=warnings + padding + (["cached_answer"] if is_cached else []),
        metadata=messages.resolved(rest) or None,
        **_usage(object_of(output.get("usage"))),
    )


def _choices(output: dict[str, Any], error: str | None, messages: Messages) -> list[Choice]:
    logged = output.get("choices")
    found = []
    for index, entry in enumerate(logged if isinstance(logged, list) else ()):
        if not (value := object_of(object_of(entry).get("message"))):
            continue
        item = messages.item({**value, "role": "assistant"})
        message = item.message
        if error and not (message.content or message.parts or message.tool_calls):
            continue
        reason = text(entry.get("stop_reason"))
        choice = transcript.choice(
            item,
            index=index,
            finish_reason="aborted" if error else completions.finish_reason(reason),
            finish_reason_raw=error or reason,
        )
        tokens = object_of(entry.get("logprobs")).get("content")
        logged = [token.get("logprob") for token in objects(tokens)]
        choice.logprobs, odd = documents.read_logprobs(logged, None)
        choice.warnings.extend(odd)
        if is_redacted(value):
            choice.warnings.append("reasoning_hidden")
        found.append(choice)
    return found


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Read token counts; providers differ in whether input counts what a cache gave or took."""
    given, made = integer(usage.get("input_tokens")), integer(usage.get("output_tokens"))
    cached = integer(usage.get("input_tokens_cache_read"))
    apart = (cached or 0) + (integer(usage.get("input_tokens_cache_write")) or 0)
    if given is not None and integer(usage.get("total_tokens")) == given + (made or 0) + apart:
        given += apart
    return {
        "input_tokens": given,
        "output_tokens": made,
        "cached_tokens": cached,
        "reasoning_tokens": integer(usage.get("reasoning_tokens")),
        "cost_usd": number(usage.get("total_cost")),
    }


def _sampling(config: dict[str, Any]) -> dict[str, Any] | None:
    found = {key: config[key] for key in _SAMPLED if config.get(key) is not None}
    found |= {name: config[logged] for logged, name in _RENAMED.items() if config.get(logged)}
    return found or None


def _rest(event: dict[str, Any], output: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Collect what has no column; of the raw call only what the event does not say again."""
    rest = _without(event, _EVENT_KEYS)
    parts = {
        "config": _without(config, {"temperature", "top_p", *_SAMPLED, *_RENAMED}),
        "output": _without(output, _OUTPUT_KEYS),
    }
    for name in ("request", "response"):
        parts[name] = _without(object_of(object_of(event.get("call")).get(name)), _REPEATED)
    return rest | {name: kept for name, kept in parts.items() if kept}


def _without(values: dict[str, Any], known: Any) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k not in known and v not in (None, "", [], {})}
