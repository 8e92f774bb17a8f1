"""A small machine, quick specs of the null framework, and a look at what is left of workers."""

import dataclasses
import os
import time
from pathlib import Path

import pytest

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

MACHINE = Machine(
    hostname="small",
    cpu=Cpu(model="test", usable_cores=2),
    memory=Memory(),
    software=Software(python="3", system="Linux", packages={"numpy": "2.0", "torch": "2.13"}),
)


@pytest.fixture
def machine():
    return MACHINE


@pytest.fixture(scope="session")
def small_machine():
    return MACHINE


@pytest.fixture(scope="session")
def null_spec():
    """A run of the null framework that plays `script`; fields of work and effort by name."""

    def make(script="", *, framework="null", **fields):
        of_effort = {f.name for f in dataclasses.fields(Budget)}
        budget = {"steps": 20, "seconds": 0.0, "windows": 4, "warmup_seconds": 0.0}
        budget |= {k: v for k, v in fields.items() if k in of_effort}
        work = {"network": "little-cnn", "batch_per_device": 8}
        work |= {k: v for k, v in fields.items() if k not in of_effort}
        return RunSpec(
            work=TrainSteps(**work),
            program=ProgramSettings(framework=framework, script=script or None),
            budget=Budget(**budget),
        )

    return make


def processes_of(runs_folder):
    """(pid, name) of every living server and worker of runners below a folder."""
    mark = f"{RUNS_FOLDER_VARIABLE}={runs_folder}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            environ = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            name = (folder / "comm").read_text().strip()
        except OSError:  # gone meanwhile
            continue
        if mark in environ and state != "Z":
            found.append((int(folder.name), name))
    return found


@pytest.fixture(scope="session")
def living():
    """The processes that belong to a runs folder."""
    return processes_of


@pytest.fixture(scope="session")
def nobody_left():
    """Whether every process of a runs folder is gone within five seconds."""

    def look(runs_folder):
        deadline = time.monotonic() + 5
        while processes_of(runs_folder):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    return look


@pytest.fixture(scope="session")
def worker_of(living):
    """The process id of the one worker of a runs folder."""

    def look(runs_folder):
        (pid,) = [pid for pid, name in living(runs_folder) if name == "cubemesh-worker"]
        assert pid != os.getpid()
        return pid

    return look
