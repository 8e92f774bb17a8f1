"""The same network in TensorFlow, Keras and PyTorch: from the same weights and batch, the same
numbers.

In fp64 to 1e-9 of each array's largest value; in fp32 a framework may be four times as far from
fp64 as PyTorch is. Dropout is taken out, for no two frameworks draw alike.
"""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.frameworks import entry
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import BatchNorm, Dropout, LocalResponseNorm

FRAMEWORKS = ["tensorflow", "tensorflow-xla", "keras"]
SIZES = {"little-cnn": 16, "cifarnet": 16, "resnet-18": 32}
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "weight_decay": 0.01},
    "rmsprop": {"learning_rate": 0.001, "weight_decay": 0.01},
    "adam": {"learning_rate": 0.001, "weight_decay": 0.01},
}


def mixed():
    """What the three networks leave out: hanging and padded windows, groups, two heads, both
    response normalisations of odd and even size, batch normalisation without an image."""
    net = NetworkBuilder("mixed")
    x = net.relu(net.conv(net.input("image", (3, 17, 14)), 8, kernel=(3, 2), stride=2, padding=1))
    x = net.lrn(x, LocalResponseNorm(size=4, alpha=0.5))
    x = net.lrn(x, LocalResponseNorm(size=3, alpha=0.5))
    x = net.max_pool(x, 3, stride=2, padding=1, ceil_mode=True)
    x = net.batch_norm(net.conv(x, 6, kernel=3, padding=1, groups=2, bias=False))
    x = net.lrn(x, LocalResponseNorm(size=2, alpha=0.5, region="within"))
    x = net.concat(x, net.max_pool(x, 3, stride=1, padding=1))
    x = net.average_pool(x, 3, stride=2, padding=1, ceil_mode=True)
    net.classify(net.linear(net.global_average_pool(x), 5), weight=0.3, train_only=True)
    x = net.batch_norm(net.linear(net.flatten(x), 7, bias=False))
    net.classify(net.linear(x, 5))
    return net.build()


def build(name):
    network = mixed() if name == "mixed" else networks.build(name, SIZES[name], 10)
    nodes = [
        dataclasses.replace(node, layer=Dropout(rate=0.0))
        if isinstance(node.layer, Dropout)
        else node
        for node in network.nodes
    ]
    return dataclasses.replace(network, nodes=tuple(nodes))


def weights_of(network):
    """Weights of a network whose state is not the trivial one."""
    weights = network.draw(2)
    rng = np.random.default_rng(3)
    for name in network.state:
        weights[name] = rng.uniform(0.5, 1.5, weights[name].shape).astype(np.float32)
    return weights


@pytest.fixture
def trained(make_request, make_batch):
    """(framework, network, steps) → losses and evaluation scores, and the arrays afterwards."""

    def train(framework, network, steps, **fields):
        fields = {"layout": "nhwc", **fields}
        program = entry(framework).load().build(make_request(network, **fields))
        program.load(weights_of(network))
        losses = []
        for seed in range(steps):
            program.train_step(program.place(make_batch(network, 4, seed)))
            losses.append(program.loss())
        scores = program.evaluate(program.place(make_batch(network, 4, 99)))
        found = {"losses": np.array(losses), "scores": scores, **program.state()}
        program.close()
        return found

    return train


def distances(found, reference):
    """Of each array, the largest difference by the reference's largest value."""
    assert list(found) == list(reference)
    return {
        name: np.abs(found[name] - wanted).max() / (np.abs(wanted).max() + 1e-30)
        for name, wanted in reference.items()
    }


def assert_same(found, reference, limit=1e-9):
    far = {n: d for n, d in distances(found, reference).items() if not d <= limit}
    assert not far


def assert_one_step_agrees(trained, framework, network, layout):
    step = {"precision": "fp64", "learning_rate": 1.0, "momentum": 0.0, "layout": layout}
    ours, theirs = (trained(f, network, 1, **step) for f in (framework, "pytorch"))
    before = weights_of(network)
    for found in (ours, theirs):  # the change of a weight in such a step is its gradient
        found.update({n: before[n] - found[n] for n in network.parameters})
    assert_same(ours, theirs)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", [*SIZES, "mixed"])
def test_outputs_gradients_and_statistics_in_fp64(name, framework, trained):
    assert_one_step_agrees(trained, framework, build(name), "nhwc")


@pytest.mark.parametrize("name", ["little-cnn", "mixed"])
def test_xla_agrees_with_the_channels_first_too(name, trained):
    assert_one_step_agrees(trained, "tensorflow-xla", build(name), "nchw")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_three_steps_with_each_optimizer(optimizer, framework, trained):
    settings = {"precision": "fp64", "optimizer": optimizer, **OPTIMIZERS[optimizer]}
    assert_same(*(trained(f, mixed(), 3, **settings) for f in (framework, "pytorch")))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["little-cnn", "mixed"])
def test_fp32_is_as_near_to_fp64_as_pytorch_s(name, framework, trained):
    network = build(name)
    step = {"learning_rate": 0.01, "momentum": 0.0}
    reference = trained("pytorch", network, 1, precision="fp64", **step)
    theirs = distances(trained("pytorch", network, 1, **step), reference)
    ours = distances(trained(framework, network, 1, **step), reference)
    own = max(theirs.values())
    assert 0 < own < 1e-3
    assert max(ours.values()) <= 4 * own


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_comparison_sees_a_changed_epsilon(framework, trained):
    changed = mixed()
    nodes = [
        dataclasses.replace(node, layer=dataclasses.replace(node.layer, epsilon=1.1e-5))
        if isinstance(node.layer, BatchNorm)
        else node
        for node in changed.nodes
    ]
    ours = trained(framework, dataclasses.replace(changed, nodes=tuple(nodes)), 1, precision="fp64")
    with pytest.raises(AssertionError):
        assert_same(ours, trained("pytorch", mixed(), 1, precision="fp64"))
