"""The timer on programs with a scripted clock, so that every step has a known length."""

import time
from collections.abc import Iterator
from itertools import chain, pairwise, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.measure.figures import figures
from cubemesh.measure.timing.stopping_rule import SEQUENTIAL_CONFIDENCE
from cubemesh.measure.timing.timer import (
    STEADY_WINDOWS,
    WARMUP_WINDOW_S,
    WINDOW_S,
    Measured,
    measure,
    steps_per_window,
)
from cubemesh.schema.spec import Budget
from in_memory_log import InMemoryLog


class Scripted:
    """Steps that take the given seconds of a clock of their own, all of it in the wait at the end
    of a window, as on a device that is far behind its host."""

    def __init__(self, lengths: Iterator[float]) -> None:
        self.now = 100.0
        self.steps = 0
        self.waits = 0
        self._lengths = lengths
        self._queued = 0.0

    def step(self) -> None:
        self.steps += 1
        self._queued += next(self._lengths)

    def synchronize(self) -> None:
        self.waits += 1
        self.now += self._queued
        self._queued = 0.0

    def clock(self) -> float:
        return self.now


def run(
    lengths: Iterator[float], log: InMemoryLog | None = None, **budget: float
) -> tuple[Measured, InMemoryLog, Scripted]:
    program, log = Scripted(lengths), log or InMemoryLog()
    measured = measure(
        program.step,
        program.synchronize,
        program.clock,
        samples_per_step=4,
        budget=Budget(**budget),  # type: ignore[arg-type]
        log=log,
    )
    return measured, log, program


def codes(log: InMemoryLog) -> list[str]:
    return [w.code for w in log.warnings]


BUDGETS = st.fixed_dictionaries(
    {
        "steps": st.integers(1, 200),
        "seconds": st.floats(0, 5),
        "windows": st.integers(1, 30),
    }
)


@given(st.floats(1e-4, 20), BUDGETS)
@settings(deadline=None, max_examples=60)
def test_enough_steps_seconds_and_windows_but_not_many_more(
    step_s: float, budget: dict[str, float]
) -> None:
    measured, log, program = run(repeat(step_s), **budget)
    windows = measured.windows
    steps, elapsed_s = sum(w.steps for w in windows), sum(w.elapsed_s for w in windows)
    assert steps >= budget["steps"]
    assert elapsed_s >= budget["seconds"]
    assert len(windows) >= budget["windows"]
    # Of what was asked for, the longest decides; rounding a window to whole steps adds to it.
    asked = max(
        budget["steps"] * step_s,
        budget["seconds"],
        budget["windows"] * max(step_s, WINDOW_S + step_s),
    )
    assert elapsed_s <= asked + 2 * max(w.elapsed_s for w in windows)
    assert all(w.samples == 4 * w.steps for w in windows)
    assert program.steps == sum(w.steps for w in log.windows)
    assert log.fractions[-1] == 1


@given(st.floats(1e-4, 20), BUDGETS)
@settings(deadline=None, max_examples=30)
def test_a_fixed_amount_of_work_is_measured_exactly(
    step_s: float, budget: dict[str, float]
) -> None:
    measured, log, _ = run(repeat(step_s), exact_steps=True, target_ci=1e-9, **budget)
    steps = [w.steps for w in measured.windows]
    assert sum(steps) == budget["steps"]
    assert len(steps) == min(budget["steps"], budget["windows"])
    assert max(steps) - min(steps) <= 1
    assert log.fractions[-1] == 1


@given(st.floats(1e-4, 2), BUDGETS)
@settings(deadline=None, max_examples=30)
def test_windows_follow_one_another_and_wait_once_each(
    step_s: float, budget: dict[str, float]
) -> None:
    _, log, program = run(repeat(step_s), **budget)
    for before, after in pairwise(log.windows):
        assert after.start_s >= before.start_s + before.elapsed_s - 1e-9
    assert program.waits == len(log.windows) + 1


def test_a_steady_program_has_a_short_warm_up_and_no_warning() -> None:
    measured, log, _ = run(repeat(0.010))
    assert measured.steady
    assert codes(log) == []
    warm = [w for w in log.windows if w.phase == "warm-up"]
    assert warm[0].marks == ("first-step",)
    assert len(warm) == 1 + STEADY_WINDOWS
    assert warm[-1].elapsed_s == pytest.approx(WARMUP_WINDOW_S)
    assert [p.name for p in log.phases] == ["warm-up", "measure"]
    assert all(w.step_s == pytest.approx(0.010) for w in measured.windows)


def test_the_warm_up_waits_for_a_program_that_settles() -> None:
    settling = (0.010 * (1 + 3 * 0.95**n) for n in range(10_000))
    measured, log, _ = run(settling)
    assert measured.steady
    assert measured.windows[0].step_s < 1.06 * 0.010
    assert "drift" not in codes(log)


def test_a_long_first_step_is_outside_the_budget() -> None:
    measured, log, _ = run(chain([90.0], repeat(0.020)), warmup_seconds=5)
    assert measured.steady
    assert "not-steady" not in codes(log)


def test_a_warm_up_that_never_settles_ends_with_its_budget() -> None:
    growing = (0.010 * 1.002**n for n in range(10_000))
    measured, log, _ = run(growing, warmup_seconds=2)
    assert not measured.steady
    assert codes(log)[0] == "not-steady"
    warning = log.warnings[0]
    assert "warmup_seconds=5" in warning.remedy


def test_planted_drift_gives_a_warning() -> None:
    drifting = chain(repeat(0.010, 30), (0.010 * (1 + 0.001 * n) for n in range(10_000)))
    _, log, _ = run(drifting, seconds=3)
    assert "drift" in codes(log)
    warning = next(w for w in log.warnings if w.code == "drift")
    assert "slower" in warning.cause


def test_one_slow_window_is_an_outlier() -> None:
    lengths = chain(repeat(0.010, 100), [0.5], repeat(0.010))
    _, log, _ = run(lengths)
    assert codes(log) == ["outliers"]
    assert "1 of 12" in log.warnings[0].cause


def test_steps_of_seconds_end_in_sensible_time() -> None:
    measured, log, program = run(repeat(3.0))
    assert len(measured.windows) == 20
    assert {w.steps for w in measured.windows} == {1}
    assert program.steps == 1 + STEADY_WINDOWS + 20
    assert codes(log) == []


def test_the_warm_up_of_long_steps_lasts_until_it_has_its_windows() -> None:
    measured, log, _ = run(repeat(0.9), warmup_seconds=2)
    assert measured.steady
    assert codes(log) == []
    warm = [w for w in log.windows if w.phase == "warm-up"]
    assert len(warm) == 1 + STEADY_WINDOWS


def test_a_warm_up_without_time_is_one_window() -> None:
    _, log, _ = run(repeat(0.9), warmup_seconds=0)
    assert len([w for w in log.windows if w.phase == "warm-up"]) == 2
    assert codes(log) == ["not-steady"]


def test_steps_too_long_for_the_warm_up() -> None:
    measured, log, _ = run(repeat(15.0), steps=6, windows=6)
    assert not measured.steady
    assert codes(log) == ["not-steady"]
    assert "warmup_seconds=90" in log.warnings[0].remedy
    assert len(measured.windows) == 6


def test_few_windows_give_a_warning() -> None:
    _, log, _ = run(repeat(0.010), windows=3, steps=3, seconds=0)
    assert codes(log) == ["few-windows"]


def test_windows_that_are_too_short_give_a_warning() -> None:
    # The warm-up saw steps of 10 ms; what is measured takes a hundredth of that.
    lengths = chain(repeat(0.010, 26), repeat(0.0001))
    _, log, _ = run(lengths, seconds=0)
    assert "short-window" in codes(log)


@pytest.mark.parametrize(
    ("step_s", "budget", "steps"),
    [
        (0.0001, Budget(), 1666),  # 20,000 steps make 2 s
        (0.050, Budget(), 3),  # 40 steps over 12 windows
        (3.0, Budget(), 1),
        (0.0001, Budget(seconds=0), 50),  # 5 ms a window
        (0.1, Budget(steps=100, windows=10, seconds=0), 10),
    ],
)
def test_steps_in_a_window(step_s: float, budget: Budget, steps: int) -> None:
    assert steps_per_window(budget, step_s) == steps


def test_a_clock_that_does_not_advance_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        run(repeat(0.0))


def test_on_the_real_clock() -> None:
    before = time.perf_counter()
    measured = measure(
        lambda: time.sleep(0.002),
        lambda: None,
        time.perf_counter,
        samples_per_step=1,
        budget=Budget(steps=20, seconds=0.1, windows=6, warmup_seconds=0.2),
        log=InMemoryLog(),
    )
    assert before < measured.started < measured.ended < time.perf_counter()
    assert measured.ended - measured.started >= sum(w.elapsed_s for w in measured.windows)
    assert all(w.step_s >= 0.002 for w in measured.windows)


def test_it_measures_until_the_interval_is_narrow_or_time_is_up() -> None:
    def noisy() -> Iterator[float]:
        return (0.1 * (1 + 0.2 * ((n * 7919) % 13 - 6) / 6) for n in range(10**9))

    alone, _, _ = run(noisy(), seconds=0.5, steps=1, windows=6)
    narrow, log, _ = run(noisy(), seconds=0.5, steps=1, windows=6, target_ci=0.02)
    assert len(narrow.windows) > 2 * len(alone.windows)
    rate = figures(narrow.windows, 0.0, SEQUENTIAL_CONFIDENCE)["throughput_per_s"]
    assert (rate.high - rate.low) / 2 <= 0.02 * rate.value
    assert "wide-interval" not in codes(log)
    stopped, log, _ = run(
        noisy(), seconds=0.5, steps=1, windows=6, target_ci=0.0001, max_seconds=5.0
    )
    assert 5.0 <= sum(w.elapsed_s for w in stopped.windows) < 7.0
    assert "wide-interval" in codes(log)
