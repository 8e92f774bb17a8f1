"""Change points: a planted change is found where it is, and equal levels have none."""

from __future__ import annotations

import random

import pytest

from cubemesh.statistics.change_points import change_points


def series(draw: random.Random, *levels: tuple[float, int]) -> list[float]:
    return [level * (1 + 0.005 * draw.gauss(0, 1)) for level, count in levels for _ in range(count)]


def test_a_planted_change_of_three_percent_is_found_in_its_place() -> None:
    found = near = 0
    for seed in range(50):
        changes = change_points(series(random.Random(seed), (100.0, 15), (97.0, 15)))
        found += len(changes) >= 1
        near += any(abs(one.place - 15) <= 1 and one.low < 0.97 < one.high for one in changes)
    assert found == 50
    assert near >= 42


def test_equal_levels_have_no_change() -> None:
    alarms = sum(bool(change_points(series(random.Random(s), (100.0, 30)))) for s in range(200))
    assert alarms <= 6  # of 200, 2 are expected at 1 %


def test_several_changes_are_compared_with_their_neighbours() -> None:
    draw = random.Random(3)
    changes = change_points(series(draw, (100.0, 10), (90.0, 10), (81.0, 10)))
    assert [one.place for one in changes] == [10, 20]
    assert changes[0].ratio == pytest.approx(0.90, rel=0.01)
    assert changes[1].ratio == pytest.approx(0.90, rel=0.01)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0, 4.0, 5.0], [7.0] * 40])
def test_few_or_equal_values_have_none(values: list[float]) -> None:
    assert change_points(values) == ()
