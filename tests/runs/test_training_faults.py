"""Trainings on two devices, each a core, through real faults: a rank that is killed, one that is
stopped, a disk that is full. What comes of them is held against a training that nobody
disturbed."""

import contextlib
import errno
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.runner import run_experiment
from cubemesh.experiments.train.experiment import EXPERIMENT
from cubemesh.runs import Executor, Silent
from cubemesh.schema import Status
from cubemesh.store import Store
from cubemesh.training.checkpoint import load, steps_in

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
)
SETTINGS = {
    "networks": "little-cnn",
    "image_size": "8",
    "batch_per_device": "64",
    "data": "digits",
    "epochs": "5",
    "optimizer": "adam",
    "learning_rate": "0.001",
    "device": "cpu",
    "devices": "2",
    "threads": "1",
    "checkpoint_every": "7",
    "keep": "9",
}
STEPS = 5 * (1438 // 128)
DISK_BYTES = 6_000_000
"""Room for one checkpoint of two files of 2.4 MB, and for no third file."""


class Saboteur(Silent):
    """Sends a signal to the rank on one core once rank 0 has measured, in the first run only."""

    def __init__(self, workers):
        self.workers, self.number, self.core = workers, None, 0

    def arm(self, number, core):
        self.number, self.core = number, core

    def progress(self, progress):
        if self.number is None or progress.phase != "measure" or progress.steps < 8:
            return
        number, self.number = self.number, None
        (pid,) = [p for p in self.workers() if os.sched_getaffinity(p) == {self.core}]
        os.kill(pid, number)


@contextlib.contextmanager
def small_disk(folder, size):
    """A real file system of `size` bytes at `folder`; whether it could be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "cubemesh-test", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_machine, living, nobody_left):
    """The records of each training, by what was done to it, of one executor."""
    folder = tmp_path_factory.mktemp("faults")
    runs = folder / "runs"

    def workers():
        return [pid for pid, name in living(runs) if name == "cubemesh-worker"]

    saboteur = Saboteur(workers)
    found = {"folder": folder, "random": random.Random().randrange(2)}
    cores = sorted(os.sched_getaffinity(0))
    deeds = {
        "undisturbed": (None, 0, {}),
        "killed": (signal.SIGKILL, cores[found["random"]], {}),
        "stopped": (signal.SIGSTOP, cores[1], {"heartbeat_timeout_s": "3", "restarts": "0"}),
        "full": (None, 0, {"epochs": "2"}),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # no other runner's lock is in the way
        with (
            small_disk(folder / "full", DISK_BYTES) as mounted,
            Store.open(str(folder / "results.db")) as store,
            Executor(store, machine=small_machine, runs_folder=runs, observer=saboteur) as executor,
        ):
            for name, (number, core, more) in deeds.items():
                saboteur.arm(number, core)
                asked = request(EXPERIMENT, SETTINGS | more | {"checkpoints": str(folder / name)})
                context = Context(machine=small_machine)
                found[name] = run_experiment(EXPERIMENT, asked, context, executor, store)
                assert workers() == [], "every rank is gone when the run is"
            whole = steps_in(folder / "full", 2)
            found["mounted"], found["on disk"] = mounted, whole
            for step in whole if mounted else ():
                for rank in range(2):
                    load(folder / "full", step, rank)
        assert nobody_left(runs)
    return found


def final(trained, name, rank):
    found = load(Path(trained["folder"], name), STEPS, rank).snapshot
    return {n: a.tobytes() for n, a in {**found.weights, **found.arrays}.items()}


def test_a_killed_rank_is_named_and_the_training_resumes(trained):
    killed, resumed = trained["killed"].records
    rank = trained["random"]
    assert killed.outcome.status is Status.KILLED
    assert killed.outcome.facts["rank"] == rank
    assert resumed.ok, resumed.outcome
    assert 7 <= resumed.figure("resumed_at_step") < STEPS
    assert resumed.figure("resumed_at_step") % 7 == 0
    (restart,) = (f for f in trained["killed"].answer.findings if f.code == "restart")
    assert f"rank {rank} of 2" in restart.text
    assert restart.value == resumed.figure("resumed_at_step")


def test_its_weights_are_those_of_a_training_that_nobody_disturbed(trained):
    (undisturbed,) = trained["undisturbed"].records
    assert undisturbed.ok, undisturbed.outcome
    for rank in range(2):
        assert final(trained, "killed", rank) == final(trained, "undisturbed", rank)
    resumed = trained["killed"].records[-1]
    for name in ("validation_loss", "validation_accuracy", "training_loss"):
        (one,) = [c for c in undisturbed.curves if c.name == name]
        (other,) = [c for c in resumed.curves if c.name == name]
        assert (
            dict(zip(one.x, one.y, strict=True)).items()
            <= dict(zip(other.x, other.y, strict=True)).items()
        )
    assert steps_in(Path(trained["folder"], "killed"), 2) == [*range(7, STEPS, 7), STEPS]


def test_a_stopped_rank_is_named_with_the_stacks_of_the_other(trained):
    (record,) = trained["stopped"].records
    outcome = record.outcome
    assert outcome.status is Status.TIMED_OUT, outcome
    assert outcome.facts["rank"] == 1
    assert outcome.facts["heartbeat_timeout_s"] >= 3
    assert "most recent call first" in outcome.facts["stacks_of_others"]["0"]
    assert [r.outcome.facts.get("ended_with") for r in record.ranks] == [[1], None]
    assert record.measured, "what was measured before is kept"
    assert steps_in(Path(trained["folder"], "stopped"), 2), "so are the checkpoints"


def test_a_full_disk_ends_no_training_and_what_was_kept_is_whole(trained):
    if not trained["mounted"]:
        pytest.skip("mounting a file system is not permitted here")
    (record,) = trained["full"].records
    assert record.ok, record.outcome
    assert record.figure("epochs_trained") == 2
    failed = [w for w in record.warnings if w.code == "checkpoint-failed"]
    assert failed
    assert os.strerror(errno.ENOSPC) in failed[0].cause
    assert "newest: step 7" in failed[0].cause
    assert trained["on disk"] == [7]
