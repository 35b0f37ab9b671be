"""The README's console block is what its commands print."""

import re
import shlex

import pytest
from conftest import ROOT, SAMPLE

README = (ROOT / "README.md").read_text()
NUMBER = re.compile(r"\d[\d,]*\.\d+|\d[\d,]*")


def blocks():
    """Each command of the console block with the lines below it."""
    text = README.split("```console\n")[1].split("```")[0]
    for part in text.split("$ ")[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def same(said, promised):
    """Equal but for the last digits of computed numbers, which differ between processors."""
    if NUMBER.sub("#", said) != NUMBER.sub("#", promised):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(promised), strict=True)
    return all(
        float(a.replace(",", "")) == pytest.approx(float(b.replace(",", "")), rel=1e-3)
        if "." in b
        else a == b
        for a, b in pairs
    )


@pytest.mark.slow
def test_readme_block_prints_what_it_says(tmp_path, claw, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_data").symlink_to(SAMPLE)
    commands = list(blocks())
    assert len(commands) == 6
    for command, promised in commands:
        result = claw(*shlex.split(command)[1:])
        assert result.code == 0, result.err
        assert same(result.err, promised), f"{command}\n{result.err}\nREADME says:\n{promised}"


def test_readme_leads_with_the_two_commands():
    head = README.splitlines()[:30]
    assert any(line.startswith("make demo") for line in head)
    assert any(line.startswith("make test") for line in head)


@pytest.mark.parametrize("target", re.findall(r"\]\(([\w./-]+)\)", README))
def test_readme_links_lead_somewhere(target):
    assert (ROOT / target).exists()
