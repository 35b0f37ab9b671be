"""The loop: what a run learned of its steps decides what the next export draws."""

import json

import pyarrow.parquet as pq
import pytest
from conftest import SAMPLE

from clawcli.store import shards

pytest.importorskip("torch")


def test_priorities_of_a_run_decide_the_next_export(tmp_path, claw):
    def run(*arguments):
        done = claw(*arguments)
        assert done.code == 0, done.err
        return done

    data, tree = tmp_path / "data", tmp_path / "tree"
    run("ingest", SAMPLE / "own-policy.jsonl", "-o", data)
    run("merge-prefixes", data, "--tokenizer", "tiny", "-o", tree)
    run("export", tree, "-o", tmp_path / "first", "--sample", "0.7", "--max-tokens-per-row", "64")
    run(
        "train",
        tmp_path / "first",
        "--model",
        "tiny",
        "--objective",
        "ppo",
        "-o",
        tmp_path / "run",
        "--set",
        "optim.learning_rate=1e-3",
    )
    told = pq.read_table(tmp_path / "run" / "priorities.parquet").to_pylist()
    priorities = {row["step_uid"]: row["priority"] for row in told}
    attached = run(
        "attach", data, tmp_path / "run" / "priorities.parquet", "--name", "priorities", "--json"
    ).report
    assert attached["matched"] == len(priorities)

    export = ("export", tree, "--sample", "0.5", "--unit", "step", "--json")
    flags = ("--priority", "priorities.priority", "--set", "sampling.uniform_share=0.2")
    report = run(*export, "-o", tmp_path / "next", *flags).report
    run("verify", tmp_path / "next")
    # what the first export did not draw is new, and drawn as soon as what was worst
    every = [
        r["step_uid"] for r in pq.read_table(tree / "paths" / "part-00000.parquet").to_pylist()
    ]
    assert report["priorities_by_kind"]["missing"] == len(set(every) - priorities.keys()) > 0
    highest = max(priorities.values())
    values = [priorities.get(uid, highest) for uid in every]
    mean = sum(values) / len(values)
    for row in shards.open_shards(tmp_path / "next").rows():
        for step in row.steps.to_pylist():
            own = priorities.get(step["step_uid"], highest)
            assert step["sampling_weight"] == pytest.approx(0.8 * own / mean + 0.2, rel=1e-12)
    # other priorities draw other steps, the same ones the same
    run(*export, "-o", tmp_path / "again", *flags)
    run(*export, "-o", tmp_path / "even")
    drawn = {
        name: {
            uid
            for row in shards.open_shards(tmp_path / name).rows()
            for uid in row.steps.texts("step_uid")
        }
        for name in ("next", "again", "even")
    }
    assert drawn["next"] == drawn["again"] != drawn["even"]
    # the attached version is in the manifest
    inputs = json.loads((tmp_path / "next" / "manifest.json").read_text())["inputs"]
    assert inputs[1]["sidecars"] == {"priorities": 0}


def test_priority_is_the_advantage_before_any_weight(tmp_path, claw):
    """A weighted loss that is fed back would lower what was drawn often, again and again."""
    data, tree = tmp_path / "data", tmp_path / "tree"
    for arguments in (
        ("ingest", SAMPLE / "own-policy.jsonl", "-o", data),
        ("merge-prefixes", data, "--tokenizer", "tiny", "-o", tree),
        (
            "export",
            tree,
            "-o",
            tmp_path / "s",
            "--sample",
            "0.6",
            "--unit",
            "step",
            "--priority",
            "1 + (hash(step_uid) % 5)",
            "--max-tokens-per-row",
            "64",
        ),
        ("train", tmp_path / "s", "--model", "tiny", "--objective", "ppo", "-o", tmp_path / "run"),
    ):
        done = claw(*arguments)
        assert done.code == 0, done.err
    steps = {
        step["step_uid"]: step
        for row in shards.open_shards(tmp_path / "s").rows()
        for step in row.steps.to_pylist()
    }
    assert len({step["weight"] for step in steps.values()}) > 3
    told = pq.read_table(tmp_path / "run" / "priorities.parquet").to_pylist()
    assert len(told) == len(steps)
    for row in told:
        step = steps[row["step_uid"]]
        advantage = step["trajectory_return"] - step["group_reward_mean"]
        assert row["priority"] == pytest.approx(abs(advantage), abs=1e-12)
