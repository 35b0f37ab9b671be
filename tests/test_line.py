"""The whole line, from a log to a checkpoint, as a shell user runs it."""

import json
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT, SAMPLE, shared

from clawcli.store import location, query


def shell(script, cwd):
    """Run a shell pipeline in which `claw` is this project's command."""
    claw = f'claw() {{ "{sys.executable}" -c "from clawcli.cli.app import main; main()" "$@"; }}'
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{claw}\n{script}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )


def reports(done):
    assert done.returncode == 0, done.stderr
    return {r["command"]: r for r in map(json.loads, done.stdout.splitlines())}


LINE = """
claw ingest "{log}" -o data --json
claw curate data --where "{where}" -o kept --json
claw merge-prefixes kept --tokenizer tiny -o tree --json
claw export tree --merge {merge} -o shards --json
claw train shards --model tiny --objective sft -o run --json
"""


@pytest.fixture
def line(claw, tmp_path, monkeypatch):
    """Run the line in this process; gives the reports by command."""
    monkeypatch.chdir(tmp_path)

    def run(**options):
        found = {}
        for command in LINE.format(**options).strip().splitlines():
            result = claw(*shlex.split(command)[1:])
            assert result.code == 0, result.err
            found[result.report["command"]] = result.report
        return found

    return run


def check_all_steps_trained(found, kept):
    assert found["curate"]["steps_kept"] == kept
    assert found["merge-prefixes"]["steps"] == found["export"]["steps"] == kept
    assert found["train"]["steps_trained"] == kept
    assert found["merge-prefixes"]["steps_excluded_by_reason"] == {}
    assert found["export"]["steps_left_out_by_reason"] == {}
    assert found["merge-prefixes"]["links_unbroken"] == found["merge-prefixes"]["links"]


@pytest.mark.slow
def test_line_in_a_shell_pipeline_leaves_no_step_out(tmp_path):
    script = LINE.format(log=SAMPLE / "agent-logs", where="group_reward_std > 0", merge="tree")
    check_all_steps_trained(reports(shell(script, tmp_path)), kept=92)


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["tree", "chain", "none"])
def test_line_on_the_sample_log_makes_artefacts_that_verify(tmp_path, line, claw, merge):
    found = line(log=SAMPLE / "agent-logs", where="group_reward_std > 0", merge=merge)
    check_all_steps_trained(found, kept=92)
    assert found["merge-prefixes"]["links"] == 76
    for name, kind in (("tree", "tree"), ("shards", "shards"), ("run", "run")):
        assert claw("verify", name, "--json").report["kind"] == kind
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == found["train"]["updates"]


@pytest.mark.slow
def test_line_ppo_on_a_foreign_log_is_refused_and_allowed_when_asked_for(tmp_path, line, claw):
    line(log=SAMPLE / "agent-logs", where="task_id = 'camping-weekend'", merge="tree")
    ppo = ["train", "shards", "--model", "tiny", "--objective", "ppo", "-o", "ppo", "--json"]
    refused = claw(*ppo)
    assert (refused.code, refused.out) == (3, "")
    assert refused.error["code"] == "gate"
    assert "rollout_logprobs" in refused.error["message"]
    assert "--allow-off-policy" in refused.error["hint"]
    assert not (tmp_path / "ppo").exists()
    allowed = claw(*ppo, "--allow-off-policy").report
    assert allowed["objective"] == "ppo"
    assert allowed["steps_off_policy_by_reason"] == {
        "logprobs_missing": allowed["steps_trained"],
        "policy_foreign": allowed["steps_trained"],
    }


@pytest.mark.slow
def test_line_without_any_spread_says_that_there_is_no_signal(tmp_path, claw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    claw("ingest", SAMPLE / "agent-logs", "-o", "data")
    claw("curate", "data", "--where", "task_id = 'cancel-projector'", "-o", "kept")
    claw("merge-prefixes", "kept", "--tokenizer", "tiny", "-o", "tree")
    claw("export", "tree", "-o", "shards")
    run = ["train", "shards", "--model", "tiny", "--objective", "ppo", "-o", "run", "--json"]
    result = claw(*run, "--allow-off-policy")
    assert result.code == 6
    assert result.error["code"] == "no_signal"
    assert "advantage" in result.error["message"]


def test_sample_log_has_the_expected_counts(tmp_path, claw):
    report = claw("ingest", SAMPLE / "agent-logs", "-o", tmp_path / "d", "--json").report
    assert (report["steps"], report["trajectories"], report["rejects"]) == (130, 25, 2)
    assert report["warnings_by_code"] == {}
    steps = query.load_steps(location.existing(str(tmp_path / "d")))
    rows = steps.to_pylist()
    main = {r["trajectory_uid"] for r in rows if r["trajectory_kind"] == "main"}
    assert (len(main), len({r["group_uid"] for r in rows})) == (24, 6)
    assert {r["prefix_broken"] for r in rows} == {None}
    files = {}
    for row in rows:
        files.setdefault(row["trajectory_uid"], set()).add(row["source_path"])
    assert sum(len(paths) > 1 for paths in files.values()) > 12, "trajectories cross files"


def test_sample_log_curation_keeps_what_was_asked(tmp_path, claw):
    claw("ingest", SAMPLE / "agent-logs", "-o", tmp_path / "d")
    won = claw("curate", tmp_path / "d", "--where", "trajectory_return = 1", "-o", tmp_path / "w")
    assert won.code == 0
    rows = query.load_steps(location.existing(str(tmp_path / "w"))).to_pylist()
    assert len({r["trajectory_uid"] for r in rows}) == 13
    spread = claw(
        *["curate", tmp_path / "d", "--where", "group_reward_std > 0"],
        *["-o", tmp_path / "s", "--json"],
    )
    assert (spread.report["trajectories_kept"], spread.report["groups_kept"]) == (16, 4)


@pytest.mark.slow
def test_line_on_tau_bench_with_tiny_trains_both_objectives(tmp_path, line, claw):
    log = shared("tau-bench", "gpt-4o-airline.json")
    # the shortest group with spread; the whole file takes minutes
    found = line(log=log, where="task_id = '44'", merge="tree")
    assert found["ingest"]["steps"] == 2454
    check_all_steps_trained(found, kept=20)
    ppo = ["train", "shards", "--model", "tiny", "--objective", "ppo", "-o", "ppo", "--json"]
    assert claw(*ppo).code == 3
    assert claw(*ppo, "--allow-off-policy").report["steps_trained"] == 20
