"""Sampling: which units a seed draws, with what probability, and what weight makes up for it.

A draw gives each unit an exponential key, -log(u) / weight, and takes the smallest ones: weighted
sampling without replacement. u is a number in (0, 1) made from (seed, stage, uid) by a counter
hash, so the same unit gets the same key on any machine, alone or among millions, and units that
are added later move no other. Units that are left out still say how likely each drawn one was: of
k drawn keys and the next one, the threshold, a unit of weight w had the probability
1 - exp(-w * threshold) to be below it.

Pure numpy. N units that are drawn from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from clawcli.errors import UsageError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def uniform_keys(uids: np.ndarray, seed: int, stage: str) -> np.ndarray:
    """Draw a number for each uid.

    Args:
        uids: uint64 [N, 2], both halves of 128-bit uids.
        seed: of the run.
        stage: what is drawn, so that two draws of one run do not depend on each other.

    Returns:
        float64 [N], strictly between 0 and 1, with 52 random bits.

    Source:
        The finaliser of SplitMix64 (Steele, Lea, Flood 2014), once over each half.

    Example:
        >>> uids = np.array([[1, 2], [1, 3]], np.uint64)
        >>> bool((uniform_keys(uids, 0, "sample") == uniform_keys(uids[::-1], 0, "sample")[::-1]).all())
        True
    """
    start = blake2b(f"{seed}:{stage}".encode(), digest_size=8).digest()
    state = np.full(len(uids), int.from_bytes(start, "big"), np.uint64)
    for half in (0, 1):
        state = _mixed(state ^ uids[:, half])
    return ((state >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def _mixed(values: np.ndarray) -> np.ndarray:
    """Spread each bit of uint64 values over all; sums and products wrap around, as they should."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX_A
    values = (values ^ (values >> np.uint64(27))) * _MIX_B
    return values ^ (values >> np.uint64(31))


def stage_name(number: int) -> str:
    """Name the draw of a stage of a curriculum, for uniform_keys."""
    return f"export:{number}"


def parse_amount(text: str) -> tuple[float, bool]:
    """Read --sample.

    Returns:
        The amount, and whether it is a share.

    Raises:
        UsageError: it is neither a number of units nor a share of them.

    Example:
        >>> parse_amount("1000"), parse_amount("0.1"), parse_amount("1.0")
        ((1000.0, False), (0.1, True), (1.0, True))
    """
    try:
        is_share = not text.strip().isdigit()
        amount = float(text)
    except ValueError:
        amount, is_share = 0.0, False
    if not (0 < amount <= 1 if is_share else 1 <= amount < math.inf):
        raise UsageError(
            f"--sample {text!r} is no number of units and no share of them.",
            "Write --sample 1000 or --sample 0.1.",
        )
    return amount, is_share


def weights(
    priorities: np.ndarray,
    *,
    alpha: float = 1.0,
    epsilon: float = 0.0,
    uniform_share: float = 0.0,
    factors: np.ndarray | None = None,
) -> np.ndarray:
    """Turn priorities into weights of a draw, of mean 1.

    A share of the weight is spread evenly, so a unit of priority 0 can be drawn too, and no weight
    falls below that share.

    Args:
        priorities: float64 [N], finite and not negative.
        alpha: exponent of priority + epsilon; 0 = all alike.
        epsilon: added to each priority before the exponent counts.
        uniform_share: share of the weight that does not depend on priorities, 0 to 1.
        factors: float64 [N] between 0 and 1, on what depends on priorities; None = 1.

    Returns:
        float64 [N], the chance of each unit to be drawn first, times N. Where nothing has a
        priority, or factors leave nothing of any, all are 1.

    Source:
        Prioritized Experience Replay, arXiv 1511.05952; the even share instead of a large epsilon.

    Example:
        >>> weights(np.array([0.0, 1.0, 3.0]), uniform_share=0.25).tolist()
        [0.25, 0.8125, 1.9375]
    """
    count = len(priorities)
    given = priorities + epsilon
    highest = given.max(initial=0.0)
    if highest == 0:
        return np.ones(count)
    # of the highest, so that no power overflows, and again once factors made all of them small
    powers = np.power(given / highest, alpha)
    if factors is not None:
        powers = powers * factors
        if not (highest := powers.max()):
            return np.ones(count)
        powers = powers / highest
    return (1 - uniform_share) * powers * (count / powers.sum()) + uniform_share


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a draw took."""

    chosen: np.ndarray
    """bool [N]."""
    threshold: float
    """Smallest key that was not drawn; infinity where all units that can be drawn were."""


def draw(weight: np.ndarray, uniform: np.ndarray, num: int) -> Drawn:
    """Draw units without replacement, each with a chance in proportion to its weight.

    Args:
        weight: float64 [N], not negative; 0 = never.
        uniform: float64 [N], of uniform_keys.
        num: how many, at least 1; of fewer units all are drawn.

    Source:
        Efraimidis and Spirakis 2006, in logarithms: u ** (1 / w) of small weights underflows.

    Example:
        >>> drawn = draw(np.array([1.0, 0.0, 1.0]), np.array([0.9, 0.9, 0.1]), 1)
        >>> drawn.chosen.tolist(), round(drawn.threshold, 3)
        ([True, False, False], 2.303)
    """
    keys = exponential_keys(weight, uniform)
    possible = weight > 0
    if num >= int(possible.sum()):
        return Drawn(possible, np.inf)
    threshold = float(np.partition(keys, num)[num])
    # by value, not by place: the order of units never decides
    return Drawn(keys < threshold, threshold)


def exponential_keys(weight: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Compute the keys of a draw: float64 [N], infinity for weight 0."""
    with np.errstate(divide="ignore"):
        return -np.log(uniform) / weight


def inclusion(weight: np.ndarray, threshold: float) -> np.ndarray:
    """Compute the probability of each unit to be drawn, given the keys of the others.

    It is not num * weight / sum: of a large part of all units, heavy ones cannot be drawn twice,
    and light ones make up for them.

    Args:
        weight: float64 [N].
        threshold: of the draw.

    Returns:
        float64 [N]; 1 where all were drawn.

    Source:
        Bottom-k sketches: Cohen and Kaplan 2007; priority sampling: Duffield, Lund, Thorup 2007.

    Example:
        >>> inclusion(np.array([1.0, 0.5]), np.log(2)).round(3).tolist()
        [0.5, 0.293]
    """
    if np.isinf(threshold):
        return (weight > 0).astype(np.float64)
    return -np.expm1(-weight * threshold)


def importance(probabilities: np.ndarray, beta: float) -> np.ndarray:
    """Weigh drawn units so that those that were likely to be drawn do not count more.

    Args:
        probabilities: float64 [N], positive, of what was drawn.
        beta: 1 makes up for the draw in full, 0 not at all.

    Returns:
        float64 [N], (mean / probability) ** beta, scaled to a mean of 1.

    Example:
        >>> importance(np.array([0.5, 1.0]), 1.0).round(4).tolist()
        [1.3333, 0.6667]
    """
    found = np.power(probabilities.mean() / probabilities, beta)
    return found / found.mean()
