"""Shapes, parameters and costs of the layers of sequences, worked out by hand."""

from __future__ import annotations

import pytest

from cubemesh.errors import UsageError
from cubemesh.networks.cost import LayerCost, costs
from cubemesh.networks.sequence_builder import SequenceBuilder
from cubemesh.networks.sequence_layers import (
    GELU,
    Attention,
    ClassToken,
    Embedding,
    LayerNorm,
    PositionEmbedding,
    SelectPosition,
    Tokens,
)
from cubemesh.schema.cost import Cost

SEQUENCE = (5, 12)


@pytest.mark.parametrize(
    ("layer", "given", "expected", "parameters"),
    [
        (LayerNorm(), SEQUENCE, SEQUENCE, {"weight": (12,), "bias": (12,)}),
        (GELU(), SEQUENCE, SEQUENCE, {}),
        (Attention(heads=2), SEQUENCE, (5, 4), {}),
        (Tokens(), (6, 3, 4), (12, 6), {}),
        (Embedding(vocabulary=9, features=4), (5,), (5, 4), {"weight": (9, 4)}),
        (ClassToken(), SEQUENCE, (6, 12), {"token": (12,)}),
        (PositionEmbedding(), SEQUENCE, SEQUENCE, {"weight": SEQUENCE}),
        (SelectPosition(position=4), SEQUENCE, (12,), {}),
    ],
)
def test_shapes_and_parameters(layer, given, expected, parameters):
    assert layer.output_shape(given) == expected
    assert {role: p.shape for role, p in layer.parameters(given).items()} == parameters
    assert layer.state(given) == {}


@pytest.mark.parametrize(
    ("layer", "given", "message"),
    [
        (Attention(heads=5), SEQUENCE, "12 features do not divide .* of 5 heads"),
        (Attention(heads=2), (12,), r"Attention needs \(length, features\)"),
        (Embedding(vocabulary=9, features=4), SEQUENCE, r"needs tokens \(length,\)"),
        (Tokens(), SEQUENCE, r"Tokens needs \(channels, height, width\)"),
        (SelectPosition(position=5), SEQUENCE, "no position 5 in 5"),
    ],
)
def test_what_does_not_fit_is_refused(layer, given, message):
    with pytest.raises(UsageError, match=message):
        layer.output_shape(given)


def of_last(add_layer, features=12, batch=2):
    """Cost of the layer `add_layer(net, x)` puts behind a linear layer on 5 positions, batch 2."""
    net = SequenceBuilder("net")
    x = add_layer(net, net.linear(net.input("x", (5, 3)), features))
    net.classify(net.flatten(x))
    network = net.build()
    return costs(network, batch)[network.nodes[1].name]


X = 2 * 5 * 12  # 120 values come in, in 10 positions


def test_layer_norm():
    assert of_last(lambda net, x: net.layer_norm(x)) == LayerCost(
        forward=Cost(
            other_flops=8 * X,
            read_bytes=4 * (X + 24),
            written_bytes=4 * (X + 20),
            saved_bytes=4 * (X + 20),
        ),
        data_gradient=Cost(
            other_flops=8 * X, read_bytes=4 * (2 * X + 12 + 20), written_bytes=4 * X
        ),
        weight_gradient=Cost(other_flops=5 * X, read_bytes=4 * (2 * X + 20), written_bytes=4 * 24),
    )


@pytest.mark.parametrize(("form", "operations"), [("erf", 5), ("tanh", 9)])
def test_gelu_keeps_its_input(form, operations):
    assert of_last(lambda net, x: net.gelu(x, form)) == LayerCost(
        forward=Cost(
            other_flops=operations * X, read_bytes=4 * X, written_bytes=4 * X, saved_bytes=4 * X
        ),
        data_gradient=Cost(
            other_flops=2 * operations * X, read_bytes=4 * 2 * X, written_bytes=4 * X
        ),
    )


def test_attention():
    # y = 2 · 5 · 4 = 40 values in 2 heads: 2 · 2 · 5 · 5 = 100 scores, 20 logarithms of sums.
    assert of_last(lambda net, x: net.attention(x, 2)) == LayerCost(
        forward=Cost(
            matrix_flops=2 * 2 * 40 * 5,
            other_flops=600,
            read_bytes=4 * X,
            written_bytes=4 * (40 + 20),
            saved_bytes=4 * (X + 40 + 20),
        ),
        data_gradient=Cost(
            matrix_flops=4 * 2 * 40 * 5,
            other_flops=300 + 80,
            read_bytes=4 * (X + 80 + 20),
            written_bytes=4 * X,
        ),
    )


def test_an_embedding_picks_rows():
    # 10 tokens of 8 bytes, 4 values each; its gradient is an array of 9 · 4 with 40 additions.
    net = SequenceBuilder("net")
    net.classify(net.embedding(net.token_input("tokens", 5, 9), 4))
    network = net.build()
    assert costs(network, 2)[network.nodes[0].name] == LayerCost(
        forward=Cost(read_bytes=80 + 4 * 40, written_bytes=4 * 40),
        weight_gradient=Cost(
            other_flops=40, read_bytes=80 + 4 * 80, written_bytes=4 * (9 * 4 + 40)
        ),
    )


def test_a_class_token_is_copied_and_learned():
    # 6 positions come out: 144 values, 24 of them the token's.
    assert of_last(lambda net, x: net.class_token(x)) == LayerCost(
        forward=Cost(read_bytes=4 * (X + 12), written_bytes=4 * 144),
        weight_gradient=Cost(other_flops=24, read_bytes=4 * 24, written_bytes=4 * 12),
    )


def test_a_position_embedding_is_added():
    assert of_last(lambda net, x: net.position_embedding(x)) == LayerCost(
        forward=Cost(other_flops=X, read_bytes=4 * (X + 60), written_bytes=4 * X),
        weight_gradient=Cost(other_flops=X, read_bytes=4 * X, written_bytes=4 * 60),
    )


def test_a_position_is_a_view_whose_gradient_is_not():
    assert of_last(lambda net, x: net.select(x)) == LayerCost(
        data_gradient=Cost(read_bytes=4 * 24, written_bytes=4 * X)
    )
