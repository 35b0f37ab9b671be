"""Commands written again for a shell, from the settings that an artefact was made with.

Every setting that holds something is written, whether or not it was the default then: defaults may
change. Settings that have no flag of their own go through --set, which takes any.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAKERS = {"tree": "merge-prefixes", "shards": "export", "run": "train"}
"""Kind of an artefact -> command that makes it."""
FILES = ("chat_template", "system", "tools", "rewards", "redact_rules", "decontaminate")
"""Settings that name a file which the command reads."""
FLAGS = {
    "ingest": (
        "source_name",
        "format",
        "map",
        "system",
        "tools",
        "since",
        "redact",
        "redact_rules",
        "redact_with",
        "rewards",
        "on",
    ),
    "attach": ("name", "on"),
    "curate": (
        "where",
        "where_trajectory",
        "where_group",
        "max_staleness",
        "decontaminate",
        "dedupe",
        "limit_per_group",
        "top_k",
        "top_by",
        "sample",
        "seed",
        "unit",
        "reward_expr",
        "assign",
        "regroup",
        "split",
        "split_by",
    ),
    "merge-prefixes": ("tokenizer", "chat_template", "template_kwargs", "eos_when_unknown"),
    "export": (
        "merge",
        "max_tokens_per_row",
        "max_step_tokens",
        "sample",
        "unit",
        "priority",
        "tokens_per_update",
        "ranks",
        "epochs",
        "seed",
        "reward_expr",
    ),
    "train": ("model", "objective", "allow_off_policy", "own_policy", "seed"),
}
"""Settings that have a flag, by command."""
_NOT_TOLD = {"input", "inputs", "shards", "output", "force", "dry_run", "where_timeout_s"}
"""Settings that are told otherwise, or do not change what is written."""
_ONLY_WITH = {
    "curate": {
        "seed": ("sample", "limit_per_group", "split"),
        "unit": ("sample", "limit_per_group", "top_k"),
        "split_by": ("split",),
    }
}
"""Settings that say nothing unless one of others is set, by command."""
_PAIRS = {"map"}
"""Settings whose flag takes KEY=VALUE and can be repeated."""


def write(
    command: str, inputs: Sequence[str], output: str | None, settings: Mapping[str, Any]
) -> str:
    """Write a command.

    Args:
        command: name of the verb.
        inputs: its positional arguments.
        output: what -o names; null = it has none.
        settings: the resolved configuration.

    Example:
        >>> write("curate", ["my data@3"], "out", {"where": "reward > 0", "dry_run": False})
        "claw curate 'my data@3' --where 'reward > 0' -o out"
    """
    words = ["claw", command, *inputs]
    for key, value in settings.items():
        others = _ONLY_WITH.get(command, {}).get(key)
        if key not in _NOT_TOLD and (others is None or any(map(settings.get, others))):
            words += _setting(command, key, value)
    return shlex.join(words if output is None else [*words, "-o", output])


def _setting(command: str, key: str, value: Any) -> Iterator[str]:
    if key == "redact":
        yield from [] if value else ["--no-redact"]
    elif value is None or value == [] or value == {} or value == "":
        return
    elif key in FLAGS[command]:
        if value is False:
            return
        flag = f"--{key.replace('_', '-')}"
        for one in _values(key, value):
            yield from [flag] if one is True else [flag, one]
    else:
        for name, one in _leaves(key, value):
            yield from ["--set", f"{name}={json.dumps(one, ensure_ascii=False)}"]


def _values(key: str, value: Any) -> Iterator[Any]:
    if key in _PAIRS:
        yield from (f"{name}={path}" for name, path in value.items())
    elif isinstance(value, list | tuple):
        yield from map(str, value)
    elif isinstance(value, Mapping):
        yield json.dumps(value, ensure_ascii=False)
    else:
        yield value if value is True else str(value)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value
