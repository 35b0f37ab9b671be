"""Gather the rows of all steps: their tokens on disk, what is said of them in memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from clawcli.prefix import links, make
from clawcli.prefix.exclude import Excluded
from clawcli.prefix.render import Renderer
from clawcli.prefix.rows import Proof, Row
from clawcli.prefix.spool import Spool, Writer
from clawcli.store import trees
from clawcli.store.tokenizers import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fact:
    """What is kept of a row in memory once its tokens are on disk; see rows.Row."""

    row_tokens: int
    row_hash: str
    response_start: int
    response_end: int
    logprobs: list[float | None] | None
    provenance: str


@dataclass(slots=True)
class Gathered:
    """The rows of all steps: tokens on disk, the rest in memory."""

    spool: Spool
    places: np.ndarray
    """int64: row of the table of each row in the spool."""
    facts: dict[int, Fact]
    """By row of the table."""
    excluded: dict[str, Excluded]
    """By step_uid, in the order of the table."""
    links: links.Links
    proof: Proof
    judged: make.Judged


def gather(
    table: pa.Table,
    tokenizer: Tokenizer,
    renderer: Renderer,
    settings: make.Settings,
    file: Path,
    *,
    workers: int = 1,
) -> Gathered:
    """Make the rows of a table.

    Args:
        table: steps, with each step's ancestors.
        tokenizer: whose ids the rows have.
        renderer: of its template.
        settings: how they are made.
        file: where the tokens are kept; the caller's to remove.
        workers: processes.
    """
    places: list[int] = []
    facts: dict[int, Fact] = {}
    excluded: dict[int, Excluded] = {}
    found, proof, judged = links.Links(), Proof(), make.Judged()
    writer = Writer(file)
    for made in make.make_rows(table, tokenizer, renderer, settings, workers=workers):
        if isinstance(made, make.Judged):
            judged = made
        elif made is None:
            writer.close()
            writer, places, facts, excluded = Writer(file), [], {}, {}
            found, proof = links.Links(), Proof()
        else:
            for place, row in made.rows.items():
                if row is not None:
                    places.append(place)
                    facts[place] = _fact(row)
                    writer.append(row.tokens)
            excluded |= made.excluded
            found.add(made.links)
            proof.add(made.proof)
    spool = writer.rows()
    writer.close()
    uids = table["step_uid"]
    by_uid = {uids[row].as_py(): excluded[row] for row in sorted(excluded)}
    for uid, error in by_uid.items():
        logger.info("step %s: %s: %s", uid, error.reason.value, error.detail)
    return Gathered(spool, np.array(places, np.int64), facts, by_uid, found, proof, judged)


def _fact(row: Row) -> Fact:
    return Fact(
        row_tokens=len(row.tokens),
        row_hash=trees.row_hash(row.tokens),
        response_start=row.response_start,
        response_end=row.response_end,
        logprobs=row.logprobs,
        provenance=row.provenance,
    )
