"""The reader of shards as torch knows data sets: updates, each with the rows of this rank."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import IterableDataset, get_worker_info

from clawcli.store.shards import Shards, Update


class ShardUpdates(IterableDataset[Update]):
    """The updates of one rank, in the order of the plan.

    What was read is known to whoever counts the updates that it has taken; there is no other
    state. With several workers of a DataLoader (batch_size=None) each reads every so many-th
    update, and the loader hands them out in order.
    """

    def __init__(
        self, shards: Shards, rank: int = 0, num_ranks: int = 1, start_update: int = 0
    ) -> None:
        """Read from an update on; see Shards.updates."""
        self._shards, self._rank, self._num_ranks = shards, rank, num_ranks
        self._start = start_update

    def __len__(self) -> int:
        return self._shards.num_updates - self._start

    def __iter__(self) -> Iterator[Update]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(self._start + first, self._shards.num_updates, stride):
            yield self._shards.update(number, self._rank, self._num_ranks)
