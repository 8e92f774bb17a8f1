import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.experiments.analysis.ratios import bounds, format_ratio, ratio, significance
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
        (110, 100, 0.06, 0),
        (102, 100, 0.001, 0),
        (132, 100, None, 0),
    ],
)
def test_a_significant_difference_has_disjoint_intervals_and_three_percent(a, b, share, side):
    assert significance(ratio(figure(a, share), figure(b, share))) == side


def test_format_of_a_ratio():
    assert format_ratio(ratio(figure(132, 0.01), figure(100, 0.01))) == "1.320 ± 0.027×"
    assert format_ratio(Figure(value=1.29, unit="×", low=0.618, high=2.7)) == "1.29× (0.618 to 2.7)"
