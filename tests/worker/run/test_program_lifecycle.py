"""Peak memory of a program, and warnings about it."""

import json
import os
import subprocess
import sys

import pytest

from cubemesh import networks
from cubemesh.frameworks import entry
from cubemesh.schema import ProgramSettings, RunSpec, TrainSteps
from cubemesh.worker.report.events import EventLog, read_events
from cubemesh.worker.run.program_lifecycle import ready_program
from cubemesh.worker.run.task import Task

pytest.importorskip("torch")

PEAKS = """
import json
import sys
from pathlib import Path

import numpy as np

from cubemesh.frameworks import entry
from cubemesh.batches import Batch
from cubemesh.schema import ProgramSettings, RunSpec, TrainSteps
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.worker.run.program_lifecycle import ready_program
from cubemesh.worker.run.task import Task
from cubemesh.worker.report.events import EventLog, read_events

BATCH = 64
net = NetworkBuilder("wide")
x = net.input("image", (3, 32, 32))
for _ in range(3):
    x = net.relu(net.conv(x, 32, kernel=3, padding=1))
net.classify(net.linear(net.flatten(net.max_pool(x, 8)), 10))
network = net.build()
batch = Batch(np.ones((BATCH, 3, 32, 32), np.float32), labels=np.zeros(BATCH, np.int64))
peaks = {}
for name in sys.argv[2:]:
    path = Path(sys.argv[1], name)
    spec = RunSpec(
        work=TrainSteps(network="wide", batch_per_device=BATCH),
        program=ProgramSettings(framework=name),
    )
    framework = entry(name).load()
    framework.preload()  # as the forkserver does
    log = EventLog(path, 0, 0.0)
    task = Task(spec=spec, framework=framework, device="cpu", threads=1, usable_cores=1, log=log)
    with ready_program(task, network, lambda: batch) as program:
        program.train_step(program.place(batch))
    logged = [e["figure"] for e in read_events(path) if e.get("name") == "peak_memory_bytes"]
    (peaks[name],) = (figure["value"] for figure in logged)
print(json.dumps(peaks))
"""


def test_memory_freed_by_compiling_does_not_reduce_the_peak(tmp_path):
    """The same network needs about as much whether a step is tried out before or not, and the
    second program in a process as much as the first."""
    names = ["pytorch", "pytorch-captured"]
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, str(tmp_path), *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    eager, captured = (json.loads(done.stdout)[name] for name in names)
    values_bytes = 4 * 64 * 32 * 32 * 32  # of one layer
    assert 3 * values_bytes < eager < 20 * values_bytes
    assert captured == pytest.approx(eager, rel=0.5)


def test_layers_in_another_precision_than_requested_are_a_warning(tmp_path, monkeypatch):
    framework = entry("null").load()
    spec = RunSpec(
        work=TrainSteps(network="little-cnn", batch_per_device=2),
        program=ProgramSettings(framework="null"),
    )
    network = networks.build("little-cnn")

    def warnings(name):
        path = tmp_path / name
        log = EventLog(path, 0, 0.0)
        task = Task(
            spec=spec, framework=framework, device="cpu", threads=1, usable_cores=1, log=log
        )
        with ready_program(task, network, lambda: None):
            pass
        logged = [e["warning"] for e in read_events(path) if "warning" in e]
        return [(warning["code"], warning["cause"]) for warning in logged]

    assert warnings("as-asked") == []
    message = "PyTorch computes lstm in fp16."
    monkeypatch.setattr(framework, "other_precision", lambda request: message, raising=False)
    assert warnings("otherwise") == [("precision-mismatch", message)]
