import json

import pytest
from expected_counts import expected

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import swe_agent
from clawcli.messages import text_of

SYSTEM = {"role": "system", "content": "S", "agent": "main", "message_type": "system_prompt"}
TASK = {"role": "user", "content": "task", "agent": "main", "message_type": "observation"}


def answer(text, action="", **more):
    return {"role": "assistant", "content": text, "action": action, "agent": "main", **more}


def shown(text, **more):
    return {"role": "user", "content": text, "agent": "main", **more}


def step(response, action="", observation="", **more):
    return {"response": response, "action": action, "observation": observation, **more}


def traj(steps, history, **more):
    return {"environment": "e", "trajectory": steps, "history": history, "info": {}, **more}


def calls(steps, history=(), path="runs/repo-7.traj", **more):
    return read(traj(steps, list(history), **more), path)


def read(record, path="runs/repo-7.traj"):
    assert swe_agent.why_not(record) is None
    return swe_agent.calls(json.dumps(record).encode(), Context(path=path))


def config(**agent):
    return {"agent": agent, "problem_statement": {"id": "task-1"}}


def said(call):
    return [(item.message.role, text_of(item.message)) for item in call.state.after()]


def test_corpus_counts_agree_with_the_independent_ones():
    for path, trajectories, steps in expected("swe-agent"):
        found = swe_agent.calls(path.read_bytes(), Context(path=str(path)))
        assert (path.name, len(found)) == (path.name, steps)
        roots = [call for call in found if call.follows is None]
        assert len(roots) == trajectories
        assert [call.choices[0].action.message.role for call in found] == ["assistant"] * steps
        assert found[-1].terminated is True


def test_corpus_observations_keep_their_carriage_returns():
    (path,) = [p for p, *_ in expected("swe-agent") if p.name == "marshmallow_fc.traj"]
    found = swe_agent.calls(path.read_bytes(), Context(path=str(path)))
    assert "\r\n" in found[1].state.after()[-1].message.content


def test_calls_without_queries_rebuild_the_state_from_history():
    history = [SYSTEM, TASK, answer("a", "ls"), shown("x"), answer("b", "submit"), shown("end")]
    first, second = calls([step("a", "ls"), step("b", "submit")], history)
    assert first.system == second.system == "S"
    assert said(first) == [("user", "task")]
    assert said(second) == [("user", "task"), ("assistant", "a"), ("user", "x")]
    assert (second.state_kind, second.is_cut, second.follows) == ("reconstructed", True, first)
    assert [m.content for m in second.final_observation] == ["end"]


def test_calls_demonstrations_are_state_and_no_steps():
    demo = [answer("demo", "ls", is_demo=True), shown("demo out", is_demo=True)]
    (call,) = calls([step("a", "ls")], [SYSTEM, *demo, TASK, answer("a", "ls")])
    assert said(call) == [("assistant", "demo"), ("user", "demo out"), ("user", "task")]


def test_calls_messages_of_another_agent_are_not_in_the_state():
    other = {"role": "user", "content": "other", "agent": "helper"}
    (call,) = calls([step("a")], [SYSTEM, other, TASK, answer("a")])
    assert said(call) == [("user", "task")]
    assert call.agent == "main"


def test_calls_query_is_the_exact_state_and_equal_messages_are_one():
    cached = {**TASK, "content": [{"type": "text", "text": "task", "cache_control": {}}]}
    steps = [
        step("a", "ls", query=[SYSTEM, TASK]),
        step("b", "cat", query=[SYSTEM, cached, answer("a", "ls"), shown("elided")]),
    ]
    history = [SYSTEM, TASK, answer("a", "ls"), shown("whole"), answer("b", "cat")]
    first, second = calls(steps, history)
    assert said(second) == [("user", "task"), ("assistant", "a"), ("user", "elided")]
    assert first.state_kind == second.state_kind == "full"
    assert second.state.parent.parent is first.state


def test_calls_query_where_tools_were_called_is_partial_without_their_schemas():
    asked = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
    history = [SYSTEM, TASK, answer("a", "ls", tool_calls=asked)]
    (call,) = calls([step("a", "ls", query=[SYSTEM, TASK])], history)
    assert (call.state_kind, call.tools) == ("partial", None)
    assert call.choices[0].action.message.tool_calls[0].id == "c"


def test_calls_without_function_calling_no_tools_were_sent():
    agent = {"tools": {"parse_function": {"type": "thought_action"}}}
    (call,) = calls([step("a")], [TASK, answer("a")], replay_config=config(**agent))
    assert call.tools == "[]"


def test_calls_messages_of_a_step_are_the_state_of_the_next():
    elided = [SYSTEM, TASK, answer("a", "ls"), shown("elided")]
    history = [SYSTEM, TASK, answer("a", "ls"), shown("whole"), answer("b", "cat")]
    first, second = calls([step("a", "ls", messages=elided), step("b", "cat")], history)
    assert (said(first), first.state_kind) == ([("user", "task")], "reconstructed")
    assert said(second)[-1] == ("user", "elided")
    assert second.state_kind == "full"
    # the complaint about a refused answer stands in no messages
    steps = [step("a", "ls", messages=elided), step("bad", messages=elided), step("b", "cat")]
    assert [c.state_kind for c in calls(steps, history)] == ["reconstructed", "full", "partial"]


def test_calls_refused_answers_are_steps_that_history_does_not_show():
    complaint = [SYSTEM, TASK, answer("bad"), shown("no command")]
    steps = [step("bad", query=[SYSTEM, TASK]), step("good", "ls", query=complaint)]
    refused, good = calls(steps, [SYSTEM, TASK, answer("good", "ls"), shown("x")])
    assert text_of(refused.choices[0].action.message) == "bad"
    assert (refused.warnings, refused.loss_weight) == (["answer_refused"], 1.0)
    assert said(good) == [("user", "task"), ("assistant", "bad"), ("user", "no command")]
    assert (good.warnings, good.follows) == ([], refused)


def test_calls_refused_answer_without_queries_leaves_the_next_state_partial():
    history = [SYSTEM, TASK, answer("good", "ls"), shown("x"), answer("end", "submit")]
    found = calls([step("bad"), step("good", "ls"), step("end", "submit")], history)
    assert [call.state_kind for call in found] == ["reconstructed", "partial", "reconstructed"]
    assert said(found[0]) == said(found[1]) == [("user", "task")]


def test_calls_refused_answer_whose_tool_calls_are_lost_is_not_trained():
    asked = [{"id": "c", "function": {"name": "bash", "arguments": "{}"}}]
    history = [TASK, answer("good", "ls", tool_calls=asked)]
    refused, good = calls([step("bad", query=[TASK]), step("good", "ls", query=[TASK])], history)
    assert refused.warnings == ["answer_refused", "tool_calls_not_logged"]
    assert (refused.loss_weight, good.loss_weight) == (0.0, 1.0)


def test_calls_answer_in_history_alone_is_a_step_too():
    history = [TASK, answer("lost"), shown("format error"), answer("b", "ls")]
    lost, second = calls([step("b", "ls")], history)
    assert text_of(lost.choices[0].action.message) == "lost"
    assert said(second) == [("user", "task"), ("assistant", "lost"), ("user", "format error")]


@pytest.mark.parametrize(
    "last",
    [
        step("Exit due to cost limit", thought="Exit due to cost limit", query=[{}]),
        step("Exit due to cost limit", thought="Exit due to cost limit"),
        step("", "exit_cost", thought="Exit due to cost limit"),
    ],
)
def test_calls_words_of_an_agent_that_gave_up_are_no_step(last):
    history = [TASK, answer("a", "ls"), shown("x"), answer(last["response"], last["action"])]
    info = {"exit_status": "submitted (exit_cost)"}
    (call,) = calls([step("a", "ls"), last], history, info=info)
    assert (call.truncated, call.terminated, call.is_last) == (True, None, True)
    assert [m.content for m in call.final_observation] == ["x"]
    assert call.metadata["exit"]["thought"] == "Exit due to cost limit"


@pytest.mark.parametrize(
    ("status", "terminated", "truncated"),
    [
        ("submitted", True, None),
        ("exit_command", True, None),
        ("exit_context", None, True),
        ("exit_api", None, None),
    ],
)
def test_calls_exit_status_tells_how_the_attempt_ended(status, terminated, truncated):
    steps = [step("a", "ls"), step("b", "exit")]
    first, last = calls(
        steps, [TASK, answer("a", "ls"), answer("b", "exit")], info={"exit_status": status}
    )
    assert (last.terminated, last.truncated) == (terminated, truncated)
    assert (first.is_last, last.is_last) == (False, True)


def test_calls_unfinished_document_states_no_end():
    (call,) = calls([step("a")], [TASK, answer("a")])
    assert (call.is_last, call.terminated, call.truncated) == (None, None, None)


def test_calls_attempts_are_trajectories_of_one_task_and_their_copy_is_not_read():
    one = traj([step("a")], [TASK, answer("a")], replay_config=json.dumps(config()))
    two = traj([step("b")], [TASK, answer("b")], replay_config=json.dumps(config()))
    record = {**two, "attempts": [one, two], "info": {"best_attempt_idx": 1}}
    found = read(record)
    assert [(c.task_id, c.trial, c.trajectory_key) for c in found] == [
        ("task-1", 0, "task-1/0"),
        ("task-1", 1, "task-1/1"),
    ]
    assert [c.follows for c in found] == [None, None]
    assert [c.ordinal for c in found] == [0, 1]
    assert "run" not in found[0].metadata
    assert found[1].metadata["run"] == {"info": {"best_attempt_idx": 1}}
    assert found[1].metadata["environment"] == "e"


def test_calls_model_and_sampling_come_from_the_replay_config():
    model = {"name": "m", "temperature": 0.5, "top_p": 0.9, "stop": ["x"]}
    more = {"completion_kwargs": {"seed": 7}}
    (call,) = calls([step("a")], [TASK, answer("a")], replay_config=config(model={**model, **more}))
    assert (call.model, call.temperature, call.top_p) == ("m", 0.5, 0.9)
    assert call.sampling == {"stop": ["x"]}
    assert call.metadata["request"] == {"seed": 7}


def test_calls_system_text_that_was_sent_as_user_is_a_user_message():
    (call,) = calls(
        [step("a")],
        [SYSTEM, TASK, answer("a")],
        replay_config=config(model={"convert_system_to_user": True}),
    )
    assert (call.system, said(call)) == ("", [("user", "S"), ("user", "task")])


@pytest.mark.parametrize(
    "agent",
    [
        {"history_processors": [{"type": "cache_control"}, {"type": "last_n_observations"}]},
        {"history_processor": {"type": "last_n_observations", "n": 5}},
    ],
)
def test_calls_history_that_a_processor_edits_is_told_where_it_is_the_state(agent):
    history = [TASK, answer("a")]
    (call,) = calls([step("a")], history, replay_config=config(**agent))
    assert call.warnings == ["history_processed"]
    (call,) = calls([step("a", query=[TASK])], history, replay_config=config(**agent))
    assert call.warnings == []


def test_calls_answer_that_history_changed_is_as_the_model_gave_it():
    history = [TASK, answer("edited", "ls"), shown("x"), answer("b", "cat")]
    first, second = calls([step("given", "ls"), step("b", "cat")], history)
    assert text_of(first.choices[0].action.message) == "given"
    assert ("assistant", "edited") in said(second)


def test_calls_thinking_and_tool_results_are_read():
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]
    asked = [{"id": "c", "function": {"name": "bash", "arguments": "{}"}}]
    result = {"role": "tool", "content": "x", "agent": "main", "tool_call_ids": ["c"]}
    history = [TASK, answer("a", "ls", tool_calls=asked, thinking_blocks=thinking), result]
    found = calls([step("a", "ls"), step("b", "cat")], [*history, answer("b", "cat")])
    assert found[0].choices[0].action.message.reasoning == "hm"
    assert found[1].state.after()[-1].message.tool_call_id == "c"
    (call,) = calls([step("a", "ls", reasoning_content="so")], [TASK, answer("a", "ls")])
    assert call.choices[0].action.message.reasoning == "so"


def test_calls_keep_all_that_has_no_column_and_no_text_twice():
    history = [TASK, answer("go\n```\nls\n```", "ls\n"), shown("out: a.txt (cwd /)")]
    info = {"exit_status": "submitted", "submission": "diff"}
    first = step(
        "go\n```\nls\n```", "ls\n", "a.txt", thought="go\n", execution_time=0.5, state="{}"
    )
    (call,) = calls([first], history, info=info)
    assert call.metadata == {
        "execution_time": 0.5,
        "state": "{}",
        "environment": "e",
        "info": info,
    }
    history += [answer("b", "cat"), shown("unseen")]
    steps = [{**first, "observation": "unseen"}, step("b", "cat")]
    assert calls(steps, history, info=info)[0].metadata["observation"] == "unseen"


@pytest.mark.parametrize(
    ("path", "task_id"),
    [("a/repo-7.traj", "repo-7"), ("a/repo-7.traj.gz", "repo-7"), ("-", None), ("x.json", None)],
)
def test_calls_task_is_named_by_the_file_where_no_config_names_it(path, task_id):
    (call,) = calls([step("a")], [TASK, answer("a")], path=path)
    assert call.task_id == task_id


def test_calls_damaged_replay_config_does_not_cost_the_steps():
    (call,) = calls([step("a")], [TASK, answer("a")], replay_config='{"agent": {"mo')
    assert (call.model, call.task_id) == (None, "repo-7")


def test_calls_document_without_an_answer_is_rejected_with_its_task():
    with pytest.raises(Fate, match="no call of a model") as caught:
        calls([], [SYSTEM, TASK])
    assert (caught.value.reason, caught.value.known) == ("empty_trajectory", {"task_id": "repo-7"})


def test_why_not_other_documents_are_refused_with_the_reason():
    assert swe_agent.why_not({"trajectory": []}) == "no list history"
    assert swe_agent.why_not({"messages": []}) == "no list trajectory and no list history"
    assert swe_agent.why_not({"attempts": []}) == "attempts is empty"
    assert swe_agent.why_not({"attempts": [traj([], [])]}) is None
