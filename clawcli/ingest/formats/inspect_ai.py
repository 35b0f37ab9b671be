"""Inspect logs: an EvalLog in one .json document, or the samples of an .eval archive.

A record is the document, or {inspect_header, sample} for each sample of an archive. A step is one
model event without an error; inspect_events says how events of a sample follow each other. A
sample is an attempt: its epoch is the trial, its score the reward. Sample ids count from 1 in
every data set, so a task is named task/id.

Calls of a scorer are steps of kind grader with weight 0: they judge the attempt, and are no part
of it, so each is a subagent's trajectory beside it. An answer read from Inspect's cache is one
draw that an earlier call made: it stays in its place, with the warning cached_answer and weight 0,
since training on it would count that draw twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clawcli.ingest.calls import Call, Context
from clawcli.ingest.fates import Fate
from clawcli.ingest.formats import inspect_events, transcript
from clawcli.ingest.formats.documents import object_of
from clawcli.ingest.formats.inspect_messages import Messages
from clawcli.ingest.values import integer, number, text

NAME = "inspect_ai"
_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Inspect's own numbers for the words that scorers answer with; N is no answer."""
_HELD = frozenset(
    [
        "id",
        "epoch",
        "input",
        "messages",
        "output",
        "events",
        "attachments",
        "message_pool",
        "events_data",
    ]
)
_ABOUT_RUN = ("eval_id", "run_id", "task", "task_id", "task_version", "task_args", "created")


def why_not(record: dict[str, Any]) -> str | None:
    """Say why a record is none of this format; None where it is one."""
    if "inspect_header" in record and "sample" in record:
        return None
    if record and all(
        key.endswith((".json", ".eval")) and isinstance(value, dict) and "eval" in value
        for key, value in record.items()
    ):
        return "this is a listing of eval logs, whose keys are file names: give the logs themselves"
    missing = [key for key in ("version", "status", "eval") if key not in record]
    return f"no {' and no '.join(missing)}" if missing else None


def calls(raw: bytes, context: Context) -> list[Call]:
    """Turn the samples of one record into calls.

    Raises:
        Fate: no sample holds a call of a model.
    """
    record = msgspec.json.decode(raw)
    if "sample" in record:
        return _sample(record["sample"], object_of(record.get("inspect_header")))
    samples = record.get("samples")
    if not isinstance(samples, list) or not samples:
        raise Fate("rejected", "no_samples", "the log was written without its samples")
    header = {key: value for key, value in record.items() if key != "samples"}
    return transcript.each(samples, lambda sample: _sample(sample, header))


def _sample(sample: Any, header: dict[str, Any]) -> list[Call]:
    if not isinstance(sample, dict):
        raise Fate("rejected", "bad_record", "a sample is no object")
    run, messages = object_of(header.get("eval")), Messages(sample)
    attempt = _attempt(sample, run, messages)
    events = inspect_events.read(sample, messages)
    if not events.calls:
        raise attempt.fate("empty_trajectory", "the sample holds no call of a model")
    if events.failed:
        attempt.metadata["failed_calls"] = events.failed
        attempt.warnings.append("failed_calls")
    key = _key(sample, run)
    for place, thread in enumerate(events.threads):
        for call in thread:
            call.task_id, call.trial, call.key_is_global = attempt.task_id, attempt.trial, True
            if thread is events.main:
                call.trajectory_key, call.trajectory_reward = key, attempt.reward
            else:
                call.trajectory_key, call.parent_key = f"{key}/{place}", key
                call.trajectory_kind = "subagent"
    if events.main:
        last = events.main[-1]
        last.is_last, last.final_observation = True, events.final_observation
        last.truncated = True if sample.get("limit") else None
        # a sample that broke off may be scored too
        is_ended = sample.get("scores") and not sample.get("limit") and not sample.get("error")
        last.terminated = True if is_ended else None
    last = (events.main or events.calls)[-1]
    last.metadata = {**(last.metadata or {}), **attempt.metadata}
    last.warnings.extend(attempt.warnings)
    return events.calls


def _attempt(sample: dict[str, Any], run: dict[str, Any], messages: Messages) -> transcript.Attempt:
    sample_id, task = text(sample.get("id")), text(run.get("task"))
    rest = {key: value for key, value in sample.items() if key not in _HELD and value}
    attempt = transcript.Attempt(
        task_id=f"{task}/{sample_id}" if task and sample_id is not None else sample_id,
        trial=integer(sample.get("epoch")),
        metadata={"sample_id": sample.get("id"), **messages.resolved(rest)},
    )
    if about := {key: run[key] for key in _ABOUT_RUN if run.get(key) is not None}:
        attempt.metadata["eval"] = about
    scores = sample.get("scores")
    if isinstance(scores, dict) and len(scores) == 1:
        (score,) = scores.values()
        attempt.reward = number(_value(object_of(score).get("value")))
        if attempt.reward is None:
            # also where a literal NaN became null when the record was mended
            attempt.warnings.append("reward_not_a_number")
    elif scores:
        # which of them the attempt was for, only --rewards can say
        attempt.warnings.append("several_scores")
    return attempt


def _value(value: Any) -> Any:
    """Give the words of scorers their number; what has parts is none.

    Example:
        >>> _value("C"), _value("0.5"), _value({"a": 1})
        (1.0, '0.5', {'a': 1})
    """
    if not isinstance(value, str):
        return value
    return _VALUES.get(value, _VALUES.get(value.lower(), value))


def _key(sample: dict[str, Any], run: dict[str, Any]) -> str:
    """Name an attempt by the id that Inspect gave it, or its run, sample and epoch."""
    if uuid := text(sample.get("uuid")):
        return uuid
    parts = [run.get("eval_id") or run.get("run_id"), sample.get("id"), sample.get("epoch")]
    return "/".join(text(part) or "" for part in parts)
