"""Does a step's prompt go on exactly where its parent's row ended? If not, whose doing is it?

A broken link costs sharing, not truth: both rows are still what the model saw. Causes in the log
(the history was edited) and in the template (it takes back what it printed) are told apart,
because only the second can be mended by other settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from clawcli.prefix.exclude import Excluded
from clawcli.prefix.render import Rendered
from clawcli.prefix.rows import Row, RowMaker

_EXAMPLES = 3
"""Breaks of each cause that are named."""
_BEFORE_CHARS, _AFTER_CHARS = 24, 40
"""Text that an example shows on both sides of the place where two texts part."""


@dataclass(frozen=True, slots=True)
class Break:
    """A link that broke: where the child's prompt leaves the parent's row."""

    step_uid: str
    parent_step_uid: str
    row: int
    """Of the child in the table."""
    parent_text: str | None
    """The parent's row around that place; None = the break is the log's, or of ids."""
    child_text: str | None
    """The child's prompt there."""


@dataclass(slots=True)
class Links:
    """Parent links of a table: links = links_unbroken + the sum of the breaks."""

    links: int = 0
    links_unbroken: int = 0
    breaks_by_cause: Counter[str] = field(default_factory=Counter)
    examples_by_cause: dict[str, list[Break]] = field(default_factory=dict)
    """The first breaks of each cause."""

    def add(self, other: Links) -> None:
        """Count the links of other steps too."""
        self.links += other.links
        self.links_unbroken += other.links_unbroken
        self.breaks_by_cause += other.breaks_by_cause
        for cause, found in other.examples_by_cause.items():
            known = self.examples_by_cause.setdefault(cause, [])
            known += found[: _EXAMPLES - len(known)]


def check(
    table: pa.Table,
    rows: Sequence[Row | None] | Mapping[int, Row | None],
    maker: RowMaker,
    places: Iterable[int] | None = None,
) -> Links:
    """Compare the row of every parent with the prompt of its child.

    Args:
        table: the steps; a link is a parent that is in the table.
        rows: the tokens of each step; None = it has no row.
        maker: what made the rows, asked again for the texts of a break.
        places: rows of the table to look at, with their parents; None = all.

    Returns:
        The counts. Causes: "log:" + prefix_broken; "not_rendered" where one of the two has no
        row; "tokens:logged_ids" where ids of the engine differ; "tokens:border" where the same
        text is tokenised otherwise; "template:rewrites_history", "..._generation_prompt" or
        "..._action" by where the child's prompt first differs from the parent's row.
    """
    result = Links()
    causes = table["prefix_broken"]
    uids = table["step_uid"]
    for child in range(len(table)) if places is None else places:
        parent = maker.parents[child]
        if parent is None:
            continue
        result.links += 1
        above, below = rows[parent], rows[child]
        logged = causes[child].as_py()
        texts: tuple[str, str] | None = None
        if logged is not None:
            cause = f"log:{logged}"
        elif above is None or below is None:
            cause = "not_rendered"
        elif continues(above, below):
            result.links_unbroken += 1
            continue
        else:
            cause, texts = _cause(maker, parent, child, above, below)
        result.breaks_by_cause[cause] += 1
        examples = result.examples_by_cause.setdefault(cause, [])
        if len(examples) < _EXAMPLES:
            shown = (None, None) if texts is None else _parting(*texts)
            examples.append(Break(uids[child].as_py(), uids[parent].as_py(), child, *shown))
    return result


def continues(parent: Row, child: Row) -> bool:
    """Tell whether a parent's whole row is a prefix of the child's prompt."""
    length = len(parent.tokens)
    return length <= child.response_start and np.array_equal(child.tokens[:length], parent.tokens)


def _cause(
    maker: RowMaker, parent: int, child: int, above: Row, below: Row
) -> tuple[str, tuple[str, str] | None]:
    """Find why a link broke, and the two texts where it is the template's doing."""
    if above.provenance != "text" or below.provenance != "text":
        return "tokens:logged_ids", None
    before, after = maker.text(parent), maker.text(child)
    texts = before.row, after.prompt
    if after.prompt.startswith(before.row):
        return "tokens:border", None
    if not after.prompt.startswith(_history(maker, before)):
        return "template:rewrites_history", texts
    if not after.prompt.startswith(before.prompt):
        return "template:rewrites_generation_prompt", texts
    return "template:rewrites_action", texts


def _parting(left: str, right: str) -> tuple[str, str]:
    """Cut two texts around the place where they part."""
    pairs = enumerate(zip(left, right, strict=False))
    shorter = min(len(left), len(right))
    place = next((place for place, (one, other) in pairs if one != other), shorter)
    near = slice(max(0, place - _BEFORE_CHARS), place + _AFTER_CHARS)
    return left[near], right[near]


def _history(maker: RowMaker, rendered: Rendered) -> str:
    try:
        return maker.renderer.without_generation_prompt(rendered.state)
    except Excluded:  # a template that demands another order of roles in a history
        return rendered.prompt
