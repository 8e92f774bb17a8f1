"""Which PyTorch module computes a layer? The table of lowerings, one line a layer type.

A lowering gives the module without its arrays: made on the `meta` device, they take no memory, and
`module.py` puts the network's own in their place, shared ones once. `in_place` says that the
module may write its result over its first input. That spares an array the size of the layer, and
nothing reads the old values: `may_overwrite` decides it from the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.frameworks.pytorch.sequence_lowerings import SEQUENCE_LOWERINGS
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    ReLU,
    Shape,
)

Lowering = Callable[[Any, Shape, bool], nn.Module]
"""(layer, shape of one sample of its first input, in_place) → module."""


class Sum(nn.Module):
    """The sum of two values."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """A value of the shape both have."""
        return x.add_(y) if self.in_place else x + y

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return "inplace=True" if self.in_place else ""


class Concatenation(nn.Module):
    """Values one behind the other along their second axis, the one after the batch."""

    def forward(self, *values: Tensor) -> Tensor:
        """Values (batch, channels, …), alike but for their channels → all their channels."""
        return torch.cat(values, dim=1)


class ChannelMeans(nn.Module):
    """The mean of each channel over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels)."""
        return x.mean((2, 3))


class PatchResponseNorm(nn.Module):
    """x / (k + alpha · mean of x² over a zero-padded size × size patch)^beta, as Caffe's
    WITHIN_CHANNEL."""

    def __init__(self, size: int, alpha: float, beta: float, k: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width), unchanged in shape."""
        squares, padding = x * x, self.size // 2
        if self.size % 2 == 0:  # one cell less after the patch's centre than before it
            squares, padding = F.pad(squares, (padding, padding - 1) * 2), 0
        means = F.avg_pool2d(squares, self.size, stride=1, padding=padding)
        return x / means.mul_(self.alpha).add_(self.k).pow(self.beta)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


def _convolution(layer: Convolution, shape: Shape, in_place: bool) -> nn.Module:
    return nn.Conv2d(
        shape[0],
        layer.filters,
        layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        groups=layer.groups,
        bias=layer.bias,
    )


def _batch_norm(layer: BatchNorm, shape: Shape, in_place: bool) -> nn.Module:
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    norm = kind(shape[0], eps=layer.epsilon, momentum=layer.momentum)
    # Counts batches for a momentum of None, which no layer here has: a launch a step for nothing.
    norm.num_batches_tracked = None
    return norm


def _response_norm(layer: LocalResponseNorm, shape: Shape, in_place: bool) -> nn.Module:
    kind = PatchResponseNorm if layer.region == "within" else nn.LocalResponseNorm
    return kind(layer.size, alpha=layer.alpha, beta=layer.beta, k=layer.bias)


def _max_pool(layer: MaxPool, shape: Shape, in_place: bool) -> nn.Module:
    return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


def _average_pool(layer: AveragePool, shape: Shape, in_place: bool) -> nn.Module:
    return nn.AvgPool2d(layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


LOWERINGS: dict[type[Layer], Lowering] = {
    Convolution: _convolution,
    Linear: lambda layer, shape, _: nn.Linear(shape[-1], layer.features, bias=layer.bias),
    BatchNorm: _batch_norm,
    LocalResponseNorm: _response_norm,
    ReLU: lambda layer, shape, in_place: nn.ReLU(inplace=in_place),
    Add: lambda layer, shape, in_place: Sum(in_place),
    Concat: lambda layer, shape, _: Concatenation(),
    Dropout: lambda layer, shape, _: nn.Dropout(layer.rate),
    Flatten: lambda layer, shape, _: nn.Flatten(),
    MaxPool: _max_pool,
    AveragePool: _average_pool,
    GlobalAveragePool: lambda layer, shape, _: ChannelMeans(),
    **SEQUENCE_LOWERINGS,
}

ATTRIBUTES = {"running_variance": "running_var"}
"""Role in the layer → name of PyTorch's attribute, where they differ."""

_RESULT_UNREAD = (Add, BatchNorm, Concat, Convolution, Linear)
"""Layers whose backward pass reads their inputs at most, never their result."""


def lower(node: Node, shape: Shape, in_place: bool) -> nn.Module:
    """The module for `node`, its arrays on the `meta` device; `shape` is one sample's of its first
    input."""
    with torch.device("meta"):
        return LOWERINGS[type(node.layer)](node.layer, shape, in_place)


def may_overwrite(network: Network) -> frozenset[str]:
    """Names of the nodes whose first input nobody needs once they have run: no other node and no
    head reads it, and the layer that made it does not for its backward pass."""
    readers = Counter(value for node in network.nodes for value in node.inputs)
    readers.update(head.value for head in network.heads)
    made_by = {node.name: node.layer for node in network.nodes}
    return frozenset(
        node.name
        for node in network.nodes
        if readers[node.inputs[0]] == 1 and isinstance(made_by.get(node.inputs[0]), _RESULT_UNREAD)
    )
