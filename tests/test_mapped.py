"""--map: any JSON log of calls, by paths."""

import json

import pytest
from conftest import assistant, system, tool, user

from clawcli.errors import UsageError
from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats.json_path import MISSING, JsonPath
from clawcli.ingest.formats.mapped import COLUMNS, Mapped, parse

CALL = {"messages": "in.messages", "response": "out"}
CHAT = [system("s"), user("u")]


def read(mapping, record):
    return Mapped(mapping).calls(json.dumps(record).encode(), Context())


def log(**extra):
    return {"in": {"messages": CHAT}, "out": "hello", **extra}


@pytest.mark.parametrize(
    "response",
    [
        "hello",
        {"role": "assistant", "content": "hello"},
        [{"index": 0, "message": {"content": "hello"}}],
        {"choices": [{"message": {"content": "hello"}}]},
        {"object": "chat.completion", "choices": [{"message": {"content": "hello"}}]},
    ],
    ids=["text", "message", "choices", "bare completion", "completion"],
)
def test_calls_response_of_each_shape_is_one_call(response):
    (call,) = read(CALL, log(out=response))
    assert (call.system, [i.message.content for i in call.state.after()]) == ("s", ["u"])
    assert call.choices[0].action.message.content == "hello"
    assert call.state_kind == "full"


def test_calls_columns_are_read_from_their_paths():
    record = log(
        id=17,
        run={"session": "abc", "task": 4, "attempt": "2", "who": "bot", "parent": "p"},
        scores=[0.25],
        meta={"m": "model-1", "policy": "step-120", "t": "0.5", "p": 1},
        clock=[1_700_000_000_000, "2026-01-02T03:04:05Z"],
        tokens={"prompt": [1, 2], "answer": [3, 4], "logprobs": [-0.5, -1.0]},
        end="length",
        note="kept",
    )
    mapping = {
        **CALL,
        "native_id": "id",
        "trajectory_key": "run.session",
        "parent_key": "run.parent",
        "task_id": "run.task",
        "trial": "run.attempt",
        "agent": "run.who",
        "reward": "scores[0]",
        "trajectory_reward": "scores.-1",
        "model": "meta.m",
        "policy_version": "meta.policy",
        "temperature": "meta.t",
        "top_p": "meta.p",
        "started_at": "clock[0]",
        "ended_at": "clock[-1]",
        "prompt_ids": "tokens.prompt",
        "response_ids": "tokens.answer",
        "rollout_logprobs": "tokens.logprobs",
        "finish_reason": "end",
    }
    (call,) = read(mapping, record)
    assert (call.native_id, call.trajectory_key, call.key_is_global) == ("17", "abc", True)
    assert (call.parent_key, call.trajectory_kind) == ("p", "subagent")
    assert (call.task_id, call.trial, call.agent) == ("4", 2, "bot")
    assert (call.reward, call.trajectory_reward) == (0.25, 0.25)
    assert (call.model, call.policy, call.policy_version) == ("model-1", "model-1", 120)
    assert (call.temperature, call.top_p, call.started_at) == (0.5, 1.0, 1_700_000_000.0)
    assert call.ended_at == 1_767_323_045.0
    choice = call.choices[0]
    assert (call.prompt_ids, choice.response_ids, choice.logprobs) == ([1, 2], [3, 4], [-0.5, -1.0])
    assert (choice.finish_reason, choice.finish_reason_raw) == ("length", "length")
    assert call.metadata == {"scores": [None], "clock": [None, None], "note": "kept"}


def test_calls_whole_completion_tells_what_is_not_mapped():
    completion = {
        "id": "r1",
        "model": "m",
        "choices": [
            {"message": {"content": "a"}, "finish_reason": "stop", "token_ids": [4, 5]},
            {"message": {"content": "b"}, "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    (call,) = read({**CALL, "model": "name"}, log(out=completion, name="mapped"))
    assert (call.native_id, call.model, call.input_tokens) == ("r1", "mapped", 3)
    assert [c.finish_reason for c in call.choices] == ["stop", "length"]
    assert call.choices[0].response_ids == [4, 5]


def test_calls_logprobs_as_objects_of_tokens_are_read():
    tokens = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]
    (call,) = read({**CALL, "rollout_logprobs": "tokens"}, log(tokens=tokens))
    assert call.choices[0].logprobs == [-0.5, -1.0]


def test_calls_trajectory_key_that_is_missing_is_not_global():
    (call,) = read({**CALL, "trajectory_key": "session"}, log())
    assert (call.trajectory_key, call.key_is_global) == (None, False)


@pytest.mark.parametrize(("column", "path"), [("messages", "in.messages"), ("response", "out")])
def test_calls_missing_path_is_rejected_and_named(column, path):
    record = log()
    del record["in" if column == "messages" else "out"]
    with pytest.raises(Fate) as caught:
        read({**CALL, "task_id": "task"}, {**record, "task": "t"})
    fate = caught.value
    assert (fate.fate, fate.reason) == ("rejected", "unmapped")
    assert fate.detail == f"there is nothing at {path} ({column})"
    assert fate.known["task_id"] == "t"


def test_calls_failed_response_is_a_failed_call():
    with pytest.raises(Fate) as caught:
        read(CALL, log(out={"error": {"message": "no"}}))
    assert caught.value.fate == "failed_call"


def test_calls_messages_of_another_shape_are_rejected():
    with pytest.raises(Fate) as caught:
        read(CALL, log(**{"in": {"messages": "hello"}}))
    assert caught.value.reason == "no_messages"


def test_calls_json_in_strings_is_decoded_on_the_way():
    record = {"in": json.dumps({"messages": json.dumps(CHAT), "seed": 7}), "out": "hello"}
    (call,) = read(CALL, record)
    assert call.num_messages == 1
    assert call.metadata == {"in": {"seed": 7}}


def test_calls_system_with_its_own_path_stands_before_the_messages():
    (call,) = read({**CALL, "system": "prompt"}, log(prompt=[{"type": "text", "text": "be kind"}]))
    assert call.system == "be kind"
    assert [item.message.role for item in call.state.after()] == ["system", "user"]


def test_calls_tools_mapped_and_missing_are_none_and_unmapped_are_not_logged():
    called = assistant("", calls=[("c1", "f", "{}")])
    (mapped,) = read({**CALL, "tools": "tools"}, log(out=called))
    (unmapped,) = read(CALL, log(out=called))
    assert (mapped.tools, mapped.state_kind) == ("[]", "full")
    assert (unmapped.tools, unmapped.state_kind) == (None, "partial")


def test_calls_tools_that_are_no_list_are_warned_about():
    (call,) = read({**CALL, "tools": "tools"}, log(tools={"f": 1}))
    assert (call.tools, call.warnings) == (None, ["tools_unreadable"])


def test_calls_without_a_response_cut_a_transcript():
    turns = [*CHAT, assistant("a"), tool("r"), assistant("b"), user("bye")]
    mapping = {
        "messages": "log",
        "trajectory_key": "id",
        "reward": "score",
        "started_at": "from",
        "ended_at": "to",
        "terminated": "done",
    }
    record = {"log": turns, "id": "x", "score": True, "from": 10, "to": 20, "done": True, "n": 1}
    first, last = read(mapping, record)
    assert (first.system, first.num_messages, last.num_messages) == ("s", 1, 3)
    assert {c.trajectory_key for c in (first, last)} == {"x"}
    assert (first.reward, first.trajectory_reward) == (None, 1.0)
    assert (first.started_at, first.ended_at) == (10.0, None)
    assert (last.started_at, last.ended_at, last.terminated) == (None, 20.0, True)
    assert [message.content for message in last.final_observation] == ["bye"]
    assert last.metadata == {"n": 1}
    assert first.state_kind == "reconstructed"


def test_calls_transcript_with_a_mapped_system_keeps_it():
    record = {"log": [user("u"), assistant("a")], "sys": "be kind"}
    (call,) = read({"messages": "log", "system": "sys"}, record)
    assert (call.system, call.num_messages) == ("be kind", 1)


def test_calls_reward_that_is_no_number_is_null_with_a_warning():
    (call,) = read({**CALL, "reward": "score"}, log(score="good"))
    assert (call.reward, call.warnings) == (None, ["reward_not_a_number"])


@pytest.mark.parametrize(("kind", "found"), [("grader", "grader"), ("weird", "policy")])
def test_calls_step_kind_is_one_of_four(kind, found):
    (call,) = read({**CALL, "step_kind": "kind"}, log(kind=kind))
    assert call.step_kind == found
    assert call.warnings == ([] if kind == found else ["step_kind_unknown"])


def test_mapped_unknown_column_names_the_nearest():
    with pytest.raises(UsageError, match="Did you mean trajectory_key"):
        Mapped({**CALL, "trajectory_id": "x"})


@pytest.mark.parametrize("column", ["step_uid", "prefix_messages", "state_hash"])
def test_mapped_column_that_claw_computes_is_refused(column):
    with pytest.raises(UsageError, match="no column"):
        Mapped({**CALL, column: "x"})


def test_mapped_without_messages_is_refused():
    with pytest.raises(UsageError, match="says nothing about messages"):
        Mapped({"response": "out"})


@pytest.mark.parametrize("column", ["native_id", "response_ids", "finish_reason"])
def test_mapped_column_of_one_call_needs_a_response(column):
    with pytest.raises(UsageError, match="about one call"):
        Mapped({"messages": "log", column: "x"})


@pytest.mark.parametrize("path", ["", ".a", "a..b", "a[", "a[x]", 'a["b]'])
def test_mapped_path_that_is_none_is_refused(path):
    with pytest.raises(UsageError, match="is no path"):
        Mapped({"messages": path})


def test_why_not_names_the_path_that_leads_nowhere():
    mapped = Mapped(CALL)
    assert mapped.why_not(log()) is None
    assert mapped.why_not({"in": {}}) == "there is nothing at in.messages (messages)"


def test_columns_are_columns_of_the_step_table_or_parts_of_a_call():
    from clawcli import schema

    parts = {"messages", "trajectory_key", "parent_key", "prompt_ids"}
    assert set(COLUMNS) <= {column.name for column in schema.STEPS} | parts


@pytest.mark.parametrize("pairs", [["messages"], ["messages=a", "messages=b"]])
def test_parse_pair_that_is_none_is_refused(pairs):
    with pytest.raises(UsageError):
        parse(pairs)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.0.b", 1),
        ("a[0].b", 1),
        ("a[-1].b", 2),
        ("a.-2.b", 1),
        ('["x.y"].z', 3),
        ("m.0", 4),
        ("a[2].b", MISSING),
        ("a[-3].b", MISSING),
        ("a.b", MISSING),
        ("m.0.1", MISSING),
    ],
)
def test_json_path_finds_keys_and_indices(path, found):
    record = {"a": [{"b": 1}, {"b": 2}], "x.y": {"z": 3}, "m": {"0": 4}}
    assert JsonPath(path).find(record) == found
