import json
import random
import sys
from collections import defaultdict

import pytest
from conftest import SHARED, assistant, pair, system, tool, user, write_lines
from request_log import UNRECOVERABLE, make

from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, table
from clawcli.store.state import States


def ingest_files(output, *files):
    report = ingest(IngestConfig(inputs=tuple(str(f) for f in files), output=str(output)))
    return report, table.read(location.parse(str(output)))


def trajectories(steps, tag=lambda metadata: (metadata["run"], metadata["turn"])):
    """Each trajectory as its tags in order; samples apart."""
    found = defaultdict(list)
    for row in steps.to_pylist():
        name = tag(json.loads(row["metadata"]))
        place = (row["step_index"], row["choice_index"], row["trajectory_kind"])
        found[row["trajectory_uid"]].append((place, name, row["prefix_broken"]))
    return sorted(tuple(sorted(steps)) for steps in found.values())


def rebuilt(found, truth):
    """Names of runs whose steps form exactly one trajectory, in order."""
    whole = {tuple(name for _, name, _ in steps) for steps in found}
    return {run for run, turns in truth.items() if tuple((run, t) for t in turns) in whole}


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.parametrize("ids", [True, False])
def test_link_synthetic_log_rebuilds_all_runs_but_the_unrecoverable(tmp_path, times, ids):
    for seed in range(2):
        log = make(seed, times=times, ids=ids)
        path = write_lines(tmp_path / f"{seed}.jsonl", log.records)
        _, steps = ingest_files(tmp_path / f"data{seed}", path)
        missing = set(log.truth) - rebuilt(trajectories(steps), log.truth)
        assert missing == UNRECOVERABLE


@pytest.mark.parametrize("times", [True, False])
def test_link_shuffled_or_split_log_gives_the_same_trajectories(tmp_path, times):
    log = make(3, times=times)
    records = log.records[:]
    _, whole = ingest_files(tmp_path / "whole", write_lines(tmp_path / "a.jsonl", records))
    random.Random(0).shuffle(records)
    _, shuffled = ingest_files(tmp_path / "shuffled", write_lines(tmp_path / "b.jsonl", records))
    parts = [write_lines(tmp_path / f"part{i}.jsonl", records[i::8]) for i in range(8)]
    _, split = ingest_files(tmp_path / "split", *parts)
    columns = ["step_uid", "trajectory_uid", "parent_step_uid", "step_index", "prefix_broken"]

    def rows(steps):
        return sorted(map(str, steps.select(columns).to_pylist()))

    assert rows(whole) == rows(shuffled) == rows(split)


def test_link_shared_synthetic_log_rebuilds_132_of_138(tmp_path):
    folder = SHARED / "experiments"
    if not (folder / "chain_log.py").exists():
        pytest.skip("needs ../shared/experiments/chain_log.py, which is not here")
    sys.path.insert(0, str(folder))
    try:
        import chain_log
    finally:
        sys.path.remove(str(folder))
    good = total = 0
    for seed in range(6):
        records = chain_log.make(seed)
        layouts = [records, random.Random(seed).sample(records, len(records))]
        found = []
        for i, layout in enumerate(layouts):
            path = write_lines(tmp_path / f"{seed}-{i}.jsonl", layout)
            _, steps = ingest_files(tmp_path / f"{seed}-{i}", path)
            found.append(trajectories(steps, tag=lambda metadata: metadata["tag"]))
        parts = [
            write_lines(tmp_path / f"{seed}-part{i}.jsonl", layouts[1][i::8]) for i in range(8)
        ]
        _, steps = ingest_files(tmp_path / f"{seed}-split", *parts)
        found.append(trajectories(steps, tag=lambda metadata: metadata["tag"]))
        assert found[0] == found[1] == found[2]
        whole = {tuple(name for _, name, _ in steps) for steps in found[0]}
        truth = chain_log.truth(records)
        good += sum(tuple(tags) in whole for tags in truth.values())
        total += len(truth)
    assert (good, total) == (132, 138)


def state_of(steps, uid):
    states = States(steps)
    return states.prompt(states.row_of(uid))


def test_link_synthetic_log_rebuilds_every_state_as_it_was_logged(tmp_path):
    log = make(1)
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", log.records))
    logged = {}
    for record in log.records:
        logged[record["run"], record["turn"]] = record["request"]["messages"]
    states = States(steps)
    for row, metadata in enumerate(steps["metadata"].to_pylist()):
        tags = json.loads(metadata)
        want = logged[tags["run"], tags["turn"]]
        prompt = states.prompt(row)
        has_system = want[0]["role"] == "system"
        assert prompt.system == (want[0]["content"] if has_system else "")
        assert [shape(m) for m in prompt.messages] == [shape(m) for m in want[has_system:]]


def shape(message):
    """What must survive of a message, in either form."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    calls = [
        (c.get("function", c)["name"], c.get("function", c)["arguments"])
        for c in message.get("tool_calls") or ()
    ]
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    return message["role"], content, calls, reasoning


def two_calls(first_answer, shown, *, later=(), **second):
    """A log of two calls; the second request shows the first answer as `shown`."""
    start = [system("s"), user("u")]
    return [
        pair(start, first_answer, at=1.0, uid="one", tools=[]),
        pair([*start, shown, *later], assistant("done"), at=2.0, uid="two", tools=[], **second),
    ]


@pytest.mark.parametrize(
    ("answer", "shown", "cause", "prefix"),
    [
        (assistant("a"), assistant("a"), None, 2),
        (assistant(None), assistant(""), None, 2),
        (assistant("a"), assistant([{"type": "text", "text": "a"}]), None, 2),
        (assistant("a", annotations=[], refusal=None), assistant("a"), None, 2),
        (assistant("a", reasoning_content="r"), assistant("a"), "reasoning_changed", 1),
        (assistant("a", reasoning="r"), assistant("a", reasoning_content="r"), None, 2),
        (assistant("<think>r</think>\n\na"), assistant("a"), "reasoning_changed", 1),
        (assistant("a"), assistant("a and more"), "stop_trimmed", 1),
        (assistant("a"), assistant("b"), "action_differs", 1),
        (
            assistant("a", calls=[("c1", "f", '{"x": 1}')]),
            assistant("a", calls=[("c1", "f", '{"x":1}')]),
            "action_differs",
            1,
        ),
        (
            assistant("a", calls=[("c1", "f", "{}")]),
            assistant("a", calls=[("other", "f", "{}")]),
            None,
            2,
        ),
    ],
)
def test_link_answer_as_the_next_request_shows_it(tmp_path, answer, shown, cause, prefix):
    path = write_lines(tmp_path / "a.jsonl", two_calls(answer, shown, later=[user("v")]))
    _, steps = ingest_files(tmp_path / "data", path)
    first, second = sorted(steps.to_pylist(), key=lambda row: row["step_index"])
    assert second["parent_step_uid"] == first["step_uid"]
    assert second["trajectory_uid"] == first["trajectory_uid"]
    assert (second["prefix_broken"], second["prefix_messages"]) == (cause, prefix)


def test_link_two_candidates_alike_is_counted_ambiguous_once_ids_do_not_tell(tmp_path):
    start = [system("s"), user("u")]
    said = assistant("same")
    records = [
        pair(start, said, at=1.0, uid="a0", tools=[]),
        pair(start, said, at=2.0, uid="b0", tools=[]),
        pair([*start, said, user("v")], assistant("x"), at=3.0, uid="a1", tools=[]),
        pair([*start, said, user("w")], assistant("y"), at=4.0, uid="b1", tools=[]),
    ]
    report, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    rows = {row["native_id"]: row for row in steps.to_pylist()}
    assert rows["a1"]["parent_step_uid"] == rows["a0"]["step_uid"]
    # a0 has a child by now, so b0 is the only one left
    assert rows["b1"]["parent_step_uid"] == rows["b0"]["step_uid"]
    assert report.warnings_by_code == {"ambiguous_parent": 1}


def test_link_branch_continues_the_index_and_trains_nothing_without_a_reward(tmp_path):
    start = [system("s"), user("u")]
    said = assistant("a")
    on = [*start, said, user("v")]
    records = [
        pair(start, said, at=1.0, uid="0", tools=[], reward=None),
        pair(on, assistant("dead end"), at=2.0, uid="dead", tools=[]),
        pair(on, assistant("live"), at=3.0, uid="live", tools=[], reward=1.0),
    ]
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    rows = {row["native_id"]: row for row in steps.to_pylist()}
    dead, live = rows["dead"], rows["live"]
    assert (live["trajectory_kind"], live["step_index"], live["loss_weight"]) == ("main", 1, 1.0)
    assert (dead["trajectory_kind"], dead["step_index"], dead["loss_weight"]) == ("branch", 1, 0.0)
    assert dead["parent_trajectory_uid"] == live["trajectory_uid"] != dead["trajectory_uid"]
    assert dead["reward"] is None
    assert live["reward"] == 1.0


def test_link_choices_nobody_followed_keep_choice_0_and_make_samples(tmp_path):
    start = [system("s"), user("u")]
    path = write_lines(
        tmp_path / "a.jsonl",
        [pair(start, assistant("a"), assistant("b"), assistant("c"), at=1.0, uid="x")],
    )
    _, steps = ingest_files(tmp_path / "data", path)
    kinds = {row["choice_index"]: row["trajectory_kind"] for row in steps.to_pylist()}
    assert kinds == {0: "main", 1: "sample", 2: "sample"}
    assert len(set(steps["step_uid"].to_pylist())) == 3
    assert len(set(steps["group_uid"].to_pylist())) == 1
    assert set(steps["loss_weight"].to_pylist()) == {1.0}


def test_link_a_descendant_is_never_its_own_ancestor(tmp_path):
    # the second call says what the first one's state shows of a call that was not logged
    start = [user("u"), assistant("b"), user("v")]
    records = [
        pair(start, assistant("a"), uid="0"),
        pair([*start, assistant("a"), user("w")], assistant("b"), uid="1"),
    ]
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    rows = {row["native_id"]: row for row in steps.to_pylist()}
    assert rows["0"]["parent_step_uid"] is None
    assert rows["1"]["parent_step_uid"] == rows["0"]["step_uid"]


def test_link_edited_history_looks_only_at_earlier_calls(tmp_path):
    records = [
        pair([user("u"), assistant("said"), user("v")], assistant("x"), at=1.0, uid="early"),
        pair([user("other")], assistant("said"), at=2.0, uid="late"),
    ]
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    assert steps["parent_step_uid"].to_pylist() == [None, None]


def test_link_equal_answers_of_two_agents_go_with_their_system_text(tmp_path):
    said = assistant("same")
    records = []
    for name, at in (("one", 1.0), ("two", 2.0)):
        start = [system(name), user("u")]
        records.append(pair(start, said, at=at, uid=f"{name}0"))
        later = [*start, said, user("v")]
        # the second agent goes on first
        records.append(pair(later, assistant(name), at=10 - at, uid=f"{name}1"))
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    rows = {row["native_id"]: row for row in steps.to_pylist()}
    for name in ("one", "two"):
        assert rows[f"{name}1"]["parent_step_uid"] == rows[f"{name}0"]["step_uid"]


def test_link_late_tool_result_of_parallel_calls_stays_with_its_state(tmp_path):
    start = [system("s"), user("u")]
    said = assistant("", calls=[("c1", "f", "{}"), ("c2", "g", "{}")])
    records = [
        pair(start, said, at=1.0, uid="0"),
        pair([*start, said, tool("r1", "c1"), tool("r2", "c2")], assistant("x"), at=2.0, uid="1"),
    ]
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    second = next(row for row in steps.to_pylist() if row["native_id"] == "1")
    assert [m["content"] for m in second["observation"]] == ["r1", "r2"]
    assert [m["role"] for m in state_of(steps, second["step_uid"]).messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]


def test_link_equal_attempts_are_told_apart_by_earlier_tool_call_ids(tmp_path):
    start = [system("s"), user("u")]
    records = []
    for run in "ab":
        look = assistant("", calls=[(f"call_{run}", "f", "{}")])
        told = [*start, look, tool("r", f"call_{run}")]
        # the answer in text carries no id, and both attempts say the same
        later = [*told, assistant("same"), user("go on")]
        at = 1.0 if run == "a" else 1.5
        records += [
            pair(start, look, at=at, uid=f"{run}0"),
            pair(told, assistant("same"), at=at + 1, uid=f"{run}1"),
            pair(later, assistant(f"end {run}"), at=at + 4 - 2 * (run == "b"), uid=f"{run}2"),
        ]
    report, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    parents = {row["native_id"]: row["parent_step_uid"] for row in steps.to_pylist()}
    uids = {row["native_id"]: row["step_uid"] for row in steps.to_pylist()}
    assert [parents["a2"], parents["b2"]] == [uids["a1"], uids["b1"]]
    assert report.warnings_by_code == {}


def labelled(label, first, second):
    """Two attempts with equal starts whose second calls come in the other order."""
    start = [user("u")]
    more = {v: [*start, assistant("look"), user(f"view of {v}")] for v in (first, second)}
    return [
        pair(start, assistant("look"), at=1.0, uid="a0", **{label: first}),
        pair(start, assistant("look"), at=2.0, uid="b0", **{label: second}),
        pair(more[second], assistant("b"), at=3.0, uid="b1", **{label: second}, reward=1.0),
        pair(more[first], assistant("a"), at=4.0, uid="a1", **{label: first}, reward=0.0),
    ]


@pytest.mark.parametrize(("label", "values"), [("task_id", ("t1", "t2")), ("trial", (0, 1))])
def test_link_logged_labels_are_never_contradicted(tmp_path, label, values):
    path = write_lines(tmp_path / "a.jsonl", labelled(label, *values))
    _, steps = ingest_files(tmp_path / "data", path)
    rows = {row["native_id"]: row for row in steps.to_pylist()}
    for run in "ab":
        assert rows[f"{run}1"]["trajectory_uid"] == rows[f"{run}0"]["trajectory_uid"]
    assert [rows[uid][label] for uid in ("a0", "a1", "b0", "b1")] == [
        values[0],
        values[0],
        values[1],
        values[1],
    ]


def test_link_finished_transcripts_are_never_joined(tmp_path):
    # the second begins as the first did, and goes on without its answer
    records = [
        {"messages": [user("hi"), assistant("a")], "reward": 1, "task_id": "t1"},
        {"messages": [user("hi"), user("more"), assistant("b")], "reward": 0, "task_id": "t2"},
        {"messages": [user("hi"), assistant("a"), user("x"), assistant("c")]},
    ]
    report, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    assert report.trajectories == 3
    rows = steps.to_pylist()
    assert [row["task_id"] for row in rows if row["trajectory_reward"] is not None] == ["t1", "t2"]
    assert {row["trajectory_kind"] for row in rows} == {"main"}


def test_link_missing_first_call_is_not_replaced_by_a_later_attempt(tmp_path):
    start = [user("u")]
    lost = [*start, assistant("lost"), user("v")]
    records = [
        pair(lost, assistant("a"), at=2.0, uid="a1", reward=1.0),
        pair(start, assistant("b"), at=50.0, uid="b0"),
    ]
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    rows = {row["native_id"]: row for row in steps.to_pylist()}
    assert rows["a1"]["parent_step_uid"] is None
    assert rows["a1"]["trajectory_kind"] == "main"


def test_link_missing_first_call_is_not_replaced_by_an_attempt_that_went_on(tmp_path):
    start = [user("u")]
    records = [
        pair(start, assistant("b"), at=1.0, uid="b0"),
        pair([*start, assistant("lost"), user("v")], assistant("a"), at=2.0, uid="a1"),
        pair([*start, assistant("b"), user("w")], assistant("c"), at=3.0, uid="b1"),
    ]
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    parents = {row["native_id"]: row["parent_step_uid"] for row in steps.to_pylist()}
    assert parents["a1"] is None
    assert parents["b1"] is not None


def test_link_speakers_with_other_names_are_not_the_same(tmp_path):
    alice, bob = ({"role": "user", "name": name, "content": "u"} for name in ("alice", "bob"))
    records = [
        pair([alice], assistant("a"), at=1.0, uid="0"),
        pair([bob, assistant("a"), user("v")], assistant("b"), at=2.0, uid="1"),
    ]
    _, steps = ingest_files(tmp_path / "data", write_lines(tmp_path / "a.jsonl", records))
    second = next(row for row in steps.to_pylist() if row["native_id"] == "1")
    assert second["prefix_messages"] == 0
    assert state_of(steps, second["step_uid"]).messages[0]["name"] == "bob"
