"""Matched pairs: McNemar's exact test against sums of binomials, and the interval that fits it."""

import random
from math import comb

import pytest

from cubemesh.statistics.matched_pairs import MatchedPairs


def pairs(lost: int, gained: int, samples: int = 1000) -> MatchedPairs:
    return MatchedPairs(samples=samples, lost=lost, gained=gained)


@pytest.mark.parametrize(
    ("lost", "gained"), [(0, 0), (0, 5), (1, 0), (3, 9), (9, 3), (10, 30), (100, 150), (77, 77)]
)
def test_p_is_the_two_sided_binomial_sum(lost: int, gained: int) -> None:
    n = lost + gained
    exact = min(1.0, 2 * sum(comb(n, i) for i in range(min(lost, gained) + 1)) / 2**n)
    assert pairs(lost, gained).p_value == pytest.approx(exact)


@pytest.mark.parametrize("level", [0.05, 0.05 / 45])
@pytest.mark.parametrize("gained", range(0, 26, 5))
def test_the_interval_excludes_zero_where_the_test_rejects(gained: int, level: float) -> None:
    for lost in range(0, 40, 3):
        found = pairs(lost, gained, 200)
        interval = found.interval(level)
        assert interval.low <= found.difference <= interval.high
        assert (interval.low <= 0 <= interval.high) == (found.p_value >= level)
        mirrored = pairs(gained, lost, 200).interval(level)
        assert (mirrored.low, mirrored.high) == pytest.approx((-interval.high, -interval.low))


def test_equal_answers_have_the_score_interval() -> None:
    """z² / (n + z²), Tango's, for no difference at all."""
    z = 1.959963984540054
    interval = pairs(0, 0, 100).interval(0.05)
    assert interval.high == pytest.approx(z * z / (100 + z * z))
    assert interval.low == pytest.approx(-interval.high)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (2, 1), (20, 15), (300, 320)])
def test_the_smallest_difference_is_on_the_edge_of_the_test(lost: int, gained: int) -> None:
    found = pairs(lost, gained)
    smallest = round(1000 * found.smallest(0.05))
    differ = max(lost + gained, 6)  # 6 on one side are the fewest with p < 0.05
    assert (differ - smallest) % 2 == 0
    fewer = (differ - smallest) // 2
    assert pairs(fewer, differ - fewer).p_value < 0.05
    if fewer + 1 <= differ // 2:
        assert pairs(fewer + 1, differ - fewer - 1).p_value >= 0.05


def test_among_equal_methods_few_differences_are_significant() -> None:
    chance, rejected = random.Random(1), 0
    for _ in range(1000):
        differ = chance.randint(5, 60)
        gained = sum(chance.random() < 0.5 for _ in range(differ))
        rejected += pairs(differ - gained, gained).p_value < 0.05
    assert rejected <= 50
