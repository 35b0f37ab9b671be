"""tau2-bench results: {info, tasks, simulations: [...]}, or one simulation in a file of its own.

In tau2 the simulated user has tools too. The agent never sees what passes between the user and
those tools, so it is in no state; the last step's metadata keeps it. The greeting that opens a
simulation is a fixed text of the harness: it is in every state, and no step. The system prompt and
the tool schemas are not logged, so the state is partial.

Task ids are small integers in every domain, so a task is named domain/id where the domain is
logged.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.conversations import Digested
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import transcript
from clawcli.ingest.formats.documents import object_of
from clawcli.ingest.values import integer, number, seconds, text

NAME = "tau2"
_GREETING = "Hi! How can I help you today?"
_ENDED = frozenset({"user_stop", "agent_stop"})
_CUT_OFF = frozenset({"max_steps", "timeout", "too_many_errors", "context_window_exceeded"})
_SIMULATION_KEYS = frozenset({"messages", "trial", "task_id"})
_MESSAGE_KEYS = frozenset({"role", "content", "tool_calls", "timestamp", "cost", "usage"})


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if isinstance(simulations := record.get("simulations"), list):
        if simulations or not record.get("simulation_index"):
            return None
        return "the simulations are in files of their own: give those in the folder simulations"
    if "messages" in record and {"reward_info", "termination_reason"} & record.keys():
        return None
    return "no simulations"


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn a results document, or one simulation, into calls.

    Raises:
        Fate: no simulation holds a call of the agent.
    """
    document = msgspec.json.decode(raw)
    if "simulations" not in document:
        return _simulation(document, {})
    simulations = document["simulations"]
    if not isinstance(simulations, list):
        raise Fate("rejected", "bad_record", "simulations is no list")
    return transcript.each(simulations, lambda simulation: _simulation(simulation, document))


def _simulation(run: Any, document: dict[str, Any]) -> list[Call]:
    if not isinstance(run, dict):
        raise Fate("rejected", "bad_record", "a simulation is no object")
    info = object_of(document.get("info"))
    attempt = _attempt(run, info)
    attempt.metadata |= _about(text(run.get("task_id")), document)
    logged = run.get("messages")
    if not transcript.is_chat(logged):
        raise attempt.fate("no_messages", "the simulation has no list of messages")
    # results of parallel calls may come as one message that holds them
    flat = [part for message in logged for part in message.get("tool_messages") or [message]]
    seen = [message for message in flat if not _is_of_user(message)]
    if len(seen) < len(flat):
        attempt.metadata["user_tool_messages"] = [m for m in flat if _is_of_user(m)]
    agent = object_of(info.get("agent_info"))
    model = text(agent.get("llm"))
    arguments = object_of(agent.get("llm_args"))
    steps = transcript.cut(
        [_item(message) for message in seen],
        attempt,
        given=1 if seen and _is_greeting(seen[0]) else 0,
        trajectory_key=text(run.get("id")),
        key_is_global=True,
        state_kind="partial",
        agent=text(agent.get("implementation")),
        model=model,
        policy=model,
        temperature=number(arguments.get("temperature")),
        top_p=number(arguments.get("top_p")),
    )
    acted = [message for message in seen if message["role"] == "assistant"][-len(steps) :]
    for step, message in zip(steps, acted, strict=True):
        _measure(step, message)
    reason = run.get("termination_reason")
    steps[-1].terminated = True if reason in _ENDED else None
    steps[-1].truncated = True if reason in _CUT_OFF else None
    return steps


def _attempt(run: dict[str, Any], info: dict[str, Any]) -> transcript.Attempt:
    domain = text(object_of(info.get("environment_info")).get("domain_name"))
    task_id = text(run.get("task_id"))
    attempt = transcript.Attempt(
        task_id=f"{domain}/{task_id}" if domain and task_id is not None else task_id,
        trial=integer(run.get("trial")),
        metadata={key: value for key, value in run.items() if key not in _SIMULATION_KEYS},
    )
    attempt.reward_from(object_of(run.get("reward_info")).get("reward"))
    return attempt


def _about(task_id: str | None, document: dict[str, Any]) -> dict[str, Any]:
    """Collect what a results document says of a simulation: its task, and the run it was in."""
    tasks = document.get("tasks")
    tasks = [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
    task = next((task for task in tasks if text(task.get("id")) == task_id), None)
    run = {key: value for key, value in document.items() if key not in ("simulations", "tasks")}
    return {key: value for key, value in (("task", task), ("run", run)) if value}


def _item(message: dict[str, Any]) -> Digested:
    value = transcript.chat_message(message)
    if value["role"] == "tool":
        value = {**value, "tool_call_id": value.get("id")}
    item = transcript.to_item(value)
    rest = {key: value for key, value in message.items() if key not in _MESSAGE_KEYS}
    item.extra = {key: value for key, value in rest.items() if value is not None} or None
    return item


def _measure(step: Call, message: dict[str, Any]) -> None:
    """Take over what the harness measured of one call; it stamps messages when they are made."""
    usage = object_of(message.get("usage"))
    step.input_tokens = integer(usage.get("prompt_tokens"))
    step.output_tokens = integer(usage.get("completion_tokens"))
    step.cost_usd = number(message.get("cost"))
    step.latency_s = number(message.get("generation_time_seconds"))
    step.ended_at = seconds(message.get("timestamp"))
    if step.ended_at is not None and step.latency_s is not None:
        step.started_at = step.ended_at - step.latency_s


def _is_of_user(message: dict[str, Any]) -> bool:
    """Tell whether a message passed between the simulated user and its own tools."""
    if message.get("role") == "user":
        return bool(message.get("tool_calls"))
    return message.get("role") == "tool" and message.get("requestor") == "user"


def _is_greeting(message: dict[str, Any]) -> bool:
    said = message.get("role") == "assistant" and message.get("content") == _GREETING
    # a model that greets with the same words was paid for it
    return said and not message.get("usage") and not message.get("cost")
