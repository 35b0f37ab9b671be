"""Does a step's prompt go on exactly where its parent's row ended? If not, whose doing is it?

A broken link costs sharing, not truth: both rows are still what the model saw. Causes in the log
(the history was edited) and in the template (it takes back what it printed) are told apart,
because only the second can be mended by other settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from clawcli.prefix.exclude import Excluded
from clawcli.prefix.render import Rendered
from clawcli.prefix.rows import Row, RowMaker


@dataclass(slots=True)
class Links:
    """Parent links of a table: links = links_unbroken + the sum of the breaks."""

    links: int = 0
    links_unbroken: int = 0
    breaks_by_cause: Counter[str] = field(default_factory=Counter)


def check(table: pa.Table, rows: Sequence[Row | None], maker: RowMaker) -> Links:
    """Compare the row of every parent with the prompt of its child.

    Args:
        table: the steps; a link is a parent that is in the table.
        rows: the tokens of each step; None = it has no row.
        maker: what made the rows, asked again for the texts of a break.

    Returns:
        The counts. Causes: "log:" + prefix_broken; "not_rendered" where one of the two has no
        row; "tokens:logged_ids" where ids of the engine differ; "tokens:border" where the same
        text is tokenised otherwise; "template:rewrites_history", "..._generation_prompt" or
        "..._action" by where the child's prompt first differs from the parent's row.
    """
    result = Links()
    for child, cause in enumerate(table["prefix_broken"].to_pylist()):
        parent = maker.parents[child]
        if parent is None:
            continue
        result.links += 1
        above, below = rows[parent], rows[child]
        if cause is not None:
            result.breaks_by_cause[f"log:{cause}"] += 1
        elif above is None or below is None:
            result.breaks_by_cause["not_rendered"] += 1
        elif continues(above, below):
            result.links_unbroken += 1
        else:
            result.breaks_by_cause[_cause(maker, parent, child, above, below)] += 1
    return result


def continues(parent: Row, child: Row) -> bool:
    """Tell whether a parent's whole row is a prefix of the child's prompt."""
    length = len(parent.tokens)
    return length <= child.response_start and np.array_equal(child.tokens[:length], parent.tokens)


def _cause(maker: RowMaker, parent: int, child: int, above: Row, below: Row) -> str:
    if above.provenance != "text" or below.provenance != "text":
        return "tokens:logged_ids"
    before, after = maker.text(parent), maker.text(child)
    if after.prompt.startswith(before.row):
        return "tokens:border"
    if not after.prompt.startswith(_history(maker, before)):
        return "template:rewrites_history"
    if not after.prompt.startswith(before.prompt):
        return "template:rewrites_generation_prompt"
    return "template:rewrites_action"


def _history(maker: RowMaker, rendered: Rendered) -> str:
    try:
        return maker.renderer.without_generation_prompt(rendered.state)
    except Excluded:  # a template that demands another order of roles in a history
        return rendered.prompt
