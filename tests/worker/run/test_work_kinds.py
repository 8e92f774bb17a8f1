"""Every kind of work, run in a process of its own with the null framework, seen by its events."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import trace_replay as replay
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.schema import (
    WORK_KINDS,
    Budget,
    Ceiling,
    Figure,
    FirstSteps,
    Forward,
    ForwardBackward,
    Infer,
    Input,
    Outcome,
    Placement,
    ProgramSettings,
    RunSpec,
    Status,
    Train,
    TrainSteps,
)
from cubemesh.schema.serialization import from_plain
from cubemesh.worker.report.events import events_path, read_events
from cubemesh.worker.run.job_file import Job
from cubemesh.worker.run.steps import attribute
from cubemesh.worker.run.work_kinds import TASKS
from script_server import run_code

EFFORT = Budget(steps=20, seconds=0.0, windows=6, warmup_seconds=0.0)
FEED = {"network": "little-cnn", "batch_per_device": 10}


def events_of(folder, work, script="step=0.01", **program):
    settings = ProgramSettings(framework="null", script=script, **program)
    return run(folder, RunSpec(work=work, program=settings, budget=EFFORT))


@functools.cache
def server():
    """Forks a worker for each job, as for a runner; ends with this process."""
    words = ["serve", "--framework", "null", "--parent", str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-m", "cubemesh.worker", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def run(folder, spec):
    path = Job(spec=spec, folder=str(folder)).write()
    # In a process of its own: a worker's limits apply until its process ends.
    server().stdin.write(json.dumps({"run": str(path)}).encode() + b"\n")
    server().stdin.flush()
    ended = next(reply for line in server().stdout if "exit" in (reply := json.loads(line)))
    assert ended["exit"] == 0
    return read_events(events_path(folder, 0))


def figures(events):
    return {e["name"]: from_plain(Figure, e["figure"]) for e in events if e["event"] == "figure"}


def outcome(events):
    return from_plain(Outcome, events[-1]["outcome"])


def curves(events):
    return {e["curve"]["name"]: e["curve"] for e in events if e["event"] == "curve"}


def warnings(events):
    return {e["warning"]["code"]: e["warning"] for e in events if e["event"] == "warning"}


def phases(events):
    return [e["phase"]["name"] for e in events if e["event"] == "phase"]


REPLAYED = """
import sys
from pathlib import Path
import trace_replay as replay
from cubemesh.worker.run import task
from cubemesh.worker.run.job_file import read_job
from cubemesh.worker.run.run_job import run_job

_, meters = replay.load(Path(sys.argv[1]))
task.open_meters = lambda uuid: meters
run_job(read_job(Path(sys.argv[2])))
"""


def test_readings_of_replayed_sensors_are_logged(tmp_path):
    reading = {"gpu_power_watts": 72.5, "gpu_utilization_percent": 0.0, "gpu_throttle_reasons": 4.0}
    gpu = replay.ReplayedMeter([reading], device="gpu", name="NVIDIA H200", generation="hopper")
    recording = tmp_path / "readings.jsonl"
    replay.record(recording, [gpu], readings=2, every_s=0.01)
    settings = ProgramSettings(framework="null", script="step=0.01")
    spec = RunSpec(work=TrainSteps(**FEED), program=settings, budget=EFFORT)
    job = Job(spec=spec, folder=str(tmp_path)).write()
    run_code(REPLAYED, recording, job)
    events = read_events(events_path(tmp_path, 0))
    assert outcome(events).ok, events[-1]
    series = {e["series"]["name"]: e["series"] for e in events if e["event"] == "series"}
    assert set(series["gpu_power_watts"]["values"]) == {72.5}
    assert series["gpu_throttle_reasons"]["device"] == "gpu"
    assert figures(events)["gpu_idle_watts"].value == 72.5
    # The script has a clock of its own, so that its windows lie nowhere among the readings.
    (unmeasured,) = [e["unmeasured"] for e in events if e["event"] == "unmeasured"]
    assert unmeasured["what"] == "energy and power"
    assert unmeasured["why"].startswith("not measurable: ")


def test_there_is_a_task_for_each_kind_of_work():
    assert set(TASKS) == set(WORK_KINDS)


@pytest.mark.parametrize("data_location", ["host", "device"])
@pytest.mark.parametrize("scenario", ["single-stream", "offline"])
def test_inference_is_measured(tmp_path, scenario, data_location):
    work = Infer(**FEED, scenario=scenario)
    events = events_of(tmp_path, work, data_location=data_location)
    assert outcome(events).ok, events[-1]
    found = figures(events)
    assert phases(events) == ["import", "data", "build", "weights", "warm-up", "measure"]
    latencies = {name for name in found if name.startswith("latency")}
    if scenario == "offline":
        assert latencies == set()
        return
    assert latencies >= {"latency_p50_s", "latency_p90_s", "latency_max_s"}
    assert found["latency_p50_s"].value == pytest.approx(0.01)
    assert found["latency_max_s"].n >= EFFORT.steps


@pytest.mark.parametrize("budget", [{"attribution": True}, {"trace": True}])
def test_a_latency_is_not_attributed(tmp_path, budget):
    spec = RunSpec(
        work=Infer(**FEED),
        program=ProgramSettings(framework="null", script="step=0.01"),
        budget=dataclasses.replace(EFFORT, **budget),
    )
    ended = outcome(run(tmp_path, spec))
    assert ended.status is Status.UNSUPPORTED
    assert "Leave attribution and trace out" in ended.message


@pytest.mark.parametrize(
    "work", [TrainSteps(**FEED), Forward(**FEED, data="digits"), ForwardBackward(**FEED)]
)
@pytest.mark.parametrize("data_location", ["host", "device"])
def test_steps_are_measured(tmp_path, work, data_location):
    events = events_of(tmp_path, work, data_location=data_location)
    assert outcome(events).ok, events[-1]
    assert phases(events) == ["import", "data", "build", "weights", "warm-up", "measure"]
    memory = figures(events)["peak_memory_bytes"]
    assert memory.unit == "B"
    assert "held" in memory.method
    assert events[-1]["event"] == "outcome"


def test_a_copy_of_a_minibatch_is_measured_separately(tmp_path):
    events = events_of(tmp_path, Input(**FEED, stage="copy"))
    assert outcome(events).ok, events[-1]
    assert phases(events) == ["import", "data", "build", "weights", "warm-up", "measure"]


def test_data_without_files_have_nothing_to_decode(tmp_path):
    ended = outcome(events_of(tmp_path, Input(**FEED, stage="decode")))
    assert ended.status is Status.UNSUPPORTED
    assert "data=synthetic" in ended.message


@pytest.mark.parametrize("stage", ["read", "decode"])
def test_reading_and_decoding_need_no_program(tmp_path, stage):
    image = pytest.importorskip("PIL.Image").new("RGB", (40, 30))
    (tmp_path / "set" / "a").mkdir(parents=True)
    for number in range(30):
        image.save(tmp_path / "set" / "a" / f"{number}.jpg")
    work = Input(**FEED, stage=stage, data="images", data_path=str(tmp_path / "set"))
    (tmp_path / "scripted").mkdir()
    refused = outcome(events_of(tmp_path / "scripted", work))
    assert "data=images" in refused.message
    events = run(
        tmp_path,
        RunSpec(
            work=work,
            program=ProgramSettings(framework="null", input_threads=2),
            budget=dataclasses.replace(EFFORT, steps=4, windows=2),
        ),
    )
    assert outcome(events).ok, events[-1]
    assert phases(events) == ["import", "data", "warm-up", "measure"]
    found = figures(events)
    assert found["image_file_bytes"].value == (tmp_path / "set/a/0.jpg").stat().st_size
    assert found["input_threads"].value == 2
    assert (found["images_skipped"].value, found["images_skipped"].n) == (0, 27)


def test_the_frameworks_own_count_of_memory_comes_first(tmp_path):
    events = events_of(tmp_path, TrainSteps(**FEED), "memory=2e9")
    memory = figures(events)["peak_memory_bytes"]
    assert memory.value == 2e9
    assert "framework" in memory.method


def test_training_has_curves_and_an_accuracy(tmp_path):
    work = Train(**FEED, data="digits", epochs=2)
    events = events_of(tmp_path, work, "accuracy=0.5:0.75")
    assert outcome(events).ok, events[-1]
    assert figures(events)["accuracy"].value == pytest.approx(0.75, abs=0.01)
    assert "training_loss" in curves(events)


@pytest.mark.parametrize(
    ("operation", "size", "name", "rate"),
    [
        ("matrix_product", 100, "rate_flops_per_s", 2 * 100**3 / 0.01),
        ("copy", 1000, "rate_bytes_per_s", 2 * 1000 / 0.01),
        ("convolution", 4, "rate_flops_per_s", 2 * 4 * 14**2 * 256**2 * 9 / 0.01),
        ("host_to_device", 1000, "rate_bytes_per_s", 1000 / 0.01),
    ],
)
def test_a_ceiling_is_a_rate(tmp_path, operation, size, name, rate):
    events = events_of(tmp_path, Ceiling(operation=operation, size=size))
    assert outcome(events).ok, events[-1]
    figure = figures(events)[name]
    assert figure.value == pytest.approx(rate)
    assert figure.low <= figure.value <= figure.high
    assert figure.n >= 6
    best = figures(events)[name.replace("rate", "fastest")]
    assert best.value == pytest.approx(rate)
    assert figure.method == best.method != ""


@pytest.mark.parametrize("operation", ["disk_read", "disk_mixed"])
def test_a_disk_is_measured_whatever_the_framework(tmp_path, operation):
    work = Ceiling(operation=operation, folder=str(tmp_path), size=16 << 20)
    spec = RunSpec(work=work, program=ProgramSettings(framework="null"), budget=EFFORT)
    events = run(tmp_path, spec)
    assert outcome(events).ok, events[-1]
    figure = figures(events)["rate_bytes_per_s"]
    assert figure.value > 1e6
    assert "file of 16 MiB" in figure.method
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".cubemesh")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"work": TrainSteps(network="litle-cnn", batch_per_device=1)}, "little-cnn"),
        ({"work": TrainSteps(**FEED, data="digits"), "batch": 5000}, "5000"),
        ({"placement": Placement(device="cuda")}, "cuda"),
        ({"placement": Placement(devices=2)}, "devices"),
        ({"program": ProgramSettings(framework="null", sync="ring")}, "ring"),
        ({"work": Ceiling(operation="links")}, "framework=pytorch"),
    ],
)
def test_invalid_requests_are_unsupported_with_a_reason(tmp_path, change, words):
    batch = change.pop("batch", None)
    if batch:
        change["work"] = dataclasses.replace(change["work"], batch_per_device=batch)
    spec = RunSpec(work=TrainSteps(**FEED), program=ProgramSettings(framework="null"))
    found = outcome(run(tmp_path, dataclasses.replace(spec, **change)))
    assert found.status is Status.UNSUPPORTED
    assert words in found.message


@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_of_one_is_refused_where_a_single_position_is_normalized(tmp_path, batch):
    found = outcome(
        events_of(tmp_path, Forward(network="resnet-18", image_size=32, batch_per_device=batch))
    )
    if batch == 2:
        assert found.status is Status.OK
    else:
        assert found.status is Status.UNSUPPORTED
        assert "batch_per_device=1" in found.message
        assert "batch_per_device=2" in found.message


def test_tokens_per_second_are_logged_for_sequences(tmp_path):
    sizes = {"sequence_length": 8, "vocabulary": 50, "hidden": 4}
    work = TrainSteps(network="translator", batch_per_device=10, **sizes)
    events = events_of(tmp_path, work)
    assert outcome(events).status is Status.OK
    tokens = figures(events)["tokens_per_s"]
    # 10 sentences in 10 ms, each of 5 to 8 tokens, drawn evenly.
    assert tokens.unit == "tokens/s"
    assert tokens.value == pytest.approx(1000 * 6.5, rel=0.02)
    assert tokens.low <= tokens.value <= tokens.high


@pytest.mark.parametrize(
    ("network", "sizes", "counted"),
    [
        ("deep-speech-rnn", {"sequence_length": 8, "hidden": 4}, 4),
        ("captioner", {"image_size": 11, "sequence_length": 6, "vocabulary": 50, "hidden": 4}, 6),
    ],
)
def test_speech_and_captions_are_counted_by_what_is_judged(tmp_path, network, sizes, counted):
    events = events_of(tmp_path, TrainSteps(network=network, batch_per_device=10, **sizes))
    assert outcome(events).status is Status.OK, outcome(events).message
    tokens = figures(events)["tokens_per_s"]  # 10 samples in 10 ms
    assert tokens.value == pytest.approx(1000 * counted, rel=0.02)


def trained(folder, accuracy, **settings):
    """The events of a training whose answers have this accuracy."""
    events = events_of(folder, Train(**settings), f"step=0.01,accuracy=1:{accuracy}")
    assert outcome(events).status is Status.OK, outcome(events).message
    return events


def test_a_network_of_tokens_is_trained_and_evaluated_by_position(tmp_path):
    sizes = {"sequence_length": 4, "vocabulary": 7}
    events = trained(tmp_path, 0.5, network="gpt2", batch_per_device=512, **sizes)
    accuracy = figures(events)["accuracy"]
    assert (accuracy.value, accuracy.n) == (0.5, 512 * 4)  # never fewer than a minibatch


def test_a_segmentation_has_an_intersection_over_union(tmp_path):
    sizes = {"network": "unet", "image_size": 16, "classes": 4, "batch_per_device": 256}
    events = trained(tmp_path, 0.5, data="generated-shapes", epochs=2, **sizes)
    found, drawn = figures(events), curves(events)
    assert 0 < found["mean_iou"].value < 1
    assert found["mean_iou"].n == 4
    assert found["accuracy"].n == 64 * 16 * 16, "each pixel is a sample"
    assert found["accuracy"].low is None, "but not an independent one"
    assert list(drawn["validation_mean_iou"]["x"]) == [1, 2]
    assert drawn["validation_mean_iou"]["y"][-1] == found["mean_iou"].value
    assert list(drawn["class_iou"]["x"]) == [0, 1, 2, 3]


def test_clicks_have_an_area_under_the_roc_curve_and_no_tokens(tmp_path):
    sizes = {"network": "dlrm-small", "vocabulary": 10, "hidden": 2, "batch_per_device": 4096}
    events = trained(tmp_path, 0.75, data="generated-clicks", **sizes)
    found = figures(events)
    accuracy, area = found["accuracy"], found["auc"]
    assert (accuracy.value, accuracy.n) == (0.75, 8192)
    assert accuracy.low < 0.75 < accuracy.high
    assert area.low < area.value < area.high  # of two different scores
    assert area.value == pytest.approx(0.75, abs=0.02)
    assert "tokens_per_s" not in found
    assert list(curves(events)["validation_auc"]["y"]) == [area.value]


DETECTION = {"network": "detectnet-little", "data": "generated-boxes"}


def test_a_detection_has_a_mean_average_precision(tmp_path):
    events = trained(tmp_path, 0.5, **DETECTION, batch_per_device=64, epochs=2)
    found, drawn = figures(events), curves(events)
    assert 0.3 < found["map"].value <= found["map50"].value < 0.7
    assert found["map"].n == 64
    assert found["map"].low < found["map"].value < found["map"].high
    assert found["accuracy"] == found["map"]
    assert drawn["validation_map"]["y"][-1] == found["map"].value
    assert drawn["validation_accuracy"]["y"] == drawn["validation_map"]["y"]
    assert list(drawn["class_ap"]["x"]) == [0, 1, 2]
    assert "zero-map" not in warnings(events)


def test_a_mean_average_precision_of_0_says_why(tmp_path):
    events = trained(tmp_path, 0, **DETECTION, batch_per_device=256, classes=2, epochs=1)
    assert figures(events)["map"].value == 0
    assert "auc" not in figures(events), "of two classes of boxes"
    cause = warnings(events)["zero-map"]["cause"]
    assert "no box is predicted; the highest is 0." in cause


def test_replicas_that_detect_are_not_compared_by_answers(tmp_path):
    work = FirstSteps(**DETECTION, batch_per_device=8)
    assert outcome(events_of(tmp_path, work)).status is Status.UNSUPPORTED


def test_the_parts_of_an_attribution_add_up_to_the_step(tmp_path):
    work = TrainSteps(**FEED)
    settings = ProgramSettings(framework="null", script="step=0.01")
    budget = dataclasses.replace(EFFORT, attribution=True)
    events = run(tmp_path, RunSpec(work=work, program=settings, budget=budget))
    assert outcome(events).ok, events[-1]
    assert phases(events)[-2:] == ["measure", "profile"]
    parts = {e["part"]["name"]: e["part"]["seconds"] for e in events if e["event"] == "part"}
    assert set(parts) == {"compute", "input_stall", "launch_gaps", "host", "unattributed"}
    assert parts["compute"] == pytest.approx(0.01)
    assert sum(parts.values()) == pytest.approx(0.01)
    (by_category,) = [e["breakdown"] for e in events if e["event"] == "breakdown"]
    assert {row["name"] for row in by_category["rows"]} == {"unnamed", "input"}


def test_a_framework_whose_profile_is_not_read_refuses_an_attribution(tmp_path):
    class Plain:
        """A program without a profiler."""

        device = "cpu"

    spec = RunSpec(
        work=TrainSteps(**FEED),
        program=ProgramSettings(framework="null"),
        budget=dataclasses.replace(EFFORT, attribution=True),
    )
    with pytest.raises(Unsupported, match="pytorch-compiled"):
        attribute(SimpleNamespace(spec=spec, group=SingleProcessGroup()), Plain(), None, None, None)


def test_first_losses_are_logged_before_anything_is_timed(tmp_path):
    events = events_of(tmp_path, TrainSteps(**FEED, losses=5), "step=0.01,loss=3:1")
    assert outcome(events).ok
    (curve,) = [
        e["curve"] for e in events if e["event"] == "curve" and "loss" in e["curve"]["name"]
    ]
    assert curve["x"] == [1, 2, 3, 4, 5]
    assert curve["y"] == sorted(curve["y"], reverse=True)
    assert phases(events).index("losses") < phases(events).index("warm-up")


def test_a_loss_that_is_nan_at_the_first_step_is_diverged(tmp_path):
    events = events_of(tmp_path, TrainSteps(**FEED, losses=5), "nan@3")
    assert outcome(events).status is Status.DIVERGED
    assert "in step 3" in outcome(events).message


def test_windows_count_the_samples_of_all_micro_batches(tmp_path):
    work = TrainSteps(**FEED, accumulation_steps=5)
    events = events_of(tmp_path, work, checkpoint_activations="segments")
    windows, found = [e["window"] for e in events if e["event"] == "window"], figures(events)
    assert windows
    assert all(window["samples"] == 10 * window["steps"] for window in windows)
    assert 0 < found["recomputed_percent"].value < 100 / 3
    assert "block1, block2" in found["recomputed_percent"].method


@pytest.mark.parametrize(
    ("network", "batch", "steps", "message"),
    [("little-cnn", 10, 3, "accumulation_steps=3"), ("inception-v3", 4, 4, "micro-batches of 1")],
)
def test_micro_batches_have_equal_sizes_and_are_not_too_small(
    tmp_path, network, batch, steps, message
):
    work = TrainSteps(network=network, batch_per_device=batch, accumulation_steps=steps)
    refused = outcome(events_of(tmp_path, work))
    assert refused.status is Status.UNSUPPORTED
    assert message in refused.message


def test_padding_of_documents_is_logged(tmp_path):
    """Packed rows have next to none."""
    work = TrainSteps(
        network="gpt2",
        batch_per_device=4,
        sequence_length=16,
        vocabulary=50,
        data="generated-documents",
        packing="documents",
    )
    events = events_of(tmp_path, work)
    assert outcome(events).status is Status.OK, outcome(events).message
    found = figures(events)
    assert found["padding_percent"].value < 10
    assert 12 < found["tokens_per_sample"].value < 16
