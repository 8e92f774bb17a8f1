"""Losses planted in a program whose time is scripted, found by a whole measurement."""

import math

import numpy as np
import pytest

from cubemesh.measure.attribution.profile_windows import StepProfiler
from cubemesh.measure.timing.step_timestamps import StampedSteps
from cubemesh.measure.timing.timer import measure
from cubemesh.schema import Budget, Profile, ProfileEvent
from in_memory_log import InMemoryLog

STEP_S = 0.01


class Clock:
    """A scripted clock: it advances by `sleep`, and a microsecond with each reading."""

    def __init__(self):
        self.now = 50.0

    def __call__(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Scripted:
    """Spends its steps in two operators, and `gap_s` between them; `slowing` times as much while it
    is profiled."""

    device = "cpu"

    def __init__(self, gap_s=0.0, slowing=1.0):
        self.clock, self.gap_s, self.slowing = Clock(), gap_s, slowing
        self.events, self.profiling = [], False

    def step(self, placed):
        times = self.slowing if self.profiling else 1.0
        for pause_s in (self.gap_s, 0.0):
            start = self.clock.now
            self.clock.sleep(times * STEP_S / 2)
            self.events.append(
                ProfileEvent(
                    name="aten::mm",
                    kind="operator",
                    start_s=start,
                    duration_s=self.clock.now - start,
                )
            )
            self.clock.sleep(pause_s)

    def profile(self, run, *, layers=False, trace=None):
        self.events, self.profiling = [], True
        run()
        self.profiling = False
        self.clock.sleep(0.02)  # a profiler takes a while to stop
        profile = Profile(events=tuple(self.events))
        return lambda: profile

    def synchronize(self):
        self.clock.sleep(1e-5)


def taken_apart(program, take=lambda: None, place=lambda batch: batch):
    log = InMemoryLog()
    steps = StampedSteps(take=take, place=place, queue=program.step, clock=program.clock)
    attributed = StepProfiler(program=program, steps=steps, samples_per_step=1, log=log)
    measured = measure(
        steps,
        program.synchronize,
        program.clock,
        samples_per_step=1,
        budget=Budget(steps=24, seconds=0.3, windows=6, warmup_seconds=1.0),
        log=log,
        after_window=attributed.after_window,
    )
    attributed.finish()
    step_s = np.mean([w.step_s for w in measured.windows])
    parts = {part.name: part.seconds for part in log.parts}
    assert not parts or math.fsum(parts.values()) == pytest.approx(step_s, rel=1e-9)
    return parts, log


class Ahead:
    """Minibatches that someone else makes, one every `every_s`, and three at most in stock."""

    def __init__(self, clock, every_s):
        self.clock, self.every_s = clock, every_s
        self.stock, self.since = 0.0, clock.now

    def __call__(self):
        now = self.clock.now
        self.stock, self.since = min(3.0, self.stock + (now - self.since) / self.every_s), now
        if self.stock < 1:
            self.clock.sleep((1 - self.stock) * self.every_s)
            self.stock, self.since = 1.0, self.clock.now
        self.stock -= 1


def test_a_program_without_overhead_computes():
    parts, log = taken_apart(Scripted())
    assert parts["compute"] == pytest.approx(STEP_S, rel=0.01)
    assert all(parts[name] < 0.01 * STEP_S for name in ("input_stall", "host", "launch_gaps"))
    assert log.figures["profiled_step_s"].value == pytest.approx(STEP_S, rel=0.01)
    (by_category,) = log.breakdowns
    assert {row.name for row in by_category.rows} == {"matrix product", "input"}
    assert not log.warnings


def test_profiler_overhead_is_logged_and_subtracted():
    parts, log = taken_apart(Scripted(gap_s=0.004, slowing=1.2))
    assert log.figures["profiled_step_s"].value == pytest.approx(1.2 * STEP_S + 0.004, rel=0.01)
    assert parts["compute"] + parts["launch_gaps"] == pytest.approx(STEP_S + 0.004, rel=0.01)
    assert abs(parts["unattributed"]) < 0.01 * STEP_S


@pytest.mark.parametrize(("every_s", "stall_s"), [(0.005, 0.0), (0.03, 0.02)])
def test_a_slow_source_stalls_beyond_the_step(every_s, stall_s):
    program = Scripted()
    parts, _ = taken_apart(program, take=Ahead(program.clock, every_s))
    assert parts["input_stall"] == pytest.approx(stall_s, rel=0.1, abs=1e-4)


def test_slow_placing_is_host_time():
    program = Scripted()
    parts, _ = taken_apart(program, place=lambda batch: program.clock.sleep(0.005))
    assert parts["host"] == pytest.approx(0.005, abs=0.0001)


def test_a_pause_between_launches_is_a_gap():
    parts, _ = taken_apart(Scripted(gap_s=0.005))
    assert parts["launch_gaps"] == pytest.approx(0.005, abs=0.0001)
    assert parts["compute"] == pytest.approx(STEP_S, rel=0.01)


def test_unattributed_time_gives_a_warning():
    program = Scripted()
    program.synchronize = lambda: program.clock.sleep(0.02)
    _, log = taken_apart(program)
    assert [w.code for w in log.warnings] == ["unattributed"]


class ScriptedGpu:
    """Launches kernels of `kernel_s` that a device takes up in their order; a launch costs the host
    `launch_s`, three times as much while it is profiled."""

    device = "cuda:0"
    kernels = 20

    def __init__(self, kernel_s, launch_s, pause_s=0.0):
        self.clock, self.kernel_s, self.launch_s, self.pause_s = (
            Clock(),
            kernel_s,
            launch_s,
            pause_s,
        )
        self.free, self.events, self.profiling = 0.0, [], False

    def step(self, placed):
        for number in range(self.kernels):
            self._launch()
            if number == self.kernels // 2:
                self.clock.sleep(self.pause_s)

    def _launch(self):
        called = self.clock.now
        self.clock.sleep(self.launch_s * (3 if self.profiling else 1))
        start = max(called + 5e-6, self.free + 1e-6)
        self.free = start + self.kernel_s
        launch = len(self.events) + 1
        self.events += [
            ProfileEvent(
                name="cudaLaunchKernel",
                kind="runtime",
                start_s=called,
                duration_s=self.clock.now - called,
                launch=launch,
            ),
            ProfileEvent(
                name="sm90_xmma_gemm",
                kind="kernel",
                start_s=start,
                duration_s=self.kernel_s,
                launch=launch,
                lane=7,
                occupancy=0.5,
            ),
        ]

    def profile(self, run, *, layers=False, trace=None):
        self.events, self.profiling = [], True
        run()
        self.profiling = False
        profile = Profile(events=tuple(self.events))
        return lambda: profile

    def synchronize(self):
        self.clock.now = max(self.clock.now, self.free) + 1e-5


def test_a_busy_gpu_computes_even_if_the_profiler_delays_it():
    parts, log = taken_apart(ScriptedGpu(kernel_s=500e-6, launch_s=300e-6))
    assert parts["compute"] == pytest.approx(0.01)
    assert parts["launch_gaps"] < 0.01 * 0.01
    assert abs(parts["unattributed"]) < 0.01 * 0.01
    assert log.figures["profiled_step_s"].value > 0.015
    assert log.figures["device_busy_percent"].value == pytest.approx(100, abs=1)
    assert log.figures["occupancy_percent"].value == pytest.approx(50)
    assert {b.name for b in log.breakdowns} == {"category", "runtime call"}


def test_a_gpu_that_waits_for_its_host_has_launch_gaps_of_the_unprofiled_host():
    parts, _ = taken_apart(ScriptedGpu(kernel_s=100e-6, launch_s=500e-6))
    assert parts["compute"] == pytest.approx(0.002)
    assert parts["launch_gaps"] == pytest.approx(0.008, rel=0.02)
    assert abs(parts["unattributed"]) < 0.02 * 0.01


def test_planted_host_overheads_of_a_gpu_are_found():
    plain, _ = taken_apart(ScriptedGpu(kernel_s=100e-6, launch_s=500e-6))
    program = ScriptedGpu(kernel_s=100e-6, launch_s=500e-6)
    parts, _ = taken_apart(program, place=lambda batch: program.clock.sleep(0.005))
    assert parts["host"] - plain["host"] == pytest.approx(0.005, abs=0.0005)
    paused, _ = taken_apart(ScriptedGpu(kernel_s=100e-6, launch_s=500e-6, pause_s=0.004))
    assert paused["launch_gaps"] - plain["launch_gaps"] == pytest.approx(0.004, rel=0.1)
    slow = ScriptedGpu(kernel_s=500e-6, launch_s=10e-6)
    stalled, _ = taken_apart(slow, take=Ahead(slow.clock, 0.03))
    assert stalled["input_stall"] == pytest.approx(0.02, rel=0.1)
    assert stalled["compute"] == pytest.approx(0.01)


def test_a_profiler_that_sees_no_device_gives_no_parts_and_a_warning():
    program = ScriptedGpu(kernel_s=100e-6, launch_s=10e-6)
    seen = program.profile
    program.profile = lambda run, **how: (seen(run, **how), lambda: Profile(events=()))[1]
    parts, log = taken_apart(program)
    assert parts == {}
    (warning,) = log.warnings
    assert warning.code == "unattributed"
    assert warning.code == "unattributed"
