import json

import pytest
from conftest import shared
from expected_counts import expected_rows

from clawcli.ingest.calls import Context
from clawcli.ingest.formats import claude_code

S1 = {"sessionId": "s1", "isSidechain": False, "cwd": "/x"}


def user(uuid, parent, content, **extra):
    message = {"role": "user", "content": content}
    return {**S1, "type": "user", "uuid": uuid, "parentUuid": parent, "message": message, **extra}


def answer(uuid, parent, name, *blocks, stop=None, usage=None, **extra):
    message = {"id": name, "role": "assistant", "model": "m", "content": list(blocks)}
    message |= {"stop_reason": stop, "usage": usage or {"input_tokens": 1, "output_tokens": 1}}
    line = {**S1, "type": "assistant", "uuid": uuid, "parentUuid": parent, "message": message}
    return {**line, **extra}


def other(kind, uuid, parent, **extra):
    return {**S1, "type": kind, "uuid": uuid, "parentUuid": parent, **extra}


def text(value):
    return {"type": "text", "text": value}


def use(call_id, **arguments):
    return {"type": "tool_use", "id": call_id, "name": "run", "input": arguments}


def result(call_id, content="done"):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def read(*lines):
    session = claude_code.session(dict(enumerate(lines)), Context())
    return session.calls, {r: (fate.fate, fate.reason) for r, fate in session.fates.items()}


def state(call):
    """The messages that a call saw: their text, for results the id of the call before it."""
    return [
        f"{m.tool_call_id}:{m.content}" if m.role == "tool" else m.content
        for m in (item.message for item in call.state.after())
    ]


def action(call):
    return call.choices[0].action.message


def finish(call):
    return call.choices[0].finish_reason


def test_lines_of_one_message_id_are_one_call_with_the_last_usage():
    first = {"input_tokens": 3, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100}
    calls, fates = read(
        user("u", None, "hi"),
        answer("a", "u", "m1", text("on it"), usage=first, timestamp="2026-01-01T00:00:01Z"),
        answer("b", "a", "m1", use("c1", x=1), usage=first | {"output_tokens": 1}),
        answer("c", "b", "m1", use("c1", x=1), use("c2"), usage=first | {"output_tokens": 159}),
    )
    [call] = calls
    assert fates == {}
    assert call.native_id == "m1"
    assert action(call).content == "on it"
    assert [c.id for c in action(call).tool_calls] == ["c1", "c2"]
    assert (call.input_tokens, call.cached_tokens, call.output_tokens) == (113, 100, 159)
    assert call.metadata["usage"] == {"cache_creation_input_tokens": 10}
    assert call.started_at == 1767225601.0
    assert (call.model, call.policy, call.state_kind) == ("m", "m", "partial")
    assert (call.trajectory_key, call.key_is_global) == ("s1", True)
    assert [line["uuid"] for line in call.metadata["lines"]] == ["a", "b", "c"]
    assert call.metadata["lines"][0]["sessionId"] == "s1"
    assert "cwd" not in call.metadata["lines"][1]


def test_results_between_the_blocks_of_a_response_stand_behind_it():
    calls, fates = read(
        user("u", None, "hi"),
        answer("a", "u", "m1", use("c1")),
        user("r1", "a", [result("c1", "one") | {"is_error": True}], toolUseResult={"a": 1}),
        other("attachment", "h", "r1", attachment={"type": "hook_success", "content": "x"}),
        answer("b", "h", "m1", use("c2")),
        user("r2", "b", [result("c2", "two")]),
        answer("c", "r2", "m2", text("end")),
    )
    assert [action(call).content for call in calls] == ["", "end"]
    assert [c.id for c in action(calls[0]).tool_calls] == ["c1", "c2"]
    assert state(calls[1]) == ["hi", "", "c1:one", "c2:two"]
    assert calls[1].follows is calls[0]
    assert calls[1].warnings == []
    assert [item.message.role for item in calls[0].state.after()] == ["user"]
    note = calls[1].metadata["observation"][0]
    assert note["toolUseResult"] == {"a": 1}
    assert note["blocks"] == [{"type": "tool_result", "is_error": True}]
    assert fates == {3: ("ignored", "not_sent")}


def test_parallel_results_as_siblings_are_no_branches():
    calls, fates = read(
        answer("a", None, "m1", use("c1")),
        answer("b", "a", "m1", use("c2")),
        user("r2", "b", [result("c2")]),
        user("r1", "a", [result("c1")]),
        answer("c", "r1", "m2", text("end")),
    )
    assert state(calls[1]) == ["", "c2:done", "c1:done"]
    assert fates == {}


def test_what_is_said_between_the_blocks_of_a_response_comes_behind_its_results():
    calls, _ = read(
        answer("a", None, "m1", use("c1")),
        user("r1", "a", [result("c1"), text("[note]")]),
        other(
            "attachment",
            "q",
            "r1",
            attachment={"type": "hook_additional_context", "content": ["a", "b"], "hookName": "h"},
        ),
        answer("b", "q", "m1", use("c2")),
        user("r2", "b", [result("c2")]),
        answer("c", "r2", "m2", text("end")),
    )
    assert state(calls[1]) == ["", "c1:done", "c2:done", "[note]", "a\nb"]
    assert calls[1].metadata["observation"][1]["attachment"]["hookName"] == "h"


def test_going_back_leaves_a_branch_with_its_own_state():
    calls, fates = read(
        user("u", None, "hi"),
        answer("a", "u", "m1", text("hello"), stop="end_turn"),
        user("x", "a", "left"),
        answer("b", "x", "m2", text("dead"), stop="end_turn"),
        user("y", "a", "nobody answers"),
        user("z", "a", "taken"),
        answer("c", "z", "m3", text("live"), stop="end_turn"),
    )
    assert [call.follows for call in calls] == [None, calls[0], calls[0]]
    assert state(calls[1]) == ["hi", "hello", "left"]
    assert state(calls[2]) == ["hi", "hello", "taken"]
    assert fates == {4: ("ignored", "dead_branch")}


def test_another_result_of_the_same_call_stays_on_its_branch():
    calls, fates = read(
        answer("a", None, "m1", use("c1")),
        user("r", "a", [result("c1", "no")]),
        answer("b", "r", "m2", text("dead")),
        user("s", "a", [result("c1", "yes")]),
        answer("c", "s", "m3", text("live")),
    )
    assert [state(call) for call in calls[1:]] == [["", "c1:no"], ["", "c1:yes"]]
    assert fates == {}


def test_the_same_result_again_is_a_duplicate():
    calls, fates = read(
        answer("a", None, "m1", use("c1")),
        user("r", "a", [result("c1")]),
        user("s", "r", [result("c1")]),
        answer("b", "s", "m2", text("end")),
    )
    assert state(calls[1]) == ["", "c1:done"]
    assert fates == {2: ("duplicate", "same_result")}


def test_last_call_keeps_what_came_after_it():
    calls, fates = read(
        answer("a", None, "m1", use("c1")),
        user("r", "a", [result("c1")]),
        user("u", "r", "bye"),
    )
    assert [m.content for m in calls[0].final_observation] == ["done", "bye"]
    assert fates == {}


def test_compaction_begins_a_new_history_in_the_same_attempt():
    meta = {"trigger": "auto", "preTokens": 9}
    boundary = other("system", "b", None, subtype="compact_boundary", compactMetadata=meta)
    calls, fates = read(
        user("u", None, "hi"),
        answer("a", "u", "m1", text("hello")),
        boundary | {"logicalParentUuid": "a"},
        user("s", "b", "summary", isCompactSummary=True, isVisibleInTranscriptOnly=True),
        user("v", "s", "go on"),
        answer("c", "v", "m2", text("yes")),
    )
    assert state(calls[1]) == ["summary", "go on"]
    assert calls[1].follows is calls[0]
    assert calls[1].metadata["observation"][0]["compactMetadata"] == meta
    assert fates == {2: ("ignored", "not_sent")}


def test_compaction_after_going_back_follows_the_line_that_it_names():
    calls, _ = read(
        answer("a", None, "m1", text("hello")),
        answer("x", "a", "m2", text("dead")),
        other("system", "b", None, subtype="compact_boundary", logicalParentUuid="a"),
        user("s", "b", "summary", isCompactSummary=True),
        answer("c", "s", "m3", text("yes")),
    )
    assert calls[2].follows is calls[0]


def test_compaction_whose_parent_was_never_written_goes_by_the_order_of_lines():
    calls, _ = read(
        answer("a", None, "m1", text("hello")),
        other("system", "b", None, subtype="compact_boundary", logicalParentUuid="gone"),
        user("s", "gone too", "summary", isCompactSummary=True),
        answer("c", "s", "m2", text("yes")),
    )
    assert state(calls[1]) == ["summary"]
    assert calls[1].follows is calls[0]
    assert calls[1].warnings == ["parent_missing"]


def test_summary_without_a_boundary_begins_a_new_history():
    calls, _ = read(
        answer("a", None, "m1", text("hello")),
        user("s", "a", "summary", isCompactSummary=True),
        answer("c", "s", "m2", text("yes")),
    )
    assert state(calls[1]) == ["summary"]
    assert calls[1].follows is calls[0]


def test_segment_that_a_compaction_kept_stands_behind_the_summary():
    segment = {"headUuid": "v", "tailUuid": "c", "anchorUuid": "s"}
    lines = [
        user("u", None, "hi"),
        answer("a", "u", "m1", text("hello")),
        user("v", "a", "kept"),
        answer("c", "v", "m2", text("kept too")),
        other(
            "system",
            "b",
            None,
            subtype="compact_boundary",
            logicalParentUuid="c",
            compactMetadata={"preservedSegment": segment},
        ),
        user("s", "b", "summary", isCompactSummary=True),
    ]
    for parent in ("s", "c"):
        calls, _ = read(*lines, user("w", parent, "go on"), answer("d", "w", "m3", text("yes")))
        assert state(calls[2]) == ["summary", "kept", "kept too", "go on"]
        assert calls[2].follows is calls[1]
    lines[4]["compactMetadata"]["preservedSegment"]["headUuid"] = "gone"
    calls, _ = read(*lines, user("w", "s", "go on"), answer("d", "w", "m3", text("yes")))
    assert state(calls[2]) == ["summary", "go on"]
    assert calls[2].warnings == ["kept_history_missing"]


def test_parent_that_was_never_written_is_the_line_before():
    calls, _ = read(
        user("u", None, "hi"),
        answer("a", "u", "m1", text("hello")),
        user("v", "gone", "on"),
        answer("b", "v", "m2", text("yes")),
    )
    assert state(calls[1]) == ["hi", "hello", "on"]
    assert [call.warnings for call in calls] == [[], ["parent_missing"]]


def test_parent_after_its_child_and_a_circle_of_parents_do_no_harm():
    calls, _ = read(
        answer("b", "v", "m2", text("yes")),
        user("v", "a", "hi"),
        answer("a", None, "m1", text("o")),
    )
    assert [state(call) for call in calls] == [["o", "hi"], []]
    assert calls[0].follows is calls[1]
    calls, _ = read(user("v", "b", "hi"), answer("b", "v", "m2", text("yes")))
    assert state(calls[0]) == ["hi"]
    assert calls[0].warnings == ["parent_cycle"]


def test_line_with_a_known_uuid_is_a_duplicate_unless_it_says_something_else():
    first = answer("a", None, "m1", text("one"))
    calls, fates = read(first, first | {"parentUuid": "gone"}, answer("a", None, "m2", text("two")))
    assert [action(call).content for call in calls] == ["one", "two"]
    assert fates == {1: ("duplicate", "same_uuid")}


def test_copies_with_new_uuids_add_no_step():
    lines = [user("u", None, "hi"), answer("a", "u", "m1", text("hello"))]
    copies = [user("v", None, "hi"), answer("b", "v", "m1", text("hello"))]
    calls, fates = read(*lines, *copies)
    assert [state(call) for call in calls] == [["hi"]]
    assert fates == {2: ("ignored", "dead_branch")}


def test_answers_that_the_client_wrote_are_failed_calls_and_in_no_state():
    failed = answer("e", "u", "x1", text("API Error"), isApiErrorMessage=True)
    synthetic = answer("f", "e", "x2", text("No response requested."))
    synthetic["message"]["model"] = "<synthetic>"
    calls, fates = read(
        user("u", None, "hi"),
        failed,
        synthetic,
        other("system", "g", "f", subtype="api_error", error={}),
        answer("h", "g", "x3"),
        answer("a", "h", "m1", text("hello")),
    )
    assert state(calls[0]) == ["hi"]
    assert fates == {
        1: ("failed_call", "api_error"),
        2: ("failed_call", "api_error"),
        3: ("failed_call", "api_error"),
        4: ("failed_call", "empty_response"),
    }


def test_subagents_without_ids_are_attempts_of_their_own():
    side = {"isSidechain": True}
    calls, _ = read(
        user("u", None, "hi"),
        answer("a", "u", "m1", use("c1"), use("c2")),
        user("p", None, "task one", **side),
        user("q", None, "task two", **side),
        answer("b", "p", "m2", text("one"), **side),
        answer("c", "q", "m3", text("two"), **side),
        user("r", "a", [result("c1"), result("c2")]),
        answer("d", "r", "m4", text("end")),
    )
    assert [call.trajectory_key for call in calls] == ["s1", "s1/p", "s1/q", "s1"]
    assert [call.trajectory_kind for call in calls] == [None, "subagent", "subagent", None]
    assert [call.parent_key for call in calls] == [None, "s1", "s1", None]
    assert [state(call) for call in calls[1:3]] == [["task one"], ["task two"]]
    assert state(calls[3]) == ["hi", "", "c1:done", "c2:done"]
    assert calls[3].follows is calls[0]


def test_subagent_with_an_id_never_continues_the_session_that_called_it():
    agent = {"isSidechain": True, "agentId": "g"}
    calls, _ = read(
        answer("a", None, "m1", use("c1")),
        user("p", "a", "task", **agent),
        answer("b", "p", "m1", text("same id, other thread"), **agent),
    )
    assert calls[1].trajectory_key == "s1/g"
    assert state(calls[1]) == ["task"]
    assert calls[1].follows is None


def test_resumed_session_follows_the_one_it_continues():
    new = {"sessionId": "s2"}
    calls, _ = read(
        user("u", None, "hi"),
        answer("a", "u", "m1", text("hello")),
        user("v", "a", "on", **new),
        answer("b", "v", "m2", text("yes"), **new),
    )
    assert [call.trajectory_key for call in calls] == ["s1", "s2"]
    assert calls[1].follows is calls[0]
    assert state(calls[1]) == ["hi", "hello", "on"]


def test_sessions_that_share_a_file_are_told_apart_without_parents():
    def line(kind, session, content):
        return {"type": kind, "sessionId": session, "message": {"content": content}}

    calls, _ = read(
        line("user", "s1", "one"),
        line("user", "s2", "two"),
        line("assistant", "s1", [text("a")]),
        line("assistant", "s2", "b"),
        line("assistant", "s1", "c"),
    )
    assert [state(call) for call in calls] == [["one"], ["two"], ["one", "a"]]
    assert calls[2].follows is calls[0]
    assert [call.native_id for call in calls] == [None, None, None]


def test_stream_json_is_read_with_its_init_and_result():
    def line(kind, content, parent=None, **message):
        value = {"content": content, **message}
        return {"type": kind, "session_id": "s", "message": value, "parent_tool_use_id": parent}

    init = {"type": "system", "subtype": "init", "session_id": "s", "tools": ["Bash"]}
    closing = {"type": "result", "subtype": "success", "session_id": "s", "total_cost_usd": 0.5}
    calls, fates = read(
        init,
        line("assistant", [use("c1")], id="m1"),
        line("user", "task", parent="c1"),
        line("assistant", [text("sub")], parent="c1", id="m2"),
        line("user", [result("c1")]),
        line("assistant", [text("end")], id="m3"),
        closing,
    )
    assert [call.trajectory_key for call in calls] == ["s", "s/c1", "s"]
    assert state(calls[1]) == ["task"]
    assert state(calls[2]) == ["", "c1:done"]
    assert calls[0].metadata["observation"][0]["tools"] == ["Bash"]
    assert "result" not in calls[0].metadata
    assert calls[2].metadata["result"]["total_cost_usd"] == 0.5
    assert (calls[2].is_last, calls[2].terminated, calls[2].truncated) == (True, True, None)
    assert calls[0].is_last is None
    assert fates == {0: ("ignored", "not_sent"), 6: ("ignored", "not_sent")}
    calls, _ = read(line("assistant", "a"), closing | {"subtype": "error_max_turns"})
    assert (calls[0].terminated, calls[0].truncated) == (None, True)


def test_web_document_gives_its_calls_by_number():
    lines = [
        {"type": "user", "message": {"role": "user", "content": "hi"}},
        {"type": "assistant", "message": {"role": "assistant", "content": [text("a")]}},
        {"type": "assistant", "message": {"role": "assistant", "content": [text("b")]}},
    ]
    calls, fates = read({"loglines": lines})
    assert [(call.record, call.ordinal) for call in calls] == [(0, 0), (0, 1)]
    assert state(calls[1]) == ["hi", "a"]
    assert fates == {}
    assert read({"loglines": []}) == ([], {0: ("rejected", "empty_trajectory")})


def test_finish_reason_without_a_logged_one_is_what_the_log_shows():
    calls, _ = read(
        answer("a", None, "m1", use("c1")),
        user("r", "a", [result("c1")]),
        answer("b", "r", "m2", text("half")),
        user("i", "b", [text("[Request interrupted by user]")]),
        answer("c", "i", "m3", text("whole")),
        answer("d", "c", "m4", {"type": "thinking", "thinking": "", "signature": "s"}),
        answer("e", "d", "m5", use("c5"), stop="max_tokens"),
    )
    assert [finish(c) for c in calls] == ["tool_calls", "aborted", "unknown", "aborted", "length"]
    assert calls[4].choices[0].finish_reason_raw == "max_tokens"
    assert calls[3].warnings == ["reasoning_hidden"]


@pytest.mark.parametrize(
    ("logged", "named"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "unknown"),
    ],
)
def test_finish_reason_is_named_in_our_words(logged, named):
    [call], _ = read(answer("a", None, "m1", text("hi"), stop=logged))
    assert (finish(call), call.choices[0].finish_reason_raw) == (named, logged)


def test_attachments_count_where_they_were_sent_and_their_text_is_logged():
    def attachment(uuid, parent, kind, **rest):
        return other("attachment", uuid, parent, attachment={"type": kind, **rest})

    calls, fates = read(
        user("u", None, "hi"),
        attachment("h", "u", "hook_success", hookEvent="UserPromptSubmit", content="sent"),
        attachment("i", "h", "hook_success", hookEvent="Stop", content="not sent"),
        attachment("j", "i", "task_reminder", content=[{"id": "1"}]),
        attachment("k", "j", "file", content={"type": "text", "content": "of a file"}),
        other("system", "l", "k", subtype="local_command", content="/cost"),
        answer("a", "l", "m1", text("hello")),
        answer("b", "a", "m2", text("again")),
    )
    assert state(calls[0]) == ["hi", "sent", "of a file", "/cost"]
    assert [call.warnings for call in calls] == [["attachment_left_out"], []]
    assert fates == {2: ("ignored", "not_sent"), 3: ("ignored", "attachment_not_text")}


def test_other_lines_are_counted_and_a_session_without_an_answer_is_rejected():
    assert read(
        {"type": "summary", "summary": "s", "leafUuid": "z"},
        {"type": "brand-new", "sessionId": "s1"},
        user("u", None, "hi"),
        {"type": "user", "sessionId": "s1", "message": "broken"},
        user("v", "u", "hello?"),
    ) == (
        [],
        {
            0: ("ignored", "not_sent"),
            1: ("ignored", "unknown_type"),
            2: ("rejected", "empty_trajectory"),
            3: ("rejected", "bad_record"),
            4: ("ignored", "no_answer"),
        },
    )


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (user("u", None, "hi"), True),
        ({"type": "assistant", "message": {"content": []}}, True),
        ({"loglines": []}, True),
        ({"type": "summary", "leafUuid": "x", "summary": "s"}, True),
        ({"type": "file-history-snapshot", "messageId": "x"}, True),
        ({"type": "system", "subtype": "init", "session_id": "s"}, True),
        ({"type": "agent.start", "sessionKey": "k", "agentId": "main"}, False),
        ({"type": "message", "message": {"role": "user", "content": "hi"}}, False),
        ({"messages": [{"role": "user", "content": "hi"}]}, False),
        ({"sessionId": "s", "projectHash": "h"}, False),
    ],
)
def test_why_not_knows_its_lines(record, fits):
    assert (claude_code.why_not(record) is None) == fits


HOSTILE = ("bom_crlf", "garbage_and", "replayed_lines", "truncated_last", "two_sessions")
TRAJECTORIES = {
    # the one line of a file without sessionId is an attempt too
    "claude-code/agentsview/truncated.jsonl": 1,
    # a subagent is an attempt of its own, never part of its parent's (FORMATS.md 4)
    "claude-code/claude-code-log/sidechain.jsonl": 2,
}
INCOMPLETE = {
    "claude-code/claude-code-log/dedup_main.jsonl": {"parent_missing"},
    "claude-code/claude-code-log/sidechain.jsonl": {"parent_missing", "tool_result_missing"},
}


def load(path):
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    records, num_bad = {}, 0
    for ordinal, line in enumerate(data.split(b"\n")):
        if content := line.strip(b"\r\0 \t"):
            try:
                records[ordinal] = json.loads(content)
            except ValueError:
                num_bad += 1
    return records, num_bad


@pytest.mark.parametrize(
    "row",
    expected_rows("claude-code", *(f"hostile-derived/{name}" for name in HOSTILE)),
    ids=lambda row: row["path"],
)
def test_corpus_agrees(row):
    records, num_bad = load(shared(*row["path"].split("/")))
    session = claude_code.session(records, Context())
    calls, path = session.calls, row["path"]
    assert len(calls) == int(row["llm_steps"])
    assert len({call.trajectory_key for call in calls}) == TRAJECTORIES.get(
        path, int(row["trajectories"])
    )
    assert session.fates.keys() <= records.keys()
    assert {call.record for call in calls}.isdisjoint(session.fates)
    assert f"bad {num_bad}" in row["notes"]
    # every state but those with a hole in the log is one that the API would take
    breaks = {"parent_missing", "parent_cycle", "tool_result_missing"}
    found = breaks & {code for call in calls for code in call.warnings}
    assert found == INCOMPLETE.get(path, set())
    for call in calls:
        if call.follows is not None and "compaction" not in path:
            before = call.follows
            assert call.state.after()[: before.state.depth] == before.state.after()
            assert call.state.after()[before.state.depth] is before.choices[0].action


def test_corpus_replayed_lines_are_duplicates():
    records, _ = load(shared("hostile-derived", "replayed_lines_same_uuid.jsonl"))
    session = claude_code.session(records, Context())
    assert [fate.reason for fate in session.fates.values()].count("same_uuid") == 20


def test_corpus_web_export_is_read():
    document = json.loads(shared("claude-code", "simonw", "sample_session.json").read_bytes())
    calls, fates = read(document)
    assert (len(calls), fates) == (15, {})
    assert len(state(calls[13])) == 2  # the summary and the next prompt
