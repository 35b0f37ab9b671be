import json

import pytest
from conftest import shared
from expected_counts import expected_rows

from clawcli.errors import LogFormatError
from clawcli.ingest import formats
from clawcli.ingest.calls import Context
from clawcli.ingest.formats import openclaw

HEADER = {"type": "session", "version": 3, "id": "s", "cwd": "/x", "timestamp": "2026-01-01"}


def entry(name, parent, role, content, **message):
    value = {"role": role, "content": content, **message}
    return {"type": "message", "id": name, "parentId": parent, "message": value}


def other(kind, name, parent, **values):
    return {"type": kind, "id": name, "parentId": parent, **values}


def text(value):
    return {"type": "text", "text": value}


def call(call_id, **arguments):
    return {"type": "toolCall", "id": call_id, "name": "run", "arguments": arguments}


def read(*entries):
    session = openclaw.session(dict(enumerate(entries)), Context())
    return session.calls, {r: (fate.fate, fate.reason) for r, fate in session.fates.items()}


def state(found):
    return [item.message.content for item in found.state.after()]


def test_one_assistant_message_is_one_call():
    usage = {"input": 3, "output": 5, "cacheRead": 100, "cacheWrite": 10, "cost": {"total": 0.5}}
    calls, fates = read(
        HEADER,
        other("model_change", "m", None, modelId="x"),
        other("thinking_level_change", "t", "m", thinkingLevel="high"),
        entry("u", "t", "user", [text("hi")]),
        entry(
            "a",
            "u",
            "assistant",
            [{"type": "thinking", "thinking": "so", "thinkingSignature": "s"}, call("c", b=1, a=2)],
            model="x",
            stopReason="toolUse",
            usage=usage,
            timestamp=1767225600000,
            api="messages",
        )
        | {"timestamp": "2026-01-01T00:00:02Z"},
        entry("r", "a", "toolResult", [text("out")], toolCallId="c", toolName="run", isError=True),
        entry("b", "r", "assistant", [text("end")], stopReason="stop", responseId="r1"),
    )
    first, second = calls
    action = first.choices[0].action.message
    assert [c.arguments for c in action.tool_calls] == ['{"a": 2, "b": 1}']
    assert action.reasoning == "so"
    assert [c.choices[0].finish_reason for c in calls] == ["tool_calls", "stop"]
    assert (first.input_tokens, first.cached_tokens, first.output_tokens) == (113, 100, 5)
    assert (first.cost_usd, first.model, first.native_id) == (0.5, "x", "a")
    assert (first.started_at, first.ended_at) == (1767225600.0, 1767225602.0)
    assert (first.trajectory_key, first.key_is_global, first.state_kind) == ("s", True, "partial")
    assert first.metadata["thinking_level"] == "high"
    assert first.metadata["message"] == {"api": "messages"}
    assert first.metadata["usage"] == {"cacheWrite": 10, "cost": {"total": 0.5}}
    assert first.metadata["blocks"][0] == {"type": "thinking", "thinkingSignature": "s"}
    assert first.metadata["session"]["cwd"] == "/x"
    assert state(second) == ["hi", "", "out"]
    assert second.state.item.message.tool_call_id == "c"
    assert second.metadata["observation"][0]["message"] == {"isError": True}
    assert (second.native_id, second.follows) == ("r1", first)
    assert (second.input_tokens, second.started_at, second.cost_usd) == (None, None, None)
    assert fates == dict.fromkeys((0, 1, 2), ("ignored", "not_sent"))


def test_aborted_answers_are_steps_where_they_say_something():
    calls, fates = read(
        HEADER,
        entry("u", None, "user", "hi"),
        entry("a", "u", "assistant", [], stopReason="aborted"),
        entry("v", "a", "user", "again"),
        entry("b", "v", "assistant", [text("ha"), call("c")], stopReason="aborted"),
        entry("w", "b", "user", "once more"),
        entry("c", "w", "assistant", [text("fine")], stopReason="error", errorMessage="e"),
    )
    assert [c.choices[0].finish_reason for c in calls] == ["aborted", "error"]
    assert state(calls[0]) == ["hi", "again"]
    # what the client sent in place of the missing result is not in the log
    assert calls[1].warnings == ["tool_result_missing"]
    assert calls[1].metadata["message"] == {"errorMessage": "e"}
    assert fates == {0: ("ignored", "not_sent"), 2: ("failed_call", "empty_response")}


def test_version_one_is_a_plain_list():
    entries = [entry("u", None, "user", "hi"), entry("a", None, "assistant", [text("hello")])]
    for each in entries:
        del each["id"], each["parentId"]
    compaction = {"type": "compaction", "summary": "short", "firstKeptEntryIndex": 2}
    calls, _ = read(HEADER, *entries, compaction, entries[0], entries[1])
    assert state(calls[0]) == ["hi"]
    assert state(calls[1])[0].endswith("<summary>\nshort\n</summary>")
    assert state(calls[1])[1:] == ["hello", "hi"]
    assert calls[1].follows is calls[0]


@pytest.mark.parametrize(("kept", "found"), [("v", ["more", "well"]), ("gone", []), (None, [])])
def test_compaction_begins_a_new_history_with_what_it_kept(kept, found):
    calls, _ = read(
        HEADER,
        entry("u", None, "user", "hi"),
        entry("a", "u", "assistant", [text("hello")]),
        entry("v", "a", "user", "more"),
        entry("b", "v", "assistant", [text("well")]),
        other("compaction", "c", "b", summary="short", firstKeptEntryId=kept, tokensBefore=9),
        entry("w", "c", "user", "on"),
        entry("d", "w", "assistant", [text("end")]),
    )
    assert state(calls[2])[1:] == [*found, "on"]
    assert calls[2].follows is calls[1]
    assert calls[2].metadata["observation"][0]["tokensBefore"] == 9


def test_branches_share_what_came_before():
    calls, fates = read(
        HEADER,
        entry("u", None, "user", "hi"),
        entry("a", "u", "assistant", [text("hello")]),
        entry("v", "a", "user", "left"),
        entry("b", "v", "assistant", [text("dead")]),
        other("branch_summary", "bs", "a", fromId="b", summary="went left"),
        entry("w", "bs", "user", "right"),
        entry("c", "w", "assistant", [text("live")]),
        entry("x", "u", "user", "nobody answers"),
    )
    assert [found.follows for found in calls] == [None, calls[0], calls[0]]
    assert state(calls[2])[2].endswith("<summary>\nwent left</summary>")
    assert state(calls[2])[3:] == ["right"]
    assert fates[8] == ("ignored", "dead_branch")


def test_parents_that_are_missing_or_tool_calls_lose_no_history():
    calls, _ = read(
        HEADER,
        entry("u", "s", "user", "hi"),
        entry("a", "u", "assistant", [call("c")]),
        entry("r", "c", "toolResult", "out", toolCallId="c"),
        entry("b", "gone", "assistant", [text("end")]),
        entry("v", "b", "user", "more"),
        entry("d", "v", "assistant", [text("yes")]),
    )
    assert state(calls[2]) == ["hi", "", "out", "end", "more"]
    assert [found.warnings for found in calls] == [[], ["parent_missing"], ["parent_missing"]]


def test_what_the_user_ran_and_extensions_said_is_shown_as_the_model_saw_it():
    def shell(**values):
        return {"type": "message", "message": {"role": "bashExecution", "command": "ls", **values}}

    calls, fates = read(
        HEADER,
        shell(output="a.txt", exitCode=0),
        shell(output="", exitCode=2),
        shell(output="b", cancelled=True, truncated=True, fullOutputPath="/t"),
        shell(output="secret", excludeFromContext=True),
        {"type": "custom_message", "customType": "ctx", "content": [text("told")]},
        {"type": "message", "message": {"role": "hookMessage", "content": "hooked"}},
        {"type": "custom", "data": 1},
        {"type": "brand_new"},
        {"type": "message", "message": {"role": "assistant", "content": "hi"}},
    )
    assert state(calls[0]) == [
        "Ran `ls`\n```\na.txt\n```",
        "Ran `ls`\n(no output)\n\nCommand exited with code 2",
        "Ran `ls`\n```\nb\n```\n\n(command cancelled)\n\n[Output truncated. Full output: /t]",
        "told",
        "hooked",
    ]
    assert {item.message.role for item in calls[0].state.after()} == {"user"}
    assert fates[4] == fates[7] == ("ignored", "not_sent")
    assert fates[8] == ("ignored", "unknown_type")


def test_result_that_the_client_made_up_is_marked():
    made_up = "[openclaw] missing tool result in session history; inserted synthetic error result"
    calls, _ = read(
        HEADER,
        entry("a", None, "assistant", [call("c")]),
        entry("r", "a", "toolResult", [text(made_up)], toolCallId="c"),
        entry("b", "r", "assistant", [text("end")]),
        entry("d", "b", "assistant", [text("more")]),
    )
    assert [found.warnings for found in calls] == [[], ["synthetic_result"], []]


def test_session_without_an_answer_is_rejected():
    calls, fates = read(HEADER, entry("u", None, "user", "hi"))
    assert calls == []
    assert fates[1] == ("rejected", "empty_trajectory")


def test_usage_without_a_cache_counts_what_is_there():
    usage = {"input": 3, "output": 5}
    [found], _ = read(entry("a", None, "assistant", "hi", usage=usage))
    assert (found.input_tokens, found.cached_tokens, found.output_tokens) == (3, None, 5)


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (HEADER, True),
        (entry("u", None, "user", "hi"), True),
        ({"type": "session", "id": "s"}, False),
        ({"type": "message", "role": "user", "content": "hi"}, False),
        ({"type": "model_change", "id": "m"}, False),
    ],
)
def test_why_not_knows_its_entries(record, fits):
    assert (openclaw.why_not(record) is None) == fits


def test_telemetry_is_refused_with_the_reason():
    events = [
        {"type": "message.in", "channel": "c", "content": "hi"},
        {"type": "agent.start", "sessionKey": "k", "agentId": "main", "prompt": "hi"},
        {"type": "tool.end", "toolName": "exec", "sessionKey": "k"},
    ]
    with pytest.raises(LogFormatError, match="telemetry events do not hold whole calls"):
        formats.detect("x.jsonl", events)


EMPTY = {
    # FORMATS.md 6: an aborted answer without content is a failed call, which the count includes
    "openclaw/pi/large-session.jsonl": 14,
}


def load(path):
    records = {}
    for ordinal, line in enumerate(path.read_bytes().split(b"\n")):
        try:
            records[ordinal] = json.loads(line)
        except ValueError:
            continue
    return records


@pytest.mark.parametrize("row", expected_rows("openclaw"), ids=lambda row: row["path"])
def test_corpus_agrees(row):
    records = load(shared(*row["path"].split("/")))
    assert any(openclaw.why_not(record) is None for record in records.values())
    session = openclaw.session(records, Context())
    failed = [fate for fate in session.fates.values() if fate.fate == "failed_call"]
    assert len(session.calls) == int(row["llm_steps"]) - len(failed)
    assert len(failed) == EMPTY.get(row["path"], 0)
    assert len({found.trajectory_key for found in session.calls}) == int(row["trajectories"])
    assert session.fates.keys() <= records.keys()
    assert {found.record for found in session.calls}.isdisjoint(session.fates)


def test_corpus_aborted_answers_with_content_are_steps():
    calls, _ = read(*load(shared("openclaw", "pi", "large-session.jsonl")).values())
    reasons = [found.choices[0].finish_reason for found in calls]
    assert (reasons.count("aborted"), reasons.count("error")) == (7, 1)


def test_corpus_telemetry_is_refused():
    records = load(shared("openclaw", "telemetry", "sample-telemetry.jsonl"))
    with pytest.raises(LogFormatError, match="telemetry"):
        formats.detect("sample-telemetry.jsonl", list(records.values()))
