"""The arrays of strings inside a nested array, and the nested array with others in their place.

Arrow keeps all strings of a column, however deep in lists and structs, in few flat arrays. Work on
texts happens on those; what is around them (offsets, nulls, other fields) is shared, not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Leaf(NamedTuple):
    """A flat array of strings."""

    array: pa.Array
    name: str
    """Field that the strings are values of."""


def leaves(array: pa.Array, name: str) -> Iterator[Leaf]:
    """Yield the arrays of strings in an array of any type, depth first.

    Example:
        >>> [leaf.name for leaf in leaves(pa.array([[{"a": "x", "b": 1, "c": ["y"]}]]), "top")]
        ['a', 'c']
    """
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield Leaf(array, name)
    elif pa.types.is_list(kind):
        yield from leaves(_values(array), name)
    elif pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            yield from leaves(array.field(place), kind.field(place).name)


def rebuilt(
    array: pa.Array, others: Iterator[tuple[pa.Array, np.ndarray]]
) -> tuple[pa.Array, np.ndarray]:
    """Put other arrays in the place of the leaves.

    Args:
        array: what leaves was given.
        others: for each leaf in the same order an array of its length and type, and which of its
            strings differ (bool).

    Returns:
        The array (the very same where nothing differs), and which of its values differ (bool).
    """
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return next(others)
    if pa.types.is_list(kind):
        values, differs = rebuilt(_values(array), others)
        if not differs.any():
            return array, np.zeros(len(array), bool)
        offsets = array.offsets.to_numpy()
        offsets = offsets - offsets[0]
        new = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), values, kind, mask=array.is_null()
        )
        before = np.concatenate([[0], np.cumsum(differs)])
        return new, np.diff(before[offsets]) > 0
    if pa.types.is_struct(kind):
        fields = [rebuilt(array.field(place), others) for place in range(kind.num_fields)]
        differs = np.zeros(len(array), bool)
        for _, one in fields:
            differs |= one
        if not differs.any():
            return array, differs
        new = [field for field, _ in fields]
        return pa.StructArray.from_arrays(new, fields=list(kind), mask=array.is_null()), differs
    return array, np.zeros(len(array), bool)


def _values(lists: pa.Array) -> pa.Array:
    """Return the values that a list array, which may be a slice, speaks of; hidden ones too."""
    if not len(lists):
        return lists.values[:0]
    offsets = lists.offsets
    return lists.values[offsets[0].as_py() : offsets[-1].as_py()]
