"""What sample_data/mixed-logs shows of ingest: formats by content, growth, secrets, hours."""

import json
import random
import re
from collections import defaultdict

import pytest
from conftest import SAMPLE

from clawcli.ingest.run import IngestConfig, ingest
from clawcli.store import location, table

PLACEHOLDER = re.compile(r"\[REDACTED:[^\]]+\]")
SHUFFLED = random.Random(5)
MIXED = SAMPLE / "mixed-logs"
COLUMNS = (
    "step_uid",
    "trajectory_uid",
    "trajectory_kind",
    "parent_step_uid",
    "step_index",
    "prefix_messages",
    "system",
    "observation",
    "final_observation",
    "response",
    "is_last",
    "started_at",
)


def read(tmp_path, *inputs, name="data", **config):
    paths = tuple(str(path) for path in inputs)
    return ingest(IngestConfig(inputs=paths, output=str(tmp_path / name), **config))


def rows(tmp_path, name="data", columns=COLUMNS):
    """All steps, in an order that does not depend on how they came."""
    found = table.read(location.parse(str(tmp_path / name)), columns=list(columns)).to_pylist()
    for row in found:
        # each data directory has a key of its own for its placeholders
        row["observation"] = PLACEHOLDER.sub("[REDACTED]", json.dumps(row["observation"]))
    return sorted(found, key=lambda row: row["step_uid"])


def test_written_again_are_the_committed_bytes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SAMPLE)
    import mixed_logs

    mixed_logs.write(tmp_path)
    names = sorted(p.relative_to(MIXED) for p in MIXED.rglob("*.jsonl"))
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*.jsonl")) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (MIXED / name).read_bytes(), name


def test_formats_are_found_by_content(tmp_path):
    logs = sorted(MIXED.rglob("*.jsonl"))
    for number, path in enumerate(logs):
        # names and endings say nothing
        (tmp_path / f"{number}.json").write_bytes(path.read_bytes())
    report = read(tmp_path, tmp_path)
    assert report.steps_by_format == {"anthropic_messages": 4, "claude_code": 5, "openai_chat": 12}
    assert (report.trajectories_total, report.rejects, report.problems) == (4, 0, ())


def test_password_in_a_url_is_nowhere_in_the_data_directory(tmp_path):
    secret = b"paper-lantern-4417"
    assert secret in (MIXED / "deploy.jsonl").read_bytes()
    report = read(tmp_path, MIXED / "deploy.jsonl")
    assert report.secrets_by_rule == {"url_password": 2}
    found = rows(tmp_path)
    said = json.dumps([row["observation"] for row in found])
    assert "db.example.internal" in said
    assert secret.decode() not in said
    for path in (tmp_path / "data").rglob("*"):
        assert path.is_dir() or secret not in path.read_bytes()
    # what was taken out does not break what continues it
    assert {row["prefix_messages"] == 0 for row in found if row["parent_step_uid"]} == {False}
    assert len({row["trajectory_uid"] for row in found}) == 2


def test_password_stays_where_redaction_is_off(tmp_path):
    read(tmp_path, MIXED / "deploy.jsonl", redact=False)
    assert "paper-lantern-4417" in json.dumps([row["observation"] for row in rows(tmp_path)])


def test_session_that_grew_adds_what_is_new_and_equals_the_session_read_at_once(tmp_path):
    first = read(tmp_path, MIXED / "claude-code")
    assert (first.steps, first.trajectories) == (3, 1)
    second = read(tmp_path, MIXED / "claude-code-grown")
    assert (second.steps, second.steps_total, second.trajectories_total) == (2, 5, 1)
    again = read(tmp_path, MIXED / "claude-code-grown")
    assert (again.files_unchanged, again.steps, again.steps_changed) == (1, 0, 0)
    read(tmp_path, MIXED / "claude-code-grown", name="once")
    assert rows(tmp_path) == rows(tmp_path, "once")


@pytest.mark.parametrize("log", ["support", "deploy"])
def test_pieces_of_an_hour_backwards_and_shuffled_equal_the_whole(tmp_path, log):
    read(tmp_path, MIXED / f"{log}.jsonl", name="whole")
    hours = defaultdict(list)
    for line in (MIXED / f"{log}.jsonl").read_text("utf-8").splitlines():
        hours[int(json.loads(line)["timestamp"] // 3600)].append(line)
    assert len(hours) >= 2
    backwards = sorted(hours, reverse=True)
    for name, order in (
        ("backwards", backwards),
        ("shuffled", SHUFFLED.sample(backwards, k=len(backwards))),
    ):
        for hour in order:
            path = tmp_path / f"{hour}.jsonl"
            path.write_text("\n".join(hours[hour]) + "\n", "utf-8")
            read(tmp_path, path, name=name)
        assert rows(tmp_path, name) == rows(tmp_path, "whole")
