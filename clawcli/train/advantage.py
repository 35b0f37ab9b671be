"""Advantages of steps: the only place that makes one.

A step's advantage is its trajectory's return against the mean of its group, and all tokens of the
step share it. The group's statistics are those that curation froze with the data: computed anew
from the steps that survived, keeping only the successes would make every advantage zero.

Shapes: S steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

COLUMNS = (
    "trajectory_return",
    "group_reward_mean",
    "group_reward_std",
    "group_size",
)
"""Columns of a step that its advantage comes from."""
_STD_FLOOR = 1e-6


def group_advantages(
    return_S: np.ndarray,
    group_mean_S: np.ndarray,
    group_std_S: np.ndarray,
    group_size_S: np.ndarray,
    *,
    scale_by_std: bool = False,
) -> np.ndarray:
    """Centre each step's trajectory return on the frozen mean of its group.

    With scale_by_std the result is also divided by the group's standard deviation, which weighs
    easy and hard tasks alike; leaving it off keeps the reward's own unit.

    Args:
        return_S: float64 [S], trajectory_return; NaN = not logged.
        group_mean_S: float64 [S], frozen group_reward_mean; NaN = none.
        group_std_S: float64 [S], frozen group_reward_std (unbiased); NaN = none.
        group_size_S: int64 [S], frozen group_size; 0 = none.
        scale_by_std: divide by the standard deviation plus 1e-6.

    Returns:
        float64 [S]. 0, never NaN, for a group of one, of equal returns, or without a return.

    Source:
        GRPO, arXiv 2402.03300 section 4.1; without the division, Dr. GRPO, arXiv 2503.20783.

    Example:
        >>> group_advantages(
        ...     np.array([1.0, 0.0, 5.0]),
        ...     np.array([0.5, 0.5, 5.0]),
        ...     np.array([0.7, 0.7, np.nan]),
        ...     np.array([2, 2, 1]),
        ... )
        array([ 0.5, -0.5,  0. ])
    """
    centred_S = return_S - group_mean_S
    if scale_by_std:
        centred_S = centred_S / (group_std_S + _STD_FLOOR)
    # equal returns: their float mean may differ from them by a rounding error
    has_spread_S = (group_size_S > 1) & (group_std_S > 0)
    return np.where(has_spread_S & np.isfinite(centred_S), centred_S, 0.0)


def step_advantages(columns: Mapping[str, np.ndarray], *, scale_by_std: bool = False) -> np.ndarray:
    """Compute the advantages of shard steps from their frozen columns.

    Args:
        columns: COLUMNS of the steps, float64 [S]; NaN = null.
        scale_by_std: as in group_advantages.

    Returns:
        float64 [S].
    """
    return group_advantages(
        columns["trajectory_return"],
        columns["group_reward_mean"],
        columns["group_reward_std"],
        np.nan_to_num(columns["group_size"]).astype(np.int64),
        scale_by_std=scale_by_std,
    )


def why_no_signal(steps: Iterable[Mapping[str, Any]]) -> str:
    """Explain in words, by counts of groups, why no step has an advantage."""
    groups: dict[str | None, str] = {}
    for row in steps:
        if row["trajectory_return"] is None or row["group_reward_mean"] is None:
            cause = "have no return"
        elif (row["group_size"] or 0) <= 1:
            cause = "hold one trajectory"
        elif not row["group_reward_std"]:
            cause = "have equal returns"
        else:
            cause = "have spread, but only trajectories at the mean were kept"
        groups[row["group_uid"]] = cause
    counts = {cause: list(groups.values()).count(cause) for cause in sorted(set(groups.values()))}
    parts = ", ".join(f"{count:,} {cause}" for cause, count in counts.items())
    return f"of {len(groups):,} groups {parts}"
