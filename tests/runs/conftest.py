"""A small machine, short specs of the null framework, and the processes of a runner."""

import dataclasses
from pathlib import Path

import pytest

from cubemesh.runs.forkserver_client import Forkserver
from cubemesh.schema import (
    Budget,
    Cpu,
    Machine,
    Memory,
    ProgramSettings,
    RunSpec,
    Software,
    TrainSteps,
)
from cubemesh.worker.run.job_file import RUNS_FOLDER_VARIABLE
from patience import wait_until

MACHINE = Machine(
    hostname="small",
    cpu=Cpu(model="test", usable_cores=2),
    memory=Memory(),
    software=Software(python="3", system="Linux", packages={"numpy": "2.0", "torch": "2.13"}),
)


@pytest.fixture(scope="module", autouse=True)
def _forked(forked_servers):
    """Servers of all executors are forks of a process that has imported their framework."""


@pytest.fixture
def machine():
    return MACHINE


@pytest.fixture(scope="session")
def small_machine():
    return MACHINE


@pytest.fixture(scope="session")
def null_spec():
    """A run of the null framework with `script`; fields of work and budget by name."""

    def make(script="", *, framework="null", **fields):
        of_budget = {f.name for f in dataclasses.fields(Budget)}
        budget = {"steps": 20, "seconds": 0.0, "windows": 4, "warmup_seconds": 0.0}
        budget |= {k: v for k, v in fields.items() if k in of_budget}
        work = {"network": "little-cnn", "batch_per_device": 8}
        work |= {k: v for k, v in fields.items() if k not in of_budget}
        return RunSpec(
            work=TrainSteps(**work),
            program=ProgramSettings(framework=framework, script=script or None),
            budget=Budget(**budget),
        )

    return make


class KeptServer(Forkserver):
    """A forkserver of one executor after another: none of them ends it."""

    def close(self):
        pass

    def end(self):
        super().close()


@pytest.fixture(scope="session")
def _null_server(tmp_path_factory):
    server = KeptServer("null", tmp_path_factory.mktemp("null-server"))
    yield server
    server.end()


@pytest.fixture(scope="session")
def on_null_server(_null_server):
    """Gives an executor of the null framework a forkserver that runs already; its processes belong
    to a folder of their own, and have the environment of its start."""

    def give(executor):
        executor._servers["null", None] = _null_server
        return executor

    return give


def _processes_of(runs_folder):
    """(pid, name) of every server and worker that runs for a runner below a folder."""
    mark = f"{RUNS_FOLDER_VARIABLE}={runs_folder}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            environ = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            name = (folder / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        if mark in environ and state != "Z":
            found.append((int(folder.name), name))
    return found


@pytest.fixture(scope="session")
def processes_of():
    """The processes that belong to a runs folder."""
    return _processes_of


@pytest.fixture(scope="session")
def no_processes_left():
    """Whether every process of a runs folder has ended."""

    def ended(runs_folder):
        wait_until(lambda: not _processes_of(runs_folder), f"the processes of {runs_folder} end")
        return True

    return ended


@pytest.fixture(scope="session")
def worker_of():
    """The process id of the only worker of a runs folder."""

    def find(runs_folder):
        (pid,) = [pid for pid, name in _processes_of(runs_folder) if name == "cubemesh-worker"]
        return pid

    return find
