"""Trainings of each framework but PyTorch, in workers of their own, that are killed, or pause at a
checkpoint, and go on: they end with the bits of a training that never stopped. PyTorch's are in
test_training_faults.py and jobs/test_agent.py."""

import os
import random
import signal
from pathlib import Path

import pytest

from cubemesh.experiments.core.experiment import Context
from cubemesh.experiments.core.settings import request
from cubemesh.experiments.runner import run_experiment
from cubemesh.experiments.train.experiment import EXPERIMENT
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.runs import Executor
from cubemesh.runs.executor import RunPaused
from cubemesh.schema import Status
from cubemesh.store import Store
from cubemesh.training.checkpoint import load, steps_in
from training_faults import write_faults

INSTALLED = [
    name
    for name, entry in FRAMEWORKS.items()
    if entry.checkpoints and entry.installed and entry.requires != "torch"
]
SETTINGS = {
    "networks": "little-cnn",
    "image_size": "8",
    "batch_per_device": "64",
    "data": "digits",
    "epochs": "1",
    "optimizer": "adam",
    "learning_rate": "0.001",
    "schedule": "cosine",
    "warmup_epochs": "0.3",
    "device": "cpu",
    "threads": "1",
    "checkpoint_every": "7",
    "keep": "9",
}
STEPS = 1438 // 64
FAULT = 14


@pytest.fixture(params=INSTALLED)
def name(request):
    return request.param


def final(folder: Path) -> dict[str, bytes]:
    found = load(folder, STEPS, 0, 1).snapshot
    return {n: a.tobytes() for n, a in {**found.weights, **found.arrays}.items()}


def test_a_killed_and_a_paused_training_end_with_the_bits_of_an_uninterrupted_one(
    name, tmp_path, small_machine, monkeypatch
):
    write_faults(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    settings = SETTINGS | {"framework": name, "layout": FRAMEWORKS[name].layout}
    context = Context(machine=small_machine)

    def train(folder, fault=None, **more):
        if fault is not None:
            (tmp_path / "signal-of-rank-0").write_text(str(int(fault)))
        asked = request(EXPERIMENT, settings | {"checkpoints": str(tmp_path / folder)} | more)
        return run_experiment(EXPERIMENT, asked, context, executor, store).records

    with (
        Store.open(str(tmp_path / "results.db")) as store,
        Executor(
            store,
            machine=small_machine,
            runs_folder=tmp_path / "runs",
            pause_file=tmp_path / "pause",
        ) as executor,
    ):
        (through,) = train("through")
        assert through.ok, through.outcome
        killed, resumed = train("killed", random.Random().choice((signal.SIGKILL, signal.SIGTERM)))
        with pytest.raises(RunPaused):
            train("paused", 0)
        paused_at = list(steps_in(tmp_path / "paused"))
        (tmp_path / "pause").unlink()
        (continued,) = train("paused", resume="true")
    assert killed.outcome.status is Status.KILLED
    assert resumed.figure("resumed_at_step") in (FAULT - 7, FAULT)
    assert continued.figure("resumed_at_step") == paused_at[-1] >= FAULT
    for record in (resumed, continued):
        assert record.ok, record.outcome
        rates = next(c for c in record.curves if c.name == "learning_rate")
        assert len(set(rates.y)) > 1
    assert final(tmp_path / "killed") == final(tmp_path / "through")
    assert final(tmp_path / "paused") == final(tmp_path / "through")
