"""Which layers a hybrid by layer divides, read from the graph, and its memory; PyTorch's
test_tensor_parallel.py computes with them."""

import pytest

from cubemesh import networks
from cubemesh.frameworks.contract.divided_network import Redistribution
from cubemesh.frameworks.contract.gradient_sync import BUCKET_BYTES, TensorParallelSync
from cubemesh.frameworks.contract.group import SingleProcessGroup
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Multiply
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.parallel import strategies
from cubemesh.parallel.all_reduce import AllReduce
from cubemesh.parallel.hybrid_by_layer import (
    HybridByLayer,
    divide_fully_connected,
    gathered_values,
)
from cubemesh.schema.spec import Placement, ProgramSettings, RunSpec
from cubemesh.schema.work import TrainSteps


def moves(divided):
    return {
        node.name: (node.layer.source, node.layer.target)
        for node in divided.network.nodes
        if isinstance(node.layer, Redistribution)
    }


def test_fully_connected_layers_are_divided_and_what_is_before_them_has_own_samples():
    network = networks.build("alexnet", 64, 10)
    divided = divide_fully_connected(network, 2)
    assert divided.styles == dict.fromkeys(("fc6", "fc7", "fc8"), "columns")
    assert moves(divided) == {
        "drop6.gather": ("samples", "whole"),
        "drop7.gather": ("features", "whole"),
        "relu7.gather": ("features", "whole"),
    }
    layouts = divided.layouts
    assert {layouts[name] for name in ("image", "conv1", "pool5", "flatten", "drop6")} == {
        "samples"
    }
    assert {layouts[name] for name in ("fc6", "relu6", "drop7", "fc8")} == {"features"}
    convolutions = {name for name in network.parameters if name.startswith("conv")}
    assert set(divided.data_parallel) == convolutions
    assert {n for n, axis in divided.axes.items() if axis is None} == convolutions
    assert gathered_values(divided) == network.shapes["flatten"][0] + 2 * 4096


@pytest.mark.parametrize(
    ("name", "divided_layers"),
    [
        ("resnet-50", ("fc",)),
        ("efficientnet-b0", ("classifier.1",)),
        ("googlenet-paper", ("aux1.fc1", "aux1.fc2", "aux2.fc1", "aux2.fc2", "fc")),
    ],
)
def test_only_layers_that_no_convolution_follows_are_divided(name, divided_layers):
    """EfficientNet's linear layers within a block scale channels."""
    divided = divide_fully_connected(networks.build(name), 2)
    assert sorted(divided.styles) == sorted(divided_layers)
    known = {i.name for i in divided.network.inputs}
    for node in divided.network.nodes:
        assert set(node.inputs) <= known
        known.add(node.name)


def test_a_layer_that_treats_the_batch_as_one_reads_all_features_of_all_samples():
    net = NetworkBuilder("normalized")
    x = net.flatten(net.conv(net.input("image", (3, 4, 4)), 2, kernel=3, name="conv"))
    x = net.batch_norm(net.linear(x, 6, name="fc1"), name="bn")
    net.classify(net.linear(net.relu(x, name="relu"), 3, name="fc2"))
    divided = divide_fully_connected(net.build(), 2)
    assert moves(divided)["fc1.gather"] == ("features", "whole")
    assert divided.layouts["bn"] == divided.layouts["relu"] == "whole"
    assert set(divided.data_parallel) == {"conv.weight", "conv.bias"}


def test_scores_after_an_activation_are_gathered_for_the_loss():
    net = NetworkBuilder("activated")
    x = net.flatten(net.conv(net.input("image", (3, 4, 4)), 2, kernel=3))
    net.classify(net.relu(net.linear(x, 6, name="fc"), name="scores"))
    divided = divide_fully_connected(net.build(), 2)
    assert [head.value for head in divided.network.heads] == ["scores.gather"]
    assert divided.layouts["scores.gather"] == "whole"


def shared():
    """A weight of a linear layer before the fully connected part and within it."""
    net = NetworkBuilder("shared")
    x = net.conv(net.input("image", (3, 4, 4)), 4, kernel=1, name="conv")
    gate = net.linear(net.global_average_pool(x), 4, bias=False, name="gate")
    x = net.global_average_pool(net.add_layer(Multiply(), x, gate))
    net.classify(net.linear(x, 4, bias=False, share={"weight": "gate.weight"}, name="fc"))
    return net.build()


@pytest.mark.parametrize(
    ("network", "devices", "words"),
    [
        (
            lambda: networks.build("alexnet"),
            3,
            "the 4096 features of fc6 .* devices to one of 1, 2",
        ),
        (lambda: networks.build("resnet-18", 32, 3), 5, "the 3 features of fc .* of 1, 3, or"),
        (shared, 2, r"shares 'gate\.weight' between fc and a layer before"),
        (lambda: networks.build("unet"), 2, "does not end in fully connected layers"),
        (
            lambda: gpt("small-gpt", 8, 13, width=12, depth=1, heads=6),
            2,
            "no convolutions .* or tensor-parallel",
        ),
    ],
)
def test_what_it_cannot_divide_is_refused_with_what_to_set(network, devices, words):
    with pytest.raises(Unsupported, match=f"sync=hybrid-by-layer: .*{words}"):
        divide_fully_connected(network(), devices)


def test_it_has_buckets_of_the_convolutions_and_own_samples():
    sync = strategies.make("hybrid-by-layer", SingleProcessGroup())
    assert isinstance(sync, TensorParallelSync)
    assert sync.own_samples
    assert sync.bucket_bytes == BUCKET_BYTES
    program = ProgramSettings(sync="hybrid-by-layer", bucket_bytes=64)
    sync.configure(program)
    assert sync.bucket_bytes == 64
    assert HybridByLayer.ranks_per_sample(4, program) == 1


@pytest.mark.parametrize("steps", [1, 2])
def test_the_memory_forecast_has_a_part_of_the_fully_connected_weights(steps):
    """And gathers the samples of a micro-batch."""
    network = networks.build("alexnet")
    spec = RunSpec(
        work=TrainSteps(
            network="alexnet", batch_per_device=8, momentum=0.9, accumulation_steps=steps
        ),
        placement=Placement(devices=4),
        program=ProgramSettings(sync="hybrid-by-layer"),
    )
    needed = HybridByLayer.memory(spec, network, "cpu")
    whole = AllReduce.memory(spec, network, "cpu")
    convolutions, connected = 2_469_696, 58_631_144
    assert convolutions + connected == network.parameter_count
    own = 4 * (convolutions + connected // 4)
    assert needed.weight_bytes == needed.gradient_bytes == needed.optimizer_bytes == own
    gathered = 4 * 8 // steps * 4 * (9216 + 4096 + 4096)
    assert needed.activation_bytes == whole.activation_bytes + gathered
    assert needed.total_bytes < whole.total_bytes / 2
