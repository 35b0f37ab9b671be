"""Split the rows of an update over ranks: as many rows on each, and about as much work.

Each rank runs the same number of forward and backward passes, or those that have more would wait
for the others for ever. Where the rows do not go round, the cheapest is run again as a filler,
with no weight. What a rank gets is decided by the costs alone, so any number of ranks can take up
the plan of any other.
"""

from __future__ import annotations

import numpy as np


def split(costs: np.ndarray, num_ranks: int) -> list[list[int]]:
    """Give each rank as many rows, so that the dearest rank costs little more than the others.

    The dearest rows go first, each to the cheapest rank that has room; then rows of the dearest
    and another rank are exchanged for as long as that makes the dearer of the two cheaper.

    Args:
        costs: [R], positive, of the rows of one update.
        num_ranks: at least 1.

    Returns:
        For each rank its rows, the dearest first, so that ranks are about as far at any time. A
        row that stands for the second time is a filler.

    Example:
        >>> split(np.array([3, 9, 5, 7]), 2)
        [[1, 0], [3, 2]]
        >>> split(np.array([4, 1, 2]), 2)
        [[0, 1], [2, 1]]
    """
    count = len(costs)
    room = -(-count // num_ranks)
    order = np.argsort(-costs, kind="stable")
    # the cheapest row stands last
    rows = np.append(order, np.repeat(order[-1:], room * num_ranks - count))
    if num_ranks == 1:
        return [rows.tolist()]
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    spent = np.zeros(num_ranks)
    open_ = np.zeros(num_ranks)
    for row in rows.tolist():
        rank = int(np.argmin(spent + open_))
        ranks[rank].append(row)
        spent[rank] += costs[row]
        if len(ranks[rank]) == room:
            open_[rank] = np.inf
    _exchange(costs.astype(np.float64), ranks, spent)
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    return [sorted(mine, key=lambda row: place[row]) for mine in ranks]


def _exchange(costs: np.ndarray, ranks: list[list[int]], spent: np.ndarray) -> None:
    """Exchange rows of the dearest rank for rows of others, in place."""
    for _ in range(16 * len(ranks)):
        dearest = int(np.argmax(spent))
        mine = costs[ranks[dearest]]
        best = (spent[dearest] * (1 - 1e-12), 0, 0, 0)
        for other in range(len(ranks)):
            if other == dearest:
                continue
            moved = mine[:, None] - costs[ranks[other]][None]
            worse = np.maximum(spent[dearest] - moved, spent[other] + moved)
            mine_place, other_place = np.unravel_index(int(np.argmin(worse)), worse.shape)
            best = min(best, (worse[mine_place, other_place], other, mine_place, other_place))
        _, other, mine_place, other_place = best
        if best[0] >= spent[dearest] * (1 - 1e-12):
            return
        moved = mine[mine_place] - costs[ranks[other][other_place]]
        ranks[dearest][mine_place], ranks[other][other_place] = (
            ranks[other][other_place],
            ranks[dearest][mine_place],
        )
        spent[dearest] -= moved
        spent[other] += moved


def imbalance(costs: np.ndarray, ranks: list[list[int]]) -> float:
    """Compare the dearest rank with the mean of all: 0 = equal, 0.05 = 5% more.

    Example:
        >>> imbalance(np.array([3, 9, 5, 7]), [[1, 0], [3, 2]])
        0.0
    """
    spent = [float(costs[rows].sum()) for rows in ranks]
    return max(spent) / (sum(spent) / len(spent)) - 1
