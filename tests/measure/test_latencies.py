"""Percentiles of latencies, on a scripted clock and by simulation."""

import itertools
import statistics

import numpy as np
import pytest

from cubemesh.measure.latencies import LatencyRecorder, fewest_requests
from cubemesh.statistics import percentile_interval


def recorded(seconds):
    """A recorder of requests that take these seconds, one after another."""
    now = 100.0
    times = iter(seconds)

    def request():
        nonlocal now
        now += next(times)

    recorder = LatencyRecorder(request, lambda: now)
    for _ in seconds:
        recorder()
    return recorder


def test_percentiles_are_order_statistics_of_the_measured_requests():
    slow_warm_up = [1.0] * 10
    recorder = recorded([*slow_warm_up, *(n / 1000 for n in range(1, 1001))])
    found = recorder.figures(since=110.0)
    assert {name: figure.n for name, figure in found.items()} == dict.fromkeys(found, 1000)
    assert found["latency_p50_s"].value == pytest.approx(0.5005)
    assert found["latency_p90_s"].value == pytest.approx(0.9001)
    assert found["latency_p99_s"].value == pytest.approx(0.99001)
    assert found["latency_p999_s"].value == pytest.approx(0.999001)
    assert found["latency_max_s"].value == 1.0
    assert found["latency_p50_s"].low < 0.5005 < found["latency_p50_s"].high


def test_a_stall_is_seen_where_it_belongs():
    """Two requests of a hundred take 100 ms longer."""
    latencies = [0.101 if n % 50 == 7 else 0.001 for n in range(2000)]
    found = recorded(latencies).figures(since=0)
    assert found["latency_p50_s"].value == pytest.approx(0.001)
    assert found["latency_p90_s"].value == pytest.approx(0.001)
    assert found["latency_p99_s"].value == pytest.approx(0.101)


@pytest.mark.parametrize(
    ("requests", "names"),
    [
        (1, {"latency_max_s"}),
        (2, {"latency_p50_s", "latency_max_s"}),
        (99, {"latency_p50_s", "latency_p90_s", "latency_max_s"}),
        (100, {"latency_p50_s", "latency_p90_s", "latency_p99_s", "latency_max_s"}),
    ],
)
def test_a_percentile_needs_requests_beyond_it(requests, names):
    assert set(recorded([0.001] * requests).figures(since=0)) == names


def test_the_fewest_requests():
    assert [fewest_requests(p) for p in (50, 90, 99, 99.9)] == [2, 10, 100, 1000]


def test_no_interval_where_too_few_requests_bound_it():
    found = recorded([0.001 * (1 + n % 7) for n in range(100)]).figures(since=0)
    assert found["latency_p99_s"].high is None
    assert found["latency_p50_s"].high is not None


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("percent", [50, 90])
def test_intervals_cover_percentiles_of_correlated_requests(correlation, percent):
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((400, 400))
    series = noise.copy()
    for before, now in itertools.pairwise(range(400)):
        series[:, now] = correlation * series[:, before] + noise[:, now] * np.sqrt(
            1 - correlation**2
        )
    truth = statistics.NormalDist().inv_cdf(percent / 100)
    found = [percentile_interval(list(row), percent) for row in series]
    known = [one for one in found if one is not None]
    assert len(known) >= 370
    covered = sum(one.low <= truth <= one.high for one in known) / len(known)
    assert 0.91 <= covered <= 0.99
