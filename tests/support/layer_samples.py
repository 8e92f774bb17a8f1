"""Small networks that together have every layer type, and weights on which evaluation depends."""

import numpy as np

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import LocalResponseNorm
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.vit import vit


def every_layer():
    net = NetworkBuilder("every-layer")
    x = net.input("image", (3, 12, 12))
    x = net.relu(net.batch_norm(net.conv(x, 4, kernel=3, padding=1)))
    x = net.add(net.conv(x, 4, kernel=1), x)
    x = net.concat(x, net.relu(net.conv(x, 2, kernel=1)))
    x = net.lrn(net.max_pool(x, 2), LocalResponseNorm(size=3))
    x = net.lrn(net.average_pool(x, 2), LocalResponseNorm(size=3, region="within"))
    x = net.dropout(net.flatten(net.global_average_pool(x)), 0.5)
    net.classify(net.linear(x, 5))
    return net.build()


def every_sequence_layer():
    net = NetworkBuilder("every-sequence-layer")
    x = net.conv(net.input("image", (3, 4, 4)), 6, kernel=2, stride=2)
    x = net.position_embedding(net.class_token(net.tokens(x)))
    y = net.attention(net.linear(net.layer_norm(x), 18), 2, causal=True)
    x = net.add(x, net.gelu(y, "tanh"))
    net.classify(net.linear(net.select(x), 5))
    return net.build()


def of_tokens():
    net = NetworkBuilder("of-tokens")
    x = net.embedding(net.token_input("tokens", 6, 9), 4, name="words")
    net.classify(net.linear(x, 9, bias=False, share={"weight": "words.weight"}))
    return net.build()


def recurrent():
    net = NetworkBuilder("recurrent")
    source = net.lstm(net.embedding(net.token_input("source", 5, 9), 4), 4)
    begin = net.tanh(net.select(source, 4))
    target = net.lstm(net.embedding(net.token_input("target", 6, 9), 4), 4, begin)
    scores = net.linear(net.pair_sum(target, source), 1, bias=False)
    context = net.mix(scores, source)
    other = net.mix(net.pair_product(target, source), source)
    net.classify(net.linear(net.add(context, other), 9))
    return net.build()


def mixed():
    """What the zoo leaves out: hanging and padded windows, groups, two heads, both response
    normalizations of odd and even size, batch normalization without an image."""
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


NARROW = {
    "gpt2": lambda: gpt("gpt2", 8, 300, width=48, depth=12, heads=12),
    "vit-b16": lambda: vit("vit-b16", 16, 10, width=48, depth=12, heads=12),
}
"""Transformers of the zoo with all their layers, each with fewer weights."""


def trained_weights(network):
    """Weights as after a training: no statistic or bias has its initial value."""
    rng = np.random.default_rng(1)
    weights = network.draw(0)
    for name, array in weights.items():
        if "variance" in name:
            weights[name] = rng.uniform(0.8, 1.2, array.shape).astype(np.float32)
        elif not array.any():
            weights[name] = (0.1 * rng.standard_normal(array.shape)).astype(np.float32)
    return weights
