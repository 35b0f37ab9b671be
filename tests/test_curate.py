import json
import math

import pytest
from conftest import assistant, pair, shared, system, tau, tool, user, write_lines

from clawcli.curate.run import CurateConfig, curate
from clawcli.errors import NotFoundError, OutputExistsError, UsageError, WhereError
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, query
from clawcli.store.state import States


def attempt(answer, steps=2):
    messages = [system("s"), user("u")]
    for i in range(steps):
        messages += [assistant(f"{answer} {i}", calls=[("c", "f", "{}")]), tool("r")]
    return messages


@pytest.fixture
def data(tmp_path):
    """Three groups: returns (1, 0, 0), (1, 1), (0.5)."""
    returns = {1: [1.0, 0.0, 0.0], 2: [1.0, 1.0], 3: [0.5]}
    attempts = [
        (task, trial, reward, attempt(f"{task}.{trial}"))
        for task, rewards in returns.items()
        for trial, reward in enumerate(rewards)
    ]
    (tmp_path / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    return tmp_path / "data"


def run(source, output, where, **options):
    return curate(CurateConfig(input=str(source), output=str(output), where=where, **options))


def load(place):
    return query.load_steps(location.existing(str(place)))


def by_task(steps, column):
    found = {}
    for row in steps.to_pylist():
        found.setdefault(row["task_id"], set()).add(row[column])
    return found


def test_derived_group_statistics_count_trajectories_not_steps(data):
    steps = load(data)
    assert by_task(steps, "group_size") == {"1": {3}, "2": {2}, "3": {1}}
    assert by_task(steps, "group_reward_mean") == {"1": {1 / 3}, "2": {1.0}, "3": {0.5}}
    std = by_task(steps, "group_reward_std")
    (first,) = std["1"]
    assert first == pytest.approx(math.sqrt(1 / 3), abs=1e-15)
    assert (std["2"], std["3"]) == ({0.0}, {None})


def test_derived_lengths_returns_and_places(data):
    rows = [row for row in load(data).to_pylist() if row["task_id"] == "3"]
    assert [row["trajectory_return"] for row in rows] == [0.5, 0.5]
    assert [row["return_to_go"] for row in rows] == [0.5, 0.5]
    assert [row["steps_to_end"] for row in rows] == [1, 0]
    assert [row["trajectory_length"] for row in rows] == [2, 2]
    assert [row["num_tool_calls"] for row in rows] == [1, 1]
    assert [row["response_chars"] for row in rows] == [5, 5]
    assert [row["mu_invalid_reason"] for row in rows] == ["logprobs_missing"] * 2


def test_derived_equal_returns_have_no_spread_whatever_the_rounding(tmp_path):
    attempts = [(1, trial, 0.1, attempt(str(trial), 1)) for trial in range(7)]
    (tmp_path / "t.json").write_text(tau(attempts))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    assert set(load(tmp_path / "data")["group_reward_std"].to_pylist()) == {0.0}


def test_derived_returns_that_differ_by_rounding_have_no_spread(tmp_path):
    records = []
    for run, rewards in (("a", (0.1, 0.2, 0.3)), ("b", (0.3, 0.2, 0.1))):
        messages = [user("u")]
        for turn, reward in enumerate(rewards):
            said = assistant(f"{run}{turn}")
            at = turn + (run == "b") / 2
            records.append(pair(messages, said, at=at, uid=f"{run}{turn}", reward=reward))
            messages = [*messages, said, user("on")]
    path = write_lines(tmp_path / "a.jsonl", records)
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    assert set(load(tmp_path / "data")["group_reward_std"].to_pylist()) == {0.0}


def test_derived_branches_and_samples_without_reward_stay_out_of_groups(tmp_path):
    start = [system("s"), user("u")]
    records = [
        pair(start, assistant("a"), assistant("other choice"), at=1.0, uid="0"),
        pair([*start, assistant("a"), user("v")], assistant("dead"), at=2.0, uid="dead"),
        pair([*start, assistant("a"), user("v")], assistant("b"), at=3.0, uid="1", reward=1.0),
    ]
    ingest(
        IngestConfig(
            inputs=(str(write_lines(tmp_path / "a.jsonl", records)),), output=str(tmp_path / "data")
        )
    )
    assert set(load(tmp_path / "data")["group_size"].to_pylist()) == {1}


def test_derived_return_to_go_sums_what_follows(tmp_path):
    start = [system("s"), user("u")]
    more = [*start, assistant("a"), user("v")]
    records = [
        pair(start, assistant("a"), at=1.0, uid="0", reward=0.25),
        pair(more, assistant("b"), at=2.0, uid="1"),
        pair([*more, assistant("b"), user("w")], assistant("c"), at=3.0, uid="2", reward=0.5),
    ]
    ingest(
        IngestConfig(
            inputs=(str(write_lines(tmp_path / "a.jsonl", records)),), output=str(tmp_path / "data")
        )
    )
    steps = load(tmp_path / "data")
    assert steps["return_to_go"].to_pylist() == [0.75, 0.5, 0.5]
    assert steps["trajectory_return"].to_pylist() == [0.75] * 3


@pytest.mark.parametrize(
    ("request_extra", "reason"),
    [
        ({"temperature": 1.0}, None),
        ({"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0}, None),
        ({}, "temperature_not_logged"),
        ({"temperature": 0}, "temperature_zero"),
        ({"temperature": 1, "top_p": 0.9}, "top_p"),
        ({"temperature": 1, "top_k": 40}, "top_k"),
        ({"temperature": 1, "min_p": 0.05}, "min_p"),
        ({"temperature": 1, "frequency_penalty": 0.5}, "penalties"),
        ({"temperature": 1, "repetition_penalty": 1.1}, "penalties"),
        ({"temperature": 1, "logit_bias": {"3": 1}}, "penalties"),
        ({"temperature": 1, "response_format": {"type": "json_object"}}, "grammar"),
        ({"temperature": 1, "guided_regex": "a+"}, "grammar"),
        ({"temperature": 1, "response_format": {"type": "text"}, "logit_bias": {}}, None),
        ({"temperature": 1, "extra_body": {"min_p": 0.1}}, "min_p"),
    ],
)
def test_derived_mu_is_valid_only_for_plain_sampling(tmp_path, request_extra, reason):
    record = pair([user("u")], assistant("a"), request=request_extra)
    record["response"]["choices"][0]["token_ids"] = [4]
    record["response"]["choices"][0]["logprobs"] = {"content": [{"logprob": -0.5}]}
    path = write_lines(tmp_path / "a.jsonl", [record])
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    (row,) = load(tmp_path / "data").to_pylist()
    assert (row["mu_valid"], row["mu_invalid_reason"]) == (reason is None, reason)


def test_curate_kept_and_context_and_dropped_add_up(data, tmp_path):
    report = run(data, tmp_path / "out", "step_index = 1 AND trajectory_reward = 1")
    assert (report.steps_in, report.steps_kept, report.steps_context) == (12, 3, 3)
    assert report.steps_dropped_by_clause == {"where": 6, "where_null": 0, "loss_weight": 0}
    weights = {
        (row["trajectory_uid"], row["step_index"]): row["loss_weight"]
        for row in load(tmp_path / "out").to_pylist()
    }
    assert sorted(weights.values()) == [0.0] * 3 + [1.0] * 3
    assert all(weight == index for (_, index), weight in weights.items())


def test_curate_context_reaches_up_to_the_root(tmp_path):
    (tmp_path / "t.json").write_text(tau([(1, 0, 1.0, attempt("a", steps=4))]))
    ingest(IngestConfig(inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data")))
    report = run(tmp_path / "data", tmp_path / "out", "steps_to_end = 0")
    assert (report.steps_kept, report.steps_context) == (1, 3)


def test_curate_step_that_restates_its_state_needs_no_context(tmp_path):
    records = [
        pair([user("now 1")], assistant("a"), at=1.0, uid="0"),
        pair([user("now 2"), assistant("a"), user("v")], assistant("b"), at=2.0, uid="1"),
    ]
    path = write_lines(tmp_path / "a.jsonl", records)
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    last = load(tmp_path / "data").to_pylist()[1]
    assert (last["prefix_messages"], last["prefix_broken"]) == (0, "history_edited")
    report = run(tmp_path / "data", tmp_path / "out", "step_index = 1")
    assert (report.steps_kept, report.steps_context) == (1, 0)
    assert len(States(load(tmp_path / "out")).prompt(0).messages) == 3


def test_curate_states_of_kept_steps_are_those_of_the_input(data, tmp_path):
    run(data, tmp_path / "out", "step_index = 1 AND trajectory_reward = 1")
    before, after = States(load(data)), load(tmp_path / "out")
    states = States(after)
    for row, uid in enumerate(after["step_uid"].to_pylist()):
        assert states.prompt(row) == before.prompt(before.row_of(uid))


def test_curate_null_is_counted_apart_and_not_true(data, tmp_path):
    report = run(data, tmp_path / "out", "reward > 0")
    assert (report.steps_null, report.steps_kept) == (6, 4)
    assert report.steps_dropped_by_clause == {"where": 2, "where_null": 2, "loss_weight": 0}


def test_curate_context_of_an_earlier_curation_is_not_trained_again(data, tmp_path):
    run(data, tmp_path / "one", "step_index = 1")
    report = run(tmp_path / "one", tmp_path / "two", "step_index = 0")
    assert (report.steps_kept, report.steps_context) == (0, 0)
    assert report.steps_dropped_by_clause == {"where": 6, "where_null": 0, "loss_weight": 6}


def test_curate_freezes_the_signal_so_that_successes_keep_an_advantage(data, tmp_path):
    run(data, tmp_path / "one", "trajectory_reward = 1")
    steps = load(tmp_path / "one")
    assert by_task(steps, "group_reward_mean") == {"1": {1 / 3}, "2": {1.0}}
    assert by_task(steps, "group_size") == {"1": {3}, "2": {2}}
    # a second curation reads them and computes nothing anew
    run(tmp_path / "one", tmp_path / "two", "group_reward_std > 0")
    assert by_task(load(tmp_path / "two"), "group_reward_mean") == {"1": {1 / 3}}


def test_curate_dropping_the_last_step_keeps_its_reward_in_the_return(data, tmp_path):
    run(data, tmp_path / "out", "step_index = 0")
    steps = load(tmp_path / "out")
    assert set(steps["reward"].to_pylist()) == {None}
    assert set(steps["trajectory_return"].to_pylist()) == {0.0, 0.5, 1.0}
    assert set(steps["is_last"].to_pylist()) == {False}


def test_curate_twice_trains_the_same_steps_as_both_conditions_at_once(data, tmp_path):
    run(data, tmp_path / "x", "trajectory_reward > 0")
    run(tmp_path / "x", tmp_path / "xy", "step_index = 1")
    run(data, tmp_path / "both", "trajectory_reward > 0 AND step_index = 1")

    def trained(place):
        return {r["step_uid"] for r in load(place).to_pylist() if r["loss_weight"] > 0}

    assert trained(tmp_path / "xy") == trained(tmp_path / "both") != set()


def test_curate_nothing_matched_is_an_answer(data, tmp_path):
    report = run(data, tmp_path / "out", "reward > 99")
    assert report.steps_kept == 0
    assert load(tmp_path / "out").num_rows == 0


def test_curate_commit_info_names_expression_and_input_version(data, tmp_path):
    run(data, tmp_path / "out", "reward > 0")
    from clawcli.store import table

    (info,) = table.history(tmp_path / "out" / "steps")
    assert (info["command"], info["config"]["where"]) == ("curate", "reward > 0")
    table_id = table.open_table(data / "steps").metadata().id
    origin = {"path": str(data), "kind": "data", "version": 0, "table_id": table_id}
    assert info["inputs"] == [origin]


def test_curate_output_that_exists_needs_force_and_input_is_never_replaced(data, tmp_path):
    run(data, tmp_path / "out", "reward > 0")
    with pytest.raises(OutputExistsError):
        run(data, tmp_path / "out", "reward > 0")
    assert run(data, tmp_path / "out", "reward = 0", force=True).steps_kept == 2
    with pytest.raises(UsageError, match="is the input"):
        run(data, data, "reward > 0", force=True)


def test_curate_dry_run_reports_the_same_and_writes_nothing(data, tmp_path):
    report = run(data, tmp_path / "out", "reward > 0", dry_run=True)
    assert (report.steps_kept, report.table_version) == (4, None)
    assert not (tmp_path / "out").exists()


def test_curate_missing_input_is_not_found(tmp_path):
    with pytest.raises(NotFoundError):
        run(tmp_path / "no", tmp_path / "out", "true")


HOSTILE = [
    ("true; drop table steps", "more than one expression"),
    ("true) or (false", "syntax error"),
    ("reward > 0 union all select 1", "set operation"),
    ("reward > 0 order by reward", "modifier"),
    ("reward > 0, true", "single expression"),
    ("row_number() over () < 3", "window functions"),
    ("count(*) > 1", "aggregates"),
    ("(select count(*) from read_text('/etc/passwd')) > 0", "disabled by configuration"),
    ("(select count(*) from '/etc/passwd') > 0", "/etc/passwd"),
    ("(select count(*) from glob('/*')) > 0", "disabled by configuration"),
    ("getenv('HOME') = 'x'", "getenv does not exist"),
    ("reward > 0 /*", "unterminated"),
    ("", "is empty"),
    ("reward", "is DOUBLE, not BOOLEAN"),
    ("?", "prepared parameter"),
]


@pytest.mark.parametrize(("where", "problem"), HOSTILE)
def test_where_hostile_expression_is_refused_with_a_sentence(data, tmp_path, where, problem):
    with pytest.raises(WhereError, match=problem):
        run(data, tmp_path / "out", where)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "where",
    ["set_config('memory_limit', '1TB') = 'x'", "(select 1 from duckdb_settings() limit 1) = 2"],
)
def test_where_cannot_change_settings(data, where):
    steps = load(data)
    try:
        found = query.match(steps, where, timeout_s=5)
    except WhereError:
        return
    assert not found.matched


def test_where_unknown_column_names_candidates(data, tmp_path):
    with pytest.raises(WhereError, match=r"rewardd.*Candidates: reward"):
        run(data, tmp_path / "out", "rewardd > 0")


def test_where_endless_expression_is_stopped(data, tmp_path):
    endless = "(select count(*) from range(100000000000)) > 0"
    with pytest.raises(WhereError, match=r"did not end within 0\.3 s"):
        run(data, tmp_path / "out", endless, where_timeout_s=0.3)


def test_where_sees_stored_and_derived_columns_and_nested_fields(data, tmp_path):
    where = "list_contains(list_transform(observation, lambda m: m.role), 'tool') AND NOT is_last"
    assert run(data, tmp_path / "a", where).steps_kept == 0
    where = "tool_calls[1].name = 'f' AND steps_to_end = 0"
    assert run(data, tmp_path / "b", where).steps_kept == 6


def test_curate_airline_keeps_the_expected_steps(tmp_path):
    path = shared("tau-bench", "gpt-4o-airline.json")
    ingest(IngestConfig(inputs=(str(path),), output=str(tmp_path / "data")))
    won = run(tmp_path / "data", tmp_path / "won", "trajectory_reward = 1")
    assert (won.steps_kept, won.trajectories_kept) == (829, 84)
    spread = run(tmp_path / "data", tmp_path / "spread", "group_reward_std > 0")
    assert (spread.steps_kept, spread.trajectories_kept, spread.groups_kept) == (1220, 104, 26)
    assert json.dumps(spread.steps_dropped_by_clause) == (
        '{"where": 1234, "where_null": 0, "loss_weight": 0}'
    )
