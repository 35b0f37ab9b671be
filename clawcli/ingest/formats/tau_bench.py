"""tau-bench result files: one JSON array, one element per attempt.

An element holds task_id, trial, reward, info and traj, the messages of the attempt. Tool schemas
are not logged, so the state is partial. Task ids are small integers that other benchmarks use too:
the key of an attempt is scoped by its source.
"""

from __future__ import annotations

from typing import Any

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.formats import transcript

NAME = "tau_bench"
_STOP = "###STOP###"
"""What the simulated user says when the task is over."""


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    missing = [key for key in ("task_id", "traj") if key not in record]
    return f"no {' and no '.join(missing)}" if missing else None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn one attempt into its calls.

    Raises:
        Fate: the attempt is empty or damaged.
    """
    record, messages = transcript.open_record(raw, "traj")
    attempt = transcript.labels(record)
    has_key = attempt.task_id is not None
    steps = transcript.cut(
        transcript.read_messages(messages, context, attempt),
        attempt,
        trajectory_key=f"{attempt.task_id}/{attempt.trial}" if has_key else None,
        state_kind="partial",
    )
    # attempts that ran into the limit of calls are rewarded too, so a reward ends nothing here
    final = steps[-1].final_observation or []
    if any(_STOP in (message.content or "") for message in final):
        steps[-1].terminated = True
    return steps
