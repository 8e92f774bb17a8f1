"""Ctrl-C and kill -9 of the runner at any moment: no stored record is lost, every process ends, and
the same command continues from there."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from cubemesh.store import Store

# What one `cubemesh run` does, without the command line: many short runs in real time.
SUITE = """
import sys
from pathlib import Path
from cubemesh.schema import *
from cubemesh.store import Store
from cubemesh.runs import Executor

MACHINE = Machine(
    hostname="small",
    cpu=Cpu(model="test", usable_cores=2),
    memory=Memory(),
    software=Software(python="3", system="Linux", packages={"numpy": "2.0"}),
)

def specs(count, step_s):
    budget = Budget(steps=4, seconds=0.0, windows=2, warmup_seconds=0.0)
    program = ProgramSettings(framework="null", script=f"real=1,step={step_s}")
    works = [TrainSteps(network="little-cnn", batch_per_device=8, seed=n) for n in range(count)]
    return [RunSpec(work=work, program=program, budget=budget) for work in works]

def suite(folder, count, step_s, observer=None):
    with (
        Store.open(str(folder / "results.db")) as store,
        Executor(
            store, machine=MACHINE, observer=observer, runs_folder=folder / "runs", wait_s=60.0
        ) as executor,
    ):
        return executor.run(specs(count, step_s))
"""

KILLED = 12

# Each runner is forked from a process that has imported everything, so that all take seconds.
# Every other is killed at a moment between its start and its first record, the rest somewhere in
# the four runs that follow. A runner writes a byte for each stored record.
KILLS = """
import os, random, select, signal, time
from cubemesh.runs import Silent

class Counting(Silent):
    def finish(self, record, *, reused):
        if not reused:
            os.write(stored, b".")

folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
moments = random.Random(seed)
first_record_s = 1.0
for round in range(kills):
    counter, stored = os.pipe()
    start = time.monotonic()
    runner = os.fork()
    if runner == 0:
        suite(folder, 2000, 0.004, Counting())
        os._exit(0)
    os.close(stored)
    if round % 2:
        select.select([counter], [], [], moments.uniform(0.0, first_record_s))
    else:
        for _ in range(moments.randint(1, 4)):
            assert os.read(counter, 1), "the runner ended by itself"
            first_record_s = min(first_record_s, time.monotonic() - start)
        time.sleep(moments.uniform(0.0, 0.08))
    os.kill(runner, signal.SIGKILL)
    os.waitpid(runner, 0)
    os.close(counter)
    print(json.dumps({"killed": runner}), flush=True)
    sys.stdin.readline()  # until the test has counted the processes left
"""

# A runner that stops in the measurement after `stops_after` records, until a signal ends it.
INTERRUPTED = """
import signal
from cubemesh.runs import Silent

folder, stops_after = Path(sys.argv[1]), int(sys.argv[2])

class Stopping(Silent):
    stored = 0
    def finish(self, record, *, reused):
        self.stored += 1
        print(json.dumps({"reused": reused}), flush=True)
    def progress(self, progress):
        if self.stored == stops_after and progress.phase == "measure":
            print(json.dumps("measuring"), flush=True)
            signal.pause()

try:
    suite(folder, 5, 0.02, Stopping())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def script(tmp_path):
    """Starts a script that can call `suite`; kills it at the end."""
    started = []

    def start(text, *arguments):
        path = tmp_path / "suite.py"
        path.write_text("import json\n" + textwrap.dedent(SUITE) + textwrap.dedent(text))
        process = subprocess.Popen(
            [sys.executable, str(path), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def stored(folder):
    """Every record of a store that is whole, by its spec."""
    with sqlite3.connect(folder / "results.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()
    with Store.open(str(folder / "results.db")) as store:
        return {r.key.spec_id: r for r in store.records()}, len(store.records())


def test_kills_at_random_moments(script, tmp_path, no_processes_left):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    process = script(KILLS, tmp_path, KILLED, seed)
    rounds = 0
    for line in process.stdout:
        assert "killed" in json.loads(line)
        rounds += 1
        assert no_processes_left(tmp_path / "runs"), f"after kill {rounds}"
        process.stdin.write("\n")
    assert (process.wait(), rounds) == (0, KILLED), process.stderr.read()
    by_spec, count = stored(tmp_path)
    assert count == len(by_spec), "a finished run was run again"
    assert count >= KILLED // 2
    assert {r.outcome.status.value for r in by_spec.values()} == {"ok"}
    assert {r.attempt for r in by_spec.values()} == {1}
    assert sorted(r.spec.work.seed for r in by_spec.values()) == list(range(count))
    # Each start has removed the folder of the runner killed before.
    assert len([p for p in (tmp_path / "runs").iterdir() if p.is_dir()]) <= 1


def test_after_ctrl_c_the_same_command_continues(script, tmp_path, no_processes_left):
    first = script(INTERRUPTED, tmp_path, 2)
    assert [json.loads(first.stdout.readline()) for _ in range(3)][-1] == "measuring"
    first.send_signal(signal.SIGINT)
    assert first.wait() == 130, first.stderr.read()
    assert no_processes_left(tmp_path / "runs")
    assert list((tmp_path / "runs").glob("*/")) == []
    before, count = stored(tmp_path)
    assert count == 2
    second = script(INTERRUPTED, tmp_path, 5)
    output, errors = second.communicate()
    assert second.returncode == 0, errors
    reused = [json.loads(line)["reused"] for line in output.splitlines()]
    assert reused == [True, True, False, False, False]
    assert stored(tmp_path)[0].items() >= before.items()


def test_the_workers_of_a_terminated_runner_end(script, tmp_path, no_processes_left, processes_of):
    process = script(INTERRUPTED, tmp_path, 0)
    assert json.loads(process.stdout.readline()) == "measuring"
    assert processes_of(tmp_path / "runs")  # the server, and the worker unless it is done
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert no_processes_left(tmp_path / "runs")
