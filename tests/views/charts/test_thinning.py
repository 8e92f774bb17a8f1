from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.views.charts.thinning import most_points, seen_points

COLUMNS = 40
VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=600)


def placed(values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Values evenly over the columns."""
    return np.linspace(0, COLUMNS - 1, len(values)), np.array(values)


@given(VALUES)
def test_extremes_of_every_column_and_both_ends_are_kept(values):
    x, y = placed(values)
    seen = seen_points(x, y)
    assert len(seen.index) <= most_points(COLUMNS)
    assert list(seen.index) == sorted(set(seen.index.tolist()))
    assert (seen.index[0], seen.index[-1]) == (0, len(values) - 1)
    kept = x[seen.index]
    for column in set(np.floor(x).tolist()):
        shown = y[seen.index][np.floor(kept) == column]
        whole = y[np.floor(x) == column]
        assert (shown.min(), shown.max()) == (whole.min(), whole.max())


@given(VALUES)
def test_what_fits_is_not_thinned(values):
    seen = seen_points(*placed(values))
    assert seen.thinned == (len(seen.index) < len(values))
    if len(values) <= COLUMNS:
        assert not seen.thinned


def test_a_point_of_ten_thousand_stays():
    x, y = placed([1.0] * 10_000)
    y[6_543] = 9.0
    seen = seen_points(x, y)
    assert 6_543 in seen.index
    assert len(seen.index) <= most_points(COLUMNS)


@pytest.mark.parametrize("count", [40, 20_000])
def test_a_gap_that_can_be_seen_parts_the_curve(count):
    x, y = placed([1.0] * count)
    y[(x > 10) & (x < 20)] = math.nan
    y[(x > 30) & (x < 33)] = math.inf
    seen = seen_points(x, y)
    assert [round(x[seen.index[b]]) for b in seen.begins] == [0, 20, 33]
    assert np.isfinite(y[seen.index]).all()


def test_a_gap_within_a_pixel_parts_nothing():
    x, y = placed([1.0] * 20_000)
    y[::2] = math.nan
    seen = seen_points(x, y)
    assert seen.begins == (0,)
    assert len(seen.index) <= most_points(COLUMNS)


def test_points_that_are_far_apart_are_joined_as_they_were():
    seen = seen_points(np.array([0.0, 1.0, 30.0]), np.array([1.0, 2.0, 3.0]))
    assert (seen.index.tolist(), seen.begins) == ([0, 1, 2], (0,))


@pytest.mark.parametrize("values", [[], [math.nan], [math.nan, math.inf]])
def test_without_a_number_nothing_is_drawn(values):
    seen = seen_points(*placed(values))
    assert (seen.index.size, seen.begins, seen.thinned) == (0, (), False)
