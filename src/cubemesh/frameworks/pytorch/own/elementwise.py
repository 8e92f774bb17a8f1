"""Operators of PyTorch on each element, sums and products: functions, gates, learned factors.

Several operators can be one layer, as in a written-out GELU, a root mean square normalization or a
rotary embedding: see `values.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from cubemesh.frameworks.pytorch.own.arrangement import (
    Net,
    all_of,
    by_elements,
    by_rows,
    is_pooled,
    node_of,
    trained,
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
    rotary,
)
from cubemesh.networks import layers
from cubemesh.networks.layers import Layer


def _expression(node: fx.Node, x: Any, change: Callable[[Tensor], Tensor]) -> Expression:
    """`change` of each element."""
    if isinstance(x, Expression):
        inner = x.function
        return Expression(x.value, lambda values: change(inner(values)), node)
    if isinstance(x, Value):
        return Expression(x, change, node)
    raise Untraceable(f"it computes {node.target} of what is no value of a layer")


def _same_argument(x: Any, other: Any) -> bool:
    """Whether two values or functions are of the same elements."""
    one, two = (v.value if isinstance(v, Expression) else v for v in (x, other))
    if not isinstance(one, Value) or not isinstance(two, Value) or one.name != two.name:
        return False
    return one is two or torch.equal(one.places, two.places)


def _joined(node: fx.Node, x: Any, other: Any, join: Callable[[Any, Any], Any]) -> Expression:
    """A function of each element that joins two of the same elements."""
    one, two = (v.function if isinstance(v, Expression) else lambda v: v for v in (x, other))
    value = x.value if isinstance(x, Expression) else x
    return Expression(value, lambda values: join(one(values), two(values)), node)


def _number(value: Any) -> float | None:
    """A number, or a constant of one element."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.numel() == 1:
        return float(value)
    return None


def as_scaled(t: Net, x: Any) -> Scaled | None:
    """A value with a factor for each element, where it is one."""
    if isinstance(x, Scaled):
        return x
    if isinstance(x, Value):
        return Scaled(x, torch.ones(x.places.shape))
    if isinstance(x, Expression) and x.factor is not None:
        return Scaled(x.value, torch.full(x.value.places.shape, x.factor))
    return None


def add(t: Net, node: fx.Node, *, x: Any, other: Any, alpha: Any = 1) -> Any:
    """x + alpha · other: a sum, position embeddings, a number, or a part of a larger layer."""
    if alpha != 1:
        other = multiply(t, node, x=other, other=alpha)
    if not isinstance(x, Symbolic):
        x, other = other, x
    number = _number(other)
    if isinstance(x, MeanSquare) and number is not None and not x.inverse:
        return replace(x, epsilon=x.epsilon + number)
    if number is not None:
        return _expression(node, x, lambda values: values + number)
    if isinstance(x, Scaled) or isinstance(other, Scaled):
        return _rotary(t, node, x, other)
    if Expression in (type(x), type(other)) and _same_argument(x, other):
        return _joined(node, x, other, operator.add)
    x, other = t.settled(x), t.settled(other)
    if isinstance(x, Rows):
        x, other = other, x
    if not isinstance(x, Value):
        raise Untraceable("it adds what is no value of a layer")
    if isinstance(other, (nn.Parameter, Rows)):
        return _positions(t, node, node_of(t, node, x), other)
    if not isinstance(other, Value):
        raise Untraceable("it adds a constant, for which there is no layer type")
    return _of_two(t, node, layers.Add(), x, other)


def _of_two(t: Net, node: fx.Node, layer: Layer, x: Value, other: Value) -> Value:
    """A layer of two values of one shape, element by element."""
    if tuple(x.places.shape) != tuple(other.places.shape):
        raise Untraceable(f"{node.target} of values of two shapes has no layer type")
    if x.shape == other.shape and x.places.numel() == math.prod(x.shape):
        unmoved = x.moved is None and other.moved is None
        if unmoved or torch.equal(x.places, other.places):
            one, two = all_of(t, x), all_of(t, other)
            return replace(one, name=t.add(node, layer, one.name, two.name))
    return t.whole(t.add(node, layer, node_of(t, node, x), node_of(t, node, other)))


def _positions(t: Net, node: fx.Node, name: str, added: Any) -> Value:
    """Position embeddings; the layer's array has no axis for the batch."""
    shape = t.net.shape(name)
    if len(shape) != 2:
        raise Untraceable("it adds weights to what is no sequence")
    if isinstance(added, nn.Parameter):
        if tuple(added.shape) not in ((1, *shape), shape):
            raise Untraceable("it adds weights other than one vector for each position")
        weight = _without_batch(trained(added, "position embedding"))
        return t.whole(t.add(node, layers.PositionEmbedding(), name, weight=weight))
    table, indices = added.table, added.indices
    rows = indices.reshape(-1, indices.shape[-1])[0] if indices.dim() else indices.reshape(1)
    first, shared = int(rows[0]), bool((rows == rows[0]).all()) and shape[0] > 1
    if not torch.equal(indices, rows.expand_as(indices)) or not (
        shared or torch.equal(rows, torch.arange(first, first + shape[0]))
    ):
        raise Untraceable("it adds other rows of a table than consecutive ones, or one")
    whole = len(table) == shape[0] and first == 0 and not shared
    layer = layers.PositionEmbedding(rows=0 if whole else len(table), first=first, shared=shared)
    return t.whole(t.add(node, layer, name, weight=table))


def multiply(t: Net, node: fx.Node, *, x: Any, other: Any) -> Any:
    """x · other: a gate, a learned factor, a number, random factors of samples, or a part of a
    larger layer."""
    if not isinstance(x, Symbolic):
        x, other = other, x
    number = _number(other)
    if number is not None:
        return _expression(node, x, lambda values: values * number)
    for one, two in ((x, other), (other, x)):
        if isinstance(two, SampleNoise):
            return by_elements(
                t, node, t.settled(one), layers.Dropout(rate=two.rate, per_sample=True)
            )
        if isinstance(one, MeanSquare):
            return _normalized(t, node, one, two)
    if isinstance(other, nn.Parameter):
        return _learned_scale(t, node, t.settled(x), other)
    if isinstance(other, Tensor):
        one = as_scaled(t, x)
        if one is None:
            raise Untraceable("it multiplies a function of values by constants")
        factors = other.detach().float().expand(one.value.places.shape)
        return Scaled(one.value, one.factors * factors)
    if _same_argument(x, other):
        return _joined(node, x, other, operator.mul)
    x, other = t.settled(x), t.settled(other)
    for one, two in ((x, other), (other, x)):
        if is_pooled(t, two) and isinstance(one, Value) and one.places.dim() == 4:
            image = node_of(t, node, one)
            return t.whole(t.add(node, layers.Multiply(), image, two.name))
    if not isinstance(x, Value) or not isinstance(other, Value):
        raise Untraceable("it multiplies what is no value of a layer")
    return _of_two(t, node, layers.Multiply(), x, other)


def _normalized(t: Net, node: fx.Node, norm: MeanSquare, other: Any) -> Any:
    """The steps of a root mean square normalization, each a product."""
    if norm.inverse and not norm.applied and _same_argument(norm.value, other):
        return replace(norm, applied=True)
    if not norm.applied or not isinstance(other, nn.Parameter):
        raise Untraceable("it divides by a root mean square of other values")
    layer = layers.RMSNorm(epsilon=norm.epsilon)
    return by_rows(t, node, norm.value, layer, weight=trained(other, "weight"))


def rsqrt(t: Net, node: fx.Node, *, x: Any) -> MeanSquare:
    """1 / √x of a mean of squares."""
    if not isinstance(x, MeanSquare) or x.inverse:
        raise Untraceable("there is no layer type for a square root")
    return replace(x, inverse=True)


def rms_norm(
    t: Net, node: fx.Node, *, x: Any, normalized_shape: Any, weight: Any, eps: Any
) -> Value:
    """PyTorch's own root mean square normalization."""
    if len(normalized_shape) != 1 or weight is None:
        raise Untraceable("it has a normalization over several axes or without weights")
    layer = layers.RMSNorm(epsilon=torch.finfo(torch.float32).eps if eps is None else eps)
    return by_rows(t, node, x, layer, weight=trained(weight, "weight"))


def _learned_scale(t: Net, node: fx.Node, x: Any, weight: Any) -> Value:
    """A factor for each channel or feature, wherever their axis is."""
    value = all_of(t, x)
    given = t.net.shape(value.name)
    factors = trained(weight, "weight").detach().expand(value.places.shape).flatten()
    ordered = torch.empty_like(factors)
    ordered[value.places.flatten()] = factors
    by_channel = ordered.view(t.batch, given[0], -1).movedim(1, 0).flatten(1)
    by_feature = ordered.view(-1, given[-1]).movedim(1, 0)
    found = by_channel if len(given) == 3 else by_feature
    features, differ = len(found), found.amax(1) - found.amin(1)
    if weight.numel() != features or bool(differ.any()):
        raise Untraceable("it multiplies by weights other than one for each channel or feature")
    return by_elements(t, node, value, layers.Scale(), weight=weight.detach().reshape(-1))


def _rotary(t: Net, node: fx.Node, x: Any, other: Any) -> Value:
    one, two = as_scaled(t, x), as_scaled(t, other)
    if one is None or two is None or len(t.net.shape(one.value.name)) != 2:
        raise Untraceable("it adds values with constant factors, for which there is no layer type")
    found = rotary(one, two, *t.net.shape(one.value.name))
    if found is None:
        raise Untraceable("it adds values with constant factors, for which there is no layer type")
    heads, base = found
    name = t.add(node, layers.RotaryEmbedding(heads=heads, base=base), one.value.name)
    places = t.whole(name).places
    return t.whole(name).at(places.view(*places.shape[:2], heads, -1).transpose(1, 2))


def _without_batch(array: Tensor) -> Tensor:
    return array.detach()[0] if array.dim() == 3 else array


def function(change: Callable[..., Tensor]) -> Callable[..., Any]:
    """An operator that is a function of each element, with its settings."""

    def apply(t: Net, node: fx.Node, *, x: Any, **settings: Any) -> Expression:
        return _expression(node, x, lambda values: change(values, **settings))

    return apply


def subtract(t: Net, node: fx.Node, *, x: Any, other: Any, alpha: Any = 1) -> Any:
    """x − alpha · other."""
    return add(t, node, x=x, other=other, alpha=-alpha)


def divide(t: Net, node: fx.Node, *, x: Any, other: Any) -> Any:
    """x / other, a number."""
    number = _number(other)
    if isinstance(x, SampleNoise):  # by the share of samples that it leaves
        return x
    if number is None:
        raise Untraceable("it divides by what is no number, for which there is no layer type")
    return _expression(node, x, lambda values: values / number)


def power(t: Net, node: fx.Node, *, x: Any, exponent: Any) -> Any:
    """x to the power of a number."""
    return _expression(node, x, lambda values: values**exponent)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": torch.nn.functional.hardtanh,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "clamp": torch.clamp,
    "neg": torch.neg,
    "erf": torch.erf,
    "exp": torch.exp,
    "square": torch.square,
}
"""Operators that are functions of each element."""
