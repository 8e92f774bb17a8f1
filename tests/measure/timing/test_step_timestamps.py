"""Timestamps and counters of steps, on a scripted clock and a scripted thread."""

import pytest

from cubemesh.measure.attribution.contention import Competition
from cubemesh.measure.telemetry.run_queue import ThreadTime
from cubemesh.measure.timing.step_timestamps import StampedSteps
from cubemesh.schema.record import Window


class Machine:
    """One thread: it runs, waits for its processor, or is blocked."""

    def __init__(self):
        self.now, self.ran, self.delayed = 100.0, 0.0, 0.0

    def clock(self):
        return self.now

    def thread(self):
        return ThreadTime(self.ran, self.delayed)

    def run(self, seconds):
        self.now, self.ran = self.now + seconds, self.ran + seconds

    def wait(self, seconds):
        self.now, self.delayed = self.now + seconds, self.delayed + seconds

    def block(self, seconds):
        self.now += seconds


def window(machine, steps, times):
    """The window of calling `steps` so often."""
    start = machine.now
    for _ in range(times):
        steps()
    return Window(start_s=start, elapsed_s=machine.now - start, steps=times, samples=times)


def stamped(machine, queue, *, take=lambda: None, place=lambda batch: batch, **how):
    return StampedSteps(
        take=take, place=place, queue=queue, clock=machine.clock, thread=machine.thread, **how
    )


def test_each_step_has_its_cpu_time_and_its_delays():
    machine = Machine()

    def queue(placed):
        machine.run(2.0)
        machine.wait(3.0)
        machine.block(1.0)

    steps = stamped(machine, queue, place=lambda batch: machine.wait(0.5))
    found = steps.cut(window(machine, steps, 3))
    for stamp in found.stamps:
        assert stamp.done - stamp.step == pytest.approx(6.0)
        assert (stamp.ran_s, stamp.delayed_s) == pytest.approx((2.0, 3.0))
        assert stamp.delayed_before_s == pytest.approx(0.5)
    assert found.delayed_after_s == 0.0
    assert found.competition is None


def test_a_window_has_neither_the_delay_before_it_nor_the_warm_up():
    machine = Machine()
    steps = stamped(machine, lambda placed: machine.run(1.0), take=lambda: machine.wait(0.25))
    for _ in range(5):
        steps()
    first = steps.cut(window(machine, steps, 2))
    machine.wait(9.0)
    second = steps.cut(window(machine, steps, 2))
    for found in (first, second):
        assert len(found.stamps) == 2
        assert [s.delayed_before_s for s in found.stamps] == pytest.approx([0.25, 0.25])


def test_delay_that_does_not_fit_into_a_step_is_beside_it():
    """The thread loses its processor between reading the counters and the clock."""
    machine = Machine()
    readings = []

    def thread():
        readings.append(machine.thread())
        if len(readings) == 2:  # before the first step begins
            machine.wait(4.0)
        return readings[-1]

    steps = StampedSteps(
        take=lambda: None,
        place=lambda batch: machine.block(0.5),
        queue=lambda placed: machine.run(1.0),
        clock=machine.clock,
        thread=thread,
    )
    found = steps.cut(window(machine, steps, 1))
    (stamp,) = found.stamps
    assert stamp.done - stamp.step == pytest.approx(1.0)
    assert (stamp.ran_s, stamp.delayed_s) == pytest.approx((1.0, 0.0))
    assert stamp.delayed_before_s == pytest.approx(4.0)


def test_delay_after_the_last_step_is_of_the_window():
    machine = Machine()
    steps = stamped(machine, lambda placed: machine.run(1.0))
    start = machine.now
    steps()
    machine.wait(2.0)
    ended = Window(start_s=start, elapsed_s=machine.now - start, steps=1, samples=1)
    machine.wait(5.0)
    assert steps.cut(ended).delayed_after_s == pytest.approx(2.0)


def test_a_program_that_runs_ahead_has_the_delay_of_whole_steps():
    machine = Machine()
    steps = stamped(
        machine, lambda placed: machine.wait(1.0), take=lambda: machine.wait(2.0), runs_ahead=True
    )
    found = steps.cut(window(machine, steps, 2))
    assert [(s.ran_s, s.delayed_s, s.delayed_before_s) for s in found.stamps] == [
        (None, pytest.approx(3.0), 0.0)
    ] * 2


def test_what_competes_is_that_of_the_windows_time():
    machine = Machine()
    steps = stamped(
        machine,
        lambda placed: machine.run(1.0),
        compete=lambda: Competition(elapsed_s=8.0, neighbours_s=4.0),
    )
    found = steps.cut(window(machine, steps, 2))
    assert found.competition == Competition(elapsed_s=2.0, neighbours_s=1.0)
