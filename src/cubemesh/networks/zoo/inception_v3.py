"""Inception-v3 (Szegedy et al., "Rethinking the Inception architecture", 2015), as published since.

    conv 3×3 / 2, 32        conv 3×3, 32        conv 3×3 padded, 64     max pool 3×3 / 2
    conv 1×1, 80            conv 3×3, 192                               max pool 3×3 / 2
    5b, 5c, 5d              35 × 35     1×1 | 5×5 | 3×3 3×3 | mean
    6a                      / 2         3×3 | 3×3 3×3 | max
    6b, 6c, 6d, 6e          17 × 17     1×1 | 1×7 7×1 | 7×1 1×7 7×1 1×7 | mean
    7a                      / 2         3×3 | 1×7 7×1 3×3 | max
    7b, 7c                  8 × 8       1×1 | 1×3, 3×1 | 3×3 1×3, 3×1 | mean
    mean of each channel, dropout, fully connected

This is the network the authors released with TensorFlow, and torchvision after them. The paper's
table 1 has another stem, and a 3×3 where the blocks at 35 × 35 have a 5×5. Behind 6e hangs an
auxiliary classifier, for training only, its loss counting 0.4 as in that release.

Names are those of torchvision (`Mixed_5b.branch5x5_1.conv`). Weights start as He et al. (2015) draw
them, where the release drew from N(0, 0.1²), cut off; batch normalization takes the scale away.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Initializer

_AUXILIARY_WEIGHT = 0.4
_GAUSSIAN = Initializer(kind="normal", scale=0.01)
_AUXILIARY_GAUSSIAN = Initializer(kind="normal", scale=0.001)


def inception_v3(image_size: int = 299, classes: int = 1000) -> Network:
    """27,161,264 parameters at 299² and 1000 classes, 23,834,568 without the auxiliary ones."""
    net = NetworkBuilder("inception-v3")
    x = net.input("image", (3, image_size, image_size))
    with net.segment("stem"):
        x = _stem(net, x)
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        with net.segment(name):
            x = _block_35(net, x, name, pooled)
    with net.segment("Mixed_6a"):
        x = _halve_35(net, x, "Mixed_6a")
    for name, filters in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        with net.segment(f"Mixed_{name}"):
            x = _block_17(net, x, f"Mixed_{name}", filters)
    with net.segment("AuxLogits"):
        _auxiliary(net, x, "AuxLogits", classes)
    with net.segment("Mixed_7a"):
        x = _halve_17(net, x, "Mixed_7a")
    for name in ("Mixed_7b", "Mixed_7c"):
        with net.segment(name):
            x = _block_8(net, x, name)
    with net.segment("classifier"):
        x = net.global_average_pool(x, name="avgpool")
        x = net.dropout(x, 0.5, name="dropout")
        x = net.linear(x, classes, initializer=_GAUSSIAN, name="fc")
    net.classify(x)
    return net.build()


def _stem(net: NetworkBuilder, x: str) -> str:
    x = net.conv_norm_relu(x, "Conv2d_1a_3x3", 32, kernel=3, stride=2, padding=0)
    x = net.conv_norm_relu(x, "Conv2d_2a_3x3", 32, kernel=3, padding=0)
    x = net.conv_norm_relu(x, "Conv2d_2b_3x3", 64, kernel=3, padding=1)
    x = net.max_pool(x, 3, stride=2, name="maxpool1")
    x = net.conv_norm_relu(x, "Conv2d_3b_1x1", 80, kernel=1, padding=0)
    x = net.conv_norm_relu(x, "Conv2d_4a_3x3", 192, kernel=3, padding=0)
    return net.max_pool(x, 3, stride=2, name="maxpool2")


def _block_35(net: NetworkBuilder, x: str, name: str, pooled: int) -> str:
    a = net.conv_norm_relu(x, f"{name}.branch1x1", 64, 1)
    b = net.conv_norm_relu(x, f"{name}.branch5x5_1", 48, 1)
    b = net.conv_norm_relu(b, f"{name}.branch5x5_2", 64, 5)
    c = net.conv_norm_relu(x, f"{name}.branch3x3dbl_1", 64, 1)
    c = net.conv_norm_relu(c, f"{name}.branch3x3dbl_2", 96, 3)
    c = net.conv_norm_relu(c, f"{name}.branch3x3dbl_3", 96, 3)
    return net.concat(a, b, c, _mean(net, x, name, pooled), name=f"{name}.concat")


def _halve_35(net: NetworkBuilder, x: str, name: str) -> str:
    a = net.conv_norm_relu(x, f"{name}.branch3x3", 384, kernel=3, stride=2, padding=0)
    b = net.conv_norm_relu(x, f"{name}.branch3x3dbl_1", 64, 1)
    b = net.conv_norm_relu(b, f"{name}.branch3x3dbl_2", 96, 3)
    b = net.conv_norm_relu(b, f"{name}.branch3x3dbl_3", 96, kernel=3, stride=2, padding=0)
    c = net.max_pool(x, 3, stride=2, name=f"{name}.maxpool")
    return net.concat(a, b, c, name=f"{name}.concat")


def _block_17(net: NetworkBuilder, x: str, name: str, filters: int) -> str:
    a = net.conv_norm_relu(x, f"{name}.branch1x1", 192, 1)
    b = net.conv_norm_relu(x, f"{name}.branch7x7_1", filters, 1)
    b = net.conv_norm_relu(b, f"{name}.branch7x7_2", filters, (1, 7))
    b = net.conv_norm_relu(b, f"{name}.branch7x7_3", 192, (7, 1))
    c = net.conv_norm_relu(x, f"{name}.branch7x7dbl_1", filters, 1)
    c = net.conv_norm_relu(c, f"{name}.branch7x7dbl_2", filters, (7, 1))
    c = net.conv_norm_relu(c, f"{name}.branch7x7dbl_3", filters, (1, 7))
    c = net.conv_norm_relu(c, f"{name}.branch7x7dbl_4", filters, (7, 1))
    c = net.conv_norm_relu(c, f"{name}.branch7x7dbl_5", 192, (1, 7))
    return net.concat(a, b, c, _mean(net, x, name, 192), name=f"{name}.concat")


def _halve_17(net: NetworkBuilder, x: str, name: str) -> str:
    a = net.conv_norm_relu(x, f"{name}.branch3x3_1", 192, 1)
    a = net.conv_norm_relu(a, f"{name}.branch3x3_2", 320, kernel=3, stride=2, padding=0)
    b = net.conv_norm_relu(x, f"{name}.branch7x7x3_1", 192, 1)
    b = net.conv_norm_relu(b, f"{name}.branch7x7x3_2", 192, (1, 7))
    b = net.conv_norm_relu(b, f"{name}.branch7x7x3_3", 192, (7, 1))
    b = net.conv_norm_relu(b, f"{name}.branch7x7x3_4", 192, kernel=3, stride=2, padding=0)
    c = net.max_pool(x, 3, stride=2, name=f"{name}.maxpool")
    return net.concat(a, b, c, name=f"{name}.concat")


def _block_8(net: NetworkBuilder, x: str, name: str) -> str:
    a = net.conv_norm_relu(x, f"{name}.branch1x1", 320, 1)
    b = net.conv_norm_relu(x, f"{name}.branch3x3_1", 384, 1)
    b = _fork(net, b, f"{name}.branch3x3_2")
    c = net.conv_norm_relu(x, f"{name}.branch3x3dbl_1", 448, 1)
    c = net.conv_norm_relu(c, f"{name}.branch3x3dbl_2", 384, 3)
    c = _fork(net, c, f"{name}.branch3x3dbl_3")
    return net.concat(a, b, c, _mean(net, x, name, 192), name=f"{name}.concat")


def _fork(net: NetworkBuilder, x: str, name: str) -> str:
    """1×3 and 3×1 side by side."""
    a = net.conv_norm_relu(x, f"{name}a", 384, (1, 3))
    b = net.conv_norm_relu(x, f"{name}b", 384, (3, 1))
    return net.concat(a, b, name=f"{name}.concat")


def _mean(net: NetworkBuilder, x: str, name: str, filters: int) -> str:
    """The branch that averages first; cells of the padding count as zeros."""
    x = net.average_pool(x, 3, stride=1, padding=1, name=f"{name}.avgpool")
    return net.conv_norm_relu(x, f"{name}.branch_pool", filters, 1)


def _auxiliary(net: NetworkBuilder, x: str, name: str, classes: int) -> None:
    """A classifier of its own, for training only.

    17 × 17 → 5 × 5 → 1 × 1. Its two windows shrink to images smaller than they are.
    """
    x = net.average_pool(x, min(5, net.shape(x)[1]), stride=3, name=f"{name}.avgpool")
    x = net.conv_norm_relu(x, f"{name}.conv0", 128, kernel=1, padding=0)
    x = net.conv_norm_relu(x, f"{name}.conv1", 768, kernel=min(5, net.shape(x)[1]), padding=0)
    x = net.global_average_pool(x, name=f"{name}.mean")
    x = net.linear(x, classes, initializer=_AUXILIARY_GAUSSIAN, name=f"{name}.fc")
    net.classify(x, weight=_AUXILIARY_WEIGHT, train_only=True)
