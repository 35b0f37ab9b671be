"""CONTRIBUTING.md's map names every module and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PACKAGE = ROOT / "clawcli"


def section(title):
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def code_spans(text):
    return re.findall(r"`([^`\n]+)`", text)


def test_map_names_every_module_and_no_other():
    named = {span for span in code_spans(section("From a file to what it does")) if ".py" in span}
    modules = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py" or path.parent.name == "formats"
    }
    assert named == modules


def test_map_names_every_command_with_files_and_tests_that_exist():
    rows = section("From a command to its code").split("|---|---|---|---|\n")[1].splitlines()
    commands = set()
    for row in filter(None, rows):
        command, words, work, tests = (code_spans(cell) for cell in row.split("|")[1:-1])
        commands |= {span.removeprefix("claw ") for span in command}
        assert all((PACKAGE / path).is_file() for path in words + work), row
        assert all(list((ROOT / "tests").glob(pattern)) for pattern in tests), row
    verbs = {path.stem.replace("_", "-") for path in (PACKAGE / "cli").glob("*.py")}
    assert commands == verbs - {"--init--", "app", "options", "console", "progress", "docs"}
