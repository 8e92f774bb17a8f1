"""Trainings on two devices, each a core, with real faults: a rank is killed, a rank is stopped, the
disk is full. They are compared with a training without faults.

A rank sends itself the signal when it has written its checkpoint of step 14, so the fault comes at
the same step on any machine."""

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
from cubemesh.runs import Executor
from cubemesh.schema import Status
from cubemesh.store import Store
from cubemesh.training.checkpoint import load, steps_in
from stopped_rank import watch_only
from training_faults import write_faults

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
)
SETTINGS = {
    "networks": "little-cnn",
    "image_size": "8",
    "batch_per_device": "64",
    "data": "synthetic",
    "epochs": "3",
    "optimizer": "adam",
    "learning_rate": "0.001",
    "device": "cpu",
    "devices": "2",
    "threads": "1",
    "checkpoint_every": "7",
    "keep": "9",
}
SUPPORT = Path(__file__).parents[1] / "support"
STEPS = 3 * (1024 // 128)
DISK_BYTES = 6_000_000
"""Room for one checkpoint of two files of 2.4 MB, and for no third file."""


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
def trained(tmp_path_factory, small_machine, processes_of, no_processes_left):
    """The answer of each training, by its fault, of one executor."""
    folder = tmp_path_factory.mktemp("faults")
    runs = folder / "runs"

    def workers():
        return [pid for pid, name in processes_of(runs) if name == "cubemesh-worker"]

    found = {"folder": folder, "random": random.Random().randrange(2)}
    faults = {
        "none": (None, 0, {}),
        "killed": (signal.SIGKILL, found["random"], {}),
        "stopped": (signal.SIGSTOP, 1, {"heartbeat_timeout_s": "2", "restarts": "0"}),
        "full": (None, 0, {"epochs": "2"}),
    }
    write_faults(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # locks of its own
        patch.setenv("PYTHONPATH", f"{folder}:{SUPPORT}:{os.environ.get('PYTHONPATH', '')}")
        watch_only(1, folder / "stopped-rank", patch.setattr)
        with (
            small_disk(folder / "full", DISK_BYTES) as mounted,
            Store.open(str(folder / "results.db")) as store,
            Executor(store, machine=small_machine, runs_folder=runs) as executor,
        ):
            for name, (number, rank, more) in faults.items():
                if number is not None:
                    (folder / f"signal-of-rank-{rank}").write_text(str(int(number)))
                asked = request(EXPERIMENT, SETTINGS | more | {"checkpoints": str(folder / name)})
                context = Context(machine=small_machine)
                found[name] = run_experiment(EXPERIMENT, asked, context, executor, store)
                assert workers() == [], "every rank has ended when the run has"
            complete = list(steps_in(folder / "full"))
            found["mounted"], found["on disk"] = mounted, complete
            for step in complete if mounted else ():
                for rank in range(2):
                    load(folder / "full", step, rank, 2)
        assert no_processes_left(runs)
    return found


def final(trained, name, rank):
    found = load(Path(trained["folder"], name), STEPS, rank, 2).snapshot
    return {n: a.tobytes() for n, a in {**found.weights, **found.arrays}.items()}


def test_a_killed_rank_is_named_and_the_training_resumes(trained):
    killed, resumed = trained["killed"].records
    rank = trained["random"]
    assert killed.outcome.status is Status.KILLED
    assert killed.outcome.facts["rank"] == rank
    assert resumed.ok, resumed.outcome
    assert resumed.figure("resumed_at_step") in (7, 14)
    (restart,) = (f for f in trained["killed"].answer.findings if f.code == "restart")
    assert f"rank {rank} of 2" in restart.text
    assert restart.value == resumed.figure("resumed_at_step")


def test_its_weights_equal_those_of_a_training_without_faults(trained):
    (faultless,) = trained["none"].records
    assert faultless.ok, faultless.outcome
    for rank in range(2):
        assert final(trained, "killed", rank) == final(trained, "none", rank)
    resumed = trained["killed"].records[-1]
    for name in ("validation_loss", "validation_accuracy", "training_loss"):
        (one,) = [c for c in faultless.curves if c.name == name]
        (other,) = [c for c in resumed.curves if c.name == name]
        assert (
            dict(zip(one.x, one.y, strict=True)).items()
            <= dict(zip(other.x, other.y, strict=True)).items()
        )
    assert list(steps_in(Path(trained["folder"], "killed"))) == [*range(7, STEPS, 7), STEPS]


def test_a_stopped_rank_is_named_with_the_stacks_of_the_other(trained):
    (record,) = trained["stopped"].records
    outcome = record.outcome
    assert outcome.status is Status.TIMED_OUT, outcome
    assert outcome.facts["rank"] == 1
    assert outcome.facts["heartbeat_timeout_s"] >= 2
    assert "most recent call first" in outcome.facts["stacks_of_others"]["0"]
    assert [r.outcome.facts.get("ended_with") for r in record.ranks] == [[1], None]
    assert record.measured, "windows measured before are stored"
    assert steps_in(Path(trained["folder"], "stopped")), "checkpoints remain"


def test_a_full_disk_ends_no_training_and_stored_checkpoints_are_whole(trained):
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
