"""Network builder, one line per layer: `x = net.conv(x, 64, kernel=3, padding=1)`.

Each call appends a node, computes its shape and parameters, and returns the name of its value for
the next call. Nodes are named after their layer and number ("conv3") unless `name` is given.
Inputs, segments and heads are in `assembly.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from cubemesh.networks.assembly import Assembly
from cubemesh.networks.layers import (
    GLOROT,
    HE_OUT,
    ONES,
    Add,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Initializer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Pair,
    ReLU,
)


def _pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else value


class NetworkBuilder(Assembly):
    """A method for each usual layer; `add_layer` takes any, `build()` gives the `Network`."""

    def conv(
        self,
        x: str,
        filters: int,
        *,
        kernel: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer = HE_OUT,
        name: str | None = None,
    ) -> str:
        """A two-dimensional convolution."""
        layer = Convolution(
            filters=filters,
            kernel=_pair(kernel),
            stride=_pair(stride),
            padding=_pair(padding),
            groups=groups,
            bias=bias,
            initializer=initializer,
        )
        return self.add_layer(layer, x, name=name)

    def linear(
        self,
        x: str,
        features: int,
        *,
        bias: bool = True,
        initializer: Initializer = GLOROT,
        name: str | None = None,
        share: Mapping[str, str] | None = None,
    ) -> str:
        """A fully connected layer."""
        layer = Linear(features=features, bias=bias, initializer=initializer)
        return self.add_layer(layer, x, name=name, share=share)

    def batch_norm(
        self,
        x: str,
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.1,
        scale_initializer: Initializer = ONES,
        name: str | None = None,
    ) -> str:
        """Batch normalization with a learned scale and shift."""
        layer = BatchNorm(epsilon=epsilon, momentum=momentum, scale_initializer=scale_initializer)
        return self.add_layer(layer, x, name=name)

    def lrn(self, x: str, layer: LocalResponseNorm, *, name: str | None = None) -> str:
        """Local response normalization."""
        return self.add_layer(layer, x, name=name)

    def relu(self, x: str, *, name: str | None = None) -> str:
        """The rectifier."""
        return self.add_layer(ReLU(), x, name=name)

    def add(self, x: str, y: str, *, name: str | None = None) -> str:
        """The sum of two values."""
        return self.add_layer(Add(), x, y, name=name)

    def concat(self, *values: str, name: str | None = None) -> str:
        """Values one behind the other, channel after channel."""
        return self.add_layer(Concat(), *values, name=name)

    def dropout(self, x: str, rate: float, *, name: str | None = None) -> str:
        """Dropout, active in training only."""
        return self.add_layer(Dropout(rate=rate), x, name=name)

    def flatten(self, x: str, *, name: str | None = None) -> str:
        """All axes into one."""
        return self.add_layer(Flatten(), x, name=name)

    def max_pool(
        self,
        x: str,
        kernel: int | Pair,
        *,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> str:
        """Max pooling; the stride is the kernel unless given."""
        layer = MaxPool(
            kernel=_pair(kernel),
            stride=_pair(kernel if stride is None else stride),
            padding=_pair(padding),
            ceil_mode=ceil_mode,
        )
        return self.add_layer(layer, x, name=name)

    def average_pool(
        self,
        x: str,
        kernel: int | Pair,
        *,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> str:
        """Average pooling; the stride is the kernel unless given."""
        layer = AveragePool(
            kernel=_pair(kernel),
            stride=_pair(kernel if stride is None else stride),
            padding=_pair(padding),
            ceil_mode=ceil_mode,
        )
        return self.add_layer(layer, x, name=name)

    def global_average_pool(self, x: str, *, name: str | None = None) -> str:
        """The mean of each channel."""
        return self.add_layer(GlobalAveragePool(), x, name=name)
