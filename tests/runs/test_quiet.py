"""Load by other programs before a measurement: a real busy program, and scripted samples."""

import json
import subprocess
import sys

import pytest

from cubemesh.measure.validity import BUSY_SHARE
from cubemesh.runs.progress import Silent
from cubemesh.runs.quiet import SAMPLE_S, ForeignLoad, check_quiet, foreign_load

QUIET = ForeignLoad(cpu_share=0.0)
BUSY = ForeignLoad(cpu_share=0.45, gpus=(0,))

ON_ONE_CORE = """
import json, os, signal, subprocess, sys, time
from cubemesh.runs.quiet import foreign_load

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
spin = "while True: pass"
start = f"'{sys.executable}' -c '{spin}' >/dev/null 2>&1 & echo $!"


def cpu_ticks(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def used(pid, ticks):
    until = cpu_ticks(pid) + ticks
    while cpu_ticks(pid) < until:
        time.sleep(0.01)


# The shell ends at once: its program then belongs to another process tree than this one.
other = int(subprocess.run(["sh", "-c", start], capture_output=True, text=True).stdout)
try:
    used(other, 1)
    load = foreign_load((), sleep=lambda seconds: used(other, os.sysconf("SC_CLK_TCK") // 2))
finally:
    os.kill(other, signal.SIGKILL)
print(json.dumps([load.quiet, load.text, load.cpu_share]))
"""


def test_a_busy_program_of_another_process_tree_is_seen():
    """Measured until it has used half a second of its core's time."""
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE], capture_output=True, text=True, check=True
    )
    quiet, text, share = json.loads(done.stdout)
    assert not quiet
    assert share > BUSY_SHARE
    assert f"{100 * share:.0f} % of the processors" in text


class Counters:
    """Scripted readings of a machine of four cores."""

    cores = host_cores = 4

    def __init__(self, *readings):
        from cubemesh.measure.telemetry.host import Reading

        self._left = [
            Reading(time_s=t, tree_cpu_s=own, resident_bytes=0, cores_busy_s=busy, host_busy_s=busy)
            for t, own, busy in readings
        ]

    def read(self):
        return self._left.pop(0)


@pytest.mark.parametrize(
    ("last", "share"),
    [
        ((1.0, 0.0, 2.0), 0.5),  # two of four cores
        ((1.0, 2.0, 2.0), 0.0),  # by this process
        ((2.0, 1.0, 1.4), 0.05),  # a twentieth is still quiet
    ],
)
def test_the_share_is_that_of_others_in_the_cores_of_this_process(last, share):
    slept = []
    load = foreign_load((), reader=Counters((0.0, 0.0, 0.0), last), sleep=slept.append)
    assert load.cpu_share == pytest.approx(share)
    assert load.quiet == (share <= BUSY_SHARE)
    assert slept == [SAMPLE_S]


class Heard(Silent):
    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


def checked(*loads, wait_s):
    """The load, the messages and the number of samples; each takes a second."""
    left, now, heard = list(loads), [0.0], Heard()

    def sample(gpus):
        now[0] += 1
        return left.pop(0)

    load = check_quiet((), heard, wait_s=wait_s, sample=sample, clock=lambda: now[0])
    return load, heard.texts, len(loads) - len(left)


def test_a_quiet_machine_is_not_mentioned():
    assert checked(QUIET, wait_s=0) == (QUIET, [], 1)
    assert checked(QUIET, wait_s=600) == (QUIET, [], 1)


def test_without_waiting_there_is_one_sample_and_a_remedy():
    load, (text,), samples = checked(BUSY, QUIET, wait_s=0)
    assert (load, samples) == (BUSY, 1)
    assert all(words in text for words in (BUSY.text, "--wait-quiet"))


def test_it_waits_until_the_machine_is_quiet():
    load, (text,), samples = checked(BUSY, BUSY, QUIET, BUSY, wait_s=600)
    assert (load, samples) == (QUIET, 3)
    assert all(words in text for words in (BUSY.text, "10 min"))


def test_it_waits_no_longer_than_given():
    load, texts, samples = checked(*[BUSY] * 9, wait_s=5)
    assert (load, samples) == (BUSY, 5)
    assert len(texts) == 2
    assert "--wait-quiet" not in texts[-1]


def test_the_load_as_a_sentence():
    assert BUSY.text == "Other programs use 45 % of the processors and GPU 0."
    assert ForeignLoad(cpu_share=0.0, gpus=(1, 3)).text.count("GPU") == 2
    assert not ForeignLoad(cpu_share=0.0, gpus=(1,)).quiet
