import pickle

import numpy as np
import pytest
from train_data import guessing_rows, write_shards

from clawcli.store.shards import open_shards

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from clawcli.train.dataset import ShardUpdates  # noqa: E402


@pytest.fixture
def opened(tmp_path):
    rows = guessing_rows(tasks=3, attempts=4, updates_per_phase=2, phases=4)
    return open_shards(write_shards(tmp_path / "shards", rows))


def told(updates):
    return [(update.number, [row.row_id for row in update.rows]) for update in updates]


@pytest.mark.parametrize("start", [0, 3, 7, 8])
def test_updates_go_on_from_the_one_that_is_next(opened, start):
    every = told(ShardUpdates(opened))
    assert [number for number, _ in every] == list(range(8))
    assert told(ShardUpdates(opened, start_update=start)) == every[start:]
    assert len(ShardUpdates(opened, start_update=start)) == 8 - start


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_of_a_loader_give_each_update_once_and_in_order(opened, workers):
    data = ShardUpdates(opened, rank=1, num_ranks=2, start_update=1)
    loaded = list(DataLoader(data, batch_size=None, num_workers=workers))
    expected = list(opened.updates(1, 2, 1))
    assert told(loaded) == told(expected)
    for update, wanted in zip(loaded, expected, strict=True):
        for row, want in zip(update.rows, wanted.rows, strict=True):
            assert np.array_equal(row.forest.token_ids, want.forest.token_ids)
            assert row.steps.to_pylist() == want.steps.to_pylist()


def test_a_row_travels_with_its_own_steps_alone(opened):
    row = next(iter(opened.rows()))
    one = pickle.dumps(row.steps)
    assert len(one) < 3000 * len(row.steps)
    assert pickle.loads(one).to_pylist() == row.steps.to_pylist()
    empty = row.without_weight()
    assert not pickle.loads(pickle.dumps(empty)).steps.weights.any()
