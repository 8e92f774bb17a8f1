"""Every layer type's cost against numbers worked out by hand from its formula."""

from __future__ import annotations

import math

import pytest

from cubemesh.networks import NETWORKS, build, layers
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.cost import costs, totals
from cubemesh.networks.flops import LayerCost
from cubemesh.networks.layers import Attention, LocalResponseNorm, Mix, PairProduct
from cubemesh.schema.cost import Cost


def of_last(add_layer, batch=2, before=True):
    """Cost of the layer `add_layer(net, x)` puts on 4 channels of 6 × 6, batch 2, 4 bytes a value.

    `before`: a 1×1 convolution stands in front, so that the layer's input needs a gradient.
    """
    net = NetworkBuilder("net")
    x = net.input("image", (4, 6, 6))
    if before:
        x = net.conv(x, 4, kernel=1)
    x = add_layer(net, x)
    net.classify(net.flatten(x))
    network = net.build()
    return costs(network, batch)[x]


X = 2 * 4 * 6 * 6  # 288 values come in


def test_convolution():
    # y = 2 · 8 · 3 · 3 = 144 values, each a sum over 4 · 3 · 3 = 36; 8 · 36 + 8 = 296 parameters.
    cost = of_last(lambda net, x: net.conv(x, 8, kernel=3, stride=2, padding=1))
    assert cost == LayerCost(
        forward=Cost(
            matrix_flops=2 * 144 * 36,
            other_flops=144,
            read_bytes=4 * (X + 296),
            written_bytes=4 * 144,
            saved_bytes=4 * X,
        ),
        data_gradient=Cost(
            matrix_flops=2 * 144 * 36, read_bytes=4 * (144 + 288), written_bytes=4 * X
        ),
        weight_gradient=Cost(
            matrix_flops=2 * 144 * 36,
            other_flops=144,
            read_bytes=4 * (144 + X),
            written_bytes=4 * 296,
        ),
    )


def test_a_grouped_convolution_sums_over_its_group_only():
    # y = 2 · 8 · 6 · 6 = 576 values over 2 channels of a 1 × 1 window; 16 weights, no bias.
    cost = of_last(lambda net, x: net.conv(x, 8, kernel=1, groups=2, bias=False))
    assert cost.forward.matrix_flops == 2 * 576 * 2
    assert cost.forward.other_flops == 0
    assert cost.weight_gradient.written_bytes == 4 * 16


def test_gaps_between_cells_cost_nothing():
    plain = of_last(lambda net, x: net.conv(x, 8, kernel=3, padding=1))
    assert of_last(lambda net, x: net.conv(x, 8, kernel=3, padding=2, dilation=2)) == plain


def test_linear():
    # 2 samples of 144 features into 10: 2880 multiply-adds; 1450 parameters.
    cost = of_last(lambda net, x: net.linear(net.flatten(x), 10))
    assert cost == LayerCost(
        forward=Cost(
            matrix_flops=5760,
            other_flops=20,
            read_bytes=4 * (X + 1450),
            written_bytes=4 * 20,
            saved_bytes=4 * X,
        ),
        data_gradient=Cost(matrix_flops=5760, read_bytes=4 * (20 + 1440), written_bytes=4 * X),
        weight_gradient=Cost(
            matrix_flops=5760, other_flops=20, read_bytes=4 * (20 + X), written_bytes=4 * 1450
        ),
    )


def test_batch_norm():
    # 4 channels: scale and shift 8 values, running statistics 8, the batch's own 8 (saved).
    cost = of_last(lambda net, x: net.batch_norm(x))
    assert cost == LayerCost(
        forward=Cost(
            other_flops=7 * X,
            read_bytes=4 * (X + 8 + 8),
            written_bytes=4 * (X + 8),
            saved_bytes=4 * (X + 8),
        ),
        data_gradient=Cost(other_flops=5 * X, read_bytes=4 * (2 * X + 4 + 8), written_bytes=4 * X),
        weight_gradient=Cost(other_flops=5 * X, read_bytes=4 * (2 * X + 8), written_bytes=4 * 8),
    )


@pytest.mark.parametrize(
    ("layer", "neighbours", "saved"),
    [
        # x, the squares under 4 channels of padding (2 · 8 · 36), the base and its power
        (LocalResponseNorm(size=5), 5, X + 576 + 2 * X),
        (LocalResponseNorm(size=3, region="within"), 9, 4 * X),
    ],
)
def test_local_response_norm(layer, neighbours, saved):
    cost = of_last(lambda net, x: net.lrn(x, layer))
    assert cost == LayerCost(
        forward=Cost(
            other_flops=(neighbours + 4) * X,
            read_bytes=4 * X,
            written_bytes=4 * X,
            saved_bytes=4 * saved,
        ),
        data_gradient=Cost(
            other_flops=(neighbours + 5) * X, read_bytes=4 * 3 * X, written_bytes=4 * X
        ),
    )


def test_relu_saves_its_output():
    cost = of_last(lambda net, x: net.relu(x))
    assert cost == LayerCost(
        forward=Cost(other_flops=X, read_bytes=4 * X, written_bytes=4 * X, saved_bytes=4 * X),
        data_gradient=Cost(other_flops=X, read_bytes=4 * 2 * X, written_bytes=4 * X),
    )


def test_add_passes_its_gradient_on():
    cost = of_last(lambda net, x: net.add(net.relu(x), net.batch_norm(x)))
    assert cost == LayerCost(forward=Cost(other_flops=X, read_bytes=4 * 2 * X, written_bytes=4 * X))


def test_concat_is_a_copy_and_passes_slices_of_its_gradient_on():
    cost = of_last(lambda net, x: net.concat(net.relu(x), net.batch_norm(x)))
    assert cost == LayerCost(forward=Cost(read_bytes=4 * 2 * X, written_bytes=4 * 2 * X))


def test_gradients_of_a_value_with_two_readers_are_added_up():
    net = NetworkBuilder("net")
    x = net.conv(net.input("image", (4, 6, 6)), 4, kernel=1)
    y = net.add(net.relu(x, name="first"), net.relu(x, name="second"))
    net.classify(net.flatten(y))
    found = costs(net.build(), batch=2)
    # Backward, `second` comes first and its gradient is used as it is.
    assert found["second"].data_gradient.other_flops == X
    assert found["first"].data_gradient == found["second"].data_gradient + Cost(
        other_flops=X, read_bytes=4 * 2 * X, written_bytes=4 * X
    )


def test_dropout_saves_a_byte_a_value():
    cost = of_last(lambda net, x: net.dropout(x, 0.5))
    assert cost == LayerCost(
        forward=Cost(other_flops=2 * X, read_bytes=4 * X, written_bytes=5 * X, saved_bytes=X),
        data_gradient=Cost(other_flops=2 * X, read_bytes=5 * X, written_bytes=4 * X),
    )


def test_flatten_is_free():
    assert of_last(lambda net, x: net.flatten(x)) == LayerCost()


def test_max_pool():
    # y = 2 · 4 · 3 · 3 = 72 values, 3 comparisons and an index of 8 bytes each.
    cost = of_last(lambda net, x: net.max_pool(x, 2))
    assert cost == LayerCost(
        forward=Cost(
            other_flops=3 * 72,
            read_bytes=4 * X,
            written_bytes=12 * 72,
            saved_bytes=4 * X + 8 * 72,
        ),
        data_gradient=Cost(other_flops=72, read_bytes=12 * 72, written_bytes=4 * X),
    )


def test_average_pool():
    cost = of_last(lambda net, x: net.average_pool(x, 2))
    assert cost == LayerCost(
        forward=Cost(other_flops=4 * 72, read_bytes=4 * X, written_bytes=4 * 72, saved_bytes=4 * X),
        data_gradient=Cost(other_flops=5 * 72, read_bytes=4 * 72, written_bytes=4 * X),
    )


def test_global_average_pool():
    cost = of_last(lambda net, x: net.global_average_pool(x))
    assert cost == LayerCost(
        forward=Cost(other_flops=X, read_bytes=4 * X, written_bytes=4 * 8),
        data_gradient=Cost(other_flops=8, read_bytes=4 * 8, written_bytes=4 * X),
    )


def test_the_loss():
    # 2 samples of 10 classes, labels of 8 bytes.
    net = NetworkBuilder("net")
    net.classify(net.linear(net.input("image", (4,)), 10))
    assert costs(net.build(), batch=2)["fc1.loss"] == LayerCost(
        forward=Cost(other_flops=100, read_bytes=80 + 16, written_bytes=80, saved_bytes=80),
        data_gradient=Cost(other_flops=60, read_bytes=80 + 16, written_bytes=80),
    )


def test_nothing_is_sent_back_to_the_image():
    first = of_last(lambda net, x: net.conv(x, 8, kernel=3), before=False)
    assert first.data_gradient == Cost()
    assert first.weight_gradient.matrix_flops == first.forward.matrix_flops
    # Its input is in memory as the batch, and a layer without parameters saves nothing for it.
    assert first.forward.saved_bytes == 0
    pooled = of_last(lambda net, x: net.max_pool(x, 2), before=False)
    assert pooled.backward == Cost()
    assert pooled.forward.saved_bytes == 0


def test_a_value_that_two_nodes_save_counts_once():
    network = build("vgg11", 32)
    found = costs(network)
    assert found["relu1_1"].forward.saved_bytes == 4 * 64 * 32 * 32  # its output
    assert found["pool1"].forward.saved_bytes == 8 * 64 * 16 * 16  # its indices only
    assert found["conv2_1"].forward.saved_bytes == 4 * 64 * 16 * 16  # its input, the pool's result


def test_weights_are_read_once_a_batch():
    network = build("cifarnet")
    one, eight = totals(network, batch=1), totals(network, batch=8)
    assert eight.forward.matrix_flops == 8 * one.forward.matrix_flops
    assert eight.forward.read_bytes == 8 * one.forward.read_bytes - 7 * 4 * 89_578


def test_half_precision_halves_what_moves():
    network = build("vgg11", 32)
    full, half = totals(network, 4), totals(network, 4, "bf16")
    assert full.forward.flops == half.forward.flops
    assert half.weight_gradient.moved_bytes * 2 == full.weight_gradient.moved_bytes


def test_layer_costs_add_up():
    network = build("little-cnn")
    found = costs(network)
    assert sum(found.values()) == totals(network)
    cost = found["conv2"]
    assert cost.total == cost.forward + cost.data_gradient + cost.weight_gradient


@pytest.mark.parametrize("name", NETWORKS)
def test_backward_is_twice_forward_but_for_the_first_layer(name):
    network = build(name)
    found, total = costs(network), totals(network)
    first = next(n for n in network.nodes if n.parameters)
    forward = total.forward.matrix_flops
    # Attention and interaction have no weights: both their operands are data. In a decoder, 2 · 2 a
    # score and feature.
    attention = sum(
        found[n.name].forward.matrix_flops
        for n in network.nodes
        if isinstance(n.layer, (Attention, Mix, PairProduct, layers.DotInteraction))
    )
    attention += sum(
        4 * math.prod(n.shape) * network.shapes[n.inputs[2]][0]
        for n in network.nodes
        if isinstance(n.layer, layers.InputFeedingDecoder)
    )
    assert total.weight_gradient.matrix_flops == forward - attention
    assert total.data_gradient.matrix_flops == (
        forward + attention - found[first.name].forward.matrix_flops
    )


def of_sequence(add_layer, features=12, batch=2):
    """Cost of the layer `add_layer(net, x)` adds after a linear layer on 5 positions, batch 2."""
    net = NetworkBuilder("net")
    x = add_layer(net, net.linear(net.input("x", (5, 3)), features))
    net.classify(net.flatten(x))
    network = net.build()
    return costs(network, batch)[network.nodes[1].name]


V = 2 * 5 * 12  # 120 values come in, in 10 positions


def test_layer_norm():
    assert of_sequence(lambda net, x: net.layer_norm(x)) == LayerCost(
        forward=Cost(
            other_flops=8 * V,
            read_bytes=4 * (V + 24),
            written_bytes=4 * (V + 20),
            saved_bytes=4 * (V + 20),
        ),
        data_gradient=Cost(
            other_flops=8 * V, read_bytes=4 * (2 * V + 12 + 20), written_bytes=4 * V
        ),
        weight_gradient=Cost(other_flops=5 * V, read_bytes=4 * (2 * V + 20), written_bytes=4 * 24),
    )


@pytest.mark.parametrize(("form", "operations"), [("erf", 5), ("tanh", 9)])
def test_gelu_saves_its_input(form, operations):
    assert of_sequence(lambda net, x: net.gelu(x, form)) == LayerCost(
        forward=Cost(
            other_flops=operations * V, read_bytes=4 * V, written_bytes=4 * V, saved_bytes=4 * V
        ),
        data_gradient=Cost(
            other_flops=2 * operations * V, read_bytes=4 * 2 * V, written_bytes=4 * V
        ),
    )


def test_attention():
    # y = 2 · 5 · 4 = 40 values in 2 heads: 2 · 2 · 5 · 5 = 100 scores, 20 logarithms of sums.
    assert of_sequence(lambda net, x: net.attention(x, 2)) == LayerCost(
        forward=Cost(
            matrix_flops=2 * 2 * 40 * 5,
            other_flops=600,
            read_bytes=4 * V,
            written_bytes=4 * (40 + 20),
            saved_bytes=4 * (V + 40 + 20),
        ),
        data_gradient=Cost(
            matrix_flops=4 * 2 * 40 * 5,
            other_flops=300 + 80,
            read_bytes=4 * (V + 80 + 20),
            written_bytes=4 * V,
        ),
    )


def test_an_embedding_picks_rows():
    # 10 tokens of 8 bytes, 4 values each; its gradient is an array of 9 · 4 with 40 additions.
    net = NetworkBuilder("net")
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
    assert of_sequence(lambda net, x: net.class_token(x)) == LayerCost(
        forward=Cost(read_bytes=4 * (V + 12), written_bytes=4 * 144),
        weight_gradient=Cost(other_flops=24, read_bytes=4 * 24, written_bytes=4 * 12),
    )


def test_a_position_embedding_is_added():
    assert of_sequence(lambda net, x: net.position_embedding(x)) == LayerCost(
        forward=Cost(other_flops=V, read_bytes=4 * (V + 60), written_bytes=4 * V),
        weight_gradient=Cost(other_flops=V, read_bytes=4 * V, written_bytes=4 * 60),
    )


def test_a_position_is_a_view_whose_gradient_is_not():
    assert of_sequence(lambda net, x: net.select(x)) == LayerCost(
        data_gradient=Cost(read_bytes=4 * 24, written_bytes=4 * V)
    )


def test_gates_and_functions():
    silu = of_sequence(lambda net, x: net.add_layer(layers.Activation(function="silu"), x))
    assert silu == LayerCost(
        forward=Cost(other_flops=5 * V, read_bytes=4 * V, written_bytes=4 * V, saved_bytes=4 * V),
        data_gradient=Cost(other_flops=10 * V, read_bytes=8 * V, written_bytes=4 * V),
    )
    sigmoid = of_sequence(lambda net, x: net.add_layer(layers.Sigmoid(), x))
    assert sigmoid.forward.other_flops == 4 * V
    assert sigmoid.forward.saved_bytes == 4 * V  # its output
    scale = of_sequence(lambda net, x: net.add_layer(layers.Scale(), x))
    assert scale == LayerCost(
        forward=Cost(
            other_flops=V, read_bytes=4 * (V + 12), written_bytes=4 * V, saved_bytes=4 * V
        ),
        data_gradient=Cost(other_flops=V, read_bytes=4 * (V + 12), written_bytes=4 * V),
        weight_gradient=Cost(other_flops=2 * V, read_bytes=8 * V, written_bytes=48),
    )


def test_a_product_of_an_image_and_its_channels():
    # 2 · 6 · 3 · 3 = 108 values and 12 factors.
    net = NetworkBuilder("net")
    image = net.conv(net.input("x", (3, 3, 3)), 6, kernel=1)
    net.classify(
        net.flatten(net.add_layer(layers.Multiply(), image, net.global_average_pool(image)))
    )
    network = net.build()
    cost = costs(network, 2)[network.nodes[2].name]
    assert cost.forward == Cost(other_flops=108, read_bytes=480, written_bytes=432, saved_bytes=480)
    assert cost.data_gradient.other_flops == 3 * 108


def test_rms_norm_and_rotary_embedding():
    norm = of_sequence(lambda net, x: net.add_layer(layers.RMSNorm(), x))
    assert norm == LayerCost(
        forward=Cost(
            other_flops=4 * V,
            read_bytes=4 * (V + 12),
            written_bytes=4 * (V + 10),
            saved_bytes=4 * (V + 10),
        ),
        data_gradient=Cost(
            other_flops=6 * V, read_bytes=4 * (2 * V + 12 + 10), written_bytes=4 * V
        ),
        weight_gradient=Cost(other_flops=3 * V, read_bytes=4 * (2 * V + 10), written_bytes=48),
    )
    rotary = of_sequence(lambda net, x: net.add_layer(layers.RotaryEmbedding(heads=2), x))
    assert rotary.total.other_flops == 6 * V
    assert rotary.forward.saved_bytes == 0


def test_what_only_moves_values():
    assert of_sequence(lambda net, x: net.add_layer(layers.Transpose(), x)) == LayerCost()
    image = layers.ToImage(size=(5, 1))
    assert of_sequence(lambda net, x: net.add_layer(image, x)) == LayerCost()
    some = layers.SelectChannels(channels=(0, 2, 4))
    assert of_sequence(lambda net, x: net.add_layer(some, x)) == LayerCost(
        forward=Cost(read_bytes=4 * 30, written_bytes=4 * 30),
        data_gradient=Cost(read_bytes=4 * 30, written_bytes=4 * V),
    )


def test_a_shuffle_of_pixels_copies_each_value_both_ways():
    net = NetworkBuilder("net")
    x = net.conv(net.input("image", (3, 5, 4)), 8, kernel=1)
    shuffled = net.add_layer(layers.PixelShuffle(), x, name="shuffle")
    net.classify(net.flatten(shuffled))
    moved = Cost(read_bytes=2 * 4 * 160, written_bytes=2 * 4 * 160)
    assert costs(net.build(), 2)["shuffle"] == LayerCost(forward=moved, data_gradient=moved)


def test_separate_inputs_cost_what_packed_ones_do():
    net = NetworkBuilder("net")
    x = net.linear(net.input("x", (5, 3)), 4)
    layer = layers.Attention(heads=2)
    net.classify(net.flatten(net.add_layer(layer, x, net.linear(x, 4), net.linear(x, 4))))
    separate = costs(net.build(), 2)["attention1"].forward
    packed = of_sequence(lambda net, x: net.attention(x, 2)).forward
    assert (separate.matrix_flops, separate.moved_bytes) == (
        packed.matrix_flops,
        packed.moved_bytes,
    )


def test_a_sample_dropout_saves_a_factor_a_sample():
    dropout = layers.Dropout(rate=0.1, per_sample=True)
    cost = of_sequence(lambda net, x: net.add_layer(dropout, x))
    assert cost.forward == Cost(
        other_flops=V, read_bytes=4 * V, written_bytes=4 * V, saved_bytes=4 * 2
    )


def test_a_gru():
    # h = 2 · 5 · 4 = 40 values, 3 gates of 12 inputs and 4 h each; 3 · 4 · 16 weights, 24 biases.
    assert of_sequence(lambda net, x: net.gru(x, 4)) == LayerCost(
        forward=Cost(
            matrix_flops=2 * 3 * 40 * 16,
            other_flops=16 * 40,
            read_bytes=4 * (V + 40 + 216),
            written_bytes=4 * (40 + 4 * 40),
            saved_bytes=4 * (V + 40 + 4 * 40),
        ),
        data_gradient=Cost(
            matrix_flops=2 * 3 * 40 * 16,
            other_flops=17 * 40,
            read_bytes=4 * (40 + 4 * 40 + 40 + 192),
            written_bytes=4 * (V + 4 * 40),
        ),
        weight_gradient=Cost(
            matrix_flops=2 * 3 * 40 * 16,
            other_flops=6 * 40,
            read_bytes=4 * (V + 5 * 40),
            written_bytes=4 * 216,
        ),
    )


def test_a_plain_recurrence_of_two_directions_that_are_added():
    # 80 values of h, 40 come out; 4 · 16 weights and 8 biases a direction.
    cost = of_sequence(lambda net, x: net.rnn(x, 4, directions="sum"))
    assert cost.forward == Cost(
        matrix_flops=2 * 80 * 16,
        other_flops=4 * 80 + 40,
        read_bytes=4 * (V + 80 + 144 + 80),
        written_bytes=4 * (80 + 40),
        saved_bytes=4 * (V + 80),
    )
    side_by_side = of_sequence(lambda net, x: net.rnn(x, 4, directions="concat"))
    assert side_by_side.weight_gradient == cost.weight_gradient
    assert side_by_side.forward.other_flops == 4 * 80
    assert side_by_side.forward.saved_bytes == cost.forward.saved_bytes
    relu = of_sequence(lambda net, x: net.rnn(x, 4, function="relu", directions="concat"))
    assert relu.data_gradient.other_flops == 80
    assert side_by_side.data_gradient.other_flops == 3 * 80


def test_an_lstm_of_two_directions_costs_two():
    one, two = (
        of_sequence(lambda net, x, d=d: net.lstm(x, 4, directions=d)) for d in ("forward", "concat")
    )
    assert two.total.matrix_flops == 2 * one.total.matrix_flops
    assert two.total.other_flops == 2 * one.total.other_flops
    assert two.forward.saved_bytes == 2 * one.forward.saved_bytes - 4 * V
    assert of_last(lambda net, x: net.columns(x)) == LayerCost()


def test_a_decoder_with_input_feeding():
    # 2 · 3 positions of 4: 24 values, from words of 5, memory of 7 positions; two LSTMs, 48 h.
    net = NetworkBuilder("net")
    words = net.linear(net.input("words", (3, 2)), 5)
    begin, memory = net.linear(net.input("first", (2,)), 4), net.linear(net.input("m", (7, 2)), 4)
    net.classify(net.input_feeding_decoder(words, begin, memory, 2, name="decoder"))
    cost = costs(net.build(), 2)["decoder"]
    # [word, a] 9 and h 4 into 16 rows; 4 and 4 into 16; the query 4 into 4; the readout 8 into 4.
    weights = 16 * 13 + 16 * 8 + 16 + 32
    scores = 2 * 3 * 7
    assert cost.weight_gradient.matrix_flops == 2 * 6 * weights
    assert cost.forward.matrix_flops == 2 * 6 * weights + 2 * 2 * 4 * scores
    assert cost.data_gradient.matrix_flops == 2 * 6 * weights + 4 * 2 * 4 * scores
    assert cost.forward.other_flops == 21 * 48 + 5 * scores + 24
    assert cost.data_gradient.other_flops == 20 * 48 + 4 * scores + 3 * 24
    # Memory and a; h, five of each h; [word, a], the query, the shares, [mean, h].
    saved = 2 * 7 * 4 + 24 + 6 * 48 + 6 * (9 + 4 + 7 + 8)
    assert cost.forward.saved_bytes == 4 * saved
    assert cost.weight_gradient.written_bytes == 4 * (weights + 4 * 16)


def of_records(sparse):
    """Costs of a model of two tables of 5 and 9 rows, two indices each, 4 wide; batch 3."""
    net = NetworkBuilder("net")
    x = net.linear(net.input("numbers", (2,)), 4, name="x")
    layer = layers.EmbeddingBags(rows=(5, 9), features=4, indices=2, sparse=sparse)
    e = net.add_layer(layer, net.categories("categories", [5, 5, 9, 9]), name="e")
    net.classify(net.add_layer(layers.DotInteraction(), x, e, name="y"))
    return costs(net.build(), 3)


def test_embedding_bags_move_bytes_and_multiply_nothing():
    """12 rows of 4 values are read, 6 sums written and copied; 12 indices of 8 bytes."""
    found = of_records(sparse=False)["e"]
    assert found.forward == Cost(
        other_flops=24,
        read_bytes=4 * (48 + 24) + 96,
        written_bytes=4 * 2 * 24,
        saved_bytes=3 * 2 * (2 + 2) * 8,
    )
    assert found.weight_gradient == Cost(
        other_flops=48, read_bytes=4 * 2 * 48 + 96, written_bytes=4 * (14 * 4 + 48)
    )
    sparse = of_records(sparse=True)["e"]
    assert sparse.forward == found.forward
    assert sparse.weight_gradient == Cost(read_bytes=4 * 48 + 96, written_bytes=4 * 48 + 96)


def test_dot_interaction():
    """Of 3 vectors of 4 values: 9 products a sample, of which 3 are used; batch 3."""
    found = of_records(sparse=False)["y"]
    assert found.forward == Cost(
        matrix_flops=3 * 2 * 9 * 4,
        read_bytes=4 * (36 + 36 + 9),
        written_bytes=4 * (36 + 27 + 21),
        saved_bytes=4 * 36 + 8 * 3,
    )
    assert found.data_gradient == Cost(
        matrix_flops=2 * 3 * 2 * 9 * 4,
        other_flops=36 + 12,
        read_bytes=4 * (21 + 2 * 27 + 4 * 36),
        written_bytes=4 * (27 + 3 * 36),
    )
