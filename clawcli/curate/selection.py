"""Which steps stay, and which clause dropped each of the others.

Clauses come one after the other; each says of the steps that are left which ones it keeps, and each
step has one clause that dropped it. So the ledger adds up: kept, context, and the clauses' steps
are all steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from clawcli.errors import StoreError

_LEFT = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What one clause did."""

    clause: str
    """Stable name; the flag without dashes, with _null for steps of which it said NULL."""
    detail: str
    """What was asked."""
    steps: int
    """Steps that it dropped, those that stay as context included."""
    steps_context: int
    """Of these, steps that stay with weight 0, because kept ones need them."""


class Selection:
    """The steps that are left."""

    def __init__(self, num_rows: int) -> None:
        """Begin with all steps."""
        self.left = np.ones(num_rows, bool)
        """bool [N], by place."""
        self.num_null = 0
        """Steps for which --where is NULL."""
        self._reason = np.full(num_rows, _LEFT, np.int16)
        self._clauses: list[tuple[str, str]] = []

    def keep(self, mask: np.ndarray, clause: str, detail: str = "") -> None:
        """Keep those of the steps that are left for which a mask (bool [N]) is true."""
        self._reason[self.left & ~mask] = len(self._clauses)
        self._clauses.append((clause, detail))
        self.left &= mask

    def keep_true(self, values: pa.Array | pa.ChunkedArray, clause: str, detail: str) -> None:
        """Keep the steps for which an expression is true; those where it is NULL count apart."""
        is_null = np.asarray(values.is_null())
        self.keep(np.asarray(values.fill_null(True)), clause, detail)
        self.keep(~is_null, f"{clause}_null", detail)

    def ledger(self, context: np.ndarray) -> list[Entry]:
        """Say what each clause did; context = bool [N], dropped steps that stay."""
        counts = np.bincount(self._reason[~self.left], minlength=len(self._clauses))
        staying = np.bincount(self._reason[context], minlength=len(self._clauses))
        return [
            Entry(clause=clause, detail=detail, steps=int(steps), steps_context=int(stay))
            for (clause, detail), steps, stay in zip(self._clauses, counts, staying, strict=True)
        ]


def context(left: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Find the dropped steps that the states of kept ones are built from.

    Args:
        left: bool [N], steps that are kept.
        parents: int64 [N], place of the step that each state goes on from; -1 = none is needed,
            -2 = it is not there.

    Returns:
        bool [N].

    Raises:
        StoreError: a kept step needs one that the table lacks.
    """
    needed = np.zeros(len(left), bool)
    above = parents[left]
    while len(above):
        if (above == -2).any():
            raise StoreError(
                "The table lacks steps that others go on from.", "Ingest the logs again."
            )
        above = np.unique(above[above >= 0])
        above = above[~needed[above]]
        needed[above] = True
        above = parents[above]
    return needed & ~left


def roots(parents: np.ndarray) -> np.ndarray:
    """Find the place of the step that each state begins with: int64 [N]."""
    found = np.where(parents >= 0, parents, np.arange(len(parents)))
    while True:
        higher = found[found]
        if (higher == found).all():
            return found
        found = higher
