import json
import uuid

import pytest
from conftest import shared
from expected_counts import expected_rows

from clawcli.errors import LogFormatError
from clawcli.ingest import formats
from clawcli.ingest.calls import Context
from clawcli.ingest.formats import codex

BEGAN = 1767225600.0  # 2026-01-01T00:00:00Z


def stamp(at):
    """ISO time of so many seconds after BEGAN."""
    return f"2026-01-01T00:{int(at) // 60:02}:{at % 60:06.3f}Z"


def line(kind, payload, at=0.0):
    return {"timestamp": stamp(at), "type": kind, "payload": payload}


def meta(name="t1", at=0.0, **values):
    return line("session_meta", {"id": name, "timestamp": stamp(at), **values}, at)


def item(kind, at=0.0, **values):
    return line("response_item", {"type": kind, **values}, at)


def said(role, text, at=0.0):
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", at, role=role, content=[{"type": kind, "text": text}])


def call(name, at=0.0, arguments="{}"):
    return item("function_call", at, name="shell", arguments=arguments, call_id=name)


def output(name, text="done", at=0.0):
    return item("function_call_output", at, call_id=name, output=text)


def event(kind, at=0.0, **values):
    return line("event_msg", {"type": kind, **values}, at)


def tokens(total, **last):
    last = {"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 5, **last}
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": last}
    return event("token_count", info=info)


def turn_id(at):
    """A UUIDv7 of so many seconds after BEGAN."""
    return str(uuid.UUID(int=(int((BEGAN + at) * 1000) << 80) | (7 << 76) | (2 << 62)))


def context(at=0.0, **values):
    return line("turn_context", {"model": "m", **values}, at)


def read(*lines):
    session = codex.session(dict(enumerate(lines)), Context())
    return session.calls, {r: (fate.fate, fate.reason) for r, fate in session.fates.items()}


def state(found):
    return [item.message.content for item in found.state.after()]


def actions(calls):
    return [
        [c.id for c in a.tool_calls or ()] or a.content
        for a in (found.choices[0].action.message for found in calls)
    ]


def finish(calls):
    return [found.choices[0].finish_reason for found in calls]


def test_a_run_of_written_items_is_one_call():
    calls, fates = read(
        meta(cwd="/x", base_instructions={"text": "be brief"}),
        context(effort="high"),
        said("user", "hi", at=1),
        item("reasoning", 2, summary=[{"type": "summary_text", "text": "sum"}], id="rs"),
        said("assistant", "looking", at=3),
        call("c1", at=4),
        call("c2", at=5),
        tokens(100, reasoning_output_tokens=3),
        output("c1", '{"output":"a","metadata":{"exit_code":0}}', at=6),
        output("c2", "b", at=7),
        said("assistant", "done", at=8),
        tokens(200),
        event("task_complete"),
    )
    first, second = calls
    assert actions(calls) == [["c1", "c2"], "done"]
    assert first.choices[0].action.message.content == "looking"
    assert first.choices[0].action.message.reasoning == "sum"
    assert first.warnings == ["reasoning_summary"]
    assert state(second)[2:] == ['{"output":"a","metadata":{"exit_code":0}}', "b"]
    assert second.follows is first
    assert finish(calls) == ["tool_calls", "stop"]
    assert (first.input_tokens, first.cached_tokens, first.output_tokens) == (100, 60, 5)
    assert first.reasoning_tokens == 3
    assert (first.started_at, first.ended_at) == (BEGAN + 2, BEGAN + 5)
    assert (first.system, first.model, first.policy) == ("be brief", "m", "m")
    assert (first.trajectory_key, first.key_is_global, first.state_kind) == ("t1", True, "partial")
    assert first.metadata["session"]["cwd"] == "/x"
    assert first.metadata["turn_context"]["effort"] == "high"
    assert first.metadata["items"][0] == {"type": "reasoning", "id": "rs"}
    assert "session" not in second.metadata
    assert set(fates) == {0, 1, 7, 11, 12}


def test_token_count_closes_a_response_that_an_early_output_split():
    split = [said("user", "hi"), call("c1"), output("c1"), call("c2")]
    calls, fates = read(
        meta(), *split, tokens(100), output("c2"), said("assistant", "end"), tokens(200)
    )
    assert actions(calls) == [["c1", "c2"], "end"]
    assert state(calls[1])[2:] == ["done", "done"]
    assert calls[1].warnings == []
    assert set(fates) == {0, 5, 8}


def test_runs_stay_apart_where_some_response_has_no_token_count():
    split = [call("c1"), output("c1"), call("c2")]
    rest = [output("c2"), said("assistant", "end"), event("task_complete")]
    calls, _ = read(meta(), *split, tokens(100), *rest)
    assert actions(calls) == [["c1"], ["c2"], "end"]
    assert [found.output_tokens for found in calls] == [None, 5, None]
    # the last one of a session that was cut off need not have its count yet
    calls, _ = read(meta(), *split, tokens(100), *rest[:-1])
    assert actions(calls) == [["c1", "c2"], "end"]


def test_token_count_before_its_response_and_repeats_are_understood():
    calls, _ = read(
        meta(),
        tokens(100, output_tokens=1),
        call("c1"),
        output("c1"),
        tokens(200, output_tokens=2),
        tokens(200, output_tokens=2),
        event("token_count", info=None),
        said("assistant", "end"),
    )
    assert [found.output_tokens for found in calls] == [1, 2]


def test_texts_that_are_stored_twice_are_read_once():
    calls, fates = read(
        meta(),
        event("user_message", message="hi"),
        said("user", "hi"),
        said("assistant", "hello"),
        event("agent_message", message="hello"),
    )
    assert (state(calls[0]), actions(calls)) == (["hi"], ["hello"])
    assert fates[1] == fates[4] == ("ignored", "not_sent")


def test_thoughts_that_only_an_event_holds_are_the_reasoning():
    hidden = item("reasoning", summary=[], content=None, encrypted_content="gAAA")
    calls, _ = read(
        meta(),
        hidden,
        event("agent_reasoning_raw_content", text="plan"),
        said("assistant", "a"),
        said("user", "on"),
        hidden,
        said("assistant", "b"),
    )
    assert [c.choices[0].action.message.reasoning for c in calls] == ["plan", None]
    assert [found.warnings for found in calls] == [[], ["reasoning_hidden"]]
    assert calls[1].metadata["items"][0]["encrypted_content"] == "gAAA"
    both = item("reasoning", content=[{"type": "reasoning_text", "text": "as an item"}])
    calls, _ = read(meta(), both, event("agent_reasoning_raw_content", text="as an event"))
    assert calls[0].choices[0].action.message.reasoning == "as an item"


def test_calls_of_every_kind_become_tool_calls_or_stay_in_the_content():
    patch = "*** Begin Patch"
    calls, _ = read(
        meta(),
        item("custom_tool_call", name="apply_patch", input=patch, call_id="p"),
        item("local_shell_call", call_id="l", action={"type": "exec", "command": ["ls"]}),
        item("tool_search_call", call_id="s", arguments={"query": "x"}),
        item("tool_call", function={"name": "run"}, arguments={"a": 1}),
        item("web_search_call", id="w", action={"query": "y"}),
        item("custom_tool_call_output", call_id="p", output={"content": "ok", "success": True}),
        item("local_shell_call_output", call_id="l", output="a.txt"),
        item("tool_search_output", call_id="s", tools=[{"name": "t"}]),
        item("tool_result", name="run", result={"stdout": "1"}),
        item("ghost_snapshot", ghost_commit={}),
        item("agent_message", author="other", content=[{"type": "input_text", "text": "hey"}]),
        said("assistant", "end"),
    )
    action = calls[0].choices[0].action.message
    assert [(c.name, c.arguments) for c in action.tool_calls] == [
        ("apply_patch", patch),
        ("local_shell", '{"command": ["ls"], "type": "exec"}'),
        ("tool_search", '{"query": "x"}'),
        ("run", '{"a": 1}'),
    ]
    assert json.loads(action.parts)[0]["type"] == "web_search_call"
    assert calls[0].warnings == []
    told = [item.message for item in calls[1].state.after(1)]
    assert [m.role for m in told] == ["tool"] * 4 + ["user"]
    assert [m.content for m in told] == ["ok", "a.txt", None, None, "hey"]
    assert json.loads(told[2].parts) == [{"name": "t"}]
    assert told[4].name == "other"
    notes = calls[1].metadata["observation"]
    assert notes[0] == {"type": "tool_result", "name": "run"}
    assert notes[1] == {"type": "agent_message", "author": "other"}


def test_leading_developer_text_is_the_system_where_no_other_is_logged():
    calls, fates = read(meta(), said("developer", "rules"), said("user", "hi"), call("c"))
    assert (calls[0].system, state(calls[0])) == ("rules", ["hi"])
    assert set(fates) == {0}
    calls, _ = read(meta(base_instructions="base"), said("developer", "rules"), call("c"))
    assert (calls[0].system, state(calls[0])) == ("base", ["rules"])


def test_compaction_begins_a_new_history():
    kept = [said("user", "kept")["payload"], said("assistant", "old")["payload"]]
    lines = [meta(), said("user", "hi"), said("assistant", "hello")]
    calls, _ = read(
        *lines,
        line("compacted", {"message": "", "replacement_history": kept}),
        said("user", "on"),
        said("assistant", "end"),
    )
    assert state(calls[1]) == ["kept", "old", "on"]
    assert (calls[1].follows, calls[1].warnings) == (calls[0], [])
    calls, _ = read(
        *lines,
        line("compacted", {"message": "summary"}),
        said("user", "on"),
        said("assistant", "end"),
        said("assistant", "more"),
    )
    assert state(calls[1]) == ["hi", "summary", "on"]
    assert calls[1].warnings == ["compaction_rebuilt"]


def test_rolled_back_turns_are_a_dead_branch():
    def turn(text):
        return [said("user", text), said("assistant", f"re {text}")]

    calls, fates = read(
        meta(),
        said("user", "<environment_context>"),
        *turn("one"),
        *turn("two"),
        *turn("three"),
        event("thread_rolled_back", num_turns=2),
        *turn("other"),
    )
    assert state(calls[3]) == ["<environment_context>", "one", "re one", "other"]
    assert calls[3].follows is calls[0]
    assert state(calls[2])[-2:] == ["re two", "three"]
    assert set(fates) == {0, 8}


def test_finish_reason_is_what_the_events_show():
    calls, fates = read(
        meta(),
        said("assistant", "cut"),
        event("turn_aborted", reason="interrupted"),
        said("assistant", "broken"),
        event("error", message="e"),
        item("reasoning", encrypted_content="x"),
        said("user", "on"),
        said("assistant", "open"),
        said("user", "on"),
        item("message", role="assistant", content=[{"type": "refusal", "refusal": "no"}]),
    )
    assert finish(calls) == ["aborted", "error", "aborted", "unknown", "refusal"]
    assert fates[4] == ("failed_call", "api_error")


def test_fork_takes_the_history_of_its_parent_as_context():
    calls, fates = read(
        meta("child", at=60, forked_from_id="parent"),
        meta("parent", at=60),
        context(60, turn_id=turn_id(1)),
        said("user", "hi", at=60),
        said("assistant", "from the parent", at=60),
        call("c0", at=60),
        output("c0", at=60),
        event("task_started", at=60.1, turn_id=turn_id(60.1)),
        context(60.1, turn_id=turn_id(60.1)),
        said("user", "go on", at=60.1),
        said("assistant", "own", at=60.2),
    )
    assert actions(calls) == ["own"]
    assert state(calls[0]) == ["hi", "from the parent", "done", "go on"]
    assert calls[0].trajectory_key == "child"
    assert (calls[0].trajectory_kind, calls[0].parent_key) == (None, None)
    assert calls[0].warnings == ["copied_context"]
    assert calls[0].follows is None
    assert set(fates) == {0, 1, 2, 7, 8}


@pytest.mark.parametrize("last", ["2026-01-01T00:01:02.000Z", None])
def test_fork_without_times_in_its_turn_ids_copies_what_was_written_at_once(last):
    own = said("assistant", "own") | {"timestamp": last}
    calls, _ = read(
        meta("child", at=60, parent_thread_id="parent"),
        said("user", "hi", at=60.1),
        said("assistant", "from the parent", at=60.1),
        said("user", "go on", at=60.2),
        own,
    )
    assert actions(calls) == ["own"]


def test_fork_without_a_turn_of_its_own_holds_no_step():
    calls, fates = read(
        meta("child", at=60, forked_from_id="parent"),
        context(60, turn_id=turn_id(1)),
        said("user", "hi", at=60),
        said("assistant", "from the parent", at=60),
    )
    assert calls == []
    assert fates[2] == ("rejected", "empty_trajectory")
    assert fates[3] == ("ignored", "no_answer")


def test_subagent_is_told_from_its_parent():
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}}
    answer = said("assistant", "own", at=9)
    calls, _ = read(meta("child", source=spawned), said("user", "task", at=0.1), answer)
    assert (calls[0].trajectory_kind, calls[0].parent_key) == ("subagent", "p")
    assert (calls[0].step_kind, calls[0].warnings) == ("policy", [])
    calls, _ = read(meta("child", source={"subagent": "compact"}), answer)
    assert calls[0].step_kind == "compaction"


def test_subagent_whose_lines_have_one_time_holds_steps():
    spawned = {"subagent": {"other": "guardian"}}
    calls, _ = read(meta("child", source=spawned), said("user", "task"), said("assistant", "own"))
    assert actions(calls) == ["own"]


def test_forks_in_one_file_are_told_apart_by_their_age():
    calls, _ = read(
        meta("one", at=60, forked_from_id="parent"),
        meta("parent", at=0),
        said("assistant", "own", at=62),
        meta("two", at=120, forked_from_id="parent"),
        meta("parent", at=0),
        said("assistant", "copied", at=120),
        said("user", "go on", at=130),
        said("assistant", "own too", at=131),
    )
    assert [found.trajectory_key for found in calls] == ["one", "two"]
    assert state(calls[1]) == ["copied", "go on"]


def test_records_before_the_first_header_are_kept_apart():
    calls, _ = read(said("assistant", "lost"), meta("t1"), said("assistant", "one"))
    assert [found.trajectory_key for found in calls] == [None, "t1"]
    assert [found.key_is_global for found in calls] == [False, True]


def test_another_header_after_a_turn_begins_another_session():
    calls, _ = read(
        meta("t1"),
        said("assistant", "one"),
        meta("t1"),
        said("assistant", "two"),
        meta("t2", at=1),
        said("assistant", "three"),
        meta("t2", at=1),
        said("assistant", "four"),
    )
    assert [found.trajectory_key for found in calls] == ["t1", "t1", "t2", "t2"]
    assert [found.follows for found in calls] == [None, calls[0], None, calls[2]]


def test_old_rollouts_of_bare_items_are_read():
    header = {"id": "t", "timestamp": stamp(0), "instructions": None, "git": {}}
    state_line = {"record_type": "state"}
    bare = [said("user", "hi"), call("c"), output("c"), said("assistant", "end")]
    lines = [header, state_line, *(each["payload"] for each in bare)]
    assert formats.detect("x.jsonl", lines) is codex
    calls, fates = read(*lines)
    assert actions(calls) == [["c"], "end"]
    assert (calls[0].trajectory_key, calls[0].started_at) == ("t", None)
    assert set(fates) == {0, 1}


def test_records_of_other_kinds_are_counted():
    _, fates = read(meta(), line("world_state", {}), line("brand_new", {}), said("user", "hi"))
    assert fates[1] == ("ignored", "not_sent")
    assert fates[2] == ("ignored", "unknown_type")
    assert fates[3] == ("rejected", "empty_trajectory")


@pytest.mark.parametrize(
    ("record", "fits"),
    [
        (meta(), True),
        (said("user", "hi"), True),
        (context(), True),
        (event("token_count"), True),
        ({"record_type": "state"}, True),
        ({"type": "response_item", "payload": None}, False),
        ({"type": "message", "role": "user", "content": "hi"}, False),
        ({"id": "x", "timestamp": "2026-01-01"}, False),
    ],
)
def test_why_not_knows_its_lines(record, fits):
    assert (codex.why_not(record) is None) == fits


def test_exec_output_is_refused_with_the_reason():
    lines = [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "hi"}},
    ]
    with pytest.raises(LogFormatError, match="codex exec --json logs turns, not calls"):
        formats.detect("x.jsonl", lines)


STEPS = {
    # turn_context and compacted end a response too (FORMATS.md 5); the count goes across them
    "codex/agent-sessions/small.jsonl": 9,
}


def load(path):
    return {n: json.loads(text) for n, text in enumerate(path.read_bytes().splitlines()) if text}


@pytest.mark.parametrize("row", expected_rows("codex"), ids=lambda row: row["path"])
def test_corpus_agrees(row):
    records = load(shared(*row["path"].split("/")))
    assert formats.detect(row["path"], list(records.values())[:20]) is codex
    session = codex.session(records, Context())
    assert len(session.calls) == STEPS.get(row["path"], int(row["llm_steps"]))
    keys = {found.trajectory_key for found in session.calls}
    assert len(keys) == int(row["trajectories"])
    assert session.fates.keys() <= records.keys()
    assert {found.record for found in session.calls}.isdisjoint(session.fates)


def test_corpus_subagent_has_its_parent_and_its_thoughts():
    calls, _ = read(*load(shared("codex", "agentsview", "traex_rollout_subagent.jsonl")).values())
    assert calls[0].choices[0].action.message.reasoning == "Plan the exploration."
    assert {found.trajectory_kind for found in calls} == {"subagent"}
    assert calls[0].parent_key is not None


def test_corpus_bare_items_are_two_steps():
    calls, _ = read(*load(shared("hostile-derived", "codex_legacy_bare_items.jsonl")).values())
    assert len(calls) == 2
