"""Values of a traced module: where each element comes from, and what is computed of it so far.

A `Value` is a node of the graph and a position in it for each element. What a module computes in
several operators and a layer type computes in one is collected first: a function of each element
(`Expression`), a root mean square (`MeanSquare`), factors (`Scaled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from cubemesh.networks import layers
from cubemesh.networks.layers import Layer


class Untraceable(Exception):
    """Why a module has no graph, in words."""

    place: str = ""
    """Path of the module that computes it, where that is known."""


class Symbolic:
    """What depends on the input of the network."""


@dataclass(frozen=True)
class Value(Symbolic):
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


@dataclass(frozen=True)
class Expression(Symbolic):
    """A function of each element of a value."""

    value: Value
    function: Callable[[Tensor], Tensor]
    node: fx.Node
    """Its last operator."""

    @property
    def factor(self) -> float | None:
        """What it multiplies each element by; None if it does something else."""
        found = self.function(_GRID)
        factor = float(found[-1] / _GRID[-1])
        return factor if torch.allclose(found, factor * _GRID, rtol=0, atol=1e-9) else None

    @property
    def is_square(self) -> bool:
        """Whether it is the square of each element."""
        return _equal(self.function(_GRID), _GRID.square())

    def layer(self) -> Layer | None:
        """The layer that computes it; None if it is the value itself."""
        found = self.function(_GRID)
        if _equal(found, _GRID):
            return None
        for layer, function in _known():
            if _equal(found, function(_GRID)):
                return layer
        slope = round(float(found[0] / _GRID[0]), 6)
        if _equal(found, F.leaky_relu(_GRID, slope)):
            return layers.Activation(function="leaky-relu", slope=slope)
        raise Untraceable(
            f"there is no layer type for the function of each value that ends with "
            f"{self.node.target}"
        )


_GRID = torch.linspace(-8, 8, 513, dtype=torch.float64)
"""Arguments at which functions are compared."""


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(((one - other).abs() <= 1e-6 * (1 + other.abs())).all())


def _known() -> list[tuple[Layer, Callable[[Tensor], Tensor]]]:
    functions: dict[layers.images.ActivationFunction, Callable[[Tensor], Tensor]] = {
        "silu": F.silu,
        "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "mish": F.mish,
        "hard-sigmoid": F.hardsigmoid,
        "hard-swish": F.hardswish,
        "relu6": F.relu6,
        "squared-relu": lambda x: torch.relu(x).square(),
    }
    return [
        (layers.ReLU(), torch.relu),
        (layers.Sigmoid(), torch.sigmoid),
        (layers.Tanh(), torch.tanh),
        (layers.GELU(), F.gelu),
        (layers.GELU(form="tanh"), lambda x: F.gelu(x, approximate="tanh")),
        *((layers.Activation(function=n), function) for n, function in functions.items()),
    ]


@dataclass(frozen=True)
class MeanSquare(Symbolic):
    """The mean of the squares of a value over its last axis, plus `epsilon`; `inverse`: one over
    its root; `applied`: the value times that."""

    value: Value
    epsilon: float = 0.0
    inverse: bool = False
    applied: bool = False


@dataclass(frozen=True)
class Scaled(Symbolic):
    """Elements of a value, each with a constant factor."""

    value: Value
    factors: Tensor


@dataclass(frozen=True)
class Rows(Symbolic):
    """Constant rows of a table that is trained."""

    table: nn.Parameter
    indices: Tensor


@dataclass(frozen=True)
class SampleNoise(Symbolic):
    """A random factor for each sample: 0 at `rate`, as in stochastic depth."""

    rate: float


def rotary(one: Scaled, other: Scaled, length: int, width: int) -> tuple[int, float] | None:
    """Heads and base of the rotary embedding that the sum of two scaled values is, of a sequence of
    `length` rows of `width` elements; None if it is none."""
    places = one.value.places
    if one.value.name != other.value.name or places.dim() != 4:
        return None
    batch, heads, rows, size = places.shape
    if rows != length or heads * size != width or size < 4 or length < 2:
        return None
    whole = torch.arange(batch * length * width).view(batch, length, heads, size).transpose(1, 2)
    if not torch.equal(places, whole):
        return rotary(other, one, length, width) if torch.equal(other.value.places, whole) else None
    turned = torch.cat([whole[..., size // 2 :], whole[..., : size // 2]], -1)
    if not torch.equal(other.value.places, turned):
        return None
    cosines, sines = (part.factors.double()[0, 0] for part in (one, other))
    angle = math.atan2(float(sines[1, size // 2 + 1]), float(cosines[1, size // 2 + 1]))
    if not 0 < angle < 1:
        return None
    base = angle ** (-size / 2)
    base = round(base) if abs(base - round(base)) < 1e-3 * base else base
    for found, wanted in zip(
        (cosines[:, size // 2 :], sines[:, size // 2 :]),
        layers.sequences.rotation_tables(length, size, base),
        strict=True,
    ):
        if not torch.allclose(found, torch.from_numpy(wanted)[:, 0], rtol=0, atol=1e-3):
            return None
    return heads, float(base)
