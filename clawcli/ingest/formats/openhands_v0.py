"""OpenHands before the SDK, as evaluations log it: a line is one attempt with its history.

Beside the events a line holds the task, the settings, latencies by response, and after evaluation
a verdict (test_result.report.resolved), which is the attempt's reward.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import openhands_history
from clawcli.ingest.formats.completions import rest, set_parameters
from clawcli.ingest.formats.documents import filled, object_of, objects
from clawcli.ingest.values import integer, number, text

NAME = "openhands_v0"
_RECORD_KEYS = frozenset({"history", "instance_id"})


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    history = record.get("history")
    if not isinstance(history, list):
        return "no list history"
    events = openhands_history.flat(history)
    if events and not any(openhands_history.is_event(event) for event in events):
        return "history holds no events with an action or observation"
    return None if events or "instance_id" in record else "an empty history without instance_id"


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one attempt into its calls.

    Raises:
        Fate: no model was called in it.
    """
    record = msgspec.json.decode(raw)
    found = openhands_history.attempt(openhands_history.flat(record.get("history")))
    about = object_of(record.get("metadata"))
    settings = object_of(about.get("llm_config"))
    verdict = object_of(object_of(record.get("test_result")).get("report")).get("resolved")
    task_id = text(record.get("instance_id"))
    reward = number(verdict) if isinstance(verdict, bool) else None
    if not found:
        raise Fate(
            "rejected",
            "empty_trajectory",
            "the attempt holds no call of a model",
            task_id=task_id,
            reward=reward,
        )
    _add_metrics(found, object_of(record.get("metrics")))
    for ordinal, call in enumerate(found):
        call.record, call.ordinal = 0, ordinal
        set_parameters(call, {k: settings.get(k) for k in ("model", "temperature", "top_p")})
        call.task_id, call.trajectory_reward = task_id, reward
        call.agent = text(about.get("agent_class"))
        call.is_last = call is found[-1]
    last = found[-1]
    if "maximum iteration" in (text(record.get("error")) or "").lower():
        last.truncated = True
    last.metadata = {**(last.metadata or {}), **filled(record=rest(record, _RECORD_KEYS))}
    return found


def _add_metrics(calls: list[Call], metrics: dict[str, Any]) -> None:
    """Take latencies and cached tokens from the lists that name each response."""
    by_id = {call.native_id: call for call in calls}
    for entry in objects(metrics.get("response_latencies")):
        call = by_id.get(text(entry.get("response_id")))
        if call is not None and call.native_id is not None:
            call.latency_s = number(entry.get("latency"))
    for entry in objects(metrics.get("token_usages")):
        call = by_id.get(text(entry.get("response_id")))
        if call is not None and call.native_id is not None and call.cached_tokens is None:
            call.cached_tokens = integer(entry.get("cache_read_tokens"))
