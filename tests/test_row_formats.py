"""Rows of data sets: message transcripts, ShareGPT, and rollouts of verifiers."""

import json

import pytest
from conftest import assistant, shared, system, tool, user

from clawcli.errors import LogFormatError
from clawcli.ingest import formats
from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import messages, sharegpt, transcript, verifiers

SCHEMA = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def read(module, record):
    assert module.why_not(record) is None
    return module.calls(json.dumps(record).encode(), Context())


def contents(call):
    return [item.message.content for item in call.state.after()]


def said(call):
    return call.choices[0].action.message


@pytest.mark.parametrize(
    ("module", "name", "attempts", "steps"),
    [
        (messages, "hf-messages/adp_swe-gym_openhands_sample_raw.json", 5, 88),
        (messages, "hf-messages/adp_swe-smith_sample_raw.json", 5, 116),
        (sharegpt, "sharegpt/adp_openhands_sample_sft.json", 5, 85),
    ],
)
def test_calls_of_real_rows_are_as_many_as_expected(module, name, attempts, steps):
    rows = json.loads(shared(*name.split("/")).read_bytes())
    assert formats.detect(name, rows) is module
    found = [call for row in rows for call in read(module, row)]
    assert (len(rows), len(found), sum(call.is_last for call in found)) == (
        attempts,
        steps,
        attempts,
    )


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("openhands_hello-world-no_function_calling", 2),
        ("openhands_hello-world", 2),
        ("terminus_2_hello-world-context-summarization", 7),
    ],
)
def test_calls_of_real_harbor_traces_are_one_a_row(name, steps):
    rows = json.loads(shared("sharegpt", "harbor-traces", f"{name}.traces.json").read_bytes())
    found = [read(sharegpt, row) for row in rows]
    assert [len(calls) for calls in found] == [1] * steps
    assert len({calls[0].trajectory_key for calls in found}) == 1


def test_detect_real_flattened_few_shot_file_is_refused():
    lines = shared("tau-bench", "few_shot_airline.jsonl").read_text().splitlines()
    with pytest.raises(LogFormatError, match="flattened into one text"):
        formats.detect("few_shot.jsonl", [json.loads(line) for line in lines[:20]])


def test_calls_swe_gym_outcome_is_the_reward_and_stays_in_the_metadata():
    row = {
        "messages": [system("s"), user("u"), assistant("a")],
        "instance_id": "repo-1",
        "run_id": "run_1",
        "resolved": True,
    }
    (call,) = read(messages, row)
    assert (call.task_id, call.trajectory_key, call.key_is_global) == (
        "repo-1",
        "repo-1/run_1",
        False,
    )
    # the tests judged what was left behind; whether a limit ended the attempt is not logged
    assert (call.trajectory_reward, call.terminated) == (1.0, None)
    assert call.metadata == {"run_id": "run_1", "resolved": True}


def test_calls_logged_reward_wins_over_the_outcome():
    row = {"messages": [user("u"), assistant("a")], "resolved": True, "reward": 0.25}
    (call,) = read(messages, row)
    assert (call.trajectory_reward, call.terminated) == (0.25, True)


@pytest.mark.parametrize("resolved", [None, "yes", 1])
def test_calls_outcome_that_is_no_bool_is_no_reward(resolved):
    (call,) = read(messages, {"messages": [user("u"), assistant("a")], "resolved": resolved})
    assert call.trajectory_reward is None


def test_calls_messages_as_json_text_are_read():
    text = json.dumps([user("u"), assistant("a"), user("v"), assistant("b")])
    row = {"messages": text, "tools": json.dumps([SCHEMA])}
    first, second = read(messages, row)
    assert (contents(first), contents(second)) == (["u"], ["u", "a", "v"])
    assert json.loads(first.tools) == [SCHEMA]
    assert second.state_kind == "reconstructed"


def test_calls_weight_of_a_message_is_its_loss_weight():
    turns = [user("u"), {**assistant("a"), "weight": 0}, user("v"), assistant("b")]
    assert [call.loss_weight for call in read(messages, {"messages": turns})] == [0.0, 1.0]


def test_calls_row_without_a_user_message_is_read():
    (call,) = read(messages, {"messages": [system("s"), assistant("a")]})
    assert (call.system, call.num_messages) == ("s", 0)


def test_calls_legacy_functions_become_tools():
    function = {"name": "f", "parameters": {}}
    row = {"messages": [user("u"), assistant("a")], "functions": [function]}
    (call,) = read(messages, row)
    assert json.loads(call.tools) == [{"type": "function", "function": function}]


def test_calls_called_tools_without_schemas_make_the_state_partial():
    turns = [user("u"), assistant("", calls=[("c1", "f", "{}")]), tool("r")]
    (call,) = read(messages, {"messages": turns})
    assert call.state_kind == "partial"
    assert [message.content for message in call.final_observation] == ["r"]


def test_calls_schemas_padded_by_arrow_lose_their_nulls():
    padded = {
        "type": "function",
        "function": {
            "name": "f",
            "strict": None,
            "parameters": {"properties": {"a": {"type": "string", "enum": None}, "b": None}},
        },
    }
    turns = [user("u"), assistant("a"), user("v"), assistant("b")]
    first, second = read(messages, {"messages": turns, "tools": [padded]})
    (tool_,) = json.loads(first.tools)
    assert tool_["function"] == {
        "name": "f",
        "parameters": {"properties": {"a": {"type": "string"}}},
    }
    assert (first.warnings, second.warnings) == (["null_padding_dropped"], [])


def test_tools_json_null_that_a_schema_means_is_kept():
    schema = [{"name": "f", "parameters": {"properties": {"a": {"default": None}}}}]
    assert json.loads(transcript.tools_json(schema)[0]) == schema


def test_calls_nebius_row_reads_turns_target_and_exit():
    row = {
        "instance_id": "repo-1",
        "model_name": "m",
        "target": False,
        "exit_status": "submitted (exit_context)",
        "trajectory": [
            {"role": "system", "system_prompt": "s", "text": None, "mask": True},
            {"role": "user", "text": "u", "mask": True},
            {"role": "ai", "text": "a", "mask": False},
            {"role": "user", "text": "r", "mask": False},
            {"role": "ai", "text": "b", "mask": True},
        ],
    }
    first, last = read(messages, row)
    assert (first.system, contents(last), first.model) == ("s", ["u", "a", "r"], "m")
    assert (first.loss_weight, last.loss_weight) == (1.0, 0.0)
    assert (last.trajectory_reward, last.terminated, last.truncated) == (0.0, None, True)


def test_calls_protocol_row_calls_tools_and_interpreters():
    row = {
        "id": "x",
        "content": [
            {"class_": "text_observation", "source": "user", "content": "u"},
            {
                "class_": "api_action",
                "function": "look",
                "kwargs": {"b": 1, "a": 2},
                "description": "I look.",
            },
            {"class_": "text_observation", "source": "environment", "content": "seen"},
            {"class_": "code_action", "language": "bash", "content": "ls", "description": None},
            {"class_": "web_observation", "html": "<p>", "url": "http://h"},
            {"class_": "message_action", "content": "done"},
        ],
    }
    look, code, message = read(messages, row)
    assert (said(look).content, said(look).tool_calls[0].name) == ("I look.", "look")
    assert said(look).tool_calls[0].arguments == '{"a": 2, "b": 1}'
    assert said(code).tool_calls[0].name == "bash"
    assert said(code).tool_calls[0].arguments == '{"code": "ls"}'
    assert said(message).content == "done"
    page = message.state.after()[-1].message
    assert (page.role, page.name, json.loads(page.parts)[0]["html"]) == ("tool", "bash", "<p>")
    assert {call.state_kind for call in (look, code, message)} == {"partial"}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages_display": "user: hi"}, "flattened into one text"),
        ({"input": {"messages": []}, "preferred_output": []}, "preferences"),
        ({"prompt": "p", "chosen": [], "rejected": []}, "preferences"),
        ({"messages": "hello"}, "messages is no list"),
        ({"messages": [{"text": "x"}]}, "no objects with a role"),
        ({"x": 1}, "no list of messages"),
        ({"trajectory": [{"action": "ls", "observation": ""}]}, "no list of messages"),
    ],
)
def test_why_not_names_the_reason(record, reason):
    assert reason in messages.why_not(record)


def test_detect_preference_rows_are_refused_with_the_reason():
    row = {
        "input": {"messages": [user("u")]},
        "preferred_output": [assistant("a")],
        "non_preferred_output": [assistant("b")],
    }
    with pytest.raises(LogFormatError, match="compares two answers"):
        formats.detect("pairs.jsonl", [row])


def test_calls_extra_fields_of_messages_become_metadata():
    turns = [
        {**user("u"), "mood": "cross"},
        {**assistant("a"), "audio": {"id": 1}},
        {**user("v"), "mood": "calm"},
        assistant("b"),
    ]
    first, second = read(messages, {"messages": turns})
    assert first.metadata == {"observation": [{"mood": "cross"}]}
    assert first.choices[0].metadata == {"audio": {"id": 1}}
    assert second.metadata == {"observation": [{"mood": "calm"}]}


def test_calls_sharegpt_turns_tools_and_weights():
    row = {
        "system": "s",
        "tools": json.dumps([SCHEMA]),
        "conversations": [
            {"from": "human", "value": "u"},
            {
                "from": "function_call",
                "value": json.dumps({"name": "f", "arguments": {"b": 1, "a": 2}}),
                "loss": False,
            },
            {"from": "observation", "value": "r"},
            {"from": "gpt", "value": "done", "weight": 0.5},
        ],
    }
    first, second = read(sharegpt, row)
    assert (first.system, json.loads(first.tools)) == ("s", [SCHEMA])
    assert said(first).content == ""
    assert said(first).tool_calls[0].arguments == '{"a": 2, "b": 1}'
    assert [item.message.role for item in second.state.after()] == ["user", "assistant", "tool"]
    assert (first.loss_weight, second.loss_weight) == (0.0, 0.5)
    assert (second.is_last, second.warnings) == (True, [])


def test_calls_sharegpt_call_in_another_syntax_stays_text():
    turns = [
        {"from": "human", "value": "u"},
        {"from": "function_call", "value": "<function=f>"},
    ]
    (call,) = read(sharegpt, {"conversations": turns})
    assert (said(call).content, said(call).tool_calls) == ("<function=f>", None)
    assert call.warnings == ["function_call_not_json"]


def test_calls_sharegpt_parallel_calls_are_one_step():
    value = json.dumps([{"name": "f", "arguments": "{}"}, {"name": "g", "arguments": "{}"}])
    turns = [{"from": "human", "value": "u"}, {"from": "function_call", "value": value}]
    (call,) = read(sharegpt, {"conversations": turns})
    assert [tool_call.name for tool_call in said(call).tool_calls] == ["f", "g"]


def test_calls_sharegpt_that_begins_with_an_answer_has_an_unknown_state():
    turns = [
        {"from": "gpt", "value": None},
        {"from": "human", "value": "u"},
        {"from": "gpt", "value": "a"},
        {"from": "gpt", "value": "b"},
    ]
    calls = read(sharegpt, {"conversations": turns})
    assert [call.state_kind for call in calls] == ["unknown", "reconstructed", "reconstructed"]
    assert contents(calls[2]) == ["", "u", "a"]


def test_calls_sharegpt_without_an_answer_is_empty():
    with pytest.raises(Fate) as caught:
        read(sharegpt, {"conversations": [{"from": "human", "value": "u"}], "task_id": 4})
    assert (caught.value.reason, caught.value.known["task_id"]) == ("empty_trajectory", "4")


def test_calls_harbor_row_is_one_call_with_its_run():
    row = {
        "conversations": [user("u"), assistant("a"), user("v"), assistant("b")],
        "agent": "terminus-2",
        "model": "m",
        "task": "t",
        "episode": "episode-1",
        "run_id": "r",
        "trial_name": "t__x",
        "result": "0.5",
    }
    (call,) = read(sharegpt, row)
    assert (contents(call), said(call).content) == (["u", "a", "v"], "b")
    assert (call.task_id, call.agent, call.trajectory_key) == ("t", "terminus-2", "r/t__x")
    assert (call.trajectory_reward, call.is_cut) == (0.5, False)
    assert call.metadata["episode"] == "episode-1"


def rollout(**extra):
    return {
        "example_id": 3,
        "task": "env",
        "prompt": [system("s"), user("u")],
        "completion": [assistant("a"), user("v"), assistant("b")],
        "reward": 0.5,
        "is_completed": True,
        "is_truncated": False,
        **extra,
    }


def traced(prompt, answer, trajectory_id="t1", **extra):
    return {
        "prompt": prompt,
        "completion": [answer],
        "response": {
            "id": f"r-{answer['content']}",
            "model": "m",
            "created": 1_700_000_000,
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
            "message": {"finish_reason": "stop"},
        },
        "tokens": {
            "prompt_ids": [1, 2, 3],
            "completion_ids": [4, 5],
            "completion_logprobs": [-0.5, -0.25],
            "is_truncated": False,
        },
        "reward": None,
        "trajectory_id": trajectory_id,
        **extra,
    }


def test_calls_verifiers_transcript_has_no_step_in_the_prompt():
    few_shot = [system("s"), user("x"), assistant("y"), user("u")]
    first, last = read(verifiers, rollout(prompt=few_shot))
    assert (first.system, contents(first)) == ("s", ["x", "y", "u"])
    assert (first.task_id, last.trajectory_reward, last.terminated) == ("env/3", 0.5, True)


def test_calls_verifiers_trajectory_keeps_ids_and_logprobs():
    one, two = assistant("a"), assistant("b")
    steps = [
        traced([system("s"), user("u")], one),
        traced([system("s"), user("u"), one, user("v")], two, reward=1.0),
    ]
    record = rollout(trajectory=steps, tool_defs=[{"name": "f", "parameters": {}}])
    first, last = read(verifiers, record)
    assert (first.prompt_ids, first.choices[0].response_ids) == ([1, 2, 3], [4, 5])
    assert first.choices[0].logprobs == [-0.5, -0.25]
    assert (first.native_id, first.choices[0].finish_reason, first.input_tokens) == (
        "r-a",
        "stop",
        3,
    )
    assert (last.follows, last.reward, last.trajectory_reward) == (first, 1.0, 0.5)
    assert (last.is_last, first.state_kind, first.trajectory_key) == (True, "full", "t1")
    assert json.loads(first.tools)[0]["function"]["name"] == "f"


def test_calls_verifiers_calls_of_another_trajectory_are_a_subagent():
    steps = [
        traced([user("u")], assistant("a")),
        traced([user("inner")], assistant("i"), trajectory_id="t2"),
        traced([user("u"), assistant("a"), user("v")], assistant("b")),
    ]
    first, inner, last = read(verifiers, rollout(trajectory=steps))
    assert (inner.trajectory_kind, inner.parent_key, inner.follows) == ("subagent", "t1", None)
    assert (last.follows, inner.trajectory_reward) == (first, None)
    assert (last.is_last, inner.is_last) == (True, None)


def test_calls_verifiers_logprobs_of_another_length_are_null_with_a_warning():
    step = traced([user("u")], assistant("a"))
    step["tokens"]["completion_logprobs"] = [-0.5]
    (call,) = read(verifiers, rollout(trajectory=[step]))
    assert call.choices[0].logprobs is None
    assert call.choices[0].warnings == ["logprobs_length_mismatch"]


def test_calls_verifiers_tool_calls_as_flat_objects_or_json_are_read():
    flat = {"id": "c1", "name": "f", "arguments": '{"x": 1}'}
    for call in (flat, json.dumps(flat)):
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        (found,) = read(verifiers, rollout(completion=[turn]))
        (made,) = said(found).tool_calls
        assert (made.id, made.name, made.arguments) == ("c1", "f", '{"x": 1}')


def test_calls_verifiers_truncated_rollout_says_so():
    *_, last = read(verifiers, rollout(is_truncated=True))
    assert (last.truncated, last.terminated) == (True, None)


def test_why_not_verifiers_plain_text_has_no_turns():
    assert "plain text has no turns" in verifiers.why_not({"prompt": "x", "completion": "y"})
    assert verifiers.why_not({"prompt": []}) == "no completion"
