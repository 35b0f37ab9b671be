"""The FLOP model, against values worked out by hand and those of a measured model."""

import pytest

from clawcli.cost import SIZES, Shape, Work

MEASURED = Shape(
    layers=8, hidden=256, intermediate=688, heads=8, kv_heads=4, head_dim=32, vocab=32_000
)
"""16 rows, 1,024 shared and 128 distinct tokens: 5.4 times the CPU time as rows, 5.55 predicted."""


def pairs(tokens):
    return tokens * (tokens + 1) // 2


def test_multiply_adds_of_a_star():
    rows = Work(tokens=16 * 1152, head_tokens=16 * 1152, pairs=16 * pairs(1152))
    # below the shared tokens each row sees all of those and its own
    tree_pairs = pairs(1024) + 16 * (pairs(1152) - pairs(1024))
    tree = Work(tokens=1024 + 16 * 128, head_tokens=1024 + 16 * 128, pairs=tree_pairs)
    dense = Work(tokens=3072, head_tokens=3072, pairs=3072**2)
    found = [MEASURED.multiply_adds(work) for work in (rows, tree, dense)]
    assert [round(value / 1e9, 1) for value in found] == [301.4, 54.3, 81.6]
    assert round(found[0] / found[1], 2) == 5.55


def test_each_part_by_hand():
    tiny = Shape(layers=2, hidden=3, intermediate=5, heads=4, kv_heads=2, head_dim=7, vocab=11)
    # q and o: 3 x 28 each; k and v: 3 x 14 each; three matrices of 3 x 5
    assert tiny.per_token == 2 * (2 * 84 + 2 * 42 + 45)
    assert tiny.per_pair == 2 * 2 * 28
    assert tiny.per_head_token == 33


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("0.6b", 0.44),
        ("1.7b", 1.41),
        ("4b", 3.63),
        ("8b", 6.95),
        ("14b", 13.2),
        ("32b", 31.2),
        ("70b", 68.5),
    ],
)
def test_sizes_have_the_weights_that_their_names_say(name, billions):
    """Published: parameters without the embedding; 70b: 70.6 less two tables of 1.05."""
    assert SIZES[name].per_token / 1e9 == pytest.approx(billions, rel=0.01)
