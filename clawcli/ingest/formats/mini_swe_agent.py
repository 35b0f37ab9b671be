"""mini-swe-agent: one .traj.json document is one attempt; the oldest are a bare list of messages.

The agent sends its one growing list of messages whole, so the states are that list up to each
answer. What the provider returned (extra.response) tells usage, finish reason and log-probs. An
answer that the agent could not parse is not in the list: it stands beside the complaint of the
next user message, and is a call that no later state shows. A message of role exit ends the attempt
and was never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clawcli.ingest.calls import Call, Choice, Context, Session
from clawcli.ingest.chat import leftovers, to_message
from clawcli.ingest.conversations import EMPTY, Digested, digested, split_system
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import documents, items
from clawcli.ingest.formats.completions import rest, set_parameters, set_usage
from clawcli.ingest.formats.documents import filled, object_of, objects
from clawcli.ingest.values import number, seconds, text
from clawcli.messages import Message, text_of

NAME = "mini_swe_agent"
_BARE_KEYS = frozenset({"role", "content", "extra"})
_LIMITS = frozenset({"LimitsExceeded", "TimeExceeded", "ContextWindowExceeded"})
_ANSWER_KEYS = frozenset({"response", "cost", "timestamp"})
_LOST_KEYS = frozenset({"response", "model_response"})
_RESPONSE_KEYS = frozenset({"object", "id", "model", "output", "usage", "created_at", "extra"})
_USAGE = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
"""Counts of the Responses API -> of chat completions."""
_EXTRA = frozenset({"extra"})


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if record.keys() <= _BARE_KEYS and isinstance(record.get("role"), str):
        return None if "content" in record else "a message without content"
    logged = text(record.get("trajectory_format")) or ""
    version = object_of(record.get("info")).get("mini_version")
    if not logged.startswith("mini-swe-agent") and version is None:
        return "no trajectory_format mini-swe-agent-... and no info.mini_version"
    return None if isinstance(record.get("messages"), list) else "no list of messages"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Turn the documents of a file into calls; bare messages are one attempt together."""
    found = Session([])
    bare = {k: record for k, record in records.items() if isinstance(record.get("role"), str)}
    attempts = [(tuple(bare), list(bare.values()), {})] if bare else []
    for ordinal, record in records.items():
        if ordinal not in bare:
            attempts.append(((ordinal,), objects(record.get("messages")), record))
    for ordinals, messages, document in attempts:
        try:
            found.calls.extend(_attempt(ordinals, messages, document))
        except Fate as fate:
            found.fates.update(dict.fromkeys(ordinals, fate))
    return found


def _attempt(
    ordinals: Sequence[int], messages: list[dict[str, Any]], document: dict[str, Any]
) -> list[Call]:
    """Cut the messages of one attempt; each stands in a record of its own, or all in one.

    Raises:
        Fate: no model was called in it, or a message is damaged.
    """
    path = documents.Path()
    sent: list[Digested] = []
    calls: list[Call] = []
    before: list[dict[str, Any]] = []
    since: list[Message] = []
    status, end = None, {}
    for place, logged in enumerate(messages):
        extra = object_of(logged.get("extra"))
        status = text(extra.get("exit_status")) or status
        if logged.get("role") == "exit":
            end = {"content": logged.get("content"), **extra}
            continue
        message = _message(logged)
        is_answer = message.role == "assistant"
        call = _answer(logged, message) if is_answer else _lost_answer(extra)
        if call is not None:
            system, shown = split_system(sent)
            call.state, call.system = path.to(shown), system
            call.record = ordinals[place] if len(ordinals) > 1 else ordinals[0]
            call.ordinal = 0 if len(ordinals) > 1 else len(calls)
            call.is_cut, call.follows = True, calls[-1] if calls else None
            call.state_kind = "reconstructed"
            call.metadata = filled(**(call.metadata or {}), before=before)
            calls.append(call)
            before, since = [], []
        item = digested(message)
        if is_answer and call is not None:
            action = call.choices[0].action
            sent.append(action if action.exact == item.exact else item)
            continue
        sent.append(item)
        since.append(message)
        _keep(logged, extra, message, calls[-1].metadata if calls else None, before)
    if not calls:
        task_id = text(document.get("instance_id"))
        reason = "the attempt holds no call of a model"
        raise Fate("rejected", "empty_trajectory", reason, task_id=task_id)
    _finish(calls, document, status, end)
    calls[-1].final_observation = since
    return calls


def _keep(
    logged: dict[str, Any],
    extra: dict[str, Any],
    message: Message,
    answered: dict[str, Any] | None,
    before: list[dict[str, Any]],
) -> None:
    """Keep what was logged beside a message with the call that it answers, else for the next."""
    held = rest(extra, _LOST_KEYS) | (leftovers(rest(logged, _EXTRA), message) or {})
    if (shown := text_of(message)) is not None and str(held.get("raw_output")) in shown:
        held.pop("raw_output", None)
    if not held:
        return
    if answered is None:
        before.append(held)
    else:
        answered.setdefault("results", []).append(held)


def _message(logged: dict[str, Any]) -> Message:
    """Read one message, also in the forms of the Responses API."""
    if logged.get("object") == "response":
        return items.to_action(objects(logged.get("output"))).message
    if "type" in logged:
        return items.to_messages([rest(logged, _EXTRA)])[0].message
    return to_message(logged)


def _answer(logged: dict[str, Any], message: Message) -> Call:
    """Make the call that a logged answer stands for."""
    extra = object_of(logged.get("extra"))
    call = documents.answer_of(extra.get("response"))
    if call is None and logged.get("object") == "response":
        call = _from_response(logged)
    if call is None:
        choice = Choice(digested(message))
        choice.warnings = documents.odd_arguments(choice)
        choice.metadata = leftovers(rest(logged, _EXTRA), message)
        call = Call(EMPTY, [choice])
    call.cost_usd = number(extra.get("cost")) if extra.get("cost") is not None else call.cost_usd
    call.ended_at = seconds(extra.get("timestamp"))
    call.metadata = {**(call.metadata or {}), **rest(extra, _ANSWER_KEYS)}
    return call


def _from_response(response: dict[str, Any]) -> Call:
    """Make the call of an answer that was logged as an object of the Responses API."""
    action = items.to_action(objects(response.get("output")))
    choice = Choice(digested(action.message), warnings=action.warnings)
    choice.metadata = filled(**action.metadata, response=rest(response, _RESPONSE_KEYS)) or None
    call = Call(EMPTY, [choice], native_id=text(response.get("id")))
    call.model = call.policy = text(response.get("model"))
    call.started_at = seconds(response.get("created_at"))
    usage = object_of(response.get("usage"))
    set_usage(call, {_USAGE.get(key, key): value for key, value in usage.items()})
    return call


def _lost_answer(extra: dict[str, Any]) -> Call | None:
    """Find the answer that a complaint was about; it was shown to nobody."""
    call = documents.answer_of(extra.get("response"))
    if call is None and (said := text(extra.get("model_response"))):
        call = Call(EMPTY, [Choice(digested(Message("assistant", said)))])
    if call is not None:
        call.warnings.append("answer_not_shown")
    return call


def _finish(
    calls: list[Call], document: dict[str, Any], status: str | None, end: dict[str, Any]
) -> None:
    """Give the calls what the document says about the whole attempt."""
    info = object_of(document.get("info"))
    config = object_of(info.get("config"))
    model = object_of(config.get("model"))
    status = text(info.get("exit_status")) or status
    for call in calls:
        parameters = object_of(model.get("model_kwargs"))
        set_parameters(call, {**parameters, "model": model.get("model_name")})
        call.task_id = text(document.get("instance_id"))
        call.agent = text(config.get("agent_type"))
        call.is_last = (call is calls[-1]) if status else None
        call.metadata = call.metadata or None
    last = calls[-1]
    last.terminated = True if status == "Submitted" else None
    last.truncated = True if status in _LIMITS else None
    told = filled(end={k: v for k, v in end.items() if v not in info.values()})
    told |= rest(document, frozenset({"messages"}))
    last.metadata = {**(last.metadata or {}), **told} or None
    documents.mark_missing_tools(calls)
