"""What the benchmarks say where something lacks, and what they compute from what they measured."""

import argparse
import importlib.util

import pytest

torch = pytest.importorskip("torch")

LACKS_TORCHVISION = importlib.util.find_spec("torchvision") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_forecast_is_held_against_nothing(script, capsys):
    assert script("memory_forecast").main([]) == 2
    assert "absent: a GPU" in capsys.readouterr().out


def test_points_of_the_forecast_are_counted_and_told(script):
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
    assert "+10.0%" in memory.told(near)
    assert memory.told(far).endswith("-20.0%  off")
    assert memory.told(out).endswith("left out: out of memory")


def test_an_absent_peer_is_told_as_absent(script):
    against = script("against_handwritten")
    args = argparse.Namespace(batch=None, device="cpu", precision="fp32", threads=1)
    unknown = against.measure("theano", "little-cnn", args)
    assert unknown.reached is None
    assert unknown.batch == 8
    assert "absent: no network is written by hand" in against.told(unknown)
    other = against.measure("pytorch", "vgg16", args)
    assert "absent: by hand there are little-cnn, alexnet, resnet-50" in against.told(other)


@pytest.mark.skipif(not LACKS_TORCHVISION, reason="torchvision is there")
def test_without_torchvision_that_is_what_is_said(script, capsys, monkeypatch):
    outputs = script("torchvision_outputs")
    monkeypatch.setattr("sys.argv", ["torchvision_outputs.py"])
    assert outputs.main() == 2
    assert capsys.readouterr().out.startswith("absent: torchvision")


def test_weights_go_over_by_order_and_wrong_shapes_are_named(script):
    outputs = script("torchvision_outputs")
    drawn = {"a": torch.ones(2, 3).numpy(), "b": torch.ones(2).numpy()}
    module = torch.nn.Linear(3, 2)
    outputs.copy_into(module, drawn, ["a", "b"], [])
    assert module.weight.eq(1).all()
    with pytest.raises(ValueError, match=r"weight and a are of shapes \(5, 3\) and \(2, 3\)"):
        outputs.copy_into(torch.nn.Linear(3, 5), drawn, ["a", "b"], [])
    with pytest.raises(ValueError, match="1 parameters and 0 buffers, the graph 2 and 0"):
        outputs.copy_into(torch.nn.Linear(3, 2, bias=False), drawn, ["a", "b"], [])


@pytest.mark.gpu
@pytest.mark.skipif(LACKS_TORCHVISION, reason="torchvision is not installed")
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
