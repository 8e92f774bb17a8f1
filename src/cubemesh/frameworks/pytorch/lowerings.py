"""Lowerings: the PyTorch module of each layer type, one line each.

A lowering returns the module with its arrays on the `meta` device, without memory; `module.py`
replaces them by the network's own, shared ones once. `in_place`: the module may write its result
over its first input, which saves an array the size of the layer; `may_overwrite` decides it from
the graph. Sequences are (batch, length, features)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cubemesh.networks import layers
from cubemesh.networks.graph import Network, Node

Lowering = Callable[[Any, layers.Shape, bool], nn.Module]
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
    """Concatenation along the second axis, the one after the batch."""

    def forward(self, *values: Tensor) -> Tensor:
        """Values (batch, channels, …), alike but for their channels → all channels."""
        return torch.cat(values, dim=1)


class ChannelMeans(nn.Module):
    """The mean of each channel over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, channels)."""
        return x.mean((2, 3))


class ChannelResponseNorm(nn.LocalResponseNorm):
    """Outside autocast 16-bit values are normalized in float32: PyTorch has no such kernel for a
    CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) of any type."""
        if x.itemsize > 2 or torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return super().forward(x.float()).to(x.dtype)


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


class SelfAttention(nn.Module):
    """Scaled dot-product self-attention, by PyTorch's fastest available kernel."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys and values (batch, length, 3 · features) → (batch, length, features)."""
        batch, length, width = x.shape
        packed = x.view(batch, length, 3, self.heads, width // (3 * self.heads))
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return y.transpose(1, 2).reshape(batch, length, width // 3)

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return f"heads={self.heads}, causal={self.causal}"


class Patches(nn.Module):
    """The positions of an image as a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → (batch, height · width, channels)."""
        return x.flatten(2).transpose(1, 2)


class PrependedToken(nn.Module):
    """A learned class token before all positions."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(features))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features) → (batch, 1 + length, features)."""
        return torch.cat([self.token.to(x.dtype).expand(len(x), 1, -1), x], dim=1)


class AddedPositions(nn.Module):
    """Learned position embeddings, added."""

    def __init__(self, shape: layers.Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features), unchanged in shape."""
        return x + self.weight


class Position(nn.Module):
    """One position of a sequence."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, features) → (batch, features)."""
        return x[:, self.position]

    def extra_repr(self) -> str:
        """What `print` shows between the brackets."""
        return str(self.position)


class Recurrence(nn.LSTM):
    """An LSTM of one layer; cuDNN's on a GPU."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, batch_first=True)

    def forward(self, x: Tensor, begin: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(batch, length, features), first h (batch, hidden) → (batch, length, hidden)."""
        if begin is None:
            return super().forward(x)[0]
        first = begin.unsqueeze(0)
        return super().forward(x, (first, torch.zeros_like(first)))[0]


class Pairs(nn.Module):
    """The sum, or the inner product, of each query and each key."""

    def __init__(self, product: bool) -> None:
        super().__init__()
        self.product = product

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(batch, queries, features), (batch, keys, features) → (batch, queries, keys, …)."""
        if self.product:
            return torch.bmm(queries, keys.transpose(1, 2)).unsqueeze(3)
        return queries.unsqueeze(2) + keys.unsqueeze(1)


class WeightedMean(nn.Module):
    """The mean of values, weighted by the softmax of scores."""

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        """(batch, queries, keys, 1), (batch, keys, features) → (batch, queries, features)."""
        return torch.bmm(torch.softmax(scores.squeeze(3), 2).to(values.dtype), values)


def _convolution(layer: layers.Convolution, shape: layers.Shape, in_place: bool) -> nn.Module:
    return nn.Conv2d(
        shape[0],
        layer.filters,
        layer.kernel,
        stride=layer.stride,
        padding=layer.padding,
        groups=layer.groups,
        bias=layer.bias,
    )


def _batch_norm(layer: layers.BatchNorm, shape: layers.Shape, in_place: bool) -> nn.Module:
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    norm = kind(shape[0], eps=layer.epsilon, momentum=layer.momentum)
    # Only used with momentum=None, which no layer here has; it would cost a launch per step.
    norm.num_batches_tracked = None
    return norm


def _response_norm(
    layer: layers.LocalResponseNorm, shape: layers.Shape, in_place: bool
) -> nn.Module:
    kind = PatchResponseNorm if layer.region == "within" else ChannelResponseNorm
    return kind(layer.size, alpha=layer.alpha, beta=layer.beta, k=layer.bias)


def _max_pool(layer: layers.MaxPool, shape: layers.Shape, in_place: bool) -> nn.Module:
    return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


def _average_pool(layer: layers.AveragePool, shape: layers.Shape, in_place: bool) -> nn.Module:
    return nn.AvgPool2d(layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil_mode)


LOWERINGS: dict[type[layers.Layer], Lowering] = {
    layers.Convolution: _convolution,
    layers.Linear: lambda layer, shape, _: nn.Linear(shape[-1], layer.features, bias=layer.bias),
    layers.BatchNorm: _batch_norm,
    layers.LocalResponseNorm: _response_norm,
    layers.ReLU: lambda layer, shape, in_place: nn.ReLU(inplace=in_place),
    layers.Add: lambda layer, shape, in_place: Sum(in_place),
    layers.Concat: lambda layer, shape, _: Concatenation(),
    layers.Dropout: lambda layer, shape, _: nn.Dropout(layer.rate),
    layers.Flatten: lambda layer, shape, _: nn.Flatten(),
    layers.MaxPool: _max_pool,
    layers.AveragePool: _average_pool,
    layers.GlobalAveragePool: lambda layer, shape, _: ChannelMeans(),
    layers.LayerNorm: lambda layer, shape, _: nn.LayerNorm(shape[-1], eps=layer.epsilon),
    layers.GELU: lambda layer, shape, _: nn.GELU("none" if layer.form == "erf" else "tanh"),
    layers.Attention: lambda layer, shape, _: SelfAttention(layer.heads, layer.causal),
    layers.Tokens: lambda layer, shape, _: Patches(),
    layers.Embedding: lambda layer, shape, _: nn.Embedding(layer.vocabulary, layer.features),
    layers.ClassToken: lambda layer, shape, _: PrependedToken(shape[1]),
    layers.PositionEmbedding: lambda layer, shape, _: AddedPositions(shape),
    layers.SelectPosition: lambda layer, shape, _: Position(layer.position),
    layers.Tanh: lambda layer, shape, _: nn.Tanh(),
    layers.LSTM: lambda layer, shape, _: Recurrence(shape[1], layer.hidden),
    layers.PairSum: lambda layer, shape, _: Pairs(product=False),
    layers.PairProduct: lambda layer, shape, _: Pairs(product=True),
    layers.Mix: lambda layer, shape, _: WeightedMean(),
}

ATTRIBUTES = {"running_variance": "running_var"}
"""Role in the layer → name of PyTorch's attribute, where they differ."""
LSTM_ATTRIBUTES = {
    "weight": "weight_ih_l0",
    "hidden_weight": "weight_hh_l0",
    "bias": "bias_ih_l0",
    "hidden_bias": "bias_hh_l0",
}
"""The same for an LSTM."""

_RESULT_UNREAD = (layers.Add, layers.BatchNorm, layers.Concat, layers.Convolution, layers.Linear)
"""Layers whose backward pass does not read their result."""


def lower(node: Node, shape: layers.Shape, in_place: bool) -> nn.Module:
    """The module for `node`, its arrays on the `meta` device; `shape` is that of one sample of its
    first input."""
    with torch.device("meta"):
        return LOWERINGS[type(node.layer)](node.layer, shape, in_place)


def may_overwrite(network: Network) -> frozenset[str]:
    """Names of the nodes whose first input may be overwritten: no other node and no head reads it,
    nor does the backward pass of the layer that computed it."""
    readers = Counter(value for node in network.nodes for value in node.inputs)
    readers.update(head.value for head in network.heads)
    producers = {node.name: node.layer for node in network.nodes}
    return frozenset(
        node.name
        for node in network.nodes
        if readers[node.inputs[0]] == 1
        and isinstance(producers.get(node.inputs[0]), _RESULT_UNREAD)
    )
