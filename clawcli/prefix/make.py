"""Make the rows of all steps: by the quick paths first, and step by step where those do not hold.

The proof: a prompt's ids are those that apply_chat_template gives for the state. Its text comes
from apply_chat_template for every step that is rendered alone. What is left to prove is that ids
of pieces, joined, are the ids of the whole (prefix/encode.py), and that what was cut out of a later
prompt is what the step alone renders to (prefix/linear.py). That is compared for the last step of
each trajectory and a fixed 2% of the others, or for every step. If one differs, everything is made
again step by step, and every prompt compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from clawcli.engine import Workers
from clawcli.prefix import links
from clawcli.prefix.exclude import Disproved, Excluded
from clawcli.prefix.linear import Linear
from clawcli.prefix.links import Links
from clawcli.prefix.render import Renderer
from clawcli.prefix.rows import Proof, Row, RowMaker, parent_rows, parents_first
from clawcli.store.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

Prove = Literal["sample", "all"]
_SAMPLED_FRAC = 0.02
_STEPS_PER_BATCH = 1024
"""Steps whose rows are in memory at once, or a little more: attempts stay whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How rows are made."""

    eos_when_unknown: str = "include"
    """include or exclude, as for rows.trains_end."""
    prove: Prove = "sample"
    """sample = compare the last step of each trajectory and 2% of the others; all."""
    linear: bool = True
    """Take the steps of an attempt from one rendering where the template allows that."""


@dataclass(frozen=True, slots=True)
class Made:
    """The rows of some steps: whole attempts."""

    rows: dict[int, Row | None]
    """By row of the table; None = it has none, and excluded says why."""
    excluded: dict[int, Excluded]
    links: Links
    proof: Proof


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of the logged ids of a table."""

    steps_by_verdict: dict[str, int] = field(default_factory=dict)
    decoded_frac_by_model: dict[str, float] = field(default_factory=dict)


class Maker:
    """Make rows of a table, batch by batch; it lives where engine.Workers puts it."""

    def __init__(
        self, table: pa.Table, tokenizer: Tokenizer, renderer: Renderer, settings: Settings
    ) -> None:
        """Look at all steps, for what one says of another."""
        self._table = table
        self._maker = RowMaker(
            table,
            tokenizer,
            renderer,
            eos_when_unknown=settings.eos_when_unknown,
            proves=_proves(table, settings),
        )
        self._linear = Linear(self._maker, table) if settings.linear else None

    def judged(self) -> Judged:
        """Tell what became of the logged ids."""
        logged = self._maker.logged
        return Judged(dict(logged.steps_by_verdict), logged.decoded_frac_by_model)

    def make(self, places: Sequence[int]) -> Made | None:
        """Make the rows of whole attempts; None = a prompt was not what the template gives."""
        maker, made = self._maker, Made({}, {}, Links(), Proof())
        maker.proof = made.proof
        ready: dict[int, Row] = {}
        try:
            if self._linear is not None:
                ready = dict(self._linear.rows(places))
            for place in places:
                row = ready.get(place)
                if row is not None:
                    made.rows[place] = row
                    continue
                parent = maker.parents[place]
                try:
                    made.rows[place] = maker.row(
                        place, None if parent is None else made.rows[parent]
                    )
                except Excluded as error:
                    made.rows[place] = None
                    made.excluded[place] = error
        except Disproved:
            return None
        made.proof.prompts_cut = len(ready)
        made.links.add(links.check(self._table, made.rows, maker, places))
        maker.forget()
        return made

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


def make_rows(
    table: pa.Table,
    tokenizer: Tokenizer,
    renderer: Renderer,
    settings: Settings,
    *,
    workers: int = 1,
) -> Iterator[Made | Judged | None]:
    """Make the rows of a table, a batch of attempts at a time.

    Args:
        table: steps, with each step's ancestors.
        tokenizer: whose ids the rows have.
        renderer: of its template.
        settings: how.
        workers: processes. What comes of it does not depend on how many there are.

    Yields:
        What became of logged ids, then the batches; None = what came before is not to be used,
        for a prompt was not what apply_chat_template gives, and all steps are made again.
    """
    batches = batched(table)
    for each in (settings, replace(settings, prove="all", linear=False)):
        found = _in_workers((table, tokenizer, renderer, each), batches, workers)
        for made in found:
            yield made
            if made is None:
                logger.warning(
                    "A prompt was not what apply_chat_template gives: every step is rendered and "
                    "compared."
                )
                break
        else:
            return


def _in_workers(
    arguments: tuple[Any, ...], batches: Sequence[list[int]], workers: int
) -> Iterator[Made | Judged | None]:
    count = max(1, min(workers, len(batches)))
    with Workers(Maker, arguments, count) as makers:
        yield makers.each("judged", {0: ()})[0]
        yield from makers.map("make", batches)


def batched(table: pa.Table) -> list[list[int]]:
    """Cut the rows of a table into batches of whole attempts with all their branches.

    Returns:
        Rows of each batch, parents before children.
    """
    parents = parent_rows(table)
    roots = list(range(len(parents)))
    attempts: dict[int, list[int]] = {}
    for row in parents_first(parents):
        parent = parents[row]
        if parent is not None:
            roots[row] = roots[parent]
        attempts.setdefault(roots[row], []).append(row)
    batches: list[list[int]] = []
    for rows in attempts.values():
        if not batches or len(batches[-1]) + len(rows) > _STEPS_PER_BATCH:
            batches.append([])
        batches[-1] += rows
    return batches


def _proves(table: pa.Table, settings: Settings) -> np.ndarray | None:
    """Choose the steps that are compared; None = all, and nothing more careful is left to try."""
    if settings.prove == "sample":
        return sampled(table)
    return np.ones(len(table), bool) if settings.linear else None


def sampled(table: pa.Table) -> np.ndarray:
    """Choose the steps that are compared: bool per row.

    The last step of each trajectory, and of the others those whose uid, which is a hash, falls
    below 2%: the same steps whatever else is in the table.
    """
    last: dict[str, tuple[int, int]] = {}
    pairs = zip(table["trajectory_uid"].to_pylist(), table["step_index"].to_pylist(), strict=True)
    for row, (trajectory, index) in enumerate(pairs):
        last[trajectory] = max(last.get(trajectory, (-1, -1)), (index, row))
    chosen = np.array(
        [int(uid[:8], 16) < _SAMPLED_FRAC * 2**32 for uid in table["step_uid"].to_pylist()], bool
    )
    chosen[[row for _, row in last.values()]] = True
    return chosen
