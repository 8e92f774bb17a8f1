"""Unions and differences of stretches of time, against counting on a grid."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cubemesh.measure.attribution.timeline import length, outside, union

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12).map(
    lambda found: [(float(a), float(a + b)) for a, b in found]
)


def cells(intervals):
    return {t for a, b in intervals for t in range(int(a), int(b))}


@given(pairs)
def test_a_union_covers_its_parts_once(intervals):
    found = union(intervals)
    assert cells(found) == cells(intervals)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))
    assert length(found) == len(cells(intervals))


@given(pairs, pairs)
def test_outside_is_the_set_difference(intervals, excluded):
    found = outside(intervals, union(excluded))
    assert cells(found) == cells(intervals) - cells(excluded)
    assert length(found) == len(cells(found))
