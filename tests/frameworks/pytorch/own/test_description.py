"""Modules of a user: which become a graph that computes the same, what of the others is counted."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import own_modules
from cubemesh.errors import DataError
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.own.description import DescriptionRequest, describe
from cubemesh.frameworks.pytorch.own.source import load, scores_of
from cubemesh.networks import layers
from cubemesh.networks.cost import totals
from cubemesh.networks.memory import forecast
from cubemesh.networks.opaque import Opaque
from cubemesh.networks.own_networks import network_of
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.user_code import UserCodeError, UserObject, digest

FILE = Path(own_modules.__file__)
IMAGE, TOKENS = (3, 8, 8), (6,)


def code(name: str) -> UserObject:
    return UserObject(name=f"{FILE}:{name}", folder=str(FILE.parent))


@functools.cache
def described(name: str):
    tokens = name in ("Language", "Decoder")
    return describe(
        DescriptionRequest(
            named=code(name),
            input_shape=TOKENS if tokens else IMAGE,
            vocabulary=11 if tokens else None,
        )
    )


def kinds(name: str) -> list[type]:
    own = described(name)
    assert (own.fault, own.untraced) == ("", "")
    return [type(node.layer) for node in network_of(own).nodes]


def test_a_convolutional_network_becomes_a_graph():
    found = kinds("Residual")
    assert found.count(layers.Convolution) == 4
    assert found.count(layers.BatchNorm) == 3
    assert found[-4:] == [layers.Add, layers.ReLU, layers.GlobalAveragePool, layers.Linear]
    network = network_of(described("Residual"))
    assert network.parameter_count == sum(p.numel() for p in own_modules.Residual().parameters())
    assert {"block.conv1.weight", "block.shortcut.0.weight"} <= set(network.parameters)
    assert [s.name for s in network.segments] == ["stem", "block", "mean", "fc"]


def test_a_dilated_convolution_becomes_a_graph():
    """Also one that keeps the size of its image."""
    assert of_kind("Dilated", layers.Convolution) == [
        layers.Convolution(filters=4, kernel=(3, 3), padding=(2, 1), dilation=(2, 1)),
        layers.Convolution(filters=4, kernel=(3, 2), dilation=(2, 2)),
    ]


def test_branches_become_a_graph():
    assert kinds("Branches")[-4:] == [
        *(layers.MaxPool, layers.GlobalAveragePool, layers.Dropout, layers.Linear)
    ]


def test_transformers_become_graphs():
    vision, language = kinds("Vision"), kinds("Language")
    assert {layers.Tokens, layers.ClassToken, layers.PositionEmbedding} <= set(vision)
    assert {layers.Attention, layers.GELU, layers.SelectPosition} <= set(vision)
    network = network_of(described("Language"))
    attention = next(n.layer for n in network.nodes if isinstance(n.layer, layers.Attention))
    assert attention == layers.Attention(heads=2, causal=True)
    head = next(n for n in network.nodes if n.name == "head")
    assert head.parameters["weight"] == "words.weight"  # tied
    assert len(language) == len(network.nodes)


def of_kind(name: str, kind: type) -> list:
    assert kind in kinds(name)
    return [n.layer for n in network_of(described(name)).nodes if isinstance(n.layer, kind)]


def test_gates_and_functions_written_in_several_operators_become_layers():
    found = of_kind("Gates", layers.Activation)
    assert [layer.function for layer in found] == ["silu", "hard-swish", "relu6", "hard-sigmoid"]
    assert [layer.form for layer in of_kind("Gates", layers.GELU)] == ["tanh"]
    assert len(of_kind("Gates", layers.Multiply)) == 2
    convolutions = of_kind("Gates", layers.Convolution)
    assert convolutions[-1].groups == 8  # depthwise
    assert len(convolutions) == 2  # those of one position are matrix products
    (dropout,) = of_kind("Gates", layers.Dropout)
    assert dropout == layers.Dropout(rate=0.25, per_sample=True)  # stochastic depth


def test_channels_are_shuffled_and_last():
    assert of_kind("Shuffled", layers.SelectChannels)[-1].channels == (0, 4, 1, 5)
    one, other = of_kind("Halves", layers.SelectChannels)
    assert {one.channels, other.channels} == {tuple(range(6)), tuple(range(6, 12))}
    found = kinds("ChannelsLast")
    assert {layers.Tokens, layers.LayerNorm, layers.Scale} <= set(found)
    assert of_kind("ChannelsLast", layers.ToImage) == [layers.ToImage(size=(4, 4))]
    assert {layers.Transpose, layers.GlobalAveragePool} <= set(kinds("Mixer"))


def test_a_decoder_has_rotary_positions_and_grouped_queries():
    assert of_kind("Decoder", layers.RotaryEmbedding) == [
        layers.RotaryEmbedding(heads=4, base=500.0),
        layers.RotaryEmbedding(heads=2, base=500.0),
    ]
    assert of_kind("Decoder", layers.Attention) == [
        layers.Attention(heads=4, causal=True, dropout=0.1, key_value_heads=2)
    ]
    assert [norm.epsilon for norm in of_kind("Decoder", layers.RMSNorm)] == [1e-5, 1e-6]
    words, types, places = (None, *of_kind("Decoder", layers.PositionEmbedding))
    assert words is None
    assert (types.rows, types.first, types.shared) == (2, 1, True)
    assert (places.rows, places.first, places.shared) == (20, 3, False)


def test_the_counts_of_a_graph_are_those_of_pytorch():
    """Those of the module, which the description counts when it cannot trace it."""
    graph = totals(network_of(described("Residual")))
    other = described("OnlyInTraining")
    assert "in training" in other.untraced
    counted = totals(network_of(other))
    assert graph.forward.matrix_flops == counted.forward.matrix_flops
    assert graph.backward.matrix_flops == counted.backward.matrix_flops


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Gated", "the weight is frozen"),
        ("Softmax", "no layer type for aten.softmax"),
        ("Rooted", "no layer type for the function of each value"),
        ("Branching", "torch.export cannot trace it"),
    ],
)
def test_what_has_no_graph_is_one_layer_with_its_counts(name, why):
    own = described(name)
    assert own.fault == ""
    assert why in own.untraced
    network = network_of(own)
    (node,) = network.nodes
    assert isinstance(node.layer, Opaque)
    assert "module.frozen" not in network.parameters
    cost, memory = totals(network, 4), forecast(network, 4)
    assert cost.forward.matrix_flops > 0
    assert cost.backward.matrix_flops > 0
    assert memory.activation_bytes >= 4 * 4 * node.layer.saved_values
    assert from_plain(type(own), to_plain(own)) == own


def test_an_opaque_module_computes_with_the_arrays_of_the_program():
    network = network_of(described("Gated"))
    built = build_modules(network)
    built.load(network.draw(0))
    module = load(code("Gated"))
    with torch.no_grad():
        for name, array in built.parameters.items():
            module.get_parameter(name.removeprefix("module.")).copy_(array)
    x = torch.rand(2, *IMAGE)
    (found,) = built.training(x)
    assert torch.equal(found, scores_of(module.train()(x)))
    found.sum().backward()
    assert all(p.grad is not None for p in built.parameters.values())
    statistics = built.state["module.norm.running_mean"]
    assert torch.equal(statistics, module.norm.running_mean)
    assert statistics.abs().sum() > 0


def test_a_lazy_module_is_shaped_by_its_description():
    network = network_of(described("Dilated"))
    built = build_modules(network)
    built.load(network.draw(0))
    assert built.training(torch.rand(2, *IMAGE))[0].shape == (2, 10)


def test_weights_begin_with_the_spread_that_the_module_gives_them():
    network = network_of(described("Residual"))
    torch.manual_seed(0)
    own = own_modules.Residual().fc.weight.detach()
    initializer = network.parameters["fc.weight"].initializer
    assert initializer.scale == pytest.approx(float(own.std(unbiased=False)), rel=0.01)
    drawn = network.draw(0)
    assert (drawn["block.bn1.weight"] == 1).all()
    assert (drawn["block.bn1.running_mean"] == 0).all()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_module", "returned an object of type list"),
        ("raises", "building it raised RuntimeError: no weights here (own_modules.py, line "),
        ("exits", "building it called sys.exit('enough') (own_modules.py, line "),
        ("number", "is of type int"),
        ("wrong_shape", "running it on images of 3×8×8 raised RuntimeError: mat1 and mat2"),
        ("map_of_scores", "returned values of shape (2, 4, 6, 6)"),
        ("nothing_trained", "has no parameter that its scores depend on"),
        ("Residul", "there is no Residul in own_modules.py; it has "),
    ],
)
def test_a_broken_module_has_a_fault_in_one_sentence(name, words):
    own = described(name)
    assert own.fault.startswith(f"own_modules.py:{name}")
    assert words in own.fault
    assert "\n" not in own.fault
    assert own.fault.endswith(".")
    assert network_of(own).parameter_count == 0


def test_a_module_that_exists_is_taken_and_a_function_is_called():
    assert kinds("ready") == [layers.Flatten, layers.Linear]
    assert kinds("residual") == kinds("Residual")


def test_a_file_that_changed_after_the_command_began_is_refused():
    assert described("Gated").digest == digest(code("Gated"))
    own = replace(described("Gated"), digest="0" * 16)
    with pytest.raises(UserCodeError, match="changed after the command began"):
        build_modules(network_of(own))


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"inputs":[],"output":"x","nodes":[],"arrays":{}}', "{" * 500]
)
def test_a_damaged_description_is_a_data_error(damage):
    with pytest.raises(DataError, match="is damaged"):
        network_of(replace(described("ready"), graph=damage))
