"""Intervals contain the truth, and nothing is reported where there is none, as often as documented:
seeded simulation."""

import math

import numpy as np
import pytest

from interval_coverage import (
    BURSTS,
    PLANTED,
    POPULATIONS,
    Bursts,
    false_drifts,
    independent_coverage,
    interleaved,
    known_widening_coverage,
    main,
    mean_coverage,
    median_coverage,
    moderated_coverage,
    rates,
    report,
    runs_coverage,
    separate,
    simulated,
    stopped_coverage,
    stored_series,
    tables,
    without_burst,
)

SERIES = 3000
ERROR = 3 * math.sqrt(0.05 * 0.95 / SERIES)
"""Of a simulated coverage."""
SOURCES = (0.0, 0.3, 0.6, 0.8, *BURSTS[:2])


@pytest.mark.parametrize("windows", [12, 16, 20, 30, 45, 60])
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_the_mean_is_in_its_interval_in_93_to_97_percent(windows, source):
    x = simulated(np.random.default_rng(windows), SERIES, windows, source)
    assert 0.93 - ERROR <= mean_coverage(x) <= 0.97 + ERROR


@pytest.mark.parametrize("windows", [6, 7, 8, 9, 10])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
def test_the_mean_of_few_windows_is_in_its_interval_in_93_to_98_percent(windows, correlation):
    x = simulated(np.random.default_rng(windows), SERIES, windows, correlation)
    assert 0.93 - ERROR <= mean_coverage(x) <= 0.98 + ERROR


@pytest.mark.parametrize("windows", [12, 20, 60])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
def test_the_median_is_in_its_interval_in_93_to_97_percent(windows, correlation):
    x = simulated(np.random.default_rng(windows), SERIES, windows, correlation)
    assert 0.93 - ERROR <= median_coverage(x) <= 0.97 + ERROR


def test_intervals_of_independent_values_do_not_cover_correlated_ones():
    found = [
        independent_coverage(simulated(np.random.default_rng(0), SERIES, 20, correlation))
        for correlation in (0.0, 0.3, 0.6, 0.8)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.6


@pytest.mark.parametrize("source", [0.0, 0.3, 0.6, 0.8, BURSTS[0]], ids=str)
def test_stopping_at_a_narrow_interval_keeps_the_coverage(source):
    x = simulated(np.random.default_rng(1), SERIES, 150, source)
    for target in (0.8, 0.5, 0.35):
        assert 0.93 - ERROR <= stopped_coverage(x, target * x.std()) <= 0.99


@pytest.mark.parametrize("runs", [2, 3, 5])
@pytest.mark.parametrize("between", [0.02, 0.1])
def test_runs_that_differ_are_covered(runs, between):
    found = runs_coverage(np.random.default_rng(runs), 600, runs, between, 0.3)
    assert 0.93 - 0.02 <= found <= 0.99


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_a_prior_covers_the_processes_of_workloads_like_it(runs):
    def covered(population):
        return moderated_coverage(np.random.default_rng(runs), 500, runs, population)

    error = 3 * math.sqrt(0.05 * 0.95 / 500)
    right, small, large, heavy, wild, none = map(covered, POPULATIONS)
    assert 0.95 - error <= right <= 0.95 + error
    assert 0.80 <= small < right < large
    assert heavy >= 0.95 - error
    assert wild < small, "few processes say little of the workloads that spread most"
    if runs == 1:
        assert none < 0.6, "the windows of one process do not cover the others"


@pytest.mark.parametrize("windows", [12, 20, 60])
@pytest.mark.parametrize("source", [0.0, 0.3, 0.6, 0.8, BURSTS[0]], ids=str)
def test_steady_series_seldom_drift(windows, source):
    x = simulated(np.random.default_rng(windows), 400, windows, source)
    assert false_drifts(x) <= 0.05 + 0.025


def test_comparisons_with_the_noise_of_stored_runs():
    series = stored_series()
    calm = stored_series(with_noisy=False)
    assert 0 < len(calm) < len(series)
    same, planted = (
        rates(interleaved, np.random.default_rng(2), series, slower, 150)
        for slower in (0.0, PLANTED)
    )
    assert same.called <= 0.06
    assert planted.contains >= 0.94
    assert planted.called > 5 * same.called
    assert rates(separate, np.random.default_rng(3), series, 0.0, 150).called <= 0.06
    assert rates(tables, np.random.default_rng(4), calm, 0.0, 300).called <= 0.06


def test_bursts_have_the_share_and_length_of_their_parameters():
    bursts = Bursts(begin=0.2, end=0.4, slower=1.0, noise=0.0)
    inside = simulated(np.random.default_rng(5), 2000, 50, bursts) > 0
    assert inside.mean() == pytest.approx(0.2 / 0.6, abs=0.01)
    ended = inside[:, :-1] & ~inside[:, 1:]
    assert inside[:, :-1].sum() / ended.sum() == pytest.approx(1 / 0.4, rel=0.03)


def test_known_autocorrelation_does_not_cover_rare_bursts_either():
    rare, often = BURSTS[-1], Bursts(begin=0.5, end=0.5, slower=0.1, noise=0.05)
    coverage = [
        known_widening_coverage(np.random.default_rng(6), SERIES, 12, bursts)
        for bursts in (rare, often)
    ]
    assert coverage[0] < 0.93
    assert coverage[1] == pytest.approx(0.95, abs=0.015)
    noiseless = rare._replace(noise=0.0)
    x = simulated(np.random.default_rng(7), SERIES, 12, noiseless)
    none = float((np.ptp(x, axis=1) == 0).mean() - (x.min(axis=1) > 0).mean())
    assert without_burst(12, rare) == pytest.approx(none, abs=0.03)


def test_every_table_is_printed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["interval_coverage.py", "--series", "40"])
    main()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(list(report(np.random.default_rng(0), 40)))
    assert sum(line.startswith("| ") for line in printed) >= 20
