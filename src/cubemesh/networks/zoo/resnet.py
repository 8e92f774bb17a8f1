"""ResNet-18, -34, -50, -101 and -152 (He et al. 2015, table 1), in the form called v1.5.

    conv 7×7 / 2, 64    max pool 3×3 / 2
    layer1   blocks of  64 filters          basic block        bottleneck block
    layer2   blocks of 128 filters, / 2     3×3, f             1×1, f
    layer3   blocks of 256 filters, / 2     3×3, f             3×3, f
    layer4   blocks of 512 filters, / 2                        1×1, 4 f
    mean of each channel, fully connected   added to the block's input, then ReLU

Where it differs from the paper: a bottleneck that halves the image does so in its 3×3 convolution
instead of the first 1×1, which costs some 6 % more operations and is what frameworks train today;
where the shape changes the shortcut is a 1×1 convolution (the paper's option B). The fully
connected layer starts from N(0, 0.01²). Every batch-norm scale starts at one, the last of each
branch as well, as in the paper; Goyal et al. (2017) start that one at zero for large batches.

Names are those of torchvision (`layer1.0.conv1`, `layer1.0.downsample.0`), so weights carry over.
"""

from __future__ import annotations

from collections.abc import Callable

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Initializer

_FILTERS = (64, 128, 256, 512)
_GAUSSIAN = Initializer(kind="normal", scale=0.01)
_Block = Callable[[NetworkBuilder, str, str, int, int], str]
"""(network, input, name of the block, filters, stride) → output."""


def resnet_18(image_size: int = 224, classes: int = 1000) -> Network:
    """11,689,512 parameters with 1000 classes."""
    return _resnet("resnet-18", _basic, (2, 2, 2, 2), image_size, classes)


def resnet_34(image_size: int = 224, classes: int = 1000) -> Network:
    """21,797,672 parameters with 1000 classes."""
    return _resnet("resnet-34", _basic, (3, 4, 6, 3), image_size, classes)


def resnet_50(image_size: int = 224, classes: int = 1000) -> Network:
    """25,557,032 parameters with 1000 classes."""
    return _resnet("resnet-50", _bottleneck, (3, 4, 6, 3), image_size, classes)


def resnet_101(image_size: int = 224, classes: int = 1000) -> Network:
    """44,549,160 parameters with 1000 classes."""
    return _resnet("resnet-101", _bottleneck, (3, 4, 23, 3), image_size, classes)


def resnet_152(image_size: int = 224, classes: int = 1000) -> Network:
    """60,192,808 parameters with 1000 classes."""
    return _resnet("resnet-152", _bottleneck, (3, 8, 36, 3), image_size, classes)


def _resnet(
    name: str, block: _Block, blocks: tuple[int, ...], image_size: int, classes: int
) -> Network:
    net = NetworkBuilder(name)
    x = net.input("image", (3, image_size, image_size))
    with net.segment("stem"):
        x = _conv_norm(net, x, "conv1", "bn1", 64, kernel=7, stride=2)
        x = net.relu(x, name="relu")
        x = net.max_pool(x, 3, stride=2, padding=1, name="maxpool")
    for stage, (filters, depth) in enumerate(zip(_FILTERS, blocks, strict=True), start=1):
        with net.segment(f"layer{stage}"):
            for i in range(depth):
                stride = 2 if stage > 1 and i == 0 else 1
                x = block(net, x, f"layer{stage}.{i}", filters, stride)
    with net.segment("classifier"):
        x = net.global_average_pool(x, name="avgpool")
        x = net.linear(x, classes, initializer=_GAUSSIAN, name="fc")
    net.classify(x)
    return net.build()


def _basic(net: NetworkBuilder, x: str, name: str, filters: int, stride: int) -> str:
    y = _conv_norm(net, x, f"{name}.conv1", f"{name}.bn1", filters, kernel=3, stride=stride)
    y = net.relu(y, name=f"{name}.relu1")
    y = _conv_norm(net, y, f"{name}.conv2", f"{name}.bn2", filters, kernel=3)
    y = net.add(y, _shortcut(net, x, y, name, stride), name=f"{name}.add")
    return net.relu(y, name=f"{name}.relu2")


def _bottleneck(net: NetworkBuilder, x: str, name: str, filters: int, stride: int) -> str:
    y = _conv_norm(net, x, f"{name}.conv1", f"{name}.bn1", filters, kernel=1)
    y = net.relu(y, name=f"{name}.relu1")
    y = _conv_norm(net, y, f"{name}.conv2", f"{name}.bn2", filters, kernel=3, stride=stride)
    y = net.relu(y, name=f"{name}.relu2")
    y = _conv_norm(net, y, f"{name}.conv3", f"{name}.bn3", 4 * filters, kernel=1)
    y = net.add(y, _shortcut(net, x, y, name, stride), name=f"{name}.add")
    return net.relu(y, name=f"{name}.relu3")


def _shortcut(net: NetworkBuilder, x: str, y: str, name: str, stride: int) -> str:
    """The block's input, brought to the shape of the branch's result where it differs."""
    filters = net.shape(y)[0]
    if stride == 1 and net.shape(x)[0] == filters:
        return x
    conv, norm = f"{name}.downsample.0", f"{name}.downsample.1"
    return _conv_norm(net, x, conv, norm, filters, kernel=1, stride=stride)


def _conv_norm(
    net: NetworkBuilder,
    x: str,
    conv: str,
    norm: str,
    filters: int,
    *,
    kernel: int,
    stride: int = 1,
) -> str:
    """A convolution that keeps the size (but for its stride), then batch normalization."""
    x = net.conv(
        x, filters, kernel=kernel, stride=stride, padding=kernel // 2, bias=False, name=conv
    )
    return net.batch_norm(x, name=norm)
