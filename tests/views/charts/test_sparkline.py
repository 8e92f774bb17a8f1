from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from cubemesh.views.charts.sparkline import sparkline


def coordinates(svg: str) -> list[tuple[float, float]]:
    path = re.search(r'class="spark-line" d="M([^"]+)"', svg)
    assert path
    return [tuple(map(float, pair.split())) for pair in path[1].split("L")]  # type: ignore[misc]


def test_higher_values_stand_higher():
    ys = [y for _, y in coordinates(sparkline([1.0, 3.0, 2.0], label="l"))]
    assert ys[1] < ys[2] < ys[0]


def test_too_little_to_draw_is_nothing():
    assert sparkline([], label="l") == ""
    assert sparkline([1.0, math.nan], label="l") == ""


def test_label_is_escaped():
    assert "&lt;b&gt;&quot;" in sparkline([1, 2], label='<b>"')


def test_a_spike_among_many_stays_visible():
    values = [1.0] * 5000
    values[3210] = 9.0
    found = coordinates(sparkline(values, label="l"))
    assert len(found) <= 240
    assert min(y for _, y in found) == 2.0


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=600))
def test_every_point_is_inside_the_drawing(values):
    for x, y in coordinates(sparkline(values, label="l", width=120, height=26)):
        assert 0 <= x <= 120
        assert 0 <= y <= 26
