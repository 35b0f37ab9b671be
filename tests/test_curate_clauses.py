"""The clauses of curate beside --where: units, draws, duplicates, contamination, rewards, splits."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from conftest import assistant, pair, tau, tool, user, write_lines
from test_curate import attempt

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import DataError, StoreError, UsageError, WhereError
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, query, sidecars, table

RETURNS = {1: [1.0, 0.0, 0.0, 0.0], 2: [1.0, 1.0], 3: [0.5], 4: [0.0, 0.25, 1.0]}
"""Task -> return of each attempt."""


@pytest.fixture
def data(tmp_path):
    attempts = [
        (task, trial, reward, attempt(f"{task}.{trial}", steps=1 + trial))
        for task, rewards in RETURNS.items()
        for trial, reward in enumerate(rewards)
    ]
    (tmp_path / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    return tmp_path / "data"


NUM_STEPS = sum(1 + trial for rewards in RETURNS.values() for trial in range(len(rewards)))


def run(source, output, **options):
    return curate(CurateConfig(input=str(source), output=str(output), **options))


def load(place):
    return query.load_steps(location.existing(str(place))).to_pylist()


def trained(place):
    return {row["step_uid"] for row in load(place) if row["loss_weight"] > 0}


def attempts_in(place):
    return sorted(
        {(int(row["task_id"]), row["trial"]) for row in load(place) if row["loss_weight"] > 0}
    )


def balance(report):
    dropped = sum(report.steps_dropped_by_clause.values())
    return report.steps_kept + report.steps_context + dropped


# -- trajectories and groups -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("trajectory_return = 1", [(1, 0), (2, 0), (2, 1), (4, 2)]),
        ("count(*) = 1 AND trajectory_return > 0", [(1, 0), (2, 0), (3, 0)]),
        ("max(step_index) >= 2", [(1, 2), (1, 3), (4, 2)]),
        ("bool_and(num_tool_calls = 1) AND task_id = '3'", [(3, 0)]),
    ],
)
def test_where_trajectory_sees_columns_of_the_attempt_and_aggregates(data, tmp_path, where, wanted):
    report = run(data, tmp_path / "out", where_trajectory=where)
    assert attempts_in(tmp_path / "out") == wanted
    assert balance(report) == NUM_STEPS


@pytest.mark.parametrize(
    ("where", "tasks"),
    [
        ("count(*) >= 3", {1, 4}),
        ("group_reward_std > 0", {1, 4}),
        ("avg(trajectory_return) > 0.5", {2}),
        ("group_solved_frac BETWEEN 0.2 AND 0.9", {1, 4}),
        ("max(trajectory_length) = 4", {1}),
    ],
)
def test_where_group_counts_attempts_not_steps(data, tmp_path, where, tasks):
    run(data, tmp_path / "out", where_group=where)
    assert {task for task, _ in attempts_in(tmp_path / "out")} == tasks


def test_where_group_does_not_count_branches_as_attempts(tmp_path):
    start = [user("u")]
    records = [
        pair(start, assistant("a"), at=1.0, uid="0"),
        pair([*start, assistant("a"), user("v")], assistant("dead"), at=2.0, uid="dead"),
        pair([*start, assistant("a"), user("w")], assistant("b"), at=3.0, uid="1", reward=1.0),
    ]
    path = write_lines(tmp_path / "a.jsonl", records)
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    assert {row["trajectory_kind"] for row in load(tmp_path / "data")} == {"main", "branch"}
    report = run(tmp_path / "data", tmp_path / "out", where_group="count(*) = 1")
    assert report.steps_dropped_by_clause["where_group"] == 0


def test_where_trajectory_null_is_counted_apart(data, tmp_path):
    report = run(data, tmp_path / "out", where_trajectory="avg(latency_s) > 1")
    assert report.steps_dropped_by_clause == {
        "loss_weight": 0,
        "where_trajectory": 0,
        "where_trajectory_null": NUM_STEPS,
    }


@pytest.mark.parametrize("option", ["where_trajectory", "where_group"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("true; drop table steps", "more than one expression"),
        ("row_number() over () < 3", "window functions"),
        ("count(*)", "is BIGINT, not BOOLEAN"),
        ("reward > 0, true", "single expression"),
        ("", "is empty"),
        ("no_such_column > 0", "no_such_column"),
        ("(select count(*) from read_text('/etc/passwd')) > 0", "disabled by configuration"),
    ],
)
def test_where_of_units_hostile_expression_is_refused(data, tmp_path, option, text, problem):
    with pytest.raises(WhereError, match=problem):
        run(data, tmp_path / "out", **{option: text})
    assert not (tmp_path / "out").exists()


def test_where_and_where_trajectory_together_are_both(data, tmp_path):
    run(data, tmp_path / "out", where="step_index = 0", where_trajectory="trajectory_return = 1")
    rows = [row for row in load(tmp_path / "out") if row["loss_weight"] > 0]
    assert {row["step_index"] for row in rows} == {0}
    assert attempts_in(tmp_path / "out") == [(1, 0), (2, 0), (2, 1), (4, 2)]


# -- limits and draws ------------------------------------------------------------------------------


def test_top_k_keeps_the_best_attempts_whole(data, tmp_path):
    report = run(data, tmp_path / "out", top_k=3, top_by="count(*) + trajectory_return / 10")
    assert attempts_in(tmp_path / "out") == [(1, 2), (1, 3), (4, 2)]
    assert report.steps_kept == 4 + 3 + 3


def test_top_k_of_steps_counts_steps(data, tmp_path):
    report = run(data, tmp_path / "out", top_k=2, top_by="step_index", unit="step")
    assert (report.steps_kept, report.steps_context) == (2, 3 + 2)


def test_top_k_never_takes_what_has_no_score(data, tmp_path):
    score = "CASE WHEN task_id = '3' THEN 1 END"
    report = run(data, tmp_path / "out", top_k=5, top_by=score)
    assert attempts_in(tmp_path / "out") == [(3, 0)]
    assert report.steps_dropped_by_clause["top_k_null"] == NUM_STEPS - 1


def test_sample_number_and_share_depend_on_the_seed_alone(data, tmp_path):
    drawn = {}
    for name, options in {
        "a": {"sample": "4", "seed": 1},
        "b": {"sample": "4", "seed": 1},
        "c": {"sample": "4", "seed": 2},
        "all": {"sample": "1.0"},
    }.items():
        run(data, tmp_path / name, **options)
        drawn[name] = attempts_in(tmp_path / name)
    assert len(drawn["a"]) == 4
    assert drawn["a"] == drawn["b"] != drawn["c"]
    assert len(drawn["all"]) == 10


def test_sample_share_of_a_part_is_the_part_of_the_sample(data, tmp_path):
    run(data, tmp_path / "drawn", sample="0.5", seed=3)
    run(data, tmp_path / "part", where="task_id IN ('1', '4')")
    run(tmp_path / "part", tmp_path / "both", sample="0.5", seed=3)
    wanted = [(task, trial) for task, trial in attempts_in(tmp_path / "drawn") if task in (1, 4)]
    assert attempts_in(tmp_path / "both") == wanted


def test_sample_does_not_depend_on_the_order_of_rows(data, tmp_path):
    rows = table.read(location.existing(str(data)))
    order = np.random.default_rng(0).permutation(rows.num_rows)
    (tmp_path / "shuffled").mkdir()
    table.append(
        tmp_path / "shuffled" / "steps",
        rows.take(pa.array(order)),
        info={"command": "ingest"},
        partition_by=("log_format", "log_date"),
    )
    for options in (
        {"sample": "3"},
        {"limit_per_group": 1},
        {"top_k": 4, "top_by": "trajectory_return"},
        {"dedupe": "response"},
        {"split": "train=0.5,val=0.5"},
    ):
        name = "-".join(map(str, options.values()))
        for source in ("data", "shuffled"):
            run(tmp_path / source, tmp_path / f"{source}-{name}", **options)
        inner = "train" if "split" in options else ""
        assert trained(tmp_path / f"data-{name}" / inner) == trained(
            tmp_path / f"shuffled-{name}" / inner
        )


def test_limit_per_group_keeps_the_best_where_there_is_a_score(data, tmp_path):
    run(data, tmp_path / "drawn", limit_per_group=1)
    assert Counter(task for task, _ in attempts_in(tmp_path / "drawn")) == dict.fromkeys(RETURNS, 1)
    run(data, tmp_path / "best", limit_per_group=1, top_by="trajectory_return + trial / 100")
    assert attempts_in(tmp_path / "best") == [(1, 0), (2, 1), (3, 0), (4, 2)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "Nothing is asked for"),
        ({"top_k": 3}, "needs --top-by"),
        ({"top_by": "reward"}, "nothing is limited"),
        ({"sample": "0"}, "no number of units"),
        ({"sample": "1.5"}, "no number of units"),
        ({"sample": "many"}, "no number of units"),
        ({"split": "train=0.9"}, "no NAME=SHARE|not 1"),
        ({"split": "train=0.9,val=0.2"}, "add up to 1.1"),
        ({"split": "../x=0.5,val=0.5"}, "no NAME=SHARE"),
        ({"split": "a=0.5,a=0.5"}, "no NAME=SHARE"),
        ({"split": "a=0.5,b=0.5", "split_by": "no"}, "no such column"),
        ({"split": "a=0.5,b=0.5", "split_by": "observation"}, "no key"),
        ({"assign": "loss_weight=2"}, "assigns no reward"),
    ],
)
def test_options_that_make_no_sense_are_refused(data, tmp_path, options, problem):
    with pytest.raises(UsageError, match=problem):
        run(data, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# -- duplicates and contamination ------------------------------------------------------------------


def calls_of(tmp_path, answers, *, prompts=None):
    records = [
        pair(
            [user(prompts[place] if prompts else f"question {place}")],
            assistant(answer),
            at=100.0 - place,
            uid=str(place),
        )
        for place, answer in enumerate(answers)
    ]
    path = write_lines(tmp_path / "calls.jsonl", records)
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "calls")))
    return tmp_path / "calls"


def kept_ids(place):
    return sorted(row["native_id"] for row in load(place) if row["loss_weight"] > 0)


def test_dedupe_response_keeps_the_earliest(tmp_path):
    calls = calls_of(tmp_path, ["same", "other", "same", "same"])
    report = run(calls, tmp_path / "out", dedupe="response")
    assert kept_ids(tmp_path / "out") == ["1", "3"]
    assert report.steps_dropped_by_clause["dedupe"] == 2


def test_dedupe_counts_only_what_is_left(tmp_path):
    calls = calls_of(tmp_path, ["same", "same"])
    run(calls, tmp_path / "out", where="native_id = '0'", dedupe="response")
    assert kept_ids(tmp_path / "out") == ["0"]


def test_dedupe_state_keeps_one_answer_to_a_prompt(tmp_path):
    calls = calls_of(tmp_path, ["a", "b", "c"], prompts=["same", "same", "other"])
    run(calls, tmp_path / "out", dedupe="state")
    assert kept_ids(tmp_path / "out") == ["1", "2"]


def test_dedupe_trajectory_drops_attempts_that_say_all_the_same(tmp_path):
    attempts = [(1, 0, 1.0, attempt("a")), (1, 1, 1.0, attempt("a")), (1, 2, 1.0, attempt("b"))]
    (tmp_path / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    report = run(tmp_path / "data", tmp_path / "out", dedupe="trajectory")
    assert report.trajectories_kept == 2
    assert (2 in {trial for _, trial in attempts_in(tmp_path / "out")}) is True


def test_dedupe_near_finds_what_differs_in_a_word(tmp_path):
    pytest.importorskip("datasketch")
    words = [f"word{number}" for number in range(200)]
    other = [f"other{number}" for number in range(200)]
    texts = [" ".join(words), " ".join([*words[:199], "end"]), " ".join(other), ""]
    run(calls_of(tmp_path, texts), tmp_path / "out", dedupe="near")
    assert kept_ids(tmp_path / "out") == ["1", "2", "3"]


PROMPT = "Write a function that returns the sum of two numbers and a test for it, please."


@pytest.mark.parametrize(
    "lines",
    [
        [json.dumps({"task_id": "x", "prompt": PROMPT})],
        [PROMPT.upper().replace(",", " --")],
        [json.dumps([{"question": PROMPT}])],
        [json.dumps({"messages": [{"role": "user", "content": PROMPT}]})],
    ],
)
def test_decontaminate_finds_prompts_whatever_their_spelling(tmp_path, lines):
    calls = calls_of(
        tmp_path, ["a", "b"], prompts=["Hello. " + PROMPT + " Thanks!", "Something else."]
    )
    path = tmp_path / "eval.txt"
    path.write_text("\n".join(lines))
    run(calls, tmp_path / "out", decontaminate=str(path))
    assert kept_ids(tmp_path / "out") == ["1"]


def test_decontaminate_takes_whole_attempts_by_task_and_by_their_first_prompt(data, tmp_path):
    (tmp_path / "eval").write_text("3\n1\n")
    report = run(data, tmp_path / "out", decontaminate=str(tmp_path / "eval"))
    assert {task for task, _ in attempts_in(tmp_path / "out")} == {2, 4}
    assert report.steps_dropped_by_clause["decontaminate"] == 11
    (tmp_path / "eval").write_text('{"prompt": "U"}\n')
    assert run(data, tmp_path / "none", decontaminate=str(tmp_path / "eval")).steps_kept == 0


@pytest.mark.parametrize("text", ["", '{"score": 1}\n', "\n\n"])
def test_decontaminate_file_that_names_nothing_is_refused(data, tmp_path, text):
    (tmp_path / "eval").write_text(text)
    with pytest.raises(DataError, match=r"no task|neither a task id"):
        run(data, tmp_path / "out", decontaminate=str(tmp_path / "eval"))


# -- derived columns -------------------------------------------------------------------------------


def test_derived_columns_that_people_ask_for_first(tmp_path):
    again = assistant("", calls=[("c1", "f", '{"x": 1}')])
    first = [user("u"), again, tool("Error: no such file")]
    second = [*first, again, tool("fine, no error here")]
    third = [*second, assistant("", calls=[("c3", "f", "{broken")]), tool("Traceback (most recent")]
    records = [
        pair(first[:1], again, at=1.0, uid="0"),
        pair(first, again, at=2.0, uid="1"),
        pair(second, third[-2], at=3.0, uid="2"),
        pair(third, assistant("Done."), at=4.0, uid="3", reward=1.0),
    ]
    path = write_lines(tmp_path / "a.jsonl", records)
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    rows = load(tmp_path / "data")
    assert [row["tool_error"] for row in rows] == [False, True, False, True]
    assert [row["repeated_action"] for row in rows] == [False, True, False, False]
    assert [row["invalid_arguments"] for row in rows] == [False, False, True, False]
    assert [row["is_final_answer"] for row in rows] == [False, False, False, True]
    assert {row["group_solved_frac"] for row in rows} == {1.0}


def test_derived_repeated_action_looks_at_the_own_trajectory_alone(tmp_path):
    calls_of(tmp_path, ["same", "same", "same"])
    assert {row["repeated_action"] for row in load(tmp_path / "calls")} == {False}


def test_derived_length_quantile_and_staleness(data):
    by_length = {row["trajectory_length"]: row["length_quantile"] for row in load(data)}
    # of 10 attempts 4 have one step, 3 two, 2 three, 1 four
    assert by_length == {1: 0.0, 2: 4 / 9, 3: 7 / 9, 4: 1.0}
    assert {row["staleness_versions"] for row in load(data)} == {None}


def test_max_staleness_counts_from_the_newest_of_a_policy_and_null_apart(tmp_path):
    records = []
    for place, (policy, version) in enumerate([("p", 3), ("p", 5), ("q", 1), ("q", None)]):
        record = pair([user(str(place))], assistant(f"a{place}"), uid=str(place))
        record |= {"policy": policy, "policy_version": version}
        records.append(record)
    path = write_lines(tmp_path / "a.jsonl", records)
    columns = {"policy": "policy", "policy_version": "policy_version"}
    mapping = columns | {
        "messages": "request.messages",
        "response": "response",
        "native_id": "response.id",
    }
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data"), map=mapping))
    assert sorted(
        (row["native_id"], row["staleness_versions"]) for row in load(tmp_path / "data")
    ) == [("0", 2), ("1", 0), ("2", 0), ("3", None)]
    report = run(tmp_path / "data", tmp_path / "out", max_staleness=1)
    assert kept_ids(tmp_path / "out") == ["1", "2"]
    assert report.steps_dropped_by_clause["max_staleness"] == 1
    assert report.steps_dropped_by_clause["max_staleness_null"] == 1


# -- sidecars and rewards --------------------------------------------------------------------------


def attach(data, name, rows):
    sidecars.append(location.existing(str(data)), name, pa.Table.from_pylist(rows), info={})


def test_columns_of_sidecars_are_seen_of_steps_and_attempts_the_step_first(data, tmp_path):
    rows = load(data)
    one = next(row for row in rows if row["task_id"] == "4" and row["trial"] == 2)
    step = next(
        row
        for row in rows
        if row["trajectory_uid"] == one["trajectory_uid"] and row["step_index"] == 1
    )
    attach(
        data,
        "feedback",
        [
            {"step_uid": None, "trajectory_uid": one["trajectory_uid"], "score": 1.0, "text": "ok"},
            {"step_uid": step["step_uid"], "trajectory_uid": None, "score": -1.0, "text": "no"},
        ],
    )
    report = run(data, tmp_path / "out", where="feedback.score > 0")
    assert (report.steps_kept, report.steps_null) == (2, NUM_STEPS - 3)
    assert step["step_uid"] not in trained(tmp_path / "out")
    # what was curated sees what is attached to its input, also later
    attach(data, "late", [{"trajectory_uid": one["trajectory_uid"], "good": True}])
    again = run(tmp_path / "out", tmp_path / "again", where="late.good AND feedback.text = 'ok'")
    assert again.steps_kept == 2


def test_reward_expr_is_the_reward_of_attempts_and_the_signal_follows(data, tmp_path):
    rows = {(row["task_id"], row["trial"]): row["trajectory_uid"] for row in load(data)}
    scores = {("1", 0): 0.0, ("1", 1): 1.0, ("1", 2): 0.5, ("1", 3): 0.5}
    attach(data, "tests", [{"trajectory_uid": rows[k], "pass": v} for k, v in scores.items()])
    attach(data, "judge", [{"trajectory_uid": rows[k], "score": 1.0} for k in scores])
    run(
        data,
        tmp_path / "out",
        where="task_id = '1'",
        reward_expr="0.8*tests.pass + 0.2*judge.score",
    )
    found = load(tmp_path / "out")
    returns = {(row["task_id"], row["trial"]): row["trajectory_return"] for row in found}
    assert returns == pytest.approx({k: 0.8 * v + 0.2 for k, v in scores.items()}, abs=1e-15)
    means = {row["group_reward_mean"] for row in found}
    assert list(means) == [pytest.approx(0.6, abs=1e-15)]
    assert {row["group_size"] for row in found} == {4}
    last = [row for row in found if row["is_last"]]
    assert all(row["reward"] == row["trajectory_reward"] == row["return_to_go"] for row in last)
    assert all(row["reward"] is None for row in found if not row["is_last"])
    assert {row["reward_source"] for row in found} == {
        "reward-expr:0.8*tests.pass + 0.2*judge.score"
    }


def test_reward_expr_after_a_curation_is_computed_over_all_attempts_there_were(data, tmp_path):
    run(data, tmp_path / "won", where="trajectory_return = 1")
    run(tmp_path / "won", tmp_path / "out", reward_expr="2 * trajectory_return")
    run(
        data,
        tmp_path / "direct",
        where="trajectory_return = 2",
        reward_expr="2 * trajectory_return",
    )
    wanted = {row["step_uid"]: row for row in load(tmp_path / "direct")}
    found = {row["step_uid"]: row for row in load(tmp_path / "out")}
    assert wanted.keys() == found.keys() != set()
    for uid, row in found.items():
        assert row == wanted[uid] | {"loss_weight": row["loss_weight"]}


def test_reward_expr_where_the_first_input_is_gone_needs_regroup(data, tmp_path):
    run(data, tmp_path / "won", where="trajectory_return = 1")
    data.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"cannot be read any more.*--regroup"):
        run(tmp_path / "won", tmp_path / "out", reward_expr="2 * trajectory_return")
    run(tmp_path / "won", tmp_path / "out", reward_expr="2 * trajectory_return", regroup=True)
    assert {row["group_reward_mean"] for row in load(tmp_path / "out")} == {2.0}


def test_regroup_computes_the_statistics_of_what_is_left(data, tmp_path):
    run(data, tmp_path / "won", where="trajectory_return = 1", regroup=True)
    found = {row["task_id"]: row for row in load(tmp_path / "won")}
    assert {task: row["group_size"] for task, row in found.items()} == {"1": 1, "2": 2, "4": 1}
    assert {row["group_reward_mean"] for row in found.values()} == {1.0}


def test_assign_clips_and_shapes_each_step_and_null_stays_null(data, tmp_path):
    run(
        data,
        tmp_path / "out",
        assign="reward=CASE WHEN reward > 0.5 THEN 0.5 ELSE reward END - 0.01 * step_index",
    )
    for row in load(tmp_path / "out"):
        if row["is_last"]:
            expected = (
                min(RETURNS[int(row["task_id"])][row["trial"]], 0.5) - 0.01 * row["step_index"]
            )
            assert row["reward"] == pytest.approx(expected, abs=1e-15)
        else:
            assert row["reward"] is None


def test_assign_takes_statistics_of_the_train_split_alone(data, tmp_path):
    run(
        data,
        tmp_path / "out",
        split="train=0.5,val=0.5",
        assign="reward=(reward - train.reward_mean) / train.reward_std",
    )
    train = [row["reward"] for row in load(tmp_path / "out" / "train") if row["reward"] is not None]
    val = [row["reward"] for row in load(tmp_path / "out" / "val") if row["reward"] is not None]
    assert len(train) + len(val) == 10
    assert np.mean(train) == pytest.approx(0, abs=1e-12)
    assert np.std(train, ddof=1) == pytest.approx(1, abs=1e-12)
    assert abs(np.mean(val)) > 1e-3


# -- splits and the ledger -------------------------------------------------------------------------


def test_split_keeps_groups_whole_and_every_step_once(data, tmp_path):
    report = run(data, tmp_path / "out", split="train=0.5,val=0.5", seed=1)
    train, val = (load(tmp_path / "out" / name) for name in ("train", "val"))
    groups = [{row["group_uid"] for row in rows} for rows in (train, val)]
    assert not groups[0] & groups[1]
    assert len(train) + len(val) == NUM_STEPS
    assert report.steps_kept_by_split == {"train": len(train), "val": len(val)}
    # whole groups keep their statistics, and a part of the data goes where the whole went
    run(data, tmp_path / "part", where="task_id IN ('1', '2')", split="train=0.5,val=0.5", seed=1)
    assert trained(tmp_path / "part" / "train") <= trained(tmp_path / "out" / "train")


def test_split_shares_are_met(tmp_path):
    calls = calls_of(tmp_path, [f"a{number}" for number in range(400)])
    report = run(calls, tmp_path / "out", split="train=0.8,val=0.1,test=0.1")
    shares = {name: steps / 400 for name, steps in report.steps_kept_by_split.items()}
    # four standard deviations of a fair draw
    assert shares == pytest.approx({"train": 0.8, "val": 0.1, "test": 0.1}, abs=0.08)


def test_split_replaces_only_what_curate_wrote(data, tmp_path):
    run(data, tmp_path / "out", split="train=0.5,val=0.5")
    run(data, tmp_path / "out", split="train=0.5,val=0.5", force=True)
    run(data, tmp_path / "out", where="true", force=True)
    assert not (tmp_path / "out" / "train").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(StoreError):
        run(data, tmp_path / "mine", split="train=0.5,val=0.5", force=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


ALL = {
    "where": "step_index < 3",
    "where_trajectory": "count(*) < 4 OR trajectory_return > 0",
    "where_group": "count(*) > 1",
    "dedupe": "response",
    "limit_per_group": 2,
    "top_k": 4,
    "top_by": "trajectory_return",
    "sample": "3",
}


def test_ledger_adds_up_and_is_stored_and_explained(data, tmp_path, claw):
    report = run(data, tmp_path / "out", **ALL)
    assert balance(report) == report.steps_in == NUM_STEPS
    dropped = sum(entry.steps for entry in report.ledger)
    assert report.steps_in - dropped == report.steps_kept
    assert sum(entry.steps_context for entry in report.ledger) == report.steps_context
    (info,) = table.history(tmp_path / "out" / "steps")
    assert [entry["clause"] for entry in info["ledger"]] == [e.clause for e in report.ledger]
    done = claw("curate", data, "--where", "step_index = 1", "--explain", "-o", tmp_path / "b")
    assert done.code == 0
    assert "where: step_index = 1" in done.err
    assert "steps in the input" in done.err


def test_same_seed_gives_the_same_on_one_and_two_threads(data, tmp_path, monkeypatch):
    kept = []
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        pa.set_cpu_count(int(threads))
        try:
            run(data, tmp_path / threads, **ALL)
        finally:
            pa.set_cpu_count(2)
        kept.append(table.read(location.existing(str(tmp_path / threads))).to_pylist())
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("reward > 0", "step_index < 2"),
        ("num_tool_calls = 1", "group_reward_std > 0"),
        ("trial < 2", "group_solved_frac < 1 AND return_to_go > 0"),
        ("step_index > 0", "trajectory_return > 0.2"),
    ],
)
def test_curate_twice_is_curate_with_both_for_row_wise_conditions(data, tmp_path, x, y):
    run(data, tmp_path / "x", where=x)
    run(tmp_path / "x", tmp_path / "xy", where=y)
    run(data, tmp_path / "both", where=f"({x}) AND ({y})")
    assert trained(tmp_path / "xy") == trained(tmp_path / "both")
    statistics = [
        {
            row["step_uid"]: [row[name] for name in ("group_reward_mean", "return_to_go")]
            for row in load(tmp_path / name)
            if row["loss_weight"] > 0
        }
        for name in ("xy", "both")
    ]
    assert statistics[0] == statistics[1]


def test_what_is_attached_is_seen_by_curate(data, tmp_path, claw):
    uids = {(row["task_id"], row["trial"]): row["trajectory_uid"] for row in load(data)}
    lines = [
        {"attempt": uids["1", trial], "thumbs": "up" if trial == 2 else "down", "score": trial}
        for trial in range(4)
    ]
    path = write_lines(tmp_path / "thumbs.jsonl", lines)
    on = ("--on", "trajectory_uid=attempt")
    assert claw("attach", data, path, "--name", "feedback", *on).code == 0
    where = "feedback.thumbs = 'up' AND feedback.score >= 2"
    run(data, tmp_path / "out", where=where)
    assert attempts_in(tmp_path / "out") == [(1, 2)]
    # the latest row counts
    path = write_lines(tmp_path / "later.jsonl", [lines[2] | {"thumbs": "down"}])
    assert claw("attach", data, path, "--name", "feedback", *on).code == 0
    assert run(data, tmp_path / "none", where=where).steps_kept == 0


@pytest.mark.parametrize("name", ["reward", "tools", "group_size", "links", "forgotten"])
def test_attach_refuses_names_that_mean_something_else(data, tmp_path, claw, name):
    path = write_lines(tmp_path / "a.jsonl", [{"task_id": "1", "x": 1}])
    done = claw("attach", data, path, "--name", name)
    assert (done.code, done.out) == (2, "")
    assert "Choose another --name." in done.err
