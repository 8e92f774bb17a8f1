"""Operators of a graph without QuantizeLinear and DequantizeLinear: the 8-bit scale of each value,
and weights in integers.

A quantized value is stored in 8 bits and read so by everything; what a graph quantizes between two
operators that one kernel computes is not rounded in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cubemesh.batches import Array
from cubemesh.inference.passes.rewrite import integer
from cubemesh.onnx.graph import Graph, Operator


class NotLowered(ValueError):
    """A network, or a part of it, for which there is no kernel; the text ends the sentence
    "… cannot run NETWORK:"."""


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """8-bit values: x = scale · (q − zero), with q from −128 to 127."""

    scale: float
    zero: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """Constant weights or biases."""

    values: Array
    """int8 or int32 where there are scales."""
    scales: NDArray[np.float32] | None = None
    """For each index of `axis`."""
    axis: int = 0

    @property
    def real(self) -> NDArray[np.float32]:
        """As fp32."""
        if self.scales is None:
            return np.asarray(self.values, np.float32)
        shape = [-1 if n == self.axis else 1 for n in range(self.values.ndim)]
        found: NDArray[np.float32] = self.values.astype(np.float32) * self.scales.reshape(shape)
        return found


@dataclass(frozen=True, kw_only=True)
class QuantizedGraph:
    """A graph whose operators read quantized values by their own names."""

    graph: Graph
    """Without quantizations; only constants that are no weights of it are in `constants`."""
    quantized: Mapping[str, Quantized]
    """Values that are stored in 8 bits."""
    weights: Mapping[str, Weights]


def without_quantizations(graph: Graph) -> QuantizedGraph:
    """The graph without its pairs of quantizations; NotLowered where a value is not used in one
    way."""
    quantized: dict[str, Quantized] = {}
    source: dict[str, str] = {}
    weights = {name: Weights(values=array) for name, array in graph.constants.items()}
    operators: list[Operator] = []
    for operator in graph.operators:
        if operator.kind == "QuantizeLinear":
            value = source.get(operator.inputs[0], operator.inputs[0])
            scale, zero = _parameters(graph, operator)
            quantized[value] = Quantized(scale=scale, zero=zero)
            source[operator.name] = value
        elif operator.kind == "DequantizeLinear" and operator.inputs[0] in source:
            source[operator.name] = source[operator.inputs[0]]
        elif operator.kind == "DequantizeLinear":
            weights[operator.name] = _weights(graph, operator)
        else:
            operators.append(operator)
    read_whole = {name for o in operators for name in o.inputs if name in quantized}
    mixed = sorted(read_whole | (quantized.keys() & graph.output_names))
    if mixed:
        raise NotLowered(f"{mixed[0]} is used both in 8 bits and in floating point")
    renamed = [replace(o, inputs=tuple(source.get(i, i) for i in o.inputs)) for o in operators]
    return QuantizedGraph(
        graph=replace(graph, operators=tuple(renamed)), quantized=quantized, weights=weights
    )


def _parameters(graph: Graph, operator: Operator) -> tuple[float, int]:
    """The scale of an array, and its zero point as a signed byte."""
    scale, zero = (graph.constant(name) for name in operator.inputs[1:3])
    if scale is None or zero is None or scale.size != 1 or zero.dtype not in (np.uint8, np.int8):
        raise NotLowered(f"{operator.name} does not quantize to bytes with one scale")
    shift = 128 if zero.dtype == np.uint8 else 0
    return float(scale.reshape(())), int(zero.reshape(())) - shift


def _weights(graph: Graph, operator: Operator) -> Weights:
    values, scale = (graph.constant(name) for name in operator.inputs[:2])
    zero = graph.constant(operator.inputs[2]) if len(operator.inputs) > 2 else None
    if values is None or scale is None or (zero is not None and zero.any()):
        raise NotLowered(f"{operator.name} is not a constant whose zero is 0")
    axis = integer(operator, "axis", 1) % max(values.ndim, 1)
    if scale.size == 1 and values.ndim:
        scale = np.broadcast_to(scale.reshape(-1), (values.shape[axis],))
    if values.ndim and scale.size != values.shape[axis]:
        raise NotLowered(f"{operator.name} has not one scale for each channel")
    return Weights(values=values, scales=np.asarray(scale, np.float32).reshape(-1), axis=axis)
