"""Write docs/cli.md, docs/readiness.md and docs/step-table.md: python -m clawcli.cli.docs DIRECTORY.

A test compares the committed pages with what this makes, so they cannot lie.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import typer

from clawcli import schema
from clawcli.cli.app import app
from clawcli.config import listed_kinds
from clawcli.objectives import RULES, Effect, Objective, Reason
from clawcli.schema import Column

E = TypeVar("E", bound=StrEnum)

_WIDTH = 100


def pages() -> dict[str, str]:
    """Make all generated pages: file name -> text."""
    return {
        "cli.md": cli_page(),
        "readiness.md": readiness_page(),
        "step-table.md": step_table_page(),
    }


def cli_page() -> str:
    """Make the page of all verbs: their help as the terminal shows it."""
    parts = ["# The command line\n", "Generated from the code by `make docs`.\n"]
    settings = {f"claw {verb}": kinds for verb, kinds in _configs().items()}
    for name, text in helps():
        parts.append(f"## {name}\n\n```text\n{text}\n```\n")
        for kind in settings.get(name, ()):
            parts.append(_settings_table(kind))
    return "\n".join(parts)


def _configs() -> dict[str, list[type]]:
    """Name the configuration classes of each verb."""
    from clawcli.curate.run import CurateConfig
    from clawcli.export.config import ExportShardsConfig
    from clawcli.export.run import ExportRowsConfig
    from clawcli.ingest.attach.run import AttachConfig
    from clawcli.ingest.run import IngestConfig
    from clawcli.manage.optimize import OptimizeConfig
    from clawcli.prefix.run import MergeConfig
    from clawcli.train.config import TrainConfig

    return {
        "ingest": [IngestConfig],
        "attach": [AttachConfig],
        "curate": [CurateConfig],
        "merge-prefixes": [MergeConfig],
        "export": [ExportRowsConfig, ExportShardsConfig],
        "train": [TrainConfig],
        "optimize": [OptimizeConfig],
    }


def _settings_table(kind: type) -> str:
    """List what --set and --config FILE can set, from the configuration class itself."""
    lines = [
        f"Settings ({kind.__name__}; `--set key=value`, or the same keys in `--config FILE`):\n",
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *_setting_rows(kind)]) + "\n"


def _setting_rows(kind: type, prefix: str = "") -> Iterator[str]:
    meanings, listed = _attribute_docs(kind), listed_kinds(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.default_factory):
            yield from _setting_rows(field.default_factory, f"{prefix}{field.name}.")  # type: ignore[arg-type]
            continue
        if field.default is not dataclasses.MISSING:
            default = f"`{json.dumps(field.default)}`"
        elif field.default_factory is not dataclasses.MISSING:
            default = f"`{json.dumps(field.default_factory())}`"
        else:
            default = "required"
        meaning = meanings[field.name].replace("|", "\\|")
        yield f"| `{prefix}{field.name}` | {default} | {meaning} |"
        if field.name in listed:
            yield from _setting_rows(listed[field.name], f"{prefix}{field.name}[].")


def _attribute_docs(kind: type) -> dict[str, str]:
    """Read the string below each field of a class."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in itertools.pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def helps() -> Iterator[tuple[str, str]]:
    """Yield the help of claw and of each verb, at a fixed width."""
    group = typer.main.get_command(app)
    with group.make_context("claw", [], resilient_parsing=True, terminal_width=_WIDTH) as context:
        yield "claw", _strip(group.get_help(context))
        for name in group.list_commands(context):  # type: ignore[attr-defined]
            verb = group.get_command(context, name)  # type: ignore[attr-defined]
            with verb.make_context(name, [], parent=context, resilient_parsing=True) as inner:
                yield f"claw {name}", _strip(verb.get_help(inner))


def flags() -> list[str]:
    """List every flag of every verb, one line each: what tests/golden/flags.txt freezes."""
    group = typer.main.get_command(app)
    found = []
    with group.make_context("claw", [], resilient_parsing=True) as context:
        for name in group.list_commands(context):  # type: ignore[attr-defined]
            verb = group.get_command(context, name)  # type: ignore[attr-defined]
            for parameter in verb.params:
                found.append(f"{name} {' '.join(parameter.opts)}")
    return sorted(found)


def readiness_page() -> str:
    """Make the page of all reasons why a step does not train."""
    parts = [
        "# What a log can train\n",
        "Generated from the code by `make docs`.\n",
        "`claw readiness DATA` counts the steps that are valid for each objective, those that carry "
        "signal, and the reasons against the others. `claw train` refuses by the same rules.\n",
        "| objective | what it does with a step |\n|---|---|",
        *(f"| `{o.value}` | {meaning} |" for o, meaning in _members(Objective)),
        "",
        "A reason does one of three things to a step:\n",
        *(f"* {effect.value.replace('_', ' ')}: {meaning}" for effect, meaning in _members(Effect)),
        "\n## Reasons\n",
        f"| reason | column | {' | '.join(Objective)} |\n|---|---|{'---|' * len(Objective)}",
        *(_effects(reason) for reason in Reason),
        "\n## What to do\n",
        "| reason | meaning | fix |\n|---|---|---|",
        *(f"| `{r.value}` | {meaning} | {RULES[r].fix} |" for r, meaning in _members(Reason)),
    ]
    return "\n".join(parts) + "\n"


def _members(kind: type[E]) -> Iterator[tuple[E, str]]:
    """Yield the members of an enumeration with the sentences below them."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    for member, text in itertools.pairwise(tree.body):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            assert isinstance(member.targets[0], ast.Name)
            yield kind[member.targets[0].id], " ".join(ast.literal_eval(text.value).split())


def _effects(reason: Reason) -> str:
    rule = RULES[reason]
    found = (rule.effects.get(objective) for objective in Objective)
    cells = ("" if effect is None else effect.value.replace("_", " ") for effect in found)
    return f"| `{reason.value}` | {rule.column} | {' | '.join(cells)} |"


def step_table_page() -> str:
    """Make the page of all columns that users meet."""
    parts = [
        "# Columns\n",
        'Generated from the code by `make docs`. Null means "not logged" unless a column says '
        "otherwise. Rows are written with schema version "
        f"{schema.SCHEMA_VERSION}.\n",
        "## The step table (`DATA/steps`, a Delta table)\n",
        "One row is one step: one LLM call, one choice of it. These columns, and the derived ones "
        "below, can be used in `claw curate --where`.\n",
        _table(schema.STEPS),
        "`observation`, `final_observation`: lists of messages "
        f"({', '.join(field.name for field in schema.MESSAGE)}); exactly one of content and parts "
        "(JSON text) is set. `tool_calls`: lists of "
        f"({', '.join(field.name for field in schema.TOOL_CALL)}).\n",
        "## Derived columns (computed at scan)\n",
        "The first curation stores "
        f"{', '.join(f'`{name}`' for name in schema.FROZEN_NAMES)} as its input has them; from "
        "then on they are read, never computed again from the rows that survived.\n",
        _table(schema.DERIVED),
        "## Records without a step (`DATA/rejects`, a Delta table)\n",
        _table(schema.REJECTS),
        "## Sidecars (`DATA/sidecars/NAME`, Delta tables)\n",
        "What became known of a step or a trajectory after it was written, joined at scan. Those "
        "that `claw attach` makes under names of its users have the columns `step_uid`, "
        "`trajectory_uid` and `sidecar_version` of these, and one for each field of their files.\n",
        *(f"### {name}\n\n{_table(columns)}" for name, columns in sorted(schema.SIDECARS.items())),
        "## Token tree: nodes (`TREE/nodes/*.parquet`)\n",
        _table(schema.NODES),
        "## Token tree: paths (`TREE/paths/*.parquet`)\n",
        _table(schema.PATHS),
        "## Shards (`SHARDS/*.parquet`)\n",
        _table(schema.SHARDS),
        "Fields of `steps`:\n",
        _table(schema.SHARD_STEP),
        "## Priorities (`RUN/priorities.parquet`)\n",
        _table(schema.PRIORITIES),
    ]
    return "\n".join(parts)


def _table(columns: Sequence[Column]) -> str:
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for column in columns:
        kind = str(column.type).replace("element", "item")
        if "struct" in kind:
            kind = "list of structs"
        lines.append(f"| `{column.name}` | {kind} | {column.meaning} |")
    return "\n".join(lines) + "\n"


def _strip(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def main() -> None:
    """Write the pages into the directory that the first argument names."""
    directory = Path(sys.argv[1])
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")
    golden = directory.parent / "tests" / "golden"
    golden.mkdir(exist_ok=True)
    (golden / "flags.txt").write_text("\n".join(flags()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
