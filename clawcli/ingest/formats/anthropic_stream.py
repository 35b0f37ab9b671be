"""Dumps of Anthropic streams: each record is one event, the events of one message make a call.

The requests were not logged, so the state of these calls is unknown.
"""

from __future__ import annotations

from typing import Any

from clawcli.ingest.calls import Context, Session
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import events, pairs
from clawcli.ingest.formats.anthropic_messages import call_of, joined
from clawcli.ingest.formats.openai_chat import unknown_state

NAME = "anthropic_stream"


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    kind = record.get("type")
    # "message_delta" and its kin are other words in other logs: what they hold tells
    held = {"message_start": "message", "content_block_delta": "delta"}
    held |= {"content_block_start": "content_block", "message_delta": "usage"}
    return None if isinstance(kind, str) and held.get(kind, "") in record else "no stream event"


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Join the events of a file into messages, and make a call of each."""
    made = Session([])
    known = []
    for ordinal, record in records.items():
        if events.is_message_event(record) or record.get("type") == "error":
            known.append((ordinal, record))
        else:
            made.fates[ordinal] = Fate("rejected", "no_event", "the record is no event of a stream")
    for group in events.message_groups(known):
        answer = joined(group)
        if answer is None:
            is_error = any(event.get("type") == "error" for _, event in group)
            fate = pairs.failed("is an error") if is_error else _EMPTY_STREAM
            made.fates |= dict.fromkeys((ordinal for ordinal, _ in group), fate)
            continue
        message, warnings = answer
        call = unknown_state(call_of(message))
        call.warnings += warnings
        call.record = group[0][0]
        made.calls.append(call)
    return made


_EMPTY_STREAM = Fate(
    "failed_call", "empty_stream", "the stream ended before the model said anything"
)
