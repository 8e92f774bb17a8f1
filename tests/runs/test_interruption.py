"""Ctrl-C and kill -9 of the runner, at any moment: nothing stored is lost, nobody is left alive,
and the same command goes on from there."""

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
    effort = Budget(steps=4, seconds=0.0, windows=2, warmup_seconds=0.0)
    program = ProgramSettings(framework="null", script=f"real=1,step={step_s}")
    works = [TrainSteps(network="little-cnn", batch_per_device=8, seed=n) for n in range(count)]
    return [RunSpec(work=work, program=program, budget=effort) for work in works]

def suite(folder, count, step_s, observer=None):
    with (
        Store.open(str(folder / "results.db")) as store,
        Executor(
            store, machine=MACHINE, observer=observer, runs_folder=folder / "runs", wait_s=10.0
        ) as executor,
    ):
        return executor.run(specs(count, step_s))
"""

# Each runner is forked from a process that has imported everything, so that fifty take seconds.
# Every other is killed at a moment between its start and its first record, the rest somewhere in
# the four runs that follow. A runner says a byte as each record is stored.
KILLS = """
import os, random, select, signal, time
from cubemesh.runs import Silent

class Saying(Silent):
    def finish(self, record, *, reused):
        if not reused:
            os.write(say, b".")

folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
moments = random.Random(seed)
first_record_s = 1.0
for round in range(kills):
    hear, say = os.pipe()
    start = time.monotonic()
    runner = os.fork()
    if runner == 0:
        suite(folder, 2000, 0.004, Saying())
        os._exit(0)
    os.close(say)
    if round % 2:
        select.select([hear], [], [], moments.uniform(0.0, first_record_s))
    else:
        for _ in range(moments.randint(1, 4)):
            assert os.read(hear, 1), "the runner ended by itself"
            first_record_s = min(first_record_s, time.monotonic() - start)
        time.sleep(moments.uniform(0.0, 0.08))
    os.kill(runner, signal.SIGKILL)
    os.waitpid(runner, 0)
    os.close(hear)
    print(json.dumps({"killed": runner}), flush=True)
    sys.stdin.readline()  # until somebody has looked whether anybody is left
"""

INTERRUPTED = """
from cubemesh.runs import Silent

class Saying(Silent):
    def finish(self, record, *, reused):
        print(json.dumps({"reused": reused, "run": record.run_id}), flush=True)
    def progress(self, progress):
        print(json.dumps({"phase": progress.phase}), flush=True)

try:
    suite(Path(sys.argv[1]), int(sys.argv[2]), 0.02, Saying())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def script(tmp_path):
    """Starts a script that knows `suite`; kills what is left of it at the end."""
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


@pytest.mark.timeout(300)
def test_fifty_kills_at_random_moments(script, tmp_path, nobody_left):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    process = script(KILLS, tmp_path, 50, seed)
    rounds = 0
    for line in process.stdout:
        assert "killed" in json.loads(line)
        rounds += 1
        assert nobody_left(tmp_path / "runs"), f"after kill {rounds}"
        process.stdin.write("\n")
    assert (process.wait(), rounds) == (0, 50), process.stderr.read()
    by_spec, count = stored(tmp_path)
    assert count == len(by_spec), "a finished run was run again"
    assert count >= 25
    assert {r.outcome.status.value for r in by_spec.values()} == {"ok"}
    assert {r.attempt for r in by_spec.values()} == {1}
    assert sorted(r.spec.work.seed for r in by_spec.values()) == list(range(count))
    # The next start has removed what the killed ones left, all but the very last.
    assert len([p for p in (tmp_path / "runs").iterdir() if p.is_dir()]) <= 1


def test_ctrl_c_stops_at_once_and_the_same_command_goes_on(script, tmp_path, nobody_left):
    first = script(INTERRUPTED, tmp_path, 5)
    finished = 0
    for line in first.stdout:
        said = json.loads(line)
        finished += "run" in said
        if finished == 2 and said.get("phase") == "measure":
            break
    first.send_signal(signal.SIGINT)
    assert first.wait(timeout=60) == 130, first.stderr.read()
    assert nobody_left(tmp_path / "runs")
    assert list((tmp_path / "runs").glob("*/")) == []
    before, count = stored(tmp_path)
    assert count == 2
    second = script(INTERRUPTED, tmp_path, 5)
    output, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    said = [json.loads(line) for line in output.splitlines()]
    assert [s["reused"] for s in said if "run" in s] == [True, True, False, False, False]
    assert stored(tmp_path)[0].items() >= before.items()


def test_a_runner_that_is_terminated_leaves_nobody(script, tmp_path, nobody_left, living):
    process = script(INTERRUPTED, tmp_path, 5)
    for line in process.stdout:
        if json.loads(line).get("phase") == "measure":
            break
    assert living(tmp_path / "runs")  # the server, and a worker unless it is between two runs
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    assert nobody_left(tmp_path / "runs")
