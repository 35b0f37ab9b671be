"""Choose or reshape rewards, and compute all that follows from them over the right rows.

Returns and group statistics are those of all attempts that there were, not of those that a
curation kept. So on a curated directory a new reward is computed on the rows that the first
curation read, which its lineage names, and taken over from there by step_uid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.errors import ClawError, DataError, UsageError
from clawcli.store import arrow, expressions, table
from clawcli.store.expressions import Expression
from clawcli.store.frame import Frame
from clawcli.store.location import Location, parse

_STATISTICS: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": np.mean,
    "std": lambda values: np.std(values, ddof=1) if len(values) > 1 else np.nan,
    "min": np.min,
    "max": np.max,
}
TRAIN = "train"
"""Column with statistics of the train split, for --assign: train.reward_mean, ..."""
_SUMMARISED = ("reward", "trajectory_return")


def parse_assignment(text: str) -> str:
    """Read --assign reward=EXPR; returns the expression.

    Raises:
        UsageError: it assigns something else.
    """
    name, equals, expression = text.partition("=")
    if name.strip() != "reward" or not equals:
        raise UsageError(
            f"--assign {text!r} assigns no reward.", "Write --assign 'reward=EXPRESSION'."
        )
    return expression.strip()


def by_attempt(frame: Frame, expression: Expression) -> pa.Table:
    """Make the value of an expression the reward of each attempt (--reward-expr).

    Returns:
        reward (on the last step of each attempt), trajectory_reward and reward_source, by place.
        The value is the one at the attempt's last step; NULL = no reward.
    """
    values = _finite(expressions.each(frame, expression, boolean=False))
    order = frame.order
    last = order.places[order.left == 0]
    of_attempt = values.take(pa.array(last)).take(pa.array(order.trajectory))
    is_last = np.zeros(frame.num_rows, bool)
    is_last[last] = True
    # a branch has no reward of its own: it left the attempt before its end
    kinds = arrow.equal(
        frame.keys["trajectory_kind"].combine_chunks().cast("string"), "branch"
    ).fill_null(False)
    of_attempt = arrow.if_else(kinds, pa.scalar(None, pa.float64()), of_attempt)
    reward = arrow.if_else(pa.array(is_last), of_attempt, pa.scalar(None, pa.float64()))
    return _told(reward, of_attempt, expression)


def by_step(frame: Frame, expression: Expression, statistics: dict[str, float]) -> pa.Table:
    """Make the value of an expression the reward of each step (--assign reward=EXPR)."""
    rows = _WithStatistics(frame, statistics)
    reward = _finite(expressions.each(rows, expression, boolean=False))
    return _told(reward, None, expression)


def _finite(values: pa.ChunkedArray) -> pa.Array:
    """Read numbers; NaN and infinities are no rewards."""
    numbers = values.combine_chunks().cast(pa.float64())
    return arrow.if_else(arrow.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def _told(reward: pa.Array, of_attempt: pa.Array | None, expression: Expression) -> pa.Table:
    source = pa.scalar(f"{expression.flag.removeprefix('--')}:{expression.text}", pa.string())
    known = reward if of_attempt is None else of_attempt
    columns = {
        "reward": reward,
        "reward_source": arrow.if_else(known.is_valid(), source, pa.scalar(None, pa.string())),
    }
    if of_attempt is not None:
        columns["trajectory_reward"] = of_attempt
    return pa.table(columns)


def statistics(frame: Frame, steps: np.ndarray) -> dict[str, float]:
    """Summarise the numbers of some steps (bool [N]): those of the train split.

    Returns:
        reward_mean, reward_std (unbiased), reward_min, reward_max, and the same of
        trajectory_return, over its attempts; NaN where there is no value.
    """
    found = {}
    order = frame.order
    is_last = np.zeros(frame.num_rows, bool)
    is_last[order.places[order.left == 0]] = True
    kept = np.zeros(len(order.uids), bool)
    kept[order.trajectory[steps]] = True
    of = {"reward": steps, "trajectory_return": is_last & kept[order.trajectory]}
    for name in _SUMMARISED:
        values = frame.column(name).filter(pa.array(of[name])).drop_null().to_numpy()
        for kind, summary in _STATISTICS.items():
            found[f"{name}_{kind}"] = float(summary(values)) if len(values) else float("nan")
    return found


@dataclass(frozen=True, slots=True)
class _WithStatistics:
    """The steps of a frame, with one more struct that is the same on all."""

    frame: Frame
    statistics: dict[str, float]

    @property
    def schema(self) -> pa.Schema:
        """Columns of the frame, and TRAIN."""
        fields = pa.struct([(name, pa.float64()) for name in self.statistics])
        return self.frame.schema.append(pa.field(TRAIN, fields))

    def reader(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Read some columns and PLACE."""
        asked = [name for name in names if name != TRAIN]
        inner = self.frame.reader(asked)
        if TRAIN not in names:
            return inner
        wanted = inner.schema.append(self.schema.field(TRAIN))
        value = pa.scalar(self.statistics, wanted.field(TRAIN).type)

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in inner:
                same = pa.repeat(value, batch.num_rows)
                yield pa.record_batch([*batch.columns, same], schema=wanted)

        return pa.RecordBatchReader.from_batches(wanted, batches())


def first_input(frame: Frame) -> Frame | None:
    """Open what the first curation of a curated directory read; null = it is none.

    Raises:
        DataError: it is gone, or another table stands there.
    """
    place = frame.location
    if not frame.is_frozen:
        return None
    while True:
        info = table.first_info(place.steps)
        if info.get("command") != "curate":
            return Frame(place)
        (origin,) = (i for i in info["inputs"] if i.get("kind") == "data")
        place = opened(
            origin,
            f"{frame.location.path} was curated",
            "Bring it back, or compute returns and group statistics over the rows at hand with "
            "--regroup.",
        )


def opened(origin: Mapping[str, Any], made: str, hint: str) -> Location:
    """Return the place of a data directory that something was made from.

    Args:
        origin: as table.describe wrote it.
        made: what was made of it, for the message.
        hint: what to do where it is gone.

    Raises:
        DataError: it is gone, or another table stands there.
    """
    place = Location(parse(origin["path"]).path, origin["version"])
    try:
        if not table.exists(place.steps):
            raise DataError(f"{place.path} is not there.")
        there = table.describe(place, origin["version"])
        if there["table_id"] != origin.get("table_id", there["table_id"]):
            raise DataError(f"Another table is at {place.path} now.")
    except ClawError as error:
        raise DataError(
            f"{made} from {origin['path']}@{origin['version']}, which cannot be read any more.",
            hint,
        ) from error
    return place


def choose(frame: Frame, make: Callable[[Frame], pa.Table], *, at_hand: bool) -> None:
    """Let other rewards count, with the signal of all attempts.

    Args:
        frame: the steps to curate; changed in place.
        make: rewards of the steps of a frame, by place.
        at_hand: compute the signal over the steps of the frame, whatever was curated before.

    Raises:
        DataError: what the directory was curated from is gone.
    """
    source = None if at_hand else first_input(frame)
    if source is None:
        frame.set_rewards(make(frame))
        return
    made = make(source)
    source.set_rewards(made)
    places = arrow.index_in(frame.keys["step_uid"], source.keys["step_uid"])
    if places.null_count:
        raise DataError(
            f"{places.null_count:,} steps of {frame.location.path} are not in "
            f"{source.location.path}, which it was curated from.",
            "Curate again from that directory.",
        )
    frozen = {name: source.signal[name].take(places) for name in schema.FROZEN_NAMES}
    frame.set_rewards(made.take(places), frozen)
