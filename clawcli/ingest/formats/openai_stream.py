"""Dumps of OpenAI chat streams: each record is one chunk, the chunks of one answer make a call.

The requests were not logged, so the state of these calls is unknown. Answers may be interleaved.
"""

from __future__ import annotations

from typing import Any

from clawcli.ingest.calls import Context, Session
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import completions, pairs, streams
from clawcli.ingest.formats.openai_chat import unknown_state

NAME = "openai_stream"


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    return None if _is_chunk(record) else "no chunk of a chat completion"


def _is_chunk(record: dict[str, Any]) -> bool:
    choices = record.get("choices")
    if not isinstance(choices, list):
        return False
    if record.get("object") == "chat.completion.chunk":
        return True
    # Azure begins with a chunk that names no object
    return all("delta" in c for c in choices if isinstance(c, dict)) and not record.get("object")


def session(records: dict[int, dict[str, Any]], context: Context) -> Session:
    """Join the chunks of a file into answers, and make a call of each."""
    made = Session([])
    chunks = []
    for ordinal, record in records.items():
        if _is_chunk(record):
            chunks.append((ordinal, record))
        elif record.get("error"):
            made.fates[ordinal] = pairs.failed("is an error")
        else:
            made.fates[ordinal] = Fate("rejected", "no_chunk", "the record is no chunk of a stream")
    for group in streams.chat_groups(chunks):
        try:
            response = streams.chat_response(chunk for _, chunk in group)
            warnings = completions.stream_warnings(response)
            call = unknown_state(completions.call_of(response))
        except Fate as fate:
            made.fates |= dict.fromkeys((ordinal for ordinal, _ in group), fate)
            continue
        call.warnings += warnings
        call.record = group[0][0]
        made.calls.append(call)
    return made
