"""Find what says again what another step or trajectory says.

Of equal ones the earliest stays, by started_at and then by uid, so that the order of rows never
decides.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from clawcli.errors import MissingExtraError
from clawcli.store import uids
from clawcli.store.frame import Frame

Kind = Literal["response", "state", "trajectory", "near"]
_PERMUTATIONS = 128
_NEAR = 0.8
"""Share of the word 5-grams of either that two near responses have in common, estimated."""
_SHINGLE_WORDS = 5


def originals(frame: Frame, left: np.ndarray, kind: Kind) -> np.ndarray:
    """Tell which of the steps that are left repeat no earlier one of them.

    Args:
        frame: the steps.
        left: bool [N].
        kind: response = text and tool calls of the action are equal; state = the messages and the
            group are; trajectory = all messages of the attempt, its last action included, are:
            then the whole attempt goes; near = the texts of the actions are nearly equal.

    Returns:
        bool [N]; true for steps that are not left.
    """
    age = _age(frame)
    if kind == "trajectory":
        order = frame.order
        last = order.places[order.left == 0]
        ends, _ = uids.codes(uids.binary(frame.column("next_hash").take(pa.array(last))))
        has_left = np.zeros(len(last), bool)
        has_left[order.trajectory[left]] = True
        groups = frame.groups[last]
        first = _first(
            ends.astype(np.int64) * (groups.max(initial=0) + 1) + groups,
            has_left,
            age[last],
        )
        return first[order.trajectory]
    if kind == "state":
        states, _ = uids.codes(uids.binary(frame.column("state_hash")))
        keys = states.astype(np.int64) * (frame.groups.max(initial=0) + 1) + frame.groups
    elif kind == "response":
        keys = frame.actions
    else:
        keys = _near(frame, left, age)
    return _first(keys, left, age)


def _age(frame: Frame) -> np.ndarray:
    """Number the steps from the earliest on: int64 [N]."""
    started = frame.column("started_at").cast(pa.int64()).fill_null(2**62).to_numpy()
    halves = uids.halves(frame.keys["step_uid"].combine_chunks())
    age = np.empty(frame.num_rows, np.int64)
    age[np.lexsort((halves[:, 1], halves[:, 0], started))] = np.arange(frame.num_rows)
    return age


def _first(keys: np.ndarray, left: np.ndarray, age: np.ndarray) -> np.ndarray:
    """Keep the earliest of equal keys among those that are left."""
    places = np.flatnonzero(left)
    order = places[np.lexsort((age[places], keys[places]))]
    is_first = np.ones(len(order), bool)
    is_first[1:] = keys[order[1:]] != keys[order[:-1]]
    found = np.ones(len(left), bool)
    found[order[~is_first]] = False
    return found


def _near(frame: Frame, left: np.ndarray, age: np.ndarray) -> np.ndarray:
    """Give steps whose response is nearly an earlier one's the number of that one."""
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError as error:
        raise MissingExtraError(
            "--dedupe near needs datasketch, which is not installed.",
            "Run pip install 'clawcli[dedupe]'.",
        ) from error
    keys = -np.arange(frame.num_rows, dtype=np.int64) - 1
    texts = frame.column("response")
    found = MinHashLSH(threshold=_NEAR, num_perm=_PERMUTATIONS)
    places = np.flatnonzero(left)
    for place in places[np.argsort(age[places])].tolist():
        words = (texts[place].as_py() or "").split()
        if not words:
            continue  # actions without text are told apart by their tool calls: response
        sketch = MinHash(num_perm=_PERMUTATIONS, seed=1)
        ends = range(max(1, len(words) - _SHINGLE_WORDS + 1))
        sketch.update_batch([" ".join(words[i : i + _SHINGLE_WORDS]).encode() for i in ends])
        alike = [int(str(other)) for other in found.query(sketch)]
        if alike:
            keys[place] = keys[min(alike, key=lambda other: age[other])]
        else:
            found.insert(str(place), sketch)
    return keys
