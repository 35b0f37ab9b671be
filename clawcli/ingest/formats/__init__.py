"""The log formats that ingest reads, found by content.

A format is a module with NAME, why_not(record), and calls(raw, context) where each record stands for
itself, or session(records, context) where all records of a file belong together; GROWS = True where
a call's message may go on after its first line. Adding one means one file here and one line in
FORMATS, the special ones before the general ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from clawcli.errors import LogFormatError
from clawcli.ingest.formats import (
    anthropic_messages,
    anthropic_stream,
    atif,
    claude_code,
    codex,
    inspect_ai,
    litellm,
    messages,
    mini_swe_agent,
    openai_chat,
    openai_responses,
    openai_stream,
    openclaw,
    openhands_v0,
    openhands_v0_events,
    openhands_v1,
    sharegpt,
    swe_agent,
    tau2,
    tau_bench,
    verifiers,
)

FORMATS: tuple[ModuleType, ...] = (
    atif,
    swe_agent,
    openhands_v0,
    openhands_v1,
    openhands_v0_events,
    mini_swe_agent,
    inspect_ai,
    tau2,
    tau_bench,
    verifiers,
    sharegpt,
    codex,
    openclaw,
    claude_code,
    litellm,
    openai_responses,
    anthropic_messages,
    anthropic_stream,
    openai_stream,
    openai_chat,
    messages,
)


def detect(path: str, samples: Iterable[Any]) -> ModuleType:
    """Find the format that fits the first records of a source.

    Args:
        path: for the message.
        samples: the first decoded records; damaged ones left out.

    Raises:
        LogFormatError: none fits; the message says why the nearest were refused.
    """
    reasons: dict[str, str] = {}
    for sample in samples:
        for module in FORMATS:
            reason = (
                module.why_not(sample) if isinstance(sample, dict) else "records are no objects"
            )
            if reason is None:
                return module
            reasons.setdefault(module.NAME, reason)
    near = _nearest(reasons)
    tried = "; ".join(f"{name} refused: {reason}" for name, reason in near.items())
    raise LogFormatError(
        f"{path} is in no known log format ({tried or 'no record could be decoded'}).",
        "--map says where things are in a log of calls, and --format names a format: "
        + ", ".join(sorted(module.NAME for module in FORMATS))
        + ".",
        path,
    )


def _nearest(reasons: dict[str, str], most: int = 3) -> dict[str, str]:
    """Choose the refusals that tell something: of formats that were recognised, or nearly fit."""
    told = {name: reason for name, reason in reasons.items() if not reason.startswith("no ")}
    if told:
        return dict(list(told.items())[:most])
    ranked = sorted(reasons, key=lambda name: reasons[name].count(" no "))
    return {name: reasons[name] for name in ranked[:2]}
