"""Peak memory of a program, and warnings about it."""

import json

import pytest

from cubemesh import networks
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.memory import forecast, recomputable_segments
from cubemesh.schema import Placement, ProgramSettings, RunSpec, TrainSteps
from cubemesh.worker.report.events import EventLog, read_events
from cubemesh.worker.run.program_lifecycle import _log_memory_forecast, ready_program
from cubemesh.worker.run.task import Task
from script_server import run_code

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
    found = json.loads(run_code(PEAKS, tmp_path, *names))
    eager, captured = (found[name] for name in names)
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


def recomputed(tmp_path, network, limit_bytes, asked="auto"):
    """What a run logs of the segments that it computes again."""
    path = tmp_path / f"{asked}-{limit_bytes}"
    framework = entry("pytorch").load()
    spec = RunSpec(
        work=TrainSteps(network="resnet-18", batch_per_device=8),
        program=ProgramSettings(checkpoint_activations=asked),
    )
    task = Task(
        spec=spec,
        framework=framework,
        device="cpu",
        threads=1,
        usable_cores=1,
        log=EventLog(path, 0, 0.0),
        limit_bytes=limit_bytes,
    )
    with ready_program(task, network, lambda: None):
        pass
    logged = [e["figure"] for e in read_events(path) if e.get("name") == "recomputed_percent"]
    return logged[0]["value"], logged[0]["method"]


@pytest.fixture
def residual():
    net = NetworkBuilder("residual")
    x = net.input("image", (3, 16, 16))
    for name in ("early", "middle", "late"):
        with net.segment(name):
            x = net.relu(net.batch_norm(net.conv(x, 16, kernel=3, padding=1)))
    with net.segment("classifier"):
        net.classify(net.linear(net.flatten(x), 10))
    return net.build()


def test_segments_are_computed_again_as_far_as_the_memory_needs(tmp_path, residual):
    segments = recomputable_segments(residual)
    whole = forecast(residual, 8).total_bytes
    least = forecast(residual, 8, recomputed=segments).total_bytes
    one = min(forecast(residual, 8, recomputed=(name,)).total_bytes for name in segments)
    assert least < one < whole
    percent, method = recomputed(tmp_path, residual, whole)
    assert percent == 0
    assert "within the limit" in method
    some, method = recomputed(tmp_path, residual, whole - 1)
    assert some > 0
    most, method = recomputed(tmp_path, residual, least - 1)
    assert some < most
    assert all(name in method for name in segments)
    assert recomputed(tmp_path, residual, None)[0] == 0
    assert recomputed(tmp_path, residual, None, "segments")[0] == most


def test_a_network_of_one_segment_has_nothing_to_compute_again(tmp_path):
    net = NetworkBuilder("one")
    net.classify(net.linear(net.input("x", (4,)), 3))
    with pytest.raises(Unsupported, match="no segment before its last"):
        recomputed(tmp_path, net.build(), None, "segments")


@pytest.mark.parametrize("sync", ["all-reduce", "hybrid-by-layer"])
def test_a_part_of_the_weights_with_segments_computed_again_has_no_forecast(
    tmp_path, residual, sync
):
    """Segments are chosen by the whole network's memory."""

    def forecast_of(asked):
        path = tmp_path / asked
        task = Task(
            spec=RunSpec(
                work=TrainSteps(network="resnet-18", batch_per_device=8),
                placement=Placement(devices=2),
                program=ProgramSettings(sync=sync, checkpoint_activations=asked),
            ),
            framework=entry("pytorch").load(),
            device="cpu",
            threads=1,
            usable_cores=1,
            log=EventLog(path, 0, 0.0),
            limit_bytes=None,
        )
        again = recomputable_segments(residual) if asked == "segments" else ()
        _log_memory_forecast(task, residual, again)
        return [e["name"] for e in read_events(path) if "figure" in e]

    logged = ["forecast_memory_bytes"]
    assert forecast_of("none") == logged
    assert forecast_of("segments") == (logged if sync == "all-reduce" else [])
