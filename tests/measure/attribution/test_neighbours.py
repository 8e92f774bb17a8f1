"""What real neighbours on one processor take from a real step. Steps last a given CPU time, and all
that is compared is counted in CPU time or in run-queue delay: another load on the machine adds to
the delay and takes nothing from it, and a hypervisor's steal adds to each."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from cubemesh.measure.attribution.contention import CompetitionReader
from cubemesh.measure.attribution.profile_windows import StepProfiler
from cubemesh.measure.telemetry.run_queue import OwnThread
from cubemesh.measure.timing.step_timestamps import StampedSteps
from cubemesh.measure.timing.timer import measure
from cubemesh.schema import Budget, Profile, ProfileEvent
from in_memory_log import InMemoryLog
from script_server import run_script

COMPUTE_S, GAP_S = 0.004, 0.001
NEIGHBOURS = 3
MOST_MISTAKEN = 0.5
"""Of what others take, the most that may be called the step's own. A hypervisor that takes the
processor away lengthens both alike."""
BUSY = "import os; os.sched_setaffinity(0, {%d}); print(flush=True)\nwhile True: pass"

pytestmark = pytest.mark.skipif(
    not OwnThread().counts_delay, reason="this kernel counts no run-queue delay"
)


def spend(seconds):
    """Use the processor for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Spinning:
    """A program on the host: an operator of `COMPUTE_S` and a gap of `GAP_S` of CPU time."""

    device = "cpu"
    clock = staticmethod(time.perf_counter)

    def __init__(self):
        self.events = []

    def step(self, placed):
        start = self.clock()
        spend(COMPUTE_S)
        self.events.append(
            ProfileEvent(
                name="aten::mm",
                kind="operator",
                start_s=start,
                duration_s=self.clock() - start,
            )
        )
        spend(GAP_S)

    def profile(self, run, *, layers=False, trace=None):
        self.events = []
        run()
        profile = Profile(events=tuple(self.events))
        return lambda: profile

    def synchronize(self):
        pass


def attributed():
    program, log = Spinning(), InMemoryLog()
    steps = StampedSteps(
        take=lambda: None,
        place=lambda batch: batch,
        queue=program.step,
        clock=program.clock,
        thread=OwnThread().read,
        compete=CompetitionReader(1, fed=True).read,
    )
    profiler = StepProfiler(program=program, steps=steps, samples_per_step=1, log=log)
    measure(
        steps,
        program.synchronize,
        program.clock,
        samples_per_step=1,
        budget=Budget(steps=12, seconds=0.1, windows=6, warmup_seconds=0.05),
        log=log,
        after_window=profiler.after_window,
    )
    profiler.finish()
    return {part.name: part.seconds for part in log.parts}


def attributed_in_a_process_of_its_own():
    """The same where no thread of another test computes."""
    return json.loads(run_script(__file__))


@contextmanager
def on_one_processor():
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        yield min(processors)
    finally:
        os.sched_setaffinity(0, processors)


@contextmanager
def neighbours(core):
    """Other programs that never stop computing there."""
    started = [
        subprocess.Popen([sys.executable, "-c", BUSY % core], stdout=subprocess.PIPE)
        for _ in range(NEIGHBOURS)
    ]
    try:
        for process in started:
            process.stdout.readline()
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


@contextmanager
def decoders():
    """Threads of this process that compute and never ask for the interpreter lock meanwhile: they
    spin on a lock of the C library."""
    library, lock = ctypes.CDLL(None), ctypes.byref(ctypes.c_int())
    library.pthread_spin_init(lock, 0)
    library.pthread_spin_lock(lock)

    def decode():
        library.pthread_spin_lock(lock)
        library.pthread_spin_unlock(lock)

    threads = [threading.Thread(target=decode) for _ in range(NEIGHBOURS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        library.pthread_spin_unlock(lock)
        for thread in threads:
            thread.join()


def test_what_neighbours_take_is_contention_and_no_compute():
    with on_one_processor() as core, neighbours(core):
        found = attributed_in_a_process_of_its_own()
    own, taken = found["compute"] + found["launch_gaps"], found["cpu_contention"]
    assert found["compute"] > 0.75 * COMPUTE_S
    assert found["launch_gaps"] > 0.5 * GAP_S
    assert taken > COMPUTE_S + GAP_S
    assert own < COMPUTE_S + GAP_S + MOST_MISTAKEN * taken
    assert "input_contention" not in found, "no other thread computes"
    assert abs(found["unattributed"]) < 0.1 * sum(found.values())


def test_what_decoders_take_is_input_contention():
    with on_one_processor(), decoders():
        found = attributed()
    assert (taken := found["input_contention"]) > COMPUTE_S
    assert found["compute"] < COMPUTE_S + MOST_MISTAKEN * taken


if __name__ == "__main__":
    print(json.dumps(attributed()))
