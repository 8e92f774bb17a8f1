"""Operators of PyTorch as layers of the graph: a function for each operator that has a layer type.

Arguments have the names of the operator's schema, the first is `x`. A function gives the value that
the operator computes, or raises Untraceable where the layer type does not cover its settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from cubemesh.frameworks.pytorch.own.arrangement import (
    Net,
    by_elements,
    by_rows,
    is_pooled,
    node_of,
    trained,
)
from cubemesh.frameworks.pytorch.own.elementwise import (
    FUNCTIONS,
    add,
    as_scaled,
    divide,
    function,
    multiply,
    power,
    rms_norm,
    rsqrt,
    subtract,
)
from cubemesh.frameworks.pytorch.own.values import (
    Expression,
    MeanSquare,
    Rows,
    SampleNoise,
    Scaled,
    Symbolic,
    Untraceable,
    Value,
)
from cubemesh.networks import layers
from cubemesh.networks.layers import Pair


def _pair(values: Sequence[int] | int) -> Pair:
    found = [values] if isinstance(values, int) else list(values)
    return (found[0], found[-1])


def _conv(t: Net, node: fx.Node, *, x: Any, weight: Any, bias: Any, **more: Any) -> Value:
    filters, _, height, width = weight.shape
    padding = more["padding"]
    if is_pooled(t, x) and (height, width, more["groups"]) == (1, 1, 1):
        return _of_pooled(t, node, x, weight, bias)
    if isinstance(padding, str):
        around = [
            (cells - 1) * apart
            for cells, apart in zip((height, width), _pair(more["dilation"]), strict=True)
        ]
        if padding == "same" and any(cells % 2 for cells in around):
            raise Untraceable("it has a convolution with uneven padding")
        padding = (around[0] // 2, around[1] // 2) if padding == "same" else (0, 0)
    layer = layers.Convolution(
        filters=filters,
        kernel=(height, width),
        stride=_pair(more["stride"]),
        padding=_pair(padding),
        dilation=_pair(more["dilation"]),
        groups=more["groups"],
        bias=bias is not None,
    )
    arrays = {"weight": trained(weight, "weight"), "bias": trained(bias, "bias")}
    return t.whole(t.add(node, layer, node_of(t, node, x), **arrays))


def _of_pooled(t: Net, node: fx.Node, x: Value, weight: Any, bias: Any) -> Value:
    """A 1×1 convolution of one position: a matrix product."""
    layer = layers.Linear(features=len(weight), bias=bias is not None)
    trained(weight, "weight")
    arrays = {"weight": weight.detach().flatten(1), "bias": trained(bias, "bias")}
    result = t.whole(t.add(node, layer, x.name, **arrays))
    return result.at(result.places[:, :, None, None])


def _linear(t: Net, node: fx.Node, *, x: Any, weight: Any, bias: Any) -> Value:
    layer = layers.Linear(features=weight.shape[0], bias=bias is not None)
    weight, bias = trained(weight, "weight"), trained(bias, "bias")
    return by_rows(t, node, x, layer, weight=weight, bias=bias)


def _addmm(
    t: Net, node: fx.Node, *, x: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1
) -> Value:
    """A product with a weight (in, out), as in GPT-2."""
    if beta != 1 or alpha != 1 or not isinstance(mat1, Value) or mat2.dim() != 2 or x.dim() != 1:
        raise Untraceable("it has a matrix product without a weight and a bias")
    weight = trained(mat2, "weight").detach().t().contiguous()
    layer = layers.Linear(features=weight.shape[0])
    return by_rows(t, node, mat1, layer, weight=weight, bias=trained(x, "bias"))


def _batch_norm(t: Net, node: fx.Node, *, x: Any, weight: Any, bias: Any, **more: Any) -> Value:
    if weight is None or more["running_mean"] is None or not more["training"]:
        raise Untraceable("it has a batch normalization without weights or running statistics")
    layer = layers.BatchNorm(epsilon=more["eps"], momentum=more["momentum"])
    name = t.add(
        node,
        layer,
        node_of(t, node, x),
        weight=trained(weight, "weight"),
        bias=trained(bias, "bias"),
        running_mean=more["running_mean"],
        running_variance=more["running_var"],
    )
    return t.whole(name)


def _layer_norm(
    t: Net, node: fx.Node, *, x: Any, normalized_shape: Any, weight: Any, bias: Any, **more: Any
) -> Value:
    if len(normalized_shape) != 1 or weight is None or bias is None:
        raise Untraceable("it has a layer normalization over several axes or without weights")
    weight, bias = trained(weight, "weight"), trained(bias, "bias")
    return by_rows(t, node, x, layers.LayerNorm(epsilon=more["eps"]), weight=weight, bias=bias)


def _relu(t: Net, node: fx.Node, *, x: Any) -> Value:
    return by_elements(t, node, x, layers.ReLU())


def _dropout(t: Net, node: fx.Node, *, x: Any, p: float, train: bool) -> Value:
    if not train:
        raise Untraceable("it has a dropout that training leaves out")
    return by_elements(t, node, x, layers.Dropout(rate=p)) if p else x


def _noise(t: Net, node: fx.Node, *, x: Any, p: float, generator: Any = None) -> SampleNoise:
    """Random factors of a tensor that is written over."""
    if x.dim() < 1 or x.numel() != t.batch or len(x) != t.batch:
        raise Untraceable("it draws random numbers other than one for each sample")
    return SampleNoise(1 - p)


def _max_pool(t: Net, node: fx.Node, *, x: Any, kernel_size: Any, **more: Any) -> Value:
    if set(_pair(more["dilation"])) != {1}:
        raise Untraceable("it has a dilated pooling, for which there is no layer type")
    layer = layers.MaxPool(
        kernel=_pair(kernel_size),
        stride=_pair(more["stride"] or kernel_size),
        padding=_pair(more["padding"]),
        ceil_mode=more["ceil_mode"],
    )
    return t.whole(t.add(node, layer, node_of(t, node, x)))


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
    return t.whole(t.add(node, layer, node_of(t, node, x)))


def _adaptive_pool(t: Net, node: fx.Node, *, x: Any, output_size: Any) -> Value:
    name, wanted = node_of(t, node, x), _pair(output_size)
    _, height, width = t.net.shape(name)
    if wanted == (1, 1):
        means: Value = _mean(t, node, x=t.whole(name), dim=[2, 3], keepdim=True)
        return means
    if wanted == (height, width):
        return t.whole(name)
    if height % wanted[0] or width % wanted[1]:
        raise Untraceable("it has an adaptive pooling with windows of several sizes")
    window = (height // wanted[0], width // wanted[1])
    return t.whole(t.add(node, layers.AveragePool(kernel=window, stride=window), name))


def _mean(t: Net, node: fx.Node, *, x: Any, dim: Any, keepdim: bool, dtype: Any = None) -> Any:
    if isinstance(x, Expression):
        last = [d % x.value.places.dim() for d in dim or ()] == [x.value.places.dim() - 1]
        if last and keepdim and x.is_square:
            return MeanSquare(x.value)
        x = t.settled(x)
    axes = x.places.dim()
    dims = sorted(d % axes for d in dim or ())
    if axes == 4 and dims == [1, 2]:  # the channels are the last axis
        means = _mean(t, node, x=x.at(x.places.permute(0, 3, 1, 2)), dim=[2, 3], keepdim=False)
        return means.at(means.places[:, None, None]) if keepdim else means
    if axes == 3 and dims == [2]:
        found = _image_of_rows(t, x)
        if found is None:
            x, dims = x.at(x.places.transpose(1, 2)), [1]
        else:
            x, axes, dims = found, 4, [2, 3]
    name = node_of(t, node, x)
    if (len(t.net.shape(name)), dims) not in ((3, [2, 3]), (2, [1])):
        raise Untraceable("it takes a mean other than of all positions")
    means = t.whole(t.add(node, layers.GlobalAveragePool(), name))
    if not keepdim:
        return means
    return means.at(means.places[:, :, None, None] if axes == 4 else means.places[:, None])


def _image_of_rows(t: Net, x: Value) -> Value | None:
    """An image of (batch, channels, positions)."""
    if len(x.shape) == 4 and x.in_order and tuple(x.places.shape[:2]) == x.shape[:2]:
        return t.whole(x.name)
    return None


def _cat(t: Net, node: fx.Node, *, tensors: Any, dim: int) -> Any:
    scaled = [as_scaled(t, v) for v in tensors]
    parts = [v for v in scaled if v is not None]
    of_one = len(parts) == len(scaled) and len({v.value.name for v in parts}) == 1
    if of_one and any(isinstance(v, (Scaled, Expression)) for v in tensors):
        places = torch.cat([v.value.places for v in parts], dim)
        return Scaled(parts[0].value.at(places), torch.cat([v.factors for v in parts], dim))
    tensors = [t.settled(v) for v in tensors]
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
            return t.whole(t.add(node, layer, node_of(t, node, tensors[1]), token=token.detach()))
    return t.whole(t.add(node, layers.Concat(), *(node_of(t, node, v) for v in tensors)))


def _attention(t: Net, node: fx.Node, *, query: Any, key: Any, value: Any, **more: Any) -> Value:
    factor = query.factor if isinstance(query, Expression) else None
    if isinstance(query, Expression) and factor is not None:  # the scale, before the product
        query = query.value
    parts = [t.settled(part) for part in (query, key, value)]
    if any(not isinstance(part, Value) or part.places.dim() != 4 for part in parts):
        raise Untraceable("it has an attention of what is no value of a layer")
    _, heads, length, width = parts[0].places.shape
    scale = width**-0.5 if more["scale"] is None else more["scale"]
    if not math.isclose(scale * (1 if factor is None else factor), width**-0.5, rel_tol=1e-6):
        raise Untraceable("it has an attention with a scale of its own")
    causal = bool(more["is_causal"]) or _is_causal(more["attn_mask"], length)
    packed = t.whole(parts[0].name).places
    names: list[str] = []
    shared = 0
    if tuple(packed.shape) == (t.batch, length, 3 * heads * width):
        split = packed.view(t.batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
        if all(
            part.name == parts[0].name and torch.equal(part.places, own)
            for part, own in zip(parts, split, strict=True)
        ):
            names = [parts[0].name]
    if not names:
        parts[1:] = [_without_repeats(part) for part in parts[1:]]
        shared = parts[1].places.shape[1]
        names = [
            node_of(t, node, part.at(part.places.transpose(1, 2).flatten(2))) for part in parts
        ]
    layer = layers.Attention(
        heads=heads,
        causal=causal,
        dropout=more["dropout_p"],
        key_value_heads=0 if shared in (0, heads) else shared,
    )
    result = t.whole(t.add(node, layer, *names))
    return result.at(result.places.view(t.batch, length, heads, width).transpose(1, 2))


def _is_causal(mask: Any, length: int) -> bool:
    """Whether a mask hides the later positions; Untraceable where it hides others."""
    if mask is None:
        return False
    if isinstance(mask, Symbolic):
        raise Untraceable("it has an attention with a mask that depends on the input")
    seen = mask if mask.dtype == torch.bool else mask > -1e4
    values_differ = mask.dtype != torch.bool and bool(mask[seen].any())
    for causal in (False, True):
        wanted = torch.ones(length, length, dtype=torch.bool)
        wanted = wanted.tril() if causal else wanted
        if not values_differ and torch.equal(seen, wanted.expand_as(seen)):
            return causal
    raise Untraceable("it has an attention with a mask other than the causal one")


def _without_repeats(part: Value) -> Value:
    """Keys or values without the heads that are repeated for grouped queries."""
    heads = part.places.shape[1]
    distinct = [n for n in range(heads) if n == 0 or not _same_head(part, n, n - 1)]
    repeats = heads // len(distinct)
    if distinct != list(range(0, heads, repeats)):
        return part
    return part.at(part.places[:, distinct])


def _same_head(part: Value, one: int, other: int) -> bool:
    return torch.equal(part.places[:, one], part.places[:, other])


def _embedding(t: Net, node: fx.Node, *, weight: Any, indices: Any, **more: Any) -> Any:
    if more["scale_grad_by_freq"] or more["sparse"]:
        raise Untraceable("it has a sparse embedding, or one that scales gradients")
    weight = trained(weight, "weight")
    if not isinstance(indices, Value):
        return Rows(weight, indices)  # of every position, to be added
    layer = layers.Embedding(vocabulary=weight.shape[0], features=weight.shape[1])
    return t.whole(t.add(node, layer, node_of(t, node, indices), weight=weight))


def _as_type(t: Net, node: fx.Node, *, x: Any, dtype: Any = None, **_: Any) -> Any:
    if dtype not in (None, torch.float32, torch.int64):
        raise Untraceable(f"it computes in {dtype}")
    return x


def _empty(t: Net, node: fx.Node, *, x: Any, size: Any, **_: Any) -> Tensor:
    return torch.empty(size)


LAYERS: dict[str, Callable[..., Any]] = {
    "aten.conv2d.default": _conv,
    "aten.conv2d.padding": _conv,
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.batch_norm.default": _batch_norm,
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": rms_norm,
    "aten.relu.default": _relu,
    "aten.relu_.default": _relu,
    "aten.dropout.default": _dropout,
    "aten.dropout_.default": _dropout,
    "aten.bernoulli_.float": _noise,
    "aten.max_pool2d.default": _max_pool,
    "aten.avg_pool2d.default": _average_pool,
    "aten.adaptive_avg_pool2d.default": _adaptive_pool,
    "aten.mean.dim": _mean,
    "aten.cat.default": _cat,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.embedding.default": _embedding,
    "aten.pow.Tensor_Scalar": power,
    "aten.rsqrt.default": rsqrt,
    "aten.to.dtype": _as_type,
    "aten.to.dtype_layout": _as_type,
    "aten._to_copy.default": _as_type,
    "aten.new_empty.default": _empty,
    **{
        f"aten.{name}{suffix}.{form}": arithmetic
        for name, arithmetic in (
            ("add", add),
            ("sub", subtract),
            ("mul", multiply),
            ("div", divide),
        )
        for suffix in ("", "_")
        for form in ("Tensor", "Scalar")
    },
    **{
        f"aten.{name}{suffix}.default": function(change)
        for name, change in FUNCTIONS.items()
        for suffix in ("", "_")
    },
}
"""Operator → its layer."""

OF_CONSTANTS = frozenset({"aten.embedding.default", "aten.bernoulli_.float"})
"""Operators that are followed also where nothing of the network is their input."""

DEFERRED = frozenset(
    name
    for name, called in LAYERS.items()
    if called in (add, subtract, multiply, divide, power, rsqrt, _mean, _cat, _as_type, _attention)
    or called.__qualname__.startswith("function.")
)
"""Operators that take functions of values that have no layer yet."""

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
