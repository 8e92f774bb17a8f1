"""ConvNeXt-T (Liu et al. 2022), in torchvision's form.

    stem      conv 4×4 / 4, 96; layer norm of each position
    stages    3, 3, 9 and 3 blocks of 96, 192, 384 and 768 channels; before each but the first a
              layer norm and a conv 2×2 / 2
    block     conv 7×7 of each channel by itself, layer norm, 4 · channels, GELU, channels, a
              learned scale of each channel from 10⁻⁶ on, stochastic depth; added to its input
    head      the mean of each channel, layer norm, fully connected

Stochastic depth leaves out a sample's branch with a rate that rises from 0 in the first block to
0.1 in the last. Layer norms have an epsilon of 1e-6; weights start from N(0, 0.02²), biases at
zero. Nodes are called as torchvision's modules, so weights carry over by name but for the learned
scale, `….layer_scale.weight` (channels,) here and `….layer_scale` (channels, 1, 1) there.
"""

from __future__ import annotations

from itertools import accumulate

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import SMALL_NORMAL, Dropout, Initializer, Scale, ToImage

_EPSILON = 1e-6
_LAYER_SCALE = Initializer(kind="normal", scale=0.0, mean=1e-6)
_STOCHASTIC_DEPTH = 0.1


def convnext_t(image_size: int = 224, classes: int = 1000) -> Network:
    """28,589,128 parameters at 1000 classes."""
    return convnext(
        "convnext-t", image_size, classes, widths=(96, 192, 384, 768), depths=(3, 3, 9, 3)
    )


def convnext(
    name: str,
    image_size: int,
    classes: int,
    *,
    widths: tuple[int, ...],
    depths: tuple[int, ...],
) -> Network:
    """Any network of this family, by channels and blocks of each stage."""
    net = NetworkBuilder(name)
    x = net.input("image", (3, image_size, image_size))
    with net.segment("stem"):
        x = net.conv(
            x, widths[0], kernel=4, stride=4, initializer=SMALL_NORMAL, name="features.0.0"
        )
        x = _norm(net, x, "features.0.1")
    rates = _STOCHASTIC_DEPTH / max(1, sum(depths) - 1)
    first = [0, *accumulate(depths)]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        with net.segment(f"stage{stage + 1}"):
            if stage:
                x = _norm(net, x, f"features.{2 * stage}.0")
                x = net.conv(
                    x,
                    width,
                    kernel=2,
                    stride=2,
                    initializer=SMALL_NORMAL,
                    name=f"features.{2 * stage}.1",
                )
            for i in range(depth):
                x = _block(net, x, f"features.{2 * stage + 1}.{i}", rates * (first[stage] + i))
    with net.segment("classifier"):
        x = net.global_average_pool(x, name="avgpool")
        x = net.layer_norm(x, epsilon=_EPSILON, name="classifier.0")
        x = net.linear(x, classes, initializer=SMALL_NORMAL, name="classifier.2")
    net.classify(x)
    return net.build()


def _norm(net: NetworkBuilder, x: str, name: str) -> str:
    """Of the channels at each position of an image."""
    _, *size = net.shape(x)
    x = net.tokens(x, name=f"{name}.positions")
    x = net.layer_norm(x, epsilon=_EPSILON, name=name)
    return net.add_layer(ToImage(size=(size[0], size[1])), x, name=f"{name}.image")


def _block(net: NetworkBuilder, x: str, name: str, rate: float) -> str:
    width, height, across = net.shape(x)
    y = net.conv(
        x,
        width,
        kernel=7,
        padding=3,
        groups=width,
        initializer=SMALL_NORMAL,
        name=f"{name}.block.0",
    )
    y = net.tokens(y, name=f"{name}.block.1")
    y = net.layer_norm(y, epsilon=_EPSILON, name=f"{name}.block.2")
    y = net.linear(y, 4 * width, initializer=SMALL_NORMAL, name=f"{name}.block.3")
    y = net.gelu(y, name=f"{name}.block.4")
    y = net.linear(y, width, initializer=SMALL_NORMAL, name=f"{name}.block.5")
    y = net.add_layer(ToImage(size=(height, across)), y, name=f"{name}.block.6")
    y = net.add_layer(Scale(initializer=_LAYER_SCALE), y, name=f"{name}.layer_scale")
    if rate:
        depth = Dropout(rate=rate, per_sample=True)
        y = net.add_layer(depth, y, name=f"{name}.stochastic_depth")
    return net.add(x, y, name=f"{name}.add")
