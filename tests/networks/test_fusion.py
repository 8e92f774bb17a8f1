"""Fusions in random graphs: no value that is read is fused away."""

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.networks import fusion
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.fusion import (
    conv_fusions,
    fused_steps,
    norm_fusions,
    reads,
    relu_fusions,
    score_fusions,
)
from cubemesh.networks.graph import Node
from cubemesh.networks.layers import Add, BatchNorm, Convolution, MaxPool, ReLU


@st.composite
def graphs(draw):
    """Convolutions, normalizations, sums, poolings and ReLUs, each of whatever came before."""
    net = NetworkBuilder("drawn")
    values = [net.conv(net.input("image", (3, 4, 4)), 4, kernel=1)]
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["norm", "relu", "add", "conv", "pool", "relu"]))
        x = values[-1] if draw(st.booleans()) else draw(st.sampled_from(values))
        if kind == "norm":
            values.append(net.batch_norm(x))
        elif kind == "relu":
            values.append(net.relu(x))
        elif kind == "pool":
            values.append(net.max_pool(x, 3, stride=1, padding=1))
        elif kind == "add":
            values.append(net.add(x, draw(st.sampled_from(values))))
        else:
            values.append(net.conv(x, 4, kernel=1))
    net.classify(net.linear(net.flatten(values[-1]), 3))
    return net.build()


@settings(max_examples=40, deadline=None)
@given(graphs(), st.sampled_from(["none", "pairs", "chains"]))
def test_every_layer_runs_once_after_what_it_reads(network, relus):
    steps = fused_steps(network, relus=relus)
    needed = network.needed()
    ran = [n for s in steps for n in ((s.name,) if isinstance(s, Node) else s.nodes)]
    assert sorted(ran) == sorted(node.name for node in needed)
    made = {i.name for i in network.inputs}
    for step in steps:
        assert set(step.inputs) <= made
        made.add(step.name if isinstance(step, Node) else step.last.name)
    assert {head.value for head in network.heads} <= made


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_nothing_that_is_fused_away_is_read_and_every_norm_is_in_a_fusion(network):
    needed = network.needed()
    layers = {node.name: node.layer for node in needed}
    read = reads(network, fused_steps(network))
    for found in norm_fusions(network):
        assert all(name not in read for name in found.nodes[:-1])
        kinds = [type(layers[name]) for name in found.nodes]
        assert kinds[0] is BatchNorm
        assert kinds in ([BatchNorm], [BatchNorm, ReLU], [BatchNorm, Add], [BatchNorm, Add, ReLU])
        assert found.relu == (kinds[-1] is ReLU)
        assert (found.residual is not None) == (Add in kinds)
    norms = {f.norm.name for f in norm_fusions(network)}
    assert norms == {name for name, layer in layers.items() if isinstance(layer, BatchNorm)}


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_a_relu_is_fused_with_a_pooling_or_a_convolution_that_has_no_other_reader(network):
    needed = network.needed()
    layers = {node.name: node.layer for node in needed}
    read = reads(network, fused_steps(network, relus="pairs"))
    in_norms = {name for found in norm_fusions(network) for name in found.nodes}
    for found in relu_fusions(network):
        assert found.first.name not in read
        assert in_norms.isdisjoint(found.nodes)
        kinds = tuple(type(layers[name]) for name in found.nodes)
        assert kinds in ((ReLU, MaxPool), (MaxPool, ReLU), (Convolution, ReLU))
        assert found.main in (found.first, found.last)
        assert not isinstance(found.main.layer, ReLU)


def test_a_relu_between_a_convolution_and_a_pooling_goes_with_the_pooling():
    net = NetworkBuilder("block")
    x = net.relu(net.conv(net.input("image", (3, 4, 4)), 4, kernel=1), name="one")
    x = net.relu(net.conv(x, 4, kernel=1, name="conv"), name="two")
    net.classify(net.linear(net.flatten(net.max_pool(x, 2, name="pool")), 3))
    first, second = relu_fusions(net.build())
    assert first.last.name == "one"
    assert (second.nodes, second.main.name, second.inputs) == (("two", "pool"), "pool", ("conv",))


def test_a_residual_block_is_two_fusions_and_the_later_norm_takes_the_sum():
    net = NetworkBuilder("block")
    x = net.input("image", (3, 4, 4))
    y = net.relu(net.batch_norm(net.conv(x, 4, kernel=1)))
    branch = net.batch_norm(net.conv(y, 4, kernel=1), name="branch")
    short = net.batch_norm(net.conv(y, 4, kernel=1), name="short")
    net.classify(net.linear(net.flatten(net.relu(net.add(branch, short), name="out")), 3))
    first, second, third = norm_fusions(net.build())
    assert (first.relu, first.residual) == (True, None)
    assert second.nodes == ("branch",)
    assert third.nodes[0] == "short"
    assert (third.last.name, third.residual, third.relu) == ("out", "branch", True)


@pytest.mark.parametrize("twice", [True, False])
def test_a_normalized_value_with_two_readers_is_not_fused(twice):
    net = NetworkBuilder("two-readers")
    norm = net.batch_norm(net.input("image", (3, 4, 4)))
    other = norm if twice else net.conv(norm, 3, kernel=1)
    net.classify(net.linear(net.flatten(net.add(net.relu(norm), other)), 3))
    (found,) = norm_fusions(net.build())
    assert len(found.nodes) == 1


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_a_convolution_is_fused_with_its_relu_and_the_pooling_after_it(network):
    layers = {node.name: node.layer for node in network.needed()}
    read = reads(network, fused_steps(network, relus="chains"))
    in_norms = {name for found in norm_fusions(network) for name in found.nodes}
    for found in conv_fusions(network):
        assert all(name not in read for name in found.nodes[:-1])
        assert in_norms.isdisjoint(found.nodes)
        kinds = [type(layers[name]) for name in found.nodes]
        assert kinds == [Convolution, ReLU, *([MaxPool] if found.pool else [])]
        assert found.last.name == found.nodes[-1]


def test_a_convolution_without_bias_is_left_to_pooling():
    net = NetworkBuilder("unbiased")
    x = net.input("image", (3, 8, 8))
    x = net.max_pool(net.relu(net.conv(x, 4, kernel=3, bias=False)), 2)
    net.classify(net.linear(net.flatten(x), 3))
    assert conv_fusions(net.build()) == ()


def perceptron(*, bias=False, features=1, head=False):
    """Scores by a perceptron; with `head` the hidden layer is read twice."""
    net = NetworkBuilder("scores")
    tokens = net.token_input("source", 6, 20)
    queries = net.linear(net.embedding(tokens, 4), 4, name="queries")
    keys = net.linear(net.embedding(tokens, 4), 4, name="keys")
    hidden = net.tanh(net.pair_sum(queries, keys, name="sum"), name="tanh")
    x = net.linear(hidden, features, bias=bias, name="score")
    net.classify(net.add(x, hidden) if head else x)
    return net.build()


def test_the_scores_of_a_perceptron_are_one_step():
    network = perceptron()
    (found,) = score_fusions(network)
    assert found.nodes == ("sum", "tanh", "score")
    assert found.inputs == ("queries", "keys")
    assert found in fused_steps(network)
    assert not {"sum", "tanh"} & set(reads(network, fused_steps(network)))


@pytest.mark.parametrize("other", [{"bias": True}, {"features": 4}, {"features": 4, "head": True}])
def test_a_perceptron_with_more_than_one_output_per_pair_is_not_fused(other):
    assert score_fusions(perceptron(**other)) == ()


def test_it_knows_no_network_by_name():
    tree = ast.parse(Path(fusion.__file__).read_text())
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert modules == {
        "__future__",
        "collections",
        "dataclasses",
        "typing",
        "cubemesh.networks.graph",
        "cubemesh.networks.layers",
    }
