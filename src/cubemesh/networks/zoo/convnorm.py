"""Building block of GoogLeNet and the Inceptions: convolution, batch normalization, ReLU.

The three nodes are called `<name>.conv`, `<name>.bn` and `<name>.relu`, the first two as in
torchvision. The convolution has no bias, for the normalization would take it away again.
"""

from __future__ import annotations

from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.layers import Pair

EPSILON = 1e-3
"""Added to the variance; torchvision's and TensorFlow's value for these networks."""


def conv_norm_relu(
    net: NetworkBuilder,
    x: str,
    name: str,
    filters: int,
    kernel: int | Pair,
    stride: int = 1,
    padding: int | Pair | None = None,
) -> str:
    """Name of the ReLU's value. Without a `padding` the size is kept, but for the stride."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    x = net.conv(
        x,
        filters,
        kernel=kernel,
        stride=stride,
        padding=(height // 2, width // 2) if padding is None else padding,
        bias=False,
        name=f"{name}.conv",
    )
    x = net.batch_norm(x, epsilon=EPSILON, name=f"{name}.bn")
    return net.relu(x, name=f"{name}.relu")
