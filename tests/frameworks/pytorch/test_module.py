import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from cubemesh import networks
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.networks.builder import NetworkBuilder

SIZES = {"little-cnn": 16, "cifarnet": 16, "alexnet": 63, "resnet-18": 32}


def two_heads():
    net = NetworkBuilder("two-heads")
    x = net.relu(net.conv(net.input("image", (3, 8, 8)), 4, kernel=3), name="trunk")
    side = net.flatten(net.conv(x, 2, kernel=3, name="side.conv"), name="side.flatten")
    net.classify(net.linear(side, 10, name="side.fc"), weight=0.3, train_only=True)
    net.classify(net.linear(net.flatten(x), 10, name="main.fc"))
    return net.build()


def tied():
    net = NetworkBuilder("tied")
    x = net.flatten(net.input("image", (1, 2, 4)))
    x = net.linear(x, 8, name="first")
    x = net.linear(x, 8, name="second", share={"weight": "first.weight"})
    net.classify(x)
    return net.build()


LIGHT = pytest.mark.parametrize("pair", [n for n in SIZES if n != "alexnet"], indirect=True)
"""Without AlexNet, which has no other kinds of layers and 57 million weights."""


@pytest.fixture(params=SIZES)
def pair(request, handwritten, set_weights):
    """(built from the graph, written by hand, images, labels), in float64 with equal weights."""
    network = networks.build(request.param, SIZES[request.param], 10)
    weights = network.draw(5)
    built = build_modules(network, dtype=torch.float64)
    built.load(weights)
    by_hand = handwritten.NETWORKS[request.param](SIZES[request.param], 10)
    set_weights(by_hand, network, weights)
    for module in (*built.training.modules(), *by_hand.modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(0)
    size = SIZES[request.param]
    images = torch.rand(4, 3, size, size, dtype=torch.float64)
    return built, by_hand, images, torch.tensor([0, 3, 9, 3])


def test_outputs_and_gradients_equal_those_of_handwritten_code(pair):
    built, by_hand, images, labels = pair
    (scores,) = built.training(images)
    expected = by_hand(images)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)
    F.cross_entropy(scores, labels).backward()
    F.cross_entropy(expected, labels).backward()
    for (name, own), theirs in zip(built.parameters.items(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-9, atol=1e-9, msg=name)


@LIGHT
def test_running_statistics_and_evaluation_equal_those_of_handwritten_code(pair):
    built, by_hand, images, _ = pair
    with torch.no_grad():
        built.training(images)
        by_hand(images)
        running = [b for n, b in by_hand.named_buffers() if "num_batches" not in n]
        for own, theirs in zip(built.state.values(), running, strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-9)
        built.training.eval()
        by_hand.eval()
        torch.testing.assert_close(built.evaluation(images)[0], by_hand(images))


@LIGHT
def test_the_forward_pass_stores_no_more_than_handwritten_code(pair):
    built, by_hand, images, _ = pair

    def saved_bytes(module):
        storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = (tensor, storage.nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = module(images)
        assert result is not None
        return sum(size for _, size in storages.values())

    own, theirs = saved_bytes(built.training), saved_bytes(by_hand)
    if built.network.name == "cifarnet":  # its normalization is written differently by hand
        assert own < 1.1 * theirs
    else:
        assert own == theirs


def test_a_value_is_freed_after_its_last_reader():
    built = build_modules(networks.build("vgg11", 32, 10))
    built.load(networks.build("vgg11", 32, 10).draw(0))
    outputs, most = [], 0

    def watch(module, inputs, output):
        nonlocal most
        storages = {w().untyped_storage().data_ptr() for w in outputs if w() is not None}
        most = max(most, len(storages | {output.untyped_storage().data_ptr()}))
        outputs.append(weakref.ref(output))

    for layer in built.training.modules():
        if not list(layer.children()):
            layer.register_forward_hook(watch)
    with torch.no_grad():
        built.training(torch.rand(1, 3, 32, 32))
    assert len(outputs) > 20
    assert most == 2, "in a chain a layer's input and output are all there is"


def test_print_shows_the_layers_of_the_network():
    built = build_modules(networks.build("resnet-18", 32, 10))
    text = str(built.training)
    assert text.startswith("Resnet18(\n")
    assert "(layer1): Module(\n    (0): Module(\n      (conv1): Conv2d(64, 64," in text
    assert "    layer1_0_relu1 = run_layer1_0_relu1(layer1_0_bn1); del layer1_0_bn1\n" in (
        built.training.code
    )
    assert built.training.code.endswith("    return (fc,)\n")
    names = set(dict(built.training.named_modules()))
    assert {"layer4.1.bn2", "layer2.0.downsample.0", "fc"} <= names


def test_any_name_of_a_layer_is_possible():
    net = NetworkBuilder("odd-names")
    x = net.flatten(net.input("class", (1, 2, 2)), name="run_x")
    for name in ("x", "a.b", "a_b", "2nd", "if", "x y"):
        x = net.linear(x, 4, name=name)
    net.classify(x)
    network = net.build()
    built = build_modules(network)
    built.load(network.draw(0))
    assert built.training(torch.rand(3, 1, 2, 2))[0].shape == (3, 4)
    assert {"a.b", "a_b", "2nd"} <= set(dict(built.training.named_modules()))


def test_a_traceback_shows_the_layer_that_failed():
    import traceback

    built = build_modules(networks.build("little-cnn", 8, 10))
    with pytest.raises(RuntimeError) as caught:
        built.training(torch.rand(1, 5, 8, 8))
    lines = "".join(traceback.format_exception(caught.value))
    assert "conv1 = run_conv1(image)" in lines


def test_state_dict_has_the_graph_s_names():
    network = networks.build("resnet-18", 32, 10)
    built = build_modules(network)
    wanted = {*network.parameters, *network.state}
    own = {n.replace("running_var", "running_variance") for n in built.training.state_dict()}
    assert own == wanted


def test_a_shared_parameter_stays_shared():
    built = build_modules(tied(), dtype=torch.float64)
    assert built.training.get_submodule("first").weight is built.parameters["first.weight"]
    assert built.training.get_submodule("second").weight is built.parameters["first.weight"]
    assert len(list(built.training.parameters())) == 3
    built.load(tied().draw(0))
    weight, b1, b2 = (p.detach().clone().requires_grad_() for p in built.parameters.values())
    x = torch.rand(4, 1, 2, 4, dtype=torch.float64)
    labels = torch.tensor([1, 2, 3, 4])
    F.cross_entropy(built.training(x)[0], labels).backward()
    F.cross_entropy((x.flatten(1) @ weight.T + b1) @ weight.T + b2, labels).backward()
    torch.testing.assert_close(built.parameters["first.weight"].grad, weight.grad)


def test_evaluation_omits_layers_for_training_only():
    built = build_modules(two_heads())
    built.load(two_heads().draw(0))
    assert [v.shape for v in built.training(torch.rand(2, 3, 8, 8))] == [(2, 10), (2, 10)]
    assert len(built.evaluation(torch.rand(2, 3, 8, 8))) == 1
    names = set(dict(built.evaluation.named_modules()))
    assert "main.fc" in names
    assert not any(name.startswith("side") for name in names)
    trunk = built.evaluation.get_submodule("trunk")
    assert trunk is built.training.get_submodule("trunk")


def test_dropout_is_active_in_training_only():
    net = NetworkBuilder("dropping")
    net.classify(net.dropout(net.flatten(net.input("image", (1, 100, 100))), 0.25, name="drop"))
    built = build_modules(net.build())
    ones = torch.ones(1, 1, 100, 100)
    torch.manual_seed(0)
    (dropped,) = built.training(ones)
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    built.training.eval()
    assert torch.equal(built.evaluation(ones)[0], ones.flatten(1))


def test_channels_last_weights_are_converted_once_and_returned_in_the_graph_s_layout():
    network = networks.build("resnet-18", 32, 10)
    built = build_modules(network, memory_format=torch.channels_last)
    drawn = network.draw(1)
    built.load(drawn)
    weight = built.parameters["layer1.0.conv1.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    for name, array in built.arrays().items():
        assert array.flags.c_contiguous, name
        assert np.array_equal(array, drawn[name]), name


def test_a_network_may_have_several_inputs():
    net = NetworkBuilder("pair")
    one, two = net.input("left", (4,)), net.input("right", (4,))
    net.classify(net.add(net.relu(one), two))
    left, right = torch.randn(3, 4), torch.randn(3, 4)
    (scores,) = build_modules(net.build()).training(left.clone(), right)
    assert torch.equal(scores, left.relu() + right)
