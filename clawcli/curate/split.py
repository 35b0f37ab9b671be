"""Divide steps into splits, all of one group into the same.

Where a group goes depends on the seed and on its own value alone. So it stays there when the data
grows, and the shares are met about, as of a fair draw.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from clawcli import sampling
from clawcli.errors import UsageError
from clawcli.store import arrow, uids
from clawcli.store.frame import Frame


def parse(text: str) -> dict[str, float]:
    """Read --split train=0.9,val=0.1.

    Raises:
        UsageError: a name or share is none, or the shares do not add up to 1.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        name = name.strip()
        try:
            value = float(share)
        except ValueError:
            value = float("nan")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not 0 < value < 1 or name in shares:
            raise UsageError(
                f"--split {text!r}: {part.strip()!r} is no NAME=SHARE.",
                "Write --split train=0.9,val=0.1.",
            )
        shares[name] = value
    if abs(sum(shares.values()) - 1) > 1e-9:
        raise UsageError(
            f"--split {text!r}: the shares add up to {sum(shares.values()):g}, not 1.",
            "Write --split train=0.9,val=0.1.",
        )
    return shares


def divide(frame: Frame, shares: Mapping[str, float], column: str, seed: int) -> np.ndarray:
    """Number the split of each step: int64 [N], in the order of shares.

    Args:
        frame: the steps.
        shares: split -> share of the groups.
        column: of equal values all go to one split; a step without a value goes with its attempt.
        seed: of the draw.

    Raises:
        UsageError: there is no such column, or it is no key.
    """
    if column not in frame.schema.names:
        raise UsageError(
            f"--split-by {column}: there is no such column.", "docs/step-table.md lists them."
        )
    values = frame.column(column)
    if str(values.type) not in ("string", "int64", "int32"):
        raise UsageError(f"--split-by {column} is {values.type}, no key.", "Name group_uid.")
    attempts = frame.keys["trajectory_uid"].combine_chunks()
    keys = arrow.coalesce(uids.binary(values.cast("string")), attempts)
    drawn = sampling.uniform_keys(uids.halves(keys), seed, "split")
    bounds = np.cumsum(list(shares.values()))[:-1]
    return np.searchsorted(bounds, drawn, side="right")
