"""OpenHands before the SDK, as trajectories are exported: an array of events is one attempt.

The events are those of openhands_v0; here each is a record of its own.
"""

from __future__ import annotations

from typing import Any

from clawcli.ingest.calls import Context, Session
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import openhands_history

NAME = "openhands_v0_events"


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if not openhands_history.is_event(record):
        return "no action and no observation"
    return None if {"source", "timestamp"} <= record.keys() else "no source and timestamp"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Turn the events of a file into the calls of one attempt."""
    ordinals = list(records)
    try:
        calls = openhands_history.attempt(list(records.values()))
    except Fate as fate:
        return Session([], dict.fromkeys(ordinals, fate))
    if not calls:
        fate = Fate("ignored", "no_call", "no model was called in this log")
        return Session([], dict.fromkeys(ordinals, fate))
    for call in calls:
        call.record = ordinals[call.record]
    return Session(calls)
