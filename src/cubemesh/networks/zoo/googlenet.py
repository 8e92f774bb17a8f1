"""GoogLeNet (Szegedy et al., "Going deeper with convolutions", 2014, table 1), in two forms.

    conv 7×7 / 2, 64        max pool 3×3 / 2        (response normalization)
    conv 1×1, 64
    conv 3×3, 192           (response normalization)        max pool 3×3 / 2
    inception 3a, 3b        max pool 3×3 / 2
    inception 4a … 4e       max pool / 2
    inception 5a, 5b        mean of each channel, dropout, fully connected

`googlenet-paper` is the paper's: convolutions with biases, response normalization (Krizhevsky et
al. 2012, and as figure 3 places it), and in training two auxiliary classifiers, on 4a and on 4d,
whose losses count 0.3.

`googlenet` is the form that torchvision publishes: batch normalization behind every convolution,
no response normalization, no auxiliary classifiers here; 3×3 where the paper has 5×5, the last max
pool 2×2, dropout of 0.2.

Names are those of torchvision (`inception3a.branch2.0.conv`) in both forms. Weights start as He et
al. (2015) draw them; the paper does not tell how its own started.
"""

from __future__ import annotations

from collections.abc import Callable

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import HE_IN, Initializer, LocalResponseNorm

BLOCKS = {
    # 1×1   reduce, 3×3   reduce, 5×5   behind the pool
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_AUXILIARY = {"4a": "aux1", "4d": "aux2"}
_AUXILIARY_WEIGHT = 0.3
_RESPONSE_NORM = LocalResponseNorm(size=5, alpha=1e-4, beta=0.75)
_GAUSSIAN = Initializer(kind="normal", scale=0.01)

_Conv = Callable[[NetworkBuilder, str, str, int, int, int], str]
"""(network, input, name, filters, kernel, stride) → output of a convolution that keeps the size,
but for its stride, rectified."""


def googlenet(image_size: int = 224, classes: int = 1000) -> Network:
    """6,624,904 parameters with 1000 classes."""
    net = NetworkBuilder("googlenet")
    x = net.input("image", (3, image_size, image_size))
    with net.segment("stem"):
        x = net.conv_norm_relu(x, "conv1", 64, 7, 2)
        x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool1")
        x = net.conv_norm_relu(x, "conv2", 64, 1, 1)
        x = net.conv_norm_relu(x, "conv3", 192, 3, 1)
        x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool2")
    for block in BLOCKS:
        with net.segment(f"inception{block}"):
            x = inception(net, x, block, NetworkBuilder.conv_norm_relu, wide=3)
            x = _pool_behind(net, x, block, last=2)
    with net.segment("classifier"):
        x = net.global_average_pool(x, name="avgpool")
        x = net.dropout(x, 0.2, name="dropout")
        x = net.linear(x, classes, initializer=_GAUSSIAN, name="fc")
    net.classify(x)
    return net.build()


def googlenet_paper(image_size: int = 224, classes: int = 1000) -> Network:
    """13,378,280 parameters at 224² and 1000 classes, 6,998,552 without the auxiliary ones."""
    net = NetworkBuilder("googlenet-paper")
    x = paper_stem(net, net.input("image", (3, image_size, image_size)))
    for block in BLOCKS:
        with net.segment(f"inception{block}"):
            x = inception(net, x, block, biased_conv, wide=5)
            x = _pool_behind(net, x, block, last=3)
        if block in _AUXILIARY:
            _auxiliary(net, x, _AUXILIARY[block], classes)
    with net.segment("classifier"):
        x = net.global_average_pool(x, name="avgpool")
        x = net.dropout(x, 0.4, name="dropout")
        x = net.linear(x, classes, name="fc")
    net.classify(x)
    return net.build()


def paper_stem(net: NetworkBuilder, x: str) -> str:
    """Everything before the inception blocks, with biases and response normalization."""
    with net.segment("stem"):
        x = biased_conv(net, x, "conv1", 64, 7, 2)
        x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool1")
        x = net.lrn(x, _RESPONSE_NORM, name="norm1")
        x = biased_conv(net, x, "conv2", 64, 1, 1)
        x = biased_conv(net, x, "conv3", 192, 3, 1)
        x = net.lrn(x, _RESPONSE_NORM, name="norm2")
        return net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool2")


def inception(net: NetworkBuilder, x: str, block: str, conv: _Conv, *, wide: int) -> str:
    """Four branches side by side; `wide` is the window of the third."""
    one, reduce3, three, reduce5, five, pooled = BLOCKS[block]
    name = f"inception{block}"
    a = conv(net, x, f"{name}.branch1", one, 1, 1)
    b = conv(net, x, f"{name}.branch2.0", reduce3, 1, 1)
    b = conv(net, b, f"{name}.branch2.1", three, 3, 1)
    c = conv(net, x, f"{name}.branch3.0", reduce5, 1, 1)
    c = conv(net, c, f"{name}.branch3.1", five, wide, 1)
    d = net.max_pool(x, 3, stride=1, padding=1, name=f"{name}.branch4.0")
    d = conv(net, d, f"{name}.branch4.1", pooled, 1, 1)
    return net.concat(a, b, c, d, name=f"{name}.concat")


def _pool_behind(net: NetworkBuilder, x: str, block: str, *, last: int) -> str:
    """The max pool that ends stages 3 and 4; `last` is the window of the second."""
    if block == "3b":
        return net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool3")
    if block == "4e":
        return net.max_pool(x, last, stride=2, ceil_mode=True, name="maxpool4")
    return x


def _auxiliary(net: NetworkBuilder, x: str, name: str, classes: int) -> None:
    """A classifier of its own, for training only. Its pool shrinks to an image smaller than it."""
    window = min(5, net.shape(x)[1])
    with net.segment(name):
        x = net.average_pool(x, window, stride=3, name=f"{name}.pool")
        x = biased_conv(net, x, f"{name}.conv", 128, 1, 1)
        x = net.flatten(x, name=f"{name}.flatten")
        x = net.linear(x, 1024, initializer=HE_IN, name=f"{name}.fc1")
        x = net.relu(x, name=f"{name}.relu")
        x = net.dropout(x, 0.7, name=f"{name}.dropout")
        x = net.linear(x, classes, name=f"{name}.fc2")
    net.classify(x, weight=_AUXILIARY_WEIGHT, train_only=True)


def biased_conv(
    net: NetworkBuilder, x: str, name: str, filters: int, kernel: int, stride: int
) -> str:
    """A convolution with biases that keeps the size, but for its stride, rectified."""
    x = net.conv(
        x,
        filters,
        kernel=kernel,
        stride=stride,
        padding=kernel // 2,
        initializer=HE_IN,
        name=f"{name}.conv",
    )
    return net.relu(x, name=f"{name}.relu")
