import os

import numpy as np
import pyarrow as pa
import pytest

from clawcli.sampling import uniform_keys
from clawcli.store import uids


def test_binary_is_what_the_hex_says_and_null_stays_null():
    texts = [os.urandom(16).hex() if place % 3 else None for place in range(50)]
    column = pa.chunked_array([pa.array(texts[:20]), pa.array(texts[20:])])
    expected = [text and bytes.fromhex(text) for text in texts]
    assert uids.binary(column).to_pylist() == expected
    assert uids.binary(pa.array(texts).slice(7, 20)).to_pylist() == expected[7:27]
    assert uids.binary(pa.array([], pa.string())).to_pylist() == []


@pytest.mark.parametrize("odd", ["short", "g" * 32, "é" * 16, "ab " * 10 + "ab", "A" * 33, ""])
def test_binary_of_what_is_no_uid_is_its_own_and_harms_no_other(odd):
    plain = "0123456789abcdef" * 2
    first, second = uids.binary(pa.array([odd, plain])).to_pylist()
    assert second == bytes.fromhex(plain)
    assert first != second
    assert uids.binary(pa.array([odd])).to_pylist() == [first]


def test_halves_and_codes():
    texts = ["00000000000000010000000000000002", "f" * 32, "00000000000000010000000000000002"]
    values = uids.binary(pa.array(texts))
    assert uids.halves(values).tolist() == [[1, 2], [2**64 - 1, 2**64 - 1], [1, 2]]
    assert uids.halves(values.slice(1)).tolist() == [[2**64 - 1, 2**64 - 1], [1, 2]]
    codes, kinds = uids.codes(pa.concat_arrays([values, pa.nulls(1, uids.BINARY)]))
    assert codes.tolist() == [0, 1, 0, -1]
    assert len(kinds) == 2


def test_keys_depend_on_seed_stage_and_uid_alone():
    values = np.random.default_rng(0).integers(0, 2**63, (1000, 2)).astype(np.uint64)
    keys = uniform_keys(values, 3, "sample")
    order = np.random.default_rng(1).permutation(1000)
    assert (uniform_keys(values[order], 3, "sample") == keys[order]).all()
    assert (uniform_keys(values[:1], 3, "sample") == keys[:1]).all()
    for other in (uniform_keys(values, 4, "sample"), uniform_keys(values, 3, "split")):
        assert abs(np.corrcoef(keys, other)[0, 1]) < 0.1
        assert (other != keys).all()
    assert keys.min() > 0
    assert keys.max() < 1


def test_keys_are_fixed_for_ever():
    # a selection that was made with a seed can be made again by any later version
    values = np.array([[0, 0], [0, 1], [1, 0], [2**64 - 1, 2**64 - 1]], np.uint64)
    assert uniform_keys(values, 0, "sample").tolist() == FIXED


FIXED = [0.21913511398876417, 0.11796426540635496, 0.41468378308208387, 0.7216490783912962]


def test_keys_are_uniform_even_for_uids_that_count_up():
    values = np.stack([np.zeros(100_000, np.uint64), np.arange(100_000, dtype=np.uint64)], 1)
    keys = uniform_keys(values, 0, "sample")
    counts = np.histogram(keys, bins=100, range=(0, 1))[0]
    # chi-square with 99 degrees of freedom: 149 is passed once in a thousand seeds
    assert ((counts - 1000) ** 2 / 1000).sum() < 149
