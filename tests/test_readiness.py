"""claw readiness: every reason alone in a small table, models, and what cannot be looked at."""

import json

import pytest
from conftest import SAMPLE, assistant, shared, tau, user
from table_data import commit, steps_of

from clawcli.curate.run import CurateConfig, curate
from clawcli.ingest.run import IngestConfig, ingest
from clawcli.inspect.readiness import ReadinessConfig, readiness
from clawcli.store import location, table, tokenizers

ALL = ("sft", "kto", "dpo", "awr", "reinforce", "ppo")
YES = tokenizers.load("tiny").encode("yes").tolist()


def good_rows():
    """Two groups of two attempts, one of each good; nothing speaks against any of the 4 steps."""
    return [
        {
            "step_uid": f"{i:032x}",
            "trajectory_uid": f"t{i}",
            "trajectory_kind": "main",
            "group_uid": f"g{i // 2}",
            "step_index": 0,
            "choice_index": 0,
            "prefix_messages": 0,
            "response": "yes",
            "reward": float(i % 2),
            "model": "m",
            "policy": "m",
            "policy_version": 1,
            "temperature": 1.0,
            "top_p": 1.0,
            "response_ids": YES,
            "rollout_logprobs": [-1.0] * len(YES),
            "state_kind": "full",
            "loss_weight": 1.0,
            "log_format": "chat",
            "log_date": "2026-01-01",
        }
        for i in range(4)
    ]


@pytest.fixture
def ready(tmp_path):
    """Write rows as a data directory and say what it is ready for."""

    def run(rows, **options):
        commit(tmp_path / "data" / "steps", steps_of(*rows))
        return readiness(ReadinessConfig(input=str(tmp_path / "data"), **options))

    return run


def in_first(**changes):
    def edit(rows):
        rows[0] |= changes
        return rows

    return edit


def in_all(**changes):
    def edit(rows):
        return [row | changes for row in rows]

    return edit


def one_group_each(rows):
    return [row | {"group_uid": f"g{i}"} for i, row in enumerate(rows)]


def no_spread(rows):
    return [row | {"reward": float(i // 2)} for i, row in enumerate(rows)]


def third_attempt(**changes):
    """A step whose group has spread without it."""

    def edit(rows):
        new = {"step_uid": f"{9:032x}", "trajectory_uid": "t9", "group_uid": "g0"}
        return [rows[0] | new | changes, *rows]

    return edit


def sampling(**settings):
    return {"sampling": json.dumps(settings)}


CALL = {"id": "c", "name": "f", "arguments": "{}"}
LONG = len(YES) + 1

CASES = [
    (in_first(response="", response_ids=None, rollout_logprobs=None), "no_action_tokens", ALL),
    (in_first(loss_weight=0.0), "loss_weight_zero", ALL),
    (in_first(loss_weight=None), "loss_weight_zero", ALL),
    (in_first(rollout_logprobs=None), "logprobs_missing", ["ppo"]),
    (in_first(rollout_logprobs=[None] * len(YES)), "logprobs_missing", ["ppo"]),
    (in_first(response_ids=None), "ids_missing", ["ppo"]),
    (in_first(rollout_logprobs=[-1.0] * LONG), "length_mismatch", ["ppo"]),
    (in_first(temperature=None), "temperature_not_logged", ["ppo"]),
    (in_first(temperature=0.0), "temperature_zero", ["ppo"]),
    (in_first(top_p=0.9), "top_p", ["ppo"]),
    (in_first(**sampling(top_k=40)), "top_k", ["ppo"]),
    (in_first(**sampling(min_p=0.1)), "min_p", ["ppo"]),
    (in_first(**sampling(presence_penalty=0.5)), "penalties", ["ppo"]),
    (in_first(**sampling(logit_bias={"5": 1})), "penalties", ["ppo"]),
    (in_first(**sampling(response_format="json")), "grammar", ["ppo"]),
    (in_first(**sampling(top_k="many")), "sampling_unreadable", ["ppo"]),
    (in_first(state_kind="reconstructed"), "state_reconstructed", ["ppo"]),
    (in_first(state_kind="partial"), "state_partial", ["ppo"]),
    (in_first(state_kind="unknown"), "state_unknown", ["ppo"]),
    (in_first(state_kind=None), "state_unknown", ["ppo"]),
    (in_first(tool_calls=[CALL]), "tools_missing", ["ppo"]),
    (in_first(policy_version=0), "stale", []),
    (third_attempt(reward=None), "reward_missing", ["kto", "dpo", "awr", "reinforce", "ppo"]),
    (one_group_each, "group_of_one", ["dpo", "reinforce", "ppo"]),
    (no_spread, "no_spread", ["dpo", "reinforce", "ppo"]),
]


def test_readiness_of_a_table_without_flaw_is_good_for_all(ready):
    report = ready(good_rows())
    assert report.steps_by_reason == {}
    assert report.steps_valid_by_objective == dict.fromkeys(ALL, 4)
    assert report.steps_with_signal_by_objective == dict.fromkeys(ALL, 4)
    assert report.headline.startswith("Good for sft, kto, dpo, awr, reinforce and ppo; ")
    assert (report.steps, report.groups, report.groups_without_spread) == (4, 2, 0)


@pytest.mark.parametrize(("edit", "reason", "against"), CASES)
def test_readiness_of_a_table_with_one_flaw_names_it_alone(ready, edit, reason, against):
    rows = edit(good_rows())
    report = ready(rows)
    hit = len(rows) if reason in ("group_of_one", "no_spread") else 1
    assert report.steps_by_reason == {reason: hit}
    assert report.frac_by_reason == {reason: hit / len(rows)}
    assert set(report.objectives_by_reason[reason]) == set(against)
    expected = {name: len(rows) - hit * (name in against) for name in ALL}
    assert report.steps_with_signal_by_objective == expected
    (only,) = report.slices
    assert only.steps_by_reason == report.steps_by_reason


@pytest.mark.parametrize(
    "edit",
    [
        in_first(rollout_logprobs=[*[-1.0] * (len(YES) - 1), None] if len(YES) > 1 else [-1.0]),
        in_first(state_kind="supplied"),
        in_first(top_p=None),
        in_first(response="", reasoning="because"),
        in_first(response="", response_parts="[1]"),
        in_first(tool_calls=[CALL], tools="[]"),
        in_first(policy_version=None),
        in_first(policy="other", policy_version=0),
        in_first(**sampling(top_k=-1, min_p=0, repetition_penalty=1)),
    ],
)
def test_readiness_of_what_is_no_flaw_has_no_reason(ready, edit):
    report = ready(edit(good_rows()))
    assert {k: v for k, v in report.steps_by_reason.items() if k != "group_of_one"} == {}


def test_readiness_of_a_log_without_rewards_blames_nothing_else_that_follows(ready):
    report = ready(in_all(reward=None)(good_rows()))
    assert report.steps_by_reason == {"reward_missing": 4}
    assert report.steps_valid_by_objective["ppo"] == 4
    assert report.steps_with_signal_by_objective == {**dict.fromkeys(ALL, 0), "sft": 4}


def test_readiness_of_a_policy_that_nothing_can_measure_is_foreign(ready):
    rows = good_rows()
    for row in rows[:2]:
        row |= {"policy": None, "temperature": None}
    report = ready(rows)
    assert report.steps_by_reason == {"policy_foreign": 2, "temperature_not_logged": 2}
    assert report.steps_policy_unknown == 2
    by_policy = {each.policy: each for each in report.slices}
    assert by_policy["m"].steps_by_reason == {}
    assert by_policy[None].steps_valid_by_objective["ppo"] == 0


def test_readiness_tools_are_those_of_the_parent_unless_the_state_is_restated(ready):
    rows = good_rows()
    rows[0] |= {"tools": "[]", "tool_calls": [CALL]}
    child = {"step_index": 1, "parent_step_uid": rows[0]["step_uid"], "reward": None}
    late = {
        "step_uid": f"{8:032x}",
        "step_index": 2,
        "parent_step_uid": f"{7:032x}",
        "tools": None,
    }
    heir = rows[0] | child | {"step_uid": f"{7:032x}", "prefix_messages": 2, "tools": None}
    assert ready([*rows, heir, heir | late]).steps_by_reason == {}


def test_readiness_tools_of_a_restated_state_are_not_those_of_the_parent(ready):
    rows = good_rows()
    rows[0] |= {"tools": "[]", "tool_calls": [CALL]}
    child = {"step_index": 1, "parent_step_uid": rows[0]["step_uid"], "reward": None}
    anew = rows[0] | child | {"step_uid": f"{7:032x}", "prefix_messages": 0, "tools": None}
    heir = anew | {"step_uid": f"{8:032x}", "step_index": 2, "prefix_messages": 1}
    heir["parent_step_uid"] = anew["step_uid"]
    assert ready([*rows, anew, heir]).steps_by_reason == {"tools_missing": 2}


def test_readiness_parents_that_form_a_circle_end(ready):
    rows = good_rows()[:3]
    for i, row in enumerate(rows):
        row |= {"parent_step_uid": rows[(i + 1) % 3]["step_uid"], "prefix_messages": 1}
        row |= {"tool_calls": [CALL]}
    assert ready([*rows, good_rows()[3]]).steps_by_reason == {"tools_missing": 3}


def test_readiness_stale_is_behind_the_newest_of_the_same_policy(ready):
    rows = [
        row | {"group_uid": "g", "policy": policy, "policy_version": version}
        for row, (policy, version) in zip(
            good_rows(), [("a", 3), ("a", 5), ("b", 3), ("b", 3)], strict=True
        )
    ]
    report = ready(rows)
    assert report.steps_by_reason == {"stale": 1}
    assert report.steps_with_signal_by_objective == dict.fromkeys(ALL, 4)
    assert report.objectives_by_reason == {"stale": []}


def test_readiness_slices_are_format_model_and_policy_the_largest_first(ready):
    rows = good_rows()
    rows[0] |= {"model": "other"}
    report = ready(rows)
    names = [(each.log_format, each.model, each.policy, each.steps) for each in report.slices]
    assert names == [("chat", "m", "m", 3), ("chat", "other", "m", 1)]


def test_readiness_groups_are_counted_by_what_they_can_teach(ready):
    rows = good_rows()
    rewards = [0.0, 0.0, 2.5, 2.5, 1.0, 0.0, 1.0, None, None]
    groups = ["a", "a", "b", "b", "c", "c", "d", "d", "e"]
    rows = [
        rows[0] | {"step_uid": f"{i:032x}", "trajectory_uid": f"t{i}", "reward": r, "group_uid": g}
        for i, (r, g) in enumerate(zip(rewards, groups, strict=True))
    ]
    branch = {"step_uid": "f" * 32, "trajectory_uid": "branch", "trajectory_kind": "branch"}
    report = ready([*rows, rows[8] | branch | {"group_uid": "none but a branch"}])
    assert (report.groups, report.groups_without_return, report.groups_of_one) == (5, 1, 1)
    assert report.groups_without_spread == 2
    assert report.groups_without_spread_by_return == {"0": 1, "2.5": 1}


def successes(tmp_path):
    rows = good_rows()
    commit(tmp_path / "data" / "steps", steps_of(*rows))
    output = tmp_path / "good"
    curate(CurateConfig(input=str(tmp_path / "data"), output=str(output), where="reward > 0"))
    return output


def test_readiness_of_a_curated_directory_reads_the_frozen_statistics(tmp_path):
    report = readiness(ReadinessConfig(input=str(successes(tmp_path))))
    assert report.steps == 2
    assert report.steps_by_reason == {"returns_equal": 2}
    assert report.steps_with_signal_by_objective == {**dict.fromkeys(ALL, 2), "kto": 0}
    assert report.groups_without_spread == 0


def test_readiness_of_no_steps_says_so(ready, claw, tmp_path):
    report = ready([])
    assert report.headline == "There is no step to train on."
    assert (report.steps, report.slices, report.frac_by_reason) == (0, (), {})
    assert claw("readiness", tmp_path / "data").err == "There is no step to train on.\n"


def test_readiness_of_a_version_looks_at_that_version(ready, tmp_path):
    ready(good_rows()[:2])
    ready(good_rows()[2:])
    old = readiness(ReadinessConfig(input=f"{tmp_path}/data@0"))
    assert (old.steps, old.table_version) == (2, 0)
    new = readiness(ReadinessConfig(input=f"{tmp_path}/data"))
    assert (new.steps, new.table_version) == (4, 1)


def test_readiness_counts_attached_rewards(tmp_path):
    rewards = tmp_path / "rewards.jsonl"
    attempts = [("a", trial, None, [user("u"), assistant(f"x{trial}")]) for trial in (0, 1)]
    (tmp_path / "t.json").write_text(tau(attempts))
    rewards.write_text(
        "".join(f'{{"task_id": "a", "trial": {i}, "reward": {i}}}\n' for i in (0, 1))
    )
    config = IngestConfig(
        inputs=(str(tmp_path / "t.json"),), output=str(tmp_path / "data"), rewards=str(rewards)
    )
    assert "no reward" not in (ingest(config).readiness or "no reward")
    report = readiness(ReadinessConfig(input=str(tmp_path / "data")))
    assert "reward_missing" not in report.steps_by_reason
    assert report.steps_with_signal_by_objective["dpo"] == 2


def test_ingest_of_little_into_a_large_table_points_to_readiness(tmp_path, claw, monkeypatch):
    monkeypatch.setattr("clawcli.ingest.report._OUTLOOK_STEPS", 1)
    attempts = [("a", trial, 1.0, [user("u"), assistant(f"x{trial}")]) for trial in range(3)]
    (tmp_path / "t.json").write_text(tau(attempts))
    arguments = ("ingest", tmp_path / "t.json", "-o", tmp_path / "data")
    assert claw(*arguments, "--dry-run", "--json").report["readiness"] is None
    assert claw(*arguments).err.splitlines()[-1].startswith("Good for sft")
    again = claw(*arguments)
    assert again.err.splitlines()[-1] == f"claw readiness {tmp_path}/data says what it can train."
    assert claw(*arguments, "--json").report["readiness"] is None


def test_ingest_whose_table_cannot_be_looked_through_still_counts(tmp_path, claw):
    (tmp_path / "t.json").write_text(tau([("a", 0, 1.0, [user("u"), assistant("x")])]))
    arguments = ("ingest", tmp_path / "t.json", "-o", tmp_path / "data")
    claw(*arguments)
    commit(tmp_path / "data" / "steps", table.read(location.existing(str(tmp_path / "data"))))
    result = claw(*arguments)
    assert result.code == 0
    assert "What the table is good for cannot be told: " in result.err


def test_readiness_steps_without_ids_have_no_tokenizer_to_doubt(ready):
    assert ready(in_first(response_ids=None)(good_rows())).steps_tokenizer_unknown == 3


def model_directory(tmp_path, name="m", *, tokenizer=True, config='{"_name_or_path": ""}'):
    path = tmp_path / "models" / name
    path.mkdir(parents=True)
    if config is not None:
        (path / "config.json").write_text(config)
    if tokenizer:
        tokenizers.load("tiny").to_file(path / "tokenizer.json")
    return path


def test_readiness_with_the_model_that_acted_knows_policy_and_tokenizer(ready, tmp_path):
    report = ready(good_rows(), model=str(model_directory(tmp_path)))
    assert report.headline == "Good for sft, kto, dpo, awr, reinforce and ppo."
    assert (report.steps_policy_unknown, report.steps_tokenizer_unknown) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        ("org/M", "{}"),
        ("Org/Base", '{"_name_or_path": "org/base"}'),
        ("base", '{"_name_or_path": "org/base"}'),
    ],
)
def test_readiness_a_policy_may_be_called_by_any_name_of_the_model(ready, tmp_path, policy, config):
    model = model_directory(tmp_path, config=config)
    assert ready(in_all(policy=policy)(good_rows()), model=str(model)).steps_by_reason == {}


def test_readiness_a_snapshot_of_the_hub_cache_is_called_by_its_repository(ready, tmp_path):
    model = model_directory(tmp_path, "models--org--base/snapshots/0123")
    rows = in_all(policy="org/base")(good_rows())
    assert ready(rows, model=str(model)).steps_by_reason == {}


def test_readiness_with_another_model_finds_the_policy_foreign(ready, tmp_path):
    report = ready(good_rows(), model=str(model_directory(tmp_path, "another")))
    assert report.steps_by_reason == {"policy_foreign": 4}
    assert report.steps_with_signal_by_objective == {**dict.fromkeys(ALL, 4), "ppo": 0}


def test_readiness_with_a_policy_that_is_not_logged_leaves_it_to_measuring(ready, tmp_path):
    report = ready(in_all(policy=None)(good_rows()), model=str(model_directory(tmp_path)))
    assert report.steps_by_reason == {}
    assert report.steps_policy_unknown == 4


FOREIGN_IDS = tokenizers.load("tiny").encode("other").tolist()
OTHER_IDS = {"response_ids": FOREIGN_IDS, "rollout_logprobs": [-1.0] * len(FOREIGN_IDS)}
BEYOND = {"response_ids": [10**6], "rollout_logprobs": [-1.0]}


@pytest.mark.parametrize(
    "changes", [OTHER_IDS, BEYOND, {**BEYOND, "response": "", "reasoning": "r"}]
)
def test_readiness_ids_that_do_not_decode_to_the_text_are_foreign(ready, tmp_path, changes):
    report = ready(in_all(**changes)(good_rows()), model=str(model_directory(tmp_path)))
    assert report.steps_by_reason == {"tokenizer_foreign": 4}
    assert report.objectives_by_reason == {"tokenizer_foreign": ["ppo"]}


def test_readiness_ids_are_judged_by_most_of_their_model(ready, tmp_path):
    rows = good_rows()
    more = [row | {"step_uid": f"{i:032x}"} for i in range(10, 28) for row in rows[:1]]
    rows[1] |= OTHER_IDS
    rows[2] |= {"tokenizer": "another", **OTHER_IDS}
    report = ready([*rows, *more], model=str(model_directory(tmp_path)))
    assert report.steps_by_reason["tokenizer_foreign"] == 1


def test_readiness_ids_whose_log_names_the_vocabulary_are_believed(ready, tmp_path):
    named = {"tokenizer": tokenizers.load("tiny").vocab_hash, **OTHER_IDS}
    report = ready(in_all(**named)(good_rows()), model=str(model_directory(tmp_path)))
    assert (report.steps_by_reason, report.steps_tokenizer_unknown) == ({}, 0)


@pytest.mark.parametrize("beside", [{"reasoning": "r"}, {"tool_calls": [CALL], "tools": "[]"}])
def test_readiness_ids_of_actions_that_are_not_text_alone_are_not_judged(ready, tmp_path, beside):
    rows = in_all(**OTHER_IDS, **beside)(good_rows())
    report = ready(rows, model=str(model_directory(tmp_path)))
    assert (report.steps_by_reason, report.steps_tokenizer_unknown) == ({}, 4)


def test_readiness_with_a_model_without_tokenizer_leaves_ids_unknown(ready, tmp_path, claw):
    model = model_directory(tmp_path, tokenizer=False)
    report = ready(in_all(**OTHER_IDS)(good_rows()), model=str(model))
    assert (report.steps_by_reason, report.steps_tokenizer_unknown) == ({}, 4)
    said = claw("readiness", tmp_path / "data", "--model", model)
    assert said.code == 0
    assert "not known for 4 steps: the model brings no tokenizer" in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["absent"], 4, "absent does not exist"),
        (["empty"], 3, "is not a data directory"),
        (["data@7"], 4, "7"),
        (["data", "--model", "absent"], 4, "no model directory"),
        (["data", "--model", "empty"], 3, "has no config.json"),
        (["data", "--model", "models/torn"], 3, "config.json cannot be read"),
        (["data", "--model", "models/no-vocabulary"], 3, "no readable tokenizer.json"),
        ([], 2, "data"),
    ],
)
def test_readiness_of_what_cannot_be_looked_at_is_one_sentence(
    tmp_path, claw, monkeypatch, arguments, code, said
):
    monkeypatch.chdir(tmp_path)
    commit(tmp_path / "data" / "steps", steps_of(*good_rows()))
    (tmp_path / "empty").mkdir()
    model_directory(tmp_path, "torn", config="{")
    (model_directory(tmp_path, "no-vocabulary") / "tokenizer.json").write_text("{}")
    result = claw("readiness", "-q", *arguments)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert len(result.err.splitlines()) == 1 or not arguments


def test_readiness_of_a_step_twice_is_refused(tmp_path, claw):
    commit(tmp_path / "data" / "steps", steps_of(*good_rows()[:1] * 2))
    result = claw("readiness", tmp_path / "data")
    assert result.code == 4
    assert "1 steps more than once" in result.err


def test_readiness_writes_nothing(ready, tmp_path):
    ready(good_rows())
    before = sorted(tmp_path.rglob("*"))
    readiness(ReadinessConfig(input=str(tmp_path / "data")))
    assert sorted(tmp_path.rglob("*")) == before


def test_readiness_in_words_begins_with_the_headline_and_gives_each_fix(ready, claw, tmp_path):
    rows = no_spread(good_rows())
    rows[0] |= {"top_p": 0.9}
    report = ready(rows)
    result = claw("readiness", tmp_path / "data")
    assert (result.code, result.out) == (0, "")
    lines = result.err.splitlines()
    assert lines[0] == report.headline
    assert lines[1] == (
        "2 of 2 groups have no spread (1 all fail, 1 all pass): 4 of 4 steps train nothing in "
        "groups."
    )
    assert lines[2] == (
        "chat, model m, policy m: 4 steps; valid for sft 4, kto 4, dpo 0, awr 4, reinforce 4 (0 "
        "with signal), ppo 3 (0 with signal)."
    )
    assert lines[3] == "  Against them: top_p 1, no_spread 4."
    assert lines[4] == "top_p: top_p is below 1 in 1 steps (25.0%); ppo. Sample with top_p = 1."
    assert "Collect several attempts per task" in lines[5]
    assert "claw train measures it, or --model DIR compares its name." in lines[6]


def test_readiness_in_words_names_ten_slices_and_counts_the_others(ready, claw, tmp_path):
    row = good_rows()[0]
    ready([row | {"step_uid": f"{i:032x}", "policy": f"p{i}"} for i in range(12)])
    result = claw("readiness", tmp_path / "data")
    assert "2 more formats, models and policies: --json lists all." in result.err
    assert len(claw("readiness", "--json", tmp_path / "data").report["slices"]) == 12


def test_readiness_json_has_the_keys_that_scripts_read(ready, claw, tmp_path):
    ready(good_rows())
    result = claw("readiness", "--json", tmp_path / "data")
    assert result.err == ""
    assert list(result.report) == [
        "claw_version",
        "command",
        "inputs",
        "output",
        "headline",
        "steps",
        "steps_valid_by_objective",
        "steps_with_signal_by_objective",
        "steps_by_reason",
        "frac_by_reason",
        "column_by_reason",
        "fix_by_reason",
        "objectives_by_reason",
        "steps_policy_unknown",
        "steps_tokenizer_unknown",
        "groups",
        "groups_without_return",
        "groups_of_one",
        "groups_without_spread",
        "groups_without_spread_by_return",
        "slices",
        "table_version",
        "duration_s",
    ]


def test_readiness_on_tau_bench_airline_is_what_the_issue_says(tmp_path, claw):
    log = shared("tau-bench", "gpt-4o-airline.json")
    ingested = claw("ingest", log, "-o", tmp_path / "data", "--json").report
    report = claw("readiness", tmp_path / "data", "--json").report
    assert (report["groups"], report["groups_without_spread"]) == (50, 24)
    assert report["groups_without_spread_by_return"] == {"0": 14, "1": 10}
    valid, signal = report["steps_valid_by_objective"], report["steps_with_signal_by_objective"]
    assert report["steps"] - signal["reinforce"] == 1234
    assert (report["steps"], valid["sft"], valid["awr"]) == (2454, 2454, 2454)
    assert (valid["dpo"], signal["dpo"], signal["kto"]) == (1220, 1220, 2454)
    assert (valid["ppo"], signal["ppo"]) == (0, 0)
    against = report["steps_by_reason"]
    assert against["policy_foreign"] == against["logprobs_missing"] == 2454
    assert report["headline"].endswith(
        "not for ppo (foreign policy, no log-probs, no token ids, 2 more)."
    )
    assert ingested["readiness"] == report["headline"]


def test_readiness_on_the_sample_log_counts_as_its_page_says(tmp_path, claw):
    ingested = claw("ingest", SAMPLE / "agent-logs", "-o", tmp_path / "data")
    result = claw("readiness", tmp_path / "data")
    headline, groups = result.err.splitlines()[:2]
    assert headline == (
        "Good for sft, kto and awr; in part for dpo and reinforce (92 of 129 steps); not for ppo "
        "(foreign policy, no log-probs, no token ids)."
    )
    assert groups == (
        "2 of 6 groups have no spread (1 all fail, 1 all pass): 37 of 129 steps train nothing in "
        "groups."
    )
    assert ingested.err.splitlines()[-1] == headline


def test_readiness_on_the_own_policy_log_is_good_for_ppo(tmp_path, claw):
    claw("ingest", SAMPLE / "own-policy.jsonl", "-o", tmp_path / "data")
    report = claw("readiness", tmp_path / "data", "--model", "tiny", "--json").report
    assert report["headline"] == "Good for sft, kto, dpo, awr, reinforce and ppo."
    assert (report["steps_policy_unknown"], report["steps_tokenizer_unknown"]) == (0, 0)
