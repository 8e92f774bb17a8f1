"""VGG-11, -16 and -19: configurations A, D and E of Simonyan and Zisserman (2014), table 1.

Five blocks of 3×3 convolutions that keep the size, each followed by a ReLU, each block by 2×2 max
pooling; then 4096, 4096 and the classes, with dropout of 0.5 behind the first two.

Names are the authors' own (conv3_2 is the second convolution of block 3, fc6 the first fully
connected layer). Weights start as He et al. draw them, the fully connected ones from N(0, 0.01²);
the paper trained A first and started the deeper ones from it. No batch normalization, as there.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Initializer

_FILTERS = (64, 128, 256, 512, 512)
_A = (1, 1, 2, 2, 2)
_D = (2, 2, 3, 3, 3)
_E = (2, 2, 4, 4, 4)
_GAUSSIAN = Initializer(kind="normal", scale=0.01)


def vgg11(image_size: int = 224, classes: int = 1000) -> Network:
    """Configuration A: 132,863,336 parameters at 224² and 1000 classes."""
    return _vgg("vgg11", _A, image_size, classes)


def vgg16(image_size: int = 224, classes: int = 1000) -> Network:
    """Configuration D: 138,357,544 parameters at 224² and 1000 classes."""
    return _vgg("vgg16", _D, image_size, classes)


def vgg19(image_size: int = 224, classes: int = 1000) -> Network:
    """Configuration E: 143,667,240 parameters at 224² and 1000 classes."""
    return _vgg("vgg19", _E, image_size, classes)


def _vgg(name: str, convolutions: tuple[int, ...], image_size: int, classes: int) -> Network:
    net = NetworkBuilder(name)
    x = net.input("image", (3, image_size, image_size))
    for block, (filters, depth) in enumerate(zip(_FILTERS, convolutions, strict=True), start=1):
        with net.segment(f"block{block}"):
            for i in range(1, depth + 1):
                x = net.conv(x, filters, kernel=3, padding=1, name=f"conv{block}_{i}")
                x = net.relu(x, name=f"relu{block}_{i}")
            x = net.max_pool(x, 2, name=f"pool{block}")
    with net.segment("classifier"):
        x = net.flatten(x, name="flatten")
        for number in (6, 7):
            x = net.linear(x, 4096, initializer=_GAUSSIAN, name=f"fc{number}")
            x = net.relu(x, name=f"relu{number}")
            x = net.dropout(x, 0.5, name=f"drop{number}")
        x = net.linear(x, classes, initializer=_GAUSSIAN, name="fc8")
    net.classify(x)
    return net.build()
