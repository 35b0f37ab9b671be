"""Read files of what became known later, reports of benchmarks too, as rows of fields.

JSON lines, a JSON array, CSV and Parquet hold one row a line; the reports of benchmarks are
unfolded into the fields task_id and reward, beside what they say themselves:

    SWE-bench run report    resolved_ids 1; unresolved_ids, empty_patch_ids 0; error_ids no value
    SWE-bench results.json  resolved 1; applied, no_apply, no_generation 0; the others no value
    SWE-bench report.json   {instance: {resolved: true, ...}}, one instance or many
    Harbor result.json      verifier_result.rewards; source_path is the folder of the trial
    Terminal-Bench          results: [{task_id, is_resolved, ...}]

What the harness could not judge (error_ids: no report came of the run) has no value, because it
says nothing about the attempt. A record that names a call or an attempt is a row, never a report.
A folder stands for the reports below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clawcli.errors import DataError, NotFoundError
from clawcli.ingest.attach.files import Row, Rows, at, records
from clawcli.ingest.read.find import Found

NAMES_ONE = ("step_uid", "trajectory_uid", "native_id")
"""Fields that no report of a benchmark has."""
_REPORTS = ("result.json", "results.json", "report.json")
_REPORT_FIELDS = frozenset(
    {"resolved_ids", "resolved", "results", "verifier_result", "n_total_trials"}
)
# how a run report (schema_version 2) of the SWE-bench harness sorts the instances; incomplete_ids
# were never attempted, completed_ids and submitted_ids only sum others up
_RUN_REPORT = {"resolved_ids": 1.0, "unresolved_ids": 0.0, "empty_patch_ids": 0.0}
_RUN_REPORT_UNJUDGED = ("error_ids",)
# the lists of results.json overlap, so an instance has the value of the first that names it
_RESULTS = {"resolved": 1.0, "applied": 0.0, "no_apply": 0.0, "no_generation": 0.0}
_RESULTS_UNJUDGED = ("install_fail", "reset_failed", "no_logs")


def read(
    path: str,
    *,
    reward_field: str | None = None,
    any_reward: bool = False,
    named_by: Iterable[str] = (),
) -> Rows:
    """Read the rows of a file, or of the reports below a folder.

    The content decides about the format, never the name.

    Args:
        path: JSON lines, JSON, CSV (comma or tab) or Parquet, also compressed with gzip or zstd,
            at a URL or "-"; or a folder.
        reward_field: the field that was named for the reward; without one a Harbor trial must
            leave no choice.
        any_reward: take all rewards of a Harbor trial, each as a field.
        named_by: fields that name calls or attempts; a record that has one is no report.

    Raises:
        NotFoundError: nothing is there, or a folder holds no report.
        StoreError: the file cannot be read.
        DataError: it is in none of the formats, or a line of it is not.
    """
    names = frozenset((*NAMES_ONE, *named_by))
    unfold = _Unfold(reward_field, any_reward, names)
    if Path(path).is_dir():
        return _read_folder(path, unfold)
    return unfold.rows(path, records(path))


def _read_folder(path: str, unfold: _Unfold) -> Rows:
    reports = sorted(file for file in Path(path).rglob("*.json") if file.name in _REPORTS)
    found: list[Row] = []
    for report in reports:
        rows = records(str(report))
        if len(rows) and not all(_is_summary(row.fields) for row in rows):
            found.extend(unfold.rows(str(report), rows))
    if not found:
        raise NotFoundError(
            f"{path} holds no report of rewards ({', '.join(_REPORTS)}).",
            "Name the file that holds the rows.",
        )
    return _listed(Found(path).label, found)


def _listed(label: str, rows: Sequence[Row]) -> Rows:
    places = [row.place for row in rows]
    return Rows(label, [row.fields for row in rows], places.__getitem__)


@dataclass(frozen=True, slots=True)
class _Unfold:
    """How the reports among the records become rows."""

    reward_field: str | None
    any_reward: bool
    names: frozenset[str]

    def rows(self, path: str, rows: Rows) -> Rows:
        if not isinstance(rows.content, list):
            return rows
        for number, record in enumerate(rows.content):
            if not isinstance(record, dict):
                raise DataError(
                    f"{rows.place(number)} is not an object.",
                    "Write one object with named fields.",
                )
        if not any(self._is_report(record) for record in rows.content):
            return rows
        found = [one for row in rows for one in self._unfolded(path, row)]
        return _listed(rows.label, found)

    def _is_report(self, record: Mapping[str, Any]) -> bool:
        if not self.names.isdisjoint(record):
            return False
        if _REPORT_FIELDS.isdisjoint(record):
            return _is_outcome(next(iter(record.values()), None))
        lists = (record.get("resolved"), record.get("results"))
        return (
            "resolved_ids" in record
            or any(isinstance(one, list) for one in lists)
            or ("verifier_result" in record or _is_summary(record))
        )

    def _unfolded(self, path: str, row: Row) -> Iterator[Row]:
        record, place = row.fields, row.place
        if not self._is_report(record):
            yield row
        elif _is_summary(record):
            raise DataError(
                f"{path} sums up a Harbor job and says nothing of its trials.",
                "Name the folder of the job, which holds a result.json of each trial.",
            )
        elif "resolved_ids" in record:
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
            yield self._harbor(place, record, Path(path).parent)
        elif record and all(_is_outcome(value) for value in record.values()):
            yield from (
                Row(
                    {**outcome, "task_id": instance, "instance_id": instance},
                    f"{place}, {instance}",
                )
                for instance, outcome in record.items()
            )
        else:
            yield row

    def _harbor(self, place: str, record: Mapping[str, Any], folder: Path) -> Row:
        keys = {
            # of a trial the key task_id is an object that says where the task lies
            "task_id": record.get("task_name"),
            "agent": at(record, "agent_info.name"),
            "source_path": str(folder),
        }
        result = record["verifier_result"]
        if self.any_reward:
            rewards = at(result, "rewards")
            return Row({**keys, **(rewards if isinstance(rewards, dict) else {})}, place)
        fields = {**record, **keys}
        if self.reward_field is None:
            fields["reward"] = _harbor_reward(place, result)
        return Row(fields, place)


def _is_outcome(value: Any) -> bool:
    """Tell whether a value is what SWE-bench says of one instance."""
    return isinstance(value, dict) and "resolved" in value


def _is_summary(record: Any) -> bool:
    """Tell whether a record is the result.json of a Harbor job, which stands above its trials."""
    return isinstance(record, dict) and {"n_total_trials", "stats"} <= record.keys()


def _sorted(
    place: str, record: Mapping[str, Any], values: Mapping[str, float], unjudged: Sequence[str]
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
