"""What bench/export.py is measured beside, run by the Python of an environment of its own.

    python bench/rivals.py torchrl ENTRIES | cpprb ENTRIES | mds FOLDER

It prints one JSON line. The sum trees draw 4,096 entries with weights and write 4,096 priorities,
with a minimum tree, as bench/export.py has claw's do. mds writes the rows of FOLDER/rows.npz as a
dataset and reads it, each row as the arrays that a trainer takes.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from pathlib import Path

import numpy as np

_BATCH, _ROUNDS, _WARM = 4096, 60, 5
_BETA = 0.4


def torchrl(entries: int) -> float:
    """Draw and write with the float64 trees of TorchRL; median CPU seconds of a round."""
    import torch
    from torchrl._torchrl import MinSegmentTreeFp64, SumSegmentTreeFp64

    torch.set_num_threads(1)
    generator = np.random.default_rng(1)
    sums, mins = SumSegmentTreeFp64(entries), MinSegmentTreeFp64(entries)
    priorities = torch.from_numpy(generator.lognormal(0, 1, entries))
    every = torch.arange(entries)
    sums[every], mins[every] = priorities, priorities
    taken = []
    for _ in range(_ROUNDS):
        given = torch.from_numpy(generator.lognormal(0, 1, _BATCH))
        started = time.process_time()
        mass = generator.random(_BATCH) * sums.query(0, entries)
        places = torch.as_tensor(np.asarray(sums.scan_lower_bound(mass)))
        weights = (sums[places] / mins.query(0, entries)) ** -_BETA
        sums[places], mins[places] = given, given
        taken.append(time.process_time() - started)
        assert len(weights) == _BATCH
    return statistics.median(taken[_WARM:])


def cpprb(entries: int) -> float:
    """Draw and write with cpprb, which also fetches a column of 4 bytes."""
    from cpprb import PrioritizedReplayBuffer

    generator = np.random.default_rng(1)
    buffer = PrioritizedReplayBuffer(entries, {"x": {"dtype": np.float32}}, alpha=1.0, eps=0.0)
    buffer.add(x=np.zeros(entries, np.float32), priorities=generator.lognormal(0, 1, entries))
    taken = []
    for _ in range(_ROUNDS):
        given = generator.lognormal(0, 1, _BATCH)
        started = time.process_time()
        batch = buffer.sample(_BATCH, beta=_BETA)
        buffer.update_priorities(batch["indexes"], given)
        taken.append(time.process_time() - started)
    return statistics.median(taken[_WARM:])


def mds(folder: Path) -> dict:
    """Write rows as MDS and read them."""
    from streaming import MDSWriter, StreamingDataset

    held = np.load(folder / "rows.npz")
    names = [name for name in held.files if not name.endswith("edges")]
    kinds = {name: f"ndarray:{held[name].dtype.name}" for name in names}
    arrays = {name: (held[name], held[f"{name} edges"]) for name in names}
    count = len(arrays[names[0]][1]) - 1
    target = folder / "mds"
    shutil.rmtree(target, ignore_errors=True)
    with MDSWriter(out=str(target), columns=kinds, compression=None, hashes=["xxh64"]) as writer:
        for row in range(count):
            writer.write(
                {
                    name: values[edges[row] : edges[row + 1]]
                    for name, (values, edges) in arrays.items()
                }
            )
    del arrays
    data = StreamingDataset(local=str(target), shuffle=False, batch_size=1)
    taken = []
    for _ in range(3):
        started, tokens = time.process_time(), 0
        for row in data:
            tokens += len(row["token_ids"])
        taken.append(time.process_time() - started)
    return {"cpu_s": statistics.median(taken), "tokens": tokens}


def main(task: str, argument: str) -> None:
    given = mds(Path(argument)) if task == "mds" else {"cpu_s": globals()[task](int(argument))}
    print(json.dumps(given))


if __name__ == "__main__":
    main(*sys.argv[1:])
