"""--format NAME or --format ./my_format.py: a format that is named, or brought along.

A plug-in is a Python file with NAME, and calls or session, as the modules of this folder have them.
Its code runs with the rights of whoever runs claw.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from clawcli.errors import UsageError
from clawcli.ingest import formats
from clawcli.ingest.formats.mapped import Mapped

Format = ModuleType | Mapped
"""What records are read with: a module, or an object that has what one has."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_EXAMPLE = "A plug-in has NAME = 'my_format' and def calls(raw, context) -> list[Call]."


def choose(format: str | None, mapping: Mapping[str, str] | None) -> Format | None:
    """Find the format that was asked for; None = it is to be found by content.

    Args:
        format: name of a format that comes with claw, or path of a plug-in.
        mapping: column -> path in a record.

    Raises:
        UsageError: there is no such format, or both were given.
    """
    if mapping:
        if format is not None:
            raise UsageError("--map and --format both say how to read.", "Give one of them.")
        return Mapped(mapping)
    if format is None:
        return None
    return load(format) if format.endswith(".py") or "/" in format else named(format)


def named(name: str) -> ModuleType:
    """Find a format that comes with claw.

    Raises:
        UsageError: there is none of that name.
    """
    known = {module.NAME: module for module in formats.FORMATS}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Formats: {', '.join(sorted(known))}."
    raise UsageError(f"--format {name}: there is no such format.", hint)


def load(path: str) -> ModuleType:
    """Load a format from a Python file.

    Args:
        path: the file; its name does not matter.

    Returns:
        A module like those of this folder. Where it has no why_not, it takes every record.

    Raises:
        UsageError: the file cannot be read or run, or is no format; the message says what it lacks.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"--format {path}: there is no such file.", "Check the path.", path)
    # not under a name that an import could find: two plug-ins may be called alike
    spec = importlib.util.spec_from_file_location(f"claw_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--format {path} is no Python file.", "Its name ends in .py.", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a stranger's code raises
        raise UsageError(
            f"--format {path} cannot be loaded: {type(error).__name__}: {error}.",
            "Run it with python to see where.",
            path,
        ) from error
    if problem := _problem(module):
        raise UsageError(f"--format {path} is no format: {problem}.", _EXAMPLE, path)
    if not hasattr(module, "why_not"):
        module.why_not = _takes_all  # type: ignore[attr-defined]
    module.IS_PLUGIN = True  # type: ignore[attr-defined]
    return module


def _problem(module: ModuleType) -> str | None:
    """Say what a module lacks to be a format."""
    name = getattr(module, "NAME", None)
    if not isinstance(name, str):
        return "it has no NAME"
    if not _NAME.fullmatch(name):
        return f"its NAME {name!r} is not in snake_case"
    made = [kind for kind in ("calls", "session") if callable(getattr(module, kind, None))]
    if len(made) != 1:
        return "it has both calls and session" if made else "it has neither calls nor session"
    return None


def _takes_all(record: dict[str, Any]) -> str | None:
    return None
