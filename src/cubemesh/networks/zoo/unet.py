"""U-Net (Ronneberger, Fischer and Brox 2015, figure 1): a class for each pixel.

    down    64, 128, 256 and 512 filters, each 2 × conv 3×3, then max pool 2×2
    bottom  2 × conv 3×3, 1024; dropout
    up      512, 256, 128 and 64 filters: a transposed conv 2×2 / 2 to that many channels, joined
            with those of the same size on the way down, 2 × conv 3×3
    head    conv 1×1 to a score for each class

ReLU follows each 3×3 convolution. These are padded, so that scores are as many as pixels, where the
paper's are not and its images are cropped. A transposed convolution whose kernel is its stride is a
1×1 convolution to four times the channels and a shuffle of pixels; it has no bias here. Weights
start as the paper has them, from N(0, 2 / fan_in).
"""

from __future__ import annotations

from cubemesh.errors import UsageError
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import HE_IN, PixelShuffle

_WIDTHS = (64, 128, 256, 512, 1024)


def unet(image_size: int = 512, classes: int = 2) -> Network:
    """31,030,850 parameters for 2 classes."""
    return unet_of("unet", image_size, classes, widths=_WIDTHS)


def unet_of(name: str, image_size: int, classes: int, *, widths: tuple[int, ...]) -> Network:
    """Any network of this family, by the filters of each size. UsageError for an image that cannot
    be halved so often."""
    step = 2 ** (len(widths) - 1)
    if image_size % step and image_size > step:
        raise UsageError(
            f"image_size={image_size} cannot be halved {len(widths) - 1} times: give {name} a "
            f"multiple of {step}, such as {image_size // step * step}."
        )
    net = NetworkBuilder(name)
    x = net.input("image", (3, image_size, image_size))
    passed = []
    for number, width in enumerate(widths[:-1], start=1):
        with net.segment(f"down{number}"):
            x = _two_convs(net, x, width, f"down{number}")
            passed.append(x)
            x = net.max_pool(x, 2, name=f"down{number}.pool")
    with net.segment("bottom"):
        x = _two_convs(net, x, widths[-1], "bottom")
        x = net.dropout(x, 0.5, name="bottom.dropout")
    for number, width in reversed(list(enumerate(widths[:-1], start=1))):
        with net.segment(f"up{number}"):
            x = net.conv(
                x, 4 * width, kernel=1, bias=False, initializer=HE_IN, name=f"up{number}.widen"
            )
            x = net.add_layer(PixelShuffle(), x, name=f"up{number}.shuffle")
            x = net.concat(passed.pop(), x, name=f"up{number}.concat")
            x = _two_convs(net, x, width, f"up{number}")
    with net.segment("head"):
        x = net.conv(x, classes, kernel=1, initializer=HE_IN, name="classifier")
        x = net.tokens(x, name="pixels")
    net.classify(x)
    return net.build()


def _two_convs(net: NetworkBuilder, x: str, width: int, name: str) -> str:
    for number in (1, 2):
        x = net.conv(x, width, kernel=3, padding=1, initializer=HE_IN, name=f"{name}.conv{number}")
        x = net.relu(x, name=f"{name}.relu{number}")
    return x
