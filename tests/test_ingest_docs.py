"""docs/ingest.md is true: its files are read, its commands print what it says."""

import re
import shlex

import pytest
from conftest import ROOT, SAMPLE
from test_readme import same

from clawcli.ingest import formats
from clawcli.ingest.secrets.rules import read_rules

PAGE = (ROOT / "docs" / "ingest.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE)


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all files that the page shows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_data").symlink_to(SAMPLE)
    for _, name, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


@pytest.mark.slow
def test_commands_print_what_the_page_says(folder, claw):
    shown = [text for kind, _, text in BLOCKS if kind == "console"]
    assert len(shown) == 6
    for part in (part for text in shown for part in text.split("$ ")[1:]):
        command, _, promised = part.partition("\n")
        result = claw(*shlex.split(command)[1:])
        assert (result.code, result.out) == (0, ""), result.err
        assert same(result.err, promised), f"{command}\n{result.err}\nThe page says:\n{promised}"


def test_settings_file_maps_as_the_flags_do(folder, claw):
    claw("ingest", "bot.jsonl", "-o", "flags", *shlex.split(
        "--map messages=in.chat --map response=out --map native_id=id --map trajectory_key=run"
    ))  # fmt: skip
    (folder / "grades.jsonl").write_text('{"id": "q1", "reward": 0.5}\n')
    result = claw(
        *("ingest", "bot.jsonl", "-o", "file", "--config", "bot.toml"),
        *("--rewards", "grades.jsonl", "--json"),
    )
    assert (result.code, result.report["steps"]) == (0, 2)
    assert result.report["rewards"]["rewards_on"] == ["native_id=id", "reward=reward"]
    again = claw("ingest", "bot.jsonl", "-o", "flags", "--config", "bot.toml", "--set", "on=[]")
    assert "1 files unchanged" in again.err


def test_plugin_of_the_page_is_a_file_of_thirty_lines_at_most():
    (text,) = (text for kind, _, text in BLOCKS if kind == "python")
    assert len(text.splitlines()) <= 30


def test_rules_of_the_page_take_their_secrets_out(folder, claw):
    assert [rule.name for rule in read_rules("badges.toml")] == ["badge"]
    (folder / "b.jsonl").write_text(
        (folder / "bot.jsonl").read_text().replace("b7", "badge-123456")
    )
    mapped = ["--map", "messages=in.chat", "--map", "response=out"]
    result = claw(
        "ingest", "b.jsonl", "-o", "b", *mapped, "--redact-rules", "badges.toml", "--json"
    )
    assert result.report["secrets_by_rule"] == {"badge": 2}


def test_page_lists_every_format_and_no_other():
    rows = re.findall(r"^\| (`.*?`) \|", section("What is read"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(module.NAME for module in formats.FORMATS)


@pytest.mark.parametrize("target", re.findall(r"\]\(([\w./-]+)\)", PAGE))
def test_links_lead_somewhere(target):
    assert (ROOT / "docs" / target).exists()
