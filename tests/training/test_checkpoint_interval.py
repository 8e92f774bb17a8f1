"""Daly's rule, the goodput model, and the checkpoints that a training plans with them."""

import random

import pytest

from cubemesh.training.checkpoint_interval import (
    CheckpointTimes,
    IntervalRule,
    daly_interval_s,
    goodput,
)


def simulated(interval_s, cost_s, fault_every_s, restart_s, write_s, segments=60_000):
    """The useful share of many segments with faults at random moments, counted event by event."""
    draw = random.Random(0)

    def next_fault():
        return draw.expovariate(1 / fault_every_s)

    clock, fault = 0.0, next_fault()

    def passes(seconds):
        """Let so much time pass; False where a fault ends it."""
        nonlocal clock, fault
        done = fault >= clock + seconds
        clock = clock + seconds if done else fault
        if not done:
            fault = clock + next_fault()
        return done

    for _ in range(segments):
        while not passes(interval_s + cost_s):
            while not passes(restart_s + write_s):
                pass
    return segments * interval_s / clock


@pytest.mark.parametrize(
    ("cost_s", "fault_every_s", "restart_s", "write_s"),
    [(0.1, 120.0, 5.0, 0.5), (2.0, 300.0, 20.0, 4.0), (10.0, 120.0, 10.0, 0.0)],
)
def test_the_model_is_what_happens_and_the_rule_is_its_best(
    cost_s, fault_every_s, restart_s, write_s
):
    others = (cost_s, fault_every_s, restart_s, write_s)
    best_s = daly_interval_s(cost_s, fault_every_s)
    for interval_s in (best_s, 3 * best_s):
        expected = goodput(interval_s, *others)
        assert simulated(interval_s, *others) == pytest.approx(expected, rel=0.01)
    shares = {factor: goodput(factor * best_s, *others) for factor in (0.5, 0.8, 1, 1.25, 2)}
    assert max(shares, key=shares.get) == 1


def test_a_checkpoint_dearer_than_the_time_between_faults():
    assert daly_interval_s(300.0, 120.0) == 120.0
    assert daly_interval_s(0.0, 120.0) == 0.0
    assert 0 <= goodput(1.0, 1e9, 1.0, 1e9) < 1e-9


def test_the_cost_is_waiting_and_the_processor_time_of_writing():
    times = CheckpointTimes(
        waits_s=[9.0, 0.2, 0.3, 0.2],
        busy_s=[0.1, 0.1, 0.1],
        writes_s=[1.0, 2.0, 3.0],
        begun_s=[10.0, 20.0, 40.0],
    )
    assert times.cost_s == pytest.approx(0.25 + 0.1)
    assert (times.write_s, times.interval_s) == (2.0, 15.0)
    assert CheckpointTimes().cost_s is CheckpointTimes().interval_s is None


def test_the_next_checkpoint_is_as_many_steps_away_as_fit_the_interval():
    rule, times = IntervalRule(3600.0), CheckpointTimes(waits_s=[0.5])
    assert rule.next_after(4, times) == 5, "no step was timed before"
    rule.saw(0.1)
    steps = daly_interval_s(0.5, 3600.0) / 0.1
    assert rule.next_after(4, times) == 4 + round(steps)
    times.writes_s.append(500.0)
    assert rule.next_after(4, times) == 5004, "one is written at a time"
    assert IntervalRule(3600.0).interval_s(CheckpointTimes(waits_s=[0.0])) == 10.0
