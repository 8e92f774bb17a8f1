"""Run-queue delay of real threads, which the kernel counts."""

import os
import subprocess
import sys
import threading
import time

import pytest

from cubemesh.measure.telemetry.run_queue import OwnThread, ThreadTime, threads_of_process

needs_counters = pytest.mark.skipif(
    not OwnThread().counts_delay, reason="this kernel counts no run-queue delay"
)
BUSY = "import os; os.sched_setaffinity(0, {%d}); print(flush=True)\nwhile True: pass"


def computed(seconds):
    """The counters of this thread over `seconds` of its own CPU time."""
    own = OwnThread()
    before = own.read()
    while own.read().ran_s - before.ran_s < seconds:
        pass
    return ThreadTime(*(b - a for a, b in zip(before, own.read(), strict=True)))


@needs_counters
def test_a_neighbour_on_the_same_processor_delays_a_thread():
    """Three neighbours on one processor take three of four parts of it: while the thread computes
    for a tenth of a second, it waits longer than that."""
    processors = os.sched_getaffinity(0)
    core = min(processors)
    neighbours = []
    try:
        os.sched_setaffinity(0, {core})
        for _ in range(3):
            neighbours.append(
                subprocess.Popen([sys.executable, "-c", BUSY % core], stdout=subprocess.PIPE)
            )
            neighbours[-1].stdout.readline()
        found = computed(0.1)
    finally:
        os.sched_setaffinity(0, processors)
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.communicate()
    assert found.delayed_s > found.ran_s


@needs_counters
def test_every_thread_of_the_process_has_counters():
    ended, began = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (began.set(), ended.wait()))
    thread.start()
    began.wait()
    found = threads_of_process()
    ended.set()
    thread.join()
    assert {threading.get_native_id(), thread.native_id} <= set(found)
    assert all(t.ran_s >= 0 and t.delayed_s >= 0 for t in found.values())


def test_a_kernel_without_these_counters_gives_cpu_time_alone(tmp_path):
    own = OwnThread(str(tmp_path / "schedstat"))
    assert not own.counts_delay
    before = own.read()
    while time.thread_time() == before.ran_s:
        pass
    assert own.read().ran_s > before.ran_s
    assert own.read().delayed_s == 0.0
    assert threads_of_process(str(tmp_path / "task")) == {}


def test_threads_that_end_or_do_not_count_are_left_out(tmp_path):
    for number, text in (("7", "1500000000 250000000 3\n"), ("8", "")):
        (tmp_path / number).mkdir()
        (tmp_path / number / "schedstat").write_text(text)
    (tmp_path / "9").mkdir()
    assert threads_of_process(str(tmp_path)) == {7: ThreadTime(1.5, 0.25)}
