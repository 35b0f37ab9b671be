import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from clawcli.config import resolve
from clawcli.curate.run import CurateConfig
from clawcli.export.config import ExportShardsConfig
from clawcli.ingest.run import IngestConfig
from clawcli.manage import commands
from clawcli.prefix.run import MergeConfig

GOLDEN = (Path(__file__).parent / "golden" / "flags.txt").read_text().splitlines()
CONFIGS = {
    "ingest": IngestConfig,
    "curate": CurateConfig,
    "merge-prefixes": MergeConfig,
    "export": ExportShardsConfig,
}


@pytest.mark.parametrize("command", commands.FLAGS)
def test_flags_are_those_that_the_command_has(command):
    for key in commands.FLAGS[command]:
        assert any(
            line.split()[:2] == [command, f"--{key.replace('_', '-')}"] for line in GOLDEN
        ), key


@pytest.mark.parametrize("command", CONFIGS)
def test_flags_are_settings_of_the_command(command):
    fields = {field.name for field in dataclasses.fields(CONFIGS[command])}
    assert set(commands.FLAGS[command]) <= fields


@pytest.mark.parametrize(
    "where",
    ["reward > 0", "task_id = 'it''s \"x\"'", "a\nb", "$HOME `id` \\ ! *", "-1 < reward", "é ✓"],
)
def test_write_is_quoted_for_a_shell(where):
    text = commands.write("curate", ["my data@1"], "a b", {"where": where})
    assert shlex.split(text) == ["claw", "curate", "my data@1", "--where", where, "-o", "a b"]


def test_write_settings_without_a_flag_go_through_set_and_come_back():
    settings = {"updates_per_phase": 4, "merge": "tree", "seed": 0, "force": True, "input": "t"}
    words = shlex.split(commands.write("export", ["t"], "o", settings))
    assert words[:3] == ["claw", "export", "t"]
    assert words[3:-2] == ["--set", "updates_per_phase=4", "--merge", "tree", "--seed", "0"]
    found = resolve(ExportShardsConfig, {"input": "t", "output": "o"}, sets=[words[4]])
    assert found.updates_per_phase == 4


def test_write_nested_settings_text_and_zero_are_kept():
    text = commands.write("train", ["s"], "o", {"optim": {"learning_rate": 0.0}, "x": "true"})
    words = shlex.split(text)
    assert words[3:-2] == ["--set", "optim.learning_rate=0.0", "--set", 'x="true"']
    assert json.loads(words[6].partition("=")[2]) == "true"


def test_write_repeats_flags_and_writes_pairs():
    settings = {"map": {"reward": "score", "task_id": "t"}, "on": ["task_id=t", "trial=n"]}
    words = shlex.split(commands.write("ingest", ["a", "b"], "o", {**settings, "redact": False}))
    assert words[2:-2] == [
        "a",
        "b",
        "--map",
        "reward=score",
        "--map",
        "task_id=t",
        "--on",
        "task_id=t",
        "--on",
        "trial=n",
        "--no-redact",
    ]


def test_write_flags_that_are_off_or_empty_are_left_out():
    settings = {"model": "tiny", "allow_off_policy": False, "own_policy": (), "objective": None}
    assert commands.write("train", ["s"], "o", settings) == "claw train s --model tiny -o o"
    settings["allow_off_policy"] = True
    assert "--allow-off-policy" in commands.write("train", ["s"], "o", settings)
