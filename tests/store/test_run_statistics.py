"""Runs of one program against another's: how often the interval errs, and when nothing is said."""

import math

import numpy as np
import pytest

from cubemesh.schema.comparison import Difference, breaches
from cubemesh.schema.record import Window
from cubemesh.statistics import Spread, pooled
from cubemesh.store.run_statistics import ratio_of_runs, spread_between


def run(rng, speed=0.0, windows=12, noise=0.02):
    """Windows of 32 samples at `speed` (ln), each resembling the one before, one in 50 a burst."""
    state, found = 0.0, []
    for _ in range(windows):
        state = 0.5 * state + rng.normal(0, noise)
        slow = 1.3 if rng.random() < 0.02 else 1.0
        elapsed_s = math.exp(state - speed) * slow
        found.append(Window(start_s=0.0, elapsed_s=elapsed_s, steps=1, samples=32))
    return found


def side(rng, runs, true=0.0, between=0.03):
    return [run(rng, true + rng.normal(0, between)) for _ in range(runs)]


@pytest.mark.parametrize(("runs", "between"), [(2, 0.03), (3, 0.03), (3, 0.0), (5, 0.1)])
def test_equal_programs_are_seldom_called_different(runs, between):
    rng = np.random.default_rng(runs)
    rounds = 300
    called = sum(
        ratio_of_runs(side(rng, runs, 0, between), side(rng, runs, 0, between), None).verdict
        is not Difference.NOT_SIGNIFICANT
        for _ in range(rounds)
    )
    assert called <= 0.09 * rounds


def test_a_real_difference_between_runs_is_called():
    rng = np.random.default_rng(1)
    called = [
        ratio_of_runs(side(rng, 5, 0.0, 0.01), side(rng, 5, -0.1, 0.01), None) for _ in range(50)
    ]
    assert sum(found.verdict is Difference.SLOWER for found in called) >= 48
    assert np.median([found.value for found in called]) == pytest.approx(math.exp(-0.1), rel=0.01)


def test_one_run_of_a_side_calls_nothing_however_far_they_are_apart():
    rng = np.random.default_rng(2)
    found = ratio_of_runs([run(rng)], [run(rng, 1.0)], None)
    assert found.verdict is Difference.NOT_ENOUGH_DATA
    assert "repeats=3" in found.why
    assert "--against" in found.why
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(math.e, rel=0.1)
    assert breaches([found], 100.0) == (None,)


def test_a_stored_spread_lets_single_runs_be_judged():
    rng = np.random.default_rng(3)
    stored = Spread(variance=0.03**2, freedom=8, source="of 10 runs")
    called = [ratio_of_runs(side(rng, 1), side(rng, 1), stored).verdict for _ in range(300)]
    assert sum(v is not Difference.NOT_SIGNIFICANT for v in called) <= 0.09 * 300
    apart = ratio_of_runs([run(rng)], [run(rng, -0.3)], stored)
    assert apart.verdict is Difference.SLOWER
    assert "of 10 runs" in apart.method


def test_the_side_with_several_runs_lends_its_spread():
    rng = np.random.default_rng(4)
    called = [ratio_of_runs(side(rng, 4), side(rng, 1), None).verdict for _ in range(300)]
    assert sum(v is not Difference.NOT_SIGNIFICANT for v in called) <= 0.09 * 300


def test_runs_that_agree_by_chance_are_not_surer_than_their_windows():
    rng = np.random.default_rng(5)
    same = run(rng, noise=0.1)
    found = ratio_of_runs([same] * 3, [same] * 3, None)
    assert found.value == pytest.approx(1.0)
    assert found.half_width > 0.02


def test_too_few_windows_call_nothing():
    rng = np.random.default_rng(6)
    short = [run(rng, windows=3) for _ in range(3)]
    found = ratio_of_runs(short, [run(rng, 2.0, windows=3) for _ in range(3)], None)
    assert found.verdict is Difference.NOT_ENOUGH_DATA
    assert "windows=12" in found.why


def test_spreads_are_pooled_by_their_degrees_of_freedom():
    first = Spread(variance=1.0, freedom=1, source="of x")
    second = Spread(variance=4.0, freedom=2, source="of y")
    assert pooled([first, second]) == Spread(variance=3.0, freedom=3, source="of x and of y")
    assert pooled([]) is None
    rng = np.random.default_rng(7)
    assert spread_between([run(rng)], "of one") is None
    assert spread_between([run(rng), run(rng)], "of two").freedom == 1


def test_a_side_without_runs_is_an_error():
    with pytest.raises(ValueError, match="needs a run"):
        ratio_of_runs([], [run(np.random.default_rng(8))], None)
