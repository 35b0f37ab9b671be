"""The sum tree, and what implementations of prioritised replay are known to get wrong.

float32 sums that leave no number for many leaves, sums that drift with each change, draws of empty
or unfilled slots and at either end, capacities that are no power of two, weights of the batch in
place of all, alpha twice, epsilon after the exponent, a highest priority of long ago, zero, indices
of what is gone, one entry twice in an update, another alpha, seeds, stale policies: a test each,
here. That a weighted loss is never fed back, and that the weight of a draw leaves the ratio alone,
is in test_write_back.py and test_train_run.py.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawcli import priority
from clawcli.priority import UNKNOWN_VERSION, Evict, SumTree


@pytest.fixture(scope="module", autouse=True, params=[1, 4, priority._MAX_ROOTS])
def roots(request):
    """How many trees there are: all of the tests for one, some, and as many as there may be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priority, "_MAX_ROOTS", request.param)
        yield


PRIORITIES = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=70
).filter(any)


def filled(priorities, **settings):
    tree = SumTree(len(priorities), **settings)
    slots, _ = tree.add(np.array(priorities, float))
    assert slots.tolist() == list(range(len(priorities)))
    return tree


def find(tree, masses):
    """The slots of masses, by the tree's own walk."""
    running = np.cumsum(tree._of_roots()[:, 0])
    return tree._find(np.sort(np.asarray(masses, float)), running)


@settings(deadline=None, max_examples=60)
@given(PRIORITIES, st.integers(0, 2**32))
def test_no_draw_is_of_a_zero_or_an_unfilled_slot(priorities, seed):
    tree = SumTree(len(priorities) + 30)
    tree.add(np.array(priorities))
    drawn = tree.sample(200, np.random.default_rng(seed)).slots
    assert (tree.priorities[drawn] > 0).all()


def test_masses_at_both_ends_and_between_leaves_are_found():
    tree = filled([0.0, 2.0, 0.0, 3.0, 0.0])
    # 0 is not of the first leaf, which is empty; 2 belongs to the next; 5 is all there is
    assert find(tree, [0.0, 1.9, 2.0, 4.9, 5.0, np.nextafter(5.0, 9.0)]).tolist() == [
        1,
        1,
        3,
        3,
        3,
        3,
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 12, 100, 4097, 5000])
def test_each_slot_has_its_share_of_the_mass_at_any_capacity(count):
    priorities = np.arange(1.0, count + 1)
    tree = filled(priorities)
    middles = np.cumsum(priorities) - priorities / 2
    assert find(tree, middles).tolist() == list(range(count))
    assert tree.total == priorities.sum()


def test_every_leaf_of_a_million_can_be_drawn():
    # in float32 an eighth of the leaves at the end have no number of their own
    priorities = np.random.default_rng(1).lognormal(0, 1, 1 << 20)
    tree = filled(priorities)
    middles = np.cumsum(priorities) - priorities / 2
    assert np.array_equal(find(tree, middles), np.arange(1 << 20))


def test_sums_do_not_drift_over_many_updates():
    generator = np.random.default_rng(0)
    tree = filled(np.ones(5000))
    for _ in range(300):
        slots = generator.integers(0, 5000, 256)
        tree.update(slots, tree.generations[slots], 10.0 ** generator.uniform(-6, 3, 256))
    every = np.arange(5000)
    tree.update(every, tree.generations[every], np.full(5000, 1e-3))
    assert tree.total == pytest.approx(5.0, rel=1e-13)


def test_draws_fit_the_priorities():
    generator = np.random.default_rng(3)
    priorities = generator.lognormal(0, 1.5, 1000)
    tree = filled(priorities)
    counts = np.zeros(1000)
    for _ in range(300):
        counts += np.bincount(tree.sample(4096, generator).slots, minlength=1000)
    expected = priorities / priorities.sum() * counts.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # 999 degrees of freedom: the mean is 999, the standard deviation 45
    assert 999 - 5 * 45 < chi_square < 999 + 5 * 45


def test_alpha_and_epsilon_count_once_also_for_what_is_added_and_updated():
    tree = SumTree(4, alpha=0.5, epsilon=0.25)
    slots, generations = tree.add(np.array([0.0, 2.0]))
    assert tree.total == pytest.approx(0.5 + 1.5)
    tree.update(slots[:1], generations[:1], np.array([6.0]))
    assert tree.total == pytest.approx(2.5 + 1.5)
    tree.add(np.array([np.nan]))  # the highest raw priority, not that to the power of alpha
    assert tree.total == pytest.approx(2.5 + 1.5 + 2.5)


def test_weights_are_of_the_smallest_probability_of_all_entries_not_of_the_batch():
    tree = filled([0.0, 1.0, 4.0, 16.0], alpha=0.5)
    batch = tree.sample(500, np.random.default_rng(0), beta=0.4)
    powers = np.array([0.0, 1.0, 2.0, 4.0])
    assert batch.probabilities == pytest.approx(powers[batch.slots] / 7.0, rel=1e-14)
    assert batch.weights == pytest.approx(powers[batch.slots] ** -0.4, rel=1e-14)
    # an update moves the smallest one up
    tree.update(np.array([1]), tree.generations[[1]], np.array([4.0]))
    again = tree.sample(500, np.random.default_rng(0), beta=0.4)
    assert again.weights.max() == 1.0


def test_unknown_priority_is_the_highest_of_those_that_are_there():
    tree = SumTree(4)
    tree.add(np.array([np.nan]))
    assert tree.priorities[0] == 1.0
    tree.update(np.array([0]), tree.generations[[0]], np.array([0.3]))
    tree.add(np.array([np.nan, 0.7, np.nan]))
    # 0.7 and not the 1.0 that was the highest once, nor that rounded
    assert tree.priorities.tolist() == [0.3, 0.7, 0.7, 0.7]


def test_zero_is_never_drawn_and_all_zero_is_an_error():
    tree = filled([0.0, 0.0])
    with pytest.raises(ValueError, match="no entry has a priority above 0"):
        tree.sample(3, np.random.default_rng(0))
    tree.update(np.array([1]), tree.generations[[1]], np.array([1e-300]))
    assert set(tree.sample(50, np.random.default_rng(0)).slots.tolist()) == {1}


@pytest.mark.parametrize("value", [-1.0, np.inf, -np.inf])
def test_priorities_that_are_none_are_refused(value):
    tree = filled([1.0])
    with pytest.raises(ValueError, match="finite and not negative"):
        tree.add(np.array([value]))
    for bad in (value, np.nan):
        with pytest.raises(ValueError, match="finite and not negative"):
            tree.update(np.array([0]), tree.generations[[0]], np.array([bad]))
    assert tree.total == 1.0


def test_update_of_an_entry_that_is_gone_touches_no_other_and_is_counted():
    tree = filled([1.0, 2.0])
    batch = tree.sample(64, np.random.default_rng(0))
    tree.add(np.array([5.0]))  # takes the place of the first
    slots, places = np.unique(batch.slots, return_index=True)
    stale = tree.update(slots, batch.generations[places], np.array([100.0, 200.0]))
    assert stale == 1
    assert tree.priorities.tolist() == [5.0, 200.0]
    tree.remove(np.array([1]))
    assert tree.update(slots[1:], batch.generations[places[1:]], np.array([7.0])) == 1
    assert tree.total == 5.0


def test_of_several_updates_of_one_entry_the_highest_counts():
    tree = filled([1.0, 1.0, 1.0])
    slots = np.array([2, 0, 2, 2])
    tree.update(slots, tree.generations[slots], np.array([3.0, 9.0, 7.0, 5.0]))
    assert tree.priorities.tolist() == [9.0, 1.0, 7.0]
    assert tree.total == 17.0


def test_another_alpha_is_that_of_a_tree_that_was_built_with_it():
    priorities = np.random.default_rng(0).lognormal(0, 1, 300)
    tree = filled(priorities, alpha=0.6)
    tree.alpha = 0.0
    assert tree.total == 300.0
    tree.alpha = 0.9
    assert tree.total == filled(priorities, alpha=0.9).total


def test_a_seed_decides_the_draws():
    draws = [
        filled(np.arange(1.0, 50)).sample(100, np.random.default_rng(seed)).slots.tolist()
        for seed in (5, 5, 6)
    ]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (Evict.OLDEST, {2.0, 3.0, 4.0}),
        (Evict.LOWEST, {9.0, 3.0, 4.0}),
        (Evict.STALEST, {9.0, 3.0, 4.0}),
    ],
)
def test_a_full_tree_evicts_by_its_rule(rule, left):
    tree = SumTree(3, evict=rule)
    tree.add(np.array([9.0, 2.0, 3.0]), np.array([7, UNKNOWN_VERSION, 8]))
    tree.add(np.array([4.0]), np.array([9]))
    assert set(tree.priorities.tolist()) == left
    assert len(tree) == 3


def test_eviction_by_policy_version_keeps_what_is_fresh_or_not_known():
    tree = SumTree(5)
    tree.add(np.array([1.0, 2.0, 3.0]), np.array([4, 6, UNKNOWN_VERSION]))
    assert tree.evict_stale(6).tolist() == [0]
    assert (len(tree), tree.total) == (2, 5.0)
    slots, _ = tree.add(np.array([8.0]))
    assert slots.tolist() == [0]
    assert tree.evict(0).tolist() == []


def test_more_entries_than_slots_are_refused():
    with pytest.raises(ValueError, match="3 entries for 2 slots"):
        SumTree(2).add(np.ones(3))


def test_a_checkpoint_goes_on_as_the_tree_would_have(tmp_path):
    generator = np.random.default_rng(0)
    tree = SumTree(1000, alpha=0.7, epsilon=0.1, evict=Evict.LOWEST)
    tree.add(generator.lognormal(0, 1, 900), generator.integers(0, 5, 900))
    tree.remove(np.array([3, 17]))
    np.savez(tmp_path / "tree.npz", **tree.state())
    with np.load(tmp_path / "tree.npz") as state:
        again = SumTree.from_state(state)
    for each in (tree, again):
        each.add(np.full(150, 2.5))
    batches = [each.sample(300, np.random.default_rng(1)) for each in (tree, again)]
    assert np.array_equal(batches[0].slots, batches[1].slots)
    assert np.array_equal(batches[0].generations, batches[1].generations)
    assert np.array_equal(batches[0].weights, batches[1].weights)
