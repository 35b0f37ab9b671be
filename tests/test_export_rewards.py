"""claw export TREE --reward-expr: other rewards for the same rows."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import SAMPLE

from clawcli.store import location, query, sidecars

EXPRESSION = "0.8 * tests.pass + 0.2 * judge.score"


@pytest.fixture
def data(tmp_path, claw):
    """The sample log, with what tests and a judge say of each attempt."""
    place = tmp_path / "data"
    assert claw("ingest", SAMPLE / "agent-logs", "-o", place).code == 0
    attempts = sorted(
        set(query.load_steps(location.existing(str(place)))["trajectory_uid"].to_pylist())
    )
    passed = [{"trajectory_uid": uid, "pass": float(n % 2)} for n, uid in enumerate(attempts)]
    judged = [{"trajectory_uid": uid, "score": n / 10} for n, uid in enumerate(attempts)]
    for name, rows in (("tests", passed), ("judge", judged)):
        sidecars.append(location.existing(str(place)), name, pa.Table.from_pylist(rows), info={})
    return place


def shards_of(claw, source, output, *flags):
    tree = output.with_suffix(".tree")
    assert claw("merge-prefixes", source, "--tokenizer", "tiny", "-o", tree).code == 0
    done = claw("export", tree, "-o", output, *flags)
    assert done.code == 0, done.err
    return told(output)


def told(output):
    """What the shards say of each step, without its place in them."""
    steps = [
        step
        for file in sorted(output.rglob("*.parquet"))
        for row in pq.read_table(file)["steps"].to_pylist()
        for step in row
    ]
    left_out = ("segment", "next_row", "next_step")
    return {s["step_uid"]: {k: v for k, v in s.items() if k not in left_out} for s in steps}


def test_rewards_of_an_expression_are_those_that_curate_would_have_written(data, tmp_path, claw):
    kept = tmp_path / "kept"
    assert claw("curate", data, "--reward-expr", EXPRESSION, "-o", kept).code == 0
    wanted = shards_of(claw, kept, tmp_path / "curated")
    found = shards_of(claw, data, tmp_path / "chosen", "--reward-expr", EXPRESSION)
    assert found == wanted
    plain = shards_of(claw, data, tmp_path / "plain")
    assert plain.keys() == found.keys()
    assert {s["trajectory_return"] for s in plain.values()} != {
        s["trajectory_return"] for s in found.values()
    }
    manifest = json.loads((tmp_path / "chosen" / "manifest.json").read_text())
    assert manifest["config"]["reward_expr"] == EXPRESSION
    assert [one["kind"] for one in manifest["inputs"]] == ["tree", "data"]


def test_rewards_after_a_curation_are_computed_over_all_attempts(data, tmp_path, claw):
    kept = tmp_path / "kept"
    assert claw("curate", data, "--where", "step_index = 0", "-o", kept).code == 0
    found = shards_of(claw, kept, tmp_path / "chosen", "--reward-expr", EXPRESSION)
    whole = shards_of(claw, data, tmp_path / "whole", "--reward-expr", EXPRESSION)
    for uid, step in found.items():
        for name in ("trajectory_return", "return_to_go", "group_reward_mean", "group_size"):
            assert step[name] == whole[uid][name]


@pytest.mark.parametrize(
    ("expression", "code", "problem"),
    [("tests.nothing", 2, "nothing"), ("'text'", 2, "not a number"), ("count(*)", 2, "aggregates")],
)
def test_expression_that_is_none_is_refused_and_nothing_is_written(
    data, tmp_path, claw, expression, code, problem
):
    tree = tmp_path / "tree"
    assert claw("merge-prefixes", data, "--tokenizer", "tiny", "-o", tree).code == 0
    done = claw("export", tree, "--reward-expr", expression, "-o", tmp_path / "out")
    assert (done.code, done.out) == (code, "")
    assert problem in done.err
    assert not (tmp_path / "out").exists()


def test_data_that_is_gone_is_told(data, tmp_path, claw):
    tree = tmp_path / "tree"
    assert claw("merge-prefixes", data, "--tokenizer", "tiny", "-o", tree).code == 0
    shutil.rmtree(data)
    done = claw("export", tree, "--reward-expr", EXPRESSION, "-o", tmp_path / "out")
    assert done.code == 3
    assert "cannot be read any more" in done.err


def test_rows_for_other_trainers_hold_no_reward(data, tmp_path, claw):
    done = claw(
        "export", data, "--as", "sft", "--reward-expr", EXPRESSION, "-o", tmp_path / "x.jsonl"
    )
    assert done.code == 2
    assert "--reward-expr" in done.err
