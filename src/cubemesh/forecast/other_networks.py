"""Cost of networks with published rates that cubemesh does not train.

Only forecasts are made for these; none of them is in the table of networks.

    bert-base    12 blocks of 768 with 12 heads (J. Devlin et al. 2018), at the 384 tokens of SQuAD.
                 Written as GPT-2's blocks, whose matrices are the same; its head is left out.
    bert-large   24 blocks of 1024 with 16 heads, likewise
    transformer-big  six blocks of 1024 on either side (A. Vaswani et al. 2017), of NVIDIA's
                 DeepLearningExamples with 33,708 tokens, written as 14 of GPT-2's blocks
    transformer-xl-base, -large  16 blocks of 512, 18 of 1024 (Z. Dai et al. 2019), of the same,
                 with as many embeddings as they have; the adaptive softmax is a full one
    gnmt         four LSTMs of 1024 on either side, the first of the encoder in both directions,
                 with attention (Y. Wu et al. 2016), as NVIDIA's DeepLearningExamples have it:
                 32,320 tokens. An LSTM's gates from the context are a product of their own.
    resnext-101  ResNeXt-101, 32x4d (S. Xie et al. 2017)
    ssd300       SSD (W. Liu et al. 2016) on ResNet-50 up to its third stage, whose stride is 1, as
                 in the same
    jasper       Jasper 10x5 (J. Li et al. 2019) on 1,670 frames, without its dense residuals
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Embedding
from cubemesh.networks.zoo.gpt2 import gpt

BERT_LENGTH, BERT_VOCABULARY = 384, 30522
GNMT_LENGTH, GNMT_VOCABULARY, GNMT_WIDTH, GNMT_DEPTH = 27, 32320, 1024, 4
"""27 is the assumed mean length of a sentence of WMT16 English and German, in byte pairs."""
TOKENS = {
    "gnmt": 2 * GNMT_LENGTH,
    "transformer-big": 32,
    "transformer-xl-base": 192,
    "transformer-xl-large": 128,
}
"""Of a sample, as published rates count them: GNMT's in both languages."""
BATCH_IN_TOKENS = {"transformer-big"}
"""Networks whose published batch sizes are in tokens."""
CLASSES = {
    "bert-base": "transformer",
    "bert-large": "transformer",
    "transformer-big": "transformer",
    "transformer-xl-base": "transformer",
    "transformer-xl-large": "transformer",
    "gnmt": "recurrent",
}
"""Class of a network; all others are convolutional."""


def _gpt(name: str, length: int, vocabulary: int, width: int, depth: int) -> Network:
    return gpt(name, length, vocabulary, width=width, depth=depth, heads=width // 64)


@cache
def gnmt() -> Network:
    """160,670,272 parameters."""
    net, width = NetworkBuilder("gnmt"), GNMT_WIDTH
    source = net.token_input("source", GNMT_LENGTH, GNMT_VOCABULARY)
    target = net.token_input("target", GNMT_LENGTH, GNMT_VOCABULARY)
    words = net.embedding(source, width, name="embedding")
    forth = net.lstm(words, width, name="encoder.0.forth")
    back = net.lstm(words, width, name="encoder.0.back")
    x = net.add(forth, back, name="encoder.0.both")
    net.linear(back, 4 * width, bias=False, name="encoder.1.gates_of_back")
    for i in range(1, GNMT_DEPTH):
        x = net.lstm(x, width, name=f"encoder.{i}")
    shared = {"weight": "embedding.weight"}
    same = Embedding(vocabulary=GNMT_VOCABULARY, features=width)
    y = net.add_layer(same, target, name="decoder.embedding", share=shared)
    y = net.lstm(y, width, name="decoder.0")
    query = net.linear(y, width, bias=False, name="attention.query")
    key = net.linear(x, width, bias=False, name="attention.key")
    pairs = net.tanh(net.pair_sum(query, key, name="attention.sum"), name="attention.tanh")
    scores = net.linear(pairs, 1, bias=False, name="attention.score")
    context = net.mix(scores, x, name="attention.context")
    for i in range(1, GNMT_DEPTH):
        net.linear(context, 4 * width, bias=False, name=f"decoder.{i}.gates_of_context")
        y = net.lstm(y, width, name=f"decoder.{i}")
    net.classify(net.linear(y, GNMT_VOCABULARY, name="output"))
    return net.build()


@cache
def resnext_101() -> Network:
    """44,177,704 parameters."""
    net = NetworkBuilder("resnext-101")
    x = _stem(net, 224)
    for stage, blocks in enumerate((3, 4, 23, 3)):
        for i in range(blocks):
            stride = 2 if stage and not i else 1
            x = _bottleneck(net, x, 128 << stage, 256 << stage, stride, groups=32)
    net.classify(net.linear(net.global_average_pool(x), 1000))
    return net.build()


@cache
def ssd300() -> Network:
    """23 million parameters; boxes and classes of 81 from six sizes."""
    net = NetworkBuilder("ssd300")
    x = _stem(net, 300)
    for stage, blocks in enumerate((3, 4, 6)):
        for i in range(blocks):
            stride = 2 if stage == 1 and not i else 1
            x = _bottleneck(net, x, 64 << stage, 256 << stage, stride)
    maps = [x]
    for narrow, wide, stride, padding in (
        (256, 512, 2, 1),
        (256, 512, 2, 1),
        (128, 256, 2, 1),
        (128, 256, 1, 0),
        (128, 256, 1, 0),
    ):
        x = net.relu(_conv_norm(net, x, narrow, 1))
        x = net.relu(_conv_norm(net, x, wide, 3, stride, padding=padding))
        maps.append(x)
    for features, boxes in zip(maps, (4, 6, 6, 6, 4, 4), strict=True):
        net.conv(features, boxes * (81 + 4), kernel=3, padding=1)
    net.classify(net.linear(net.global_average_pool(x), 81))
    return net.build()


@cache
def jasper() -> Network:
    """Ten blocks of five convolutions over time, and three more after them."""
    net = NetworkBuilder("jasper")
    x = net.relu(_conv_norm(net, net.input("frames", (64, 1670, 1)), 256, (11, 1), (2, 1)))
    for filters, kernel in ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25)):
        for _ in range(2):
            before = _conv_norm(net, x, filters, 1)
            for _ in range(5):
                x = net.relu(_conv_norm(net, x, filters, (kernel, 1)))
            x = net.add(x, before)
    x = net.relu(_conv_norm(net, x, 896, (29, 1)))
    x = net.relu(_conv_norm(net, x, 1024, 1))
    net.classify(net.linear(net.global_average_pool(x), 29))
    return net.build()


def _stem(net: NetworkBuilder, size: int) -> str:
    x = net.relu(_conv_norm(net, net.input("image", (3, size, size)), 64, 7, 2))
    return net.max_pool(x, 3, stride=2, padding=1)


def _bottleneck(
    net: NetworkBuilder, x: str, narrow: int, wide: int, stride: int, groups: int = 1
) -> str:
    y = net.relu(_conv_norm(net, x, narrow, 1))
    y = net.relu(_conv_norm(net, y, narrow, 3, stride, groups=groups))
    y = _conv_norm(net, y, wide, 1)
    if net.shape(x) != net.shape(y):
        x = _conv_norm(net, x, wide, 1, stride)
    return net.relu(net.add(x, y))


def _conv_norm(
    net: NetworkBuilder,
    x: str,
    filters: int,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    *,
    padding: int | tuple[int, int] | None = None,
    groups: int = 1,
) -> str:
    """A convolution that keeps the size at stride 1, and its batch normalization."""
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    around = (high // 2, wide // 2) if padding is None else padding
    y = net.conv(
        x, filters, kernel=kernel, stride=stride, padding=around, groups=groups, bias=False
    )
    return net.batch_norm(y)


OTHERS: dict[str, Callable[[], Network]] = {
    "bert-base": cache(partial(_gpt, "bert-base", BERT_LENGTH, BERT_VOCABULARY, 768, 12)),
    "bert-large": cache(partial(_gpt, "bert-large", BERT_LENGTH, BERT_VOCABULARY, 1024, 24)),
    "transformer-big": cache(partial(_gpt, "transformer-big", 32, 33708, 1024, 14)),
    "transformer-xl-base": cache(partial(_gpt, "transformer-xl-base", 192, 267735, 512, 16)),
    "transformer-xl-large": cache(partial(_gpt, "transformer-xl-large", 128, 36000, 1024, 18)),
    "gnmt": gnmt,
    "resnext-101": resnext_101,
    "ssd300": ssd300,
    "jasper": jasper,
}
"""By the name that tables show."""
