import json

import pytest
from conftest import shared
from expected_counts import expected

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import atif
from clawcli.messages import text_of


def step(source, message="", **more):
    return {"source": source, "message": message, **more}


def called(call_id, name="bash", **arguments):
    return {"tool_call_id": call_id, "function_name": name, "arguments": arguments}


def observed(*results):
    return {"results": [{"content": r} if isinstance(r, str) else r for r in results]}


def document(*steps, agent=None, **more):
    steps = [{"step_id": number, **s} for number, s in enumerate(steps, 1)]
    agent = {"name": "a", "version": "1", **(agent or {})}
    return {"schema_version": "ATIF-v1.7", "agent": agent, "steps": steps, **more}


def calls(*steps, **more):
    return read(document(*steps, **more))


def read(record):
    assert atif.why_not(record) is None
    return atif.calls(json.dumps(record).encode(), Context())


def said(call):
    return [(item.message.role, text_of(item.message)) for item in call.state.after()]


def test_corpus_counts_agree_with_the_independent_ones():
    for path, trajectories, steps in expected("atif"):
        found = atif.calls(path.read_bytes(), Context())
        assert (path.name, len(found)) == (path.name, steps)
        assert len({call.trajectory_key for call in found}) == trajectories
        assert [call.follows for call in found] == [None, *found[:-1]]
        assert all(call.is_cut for call in found)


@pytest.mark.parametrize(
    ("documents", "traces"),
    [
        (["openhands/hello-world.trajectory.json"], "openhands_hello-world"),
        (
            ["openhands/hello-world.trajectory.no_function_calling.json"],
            "openhands_hello-world-no_function_calling",
        ),
        (
            [
                "terminus_2/hello-world-context-summarization-linear-history.trajectory.json",
                "terminus_2/hello-world-context-summarization-linear-history.trajectory.cont-1.json",
            ],
            "terminus_2_hello-world-context-summarization",
        ),
    ],
)
def test_corpus_cuts_are_those_of_harbors_own_traces(documents, traces):
    folder = shared("atif")
    found = [c for d in documents for c in atif.calls((folder / d).read_bytes(), Context())]
    rows = json.loads(shared("sharegpt", "harbor-traces", f"{traces}.traces.json").read_bytes())
    assert len(found) == len(rows)
    for call, row in zip(found, rows, strict=True):
        theirs = row["conversations"]
        whole = [*call.state.after(), call.choices[0].action]
        ours = ([call.system] if call.system else []) + [text_of(item.message) for item in whole]
        assert len(ours) == len(theirs)
        for text, message in zip(ours, theirs, strict=True):
            # they write tool calls below the text; terminal output differs between the two runs
            if message["role"] == "assistant":
                assert message["content"].startswith(text)


def test_calls_first_system_step_is_the_system_text_and_later_ones_are_messages():
    first = step("system", "S", observation=observed("o"))
    (call,) = calls(first, step("user", "u"), step("system", "note"), step("agent"))
    assert call.system == "S"
    assert said(call) == [("user", "o"), ("user", "u"), ("system", "note")]


def test_calls_results_answer_their_tool_calls_by_id_whatever_their_order():
    first = step(
        "agent",
        tool_calls=[called("c1"), called("c2")],
        observation=observed(
            {"source_call_id": "c2", "content": "two"}, {"source_call_id": "c1", "content": "one"}
        ),
    )
    second = calls(step("user", "u"), first, step("agent", "done"))[1]
    answers = [item.message for item in second.state.after()][-2:]
    assert [(m.role, m.tool_call_id, m.content) for m in answers] == [
        ("tool", "c2", "two"),
        ("tool", "c1", "one"),
    ]


def test_calls_results_without_ids_answer_by_position_only_where_counts_agree():
    both = step(
        "agent", tool_calls=[called("c1"), called("c2")], observation=observed("one", "two")
    )
    one = step("agent", tool_calls=[called("c3"), called("c4")], observation=observed("all"))
    last = calls(both, one, step("agent"))[2]
    answers = [i.message for i in last.state.after() if i.message.role == "tool"]
    assert [m.tool_call_id for m in answers] == ["c1", "c2", None]


def test_calls_observation_where_no_tool_was_called_is_a_user_message():
    last = calls(step("agent", "ls", observation=observed("a.txt")), step("agent", "done"))[1]
    assert said(last)[-1] == ("user", "a.txt")


def test_calls_object_arguments_are_a_sorted_dump_and_odd_ones_are_told():
    (call,) = calls(step("agent", tool_calls=[called("c", b=1, a="x")]))
    (asked,) = call.choices[0].action.message.tool_calls
    assert asked.arguments == '{"a": "x", "b": 1}'
    odd = {"tool_call_id": "c", "function_name": "f", "arguments": [1]}
    (call,) = calls(step("agent", tool_calls=[odd]))
    assert call.choices[0].warnings == ["arguments_invalid"]


def test_calls_copied_context_and_dispatches_without_a_model_are_state_and_no_calls():
    (call,) = calls(
        step("user", "u"),
        step("agent", "copied", is_copied_context=True, extra={"note": "n"}),
        step("agent", "routed", llm_call_count=0, observation=observed("r")),
        step("agent", "mine"),
    )
    assert said(call) == [
        ("user", "u"),
        ("assistant", "copied"),
        ("assistant", "routed"),
        ("user", "r"),
    ]
    assert call.metadata["steps_before"][0] == {"step_id": 2, "extra": {"note": "n"}}


def test_calls_several_model_calls_in_one_step_are_one_partial_step_with_a_warning():
    (call,) = calls(step("agent", "a", llm_call_count=3))
    assert (call.state_kind, call.warnings) == ("partial", ["several_llm_calls"])
    assert call.metadata["llm_call_count"] == 3


def test_calls_logged_ids_logprobs_and_usage_come_through():
    metrics = {
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "cost_usd": 0.5,
        "prompt_token_ids": [1, 2, 3, 4],
        "completion_token_ids": [5, 6],
        "logprobs": [-0.25, -0.5],
        "extra": {"reasoning_tokens": 1, "engine": "e"},
    }
    (call,) = calls(step("agent", "a", metrics=metrics, model_name="m"))
    assert (call.prompt_ids, call.choices[0].response_ids) == ([1, 2, 3, 4], [5, 6])
    assert call.choices[0].logprobs == [-0.25, -0.5]
    assert (call.input_tokens, call.output_tokens, call.cached_tokens) == (4, 2, 1)
    assert (call.reasoning_tokens, call.cost_usd, call.model) == (1, 0.5, "m")
    assert call.metadata["metrics"] == {"extra": {"reasoning_tokens": 1, "engine": "e"}}


@pytest.mark.parametrize(
    ("logprobs", "code"),
    [([-0.5], "logprobs_length_mismatch"), ([-0.5, None], "logprobs_not_finite")],
)
def test_calls_logprobs_that_do_not_fit_are_null_and_told(logprobs, code):
    metrics = {"completion_token_ids": [5, 6], "logprobs": logprobs}
    (call,) = calls(step("agent", "a", metrics=metrics))
    assert (call.choices[0].logprobs, call.choices[0].warnings) == (None, [code])


def test_calls_unparsable_timestamp_is_null_told_and_kept():
    (call,) = calls(step("agent", "a", timestamp="yesterday"))
    assert (call.started_at, call.warnings) == (None, ["timestamp_unparsable"])
    assert call.metadata["timestamp"] == "yesterday"
    (call,) = calls(step("agent", "a", timestamp="1970-01-01T00:00:09Z"))
    assert (call.started_at, call.warnings, call.metadata["step_id"]) == (9.0, [], 1)
    assert "timestamp" not in call.metadata


def test_calls_context_that_is_replaced_begins_anew_with_what_replaced_it():
    reset = step(
        "system",
        "compacted",
        observation=observed("summary"),
        extra={"context_management": {"type": "compaction", "boundary": "replace"}},
    )
    first, second = calls(step("user", "u"), step("agent", "a"), reset, step("agent", "b"))
    assert said(second) == [("user", "summary")]
    assert (first.state_kind, second.state_kind) == ("reconstructed", "reconstructed")
    assert (first.warnings, second.warnings) == ([], ["context_reset"])
    assert second.follows is first
    assert second.metadata["steps_before"][0]["message"] == "compacted"


def test_calls_context_changed_in_another_way_keeps_the_state_and_calls_it_partial():
    edit = step("system", "pruned", extra={"context_management": {"boundary": "prune"}})
    first, second = calls(step("user", "u"), step("agent", "a"), edit, step("agent", "b"))
    assert said(second) == [("user", "u"), ("assistant", "a")]
    assert (first.state_kind, second.state_kind) == ("reconstructed", "partial")
    assert second.warnings == ["context_managed"]
    whole = step("system", observation=observed("s"), extra={"context_management": {}})
    third = calls(step("agent", "a"), edit, step("agent", "b"), whole, step("agent", "c"))[2]
    assert (said(third), third.state_kind) == ([("user", "s")], "reconstructed")


def test_calls_handoff_of_terminus_keeps_the_task_and_the_rest_is_partial():
    refs = {"subagent_trajectory_ref": [{"session_id": "s-summary"}]}
    handoff = step("system", "handoff", observation={"results": [refs]})
    steps = [step("user", "task"), step("agent", "a"), handoff, step("user", "answers")]
    second = calls(*steps, step("agent", "b"), agent={"name": "terminus-2"})[1]
    assert said(second) == [("user", "task"), ("user", "answers")]
    assert second.state_kind == "partial"
    assert second.metadata["steps_before"][0]["results"] == [refs]
    # of another agent nothing is known, so only what came after is taken to be there
    assert said(calls(*steps, step("agent", "b"))[1]) == [("user", "answers")]


def test_calls_embedded_subagents_are_trajectories_below_their_parent():
    inner = document(step("user", "sub"), step("agent", "x"), trajectory_id="t1")
    found = calls(step("agent", "main"), session_id="s", subagent_trajectories=[inner])
    assert [(c.trajectory_key, c.parent_key, c.trajectory_kind) for c in found] == [
        ("s", None, None),
        ("s/t1", "s", "subagent"),
    ]
    assert [c.ordinal for c in found] == [0, 1]
    assert found[1].follows is None
    inner = document(step("agent", "x"), session_id="own")
    found = calls(step("agent", "main"), session_id="s", subagent_trajectories=[inner, document()])
    assert [c.trajectory_key for c in found] == ["s", "s/own"]


def test_calls_subagent_in_its_own_file_names_its_parent_even_with_a_shared_session_id():
    agent = {"name": "sub", "extra": {"parent_session_id": "s", "summarization_index": 1}}
    (call,) = calls(step("agent", "x"), session_id="s-summary", agent=agent)
    assert (call.trajectory_key, call.parent_key) == ("s-summary", "s")
    assert (call.trajectory_kind, call.step_kind, call.key_is_global) == (
        "subagent",
        "compaction",
        True,
    )
    (call,) = calls(step("agent", "x"), session_id="s", trajectory_id="t", agent=agent)
    assert (call.trajectory_key, call.parent_key) == ("s/t", "s")


def test_calls_continuation_that_flags_no_copies_counts_only_steps_with_metrics():
    agent = {"extra": {"continuation_index": 2}}
    steps = [step("user", "u"), step("agent", "copy"), step("agent", "b", metrics={"cost_usd": 1})]
    (call,) = calls(*steps, step("user", "v"), session_id="s", agent=agent)
    assert said(call) == [("user", "u"), ("assistant", "copy")]
    assert (call.trajectory_key, call.warnings) == ("s/cont-2", ["continuation"])
    # where no step has metrics they tell nothing
    assert len(calls(step("agent", "a"), step("agent", "b"), agent=agent)) == 2


def test_calls_document_that_goes_on_elsewhere_says_so_on_its_last_step():
    found = calls(step("agent", "a"), step("agent", "b"), continued_trajectory_ref="next.json")
    assert [call.warnings for call in found] == [[], ["continued_elsewhere"]]
    assert found[1].metadata["document"]["continued_trajectory_ref"] == "next.json"


def test_calls_tools_that_were_called_without_schemas_make_states_partial():
    used = step("agent", tool_calls=[called("c")])
    assert {c.state_kind for c in calls(used, step("agent"))} == {"partial"}
    tools = [{"type": "function", "function": {"name": "bash"}}]
    found = calls(used, step("agent"), agent={"tool_definitions": tools})
    assert {c.state_kind for c in found} == {"reconstructed"}
    assert json.loads(found[0].tools) == tools


def test_calls_parts_and_reasoning_are_kept():
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}},
    ]
    (call,) = calls(step("user", parts), step("agent", "a", reasoning_content="hm"))
    assert json.loads(call.state.after()[0].message.parts) == parts
    assert call.choices[0].action.message.reasoning == "hm"


def test_calls_keep_all_that_has_no_column():
    end = step(
        "agent",
        "a",
        tool_calls=[{**called("c"), "extra": {"e": 1}}],
        observation=observed({"source_call_id": "c", "content": "r", "extra": {"e": 2}}),
        reasoning_effort="high",
        extra={"e": 3},
    )
    after = step("user", "bye", timestamp="1970-01-01T00:00:09Z")
    (call,) = calls(end, after, notes="n", final_metrics={"total_steps": 1}, session_id="s")
    assert call.metadata == {
        "step_id": 1,
        "reasoning_effort": "high",
        "extra": {"e": 3},
        "tool_calls": [{"tool_call_id": "c", "extra": {"e": 1}}],
        "results": [{"extra": {"e": 2}}],
        "steps_after": [{"step_id": 2, "timestamp": "1970-01-01T00:00:09Z"}],
        "document": {
            "schema_version": "ATIF-v1.7",
            "notes": "n",
            "final_metrics": {"total_steps": 1},
            "session_id": "s",
        },
        "agent": {"version": "1"},
    }
    assert [m.content for m in call.final_observation] == ["r", "bye"]


def test_calls_duplicate_tool_call_ids_in_a_step_are_told():
    (call,) = calls(step("agent", tool_calls=[called("c"), called("c")]))
    assert call.warnings == ["duplicate_tool_call_id"]


def test_calls_step_of_an_unknown_source_is_a_user_message():
    (call,) = calls(step("human", "u"), step("agent", "a"))
    assert said(call) == [("user", "u")]


def test_calls_document_without_a_call_of_a_model_is_rejected():
    with pytest.raises(Fate, match="no call of a model") as caught:
        calls(step("user", "u"), step("agent", "routed", llm_call_count=0))
    assert (caught.value.fate, caught.value.reason) == ("rejected", "empty_trajectory")


def test_why_not_other_documents_are_refused_with_the_reason():
    assert atif.why_not({"steps": []}) == "no schema_version ATIF-..."
    assert atif.why_not({"schema_version": "ATIF-v1.0"}) == "no list of steps"
