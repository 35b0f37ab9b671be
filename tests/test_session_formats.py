"""Whatever stands in a wrong place of a session costs that record at most, never the file."""

import copy

import pytest

from clawcli.ingest.calls import Context
from clawcli.ingest.formats import claude_code, codex, openclaw

JUNK = (None, True, -1, 1.5, 2**70, "", "x", [], {}, [None], [{}], {"type": [1]}, {"text": {}})
AT = "2026-01-01T00:00:00Z"


def claude_lines():
    line = {"sessionId": "s", "isSidechain": False, "timestamp": AT}
    usage = {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 3}
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c", "name": "run", "input": {"x": 1}},
    ]
    answer = {"id": "m", "model": "m", "content": blocks, "stop_reason": None, "usage": usage}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}
    segment = {"headUuid": "a", "tailUuid": "r", "anchorUuid": "s"}
    attachment = {"type": "hook_success", "hookEvent": "SessionStart", "content": "x"}
    return [
        {**line, "type": "attachment", "uuid": "h", "parentUuid": None, "attachment": attachment},
        {**line, "type": "user", "uuid": "u", "parentUuid": "h", "message": {"content": "hi"}},
        {**line, "type": "assistant", "uuid": "a", "parentUuid": "u", "message": answer},
        {**line, "type": "user", "uuid": "r", "parentUuid": "a", "message": {"content": [result]}},
        {
            **line,
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "b",
            "parentUuid": None,
            "logicalParentUuid": "r",
            "compactMetadata": {"preservedSegment": segment},
        },
        {
            **line,
            "type": "user",
            "uuid": "s",
            "parentUuid": "b",
            "isCompactSummary": True,
            "message": {"content": "sum"},
        },
        {**line, "type": "assistant", "uuid": "e", "parentUuid": "s", "message": {"content": "z"}},
        {"type": "result", "subtype": "success", "session_id": "s", "is_error": False},
    ]


def codex_lines():
    def line(kind, **payload):
        return {"timestamp": AT, "type": kind, "payload": payload}

    usage = {"total_token_usage": {"n": 1}, "last_token_usage": {"input_tokens": 1}}
    part = {"type": "output_text", "text": "a"}
    return [
        line("session_meta", id="t", timestamp=AT, source={"subagent": {"thread_spawn": {}}}),
        line("turn_context", turn_id="x", model="m"),
        line("response_item", type="message", role="user", content=[part]),
        line("response_item", type="reasoning", summary=[part], content=None),
        line("response_item", type="message", role="assistant", content=[part]),
        line("response_item", type="function_call", name="n", arguments="{}", call_id="c"),
        line("event_msg", type="token_count", info=usage),
        line("response_item", type="function_call_output", call_id="c", output={"content": "o"}),
        line("event_msg", type="thread_rolled_back", num_turns=1),
        line("compacted", message="s", replacement_history=[{"type": "message", "content": []}]),
        line("response_item", type="message", role="assistant", content=[part]),
    ]


def openclaw_entries():
    usage = {"input": 1, "output": 2, "cacheRead": 3, "cost": {"total": 0.5}}
    content = [
        {"type": "thinking", "thinking": "t", "thinkingSignature": "s"},
        {"type": "text", "text": "a"},
        {"type": "toolCall", "id": "c", "name": "run", "arguments": {"x": 1}},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": content, "usage": usage, "stopReason": "toolUse"},
        {"role": "toolResult", "toolCallId": "c", "toolName": "run", "content": "r"},
        {"role": "bashExecution", "command": "ls", "output": "o", "exitCode": 1},
        {"role": "assistant", "content": "z"},
    ]
    entries = [
        {"type": "message", "id": str(n), "parentId": str(n - 1) if n else None, "message": m}
        for n, m in enumerate(messages)
    ]
    compaction = {"type": "compaction", "id": "k", "parentId": "3", "firstKeptEntryId": "1"}
    entries[4]["parentId"] = "k"
    return [
        {"type": "session", "id": "s"},
        *entries[:4],
        {**compaction, "summary": "s"},
        entries[4],
    ]


def places(value, above=()):
    """Every way down to a value inside another."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield (*above, key)
        yield from places(value[key], (*above, key))


@pytest.mark.parametrize(
    ("module", "records"),
    [
        (claude_code, claude_lines()),
        (codex, codex_lines()),
        (openclaw, openclaw_entries()),
    ],
    ids=lambda value: getattr(value, "NAME", ""),
)
def test_junk_in_any_place_leaves_fates_that_balance(module, records):
    whole = module.session(dict(enumerate(copy.deepcopy(records))), Context())
    assert len(whole.calls) == 2
    for place in places(records):
        if len(place) < 2:
            continue
        for junk in JUNK:
            damaged = copy.deepcopy(records)
            inner = damaged
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = copy.deepcopy(junk)
            for record in damaged:
                module.why_not(record)
            session = module.session(dict(enumerate(damaged)), Context())
            assert session.fates.keys() <= set(range(len(records)))
            assert {call.record for call in session.calls}.isdisjoint(session.fates)
