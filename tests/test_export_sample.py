"""claw export TREE --sample, --priority, stages, epochs and ranks: what is drawn, and what it weighs."""

import json
import shlex
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from conftest import SAMPLE, assistant, pair, user, write_lines

from clawcli.store import location, query, shards, sidecars


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The sample log with a priority for two thirds of its steps, and its tree."""
    from clawcli.cli import app

    place = tmp_path_factory.mktemp("made")
    data = str(place / "data")
    assert app.run(["ingest", str(SAMPLE / "agent-logs"), "-o", data, "--quiet"]) == 0
    steps = query.load_steps(location.existing(data))
    rows = [
        {"step_uid": uid, "priority": float(number % 7), "odd": -1.0 if number == 10 else 1.0}
        for number, uid in enumerate(sorted(steps["step_uid"].to_pylist()))
        if number % 3
    ]
    sidecars.append(location.existing(data), "told", pa.Table.from_pylist(rows), info={})
    tree = str(place / "tree")
    merge = ["merge-prefixes", data, "--tokenizer", "tiny", "-o", tree, "--quiet"]
    assert app.run(merge) == 0
    return place


@pytest.fixture
def export(made, tmp_path, claw):
    """Export the tree; gives the report and the opened shards."""

    def run(*flags, name="shards", toml=""):
        if toml:
            (tmp_path / "stages.toml").write_text(toml)
            flags = (*flags, "--config", tmp_path / "stages.toml")
        done = claw("export", made / "tree", "-o", tmp_path / name, "--json", *flags)
        assert done.code == 0, done.err
        assert claw("verify", tmp_path / name).code == 0
        return done.report, shards.open_shards(tmp_path / name)

    return run


def steps_of(opened):
    return [step for row in opened.rows() for step in row.steps.to_pylist()]


def trajectories_of(opened):
    return {step["trajectory_uid"] for step in steps_of(opened)}


def test_sample_takes_whole_trajectories_and_counts_what_it_leaves(export):
    whole, every = export(name="every")
    report, opened = export("--sample", "5")
    assert report["units_by_stage"] == {"0": 5}
    assert len(trajectories_of(opened)) == report["trajectories"] == 5
    counts = Counter(step["trajectory_uid"] for step in steps_of(every))
    assert report["steps"] == sum(counts[uid] for uid in trajectories_of(opened))
    assert report["steps_left_out_by_reason"] == {"not_drawn": whole["steps"] - report["steps"]}
    assert whole["steps_left_out_by_reason"] == {}


def test_sample_of_a_share_and_of_steps(export):
    whole, _ = export(name="every")
    report, opened = export("--sample", "0.25", "--unit", "step")
    assert report["steps"] == round(whole["steps"] / 4) == len(steps_of(opened))


def test_sample_is_that_of_the_seed_whatever_the_layout(export):
    options = ("--sample", "5", "--seed", "3")
    _, first = export(*options, name="a")
    _, other = export(*options, "--merge", "chain", "--max-tokens-per-row", "100", name="b")
    _, another = export("--sample", "5", "--seed", "4", name="c")
    assert trajectories_of(first) == trajectories_of(other) != trajectories_of(another)
    # a larger sample holds the smaller one
    _, larger = export("--sample", "9", "--seed", "3", name="d")
    assert trajectories_of(first) < trajectories_of(larger)


def test_all_units_have_probability_and_weight_one(export):
    report, opened = export()
    assert report["importance_weight_max"] == report["importance_weight_bound"] == 1.0
    for step in steps_of(opened):
        assert (step["pi"], step["sampling_weight"]) == (1.0, 1.0)
        assert step["weight"] == step["loss_weight"] == 1.0


def test_priorities_weigh_units_and_missing_ones_count_as_the_highest(export, made):
    settings = ("--set", "sampling.uniform_share=0.25", "--set", "sampling.alpha=0.5")
    options = ("--sample", "0.4", "--unit", "step", "--priority", "told.priority", *settings)
    report, opened = export(*options)
    _, every = export(name="every")
    steps = sorted(query.load_steps(location.existing(str(made / "data")))["step_uid"].to_pylist())
    known = {uid: n % 7 if n % 3 else None for n, uid in enumerate(steps)}
    uids = [step["step_uid"] for step in steps_of(every)]
    priorities = np.array([6 if known[uid] is None else known[uid] for uid in uids], float)
    missing = sum(known[uid] is None for uid in uids)
    zero = sum(known[uid] == 0 for uid in uids)
    assert report["priorities_by_kind"] == {"missing": missing, "zero": zero}
    powers = priorities**0.5
    weights = dict(zip(uids, 0.75 * powers / powers.mean() + 0.25, strict=True))
    found = steps_of(opened)
    threshold = opened.manifest.plan.stages[0].threshold
    importance = np.array([1 / step["pi"] for step in found])
    importance /= importance.mean()
    for step, factor in zip(found, importance, strict=True):
        weight = weights[step["step_uid"]]
        assert step["sampling_weight"] == pytest.approx(weight, rel=1e-12)
        assert step["pi"] == pytest.approx(1 - np.exp(-weight * threshold), rel=1e-12)
        assert step["weight"] == pytest.approx(factor, rel=1e-12)
    assert np.mean([step["weight"] for step in found]) == pytest.approx(1.0, rel=1e-12)
    assert report["importance_weight_max"] == pytest.approx(importance.max(), rel=1e-12)
    # the least likely unit is one of priority 0
    least = 1 - np.exp(-0.25 * threshold)
    bound = importance[0] * found[0]["pi"] / least
    assert report["importance_weight_bound"] == pytest.approx(bound, rel=1e-12)
    assert report["importance_weight_max"] <= report["importance_weight_bound"]


def test_beta_says_how_far_weights_make_up_for_the_draw(export):
    options = ("--sample", "0.4", "--unit", "step", "--priority", "told.priority")
    _, full = export(*options, name="a")
    _, half = export(*options, "--set", "sampling.beta=0.5", name="b")
    _, none = export(*options, "--set", "sampling.beta=0", name="c")
    weights = {}
    for name, opened in (("full", full), ("half", half), ("none", none)):
        weights[name] = {step["step_uid"]: step["weight"] for step in steps_of(opened)}
    a, b, *_ = weights["full"]
    ratio = weights["full"][a] / weights["full"][b]
    assert weights["half"][a] / weights["half"][b] == pytest.approx(ratio**0.5, rel=1e-9)
    assert set(weights["none"].values()) == {1.0}


def test_priority_of_a_trajectory_is_an_expression_over_its_steps(export):
    report, opened = export(
        "--sample",
        "6",
        "--priority",
        "max(told.priority) + count(*)",
        "--set",
        "sampling.uniform_share=0",
    )
    assert report["trajectories"] == 6
    of_unit = {}
    for step in steps_of(opened):
        of_unit.setdefault(step["trajectory_uid"], set()).add((step["pi"], step["weight"]))
    assert all(len(values) == 1 for values in of_unit.values())
    assert len(set.union(*of_unit.values())) > 1


def test_priority_zero_is_never_drawn_without_a_uniform_share(export):
    _, opened = export(
        "--sample",
        "0.99",
        "--unit",
        "step",
        "--priority",
        "step_index % 2",
        "--set",
        "sampling.uniform_share=0",
    )
    assert {step["step_index"] % 2 for step in steps_of(opened)} == {1}


def test_priorities_that_are_all_zero_draw_evenly_and_are_counted(export):
    report, opened = export("--sample", "4", "--priority", "0.0 * count(*)")
    assert len(trajectories_of(opened)) == 4
    assert report["priorities_by_kind"]["zero"] > 4
    assert {step["sampling_weight"] for step in steps_of(opened)} == {1.0}


def test_stale_units_are_drawn_less_often(tmp_path, claw):
    records = [
        pair([user(f"Question {number}?")], assistant(f"Answer {number}."), uid=f"u{number}")
        | {"policy": "p", "policy_version": number % 4 or None}
        for number in range(12)
    ]
    write_lines(tmp_path / "log.jsonl", records)
    columns = {
        "messages": "request.messages",
        "response": "response",
        "policy": "policy",
        "policy_version": "policy_version",
    }
    mapping = [f"--map={name}={field}" for name, field in columns.items()]
    assert claw("ingest", tmp_path / "log.jsonl", "-o", tmp_path / "data", *mapping).code == 0
    tree = tmp_path / "tree"
    assert claw("merge-prefixes", tmp_path / "data", "--tokenizer", "tiny", "-o", tree).code == 0
    settings = ("sampling.staleness_decay=0.5", "sampling.uniform_share=0.2")
    flags = [part for setting in settings for part in ("--set", setting)]
    assert claw("export", tree, "-o", tmp_path / "s", "--sample", "11", *flags).code == 0
    assert claw("verify", tmp_path / "s").code == 0
    found = steps_of(shards.open_shards(tmp_path / "s"))
    # versions 3, 2, 1 and one that is not known, three steps of each
    factors = {3: 1.0, 2: 0.5, 1: 0.25, None: 1.0}
    mean = np.mean(list(factors.values()))
    for step in found:
        expected = 0.8 * factors[step["policy_version"]] / mean + 0.2
        assert step["sampling_weight"] == pytest.approx(expected, rel=1e-12)
    assert {step["policy_version"] for step in found} == set(factors)


STAGES = """
[[stages]]
where = "max(step_index) < 5"
phases = 2

[[stages]]
priority = "count(*)"
share = 0.5
"""


def test_stages_follow_each_other_each_with_a_draw_of_its_own(export):
    whole, every = export("--max-tokens-per-row", "200", name="every")
    options = ("--sample", "0.8", "--max-tokens-per-row", "200", "--tokens-per-update", "400")
    report, opened = export(*options, toml=STAGES)
    lengths = Counter(step["trajectory_uid"] for step in steps_of(every))
    short = {uid for uid, count in lengths.items() if count <= 5}
    of_stage = {0: set(), 1: set()}
    for row, stage in zip(opened.rows(), opened.stages.tolist(), strict=True):
        of_stage[stage] |= set(row.steps.texts("trajectory_uid"))
    assert of_stage[0] <= short
    assert len(of_stage[0]) == round(0.8 * len(short)) == report["units_by_stage"]["0"]
    assert len(of_stage[1]) == round(0.4 * len(lengths)) == report["units_by_stage"]["1"]
    updates = opened.manifest.plan.updates
    assert [update.stage for update in updates] == sorted(update.stage for update in updates)
    assert {update.phase for update in updates if update.stage == 0} == {0, 1}
    taken = {step["step_uid"] for step in steps_of(opened)}
    assert report["steps"] > len(taken)  # some units are in both
    assert report["steps_left_out_by_reason"] == {"not_drawn": whole["steps"] - len(taken)}


def test_steps_that_no_stage_is_about_are_counted_apart(export):
    whole, _ = export(name="every")
    report, opened = export(toml='[[stages]]\nwhere = "max(step_index) < 5"\n')
    assert report["steps_left_out_by_reason"] == {"not_in_stage": whole["steps"] - report["steps"]}
    assert len(steps_of(opened)) == report["steps"]


def test_epochs_are_orders_over_one_set_of_rows(export):
    options = ("--max-tokens-per-row", "150", "--tokens-per-update", "300")
    once, single = export(*options, name="once")
    report, opened = export(*options, "--epochs", "3", name="thrice")
    assert (report["rows"], report["tokens"], report["steps"]) == (
        once["rows"],
        once["tokens"],
        once["steps"],
    )
    orders = [
        [
            row.row_id
            for update in opened.updates()
            for row in update.rows
            if opened.manifest.plan.updates[update.number].epoch == epoch
        ]
        for epoch in range(3)
    ]
    assert orders[0] == [row.row_id for update in single.updates() for row in update.rows]
    assert len({tuple(order) for order in orders}) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(once["rows"]))}
    # a phase belongs to one epoch
    phases = [{(u.phase, u.epoch) for u in opened.manifest.plan.updates}]
    assert len(phases[0]) == report["phases"]


def test_ranks_get_as_many_rows_and_about_as_much_work(export):
    options = ("--max-tokens-per-row", "120", "--merge", "none", "--ranks", "3")
    report, opened = export(*options, "--tokens-per-update", "60000")
    updates = opened.manifest.plan.updates
    for update in updates:
        assert len(update.rows) == 3
        assert len(set(map(len, update.rows))) == 1
    # but for the last all updates go round
    assert [update.fillers for update in updates[:-1]] == [0] * (len(updates) - 1)
    assert report["fillers"] == updates[-1].fillers
    assert report["rank_imbalance_frac"] < 0.05
    assert report["ranks"] == 3


def test_whole_trajectories_are_read_in_one_phase(export):
    options = (
        "--max-tokens-per-row",
        "100",
        "--merge",
        "none",
        "--set",
        "updates_per_phase=2",
        "--epochs",
        "2",
    )
    _, scattered = export(*options, name="scattered")
    _, opened = export(*options, "--set", "whole_trajectories=true", name="whole")
    spread = {}
    for name, each in (("scattered", scattered), ("whole", opened)):
        phases = {}
        for update in each.updates():
            epoch = each.manifest.plan.updates[update.number].epoch
            for row in update.rows:
                for uid in row.steps.texts("trajectory_uid"):
                    phases.setdefault((epoch, uid), set()).add(update.phase)
        spread[name] = max(map(len, phases.values()))
    assert spread["scattered"] > 1
    assert spread["whole"] == 1


@pytest.mark.parametrize("whole", ["true", "false"])
@pytest.mark.parametrize("phases", [1, 2, 3, 7])
def test_a_stage_is_divided_into_as_many_phases_as_it_asks_for(export, phases, whole):
    options = ("--max-tokens-per-row", "100", "--tokens-per-update", "2000", "--epochs", "2")
    toml = f"whole_trajectories = {whole}\n[[stages]]\nphases = {phases}\n"
    report, opened = export(*options, toml=toml)
    assert report["phases"] == 2 * phases
    of_phase = Counter()
    for update in opened.updates():
        of_phase[update.phase] += sum(len(row.forest.token_ids) for row in update.rows)
    # about as many tokens each; a trajectory has up to a twelfth of them all
    fair = report["tokens"] / phases
    assert all(0.3 * fair < tokens < 1.8 * fair for tokens in of_phase.values())


REFUSED = {
    "negative priority": (
        ("--sample", "3", "--unit", "step", "--priority", "told.odd"),
        3,
        "is negative for 1 of",
    ),
    "infinite priority": (
        ("--sample", "3", "--priority", "1e308 * 10 * count(*)"),
        3,
        "is infinite for",
    ),
    "no number": (("--sample", "3", "--priority", "max(model)"), 2, "not a number"),
    "no such column": (("--sample", "3", "--priority", "max(prioriti)"), 2, "prioriti"),
    "not aggregated": (("--sample", "3", "--priority", "told.priority"), 2, "GROUP BY"),
    "another each time": (
        ("--sample", "3", "--unit", "step", "--priority", "1 + RANDOM()"),
        2,
        "calls random, which gives another answer each time",
    ),
    "priority of all": (("--priority", "count(*)"), 2, "all of them are taken"),
    "priority of all, as a share": (
        ("--priority", "count(*)", "--sample", "1.0"),
        2,
        "all of them are taken",
    ),
    "a number beyond all": (("--sample", "9" * 400), 2, "is no number of units"),
    "no amount": (("--sample", "many"), 2, "is no number of units"),
    "nothing": (("--sample", "0"), 2, "is no number of units"),
    "more than all": (("--sample", "1.5"), 2, "is no number of units"),
    "other unit": (("--unit", "group"), 2, "Invalid enum value 'group'"),
    "no rank": (("--ranks", "0"), 2, "--ranks 0 cannot be used"),
    "more ranks than rows": (("--ranks", "5000"), 3, "packed rows are fewer than --ranks 5,000"),
    "no epoch": (("--epochs", "0"), 2, "--epochs 0 cannot be used"),
    "share": (("--set", "sampling.uniform_share=1.5"), 2, "sampling.uniform_share"),
    "decay": (("--set", "sampling.staleness_decay=0"), 2, "sampling.staleness_decay"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(made, tmp_path, claw, name):
    flags, code, problem = REFUSED[name]
    done = claw("export", made / "tree", "-o", tmp_path / "s", *flags)
    assert done.code == code
    assert problem in done.err
    assert done.out == ""
    assert not (tmp_path / "s").exists()


STAGE_ERRORS = {
    '[[stages]]\nwhere = "max(step_index) > 1000"': (3, "Stage 0 takes no unit"),
    '[[stages]]\nwhere = "step_index"': (2, "stages[0].where"),
    '[[stages]]\nfilter = "true"': (2, "There is no setting stages[0].filter"),
    "[[stages]]\nshare = 0.0": (2, "stages"),
    '[[stages]]\npriority = "count(*)"': (2, "stages[0].priority says which units are drawn first"),
    "[[stages]]\nphases = 0": (2, "stages"),
}


@pytest.mark.parametrize("toml", STAGE_ERRORS)
def test_a_stage_that_cannot_be_is_refused(made, tmp_path, claw, toml):
    (tmp_path / "stages.toml").write_text(toml)
    done = claw("export", made / "tree", "-o", tmp_path / "s", "--config", tmp_path / "stages.toml")
    code, problem = STAGE_ERRORS[toml]
    assert done.code == code
    assert problem in done.err


def test_dry_run_reports_what_would_be_written(made, tmp_path, claw):
    flags = ("export", made / "tree", "--sample", "4", "--ranks", "2", "--json")
    dry = claw(*flags, "-o", tmp_path / "s", "--dry-run").report
    assert not (tmp_path / "s").exists()
    wet = claw(*flags, "-o", tmp_path / "s").report
    for report in (dry, wet):
        report.pop("duration_s")
        report.pop("dry_run", None)
    assert dry == wet


def test_report_in_words_names_what_was_drawn(made, tmp_path, claw):
    done = claw(
        "export",
        made / "tree",
        "-o",
        tmp_path / "s",
        "--sample",
        "4",
        "--ranks",
        "2",
        "--priority",
        "max(told.priority)",
        "--max-tokens-per-row",
        "200",
    )
    assert "steps of 4 trajectories in" in done.err
    assert "Weights make up for the draw:" in done.err
    assert "Of 2 ranks the dearest computes" in done.err


def test_the_data_is_named_as_an_input_only_where_it_was_read(made, tmp_path, claw):
    for name, flags in (
        ("a", ()),
        ("b", ("--sample", "4")),
        ("c", ("--sample", "4", "--priority", "count(*)")),
    ):
        assert claw("export", made / "tree", "-o", tmp_path / name, *flags).code == 0
        inputs = json.loads((tmp_path / name / "manifest.json").read_text())["inputs"]
        kinds = [one["kind"] for one in inputs]
        assert kinds == (["tree", "data"] if name == "c" else ["tree"])
        if name == "c":
            assert inputs[1]["sidecars"] == {"told": 0}
    lines = (made / "data" / "registry.jsonl").read_text().splitlines()
    shards_made = [json.loads(line)["path"] for line in lines if '"kind":"shards"' in line]
    mine = [path for path in shards_made if path.startswith(str(tmp_path))]
    assert mine == [str(tmp_path / "c")]


def test_lineage_writes_a_command_that_makes_the_same_shards_again(made, tmp_path, claw):
    (tmp_path / "stages.toml").write_text(STAGES)
    first = tmp_path / "first"
    flags = ("--sample", "0.7", "--ranks", "2", "--epochs", "2", "--seed", "5", "--unit", "step")
    flags += ("--priority", "told.priority", "--set", "sampling.alpha=0.5")
    stages = STAGES.replace("max(step_index)", "step_index").replace("count(*)", "1.0 + step_index")
    (tmp_path / "stages.toml").write_text(stages)
    toml = ("--config", tmp_path / "stages.toml")
    assert claw("export", made / "tree", "-o", first, *flags, *toml).code == 0
    told = claw("lineage", first, "--json").report["commands"][-1]
    words = shlex.split(told)
    assert words[:2] == ["claw", "export"]
    words[words.index("-o") + 1] = str(tmp_path / "again")
    assert claw(*words[1:]).code == 0
    part = shards.part_file(0)
    assert (first / part).read_bytes() == (tmp_path / "again" / part).read_bytes()
    plans = [
        json.loads((tmp_path / name / "manifest.json").read_text())["plan"]
        for name in ("first", "again")
    ]
    assert plans[0] == plans[1]
