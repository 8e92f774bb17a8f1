"""A forkserver or an agent that is stopped by a real SIGSTOP: the run ends and names it, with the
stacks of the ranks."""

import dataclasses
import os
import signal
import stat
import subprocess

import psutil
import pytest

from cubemesh.runs import Executor, Silent, watch
from cubemesh.runs.stopped import EVERY_S, SUSPENDED_S, StoppedTime
from cubemesh.schema import Placement, ProgramSettings, Status
from cubemesh.store import Store
from patience import wait_until

STEP = "step=0.02,real=1"
LONG = {"seconds": 100_000.0, "windows": 100_000, "time_limit_s": 1e6, "heartbeat_timeout_s": 2.0}
STOPPING = """
import os, signal
from cubemesh.worker.launch import host_agent, multi_host_launcher, ssh

def stop(self, request, framework):
    os.kill(os.getpid(), signal.SIGSTOP)

host_agent.HostAgent._run = stop
multi_host_launcher.FIRST_EVENT_S = 2.0
ssh.CLOSE_S = 0.1
"""
"""The agent of a host stops itself when it has its job."""


def state(pid):
    return psutil.Process(pid).status()


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == psutil.STATUS_STOPPED)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "100000"])
    yield process
    process.kill()
    process.wait()


def test_the_time_for_which_a_process_is_stopped_is_counted(sleeper):
    now = [0.0]
    stopped = StoppedTime(sleeper.pid, clock=lambda: now[0])

    def pass_time(seconds):
        for _ in range(round(seconds / 0.25)):
            now[0] += 0.25
            stopped.seconds()
        return stopped.seconds()

    assert pass_time(5) == 0
    stop(sleeper.pid)
    assert pass_time(5) == pytest.approx(5, abs=EVERY_S)
    os.kill(sleeper.pid, signal.SIGCONT)
    wait_until(lambda: state(sleeper.pid) != psutil.STATUS_STOPPED)
    assert pass_time(5) == 0
    stop(sleeper.pid)
    assert pass_time(5) == pytest.approx(5, abs=EVERY_S)
    now[0] += 100 * SUSPENDED_S
    assert stopped.seconds() == 0, "this process was suspended meanwhile"
    assert pass_time(5) == pytest.approx(5, abs=EVERY_S)
    sleeper.kill()
    sleeper.wait()
    assert pass_time(5) == 0
    assert StoppedTime(sleeper.pid).seconds() == 0


class Stopper(Silent):
    """Stops a process, which `find` returns, in the first run when `phase` has begun."""

    def __init__(self, find, phase):
        self.find, self.phase = find, phase
        self.stopped, self.messages = [], []

    def start(self, spec):
        if self.phase is None:  # no server in the first run: it starts in it
            self._stop()

    def progress(self, progress):
        if progress.phase == self.phase and progress.steps:
            self._stop()

    def _stop(self):
        found = [] if self.stopped else self.find()
        for pid in found:
            stop(pid)
        self.stopped += found

    def message(self, text):
        self.messages.append(text)


@pytest.fixture
def run(tmp_path, small_machine, monkeypatch, processes_of, no_processes_left):
    """Runs specs while an observer stops a process; its records."""
    monkeypatch.setattr(watch, "STACKS_S", 60.0)  # a busy machine takes its time
    # Heartbeats depend on the machine's speed; that a process is stopped does not.
    monkeypatch.setattr(watch._Watcher, "silent", lambda self, most_s: {})
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runs = tmp_path / "runs"

    def servers():
        return [pid for pid, name in processes_of(runs) if name == "cubemesh-server"]

    def workers():
        return [pid for pid, name in processes_of(runs) if name == "cubemesh-worker"]

    def agents():
        """The workers that have started ranks."""
        return [pid for pid in workers() if psutil.Process(pid).children()]

    def go(kind, phase, specs):
        observer = Stopper({"server": servers, "worker": workers, "agent": agents}[kind], phase)
        with (
            Store.open(str(tmp_path / "r.db")) as store,
            Executor(store, machine=small_machine, runs_folder=runs, observer=observer) as executor,
        ):
            records = executor.run(specs)
        assert no_processes_left(runs)
        return records, observer

    return go


def test_a_stopped_server_is_named_with_the_stacks_of_its_worker(run, null_spec):
    specs = [null_spec(STEP, **LONG), null_spec()]
    (stopped, after), observer = run("server", "measure", specs)
    (pid,) = observer.stopped
    outcome = stopped.outcome
    assert (outcome.status, outcome.origin) == (Status.TIMED_OUT, "runner"), outcome
    assert outcome.message.startswith(f"the worker's server (process {pid}) was stopped (SIGSTOP")
    assert outcome.facts["heartbeat_timeout_s"] >= 2
    assert "most recent call first" in outcome.facts["stacks"]
    assert stopped.measured, "windows measured before are stored"
    assert any(f"process {pid}" in text for text in observer.messages)
    assert after.ok, "the next run has another server"


def test_a_stopped_worker_of_one_device_is_named(run, null_spec, monkeypatch):
    monkeypatch.setattr(watch, "STACKS_S", 0.1)  # it cannot write any
    (record,), observer = run("worker", "measure", [null_spec(STEP, **LONG)])
    (pid,) = observer.stopped
    assert record.outcome.status is Status.TIMED_OUT, record.outcome
    assert record.outcome.message.startswith(f"the worker (process {pid}) was stopped (SIGSTOP")


def test_a_server_that_is_stopped_before_it_forks_is_named(run, null_spec):
    first, second = null_spec(), null_spec(seed=7, heartbeat_timeout_s=2.0)
    (one, other), observer = run("server", None, [first, second])
    (pid,) = observer.stopped
    assert one.ok
    assert other.outcome.status is Status.TIMED_OUT, other.outcome
    assert f"the worker's server (process {pid}) was stopped" in other.outcome.message


def test_a_stopped_agent_is_named_with_the_stacks_of_all_ranks(run, null_spec):
    pytest.importorskip("torch")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two devices on a CPU are two cores")
    spec = dataclasses.replace(
        null_spec(**LONG),
        placement=Placement(device="cpu", devices=2, threads=1),
        program=ProgramSettings(framework="pytorch", sync="all-reduce"),
    )
    (record,), observer = run("agent", "measure", [spec])
    (pid,) = observer.stopped
    outcome = record.outcome
    assert outcome.status is Status.TIMED_OUT, outcome
    assert outcome.message.startswith(f"the agent of the ranks (process {pid}) was stopped")
    assert len(record.ranks) == 2
    for rank in record.ranks:
        assert "most recent call first" in rank.outcome.facts["stacks"]


def test_an_agent_of_a_host_that_is_stopped_before_its_ranks_begin_is_named(
    tmp_path, small_machine, monkeypatch, null_spec, no_processes_left
):
    pytest.importorskip("torch")
    script = tmp_path / "ssh"
    script.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "sitecustomize.py").write_text(STOPPING)
    monkeypatch.setenv("CUBEMESH_SSH", str(script))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    spec = dataclasses.replace(
        null_spec(**LONG),
        placement=Placement(device="cpu", devices=2, threads=1, hosts=("127.0.0.1", "localhost")),
        program=ProgramSettings(framework="pytorch", sync="all-reduce"),
    )
    with (
        Store.open(str(tmp_path / "r.db")) as store,
        Executor(store, machine=small_machine, runs_folder=tmp_path / "runs") as executor,
    ):
        (record,) = executor.run([spec])
    assert record.outcome.status is Status.CRASHED, record.outcome
    assert "did not reply within 2 s" in record.outcome.message
    assert "host 127.0.0.1" in record.outcome.message or "host localhost" in record.outcome.message
    assert no_processes_left(tmp_path / "runs")
