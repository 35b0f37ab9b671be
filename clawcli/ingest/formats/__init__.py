"""The log formats that ingest reads, found by content.

A format is a module with NAME, why_not(record) and calls(record, context). Adding one means one
file here and one line in FORMATS.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from clawcli.errors import LogFormatError
from clawcli.ingest.formats import messages, openai_chat, tau_bench

FORMATS: tuple[ModuleType, ...] = (tau_bench, openai_chat, messages)


def detect(path: str, samples: list[Any]) -> ModuleType:
    """Find the format that fits the first records of a source.

    Args:
        path: for the message.
        samples: the first decoded records; damaged ones left out.

    Raises:
        LogFormatError: none fits; the message says why each was refused.
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
    tried = "; ".join(f"{name} refused: {reason}" for name, reason in reasons.items())
    raise LogFormatError(
        f"{path} is in no known log format ({tried or 'no record could be decoded'}).",
        "claw reads OpenAI chat logs, message transcripts and tau-bench results.",
        path,
    )
