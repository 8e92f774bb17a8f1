"""DetectNet (A. Tao, J. Barker and S. Sarathy, "DetectNet: Deep neural network for object detection
in DIGITS", NVIDIA, 2016): objects and their boxes on a grid with a cell every 16 pixels.

    GoogLeNet without its last max pool, auxiliary classifiers and classifier    stride 16
    dropout of 0.4
    coverage    conv 1×1 to a score for each class, sigmoid: 1 where an object covers the cell
    boxes       conv 1×1 to 4: left, top, right and bottom of that object, from the cell's middle
    head        both for each cell, (cells, classes + 4)

The loss of an image is that of DIGITS' network description: half the squared differences of the
coverage, summed over cells and classes, and twice the absolute differences of the corners, divided
by the box's width or height, averaged over the cells of each object and summed over objects
(`detection/labels.py`). A corner is in units of 16 pixels, where DetectNet's are pixels; images are
square, pools padded at their ends as GoogLeNet's are, and weights start as He et al. draw them.

`detectnet-little` has six 3×3 convolutions with batch normalization in the place of GoogLeNet, of
which four halve the image, and no dropout: a size of cubemesh's own that learns in seconds on a
CPU.
"""

from __future__ import annotations

from cubemesh.errors import UsageError
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Initializer, Sigmoid
from cubemesh.networks.zoo.googlenet import BLOCKS, biased_conv, inception, paper_stem

STRIDE = 16
"""Pixels from a cell to the next."""
_HEAD = Initializer(kind="normal", scale=0.01)
_LITTLE = (16, 32, 64, 64, 64, 64)
_HALVED = 4


def detectnet(image_size: int = 640, classes: int = 1) -> Network:
    """5,978,677 parameters for 1 class."""
    net = _begin("detectnet", image_size)
    x = paper_stem(net, "image")
    for block in BLOCKS:
        with net.segment(f"inception{block}"):
            x = inception(net, x, block, biased_conv, wide=5)
            if block == "3b":
                x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="maxpool3")
    return _end(net, x, classes, dropout=0.4)


def detectnet_little(image_size: int = 64, classes: int = 3) -> Network:
    """135,127 parameters for 3 classes."""
    return detectnet_of("detectnet-little", image_size, classes, widths=_LITTLE)


def detectnet_of(name: str, image_size: int, classes: int, *, widths: tuple[int, ...]) -> Network:
    """A detector of convolutions with so many filters, of which the first four halve the image."""
    net = _begin(name, image_size)
    x = "image"
    for number, width in enumerate(widths, start=1):
        with net.segment(f"stem{number}"):
            x = net.conv_norm_relu(x, f"conv{number}", width, 3, 2 if number <= _HALVED else 1)
    return _end(net, x, classes, dropout=0.0)


def _begin(name: str, image_size: int) -> NetworkBuilder:
    """UsageError for an image that is not a number of cells wide."""
    if image_size % STRIDE:
        raise UsageError(
            f"image_size={image_size} does not fit a grid of {STRIDE} pixels: give {name} a "
            f"multiple of {STRIDE}, such as {max(1, image_size // STRIDE) * STRIDE}."
        )
    net = NetworkBuilder(name)
    net.input("image", (3, image_size, image_size))
    return net


def _end(net: NetworkBuilder, x: str, classes: int, *, dropout: float) -> Network:
    """The two predictions of each cell, side by side."""
    with net.segment("head"):
        if dropout:
            x = net.dropout(x, dropout, name="dropout")
        coverage = net.conv(x, classes, kernel=1, initializer=_HEAD, name="coverage")
        coverage = net.add_layer(Sigmoid(), coverage, name="coverage.sigmoid")
        corners = net.conv(x, 4, kernel=1, initializer=_HEAD, name="boxes")
        x = net.concat(coverage, corners, name="grid")
        x = net.tokens(x, name="cells")
    net.detect(x)
    return net.build()
