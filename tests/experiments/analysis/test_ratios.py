import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.experiments.analysis.ratios import (
    MIN_DIFFERENCE,
    bounds,
    format_ratio,
    ratio,
    significance,
    verdicts,
)
from cubemesh.schema import Figure

sizes = st.floats(0.1, 1e6)
shares = st.floats(0, 0.5)


def figure(value, share=None):
    if share is None:
        return Figure(value=value, unit="samples/s")
    return Figure(value=value, unit="samples/s", low=value * (1 - share), high=value * (1 + share))


@given(sizes, shares, sizes, shares)
def test_a_ratio_is_in_its_interval_and_has_an_inverse(a, da, b, db):
    found, other = ratio(figure(a, da), figure(b, db)), ratio(figure(b, db), figure(a, da))
    low, high = bounds(found)
    assert low <= found.value * (1 + 1e-12)
    assert high >= found.value * (1 - 1e-12)
    assert other.value == pytest.approx(1 / found.value)
    assert bounds(other) == pytest.approx((1 / high, 1 / low))
    assert significance(found) in (0, -significance(other))


@pytest.mark.parametrize(
    ("a", "b", "share", "side"),
    [
        (132, 100, 0.01, 1),
        (100, 132, 0.01, -1),
        (110, 100, 0.08, 0),
        (102, 100, 0.001, 0),
        (132, 100, None, 0),
    ],
)
def test_a_significant_difference_has_disjoint_intervals_and_three_percent(a, b, share, side):
    assert significance(ratio(figure(a, share), figure(b, share))) == side


def test_the_interval_of_a_ratio_combines_those_of_both_figures():
    found = ratio(figure(200, 0.03), figure(100, 0.04))
    assert (found.high - found.low) / 2 / found.value == pytest.approx(0.05, rel=0.01)
    assert bounds(ratio(figure(200), figure(100, 0.04))) == pytest.approx((2 / 1.04, 2 / 0.96))
    assert ratio(figure(200), figure(100)).low is None


def test_the_ratios_of_a_table_are_judged_together():
    def of(value, share):
        return Figure(value=value, unit="×", low=value - share, high=value + share, n=12)

    close, clear = of(1.10, 0.095), of(1.10, 0.02)
    assert [v.sign for v in verdicts([close])] == [1]
    among = verdicts([close, clear, *[of(1.0, 0.095)] * 8])
    assert [v.sign for v in among] == [0, 1] + [0] * 8
    assert verdicts([of(1.0, 0.05)])[0].least == pytest.approx(0.05)
    assert among[2].least > 0.095, "a table of ten finds only larger differences"
    assert verdicts([of(1.0, 0.001)])[0].least == MIN_DIFFERENCE
    assert verdicts([]) == []


def test_format_of_a_ratio():
    assert format_ratio(ratio(figure(132, 0.01), figure(100, 0.01))) == "1.32 ± 0.02×"
    assert format_ratio(Figure(value=1.29, unit="×", low=0.618, high=2.7)) == "1.29× (0.62 to 2.7)"
