"""Every network in every installed framework: from the same weights, what PyTorch computes.

In fp64 the scores, the first gradients and the statistics of normalisations agree to 1e-9 of each
array's largest value, and so does an evaluation after five steps, each from PyTorch's weights (for
differences in the last digit grow from step to step). PyTorch itself is held against networks
written by hand in pytorch/test_module.py. Dropout is taken out, for no two frameworks draw alike.

Compiling takes minutes for the deep networks, so they are marked `sweep` and run by
`pytest -m sweep tests/frameworks/test_parity.py`; the shallow ones always run.
"""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.frameworks import FRAMEWORKS, entry
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import BatchNorm, Convolution

RATE = 0.01
CLASSES = 5
SHALLOW = ("little-cnn", "little-cnn-unpadded", "cifarnet")
SIZES = {name: 64 for name in networks.NETWORKS if name.startswith("resnet")}
"""Where the smallest image would leave normalisations next to nothing to average."""
OTHERS = [
    name
    for name, line in FRAMEWORKS.items()
    if line.installed and name not in ("null", "pytorch", "pytorch-compiled")
]
"""pytorch-compiled is held against pytorch in pytorch/test_compiled.py."""


def image_networks():
    for name, line in networks.NETWORKS.items():
        size = max(line.smallest_image_size, SIZES.get(name, 0))
        network = networks.build(name, size, CLASSES)
        if [i.dtype for i in network.inputs] == ["float"]:
            marks = () if name in SHALLOW else (pytest.mark.sweep, pytest.mark.timeout(900))
            yield pytest.param(network, id=name, marks=marks)


@pytest.fixture
def trained(make_request, make_batch, without_dropout):
    """(framework, its network, network, precision) → what five steps of it and of PyTorch give,
    the other's each from PyTorch's weights."""

    def train(framework, changed, network, precision="fp64"):
        rng = np.random.default_rng(3)
        weights = network.draw(2)
        for name in network.state:
            weights[name] = rng.uniform(0.5, 1.5, weights[name].shape).astype(np.float32)
        settings = {"precision": precision, "learning_rate": RATE, "momentum": 0.0}
        ours, theirs = (
            entry(f).load().build(make_request(without_dropout(n), **settings))
            for f, n in ((framework, changed), ("pytorch", network))
        )
        theirs.load(weights)
        found = {}, {}
        for seed in range(5):
            before = theirs.state()
            ours.load(before)
            for program, kept in zip((ours, theirs), found, strict=True):
                program.train_step(program.place(make_batch(network, 4, seed)))
                if seed == 0:  # the change of a weight in such a step is rate times its gradient
                    kept.update({"loss": np.array(program.loss()), **program.state()})
                    kept.update({n: (before[n] - kept[n]) / RATE for n in network.parameters})
        for program, kept in zip((ours, theirs), found, strict=True):
            kept["scores"] = program.evaluate(program.place(make_batch(network, 4, 99)))
            program.close()
        return found

    return train


def farthest(ours, theirs):
    """(largest difference by the reference's largest value, array it is in)."""
    assert list(ours) == list(theirs)
    return max(
        (float(np.abs(ours[n] - t).max() / (np.abs(t).max() + 1e-12)), n) for n, t in theirs.items()
    )


@pytest.mark.parametrize("network", list(image_networks()))
@pytest.mark.parametrize("framework", OTHERS)
def test_the_same_in_fp64(framework, network, trained):
    distance, where = farthest(*trained(framework, network, network))
    assert distance <= 1e-9, where


def small():
    """A convolution whose padding does not change its result's size, and a normalisation."""
    net = NetworkBuilder("small")
    x = net.conv(net.input("image", (3, 8, 8)), 4, kernel=3, stride=4, padding=1, bias=False)
    net.classify(net.linear(net.flatten(net.relu(net.batch_norm(x))), CLASSES))
    return net.build()


MUTATIONS = {
    "nothing": (BatchNorm, {}),
    "epsilon": (BatchNorm, {"epsilon": 1.1e-5}),
    "momentum": (BatchNorm, {"momentum": 0.11}),
    "padding": (Convolution, {"padding": (0, 0)}),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("framework", OTHERS)
def test_a_change_of_one_setting_is_seen(framework, mutation, trained):
    network = small()
    kind, setting = MUTATIONS[mutation]
    nodes = tuple(
        dataclasses.replace(node, layer=dataclasses.replace(node.layer, **setting))
        if isinstance(node.layer, kind)
        else node
        for node in network.nodes
    )
    distance, _ = farthest(*trained(framework, dataclasses.replace(network, nodes=nodes), network))
    assert (distance <= 1e-9) == (mutation == "nothing")
