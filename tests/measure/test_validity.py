from collections.abc import Sequence

import pytest

from cubemesh.measure.validity import busy_host, judge
from cubemesh.model.record import Window


def windows(step_times: Sequence[float], steps: int = 10) -> list[Window]:
    return [Window(start_s=0, elapsed_s=s * steps, steps=steps, samples=1) for s in step_times]


def codes(step_times: Sequence[float], steps: int = 10) -> list[str]:
    return [w.code for w in judge(windows(step_times, steps))]


QUIET = [0.010, 0.0101, 0.0099, 0.0100, 0.0102, 0.0098, 0.0100, 0.0101, 0.0099, 0.0100]


def test_nothing_amiss() -> None:
    assert codes(QUIET) == []


def test_drift_needs_both_certainty_and_size() -> None:
    assert codes([0.010 + 0.0002 * n for n in range(12)]) == ["drift"]
    assert codes([0.010 + 0.000001 * n for n in range(12)]) == []


def test_faster_is_said_as_such() -> None:
    (warning,) = judge(windows([0.012 - 0.0002 * n for n in range(12)]))
    assert "faster over 12 windows" in warning.cause


def test_an_outlier_too_near_to_matter() -> None:
    tight = [0.010 + 1e-7 * (n % 3) for n in range(12)]
    assert codes([*tight, 0.0103]) == []
    assert codes([*tight, 0.0200]) == ["outliers"]


def test_short_windows() -> None:
    assert codes([0.0004] * 8, steps=1) == ["short-window"]
    assert codes([0.0004] * 8, steps=10) == []


def test_few_windows_are_not_judged_for_drift() -> None:
    assert codes([0.01, 0.02, 0.03, 0.04, 0.05]) == ["few-windows"]


@pytest.mark.parametrize(("share", "warned"), [(0.0, False), (0.05, False), (0.051, True)])
def test_others_on_the_host(share: float, warned: bool) -> None:
    assert (busy_host(share) is not None) == warned


def test_the_share_of_others_is_told() -> None:
    warning = busy_host(0.49)
    assert warning is not None
    assert "49 %" in warning.cause
