"""Trainings of one checkpoint folder after another, with real workers: another training is refused
and removes nothing, one that is resharded goes on, a killed one leaves the folder to the next."""

import os
import subprocess
import sys

import numpy as np
import pytest

from cubemesh.errors import BusyError, UsageError
from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.runner import run_experiment
from cubemesh.experiments.train.experiment import EXPERIMENT
from cubemesh.runs import Executor
from cubemesh.store import Store
from cubemesh.training.checkpoint import load, steps_in

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two devices on a CPU are two cores"
)
SETTINGS = {
    "networks": "little-cnn",
    "image_size": "8",
    "batch_per_device": "128",
    "data": "synthetic",
    "optimizer": "adam",
    "learning_rate": "0.001",
    "precision": "fp64",
    "deterministic": "true",
    "device": "cpu",
    "threads": "1",
    "keep": "9",
    "checkpoint_every": "epoch",
}
EACH = 1024 // 128
"""Steps of an epoch."""
TWO = {"devices": "2", "batch_per_device": "64"}
HOLD = """
import sys
from pathlib import Path
from cubemesh.training.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(lock.run, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory, small_machine):
    """Trains in a folder; the records."""
    folder = tmp_path_factory.mktemp("folder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # locks of its own
        with (
            Store.open(str(folder / "results.db")) as store,
            Executor(store, machine=small_machine, runs_folder=folder / "runs") as executor,
        ):

            def go(checkpoints, epochs, **more):
                texts = SETTINGS | {"checkpoints": str(checkpoints), "epochs": str(epochs)} | more
                asked, context = request(EXPERIMENT, texts), Context(machine=small_machine)
                return run_experiment(EXPERIMENT, asked, context, executor, store).records

            yield go


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def weights(folder, step, rank=0):
    return load(folder, step, rank, steps_in(folder)[step]).snapshot.weights


def test_another_training_is_refused_and_resharding_continues_to_the_same_weights(
    train, tmp_path, cubemesh
):
    through, parted = tmp_path / "through", tmp_path / "parted"
    (uninterrupted,) = train(through, 3)
    assert uninterrupted.ok, uninterrupted.outcome
    train(parted, 1)
    before = content(parted)
    for more in (TWO, TWO | {"resume": "true"}, {"resume": "true", "seed": "1"}, {}):
        with pytest.raises(UsageError):
            train(parted, 8, **more)
    words = ["train", SETTINGS["networks"], "--checkpoints", str(parted)]
    words += ["--resume", "--devices", "2"]
    assert cubemesh(*words, "--store", str(tmp_path / "r.db")).returncode == 2
    assert content(parted) == before

    (two,) = train(parted, 2, resume="true", reshard="true", **TWO)
    assert two.ok, two.outcome
    assert two.figure("resumed_at_step") == EACH
    assert steps_in(parted) == {EACH: 1, 2 * EACH: 2}
    (back,) = train(parted, 3, resume="true", reshard="true")
    assert back.ok, back.outcome
    assert back.figure("resumed_at_step") == 2 * EACH
    assert steps_in(parted) == {EACH: 1, 2 * EACH: 2, 3 * EACH: 1}
    for step in (1, 2, 3):
        one, other = weights(through, step * EACH), weights(parted, step * EACH)
        for name, array in one.items():
            np.testing.assert_allclose(array, other[name], rtol=1e-9, atol=1e-12, err_msg=name)
    assert back.figure("accuracy") == uninterrupted.figure("accuracy")


def test_a_second_training_is_refused_while_the_first_writes(train, tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        run = first.stdout.readline().strip()
        with pytest.raises(BusyError, match=run):
            train(folder, 1)
        first.kill()
    assert not steps_in(folder)


@pytest.mark.parametrize("settings", [{}, TWO], ids=["one-device", "two-devices"])
def test_a_worker_finds_the_folder_in_use_before_its_first_step(
    train, tmp_path, monkeypatch, settings
):
    """Two that begin at the same moment: the runner saw a free folder."""
    from cubemesh.experiments import runner

    folder = tmp_path / "checkpoints"
    folder.mkdir()
    monkeypatch.setattr(runner.manifest, "check", lambda spec: None)
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        run = first.stdout.readline().strip()
        with pytest.raises(BusyError, match=run):
            train(folder, 1, **settings)
        first.kill()
    assert [p.name for p in folder.iterdir()] == ["training.lock"]
