"""Priorities that change while they are drawn from: a sum tree, for millions of entries.

Entries lie in slots, the leaves of binary trees in one float64 array; each inner node holds the sum
and the minimum of the two below. Drawing finds a tree in the running total of their roots and walks
down from there for all draws at once; an update writes leaves and adds their ancestors up again, so
no error builds up. Raw priorities are kept beside the tree: another alpha needs no other copy of
them. A slot that is used again has another generation, so what was learned of its last entry cannot
be written to the next.

Pure numpy; C slots, B entries of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

UNKNOWN_VERSION = -1
"""policy_version of an entry that has none."""
_MAX_ROOTS = 1 << 12
"""Their running total costs less than the levels that would join them in one root."""


class Evict(StrEnum):
    """Which entries make room for new ones."""

    OLDEST = "oldest"
    """Those that were added first."""
    STALEST = "stalest"
    """Those of the lowest policy_version, an unknown one first; of equal ones the oldest."""
    LOWEST = "lowest"
    """Those of the lowest raw priority; of equal ones the oldest."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that were drawn, with replacement."""

    slots: np.ndarray
    """int64 [B], ascending."""
    generations: np.ndarray
    """uint32 [B], to be given back with an update."""
    probabilities: np.ndarray
    """float64 [B], chance of the entry in each single draw."""
    weights: np.ndarray
    """float64 [B], (smallest probability of all entries / probability) ** beta: 1 at most."""


class SumTree:
    """Entries with priorities, drawn in proportion to (priority + epsilon) ** alpha."""

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 1.0,
        epsilon: float = 0.0,
        evict: Evict = Evict.OLDEST,
    ) -> None:
        """Make an empty tree.

        Args:
            capacity: slots, at least 1.
            alpha: exponent, not negative.
            epsilon: added to priorities before the exponent counts, not negative.
            evict: which entries make room when it is full.
        """
        if capacity < 1 or alpha < 0 or epsilon < 0:
            raise ValueError(f"capacity {capacity}, alpha {alpha}, epsilon {epsilon}")
        self.capacity, self.epsilon, self.evict_by = capacity, epsilon, evict
        self._alpha = alpha
        self._leaves = 1 << (capacity - 1).bit_length()
        """Slots of a tree of which each level is full; leaf s is node leaves + s."""
        self._roots = min(self._leaves, _MAX_ROOTS)
        """Roots are nodes roots to 2 * roots; of node n the children are 2n and 2n + 1."""
        # what a walk looks at lies side by side, and so does what is added up
        self._nodes = np.empty((2 * self._leaves, 2))
        self._nodes[:] = 0.0, np.inf
        self._flat, self._children = self._nodes.reshape(-1), self._nodes.reshape(-1, 4)
        # numpy writes one complex number several times as fast as a row of two
        self._whole = self._flat.view(np.complex128)
        self.priorities = np.full(capacity, np.nan)
        """float64 [C], raw; NaN = the slot is free."""
        self.generations = np.zeros(capacity, np.uint32)
        """How often each slot was filled or freed."""
        self.policy_versions = np.full(capacity, UNKNOWN_VERSION, np.int64)
        self.added = np.zeros(capacity, np.int64)
        """Number of each entry in the order in which they were added."""
        self._num_added = 0
        self._free = np.arange(capacity - 1, -1, -1)
        """Free slots; the last one is filled next."""

    def __len__(self) -> int:
        return self.capacity - len(self._free)

    @property
    def total(self) -> float:
        """Sum of all entries' priorities, each to the power of alpha."""
        return float(self._of_roots()[:, 0].sum())

    @property
    def alpha(self) -> float:
        """Exponent of priorities; setting it builds the tree again from the raw ones."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        if value < 0:
            raise ValueError(f"alpha {value}")
        self._alpha = value
        self._rebuild()

    def add(
        self, priorities: np.ndarray, policy_versions: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add entries; where there is no room, others go.

        Args:
            priorities: float64 [B], finite and not negative, B at most the capacity. NaN = not
                known yet: the highest raw priority that there is, or 1, so it is drawn soon.
            policy_versions: int64 [B], of the policy that made each entry; None = not known.

        Returns:
            int64 [B] slots and uint32 [B] generations.
        """
        count = len(priorities)
        if count > self.capacity:
            raise ValueError(f"{count} entries for {self.capacity} slots")
        given = np.array(priorities, np.float64)
        known = self.priorities[~np.isnan(self.priorities)]
        seen = np.concatenate([known, given[~np.isnan(given)]])
        given[np.isnan(given)] = seen.max() if len(seen) else 1.0
        _check(given)
        self.evict(count - len(self._free))
        slots = self._free[len(self._free) - count :][::-1].copy()
        self._free = self._free[: len(self._free) - count]
        self.generations[slots] += np.uint32(1)
        self.added[slots] = np.arange(self._num_added, self._num_added + count)
        self._num_added += count
        self.policy_versions[slots] = (
            UNKNOWN_VERSION if policy_versions is None else policy_versions
        )
        self._put(slots, given)
        return slots, self.generations[slots]

    def sample(self, num: int, generator: np.random.Generator, *, beta: float = 0.4) -> Batch:
        """Draw entries, each independent of the others.

        Args:
            num: how many.
            generator: where the numbers come from.
            beta: exponent of the weights.

        Raises:
            ValueError: no entry has a priority above 0.
        """
        running = np.cumsum(self._of_roots()[:, 0])
        total = running[-1]
        if not total > 0:
            raise ValueError("no entry has a priority above 0")
        slots = self._find(np.sort(generator.random(num)) * total, running)
        powers = self._flat.take((slots + self._leaves) << 1)
        smallest = self._of_roots()[:, 1].min()
        return Batch(
            slots,
            self.generations.take(slots),
            powers / total,
            np.power(smallest / powers, beta),
        )

    def update(self, slots: np.ndarray, generations: np.ndarray, priorities: np.ndarray) -> int:
        """Write priorities of entries that were drawn before.

        Args:
            slots: int64 [B].
            generations: uint32 [B], as they were drawn: an entry that is gone takes no other's
                place.
            priorities: float64 [B], finite and not negative. Of several for one entry the highest
                counts.

        Returns:
            How many were of entries that are gone.
        """
        _check(priorities)
        slots = np.asarray(slots)
        there = self.generations.take(slots) == generations
        stale = len(slots) - int(np.count_nonzero(there))
        if stale:
            slots, priorities = slots[there], priorities[there]
        if (slots[1:] < slots[:-1]).any():
            order = np.argsort(slots)
            slots, priorities = slots[order], priorities[order]
        is_first = np.append(True, slots[1:] > slots[:-1])[: len(slots)]
        starts = np.flatnonzero(is_first)
        if len(starts):
            self._put(slots[starts], np.maximum.reduceat(priorities, starts))
        return stale

    def evict(self, num: int) -> np.ndarray:
        """Remove entries by the rule of this tree; returns their slots (none for num < 1)."""
        if num < 1:
            return np.zeros(0, np.int64)
        taken = np.flatnonzero(~np.isnan(self.priorities))
        ranks = {
            Evict.OLDEST: self.added,
            Evict.STALEST: self.policy_versions,
            Evict.LOWEST: self.priorities,
        }[self.evict_by]
        slots = taken[np.lexsort((self.added[taken], ranks[taken]))[:num]]
        self.remove(slots)
        return slots

    def evict_stale(self, lowest_version: int) -> np.ndarray:
        """Remove entries of a policy_version below one; unknown ones stay. Returns their slots."""
        versions = self.policy_versions
        is_old = (versions != UNKNOWN_VERSION) & (versions < lowest_version)
        slots = np.flatnonzero(is_old & ~np.isnan(self.priorities))
        self.remove(slots)
        return slots

    def remove(self, slots: np.ndarray) -> None:
        """Free slots that hold entries; each is named once."""
        self.generations[slots] += np.uint32(1)
        self.priorities[slots] = np.nan
        self._free = np.concatenate([self._free, slots[::-1]])
        self._nodes[slots + self._leaves] = 0.0, np.inf
        self._add_up(slots)

    def state(self) -> dict[str, np.ndarray]:
        """Return all that from_state needs, as arrays that numpy.savez takes."""
        return {
            "settings": np.array([self._alpha, self.epsilon]),
            "evict": np.array(self.evict_by.value),
            "priorities": self.priorities.copy(),
            "generations": self.generations.copy(),
            "policy_versions": self.policy_versions.copy(),
            "added": self.added.copy(),
            "num_added": np.array(self._num_added),
            "free": self._free.copy(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> SumTree:
        """Build a tree that goes on as the one that gave the state would have."""
        alpha, epsilon = state["settings"].tolist()
        found = cls(
            len(state["priorities"]), alpha=alpha, epsilon=epsilon, evict=Evict(str(state["evict"]))
        )
        for name in ("priorities", "generations", "policy_versions", "added"):
            getattr(found, name)[:] = state[name]
        found._num_added = int(state["num_added"])
        found._free = np.array(state["free"])
        found._rebuild()
        return found

    # -- the tree --------------------------------------------------------------------------------

    def _powers(self, priorities: np.ndarray) -> np.ndarray:
        given = priorities + self.epsilon if self.epsilon else priorities
        return given if self._alpha == 1 else np.power(given, self._alpha)

    def _of_roots(self) -> np.ndarray:
        """View sum and minimum of each root."""
        return self._nodes[self._roots : 2 * self._roots]

    def _put(self, slots: np.ndarray, priorities: np.ndarray) -> None:
        self.priorities[slots] = priorities
        leaves = self._leaf(self._powers(priorities))
        self._whole[slots + self._leaves] = leaves.reshape(-1).view(np.complex128)
        self._add_up(slots)

    @staticmethod
    def _leaf(powers: np.ndarray) -> np.ndarray:
        """Make nodes [B, 2] of leaves; what is never drawn is no smallest probability."""
        return np.stack([powers, np.where(powers > 0, powers, np.inf)], axis=1)

    def _add_up(self, slots: np.ndarray) -> None:
        """Make all nodes above some slots what those below them say."""
        nodes = slots + self._leaves
        above = np.empty((len(slots), 2))
        whole = above.reshape(-1).view(np.complex128)
        first = self._leaves
        while first > self._roots:
            nodes = nodes >> 1
            self._join(self._children.take(nodes, axis=0), above)
            self._whole[nodes] = whole
            first >>= 1

    def _rebuild(self) -> None:
        filled = ~np.isnan(self.priorities)
        powers = np.where(filled, self._powers(np.where(filled, self.priorities, 0.0)), 0.0)
        self._nodes[self._leaves : self._leaves + self.capacity] = self._leaf(powers)
        first = self._leaves
        while first > self._roots:
            first >>= 1
            level = slice(first, 2 * first)
            self._join(self._children[level], self._nodes[level])

    @staticmethod
    def _join(children: np.ndarray, above: np.ndarray) -> None:
        """Add up children [B, 4] into the nodes above them [B, 2]."""
        np.add(children[:, 0], children[:, 2], out=above[:, 0])
        np.minimum(children[:, 1], children[:, 3], out=above[:, 1])

    def _find(self, masses: np.ndarray, running: np.ndarray) -> np.ndarray:
        """Find the slots at which the running total of all leaves passes each mass.

        Args:
            masses: float64 [B], ascending.
            running: float64, running total of the roots.
        """
        # a mass that is all of the left belongs to the right, so that no empty leaf is found
        root = np.minimum(np.searchsorted(running, masses, side="right"), self._roots - 1)
        nodes = root + self._roots
        masses = masses - (running[root] - self._of_roots()[root, 0])
        first = self._roots
        while first < self._leaves:
            left = self._flat.take(nodes << 2)
            goes_right = masses >= left
            masses -= left * goes_right
            nodes = (nodes << 1) + goes_right
            first <<= 1
        slots = nodes - self._leaves
        lost = np.flatnonzero(self._flat.take(nodes << 1) <= 0)
        if len(lost):
            slots[lost] = self._nearest(slots[lost])
        return slots

    def _nearest(self, slots: np.ndarray) -> np.ndarray:
        """Find the last slot that can be drawn before, or else after, slots that rounding led to."""
        leaves = self._nodes[self._leaves : self._leaves + self.capacity]
        filled = np.flatnonzero(leaves[:, 0] > 0)
        places = np.searchsorted(filled, slots) - 1
        return filled[np.maximum(places, 0)]


def _check(priorities: np.ndarray) -> None:
    if not (np.isfinite(priorities) & (priorities >= 0)).all():
        raise ValueError("priorities are finite and not negative")
