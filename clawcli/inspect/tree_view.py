"""A tree folded to a page: the nodes through which most steps go, and rewards at their ends.

Nodes without a fork are one line with what follows them. Of the rest, those with the most steps
below are opened first, until the page is full; what stays closed is counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clawcli.inspect.step_view import texts
from clawcli.store.tokenizers import Tokenizer
from clawcli.store.trees import Tree

_LINES = 40
_SIBLINGS = 6
"""Children of one node that are drawn; the others are folded into one line."""
_TEXT_TOKENS = 24
"""Tokens of a line whose text is shown."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One line: a run of nodes without a fork, or several branches folded."""

    level: int
    """Forks above it; 0 = a root."""
    is_last: bool
    """The last line of its parent."""
    node_id: int | None
    """First node of the run; None = several branches are folded here."""
    branches: int
    """1, or how many are folded."""
    nodes: int
    """Nodes of the run; of folded branches all below."""
    tokens: int
    """Tokens of these nodes."""
    steps: int
    """Steps whose row ends in the run or below."""
    leaves: int
    """Leaves there."""
    is_closed: bool
    """It goes on below, which is not drawn."""
    ends: int
    """Trajectories that end in it; in all below where that is not drawn."""
    return_min: float | None
    """Least return of these; None = none is known."""
    return_mean: float | None
    return_max: float | None
    text: str
    """Its first text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeView:
    """A tree and its lines."""

    steps: int
    nodes: int
    roots: int
    leaves: int
    logical_tokens: int
    unique_tokens: int
    branches: list[Branch]
    """The lines, depth-first."""


def view_tree(tree: Tree, tokenizer: Tokenizer) -> TreeView:
    """Fold a tree to a page."""
    drawing = _Drawing(tree, tokenizer)
    return TreeView(
        steps=len(tree.paths),
        nodes=len(tree.forest.segment_starts),
        roots=len(drawing.children[-1]),
        leaves=int(drawing.leaves[drawing.children[-1]].sum()),
        logical_tokens=tree.manifest.counts.logical_tokens,
        unique_tokens=len(tree.forest.token_ids),
        branches=list(drawing.lines()),
    )


class _Drawing:
    """Sums over everything below each node, and which nodes are open."""

    def __init__(self, tree: Tree, tokenizer: Tokenizer) -> None:
        self._forest, self._tokenizer = tree.forest, tokenizer
        count = len(tree.forest.segment_starts)
        parents = tree.forest.segment_parents.tolist()
        self.children: dict[int, list[int]] = {-1: []}
        for node, parent in enumerate(parents):
            self.children.setdefault(parent, []).append(node)
        ends = tree.end_nodes()
        returns = tree.paths["trajectory_return"].to_numpy().astype(float)
        is_end = tree.paths["is_last"].to_numpy(zero_copy_only=False).astype(bool)
        by_end = np.argsort(ends[is_end], kind="stable")
        self._ends, self._returns = ends[is_end][by_end], returns[is_end][by_end]
        self.leaves = np.array([node not in self.children for node in range(count)], np.int64)
        self._steps = np.bincount(ends, minlength=count)
        self._nodes = np.ones(count, np.int64)
        self._tokens = (tree.forest.segment_ends - tree.forest.segment_starts).astype(np.int64)
        self._own_tokens = self._tokens.copy()
        for node in range(count - 1, -1, -1):
            if parents[node] >= 0:
                for sums in (self.leaves, self._steps, self._nodes, self._tokens):
                    sums[parents[node]] += sums[node]
        for siblings in self.children.values():
            siblings.sort(key=lambda node: (-self._steps[node], node))
        self._open = self._choose()

    def lines(self) -> Iterator[Branch]:
        """Yield the lines, depth-first; a stack, because trees are as deep as they like."""
        pending = self._below(-1, 0)[::-1]
        while pending:
            line, last_node = pending.pop()
            yield line
            if last_node is not None and last_node in self._open:
                pending += self._below(last_node, line.level + 1)[::-1]

    def _choose(self) -> set[int]:
        """Open the forks with the most steps below, while the page has room."""
        chosen = {-1}
        room = _LINES - min(len(self.children[-1]), _SIBLINGS + 1)
        waiting: list[tuple[int, int]] = []

        def offer(node: int) -> None:
            for child in self.children.get(node, [])[:_SIBLINGS]:
                end = self._run(child)[-1]
                if end in self.children:
                    heapq.heappush(waiting, (-int(self._steps[child]), end))

        offer(-1)
        while waiting:
            _, node = heapq.heappop(waiting)
            needed = min(len(self.children[node]), _SIBLINGS + 1)
            if needed <= room:
                room -= needed
                chosen.add(node)
                offer(node)
        return chosen

    def _run(self, node: int) -> list[int]:
        run = [node]
        while len(below := self.children.get(run[-1], [])) == 1:
            run.append(below[0])
        return run

    def _below(self, node: int, level: int) -> list[tuple[Branch, int | None]]:
        siblings = self.children.get(node, [])
        # one more is drawn rather than folded alone
        shown = siblings if len(siblings) == _SIBLINGS + 1 else siblings[:_SIBLINGS]
        folded = siblings[len(shown) :]
        lines: list[tuple[Branch, int | None]] = []
        for place, child in enumerate(shown):
            is_last = place == len(siblings) - 1
            lines.append((self._line(child, level, is_last=is_last), self._run(child)[-1]))
        if folded:
            lines.append((self._folded(folded, level), None))
        return lines

    def _line(self, node: int, level: int, *, is_last: bool) -> Branch:
        run = self._run(node)
        is_closed = run[-1] in self.children and run[-1] not in self._open
        ended = self._ended(node, len(run) if not is_closed else int(self._nodes[node]))
        start = int(self._forest.segment_starts[node])
        first = min(int(self._own_tokens[run].sum()), _TEXT_TOKENS)
        ids = self._forest.token_ids[start : start + first].tolist()
        return Branch(
            level=level,
            is_last=is_last,
            node_id=node,
            branches=1,
            nodes=len(run),
            tokens=int(self._own_tokens[run].sum()),
            steps=int(self._steps[node]),
            leaves=int(self.leaves[node]),
            is_closed=is_closed,
            ends=len(ended),
            **_spread(ended),
            text="".join(texts(ids, self._tokenizer)),
        )

    def _folded(self, nodes: list[int], level: int) -> Branch:
        ended = np.concatenate([self._ended(node, int(self._nodes[node])) for node in nodes])
        return Branch(
            level=level,
            is_last=True,
            node_id=None,
            branches=len(nodes),
            nodes=int(self._nodes[nodes].sum()),
            tokens=int(self._tokens[nodes].sum()),
            steps=int(self._steps[nodes].sum()),
            leaves=int(self.leaves[nodes].sum()),
            is_closed=True,
            ends=len(ended),
            **_spread(ended),
            text="",
        )

    def _ended(self, node: int, count: int) -> np.ndarray:
        """Returns of the trajectories that end in some nodes.

        Runs and all that is below a node stand one after the other in pre-order.
        """
        start, stop = np.searchsorted(self._ends, [node, node + count])
        return self._returns[start:stop]


def _spread(values: np.ndarray) -> dict[str, float | None]:
    known = values[~np.isnan(values)]
    if not len(known):
        return {"return_min": None, "return_mean": None, "return_max": None}
    return {
        "return_min": float(known.min()),
        "return_mean": float(known.mean()),
        "return_max": float(known.max()),
    }
