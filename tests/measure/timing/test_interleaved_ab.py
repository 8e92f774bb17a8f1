"""Interleaved A/B: order of windows, the ratio, and its errors under simulated noise."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.measure.timing.interleaved_ab import Side, alternate, ratio_of, steps_per_window
from cubemesh.schema.comparison import Difference
from cubemesh.schema.record import AGAINST, Window
from cubemesh.schema.spec import Budget
from in_memory_log import InMemoryLog

EFFORT = Budget(steps=1, seconds=0.0, windows=6, warmup_seconds=5.0)


class Machine:
    """Programs of one process on a scripted clock; `speed` multiplies the time of every step."""

    def __init__(self, speed=lambda now: 1.0):
        self.now = 0.0
        self.ran = []
        self.speed = speed

    def side(self, name, step_s, samples=8):
        def step():
            self.ran.append(name)
            self.now += step_s * self.speed(self.now)

        return Side(
            step=step,
            synchronize=lambda: None,
            clock=lambda: self.now,
            samples_per_step=samples,
            resume=lambda: self.ran.append(f"resume {name}"),
        )


def run(machine, pairs, **budget):
    log = InMemoryLog()
    merged = {"steps": 1, "seconds": 0.0, "windows": 6, "warmup_seconds": 5.0} | budget
    return alternate(pairs, budget=Budget(**merged), log=log), log


def test_blocks_begin_with_either_side_equally_often_and_alternate():
    machine = Machine()
    pairs = [(machine.side("a", 0.1), machine.side("b", 0.1)) for _ in range(3)]
    found, log = run(machine, pairs, windows=24)
    blocks = {}
    for window in found.windows:
        blocks.setdefault(window.marks, []).append("b" if window.phase == AGAINST else "a")
    orders = Counter((marks[0], "".join(order)) for marks, order in blocks.items())
    assert {order for _, order in orders} == {"abba", "baab"}
    assert len(set(orders.values())) == 1
    assert len(found.windows) >= 48
    assert [w.phase for w in log.windows if w.phase == "warm-up"]
    assert found.steady
    assert not log.warnings


def test_resume_comes_before_each_window_and_outside_its_time():
    machine = Machine()
    run(machine, [(machine.side("a", 0.1), machine.side("b", 0.1))])
    for before, after in pairwise(machine.ran):
        if before[-1] != after[-1]:
            assert after.startswith("resume")


def test_the_warm_up_of_long_steps_lasts_until_it_has_its_rounds():
    machine = Machine()
    found, log = run(machine, [(machine.side("a", 0.32), machine.side("b", 0.5))], warmup_seconds=2)
    assert found.steady
    assert not log.warnings


def test_the_ratio_is_of_samples_per_second():
    machine = Machine()
    pairs = [(machine.side("a", 0.1, samples=8), machine.side("b", 0.1, samples=12))] * 2
    found, _ = run(machine, pairs)
    assert found.ratio.value == pytest.approx(1.5)
    assert found.ratio.verdict is Difference.FASTER
    assert found.ratio.n == 2


@pytest.mark.parametrize("amplitude", [-0.01, 0.02])
def test_a_slow_change_of_the_machine_changes_no_ratio(amplitude):
    machine = Machine(lambda now: 1 + amplitude * math.sin(now / 50))
    pairs = [(machine.side("a", 0.1), machine.side("b", 0.103)) for _ in range(4)]
    found, _ = run(machine, pairs, windows=80)
    assert found.ratio.value == pytest.approx(1 / 1.03, rel=2e-4)
    assert found.ratio.verdict is Difference.SLOWER


def test_one_instance_of_each_gives_no_verdict():
    machine = Machine()
    found, _ = run(machine, [(machine.side("a", 0.1), machine.side("b", 0.2))])
    assert found.ratio.verdict is Difference.NOT_ENOUGH_DATA
    assert "instances=4" in found.ratio.why
    assert found.ratio.value == pytest.approx(0.5)


def test_it_measures_until_the_interval_is_narrow_or_time_is_up():
    def noisy():
        rng = np.random.default_rng(1)
        machine = Machine(lambda now: rng.lognormal(0, 0.1))
        return machine, [(machine.side("a", 0.1), machine.side("b", 0.1)) for _ in range(4)]

    machine, pairs = noisy()
    found, log = run(machine, pairs, target_ci=0.03, max_seconds=1000.0)
    assert found.ratio.half_width <= 0.03
    assert "wide-interval" not in [w.code for w in log.warnings]
    machine, pairs = noisy()
    found, log = run(machine, pairs, target_ci=0.001, max_seconds=10.0)
    (warning,) = [w for w in log.warnings if w.code == "wide-interval"]
    assert "± 0.1 %" in warning.cause
    assert found.ratio.half_width > 0.001


def test_nothing_to_compare_is_an_error():
    with pytest.raises(ValueError, match="instance"):
        run(Machine(), [])
    with pytest.raises(ValueError, match="block"):
        ratio_of([])


@given(st.floats(1e-5, 100))
def test_a_window_is_long_enough_and_queues_steps(step_s):
    steps = steps_per_window(step_s)
    assert steps * step_s >= 0.05 * 0.999
    assert steps >= 4 or (steps + 1) * step_s > 0.5
    alone = steps_per_window(step_s, queues=False)
    assert alone <= steps
    assert 0.05 * 0.999 <= alone * step_s < 0.05 + 1.001 * step_s, "no step more than it needs"


def simulated(rng, *, instances, blocks, true=0.0, place_sd=0.004):
    """Windows on a shared machine: autocorrelated noise, bursts that slow several windows in a row,
    and instances of different speed."""
    speeds = rng.normal(0, place_sd, (instances, 2))
    state, burst, windows = 0.0, 0, []
    for block in range(2 * blocks * instances):
        instance = block % instances
        order = (0, 1, 1, 0) if rng.random() < 0.5 else (1, 0, 0, 1)
        for side in order:
            state = 0.8 * state + rng.normal(0, 0.01)
            burst = burst - 1 if burst else int(rng.random() < 0.01) * rng.integers(1, 6)
            step = speeds[instance, side] - true * side + state + rng.normal(0, 0.01)
            windows.append(
                Window(
                    phase=AGAINST if side else "measure",
                    start_s=0.0,
                    elapsed_s=math.exp(step) * (1.5 if burst else 1.0),
                    steps=1,
                    samples=1,
                    marks=(f"instance-{instance}", f"block-{block}"),
                )
            )
    return windows


@pytest.mark.parametrize("instances", [4, 6])
def test_few_false_positives_for_a_program_against_itself(instances):
    rng = np.random.default_rng(instances)
    verdicts = [
        ratio_of(simulated(rng, instances=instances, blocks=4)).verdict
        is not Difference.NOT_SIGNIFICANT
        for _ in range(400)
    ]
    assert sum(verdicts) <= 0.08 * 400


def test_three_percent_are_detected_in_the_same_noise():
    rng = np.random.default_rng(9)
    verdicts = [
        ratio_of(simulated(rng, instances=6, blocks=8, true=-0.03)).verdict for _ in range(100)
    ]
    assert verdicts.count(Difference.SLOWER) >= 90
    assert verdicts.count(Difference.FASTER) == 0


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.floats(0.1, 10))
def test_a_ratio_is_inverted_with_its_sides_and_independent_of_the_unit(seed, scale):
    windows = simulated(np.random.default_rng(seed), instances=3, blocks=2)
    turned = [
        Window(
            phase="measure" if w.phase == AGAINST else AGAINST,
            start_s=w.start_s,
            elapsed_s=scale * w.elapsed_s,
            steps=w.steps,
            samples=w.samples,
            marks=w.marks,
        )
        for w in windows
    ]
    there, back = ratio_of(windows), ratio_of(turned)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)
