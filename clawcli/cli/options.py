"""Options that several verbs share: one definition, one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[str, typer.Option("--output", "-o", help="Where to write; never guessed.")]
Force = Annotated[
    bool, typer.Option("--force", "-f", help="Replace an output that claw wrote before.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Read and check all, write nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Say more: -v info, -vv debug.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the report as one JSON object on stdout.")
]
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings of this verb.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting as key=value, dotted for tables. Repeatable."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random. Default 0.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Processes that work; by default one for each processor where there is enough to do.",
    ),
]
