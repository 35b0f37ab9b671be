"""Read files of rewards: what graders and harnesses write becomes rows of fields.

A row is one judgement. JSON lines, a JSON array, CSV and Parquet hold one a line; the reports of
benchmarks are unfolded into the fields task_id and reward, beside what they say themselves:

    SWE-bench run report    resolved_ids 1; unresolved_ids, empty_patch_ids 0; error_ids no value
    SWE-bench results.json  resolved 1; applied, no_apply, no_generation 0; the others no value
    SWE-bench report.json   {instance: {resolved: true, ...}}, one instance or many
    Harbor result.json      verifier_result.rewards; source_path is the folder of the trial
    Terminal-Bench          results: [{task_id, is_resolved, ...}]

What the harness could not judge (error_ids: no report came of the run) has no value, because it
says nothing about the attempt. A folder stands for the reports below it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clawcli.errors import DataError, NotFoundError
from clawcli.ingest.read.find import Found, is_url
from clawcli.ingest.read.stream import open_bytes

_REPORTS = ("result.json", "results.json", "report.json")
# how a run report (schema_version 2) of the SWE-bench harness sorts the instances; incomplete_ids
# were never attempted, completed_ids and submitted_ids only sum others up
_RUN_REPORT = {"resolved_ids": 1.0, "unresolved_ids": 0.0, "empty_patch_ids": 0.0}
_RUN_REPORT_UNJUDGED = ("error_ids",)
# the lists of results.json overlap, so an instance has the value of the first that names it
_RESULTS = {"resolved": 1.0, "applied": 0.0, "no_apply": 0.0, "no_generation": 0.0}
_RESULTS_UNJUDGED = ("install_fail", "reset_failed", "no_logs")


@dataclass(frozen=True, slots=True)
class Row:
    """One judgement of a file."""

    fields: Mapping[str, Any]
    place: str
    """Where it stands, for messages: the file and the line or row."""


def refuse_missing(path: str) -> None:
    """Refuse a local path where nothing is; what a URL leads to shows when it is read.

    Raises:
        NotFoundError: nothing is there.
    """
    if path != "-" and not is_url(path) and not Path(path).exists():
        raise NotFoundError(f"{Found(path).label} does not exist.", "Check the path.")


def read(path: str, *, reward_field: str | None = None) -> list[Row]:
    """Read the judgements of a file, or of the reports below a folder.

    The content decides about the format, never the name.

    Args:
        path: JSON lines, JSON, CSV (comma or tab) or Parquet, also compressed with gzip or zstd,
            at a URL or "-"; or a folder.
        reward_field: the field that was named for the reward; without one a Harbor trial must
            leave no choice.

    Raises:
        NotFoundError: nothing is there, or a folder holds no report.
        StoreError: the file cannot be read.
        DataError: it is in none of the formats, or a line of it is not.
    """
    if Path(path).is_dir():
        return _read_folder(path, reward_field)
    return list(_rows(path, _records(path), reward_field))


def at(fields: Any, path: str) -> Any:
    """Look up a field by its name, or by the dotted names that lead to it; None where it is not.

    Example:
        >>> at({"info": {"scores": [0.5, 1.0]}}, "info.scores.1")
        1.0
    """
    if isinstance(fields, Mapping) and path in fields:
        return fields[path]
    value = fields
    for name in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _read_folder(path: str, reward_field: str | None) -> list[Row]:
    reports = sorted(file for file in Path(path).rglob("*.json") if file.name in _REPORTS)
    found = []
    for report in reports:
        records = [r for r in _records(str(report)) if not _is_summary(r[1])]
        found.extend(_rows(str(report), iter(records), reward_field))
    if not found:
        raise NotFoundError(
            f"{path} holds no report of rewards ({', '.join(_REPORTS)}).",
            "Name the file that holds the rewards.",
        )
    return found


def _rows(path: str, records: Iterator[tuple[str, Any]], reward_field: str | None) -> Iterator[Row]:
    for place, record in records:
        if not isinstance(record, dict):
            raise DataError(f"{place} is not an object.", "Write one object with named fields.")
        if _is_summary(record):
            raise DataError(
                f"{path} sums up a Harbor job and says nothing of its trials.",
                "Name the folder of the job, which holds a result.json of each trial.",
            )
        if "resolved_ids" in record:
            yield from _sorted(place, record, _RUN_REPORT, _RUN_REPORT_UNJUDGED)
        elif isinstance(record.get("resolved"), list):
            yield from _sorted(place, record, _RESULTS, _RESULTS_UNJUDGED)
        elif isinstance(record.get("results"), list):
            yield from (
                Row(result, f"{place}, result {number}")
                for number, result in enumerate(record["results"], 1)
                if isinstance(result, dict)
            )
        elif "verifier_result" in record:
            yield _harbor(place, record, Path(path).parent, reward_field)
        elif record and all(isinstance(v, dict) and "resolved" in v for v in record.values()):
            yield from (
                Row(
                    {**outcome, "task_id": instance, "instance_id": instance},
                    f"{place}, {instance}",
                )
                for instance, outcome in record.items()
            )
        else:
            yield Row(record, place)


def _is_summary(record: Any) -> bool:
    """Tell whether a record is the result.json of a Harbor job, which stands above its trials."""
    return isinstance(record, dict) and {"n_total_trials", "stats"} <= record.keys()


def _sorted(
    place: str, record: dict[str, Any], values: Mapping[str, float], unjudged: Sequence[str]
) -> Iterator[Row]:
    """Unfold lists of instances, each of which stands for an outcome."""
    found: dict[str, tuple[str, float | None]] = {}
    for name, value in [*values.items(), *((name, None) for name in unjudged)]:
        listed = record.get(name)
        for instance in listed if isinstance(listed, list) else ():
            found.setdefault(str(instance), (name, value))
    for instance, (name, value) in found.items():
        fields = {"task_id": instance, "instance_id": instance, "reward": value, "outcome": name}
        yield Row(fields, f"{place}, {name} {instance}")


def _harbor(place: str, record: dict[str, Any], folder: Path, reward_field: str | None) -> Row:
    fields = {
        **record,
        # of a trial the key task_id is an object that says where the task lies
        "task_id": record.get("task_name"),
        "agent": at(record, "agent_info.name"),
        "source_path": str(folder),
    }
    if reward_field is None:
        fields["reward"] = _harbor_reward(place, record["verifier_result"])
    return Row(fields, place)


def _harbor_reward(place: str, result: Any) -> Any:
    if not isinstance(result, dict):  # the trial ended before it was verified
        return None
    rewards = result.get("rewards")
    if not isinstance(rewards, dict):
        return result.get("reward")
    if "reward" in rewards or len(rewards) == 1:
        return rewards.get("reward", next(iter(rewards.values())))
    if not rewards:
        return None
    names = sorted(rewards)
    raise DataError(
        f"{place} has several rewards: {', '.join(names)}.",
        f"Name one, such as --on reward=verifier_result.rewards.{names[0]}.",
    )


def _records(path: str) -> Iterator[tuple[str, Any]]:
    """Read the records of one file, each with its place."""
    found = Found(path)
    refuse_missing(path)
    with open_bytes(found) as stream:
        data = stream.read()
        problem = stream.problem
    if problem is not None:  # half of the rewards would look like all of them
        raise DataError(problem, "Write the file again.")
    path = found.label
    if data.startswith(b"PAR1"):
        return _parquet(path, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is neither Parquet nor UTF-8 text: byte {error.start:,}.",
            "Rewards are read from JSON lines, JSON, CSV and Parquet.",
        ) from error
    return _json(path, text) if text.lstrip()[:1] in ("{", "[") else _csv(path, text)


def _parquet(path: str, data: bytes) -> Iterator[tuple[str, Any]]:
    try:
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is no whole Parquet file: {error}.", "Write it again.") from error
    return ((f"{path} row {number}", row) for number, row in enumerate(rows, 1))


def _csv(path: str, text: str) -> Iterator[tuple[str, Any]]:
    head = text.split("\n", 1)[0]
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter="\t" if "\t" in head else ",", strict=True
    )
    try:
        for row in reader:
            # what is beyond the named columns, or missing of them, would shift the values
            if None in row or None in row.values():
                raise DataError(
                    f"{path} line {reader.line_num} has not as many fields as its first line.",
                    "Rewards are read from JSON lines, JSON, CSV and Parquet.",
                )
            yield f"{path} line {reader.line_num}", row
    except csv.Error as error:
        raise DataError(
            f"{path} line {reader.line_num} is no CSV: {error}.", "Correct the line."
        ) from error


def _json(path: str, text: str) -> Iterator[tuple[str, Any]]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        yield from _json_lines(path, text)
        return
    if isinstance(whole, list):
        yield from ((f"{path} element {number}", item) for number, item in enumerate(whole, 1))
    else:
        yield path, whole


def _json_lines(path: str, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"{path} line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path} line {number} is not JSON: {error}.", "Correct or leave out the line."
            ) from error
