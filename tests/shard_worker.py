"""Reads updates of shards as one rank and says which; killed by whoever has seen enough.

python shard_worker.py SHARDS RANK NUM_RANKS START
"""

import json
import sys
from pathlib import Path

from clawcli.store.shards import open_shards


def main(path, rank, num_ranks, start):
    for update in open_shards(Path(path)).updates(int(rank), int(num_ranks), int(start)):
        rows = [[row.row_id, float(row.steps.weights.sum())] for row in update.rows]
        tokens = [int(row.forest.token_ids.sum()) for row in update.rows]
        sys.stdout.write(json.dumps([update.number, rows, tokens]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
