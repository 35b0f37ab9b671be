"""From packed rows and the steps on them to tables of schema.SHARDS, a row group at a time.

All is computed on columns; no step and no token is a Python object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from clawcli import schema
from clawcli.export.select import Stage
from clawcli.layout import Packed, ranges
from clawcli.store import uids

_TOKENS_PER_GROUP, _ROWS_PER_GROUP = 1 << 20, 1024
"""Small row groups keep a reader's memory at a few megabytes."""
_STEPS = schema.arrow_schema(schema.SHARDS).field("steps").type


@dataclass(frozen=True, slots=True)
class StagePacked:
    """The packed rows of one stage."""

    stage: Stage
    packed: Packed
    costs: np.ndarray
    """int64 [R]."""
    steps: np.ndarray
    """int64: steps in the order of the packed rows, as places among those of the stage."""


def groups(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut rows into row groups.

    Args:
        sizes: int64 [R], tokens of each row in the order in which they are stored.

    Yields:
        First row and one past the last.
    """
    start = 0
    while start < len(sizes):
        running = np.cumsum(sizes[start : start + _ROWS_PER_GROUP])
        end = start + max(1, int(np.searchsorted(running, _TOKENS_PER_GROUP, side="right")))
        yield start, end
        start = end


class Tables:
    """Makes the rows of one stage."""

    def __init__(
        self,
        packed: StagePacked,
        order: np.ndarray,
        places: dict[str, np.ndarray],
        steps: pa.Table,
        tokens: np.ndarray,
    ) -> None:
        """Lay the steps out.

        Args:
            packed: the stage.
            order: int64 [R]: its rows in the order in which they are stored.
            places: row_id, phase and update (int64 [R]) of each row in that order.
            steps: schema.PATHS of all steps that could be taken.
            tokens: int32, of the tree.
        """
        self._packed, self._order, self._places, self._tokens = packed, order, places, tokens
        self._steps = _Steps(packed, order, steps, places["row_id"])

    def group(self, start: int, end: int) -> pa.Table:
        """Build the rows from a place in the order to another, of schema.SHARDS."""
        rows, laid = self._order[start:end], self._packed.packed
        segments = ranges(laid.segment_edges[rows], laid.segment_edges[rows + 1])
        num_segments = laid.segment_edges[rows + 1] - laid.segment_edges[rows]
        columns: dict[str, np.ndarray | pa.Array] = {
            **{name: values[start:end] for name, values in self._places.items()},
            "stage": np.full(len(rows), self._packed.stage.number),
            "cost": self._packed.costs[rows],
            "token_ids": _lists(laid.token_ids(self._tokens, rows), laid.tokens[rows]),
            "segment_starts": _lists(laid.segment_starts[segments], num_segments),
            "segment_parents": _lists(laid.segment_parents[segments], num_segments),
            "steps": self._steps.lists(rows),
        }
        fields = schema.arrow_schema(schema.SHARDS)
        return pa.table([_typed(columns[f.name], f.type) for f in fields], schema=fields)


def _typed(values: np.ndarray | pa.Array, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _lists(values: np.ndarray, counts: np.ndarray) -> pa.ListArray:
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


class _Steps:
    """The entries of all steps of a stage, in the order of the packed rows."""

    def __init__(
        self, packed: StagePacked, order: np.ndarray, steps: pa.Table, stored: np.ndarray
    ) -> None:
        stage, laid = packed.stage, packed.packed
        self._edges = laid.step_edges
        mine = stage.steps[packed.steps]
        weights = steps["loss_weight"].to_numpy()[mine]
        row_ids = np.empty(len(order), np.int64)
        row_ids[order] = stored
        counts = np.diff(self._edges)
        places = np.arange(len(mine)) - np.repeat(self._edges[:-1], counts)
        following = _following(steps, mine)
        next_row = np.repeat(row_ids, counts)[following]
        none = following < 0
        made = {
            "segment": pa.array(laid.step_segments),
            "next_row": pa.array(next_row, mask=none),
            "next_step": pa.array(places[following], pa.int32(), mask=none),
            "sampling_weight": pa.array(stage.sampling_weights[packed.steps]),
            "pi": pa.array(stage.pi[packed.steps]),
            "weight": pa.array(weights * stage.importance[packed.steps]),
        }
        self._made, self._mine = made, mine
        self._steps = {
            field.name: steps[field.name].combine_chunks()
            for field in _STEPS.value_type
            if field.name not in made
        }

    def lists(self, rows: np.ndarray) -> pa.ListArray:
        """Build the list of steps of each of some rows."""
        taken = ranges(self._edges[rows], self._edges[rows + 1])
        of_made, of_steps = pa.array(taken), pa.array(self._mine[taken])
        columns = [
            self._made[field.name].take(of_made)
            if field.name in self._made
            else self._steps[field.name].take(of_steps)
            for field in _STEPS.value_type
        ]
        entries = pa.StructArray.from_arrays(columns, fields=list(_STEPS.value_type))
        offsets = np.append(0, np.cumsum(self._edges[rows + 1] - self._edges[rows]))
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), entries)


def _following(steps: pa.Table, mine: np.ndarray) -> np.ndarray:
    """Find the entry of the trajectory's next step among those of a stage: int64; -1 = none."""
    trajectories = uids.codes(uids.binary(steps["trajectory_uid"]))[0][mine].astype(np.int64)
    indices = steps["step_index"].fill_null(-2).to_numpy()[mine].astype(np.int64)
    order = np.lexsort((indices, trajectories))
    goes_on = (trajectories[order][1:] == trajectories[order][:-1]) & (
        indices[order][1:] == indices[order][:-1] + 1
    )
    following = np.full(len(mine), -1)
    following[order[:-1][goes_on]] = order[1:][goes_on]
    return following
