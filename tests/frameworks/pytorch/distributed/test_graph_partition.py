"""How a network is cut, on networks small enough to see through; nothing is compiled here."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cubemesh import networks
from cubemesh.frameworks.pytorch.distributed.graph_partition import build_stages, partition
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.program import total_loss
from cubemesh.networks.builder import NetworkBuilder


def two_heads():
    """An auxiliary head that ends in the first segment, and a value read two segments later."""
    net = NetworkBuilder("two-heads")
    x = net.input("image", (3, 6, 6))
    with net.segment("stem"):
        x = net.relu(net.conv(x, 4, kernel=3, padding=1))
        early = net.linear(net.flatten(x), 5)
    net.classify(early, weight=0.3, train_only=True)
    with net.segment("middle"):
        y = net.conv(x, 4, kernel=1)
    with net.segment("end-1"):
        net.classify(net.linear(net.global_average_pool(net.add(y, x)), 5))
    return net.build()


def staged_and_eager(network, compiled=lambda function: function):
    built = build_modules(network, dtype=torch.float64, overwrite=False)
    built.load(network.draw(0))
    staged = build_stages(built, partial(total_loss, network.heads), compiled)
    return staged, lambda x, y: total_loss(network.heads, built.training(x), y), built.parameters


def test_inputs_and_results_of_stages():
    stem, middle, end = partition(two_heads(), "segment")
    conv, relu, _, head = (node.name for node in stem.nodes)
    assert (stem.inputs, stem.results) == (("image",), (relu, head))
    assert middle.inputs == (relu,)
    assert middle.results == (middle.nodes[-1].name,)
    assert set(end.inputs) == {relu, middle.results[0], head}
    assert end.results == (head, end.nodes[-1].name)
    assert end.name == "stage3_end_1"
    assert conv not in stem.results


def test_a_network_without_segments_is_one_stage():
    net = NetworkBuilder("plain")
    net.classify(net.linear(net.flatten(net.input("image", (1, 2, 2))), 3))
    (stage,) = partition(net.build(), "segment")
    assert stage.name == "stage1"
    assert stage.inputs == ("image",)


def test_the_network_as_one_stage_has_every_layer_its_heads_need():
    network = two_heads()
    (stage,) = partition(network, "network")
    assert stage.nodes == network.needed()
    assert stage.inputs == ("image",)
    assert stage.results == tuple(head.value for head in network.heads)


@pytest.mark.parametrize("network", [two_heads(), networks.build("resnet-18", 32, 10)])
def test_stages_equal_the_whole_network(network):
    staged, eager, parameters = staged_and_eager(network)
    rng = np.random.default_rng(0)
    shape = (4, *network.inputs[0].shape)
    images = torch.from_numpy(rng.random(shape))
    labels = torch.from_numpy(rng.integers(0, network.targets[0].classes, 4))
    losses, gradients = [], []
    for run in (staged.run, eager):
        loss = run(images, labels)
        gradients.append(torch.autograd.grad(loss, list(parameters.values())))
        losses.append(loss)
    assert torch.equal(*losses)
    assert all(map(torch.equal, *gradients))


def test_each_stage_is_compiled_by_itself_and_the_loss_with_the_last():
    given = []
    staged, *_ = staged_and_eager(two_heads(), lambda function: given.append(function) or function)
    assert [function.__name__ for function in given] == ["forward", "forward", "forward_to_loss"]
    assert len({function.__code__ for function in given}) == 3
    assert "run_stage2_middle(relu1)" in staged.code
    assert "; del image" in staged.code
