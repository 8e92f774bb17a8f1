"""Plans and ONNX files with the weights of a module, and of a network that a program built."""

import os

import numpy as np
import pytest

import cubemesh
from cubemesh.errors import UsageError
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.schema.own_network import OwnNetwork
from onnx_graphs import session_of

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
FAST = {"seconds": 0.01, "threads": 1, "engines": ["onnxruntime"]}
MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.classifier = nn.Linear(4, 10)
        self.features[1].running_mean.fill_(0.25)
        nn.init.constant_(self.classifier.bias, 0.5)

    def forward(self, images):
        return self.classifier(self.features(images).mean((2, 3)))

"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A file with a module; described in a fork, as a new process imports PyTorch for seconds."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "own_weights_model.py"
    path.write_text(MODULE)
    monkeypatch.setattr("cubemesh.runs.own_networks._run", described_in_a_fork)
    names: dict = {}
    exec(MODULE, names)
    return path, names, torch


def described_in_a_fork(asked, found, own_folder, python):
    from cubemesh.worker.describe import describe_to

    child = os.fork()
    if not child:
        try:
            describe_to(asked, found)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return "" if found.exists() else f"exit status {status}"


def images(samples):
    return np.random.default_rng(3).random((samples, 3, 8, 8), np.float32)


def test_a_plan_of_a_module_has_its_own_weights(module, tmp_path):
    path, names, torch = module
    net = names["Net"]().eval()
    with torch.no_grad():
        wanted = net(torch.from_numpy(images(4))).numpy()
    built = cubemesh.build_plan(
        f"{path}:Net", tmp_path / "net.plan", input_shape="3x8x8", batches=(4,), **FAST
    )
    with cubemesh.Plan.load(built.file, threads=1) as plan:
        assert np.abs(plan.run(images(4)) - wanted).max() < 1e-4
    assert "its own weights" in built.document.source
    with pytest.raises(UsageError, match="leave out --checkpoints"):
        cubemesh.export_network(f"{path}:Net", classes=7)


def test_a_module_without_a_graph_has_no_plan(tmp_path, monkeypatch):
    own = OwnNetwork(source="/m.py:Net", folder="/", graph="", untraced="it has a gate")
    monkeypatch.setattr("cubemesh.runs.own_networks._describe", lambda *arguments: own)
    path = tmp_path / "m.py"
    path.write_text("Net = None\n")
    with pytest.raises(UsageError, match=r"has no graph: it has a gate\. .*torch\.onnx\.export"):
        cubemesh.build_plan(f"{path}:Net", input_shape="3x8x8", **FAST)


def small_network():
    net = NetworkBuilder("by-hand")
    x = net.input("image", (3, 8, 8))
    x = net.relu(net.conv(x, 4, kernel=3, padding=1, name="conv"))
    x = net.linear(net.global_average_pool(x), 2, name="classifier")
    net.classify(x)
    return net.build()


def test_a_network_built_layer_by_layer_with_its_weights(tmp_path):
    network = small_network()
    weights = {name: np.zeros(spec.shape) for name, spec in network.parameters.items()}
    weights["conv.bias"][:] = 2.0
    weights["classifier.weight"][1] = 0.5
    weights["classifier.bias"][:] = (1.0, -1.0)
    cubemesh.export_network(network, tmp_path / "hand.onnx", weights=weights)
    (found,) = session_of(tmp_path / "hand.onnx").run(None, {"image": images(3)})
    assert np.allclose(found, [[1.0, 3.0]] * 3)  # 2 in each of four channels, × 0.5, − 1
    built = cubemesh.build_plan(
        network, tmp_path / "hand.plan", weights=weights, batches=(3,), **FAST
    )
    assert built.document.source == "by-hand, weights of a program"
    with cubemesh.Plan.load(built.file, threads=1) as plan:
        assert np.allclose(plan.run(images(3)), [[1.0, 3.0]] * 3)
    drawn = cubemesh.export_network(network, tmp_path / "drawn.onnx", seed=4)
    assert drawn.weights == "seed 4"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("conv.bias"), "conv.bias is missing"),
        (lambda w: w.update({"conv.bias": np.zeros(5)}), r"conv.bias has the shape \(5,\)"),
        (lambda w: w.update(other=np.zeros(1)), "other has the shape .* which it does not have"),
    ],
)
def test_weights_that_do_not_fit(change, sentence):
    network = small_network()
    weights = {name: np.zeros(spec.shape) for name, spec in network.parameters.items()}
    change(weights)
    with pytest.raises(UsageError, match=sentence):
        cubemesh.export_network(network, weights=weights)
    with pytest.raises(UsageError, match="that a program built"):
        cubemesh.export_network("little-cnn", weights=weights)
    with pytest.raises(UsageError, match="is the input of a network of your own"):
        cubemesh.export_network(network, input_shape="3x8x8")
