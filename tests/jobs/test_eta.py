"""Estimated time left: the coverage of its interval, on scripted series of windows."""

import math
import statistics
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pytest

from cubemesh.jobs.eta import Eta, eta_of_job, eta_of_run

Costs = Callable[[np.random.Generator, int], list[float]]


def independent(rng: np.random.Generator, n: int) -> list[float]:
    return list(rng.lognormal(0.0, 0.1, n))


def autocorrelated(rng: np.random.Generator, n: int) -> list[float]:
    noise, series = 0.0, []
    for step in rng.normal(0.0, 0.05, n):
        noise = 0.5 * noise + step
        series.append(1.0 + noise)
    return series


def with_evaluations(rng: np.random.Generator, n: int) -> list[float]:
    """Every fourth window is followed by an evaluation."""
    return [float(rng.normal(1.0, 0.03)) + (0.6 if i % 4 == 3 else 0.0) for i in range(n)]


def with_stalls(rng: np.random.Generator, n: int) -> list[float]:
    """Frequent enough that some are seen; one that never came is in no interval."""
    return [1.0 + float(rng.normal(0, 0.02)) + (0.3 if rng.random() < 0.2 else 0) for _ in range(n)]


@pytest.mark.parametrize("costs", [independent, autocorrelated, with_evaluations, with_stalls])
@pytest.mark.parametrize("windows", [60, 200])
def test_the_interval_covers_the_true_end(costs: Costs, windows: int) -> None:
    """At a fifth of the way: 90 % intervals cover 85 %, the median error is at most 5 %."""
    covered, errors = 0, []
    for seed in range(300):
        times = [0.0, *accumulate(costs(np.random.default_rng(seed), windows))]
        seen = windows // 5
        course = [(times[n], n / windows) for n in range(seen + 1)]
        found = eta_of_run(course)
        assert found is not None
        left = times[-1] - times[seen]
        covered += found.low_s <= left <= found.high_s
        errors.append(abs(found.seconds - left) / left)
    assert covered >= 0.85 * 300
    assert statistics.median(errors) <= 0.05


def test_few_windows_have_no_estimate() -> None:
    assert eta_of_run([]) is None
    assert eta_of_run([(0.0, 0.0), (1.0, 0.1), (2.0, 0.2)]) is None


def test_equal_windows_have_an_exact_estimate() -> None:
    found = eta_of_run([(10.0 + n, n / 10) for n in range(6)])
    assert found is not None
    assert math.isclose(found.seconds, 5.0)
    assert found.low_s == pytest.approx(found.high_s)


def test_reports_without_progress_are_joined() -> None:
    course = [(0.0, 0.0), (1.0, 0.1), (2.0, 0.1), (3.0, 0.2), (5.0, 0.3), (7.0, 0.4)]
    found = eta_of_run(course)
    assert found is not None
    assert found.seconds == pytest.approx(7 / 0.4 * 0.6)


def test_runs_to_come_take_as_long_as_those_measured() -> None:
    now = Eta(seconds=2.0, low_s=1.0, high_s=3.0)
    assert eta_of_job(now, [], 0, exact=False) == Eta(
        seconds=2.0, low_s=1.0, high_s=3.0, exact=False
    )
    assert eta_of_job(now, [10.0], 3) is None
    found = eta_of_job(now, [10.0, 12.0, 11.0], 3)
    assert found is not None
    assert found.seconds == pytest.approx(35.0)
    assert found.low_s < 35.0 < found.high_s
