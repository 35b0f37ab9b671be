"""The claw command: verbs, exit codes, signals.

The only place that turns errors into exit codes. Verbs import their work when they are called, so
that --help stays fast.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import clawcli
from clawcli.cli import (
    attach,
    console,
    curate,
    diff,
    export,
    forget,
    ingest,
    lineage,
    log,
    merge_prefixes,
    optimize,
    readiness,
    restore,
    show,
    tag,
    train,
    verify,
)
from clawcli.errors import ClawError, StoreError, UsageError

app = typer.Typer(
    name="claw",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Logs become a step table (ingest), get what is known later (attach), are curated in SQL (curate), handed to other trainers "
        "(export --as), merged into a token tree (merge-prefixes), packed into shards (export) and "
        "trained on (train). Environment: NO_COLOR turns colours off; CLAW_CACHE_DIR is where "
        "train keeps decoded shards (~/.cache/claw)."
    ),
)
VERBS = (
    ingest,
    readiness,
    attach,
    curate,
    merge_prefixes,
    show,
    export,
    train,
    verify,
    log,
    diff,
    tag,
    restore,
    optimize,
    lineage,
    forget,
)
for _module in VERBS:
    app.command(_module.NAME, epilog=_module.EXAMPLE, no_args_is_help=True)(_module.command)


_received: list[int] = []
"""Signals that asked this process to stop."""


def _print_version(value: bool) -> None:
    if value:
        print(f"claw {clawcli.__version__}")  # noqa: T201 - asked for on stdout
        raise typer.Exit


@app.callback()
def _claw(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Turn logs of LLM agents into training data, and train on it."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    try:
        result = app(list(arguments), prog_name="claw", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except ClawError as error:
        console.show_error(error, as_json=as_json)
        return error.exit_code
    except typer.TyperException as error:
        message = error.format_message().strip() or "No command was given."
        if message.startswith("Usage:") and not as_json:
            console.say(message)  # nothing was asked for, so the help is the answer
            return UsageError.exit_code
        message = f"{message.rstrip('.')}."
        console.show_error(UsageError(message, "claw --help lists all."), as_json=as_json)
        return UsageError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:
        if _received:
            return 128 + _received[0]
        place = error.filename if isinstance(error.filename, str) else "A file or stream"
        message = f"{place} cannot be used: {error.strerror or error}."
        console.show_error(StoreError(message, "Check the path."), as_json=as_json)
        return StoreError.exit_code
    except MemoryError:
        console.show_error(
            ClawError("Memory ran out.", "Use fewer steps at once."), as_json=as_json
        )
        return 5
    except Exception:
        if _received:
            # a library that was stopped by a signal may raise an error of its own
            return 128 + _received[0]
        traceback.print_exc()
        console.say("claw: this is a bug in claw; please report it with the lines above.")
        return 1


def main() -> NoReturn:
    """Run the command line of this process."""
    # a closed pipe (claw ... | head) ends the process quietly, as it does other tools
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(run(sys.argv[1:]))


def _stop(number: int, frame: object) -> NoReturn:
    _received.append(number)
    signal.signal(number, signal.SIG_DFL)  # the next one ends the process at once
    sys.exit(128 + number)
