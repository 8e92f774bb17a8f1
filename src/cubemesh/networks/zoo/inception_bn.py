"""Inception-BN (Ioffe and Szegedy, "Batch normalization", 2015, figure 5).

    conv 7×7 / 2, 64        max pool 3×3 / 2
    conv 1×1, 64
    conv 3×3, 192           max pool 3×3 / 2
    inception 3a, 3b        inception 3c / 2
    inception 4a … 4d       inception 4e / 2
    inception 5a, 5b        mean of each channel, fully connected

GoogLeNet with batch normalization behind every convolution, two 3×3 in the place of each 5×5, and
mostly means in the place of maxima within the blocks. 3c and 4e halve the image: they have no 1×1
branch, and what they pool they pass through.

Where it differs from the paper: the first convolution is a plain one, as in every published form,
where the paper multiplies each colour by 8 filters first (a separable convolution) to spare
operations.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Initializer

_BLOCKS = {
    # 1×1   reduce, 3×3   reduce, 3×3 twice   pool, behind it
    "3a": (64, 64, 64, 64, 96, "mean", 32),
    "3b": (64, 64, 96, 64, 96, "mean", 64),
    "3c": (0, 128, 160, 64, 96, "max / 2", 0),
    "4a": (224, 64, 96, 96, 128, "mean", 128),
    "4b": (192, 96, 128, 96, 128, "mean", 128),
    "4c": (160, 128, 160, 128, 160, "mean", 128),
    "4d": (96, 128, 192, 160, 192, "mean", 128),
    "4e": (0, 128, 192, 192, 256, "max / 2", 0),
    "5a": (352, 192, 320, 160, 224, "mean", 128),
    "5b": (352, 192, 320, 192, 224, "max", 128),
}
_GAUSSIAN = Initializer(kind="normal", scale=0.01)


def inception_bn(image_size: int = 224, classes: int = 1000) -> Network:
    """11,285,224 parameters with 1000 classes."""
    net = NetworkBuilder("inception-bn")
    x = features(net, net.input("image", (3, image_size, image_size)))
    with net.segment("classifier"):
        x = net.global_average_pool(x, name="avgpool")
        x = net.linear(x, classes, initializer=_GAUSSIAN, name="fc")
    net.classify(x)
    return net.build()


def features(net: NetworkBuilder, x: str) -> str:
    """Everything but the classifier, of an image `x`: 10,260,224 parameters; 1024 channels."""
    with net.segment("stem"):
        x = net.conv_norm_relu(x, "conv1", 64, kernel=7, stride=2)
        x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool1")
        x = net.conv_norm_relu(x, "conv2", 64, kernel=1)
        x = net.conv_norm_relu(x, "conv3", 192, kernel=3)
        x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool2")
    for block in _BLOCKS:
        with net.segment(f"inception{block}"):
            x = _inception(net, x, block)
    return x


def _inception(net: NetworkBuilder, x: str, block: str) -> str:
    one, reduce3, three, reduce33, three_twice, pool, pooled = _BLOCKS[block]
    name, stride = f"inception{block}", 2 if pool == "max / 2" else 1
    branches = [net.conv_norm_relu(x, f"{name}.branch1", one, kernel=1)] if one else []
    y = net.conv_norm_relu(x, f"{name}.branch2.0", reduce3, kernel=1)
    y = net.conv_norm_relu(y, f"{name}.branch2.1", three, kernel=3, stride=stride)
    branches.append(y)
    y = net.conv_norm_relu(x, f"{name}.branch3.0", reduce33, kernel=1)
    y = net.conv_norm_relu(y, f"{name}.branch3.1", three_twice, kernel=3)
    y = net.conv_norm_relu(y, f"{name}.branch3.2", three_twice, kernel=3, stride=stride)
    branches.append(y)
    pooling = net.average_pool if pool == "mean" else net.max_pool
    y = pooling(x, 3, stride=stride, padding=1, name=f"{name}.branch4.0")
    if pooled:
        y = net.conv_norm_relu(y, f"{name}.branch4.1", pooled, kernel=1)
    return net.concat(*branches, y, name=f"{name}.concat")
