"""Small networks that together have every layer type, and weights on which evaluation depends."""

import dataclasses

import numpy as np

from cubemesh.networks import NETWORKS, layers
from cubemesh.networks.assembly import of_documents
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import LocalResponseNorm
from cubemesh.networks.transformer_sizes import TRANSFORMERS
from cubemesh.networks.zoo.bert import bert
from cubemesh.networks.zoo.convnext import convnext
from cubemesh.networks.zoo.detectnet import detectnet_of
from cubemesh.networks.zoo.gpt2 import gpt
from cubemesh.networks.zoo.llama import llama
from cubemesh.networks.zoo.mixtral import MIXTURES, Mixture, mixtral
from cubemesh.networks.zoo.recommendation.dlrm import dlrm
from cubemesh.networks.zoo.unet import unet_of
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
    source = net.lstm(net.embedding(net.token_input("source", 2, 9), 4), 4)
    begin = net.tanh(net.select(source, 1))
    target = net.lstm(net.embedding(net.token_input("target", 3, 9), 4), 4, begin)
    scores = net.linear(net.pair_sum(target, source), 1, bias=False)
    context = net.mix(scores, source)
    other = net.mix(net.pair_product(target, source), source)
    net.classify(net.linear(net.add(context, other), 9))
    return net.build()


def dilated():
    """Convolutions with gaps: of an image that keeps its size, of groups, of two distances."""
    net = NetworkBuilder("dilated")
    x = net.input("image", (3, 13, 12))
    x = net.relu(net.batch_norm(net.conv(x, 8, kernel=3, padding=2, dilation=2, bias=False)))
    x = net.max_pool(net.relu(net.conv(x, 6, kernel=(3, 2), padding=2, dilation=(1, 3))), 2)
    x = net.relu(net.conv(x, 6, kernel=3, padding=(1, 3), dilation=(2, 3), groups=2))
    net.classify(net.linear(net.flatten(x), 5))
    return net.build()


def recurrences(positions=8):
    """Every recurrent layer, from a begin, and in both directions, over the columns of an image."""
    net = NetworkBuilder("recurrences")
    x = net.input("image", (3, 9, positions))
    x = net.relu(net.conv(x, 4, kernel=3, padding=2, dilation=2))
    begin = net.tanh(net.linear(net.global_average_pool(x), 5))
    x = net.rnn(net.columns(x), 6, directions="sum")
    x = net.gru(x, 5, begin)
    y = net.rnn(net.lstm(x, 4, directions="concat"), 5, begin, function="relu")
    x = net.add(net.gru(y, 5, directions="sum"), net.rnn(x, 5))
    x = net.add(x, net.lstm(net.gru(x, 3, directions="concat"), 5, directions="sum"))
    net.classify(net.linear(x, 7))
    return net.build()


def fed():
    """A decoder with input feeding."""
    net = NetworkBuilder("fed")
    memory = net.linear(net.input("source", (3, 4)), 5)
    begin = net.tanh(net.select(memory, 2))
    words = net.linear(memory, 4)
    net.classify(net.linear(net.input_feeding_decoder(words, begin, memory, 2), 7))
    return net.build()


def gated():
    """Of images: functions, gates, learned scales, channels and positions in other orders."""
    net = NetworkBuilder("gated")
    x = net.input("image", (3, 6, 6))
    x = net.batch_norm(net.conv(x, 8, kernel=3, padding=1, bias=False))
    x = net.add_layer(layers.Activation(function="silu"), x)
    gate = net.add_layer(layers.Sigmoid(), net.linear(net.global_average_pool(x), 8))
    x = net.add_layer(layers.Multiply(), x, gate)
    x = net.add_layer(layers.SelectChannels(channels=(0, 4, 1, 5, 3, 7)), x)
    for function in ("hard-swish", "relu6", "leaky-relu", "mish", "quick-gelu"):
        x = net.add_layer(layers.Activation(function=function, slope=0.1), x)
    x = net.add_layer(layers.Dropout(rate=0.2, per_sample=True), x)
    x = net.add_layer(layers.PixelShuffle(), net.conv(x, 24, kernel=1, stride=2))
    x = net.add_layer(layers.Scale(), net.conv(x, 6, kernel=1))
    y = net.add_layer(layers.Transpose(), net.tokens(x))
    y = net.add_layer(layers.Transpose(), net.linear(y, 36))
    y = net.add_layer(layers.Scale(), net.add_layer(layers.Activation(function="hard-sigmoid"), y))
    y = net.add_layer(layers.ToImage(size=(6, 6)), y)
    net.classify(net.linear(net.global_average_pool(net.add(x, y)), 5))
    return net.build()


def decoder():
    """Of tokens: rotary and learned positions, grouped queries, gated products."""
    net = NetworkBuilder("decoder")
    x = net.add_layer(layers.RMSNorm(), net.embedding(net.token_input("tokens", 6, 9), 16))
    x = net.add_layer(layers.PositionEmbedding(rows=9, first=2), x)
    y = x = net.add_layer(layers.PositionEmbedding(rows=3, first=1, shared=True), x)
    q = net.add_layer(layers.RotaryEmbedding(heads=4, base=100.0), net.linear(y, 16))
    k = net.add_layer(layers.RotaryEmbedding(heads=2, base=100.0), net.linear(y, 8))
    attention = layers.Attention(heads=4, causal=True, dropout=0.1, key_value_heads=2)
    x = net.add(x, net.add_layer(attention, q, k, net.linear(y, 8)))
    y = net.add_layer(layers.Activation(function="squared-relu"), net.linear(x, 12))
    y = net.add_layer(layers.Multiply(), net.tanh(y), net.linear(x, 12))
    y = net.add_layer(layers.SelectChannels(channels=(3, 0, 1)), y)
    net.classify(net.linear(net.global_average_pool(y), 5))
    return net.build()


def chosen():
    """A mixture of experts whose load balance is read like any value."""
    net = NetworkBuilder("chosen")
    x = net.embedding(net.token_input("tokens", 6, 9), 16)
    scores = net.linear(x, 4, bias=False)
    y = net.add_layer(layers.Experts(experts=4, active=2, ffn=12), x, scores)
    balance = net.add_layer(layers.LoadBalance(active=2), scores, scores)
    y = net.add(net.add(x, y), net.linear(balance, 16))
    net.classify(net.linear(net.global_average_pool(y), 5))
    return net.build()


def clicks():
    """A recommendation model of three categories with two indices each."""
    net = NetworkBuilder("clicks")
    x = net.relu(net.linear(net.input("numbers", (5,)), 6))
    categories = net.categories("categories", [4, 4, 7, 7, 30, 30])
    e = net.add_layer(layers.EmbeddingBags(rows=(4, 7, 30), features=6, indices=2), categories)
    x = net.relu(net.linear(net.add_layer(layers.DotInteraction(), x, e), 8))
    net.classify(net.add_layer(layers.BinaryScores(), net.linear(x, 1)))
    return net.build()


def documents():
    """A decoder for packed documents, by grouped queries, learned places from the third row on, and
    attention both causal and not."""
    net = NetworkBuilder("documents")
    x = net.add_layer(layers.RMSNorm(), net.embedding(net.token_input("tokens", 6, 9), 16))
    x = net.add_layer(layers.PositionEmbedding(rows=9, first=2), x)
    x = net.add_layer(layers.PositionEmbedding(rows=3, first=1, shared=True), x)
    q = net.add_layer(layers.RotaryEmbedding(heads=4, base=100.0), net.linear(x, 16))
    k = net.add_layer(layers.RotaryEmbedding(heads=2, base=100.0), net.linear(x, 8))
    attention = layers.Attention(heads=4, causal=True, key_value_heads=2)
    x = net.add(x, net.add_layer(attention, q, k, net.linear(x, 8)))
    x = net.attention(net.linear(x, 48), 4)
    net.classify(net.linear(x, 9))
    return of_documents(net.build())


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


def of_two_layers(make, name, **columns):
    """A transformer of the zoo that is 32 wide."""
    sizes = {"hidden": 32, "layers": 2, "heads": 4, "ffn": 48, **columns}
    return make(dataclasses.replace(TRANSFORMERS[name], **sizes), 8, 300)


def mixture_of_two_layers(**columns):
    """Mixtral, 32 wide, with 4 experts of which 2 are active."""
    sizes = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 24, **columns}
    sizes = dataclasses.replace(MIXTURES["mixtral-8x7b"].sizes, **sizes)
    return mixtral(Mixture(sizes=sizes, experts=4), 8, 300)


NARROW = {
    "gpt2": lambda: gpt("gpt2", 8, 300, width=48, depth=12, heads=12),
    "vit-b16": lambda: vit("vit-b16", 16, 10, width=48, depth=12, heads=12),
    "bert-base": lambda: of_two_layers(bert, "bert-base", kv_heads=4),
    "llama3-8b": lambda: of_two_layers(llama, "llama3-8b", kv_heads=2),
    "mixtral-8x7b": lambda: mixture_of_two_layers(),
    "convnext-t": lambda: convnext(
        "convnext-t", 32, 10, widths=(8, 16, 16, 24), depths=(1, 1, 2, 1)
    ),
    "unet": lambda: unet_of("unet", 16, 3, widths=(4, 6, 8)),
    "dlrm-small": lambda: dlrm("dlrm-small", 2, 20, 4),
    "detectnet-little": lambda: detectnet_of("detectnet-little", 32, 3, widths=(4, 6, 6, 8)),
}
"""Networks of the zoo with all their kinds of layers, each with fewer weights."""
SAME_LAYERS = {
    "vit-b16": ("vit-s16", "vit-l16"),
    "gpt2": ("gpt2-medium", "gpt2-large", "gpt2-xl"),
    "bert-base": ("bert-large",),
    "llama3-8b": ("llama-125m", "llama3-1b", "llama3-70b"),
    "mixtral-8x7b": ("mixtral-1b",),
    "dlrm-small": ("dlrm-kaggle", "dlrm-benchmark", "dlrm-terabyte", "dlrm-mlperf"),
}
"""Networks of the zoo that differ from the first in sizes alone, or in shared weights."""
_LARGER = {name for names in SAME_LAYERS.values() for name in names}
DISTINCT = [name for name in NETWORKS if name not in _LARGER]
"""The networks of the zoo, of each table of sizes the first: for what makes weights."""
DEPTHS = {"overfeat", "vgg11", "vgg19", "resnet-34", "resnet-101", "resnet-152"}
"""Networks of the zoo with the layers of another, more of them, fewer or larger ones."""
REPRESENTATIVES = [name for name in DISTINCT if name not in DEPTHS]
"""The networks of the zoo, of each family of equal blocks one: for what treats each layer alone."""


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
