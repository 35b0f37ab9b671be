"""Units of steps, trajectories or groups: their numbers, and expressions over their steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from clawcli.store import expressions, uids
from clawcli.store.expressions import PLACE, UNIT, Expression
from clawcli.store.frame import Frame

Unit = Literal["trajectory", "step"]

OF_TRAJECTORY = (
    "trajectory_uid",
    "parent_trajectory_uid",
    "trajectory_kind",
    "group_uid",
    "task_id",
    "trial",
    "agent",
    "trajectory_reward",
    "trajectory_return",
    "trajectory_length",
    "group_size",
    "group_reward_mean",
    "group_reward_std",
    "group_solved_frac",
    "length_quantile",
    "log_format",
    "log_date",
)
"""Columns that are the same on all steps of a trajectory."""
OF_GROUP = (
    "group_uid",
    "task_id",
    "group_size",
    "group_reward_mean",
    "group_reward_std",
    "group_solved_frac",
    "log_format",
)
"""Columns that are the same on all trajectories of a group, of one policy."""
_OF_FIRST_STEP = ("policy", "policy_version", "model", "started_at", "tokenizer", "state_kind")


@dataclass(frozen=True, slots=True)
class Members:
    """What is chosen among: trajectories or steps."""

    of_step: np.ndarray
    """int64 [N], number of each step's unit."""
    keys: np.ndarray
    """uint64 [U, 2], uid of each unit."""

    def left(self, steps: np.ndarray) -> np.ndarray:
        """Tell which units have a step that is left: bool [U]."""
        found = np.zeros(len(self.keys), bool)
        found[self.of_step[steps]] = True
        return found


def members(frame: Frame, unit: Unit) -> Members:
    """Number the units of a table."""
    if unit == "step":
        keys = uids.halves(frame.keys["step_uid"].combine_chunks())
        return Members(np.arange(frame.num_rows), keys)
    order = frame.order
    return Members(order.trajectory.astype(np.int64), uids.halves(order.uids))


class _WithUnit:
    """The steps of a frame with the number of their trajectory."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.schema = frame.schema.append(pa.field(UNIT, pa.int32()))

    def reader(self, names: Sequence[str]) -> pa.RecordBatchReader:
        asked = [name for name in names if name != UNIT]
        wanted = pa.schema(
            [*(self.schema.field(n) for n in asked), (PLACE, pa.int64()), (UNIT, pa.int32())]
        )

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._frame.reader(asked):
                numbers = self._frame.order.trajectory[batch[PLACE].to_numpy()]
                yield pa.record_batch([*batch.columns, pa.array(numbers)], schema=wanted)

        return pa.RecordBatchReader.from_batches(wanted, batches())


class _Trajectories:
    """One row a trajectory, as its first step says, with the number of its group."""

    def __init__(self, frame: Frame) -> None:
        order = frame.order
        self._frame = frame
        first = order.places[order.rank == 0]
        kinds = np.array(frame.keys["trajectory_kind"].take(pa.array(first)).to_pylist(), object)
        # a branch is no attempt of its own: the one that it left is in the group
        self._counted = pa.array(first[kinds != "branch"])
        columns = [frame.schema.field(name) for name in (*OF_TRAJECTORY, *_OF_FIRST_STEP)]
        self.schema = pa.schema([*columns, (UNIT, pa.int32())])

    def reader(self, names: Sequence[str]) -> pa.RecordBatchReader:
        found = {n: self._frame.column(n).take(self._counted) for n in names if n != UNIT}
        found[PLACE] = self._counted
        found[UNIT] = pa.array(self._frame.groups[self._counted.to_numpy()])
        return pa.table(found).to_reader()


def of_trajectories(frame: Frame, expression: Expression) -> pa.Array:
    """Evaluate an expression over the steps of each trajectory; bool by place, NULL kept."""
    found = expressions.per_unit(_WithUnit(frame), expression, OF_TRAJECTORY)
    return _spread(found, len(frame.order.uids)).take(pa.array(frame.order.trajectory))


def of_groups(frame: Frame, expression: Expression) -> pa.Array:
    """Evaluate an expression over the trajectories of each group; bool by place, NULL kept."""
    found = expressions.per_unit(_Trajectories(frame), expression, OF_GROUP)
    groups = frame.groups
    return _spread(found, int(groups.max(initial=-1)) + 1).take(pa.array(groups))


def _spread(found: pa.Table, num_units: int) -> pa.Array:
    """Put values by unit; of several for one unit all have to be true."""
    units = found[UNIT].to_numpy()
    is_null = np.asarray(found["value"].is_null())
    values = np.asarray(found["value"].fill_null(False))
    true, null = np.ones(num_units, bool), np.zeros(num_units, bool)
    np.logical_and.at(true, units, values | is_null)
    np.logical_or.at(null, units, is_null)
    said = np.zeros(num_units, bool)
    said[units] = True
    return pa.array(true, mask=~said | (null & true))


def scores(frame: Frame, expression: Expression, unit: Unit) -> np.ndarray:
    """Evaluate what units are ranked by: float64 [U], NaN where it is NULL."""
    if unit == "step":
        return _numbers(expressions.each(frame, expression, boolean=False))
    found = expressions.per_unit(_WithUnit(frame), expression, OF_TRAJECTORY, boolean=False)
    values = np.full(len(frame.order.uids), np.nan)
    # where steps disagree on what is the same for a trajectory, the least counts
    order = np.argsort(-_numbers(found["value"]), kind="stable")
    values[found[UNIT].to_numpy()[order]] = _numbers(found["value"])[order]
    return values


def _numbers(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    return values.cast(pa.float64()).fill_null(float("nan")).to_numpy()
