"""Arrangement of the values of a traced module: which node has them, and which layer moves them so.

A layer that works on each element, or on each row, takes a node's values in any order; others need
a node that has exactly these values, and one is added where a layer type moves them so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from cubemesh.frameworks.pytorch.own.values import Untraceable, Value
from cubemesh.networks import layers
from cubemesh.networks.layers import Layer


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

    def settled(self, value: Any) -> Any:
        """A node's value for an expression; what is none as it is."""


def all_of(t: Net, value: Any) -> Value:
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


def node_of(t: Net, node: fx.Node, value: Any) -> str:
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
    if len(given) == 3 and value.in_order and shape == (t.batch, given[0], given[1] * given[2]):
        return t.add(node, layers.Transpose(), t.add(node, layers.Tokens(), value.name))
    if len(given) == 2 and shape == (t.batch, given[1]):
        position = int(value.places[0, 0]) // given[1]
        if torch.equal(value.places, places[:, position]):
            return t.add(node, layers.SelectPosition(position=position), value.name)
    if len(given) == 2 and shape[:2] == (t.batch, given[1]):
        turned = places.transpose(1, 2)
        if torch.equal(value.places.flatten(2), turned) and len(shape) == 4:
            return t.add(node, layers.ToImage(size=(shape[2], shape[3])), value.name)
        if torch.equal(value.places, turned):
            return t.add(node, layers.Transpose(), value.name)
    channels = _channels(value, given)
    if channels is not None:
        return t.add(node, layers.SelectChannels(channels=channels), value.name)
    raise Untraceable(f"it moves the values of {value.name} as no layer type does")


def _channels(value: Value, given: layers.Shape) -> tuple[int, ...] | None:
    """The channels of an image, or the features of each row, that a value consists of; None where
    it is something else."""
    places = torch.arange(math.prod(value.shape)).view(value.shape)
    if value.places.dim() != places.dim() or not value.places.numel():
        return None
    sample = value.places[0]
    if len(given) == 3:
        axis, found = 1, sample.flatten(1)[:, 0] // math.prod(given[1:])
    else:
        axis, found = -1, sample.reshape(-1, sample.shape[-1])[0] % given[-1]
    if int(found.max()) >= places.shape[axis]:
        return None
    return (
        tuple(found.tolist())
        if torch.equal(value.places, places.index_select(axis, found))
        else None
    )


def _rows(t: Net, value: Any) -> tuple[Value, Tensor | None]:
    """A value whose last axis is its node's, and the row of the node for each of its rows; None
    where the rows are in their places."""
    if isinstance(value, Value) and t.is_whole(value):
        return value, None
    value = all_of(t, value)
    if value.places.dim() < 2:
        raise Untraceable(f"it moves the values of {value.name} as no layer type does")
    width = t.net.shape(value.name)[-1]
    rows = value.places[..., :1] // width
    expected = rows * width + torch.arange(width)
    if value.places.shape[-1] != width or not torch.equal(value.places, expected):
        raise Untraceable(f"it moves the values of {value.name} as no layer type does")
    return value, rows


def by_rows(t: Net, node: fx.Node, x: Any, layer: Layer, **arrays: Any) -> Value:
    """A layer that works on each row by itself, whatever their order."""
    try:
        value, rows = _rows(t, x)
    except Untraceable:
        channels_last = _tokens(t, node, x)
        if channels_last is not None:
            return by_rows(t, node, channels_last, layer, **arrays)
        return t.whole(t.add(node, layer, node_of(t, node, x), **arrays))
    name = t.add(node, layer, value.name, **arrays)
    if rows is None:
        return t.whole(name)
    width = t.net.shape(name)[-1]
    return t.whole(name).at(rows * width + torch.arange(width))


def _tokens(t: Net, node: fx.Node, value: Any) -> Value | None:
    """An image whose channels are the last axis, as a sequence of that form."""
    if not isinstance(value, Value) or len(t.net.shape(value.name)) != 3:
        return None
    image = t.whole(value.name).places
    if not torch.equal(value.places, image.permute(0, 2, 3, 1)):
        return None
    tokens = t.whole(t.add(node, layers.Tokens(), value.name))
    return tokens.at(tokens.places.view(value.places.shape))


def by_elements(t: Net, node: fx.Node, x: Any, layer: Layer, **arrays: Any) -> Value:
    """A layer that works on each element by itself, whatever their order."""
    try:
        value = all_of(t, x)
    except Untraceable:
        value = t.whole(node_of(t, node, x))
    return replace(value, name=t.add(node, layer, value.name, **arrays))


def trained(array: Any, what: str) -> Any:
    """A parameter that training adapts, or None."""
    if array is None:
        return None
    if not isinstance(array, nn.Parameter):
        raise Untraceable(f"the {what} is computed, not a parameter")
    if not array.requires_grad:
        raise Untraceable(f"the {what} is frozen")
    return array


def is_pooled(t: Net, x: Any) -> bool:
    """Whether it is an image of one position, of a node that has only its channels."""
    return (
        isinstance(x, Value)
        and len(t.net.shape(x.name)) == 1
        and tuple(x.places.shape) == (*x.shape, 1, 1)
        and x.in_order
    )
