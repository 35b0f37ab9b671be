"""Rows on disk are the rows that were added."""

import pickle

import numpy as np
import pytest

from clawcli.prefix import spool

ROWS = [np.array(row, np.int32) for row in ([1, 2, 3], [], [7], [2**31 - 1, 0])]


@pytest.fixture
def rows(tmp_path):
    with spool.Writer(tmp_path / "rows") as writer:
        for row in ROWS:
            writer.append(row)
        found = writer.rows()
        yield found
        found.close()


def test_rows_come_back_as_they_were(rows):
    assert rows.lengths.tolist() == [3, 0, 1, 2]
    assert [row.tolist() for row in rows] == [row.tolist() for row in ROWS]
    assert rows[-1].tolist() == ROWS[-1].tolist()
    assert [row.tolist() for row in rows[1:3]] == [[], [7]]
    assert rows[0].dtype == np.int32
    with pytest.raises(IndexError):
        rows[4]


def test_rows_survive_pickling(rows):
    again = pickle.loads(pickle.dumps(rows))
    assert [row.tolist() for row in again] == [row.tolist() for row in ROWS]
    again.close()


def test_no_rows(tmp_path):
    with spool.Writer(tmp_path / "rows") as writer:
        found = writer.rows()
        assert list(found) == []
        found.close()
