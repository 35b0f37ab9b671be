"""Rows on disk are the rows that were added."""

import numpy as np
import pytest

from clawcli.prefix.spool import Spool


def test_rows_come_back_as_they_were(tmp_path):
    rows = [np.array(row, np.int32) for row in ([1, 2, 3], [], [7], [2**31 - 1, 0])]
    with Spool(tmp_path / "rows") as spool:
        for row in rows:
            spool.append(row)
        assert spool.lengths().tolist() == [3, 0, 1, 2]
        assert len(spool) == 4
        assert [row.tolist() for row in spool] == [row.tolist() for row in rows]
        assert spool[-1].tolist() == rows[-1].tolist()
        assert [row.tolist() for row in spool[1:3]] == [[], [7]]
        assert spool[0].dtype == np.int32
        with pytest.raises(IndexError):
            spool[4]
        with pytest.raises(ValueError, match="once one was read"):
            spool.append(rows[0])


def test_nothing_but_empty_rows(tmp_path):
    with Spool(tmp_path / "rows") as spool:
        spool.append(np.zeros(0, np.int32))
        assert [row.tolist() for row in spool] == [[]]
