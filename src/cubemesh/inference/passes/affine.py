"""Scale and shift of each channel, folded into the weights and bias of the product before it.

A convolution or matrix product that is followed by y = scale · x + shift is the same operator with
other weights. They are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.inference.passes.rewrite import (
    MOST_ADDED_BYTES,
    Inferred,
    Names,
    integer,
    number,
    optional_input,
)
from cubemesh.onnx.graph import Graph, Operator

Float64 = NDArray[np.float64]
PRECISIONS = ("float32", "float64")
"""Data types of weights that are changed: float16 would lose digits."""


@dataclass(frozen=True)
class Channels:
    """The channels of the result of a product."""

    rank: int
    axis: int
    count: int


@dataclass(frozen=True)
class Affine:
    """y = scale · x + shift, for each channel."""

    scale: Float64
    shift: Float64

    @property
    def finite(self) -> bool:
        """Whether all numbers are finite."""
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.shift).all())


AffineOf = Callable[[Graph, Operator, str, Channels], Affine | None]
"""What an operator computes of the value of a name, whose channels are given; None where that is
not affine with constants."""


def fold_into_products(graph: Graph, affine_of: AffineOf, kinds: frozenset[str]) -> Graph:
    """The graph in which operators of `kinds` that follow a product, and nothing else uses its
    result, are part of it."""
    if not any(operator.kind in kinds for operator in graph.operators):
        return graph
    folding = _Folding(graph, affine_of)
    for operator in graph.operators:
        if operator.kind not in kinds or not folding.fold(operator):
            folding.add(operator)
    if not folding.folded:
        return graph
    return graph.with_operators(folding.operators(), folding.constants)


def per_channel(array: Array | None, channels: Channels) -> Float64 | None:
    """The element of a constant for each channel, where it has one or is a single number; None
    where it varies along another axis."""
    if array is None or array.dtype.name not in PRECISIONS or array.ndim > channels.rank:
        return None
    shape = (1,) * (channels.rank - array.ndim) + array.shape
    wanted = [channels.count if axis == channels.axis else 1 for axis in range(channels.rank)]
    if any(length not in (1, most) for length, most in zip(shape, wanted, strict=True)):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels.count,))


@dataclass
class _Folding:
    graph: Graph
    affine_of: AffineOf
    constants: dict[str, Array] = field(default_factory=dict)
    places: list[tuple[Operator, ...]] = field(default_factory=list)
    """The operators of the new graph, at the places of those of `graph`."""
    place_of: dict[str, int] = field(default_factory=dict)
    folded: int = 0
    added_bytes: int = 0
    """Weights that are stored twice, because something else uses them as they were."""

    def __post_init__(self) -> None:
        self.inferred = Inferred(self.graph)
        self.names = Names(self.graph)

    def add(self, *operators: Operator) -> None:
        """Take operators over as they are."""
        self.place_of[operators[-1].name] = len(self.places)
        self.places.append(operators)

    def operators(self) -> Iterator[Operator]:
        """The operators of the new graph, in execution order."""
        for operators in self.places:
            yield from operators

    def fold(self, operator: Operator) -> bool:
        """Make `operator` part of the product before it; False where that cannot be."""
        for value in dict.fromkeys(operator.inputs):
            place = self.place_of.get(value)
            if place is None or self.graph.sole_consumer(value) is None:
                continue
            chain = self._with_product_before(self.places[place])
            channels = self._channels(chain[0])
            affine = channels and self.affine_of(self.graph, operator, value, channels)
            if not affine or not affine.finite:
                continue
            found = self._absorbed(chain, affine, operator.name)
            if found is None:
                continue
            if len(chain) > len(self.places[place]):
                self.places[self.place_of.pop(chain[0].name)] = ()
            self.place_of[operator.name] = self.place_of.pop(value)
            self.places[place] = found
            self.folded += 1
            return True
        return False

    def _with_product_before(self, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        """A matrix product and the bias that is added to it, given the operator of the bias."""
        if len(operators) > 1 or operators[0].kind != "Add":
            return operators
        for value in operators[0].inputs:
            before = self.places[self.place_of[value]] if value in self.place_of else ()
            alone = self.graph.sole_consumer(value) is not None
            if len(before) == 1 and before[0].kind == "MatMul" and alone:
                return (*before, *operators)
        return operators

    def _channels(self, product: Operator) -> Channels | None:
        """The channels of a product whose weights are constant."""
        if product.kind not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            return None
        weights = self._array(product.inputs[1])
        if weights is None or weights.dtype.name not in PRECISIONS or weights.ndim < 2:
            return None
        if product.kind == "Conv":
            return Channels(weights.ndim, 1, weights.shape[0])
        if product.kind == "ConvTranspose":
            return Channels(weights.ndim, 1, weights.shape[1] * integer(product, "group", 1))
        if product.kind == "Gemm":
            return Channels(2, 1, weights.shape[0 if integer(product, "transB", 0) else 1])
        rank = self.inferred.rank(product.inputs[0])
        if rank is None or rank < 2:
            return None
        rank = max(rank, weights.ndim)
        return Channels(rank, rank - 1, weights.shape[-1])

    def _absorbed(
        self, chain: tuple[Operator, ...], affine: Affine, output: str
    ) -> tuple[Operator, ...] | None:
        """The product with other weights and bias, whose result is called `output`."""
        product = chain[0]
        weights = self._array(product.inputs[1])
        bias = self._bias(chain, len(affine.scale))
        if weights is None or bias is None:
            return None
        if self.added_bytes > MOST_ADDED_BYTES:
            return None
        scaled = _rounded(_scaled(product, weights.astype(np.float64), affine.scale), weights)
        shifted = _rounded(bias * affine.scale + affine.shift, weights)
        if scaled is None or shifted is None:
            return None
        name = product.inputs[1]
        if not (affine.scale == 1).all():
            if self.graph.sole_consumer(name) is None:
                self.added_bytes += scaled.nbytes
                if self.added_bytes > MOST_ADDED_BYTES:
                    return None
            name = self._constant(f"{output}/weight", scaled)
        if product.kind == "MatMul":
            return self._matrix_product(product, name, shifted, output)
        attributes = dict(product.attributes)
        attributes.pop("beta", None)
        biased = shifted.any() or optional_input(product, 2)
        more = (self._constant(f"{output}/bias", shifted),) if biased else ()
        inputs = (product.inputs[0], name, *more)
        return (replace(product, inputs=inputs, outputs=(output,), attributes=attributes),)

    def _matrix_product(
        self, product: Operator, weights: str, bias: Array, output: str
    ) -> tuple[Operator, ...]:
        inputs = product.inputs[0], weights
        if not bias.any():
            return (replace(product, inputs=inputs, outputs=(output,)),)
        value = self.names.new(f"{output}/product")
        added = value, self._constant(f"{output}/bias", bias)
        return (
            replace(product, inputs=inputs, outputs=(value,)),
            Operator(kind="Add", inputs=added, outputs=(output,)),
        )

    def _bias(self, chain: tuple[Operator, ...], count: int) -> Float64 | None:
        """The bias of a product for each channel; None where it is not constant or varies along
        another axis."""
        product = chain[0]
        if product.kind == "MatMul":
            channels = self._channels(product)
            others = [name for o in chain[1:] for name in o.inputs if name != product.name]
            if not others:
                return np.zeros(count)
            return per_channel(self._array(others[0]), channels) if channels else None
        name = optional_input(product, 2)
        if not name:
            return np.zeros(count)
        rank = 2 if product.kind == "Gemm" else 1
        found = per_channel(self._array(name), Channels(rank, rank - 1, count))
        return None if found is None else found * number(product, "beta", 1.0)

    def _array(self, name: str) -> Array | None:
        found = self.constants.get(name)
        return self.graph.constant(name) if found is None else found

    def _constant(self, base: str, array: Array) -> str:
        name = self.names.new(base)
        self.constants[name] = array
        return name


def _scaled(product: Operator, weights: Float64, scale: Float64) -> Float64:
    """Weights of which those that compute a channel are multiplied by its scale."""
    if product.kind == "Conv":
        return weights * scale.reshape(-1, *[1] * (weights.ndim - 1))
    if product.kind == "ConvTranspose":
        groups = integer(product, "group", 1)
        grouped = weights.reshape(groups, -1, weights.shape[1], *weights.shape[2:])
        found: Float64 = grouped * scale.reshape(groups, 1, -1, *[1] * (weights.ndim - 2))
        return found.reshape(weights.shape)
    if product.kind == "Gemm" and integer(product, "transB", 0):
        return weights * scale[:, np.newaxis]
    return weights * scale


def _rounded(array: Float64, like: Array) -> Array | None:
    """The array in the data type of `like`; None where a number is beyond it."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, dtype=like.dtype)
    return found if np.isfinite(found).all() else None
