"""Operators of PyTorch as layers of the graph: a function for each operator that has a layer type.

Arguments have the names of the operator's schema, the first is `x`. A function gives the value that
the operator computes, or raises Untraceable where the layer type does not cover its settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from cubemesh.networks import layers
from cubemesh.networks.layers import Layer, Pair


class Untraceable(Exception):
    """Why a module has no graph, in words."""


@dataclass(frozen=True)
class Value:
    """Values of a node: for each element the position in the node's result, batch included."""

    name: str
    shape: tuple[int, ...]
    """Of the node's result, batch included."""
    moved: Tensor | None = None
    """None: each element in its place."""

    @property
    def places(self) -> Tensor:
        """The position of each element."""
        if self.moved is not None:
            return self.moved
        return torch.arange(math.prod(self.shape)).view(self.shape)

    def at(self, places: Tensor) -> Value:
        """These elements of the same node."""
        return Value(self.name, self.shape, places)

    @property
    def in_order(self) -> bool:
        """Whether the elements follow one another as in the node's result, all of them."""
        flat = self.places.reshape(-1)
        return bool(torch.equal(flat, torch.arange(flat.numel())))


class Net(Protocol):
    """What the functions need of a tracer."""

    net: Any
    batch: int

    def whole(self, name: str) -> Value:
        """A node's values, each in its place."""

    def is_whole(self, value: Value) -> bool:
        """Whether it is all values of its node, each in its place."""

    def add(self, node: fx.Node, layer: Layer, *inputs: str, **arrays: Tensor | None) -> str:
        """Add a layer for an operator, with its parameters and state by role."""


def _all_of(t: Net, value: Any) -> Value:
    """A value that holds each element of its node once, in any order."""
    if not isinstance(value, Value):
        raise Untraceable("a constant takes the place of a value of the network")
    if value.moved is None:
        return value
    flat = value.moved.reshape(-1)
    if flat.numel() != math.prod(value.shape) or not torch.equal(
        flat.sort().values, torch.arange(flat.numel())
    ):
        raise Untraceable(f"it reads a part of {value.name} where no layer type does")
    return value


def _node_of(t: Net, node: fx.Node, value: Any) -> str:
    """The node that has exactly these values; one is added where a layer type moves them so."""
    if not isinstance(value, Value):
        raise Untraceable("a constant takes the place of a value of the network")
    if t.is_whole(value):
        return value.name
    shape, given = tuple(value.places.shape), t.net.shape(value.name)
    if value.in_order and shape == (t.batch, math.prod(given)):
        return t.add(node, layers.Flatten(), value.name)
    places = t.whole(value.name).places
    sequence = len(given) == 3 and shape == (t.batch, given[1] * given[2], given[0])
    if sequence and torch.equal(value.places, places.flatten(2).transpose(1, 2)):
        return t.add(node, layers.Tokens(), value.name)
    if len(given) == 2 and shape == (t.batch, given[1]):
        position = int(value.places[0, 0]) // given[1]
        if torch.equal(value.places, places[:, position]):
            return t.add(node, layers.SelectPosition(position=position), value.name)
    raise Untraceable(f"it moves the values of {value.name} as no layer type does")


def _rows(t: Net, value: Any) -> tuple[Value, Tensor | None]:
    """A value whose last axis is its node's, and the row of the node for each of its rows; None
    where the rows are in their places."""
    if isinstance(value, Value) and t.is_whole(value):
        return value, None
    value = _all_of(t, value)
    if value.places.dim() < 2:
        raise Untraceable(f"it moves the values of {value.name} as no layer type does")
    width = t.net.shape(value.name)[-1]
    rows = value.places[..., :1] // width
    expected = rows * width + torch.arange(width)
    if value.places.shape[-1] != width or not torch.equal(value.places, expected):
        raise Untraceable(f"it moves the values of {value.name} as no layer type does")
    return value, rows


def _by_rows(t: Net, node: fx.Node, x: Any, layer: Layer, **arrays: Any) -> Value:
    """A layer that works on each row by itself, whatever their order."""
    try:
        value, rows = _rows(t, x)
    except Untraceable:
        return t.whole(t.add(node, layer, _node_of(t, node, x), **arrays))
    name = t.add(node, layer, value.name, **arrays)
    if rows is None:
        return t.whole(name)
    width = t.net.shape(name)[-1]
    return t.whole(name).at(rows * width + torch.arange(width))


def _elementwise(t: Net, node: fx.Node, x: Any, layer: Layer) -> Value:
    """A layer that works on each element by itself, whatever their order."""
    value = _all_of(t, x)
    return replace(value, name=t.add(node, layer, value.name))


def _pair(values: Sequence[int] | int) -> Pair:
    found = [values] if isinstance(values, int) else list(values)
    return (found[0], found[-1])


def _trained(array: Any, what: str) -> Any:
    """A parameter that training adapts, or None."""
    if array is None:
        return None
    if not isinstance(array, nn.Parameter):
        raise Untraceable(f"the {what} is computed, not a parameter")
    if not array.requires_grad:
        raise Untraceable(f"the {what} is frozen")
    return array


def _conv(t: Net, node: fx.Node, *, x: Any, weight: Any, bias: Any, **more: Any) -> Value:
    if set(_pair(more["dilation"])) != {1}:
        raise Untraceable("it has a dilated convolution, for which there is no layer type")
    filters, _, height, width = weight.shape
    padding = more["padding"]
    if isinstance(padding, str):
        if padding == "same" and not (height % 2 and width % 2):
            raise Untraceable("it has a convolution with uneven padding")
        padding = (height // 2, width // 2) if padding == "same" else (0, 0)
    layer = layers.Convolution(
        filters=filters,
        kernel=(height, width),
        stride=_pair(more["stride"]),
        padding=_pair(padding),
        groups=more["groups"],
        bias=bias is not None,
    )
    arrays = {"weight": _trained(weight, "weight"), "bias": _trained(bias, "bias")}
    return t.whole(t.add(node, layer, _node_of(t, node, x), **arrays))


def _linear(t: Net, node: fx.Node, *, x: Any, weight: Any, bias: Any) -> Value:
    layer = layers.Linear(features=weight.shape[0], bias=bias is not None)
    weight, bias = _trained(weight, "weight"), _trained(bias, "bias")
    return _by_rows(t, node, x, layer, weight=weight, bias=bias)


def _addmm(
    t: Net, node: fx.Node, *, x: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1
) -> Value:
    """A product with a weight (in, out), as in GPT-2."""
    if beta != 1 or alpha != 1 or not isinstance(mat1, Value) or mat2.dim() != 2 or x.dim() != 1:
        raise Untraceable("it has a matrix product without a weight and a bias")
    weight = _trained(mat2, "weight").detach().t().contiguous()
    layer = layers.Linear(features=weight.shape[0])
    return _by_rows(t, node, mat1, layer, weight=weight, bias=_trained(x, "bias"))


def _batch_norm(t: Net, node: fx.Node, *, x: Any, weight: Any, bias: Any, **more: Any) -> Value:
    if weight is None or more["running_mean"] is None or not more["training"]:
        raise Untraceable("it has a batch normalization without weights or running statistics")
    layer = layers.BatchNorm(epsilon=more["eps"], momentum=more["momentum"])
    name = t.add(
        node,
        layer,
        _node_of(t, node, x),
        weight=_trained(weight, "weight"),
        bias=_trained(bias, "bias"),
        running_mean=more["running_mean"],
        running_variance=more["running_var"],
    )
    return t.whole(name)


def _layer_norm(
    t: Net, node: fx.Node, *, x: Any, normalized_shape: Any, weight: Any, bias: Any, **more: Any
) -> Value:
    if len(normalized_shape) != 1 or weight is None or bias is None:
        raise Untraceable("it has a layer normalization over several axes or without weights")
    weight, bias = _trained(weight, "weight"), _trained(bias, "bias")
    return _by_rows(t, node, x, layers.LayerNorm(epsilon=more["eps"]), weight=weight, bias=bias)


def _relu(t: Net, node: fx.Node, *, x: Any) -> Value:
    return _elementwise(t, node, x, layers.ReLU())


def _tanh(t: Net, node: fx.Node, *, x: Any) -> Value:
    return _elementwise(t, node, x, layers.Tanh())


def _gelu(t: Net, node: fx.Node, *, x: Any, approximate: str) -> Value:
    return _elementwise(t, node, x, layers.GELU(form="erf" if approximate == "none" else "tanh"))


def _dropout(t: Net, node: fx.Node, *, x: Any, p: float, train: bool) -> Value:
    if not train:
        raise Untraceable("it has a dropout that training leaves out")
    return _elementwise(t, node, x, layers.Dropout(rate=p)) if p else _all_of(t, x)


def _max_pool(t: Net, node: fx.Node, *, x: Any, kernel_size: Any, **more: Any) -> Value:
    if set(_pair(more["dilation"])) != {1}:
        raise Untraceable("it has a dilated pooling, for which there is no layer type")
    layer = layers.MaxPool(
        kernel=_pair(kernel_size),
        stride=_pair(more["stride"] or kernel_size),
        padding=_pair(more["padding"]),
        ceil_mode=more["ceil_mode"],
    )
    return t.whole(t.add(node, layer, _node_of(t, node, x)))


def _average_pool(t: Net, node: fx.Node, *, x: Any, kernel_size: Any, **more: Any) -> Value:
    padded = any(_pair(more["padding"])) and not more["count_include_pad"]
    if more["divisor_override"] is not None or padded:
        raise Untraceable("it has an average pooling with another divisor than its window")
    layer = layers.AveragePool(
        kernel=_pair(kernel_size),
        stride=_pair(more["stride"] or kernel_size),
        padding=_pair(more["padding"]),
        ceil_mode=more["ceil_mode"],
    )
    return t.whole(t.add(node, layer, _node_of(t, node, x)))


def _adaptive_pool(t: Net, node: fx.Node, *, x: Any, output_size: Any) -> Value:
    name, wanted = _node_of(t, node, x), _pair(output_size)
    _, height, width = t.net.shape(name)
    if wanted == (1, 1):
        return _channel_means(t, node, name, keep=True)
    if wanted == (height, width):
        return t.whole(name)
    if height % wanted[0] or width % wanted[1]:
        raise Untraceable("it has an adaptive pooling with windows of several sizes")
    window = (height // wanted[0], width // wanted[1])
    return t.whole(t.add(node, layers.AveragePool(kernel=window, stride=window), name))


def _mean(t: Net, node: fx.Node, *, x: Any, dim: Any, keepdim: bool, dtype: Any) -> Value:
    name = _node_of(t, node, x)
    if len(t.net.shape(name)) != 3 or {d % 4 for d in dim or ()} != {2, 3}:
        raise Untraceable("it takes a mean other than of an image's positions")
    return _channel_means(t, node, name, keep=keepdim)


def _channel_means(t: Net, node: fx.Node, name: str, keep: bool) -> Value:
    means = t.whole(t.add(node, layers.GlobalAveragePool(), name))
    return means.at(means.places[:, :, None, None]) if keep else means


def _add(t: Net, node: fx.Node, *, x: Any, other: Any, alpha: Any = 1) -> Value:
    if alpha != 1 or not isinstance(x, (Value, Tensor)) or not isinstance(other, (Value, Tensor)):
        raise Untraceable("it adds a number, for which there is no layer type")
    if not isinstance(x, Value):
        x, other = other, x
    if isinstance(other, nn.Parameter):
        name = _node_of(t, node, x)
        shape = t.net.shape(name)
        if len(shape) != 2 or tuple(other.shape) not in ((1, *shape), shape):
            raise Untraceable("it adds weights other than one vector for each position")
        return _positions(t, node, name, other)
    if not isinstance(other, Value):
        raise Untraceable("it adds a constant, for which there is no layer type")
    one, two = _all_of(t, x), _all_of(t, other)
    unmoved = one.moved is None and two.moved is None
    if one.shape == two.shape and (unmoved or torch.equal(one.places, two.places)):
        return replace(one, name=t.add(node, layers.Add(), one.name, two.name))
    return t.whole(t.add(node, layers.Add(), _node_of(t, node, one), _node_of(t, node, two)))


def _positions(t: Net, node: fx.Node, name: str, array: Tensor) -> Value:
    """Position embeddings; the layer's array has no axis for the batch."""
    _trained(array, "position embedding")
    return t.whole(t.add(node, layers.PositionEmbedding(), name, weight=_without_batch(array)))


def _without_batch(array: Tensor) -> Tensor:
    return array.detach()[0] if array.dim() == 3 else array


def _cat(t: Net, node: fx.Node, *, tensors: Any, dim: int) -> Value:
    first = tensors[0]
    axes = next(v.places.dim() for v in tensors if isinstance(v, Value))
    if dim % axes != 1:
        raise Untraceable("it concatenates along another axis than the channels")
    if isinstance(first, Tensor) and len(tensors) == 2 and first.dim() == 3:
        token = first[0, 0]
        if (
            first.shape[1] == 1
            and first.requires_grad
            and torch.equal(first, token.expand_as(first))
        ):
            layer = layers.ClassToken()
            return t.whole(t.add(node, layer, _node_of(t, node, tensors[1]), token=token.detach()))
    return t.whole(t.add(node, layers.Concat(), *(_node_of(t, node, v) for v in tensors)))


def _attention(t: Net, node: fx.Node, *, query: Any, key: Any, value: Any, **more: Any) -> Value:
    usual = more["scale"] is None or math.isclose(more["scale"], query.places.shape[-1] ** -0.5)
    if more["attn_mask"] is not None or not usual or more["enable_gqa"]:
        raise Untraceable("it has an attention with a mask, a scale or shared heads of its own")
    if more["dropout_p"]:
        raise Untraceable("it has an attention with dropout, for which there is no layer type")
    parts = (query, key, value)
    if len({getattr(part, "name", None) for part in parts}) != 1 or query.places.dim() != 4:
        raise Untraceable("its queries, keys and values are not the result of one product")
    _, heads, length, width = query.places.shape
    packed = t.whole(query.name).places
    if tuple(packed.shape) != (t.batch, length, 3 * heads * width):
        raise Untraceable("its queries, keys and values are not the result of one product")
    split = packed.view(t.batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
    if not all(torch.equal(part.places, own) for part, own in zip(parts, split, strict=True)):
        raise Untraceable("its heads are not side by side in the result of one product")
    layer = layers.Attention(heads=heads, causal=bool(more["is_causal"]))
    result = t.whole(t.add(node, layer, query.name))
    by_head = result.places.view(t.batch, length, heads, width).transpose(1, 2)
    return result.at(by_head)


def _embedding(t: Net, node: fx.Node, *, weight: Any, indices: Any, **more: Any) -> Any:
    if more["scale_grad_by_freq"] or more["sparse"]:
        raise Untraceable("it has a sparse embedding, or one that scales gradients")
    weight = _trained(weight, "weight")
    if not isinstance(indices, Value):
        if torch.equal(indices.flatten(), torch.arange(len(weight))):
            return weight  # of every position, to be added
        raise Untraceable("it looks up other positions in a table than all, in order")
    layer = layers.Embedding(vocabulary=weight.shape[0], features=weight.shape[1])
    return t.whole(t.add(node, layer, _node_of(t, node, indices), weight=weight))


LAYERS: dict[str, Callable[..., Any]] = {
    "aten.conv2d.default": _conv,
    "aten.conv2d.padding": _conv,
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.batch_norm.default": _batch_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.relu.default": _relu,
    "aten.relu_.default": _relu,
    "aten.tanh.default": _tanh,
    "aten.gelu.default": _gelu,
    "aten.dropout.default": _dropout,
    "aten.dropout_.default": _dropout,
    "aten.max_pool2d.default": _max_pool,
    "aten.avg_pool2d.default": _average_pool,
    "aten.adaptive_avg_pool2d.default": _adaptive_pool,
    "aten.mean.dim": _mean,
    "aten.add.Tensor": _add,
    "aten.add_.Tensor": _add,
    "aten.cat.default": _cat,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.embedding.default": _embedding,
}
"""Operator → its layer."""

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "reshape.default", "flatten.using_ints", "unflatten.int"),
        *("transpose.int", "permute.default", "squeeze.default", "squeeze.dim", "squeeze.dims"),
        *("unsqueeze.default", "select.int", "slice.Tensor", "chunk.default", "split.Tensor"),
        *("split_with_sizes.default", "unbind.int", "contiguous.default", "clone.default"),
        *("expand.default", "detach.default", "t.default", "view_as.default", "alias.default"),
    )
)
"""Operators that only move values."""
