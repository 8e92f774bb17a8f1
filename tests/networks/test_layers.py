from __future__ import annotations

import pytest

from cubemesh.errors import UsageError
from cubemesh.networks.activation_memory import SAVED_TENSOR_RULES
from cubemesh.networks.flops import COUNTS
from cubemesh.networks.layers import (
    ALL_LAYERS,
    GELU,
    GRU,
    LSTM,
    RNN,
    Activation,
    Add,
    Attention,
    AveragePool,
    BatchNorm,
    BinaryScores,
    ClassToken,
    Columns,
    Concat,
    Convolution,
    DotInteraction,
    Dropout,
    Embedding,
    EmbeddingBags,
    Experts,
    Flatten,
    GlobalAveragePool,
    InputFeedingDecoder,
    Layer,
    LayerNorm,
    Linear,
    LoadBalance,
    LocalResponseNorm,
    MaxPool,
    Multiply,
    PixelShuffle,
    PositionEmbedding,
    Recurrence,
    ReLU,
    RMSNorm,
    RotaryEmbedding,
    Scale,
    SelectChannels,
    SelectPosition,
    Sigmoid,
    ToImage,
    Tokens,
    Transpose,
)
from cubemesh.networks.opaque import Opaque

IMAGE = (6, 9, 7)
SEQUENCE = (5, 12)
WINDOW = {"kernel": (3, 3), "stride": (2, 2)}


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"),
    [
        (Convolution(filters=4, kernel=(3, 5), stride=(2, 1), padding=(1, 0)), [IMAGE], (4, 5, 3)),
        (Convolution(filters=4, kernel=(3, 2), dilation=(4, 6)), [IMAGE], (4, 1, 1)),
        (
            Convolution(filters=4, kernel=(3, 3), padding=(2, 2), dilation=(2, 2)),
            [IMAGE],
            (4, 9, 7),
        ),
        (Linear(features=10), [(12,)], (10,)),
        (Linear(features=10), [(3, 12)], (3, 10)),
        (BatchNorm(), [IMAGE], IMAGE),
        (LocalResponseNorm(), [IMAGE], IMAGE),
        (ReLU(), [IMAGE], IMAGE),
        (Add(), [IMAGE, IMAGE], IMAGE),
        (Concat(), [IMAGE, (2, 9, 7), (1, 9, 7)], (9, 9, 7)),
        (Concat(), [(6,), (7,)], (13,)),
        (Dropout(rate=0.1), [IMAGE], IMAGE),
        (Flatten(), [IMAGE], (378,)),
        (MaxPool(**WINDOW), [IMAGE], (6, 4, 3)),
        (MaxPool(**WINDOW, ceil_mode=True), [(6, 8, 8)], (6, 4, 4)),
        (AveragePool(**WINDOW, padding=(1, 1)), [IMAGE], (6, 5, 4)),
        (GlobalAveragePool(), [IMAGE], (6,)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Layer) else None,
)
def test_output_shape(layer, inputs, expected):
    assert layer.output_shape(*inputs) == expected


def test_parameters_and_state():
    conv = Convolution(filters=8, kernel=(3, 5), groups=2)
    assert {r: p.shape for r, p in conv.parameters(IMAGE).items()} == {
        "weight": (8, 3, 3, 5),
        "bias": (8,),
    }
    assert list(Convolution(filters=8, kernel=(3, 3), bias=False).parameters(IMAGE)) == ["weight"]
    assert {r: p.shape for r, p in Linear(features=5).parameters((12,)).items()} == {
        "weight": (5, 12),
        "bias": (5,),
    }
    assert {r: p.shape for r, p in BatchNorm().parameters(IMAGE).items()} == {
        "weight": (6,),
        "bias": (6,),
    }
    state = BatchNorm().state(IMAGE)
    assert {r: (p.shape, p.initializer.kind) for r, p in state.items()} == {
        "running_mean": ((6,), "zeros"),
        "running_variance": ((6,), "ones"),
    }
    for layer in (
        ReLU(),
        Add(),
        Concat(),
        Dropout(),
        Flatten(),
        LocalResponseNorm(),
        MaxPool(**WINDOW),
    ):
        assert layer.parameters(IMAGE) == layer.state(IMAGE) == {}


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
        (PositionEmbedding(rows=9, first=4), SEQUENCE, SEQUENCE, {"weight": (9, 12)}),
        (RMSNorm(), SEQUENCE, SEQUENCE, {"weight": (12,)}),
        (RotaryEmbedding(heads=3), SEQUENCE, SEQUENCE, {}),
        (ToImage(size=(5, 1)), SEQUENCE, (12, 5, 1), {}),
        (Transpose(), SEQUENCE, (12, 5), {}),
        (SelectChannels(channels=(3, 1)), SEQUENCE, (5, 2), {}),
        (SelectChannels(channels=(3, 1)), IMAGE, (2, 9, 7), {}),
        (PixelShuffle(factor=2), (12, 9, 7), (3, 18, 14), {}),
        (Sigmoid(), IMAGE, IMAGE, {}),
        (Activation(function="silu"), SEQUENCE, SEQUENCE, {}),
        (Scale(), IMAGE, IMAGE, {"weight": (6,)}),
        (Scale(), SEQUENCE, SEQUENCE, {"weight": (12,)}),
        (GlobalAveragePool(), SEQUENCE, (12,), {}),
        (Columns(), IMAGE, (7, 54), {}),
        (
            GRU(hidden=4),
            SEQUENCE,
            (5, 4),
            {"weight": (12, 12), "hidden_weight": (12, 4), "bias": (12,), "hidden_bias": (12,)},
        ),
        (
            RNN(hidden=4, directions="sum"),
            SEQUENCE,
            (5, 4),
            {
                "weight": (4, 12),
                "hidden_weight": (4, 4),
                "bias": (4,),
                "hidden_bias": (4,),
                "reverse_weight": (4, 12),
                "reverse_hidden_weight": (4, 4),
                "reverse_bias": (4,),
                "reverse_hidden_bias": (4,),
            },
        ),
    ],
)
def test_shapes_and_parameters_of_sequence_layers(layer, given, expected, parameters):
    assert layer.output_shape(given) == expected
    assert {role: p.shape for role, p in layer.parameters(given).items()} == parameters
    assert layer.state(given) == {}


@pytest.mark.parametrize(
    ("layer", "inputs", "message"),
    [
        (MaxPool(**WINDOW), [(6, 2, 2)], r"MaxPool\b.* 3 .* 2 "),
        (Convolution(filters=4, kernel=(5, 5), padding=(1, 1)), [(3, 2, 2)], "padding 1"),
        (Convolution(filters=4, kernel=(1, 1), groups=4), [IMAGE], r"\b6 channels .*\b4 groups"),
        (
            Convolution(filters=4, kernel=(1, 1)),
            [(12,)],
            r"Convolution .*\(channels, height, width\)",
        ),
        (GlobalAveragePool(), [(12,)], "GlobalAveragePool needs"),
        (Experts(experts=4, active=5, ffn=6), [SEQUENCE, (5, 4)], "active=5 must be 1 to 4"),
        (Experts(experts=4, active=2, ffn=6), [SEQUENCE, (5, 3)], r"scores \(length, 4\)"),
        (LoadBalance(active=2), [(5, 4), (5, 3)], "scores .* of one shape"),
        (LoadBalance(active=5), [(5, 4)], "5 of the experts"),
        (Convolution(filters=4, kernel=(3, 3), dilation=(5, 1)), [IMAGE], "window of 11 .* into 9"),
        (LSTM(hidden=4), [SEQUENCE, (5,)], r"LSTM begins from \(4,\), was given \(5,\)"),
        (
            GRU(hidden=4, directions="concat"),
            [SEQUENCE, (4,)],
            "GRU of both directions .* no first",
        ),
        (InputFeedingDecoder(hidden=4), [SEQUENCE, (4,)], r"needs words .* first h \(4,\)"),
        (
            InputFeedingDecoder(hidden=4),
            [SEQUENCE, (4,), (6, 5)],
            r"memory \(positions, 4\), was given .*\(6, 5\)",
        ),
        (Columns(), [SEQUENCE], r"Columns needs \(channels, height, width\)"),
        (Add(), [(6,), (7,)], r"Add .*\(6,\), \(7,\)"),
        (Concat(), [IMAGE, (6, 9, 8)], r"Concat .*\(6, 9, 8\)"),
        (Concat(), [IMAGE, (6,)], r"Concat .*\(6,\)"),
        (Attention(heads=5), [SEQUENCE], r"\b12 features .*\b5 heads"),
        (Attention(heads=2), [(12,)], r"Attention needs \(length, features\)"),
        (Embedding(vocabulary=9, features=4), [SEQUENCE], r"needs tokens \(length,\)"),
        (Tokens(), [SEQUENCE], r"Tokens needs \(channels, height, width\)"),
        (SelectPosition(position=5), [SEQUENCE], "no position 5 in 5"),
        (Attention(heads=2, key_value_heads=1), [SEQUENCE], "1 of keys and values"),
        (Attention(heads=2), [SEQUENCE, SEQUENCE, (4, 12)], "three sequences of one length"),
        (PositionEmbedding(rows=9, first=5), [SEQUENCE], "9 rows has no row 9"),
        (RotaryEmbedding(heads=4), [SEQUENCE], "12 features do not divide into pairs in 4"),
        (ToImage(size=(2, 3)), [SEQUENCE], "5 positions are no image"),
        (SelectChannels(channels=(6,)), [IMAGE], "channels 0 to 5"),
        (PixelShuffle(), [IMAGE], "6 channels do not divide into squares of 2 × 2"),
        (Multiply(), [IMAGE, (9,)], r"Multiply .*\(9,\)"),
        (EmbeddingBags(rows=(4, 7), features=3, indices=2), [(2,)], r"2 tables, 2 .*\(4,\)"),
        (EmbeddingBags(rows=(4, 0), features=3), [(2,)], r"1 row or more .*\(4, 0\)"),
        (EmbeddingBags(rows=(4, 7), features=3, indices=0), [(0,)], "indices=0"),
        (DotInteraction(), [(3,), (2, 4)], r"DotInteraction .*\(3,\), \(2, 4\)"),
        (BinaryScores(), [(2,)], r"one logit \(1,\), was given \(2,\)"),
    ],
)
def test_what_does_not_fit_is_refused(layer, inputs, message):
    with pytest.raises(UsageError, match=message):
        layer.output_shape(*inputs)


def test_attention_has_queries_keys_and_values_in_one_or_three_inputs():
    assert Attention(heads=2).output_shape(SEQUENCE, SEQUENCE, SEQUENCE) == SEQUENCE
    grouped = Attention(heads=4, key_value_heads=2)
    assert grouped.output_shape(SEQUENCE, (5, 6), (5, 6)) == SEQUENCE


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN])
def test_both_directions_side_by_side_are_twice_as_wide(kind):
    assert kind(hidden=4, directions="concat").output_shape(SEQUENCE) == (5, 8)
    assert kind(hidden=4, directions="sum").output_shape(SEQUENCE) == (5, 4)


def test_a_product_has_values_of_one_shape_or_one_a_channel():
    assert Multiply().output_shape(SEQUENCE, SEQUENCE) == SEQUENCE
    assert Multiply().output_shape(IMAGE, (6,)) == IMAGE


def test_every_layer_type_has_its_line_in_every_table():
    def leaves(kind):
        children = kind.__subclasses__()
        return {kind}.union(*map(leaves, children)) if children else {kind}

    written = {k for k in leaves(Layer) if not k.__name__.startswith("_")} - {Layer}
    written = {k for k in written if k.__module__.startswith("cubemesh.networks.")}
    written -= {Opaque, Recurrence}  # has its counts in itself; is a base
    assert written == set(ALL_LAYERS.values())
    assert set(COUNTS) == set(ALL_LAYERS.values())
    assert set(SAVED_TENSOR_RULES) == set(ALL_LAYERS.values())
