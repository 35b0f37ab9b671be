"""Inspect logs: what of a sample is a step, what it continues, and who judges it."""

import json
import zipfile

import pytest
from conftest import shared

from clawcli.ingest.calls import Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import inspect_ai

EVAL = {"eval_id": "e1", "task": "sums", "created": "2026-01-02T03:04:05+00:00"}
HASH = "0123456789abcdef0123456789abcdef"


def said(content="", *, calls=(), **extra):
    message = {"id": f"m-{content}", "role": "assistant", "content": content, **extra}
    if calls:
        message["tool_calls"] = [
            {"id": i, "function": n, "arguments": a, "type": "function"} for i, n, a in calls
        ]
    return message


def asked(content, role="user"):
    return {"id": f"m-{content}", "role": role, "content": content, "source": "input"}


def result(content, call_id="c1", **extra):
    return {"role": "tool", "content": content, "tool_call_id": call_id, "function": "f", **extra}


def model(given, answer, *, span=None, stop="stop", output=(), **extra):
    choices = [{"message": answer, "stop_reason": stop}] if answer else []
    event = {
        "event": "model",
        "timestamp": "2026-01-02T03:04:05+00:00",
        "model": "p/m",
        "input": given,
        "tools": [],
        "tool_choice": "auto",
        "config": {},
        "output": {"model": "m", "choices": choices, **dict(output)},
        **extra,
    }
    return event if span is None else {**event, "span_id": span}


def begin(uid, kind, name="", parent=None):
    return {"event": "span_begin", "id": uid, "type": kind, "name": name, "parent_id": parent}


def end(uid):
    return {"event": "span_end", "id": uid}


def sample(events, *, messages=(), scores=None, **extra):
    return {
        "id": 7,
        "epoch": 2,
        "input": "q",
        "target": "t",
        "messages": list(messages),
        "scores": {"match": {"value": "C"}} if scores is None else scores,
        "events": events,
        "uuid": "s1",
        **extra,
    }


def read(value, run=EVAL):
    record = {"inspect_header": {"eval": run}, "sample": value}
    return inspect_ai.calls(json.dumps(record).encode(), Context())


def contents(call):
    return [item.message.content for item in call.state.after()]


def records(path):
    if path.suffix == ".json":
        return [json.loads(path.read_bytes())]
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        head = next(n for n in ("header.json", "_journal/start.json") if n in names)
        header = json.loads(archive.read(head))
        return [
            {"inspect_header": header, "sample": json.loads(archive.read(name))}
            for name in names
            if name.startswith("samples/")
        ]


@pytest.mark.parametrize(
    ("name", "attempts", "steps"),
    [
        ("2025-05-12T20-28-26-04-00_security-guide.json", 3, 6),
        ("2025-09-23T08-09-58-04-00_theory-of-mind_bbB4eRCx2rFJLyPH42Cj9r.eval", 100, 200),
        ("log_message_deduplication.eval", 1, 6),
    ],
)
def test_calls_of_real_logs_are_as_many_as_expected(name, attempts, steps):
    found = []
    for record in records(shared("inspect", name)):
        assert inspect_ai.why_not(record) is None
        found += inspect_ai.calls(json.dumps(record).encode(), Context())
    # graders are counted as steps, and are trajectories beside the attempts that they judge
    own = [call for call in found if call.trajectory_kind is None]
    assert (len({call.trajectory_key for call in own}), len(found)) == (attempts, steps)
    assert {call.step_kind for call in own} == {"policy"}
    assert {call.parent_key for call in found if call not in own} <= {c.trajectory_key for c in own}
    assert all(call.trajectory_reward is not None for call in own)
    assert not any("attachment://" in str(contents(call)) for call in found)
    assert {call.state_kind for call in found} == {"full"}


def test_calls_of_a_real_message_pool_grow_by_two_messages():
    (record,) = records(shared("inspect", "log_message_deduplication.eval"))
    found = inspect_ai.calls(json.dumps(record).encode(), Context())
    assert [call.num_messages for call in found] == [1, 3, 5, 7, 9, 11]
    assert [call.follows for call in found] == [None, *found[:-1]]


def test_calls_attempt_is_named_by_task_sample_and_epoch():
    (call,) = read(sample([model([asked("q")], said("a"))], messages=[asked("q"), said("a")]))
    assert (call.task_id, call.trial, call.trajectory_key) == ("sums/7", 2, "s1")
    assert (call.trajectory_reward, call.terminated, call.is_last) == (1.0, True, True)
    assert call.metadata["scores"] == {"match": {"value": "C"}}
    assert call.metadata["sample_id"] == 7
    assert call.metadata["eval"]["eval_id"] == "e1"


def test_calls_grader_in_a_scorer_span_is_beside_the_attempt():
    judged = [asked("judge this")]
    events = [
        begin("g", "solver", "generate"),
        model([asked("q")], said("a"), span="g", uuid="u1"),
        end("g"),
        begin("s", "scorer", "match"),
        model(judged, said("GRADE: C"), span="s", uuid="u2"),
        end("s"),
    ]
    own, grader = read(sample(events, messages=[asked("q"), said("a")]))
    assert (own.step_kind, own.loss_weight, own.native_id) == ("policy", 1.0, "u1")
    assert (grader.step_kind, grader.loss_weight, grader.native_id) == ("grader", 0.0, "u2")
    assert (grader.trajectory_kind, grader.parent_key) == ("subagent", "s1")
    assert (grader.follows, grader.trajectory_reward, grader.is_last) == (None, None, None)


@pytest.mark.parametrize(
    "grading",
    [
        [model([asked("j")], said("C"), role="grader")],
        [
            {"event": "step", "action": "begin", "type": "solver", "name": "generate"},
            {"event": "step", "action": "end", "type": "solver", "name": "generate"},
            model([asked("j")], said("C")),
        ],
        [
            {"event": "step", "action": "begin", "type": "scorer", "name": "match"},
            model([asked("j")], said("C")),
            {"event": "step", "action": "end", "type": "scorer", "name": "match"},
        ],
    ],
    ids=["by role", "after the last solver", "in an old step"],
)
def test_calls_grader_without_a_span_is_told_all_the_same(grading):
    found = read(sample([model([asked("q")], said("a")), *grading]))
    assert [call.step_kind for call in found] == ["policy", "grader"]


def test_calls_follow_within_agents_that_run_at_the_same_time():
    given = {name: [asked(f"you are {name}")] for name in "ab"}
    answers = {name: said("", calls=[("c1", "f", {"x": name})]) for name in "ab"}
    later = {name: [*given[name], answers[name], result("r")] for name in "ab"}
    events = [
        begin("a", "agent", "one"),
        begin("b", "agent", "two"),
        model(given["a"], answers["a"], span="a"),
        model(given["b"], answers["b"], span="b"),
        model(later["a"], said("done a"), span="a"),
        model(later["b"], said("done b"), span="b"),
    ]
    one, two, one_more, two_more = read(sample(events, messages=[*later["a"], said("done a")]))
    assert (one_more.follows, two_more.follows) == (one, two)
    assert [call.agent for call in (one, two)] == ["one", "two"]
    assert (one.trajectory_key, one.trajectory_kind) == ("s1", None)
    assert (two.parent_key, two.trajectory_kind) == ("s1", "subagent")
    assert (one_more.is_last, two_more.is_last) == (True, None)


def test_calls_edited_history_follows_the_call_whose_answer_it_ends_with():
    answer = said("", calls=[("c1", "f", {})])
    second = said("", calls=[("c2", "f", {"n": 2})])
    full = [asked("q"), answer, result("long"), second, result("r2", "c2")]
    cleared = [asked("q"), answer, result("(cleared)"), second, result("r2", "c2")]
    events = [
        model(full[:1], answer),
        model(full[:3], second),
        model(cleared, said("done")),
    ]
    _, middle, last = read(sample(events))
    assert last.follows is middle
    assert len({call.trajectory_key for call in (middle, last)}) == 1


def test_calls_summary_before_a_compaction_is_no_step_of_the_policy():
    history = [asked("q"), said("step one"), asked("go on")]
    events = [
        model(history[:1], history[1]),
        model([*history, asked("summarise")], said("WE DID ONE")),
        {"event": "compaction", "type": "summary"},
        model([asked("q"), asked("summary: WE DID ONE")], said("step two")),
    ]
    first, summary, after = read(sample(events))
    assert (summary.step_kind, summary.loss_weight) == ("compaction", 0.0)
    assert after.follows is first
    assert after.step_kind == "policy"


def test_calls_trimmed_history_follows_the_latest_call():
    one, two = said("one"), said("two")
    events = [
        model([asked("q")], one),
        model([asked("q"), one, asked("more")], two),
        {"event": "compaction", "type": "trim"},
        model([asked("q"), asked("newest")], said("three")),
    ]
    _, second, third = read(sample(events))
    assert third.follows is second
    assert second.step_kind == "policy"


def test_calls_same_answer_twice_is_told_apart_by_what_came_before():
    ok = said("ok")
    events = [
        model([asked("q")], ok),
        model([asked("q"), ok, asked("x")], ok),
        model([asked("q"), ok, asked("y")], said("done")),
    ]
    first, second, fork = read(sample(events))
    assert (second.follows, fork.follows) == (first, first)


def test_calls_history_with_an_answer_of_nobody_goes_back_to_the_last_known_one():
    one = said("one")
    events = [
        model([asked("q")], one),
        model([asked("q"), one, asked("x")], said("two")),
        model([asked("q"), one, asked("y"), said("put there"), asked("z")], said("three")),
    ]
    first, _, last = read(sample(events))
    assert last.follows is first


def test_calls_state_that_went_on_without_its_answer_is_followed():
    events = [
        model([asked("q")], said("lost")),
        model([asked("q"), asked("are you there?")], said("yes")),
    ]
    first, second = read(sample(events))
    assert second.follows is first


def test_calls_main_thread_is_that_of_the_messages_though_another_is_longer():
    helper = [asked("help"), said("h1"), asked("more")]
    events = [
        model([asked("q")], said("answer")),
        begin("a", "agent", "helper"),
        model(helper[:1], helper[1], span="a"),
        model(helper, said("h2"), span="a"),
    ]
    own, *others = read(sample(events, messages=[asked("q"), said("answer")]))
    assert (own.trajectory_key, own.trajectory_kind) == ("s1", None)
    assert {call.trajectory_kind for call in others} == {"subagent"}


def test_calls_events_nested_in_a_tool_are_of_a_subagent():
    # begins as the outer conversation does, and is none of it
    inner = model([asked("q"), said("copied"), asked("inner task")], said("inner"))
    events = [
        model([asked("q")], said("", calls=[("c1", "f", {})])),
        {"event": "tool", "id": "c1", "function": "f", "events": [inner]},
    ]
    outer, nested = read(sample(events))
    assert (outer.trajectory_kind, nested.trajectory_kind) == (None, "subagent")


def test_calls_attachment_is_resolved_also_in_arguments():
    call = said("", calls=[("c1", "f", {"code": f"attachment://{HASH}"})])
    given = [asked(f"attachment://{HASH}")]
    (found,) = read(sample([model(given, call)], attachments={HASH: "long text"}))
    assert contents(found) == ["long text"]
    assert found.choices[0].action.message.tool_calls[0].arguments == '{"code": "long text"}'


def test_calls_missing_attachment_is_partial_with_a_warning():
    given = [asked(f"attachment://{HASH}")]
    (found,) = read(sample([model(given, said("a"))]))
    assert (found.state_kind, found.warnings) == ("partial", ["attachment_missing"])


@pytest.mark.parametrize("where", ["message_pool", "events_data"])
def test_calls_input_refs_are_ranges_of_the_pool(where):
    pool = [asked("q"), said("a"), asked("x"), asked("more")]
    event = model([], said("b"), input_refs=[[0, 2], [3, 4]])
    held = {"message_pool": pool} if where == "message_pool" else {where: {"messages": pool}}
    (call,) = read(sample([event], **held))
    assert contents(call) == ["q", "a", "more"]


def test_calls_input_refs_beyond_the_pool_are_partial_with_a_warning():
    (call,) = read(sample([model([], said("b"), input_refs=[[0, 3]])], message_pool=[asked("q")]))
    assert (call.state_kind, call.warnings) == ("partial", ["messages_missing"])


def test_calls_answer_from_the_cache_has_weight_zero():
    event = model([asked("q")], said("a"), cache="read", output={"time": 0.1})
    (call,) = read(sample([event]))
    assert (call.loss_weight, call.warnings, call.latency_s) == (0.0, ["cached_answer"], None)


def test_calls_error_is_no_step_and_is_named():
    events = [
        model([asked("q")], None, error="rate limit", uuid="u1"),
        model([asked("q")], said("a")),
        model([asked("q")], None, pending=True),
    ]
    (call,) = read(sample(events))
    assert call.warnings == ["failed_calls"]
    (failed,) = call.metadata["failed_calls"]
    assert (failed["uuid"], failed["error"]) == ("u1", "rate limit")


def test_calls_cancelled_answer_is_aborted():
    (call,) = read(sample([model([asked("q")], said("half"), error="Cancelled by operator")]))
    choice = call.choices[0]
    assert (choice.finish_reason, choice.finish_reason_raw) == ("aborted", "Cancelled by operator")


def test_calls_sample_without_calls_is_an_empty_trajectory():
    with pytest.raises(Fate) as caught:
        read(sample([], scores={"match": {"value": "I"}}))
    fate = caught.value
    assert (fate.fate, fate.reason) == ("rejected", "empty_trajectory")
    assert fate.known == {"task_id": "sums/7", "trial": 2, "reward": 0.0}


def test_calls_document_names_its_samples_without_calls():
    full = sample([model([asked("q")], said("a"))])
    empty = {**sample([]), "id": 8, "uuid": "s2"}
    document = {"version": 2, "status": "success", "eval": EVAL, "samples": [empty, full, full]}
    assert inspect_ai.why_not(document) is None
    found = inspect_ai.calls(json.dumps(document).encode(), Context())
    assert [call.ordinal for call in found] == [0, 1]
    assert found[-1].warnings == ["attempts_without_calls"]
    (named,) = found[-1].metadata["attempts_without_calls"]
    assert (named["reason"], named["task_id"]) == ("empty_trajectory", "sums/8")


def test_calls_document_without_samples_is_rejected():
    document = {"version": 2, "status": "started", "eval": EVAL, "samples": None}
    with pytest.raises(Fate, match="without its samples"):
        inspect_ai.calls(json.dumps(document).encode(), Context())


@pytest.mark.parametrize(
    ("value", "reward"),
    [("C", 1.0), ("I", 0.0), ("P", 0.5), ("N", 0.0), (True, 1.0), (0.25, 0.25), ("0.5", 0.5)],
)
def test_calls_score_becomes_the_reward(value, reward):
    event = model([asked("q")], said("a"))
    (call,) = read(sample([event], scores={"match": {"value": value}}))
    assert (call.trajectory_reward, call.warnings) == (reward, [])


@pytest.mark.parametrize("value", [None, {"a": 1, "b": 0}, [1, 0], "excellent"])
def test_calls_score_that_is_no_number_is_null_with_a_warning(value):
    event = model([asked("q")], said("a"))
    (call,) = read(sample([event], scores={"match": {"value": value}}))
    assert (call.trajectory_reward, call.warnings) == (None, ["reward_not_a_number"])


def test_calls_several_scores_choose_no_reward():
    event = model([asked("q")], said("a"))
    (call,) = read(sample([event], scores={"x": {"value": 1}, "y": {"value": 0}}))
    assert (call.trajectory_reward, call.warnings) == (None, ["several_scores"])


def test_calls_limit_truncates_and_error_ends_nothing():
    event = model([asked("q")], said("a"))
    (limited,) = read(sample([event], limit={"type": "message", "limit": 5}))
    (broken,) = read(sample([event], error={"message": "boom"}))
    assert (limited.truncated, limited.terminated) == (True, None)
    assert (broken.truncated, broken.terminated) == (None, None)


def test_calls_system_tools_sampling_and_usage_are_read():
    schema = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    event = model(
        [asked("be brief", "system"), asked("q")],
        said("a"),
        tools=[schema],
        config={"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop_seqs": ["x"], "seed": 1},
        output={
            "usage": {
                "input_tokens": 2,
                "output_tokens": 3,
                "total_tokens": 105,
                "input_tokens_cache_read": 90,
                "input_tokens_cache_write": 10,
            },
            "time": 1.5,
        },
    )
    (call,) = read(sample([event]))
    assert (call.system, contents(call)) == ("be brief", ["q"])
    assert json.loads(call.tools) == [{"type": "function", "function": schema}]
    assert (call.temperature, call.top_p, call.sampling) == (0.5, 0.9, {"top_k": 3, "stop": ["x"]})
    assert call.metadata["config"] == {"seed": 1}
    # what a cache gave or took was counted apart
    assert (call.input_tokens, call.output_tokens, call.cached_tokens) == (102, 3, 90)
    assert call.latency_s == 1.5


def test_calls_reasoning_is_apart_and_redacted_reasoning_is_hidden():
    open_ = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "a"}]
    closed = [{"type": "reasoning", "reasoning": "xyz", "redacted": True}, *open_[1:]]
    (told,) = read(sample([model([asked("q")], said(open_))]))
    (hidden,) = read(sample([model([asked("q")], said(closed))]))
    assert told.choices[0].action.message.reasoning == "hm"
    assert told.choices[0].action.message.content == "a"
    assert hidden.choices[0].action.message.reasoning is None
    assert hidden.choices[0].warnings == ["reasoning_hidden"]
    assert hidden.choices[0].metadata["reasoning"] == [{"reasoning": "xyz", "redacted": True}]


def test_calls_tool_error_is_what_the_model_sees():
    error = {"type": "timeout", "message": "timed out"}
    answer = said("", calls=[("c1", "f", {})])
    events = [
        model([asked("q")], answer),
        model([asked("q"), answer, result("", error=error)], said("done")),
    ]
    _, call = read(sample(events))
    assert contents(call)[-1] == "timed out"
    assert call.metadata["observation"][0]["error"]["type"] == "timeout"


def test_calls_final_observation_is_what_followed_the_last_action():
    answer = said("", calls=[("c1", "f", {})])
    messages = [asked("q"), answer, result("r")]
    (call,) = read(sample([model([asked("q")], answer)], messages=messages))
    assert [message.content for message in call.final_observation] == ["r"]


def test_why_not_of_a_listing_of_logs_says_what_it_is():
    listing = {"2026_a.eval": {"version": 2, "status": "success", "eval": EVAL}}
    assert "listing of eval logs" in inspect_ai.why_not(listing)


def test_why_not_of_another_document_names_what_is_missing():
    assert inspect_ai.why_not({"version": 1}) == "no status and no eval"
