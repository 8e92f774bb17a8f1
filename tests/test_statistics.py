"""Statistics equal their formulas, intervals have their coverage, false alarms are rare."""

import math
import statistics as standard

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.statistics import (
    FEWEST_FOR_INTERVAL,
    Drift,
    Interval,
    Spread,
    drift,
    holm,
    is_steady,
    mad,
    mean,
    mean_interval,
    median,
    median_interval,
    nested_throughput_interval,
    outliers,
    percentile,
    student_p,
    student_t,
    t_interval,
    throughput,
    throughput_interval,
    trimmed_mean,
)
from cubemesh.statistics.autocorrelation import lag_one, trend_widening, widening

quick = settings(deadline=None, max_examples=40)
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)
positive = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)


@quick
@given(values)
def test_median_and_mean_equal_those_of_the_standard_library(x):
    assert median(x) == pytest.approx(standard.median(x))
    assert mean(x) == pytest.approx(standard.fmean(x), abs=1e-6)
    assert percentile(x, 50) == pytest.approx(median(x))
    assert (percentile(x, 0), percentile(x, 100)) == (min(x), max(x))


@quick
@given(values, st.floats(-1e3, 1e3), st.floats(0.1, 10))
def test_mad_is_invariant_to_shifts_and_scales_with_the_values(x, shift, scale):
    assert mad([scale * v + shift for v in x]) == pytest.approx(scale * mad(x), abs=1e-5)


def test_mad_by_hand():
    assert mad([1, 1, 2, 2, 4, 6, 9]) == 1


def test_percentiles_are_interpolated():
    assert percentile([1, 2, 3, 4], 25) == 1.75
    assert percentile([10, 20], 90) == 19
    with pytest.raises(ValueError, match="100"):
        percentile([1], 101)


@pytest.mark.parametrize(
    "function", [mean, median, mad, mean_interval, median_interval, outliers, drift]
)
@pytest.mark.parametrize("wrong", [[], [[1.0, 2.0]], [1.0, math.nan], [math.inf]])
def test_statistics_need_a_finite_nonempty_list(function, wrong):
    with pytest.raises(ValueError, match=r"non-empty|finite"):
        function(wrong)


@quick
@given(values.filter(lambda x: len(x) > 1))
def test_an_interval_is_around_its_figure_and_turns_with_the_values(x):
    slack = 1e-9 * (1 + max(abs(v) for v in x))
    for figure, interval in ((mean, mean_interval), (median, median_interval)):
        found, turned = interval(x), interval([-v for v in x])
        assert found.low - slack <= figure(x) <= found.high + slack
        assert turned.low == pytest.approx(-found.high, abs=slack)


def test_more_values_have_a_narrower_interval():
    x = np.random.default_rng(3).lognormal(0, 0.3, 200)
    for interval in (median_interval, mean_interval):
        every, few = interval(x), interval(x[:20])
        assert every.high - every.low < few.high - few.low


def test_a_higher_confidence_has_a_wider_interval():
    x = np.random.default_rng(4).normal(size=20)
    for interval in (median_interval, mean_interval):
        usual, surer = interval(x), interval(x, 0.99)
        assert surer.low < usual.low
        assert surer.high > usual.high


def test_values_that_resemble_their_neighbours_have_a_wider_interval():
    x = np.random.default_rng(5).normal(size=30)
    for interval in (median_interval, mean_interval):
        mixed, in_order = interval(x), interval(np.sort(x))
        assert in_order.high - in_order.low > 2 * (mixed.high - mixed.low)


def test_one_value_gives_an_interval_of_no_width():
    assert median_interval([3.0]) == mean_interval([3.0]) == Interval(low=3.0, high=3.0)
    assert throughput_interval([64], [0.5]) == Interval(low=128.0, high=128.0)
    assert 2 * 0.5**FEWEST_FOR_INTERVAL < 0.05 < 2 * 0.5 ** (FEWEST_FOR_INTERVAL - 1)


@pytest.mark.parametrize("windows", [12, 20, 60])
def test_intervals_of_skewed_windows_cover_95_percent(windows):
    rng = np.random.default_rng(windows)
    sigma, rounds = 0.3, 400
    true_mean = math.exp(sigma**2 / 2)
    covered = np.zeros(2)
    for _ in range(rounds):
        x = rng.lognormal(0, sigma, windows)
        by_median = median_interval(x)
        rate = throughput_interval(np.full(windows, 32), x)
        covered += (by_median.low <= 1 <= by_median.high, rate.low <= 32 / true_mean <= rate.high)
    assert (covered / rounds >= 0.92).all()
    assert (covered / rounds <= 0.99).all()


def test_the_variance_of_a_correlated_mean_and_slope_is_that_of_the_formula():
    n, g = 40, 0.6
    lags = np.subtract.outer(np.arange(n), np.arange(n))
    covariance = g ** np.abs(lags)
    share = ((1 + g) / (1 - g) - 2 * g * (1 - g**n) / (n * (1 - g) ** 2)) / n
    assert covariance.mean() == pytest.approx(share)
    assert lag_one(np.array([[1.0, 2, 3, 4], [1, -1, 1, -1]])) == pytest.approx([0.25, -0.75])
    assert lag_one(np.ones(5)) == 0
    assert widening(np.ones(1)) == widening(np.ones((3, 1)))[0] == 1
    x = np.random.default_rng(0).normal(size=(3, n))
    assert widening(x) == pytest.approx([float(widening(row)) for row in x])
    assert trend_widening(x) == pytest.approx([float(trend_widening(row)) for row in x])


@quick
@given(positive)
def test_throughput_is_a_ratio_of_sums(seconds):
    samples = [10.0 * (i + 1) for i in range(len(seconds))]
    rate = throughput(samples, seconds)
    assert rate == pytest.approx(sum(samples) / sum(seconds))
    interval = throughput_interval(samples, seconds)
    assert interval.low <= rate * 1.000001
    assert interval.high >= rate * 0.999999
    assert interval.low > 0


def test_short_windows_do_not_count_as_much_as_long_ones():
    assert throughput([1, 1000], [0.001, 10]) == pytest.approx(1001 / 10.001)
    with pytest.raises(ValueError, match="shorter"):
        throughput_interval([1, 2], [1])


def test_windows_of_equal_rate_have_an_interval_of_no_width():
    interval = throughput_interval([10, 20, 30, 400], [1, 2, 3, 40])
    assert (interval.low, interval.high) == pytest.approx((10, 10))


def test_runs_that_differ_widen_the_interval():
    rng = np.random.default_rng(0)

    def windows(step_s: float) -> list[tuple[float, float]]:
        return [(32.0, step_s * w) for w in rng.lognormal(0, 0.01, 12)]

    alike = nested_throughput_interval([windows(0.1) for _ in range(5)])
    different = nested_throughput_interval([windows(s) for s in (0.08, 0.09, 0.1, 0.11, 0.12)])
    assert different.high - different.low > 5 * (alike.high - alike.low)
    assert different.low < 320 < different.high
    alone = windows(0.1)
    samples, seconds = zip(*alone, strict=True)
    assert nested_throughput_interval([alone]) == throughput_interval(samples, seconds)
    for wrong in ([], [alone, []]):
        with pytest.raises(ValueError, match="without windows"):
            nested_throughput_interval(wrong)


def test_a_prior_is_pooled_with_the_spread_of_the_runs():
    def run(ln_rate):
        return [(100.0, math.exp(-ln_rate))] * 12

    prior = Spread(variance=0.01**2, freedom=2.0, source="of earlier runs")
    runs = [run(0.0), run(0.02)]
    moderated = math.sqrt((2 * 0.01**2 + 1 * 0.02**2 / 2) / 3)
    found = nested_throughput_interval(runs, prior=prior)
    half = student_t(0.95, 3) * moderated / math.sqrt(2)
    assert math.log(found.high / found.low) == pytest.approx(2 * half)
    own = nested_throughput_interval(runs)
    assert own.low < found.low < found.high < own.high
    alone = nested_throughput_interval(runs[:1], prior=prior)
    assert math.log(alone.high / 100) == pytest.approx(student_t(0.95, 2) * 0.01)
    noisy = [(100.0, 1.0 + 0.5 * (-1) ** i) for i in range(12)]
    alike = nested_throughput_interval([noisy], prior=prior)
    assert alike == nested_throughput_interval([noisy]), "its windows are wider than the prior"


def test_outliers_by_hand():
    assert outliers([10, 11, 10, 12, 11, 10, 30]) == [6]
    assert outliers([10.0, 11, 10, 12, 11, 10, 9]) == []
    assert outliers([5.0] * 19 + [6.0]) == [19]
    assert outliers([5.0] * 4) == []
    assert outliers([1.0]) == []


@quick
@given(st.lists(st.floats(1, 1000), min_size=3, max_size=30), st.floats(0.5, 5))
def test_outliers_do_not_depend_on_the_unit(x, scale):
    scores = outliers(x)
    assert outliers([4 * v for v in x]) == scores
    assert len(scores) < len(x) / 2


def test_kendalls_test_by_hand():
    """Ten pairs of which nine rise and one is tied: S = 9, Var S = (5*4*15 - 2*1*9) / 18 = 47/3,
    z = (9 - 1) / sqrt(47/3) = 2.0212, and p = 2 (1 - Phi(z)) = 0.0433."""
    for x in ([1, 2, 2, 3, 4], [4, 3, 2, 2, 1]):
        assert drift(x, independent=True).p_value == pytest.approx(0.04326, abs=1e-5)
        assert drift(x).p_value > 0.04326
    assert drift([1, 2, 2, 1]).p_value == 1.0


def test_the_size_of_a_drift_is_the_theil_sen_slope_over_the_length():
    x = [100 + 0.5 * i for i in range(21)]
    assert drift(x).relative_change == pytest.approx(10 / 105)
    x[3] = 500  # one straggler changes next to nothing
    assert drift(x).relative_change == pytest.approx(10 / 105, rel=0.15)
    assert drift([-v for v in range(1, 11)]).relative_change == pytest.approx(-9 / 5.5)


def test_a_drift_must_be_both_unlikely_and_large():
    small = [1 + 0.0005 * i for i in range(20)]
    assert drift(small).p_value < 0.001
    assert not drift(small).significant
    assert not drift([1.0, 1.5, 1.1]).significant
    assert drift([1.0]) == Drift(relative_change=0.0, p_value=1.0, significant=False)
    assert drift([2.0] * 9) == Drift(relative_change=0.0, p_value=1.0, significant=False)


@quick
@given(st.lists(st.floats(1, 100), min_size=2, max_size=30))
def test_a_drift_changes_sign_when_values_are_reversed(x):
    there, back = drift(x), drift(x[::-1])
    assert there.relative_change == pytest.approx(-back.relative_change, abs=1e-9)
    assert there.p_value == pytest.approx(back.p_value)
    assert 0 <= there.p_value <= 1


@pytest.mark.parametrize("windows", [8, 12, 50])
def test_independent_steady_windows_show_a_drift_in_five_percent(windows):
    rng = np.random.default_rng(windows)
    steady = [rng.lognormal(0, 0.2, windows) for _ in range(400)]
    found = [drift(x, independent=True).significant for x in steady]
    assert 0.01 < sum(found) / 400 < 0.08
    assert sum(drift(x).significant for x in steady) <= sum(found)


def test_a_real_drift_is_found_in_noise():
    rng = np.random.default_rng(1)
    ramp = np.linspace(1.0, 1.2, 20)
    found = [drift(ramp * rng.lognormal(0, 0.03, 20)).significant for _ in range(100)]
    assert sum(found) > 95


@quick
@given(st.integers(600, 5000))
def test_thousands_of_windows_are_thinned(n):
    found = drift(np.linspace(1, 1.1, n))
    assert found.significant
    assert found.relative_change == pytest.approx(0.1 / 1.05, rel=0.02)


def test_a_warm_up_ends_when_windows_stop_getting_faster():
    assert not is_steady([1.0, 1.0, 1.0, 1.0])
    assert not is_steady([2.0, 1.5, 1.3, 1.2, 1.1])
    assert not is_steady([1.0, 1.05, 1.1, 1.2, 1.25, 1.3])
    assert is_steady([1.0, 1.01, 0.99, 1.0, 1.01])
    assert is_steady([3.0, 1.01, 0.99, 1.0, 1.01, 0.995])
    assert is_steady([1.01, 1.008, 1.006, 1.004, 1.002, 1.0])


def test_a_noisy_but_steady_step_time_ends_the_warm_up_soon():
    rng = np.random.default_rng(0)
    steady = [is_steady(rng.lognormal(0, 0.2, 8)) for _ in range(300)]
    assert sum(steady) / 300 > 0.7


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (10, 2.22814), (100, 1.98397)]
)
def test_students_t_equals_published_tables(freedom, t):
    assert student_t(0.95, freedom) == pytest.approx(t, rel=1e-4)


def test_t_approaches_the_normal_distribution():
    values = [student_t(0.95, f) for f in (1, 1.5, 2, 2.7, 10, 999, 1001)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.95996, rel=1e-5)
    with pytest.raises(ValueError, match="below 1"):
        student_t(0.95, 0.5)


def test_p_values_are_the_inverse_of_t():
    for freedom in (1, 2.5, 30, 2000):
        for p in (0.5, 0.05, 0.001):
            assert student_p(-student_t(1 - p, freedom), freedom) == pytest.approx(p, rel=0.02)


@pytest.mark.parametrize(
    ("p_values", "significant"),
    [
        ([], []),
        ([0.05], [True]),
        ([0.04, 0.02], [True, True]),
        ([0.04, 0.03], [False, False]),
        ([0.04, 0.001, 0.02], [True, True, True]),
        ([0.2, 0.001, 0.03], [False, True, False]),
    ],
)
def test_many_comparisons_need_smaller_p_values(p_values, significant):
    assert holm(p_values) == significant


def test_t_intervals_cover_95_percent():
    rng = np.random.default_rng(0)
    covered = sum(
        interval.low <= 5 <= interval.high
        for interval in (t_interval(rng.normal(5, 2, 4)) for _ in range(1000))
    )
    assert 925 <= covered <= 975
    with pytest.raises(ValueError, match="no spread"):
        t_interval([1.0])


def test_equal_values_use_the_least_variance():
    lucky = [5.0, 5.0, 5.0]
    assert t_interval(lucky) == Interval(low=5.0, high=5.0)
    known = t_interval(lucky, least_variance=0.03)
    assert known.high - 5.0 == pytest.approx(student_t(0.95, 2) * 0.1)


def test_a_trimmed_mean_ignores_both_ends():
    assert trimmed_mean([100, 1, 2, 3, -50]) == 2
    assert trimmed_mean([1, 2, 6]) == 3
