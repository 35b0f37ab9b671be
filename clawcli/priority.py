"""Keys of sampling: what a seed says of a uid, whatever the order of rows and the number of threads.

A key is a number in (0, 1) made from (seed, stage, uid) by a counter hash, so the same step gets
the same key on any machine, alone or among millions, and rows that are added later move no other.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

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
