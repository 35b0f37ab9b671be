"""What becomes of a record that gives no step."""

from __future__ import annotations

from typing import Any


class Fate(Exception):  # noqa: N818 - an outcome of a record, not an error of the program
    """A record that gives no step: rejected, failed_call, ignored or duplicate, and why."""

    def __init__(self, fate: str, reason: str, detail: str, **known: Any) -> None:
        """Keep the fate, a stable reason code, the detail in words, and task_id, trial, reward."""
        super().__init__(detail)
        self.fate, self.reason, self.detail, self.known = fate, reason, detail, known
