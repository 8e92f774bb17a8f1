"""Benchmarks without their hardware, and their computations from given measurements."""

import argparse
import importlib.util
import re
import time

import numpy as np
import pytest

from cubemesh.data.synthetic import open_synthetic

torch = pytest.importorskip("torch")

NO_TORCHVISION = importlib.util.find_spec("torchvision") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_memory_forecast_needs_a_gpu(script, capsys):
    assert script("memory_forecast").main([]) == 2
    assert "absent: a GPU" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_score_kernels_need_a_gpu(script, capsys):
    assert script("score_kernels").main(["--widths", "64"]) == 2
    assert "absent: a GPU" in capsys.readouterr().out


def test_points_of_the_forecast_within_the_goal_are_counted(script):
    memory = script("memory_forecast")

    def point(forecast, peak, left_out=""):
        return memory.Point(
            network="vgg16",
            batch=16,
            precision="bf16",
            layout="nhwc",
            forecast_bytes=forecast,
            peak_bytes=peak,
            left_out=left_out,
        )

    near, far = point(1_100_000_000, 1_000_000_000), point(800_000_000, 1_000_000_000)
    out = point(2, None, "out of memory")
    assert near.error == pytest.approx(0.1)
    assert memory.share_within([near, far, out]) == (1, 2)
    assert "+10.0%" in memory.text(near)
    assert memory.text(far).endswith("-20.0%  off")
    assert memory.text(out).endswith(f": {out.left_out}")


def test_an_absent_peer_is_shown_as_absent(script):
    against = script("handwritten_comparison")
    args = argparse.Namespace(batch=None, device="cpu", precision="fp32", threads=1)
    unknown = against.measure("theano", "little-cnn", args)
    assert unknown.reached is None
    assert unknown.batch == 8
    assert "theano" in against.text(unknown)
    assert "absent: " in against.text(unknown)
    other = against.measure("pytorch", "vgg16", args)
    assert "absent: " in against.text(other)
    assert "little-cnn, alexnet, resnet-50" in against.text(other)


@pytest.mark.skipif(not NO_TORCHVISION, reason="torchvision is there")
def test_absent_torchvision_is_reported(script, capsys, monkeypatch):
    outputs = script("torchvision_outputs")
    monkeypatch.setattr("sys.argv", ["torchvision_outputs.py"])
    assert outputs.main() == 2
    assert capsys.readouterr().out.startswith("absent: torchvision")


def test_weights_are_copied_by_order_and_wrong_shapes_are_named(script):
    outputs = script("torchvision_outputs")
    drawn = {"a": torch.ones(2, 3).numpy(), "b": torch.ones(2).numpy()}
    module = torch.nn.Linear(3, 2)
    outputs.copy_into(module, drawn, ["a", "b"], [])
    assert module.weight.eq(1).all()
    with pytest.raises(ValueError, match=r"weight and a .*\(5, 3\).*\(2, 3\)"):
        outputs.copy_into(torch.nn.Linear(3, 5), drawn, ["a", "b"], [])
    with pytest.raises(ValueError, match="parameters") as counted:
        outputs.copy_into(torch.nn.Linear(3, 2, bias=False), drawn, ["a", "b"], [])
    assert re.findall(r"\d+", str(counted.value)) == ["1", "0", "2", "0"]


def attribution(bench, *, step_ms=10.0, **parts_ms):
    parts = {name: ms / 1e3 for name, ms in parts_ms.items()}
    return bench.Taken(step_s=step_ms / 1e3, parts=parts, profiled_step_s=0.011, warnings=())


def test_an_attribution_passes_where_little_is_unattributed(script):
    check = script("attribution_check")
    assert check._sums_up("a", attribution(check, compute=9.85, unattributed=0.15)).passed
    assert not check._sums_up("a", attribution(check, compute=9.7, unattributed=0.3)).passed
    assert not check._sums_up("a", attribution(check, compute=9.5, unattributed=0.1)).passed


def test_a_plant_counts_where_it_is_named_first(script):
    plants = script("attribution_plants")
    check = script("attribution_check")
    quiet = attribution(check, compute=6, input_stall=3, cpu_contention=0.9, unattributed=0.1)
    loaded = attribution(check, compute=2, input_stall=3, cpu_contention=4.7, unattributed=0.3)
    missed = attribution(check, compute=6, host=3, input_stall=1, unattributed=0)
    trials = [plants.trial("slow input", taken) for taken in (quiet, loaded, missed)]
    found = plants.summary(trials)
    assert (found["first"], found["first_besides_load"], found["times"]) == (1, 2, 3)
    assert found["others"] == ["host"]
    assert (found["share"], found["within"]) == (pytest.approx(0.3), 2)
    assert plants.trial("neighbours", loaded).named_besides_load == "cpu_contention"


def test_recorded_telemetry_of_throttled_gpus_is_named_first(script, capsys):
    plants = script("attribution_plants")
    assert plants.main(["--plants", "throttled", "--times", "3"]) == 0
    assert "first in 3 of 3" in capsys.readouterr().out
    clocks, steps = plants.recorded()
    assert min(lost.value for lost in clocks) >= plants.LEAST_CLOCK_LOSS
    assert all(step[0].name == "compute" for step in steps)


@pytest.mark.parametrize(("stall_ms", "passed"), [(9.2, True), (10.9, True), (8.9, False)])
def test_a_slow_source_passes_within_a_tenth(script, stall_ms, passed):
    check = script("attribution_check")

    class Bench:
        point = check.Point(network="little-cnn", batch=8)
        source = None

        def take_apart(self, source, threads, data_location):
            assert (source.seconds, threads, data_location) == (pytest.approx(0.02), 1, "host")
            source.made.append((8, 0.0, 0.02))
            return attribution(check, step_ms=20, compute=10, input_stall=stall_ms)

    fed = attribution(check, compute=10, input_stall=0)
    assert check._slow_source("a", Bench(), fed, 2.0).passed is passed


def test_a_slow_source_takes_its_time(script):
    check = script("attribution_check")
    source = open_synthetic("train", (3, 4, 4), 10, 0, 8)
    slow = check.SlowSource(source, 8, 0.02)
    start = time.perf_counter()
    assert slow.batch(np.arange(4)).samples == 4
    assert time.perf_counter() - start >= 0.01
    assert slow.samples == source.samples


def test_a_minibatch_made_in_pieces_takes_the_time_between_them_too(script):
    check = script("attribution_check")
    pieces = [(4, 0.0, 1.0), (4, 1.5, 2.5), (4, 9.0, 10.0), (4, 10.2, 12.0)]
    assert check.SlowSource(None, 8, 1.0, pieces).minibatch_s == 3.0
    assert check.SlowSource(None, 4, 1.0, pieces).minibatch_s == pytest.approx(1.4)


@pytest.mark.gpu
@pytest.mark.skipif(NO_TORCHVISION, reason="torchvision is not installed")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "googlenet", "inception-v3", "resnet-50", "resnet-152", "vit-b16"]
)
def test_outputs_equal_torchvision_s(name, script):
    outputs = script("torchvision_outputs")
    found = outputs.differences(name, device="cuda:0", precision="fp64", batch=2)
    if found.absent:
        pytest.skip(found.absent)
    assert found.parameters == found.theirs
    assert max(found.evaluation, found.training) <= 1e-9
