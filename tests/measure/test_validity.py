from collections.abc import Sequence

import pytest

from cubemesh.measure.telemetry.gpu_processes import GpuProcess
from cubemesh.measure.validity import (
    busy_host,
    changing_clock,
    clock_loss,
    page_cache,
    shared_gpu,
    throttled,
    wide_interval,
    window_warnings,
)
from cubemesh.schema.record import Window


def windows(step_times: Sequence[float], steps: int = 10) -> list[Window]:
    return [Window(start_s=0, elapsed_s=s * steps, steps=steps, samples=1) for s in step_times]


def codes(step_times: Sequence[float], steps: int = 10) -> list[str]:
    return [w.code for w in window_warnings(windows(step_times, steps))]


QUIET = [0.010, 0.0101, 0.0099, 0.0100, 0.0102, 0.0098, 0.0100, 0.0101, 0.0099, 0.0100]


def test_good_windows_give_no_warning() -> None:
    assert codes(QUIET) == []


def test_drift_needs_both_certainty_and_size() -> None:
    assert codes([0.010 + 0.0002 * n for n in range(12)]) == ["drift"]
    assert codes([0.010 + 0.000001 * n for n in range(12)]) == []


def test_drift_to_faster_steps() -> None:
    (warning,) = window_warnings(windows([0.012 - 0.0002 * n for n in range(12)]))
    assert "faster" in warning.cause


def test_an_outlier_near_the_median_is_ignored() -> None:
    tight = [0.010 + 1e-7 * (n % 3) for n in range(12)]
    assert codes([*tight, 0.0103]) == []
    assert codes([*tight, 0.0200]) == ["outliers"]


def test_short_windows() -> None:
    assert codes([0.0004] * 8, steps=1) == ["short-window"]
    assert codes([0.0004] * 8, steps=10) == []


def test_few_windows_are_not_judged_for_drift() -> None:
    assert codes([0.01, 0.02, 0.03, 0.04, 0.05]) == ["few-windows"]


@pytest.mark.parametrize(("share", "warned"), [(0.0, False), (0.05, False), (0.051, True)])
def test_other_programs_on_the_host(share: float, warned: bool) -> None:
    assert (busy_host(share) is not None) == warned


def test_the_fraction_of_other_programs_is_in_the_cause() -> None:
    warning = busy_host(0.49)
    assert warning is not None
    assert "49 %" in warning.cause


def test_others_on_the_gpu_are_counted_and_named() -> None:
    assert shared_gpu(()) is None
    others = [GpuProcess(pid=5, memory_bytes=1 << 30), GpuProcess(pid=6)]
    warning = shared_gpu(others)
    assert warning is not None
    assert warning.code == "shared-gpu"
    assert "5, 6" in warning.cause
    assert "1 GiB" in warning.cause


def test_only_large_changes_of_the_clock_give_a_warning() -> None:
    assert changing_clock([1980, 1965, 1980, 1950]) is None
    assert changing_clock([1980, 1200]) is None
    warning = changing_clock([1980, 1980, 1500, 1980])
    assert warning is not None
    assert "1500 to 1980 MHz" in warning.cause
    assert " 4 " in warning.cause


def test_throttle_reasons_are_given_with_their_fraction() -> None:
    assert throttled([]) is None
    assert throttled([1.0] * 10) is None
    assert throttled([0.0] * 29 + [4.0]) is None, "less than a twentieth of the readings"
    warning = throttled([4.0, 0x24, 4.0, 0.0])
    assert warning is not None
    for value in ("power cap in 75 %", "heat (software) in 25 %", "of 4 "):
        assert value in warning.cause


def test_files_in_the_page_cache() -> None:
    assert page_cache(0.0) is None
    assert page_cache(0.04) is None
    warm, unknown = page_cache(0.5), page_cache(None)
    assert warm is not None
    assert unknown is not None
    assert "50 %" in warm.cause
    assert "%" not in unknown.cause


def test_a_wide_interval_gives_the_seconds_it_needs() -> None:
    warning = wide_interval(0.01, 0.02, 30.0)
    assert "± 2 %" in warning.cause
    assert "max_seconds=120," in warning.remedy
    assert "30 s" in wide_interval(0.01, None, 30.0).cause


def test_the_clock_lost_to_throttling_is_a_mean_over_all_readings():
    reasons = {0.0: 0.0, 0.5: 4.0, 1.0: 1.0, 1.5: 0x40, 2.0: 4.0}
    mhz = {0.0: 1000.0, 0.5: 1500.0, 1.0: 345.0, 1.5: 1000.0}
    found = clock_loss(reasons, mhz, 2000.0)
    assert found is not None
    assert (found.value, found.n) == (pytest.approx((25 + 50) / 4), 4)
    assert clock_loss(reasons, {}, 2000.0) is None
    assert clock_loss({}, mhz, 2000.0) is None
