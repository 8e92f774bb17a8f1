"""EfficientNet-B0 (Tan and Le 2019, table 1), in torchvision's form.

    stem        conv 3×3 / 2, 32
    MBConv ×16  conv 1×1 to 6 times the channels (not in the first block), conv 3×3 or 5×5 of each
                channel by itself, squeeze-and-excitation, conv 1×1; added to its input, with
                stochastic depth, where the shape stays
    head        conv 1×1, 1280; the mean of each channel, dropout 0.2, fully connected

Batch normalization follows every convolution, and SiLU all but the last of a block. Squeeze-and-
excitation: the mean of each channel, fully connected to a quarter of the block's input channels,
SiLU, fully connected, sigmoid, a factor for each channel. Stochastic depth has rates from 0 to
0.1875, rising with the block. Nodes are called as torchvision's modules, so weights carry over by
name; the two matrices of an excitation are (out, in) here, and 1×1 convolutions there.
"""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import (
    HE_OUT,
    SMALL_NORMAL,
    Activation,
    Dropout,
    Multiply,
    Sigmoid,
)

_STOCHASTIC_DEPTH = 0.2
_DROPOUT = 0.2
_SILU = Activation(function="silu")


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """A row of table 1."""

    expansion: int
    kernel: int
    stride: int
    filters: int
    blocks: int


_B0 = (
    _Stage(expansion=1, kernel=3, stride=1, filters=16, blocks=1),
    _Stage(expansion=6, kernel=3, stride=2, filters=24, blocks=2),
    _Stage(expansion=6, kernel=5, stride=2, filters=40, blocks=2),
    _Stage(expansion=6, kernel=3, stride=2, filters=80, blocks=3),
    _Stage(expansion=6, kernel=5, stride=1, filters=112, blocks=3),
    _Stage(expansion=6, kernel=5, stride=2, filters=192, blocks=4),
    _Stage(expansion=6, kernel=3, stride=1, filters=320, blocks=1),
)


def efficientnet_b0(image_size: int = 224, classes: int = 1000) -> Network:
    """5,288,548 parameters at 1000 classes."""
    net = NetworkBuilder("efficientnet-b0")
    x = net.input("image", (3, image_size, image_size))
    with net.segment("stem"):
        x = _conv(net, x, 32, "features.0", kernel=3, stride=2)
    block, blocks = 0, sum(stage.blocks for stage in _B0)
    for number, stage in enumerate(_B0, start=1):
        with net.segment(f"stage{number}"):
            for i in range(stage.blocks):
                rate = _STOCHASTIC_DEPTH * block / blocks
                stride = 1 if i else stage.stride
                x = _block(net, x, f"features.{number}.{i}", stage, stride, rate)
                block += 1
    with net.segment("classifier"):
        x = _conv(net, x, 1280, f"features.{len(_B0) + 1}", kernel=1)
        x = net.global_average_pool(x, name="avgpool")
        x = net.dropout(x, _DROPOUT, name="classifier.0")
        x = net.linear(x, classes, initializer=SMALL_NORMAL, name="classifier.1")
    net.classify(x)
    return net.build()


def _conv(
    net: NetworkBuilder,
    x: str,
    filters: int,
    name: str,
    *,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    silu: bool = True,
) -> str:
    x = net.conv(
        x,
        filters,
        kernel=kernel,
        stride=stride,
        padding=kernel // 2,
        groups=groups,
        bias=False,
        name=f"{name}.0",
    )
    x = net.batch_norm(x, name=f"{name}.1")
    return net.add_layer(_SILU, x, name=f"{name}.2") if silu else x


def _block(net: NetworkBuilder, x: str, name: str, stage: _Stage, stride: int, rate: float) -> str:
    channels = net.shape(x)[0]
    width, y, part = channels * stage.expansion, x, 0
    if stage.expansion > 1:
        y = _conv(net, y, width, f"{name}.block.0", kernel=1)
        part = 1
    y = _conv(
        net, y, width, f"{name}.block.{part}", kernel=stage.kernel, stride=stride, groups=width
    )
    y = _excitation(net, y, channels // 4, f"{name}.block.{part + 1}")
    y = _conv(net, y, stage.filters, f"{name}.block.{part + 2}", kernel=1, silu=False)
    if stride > 1 or channels != stage.filters:
        return y
    if rate:
        depth = Dropout(rate=rate, per_sample=True)
        y = net.add_layer(depth, y, name=f"{name}.stochastic_depth")
    return net.add(x, y, name=f"{name}.add")


def _excitation(net: NetworkBuilder, x: str, squeezed: int, name: str) -> str:
    y = net.global_average_pool(x, name=f"{name}.avgpool")
    y = net.linear(y, squeezed, initializer=HE_OUT, name=f"{name}.fc1")
    y = net.add_layer(_SILU, y, name=f"{name}.activation")
    y = net.linear(y, net.shape(x)[0], initializer=HE_OUT, name=f"{name}.fc2")
    y = net.add_layer(Sigmoid(), y, name=f"{name}.scale_activation")
    return net.add_layer(Multiply(), x, y, name=f"{name}.scale")
