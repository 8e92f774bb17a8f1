"""Products, sums, differences and quotients with a constant of each channel: part of the
convolution or matrix product before them."""

from __future__ import annotations

import numpy as np

from cubemesh.inference.passes.affine import Affine, Channels, fold_into_products, per_channel
from cubemesh.onnx.graph import Graph, Operator

KINDS = frozenset({"Add", "Div", "Mul", "Sub"})


def fold_scales(graph: Graph) -> Graph:
    """The graph in which arithmetic with a constant of each channel is part of the product before
    it."""
    return fold_into_products(graph, _affine, KINDS)


def _affine(graph: Graph, operator: Operator, value: str, channels: Channels) -> Affine | None:
    first = operator.inputs[0] == value
    other = per_channel(graph.constant(operator.inputs[1 if first else 0]), channels)
    if other is None:
        return None
    zero, one = np.zeros(channels.count), np.ones(channels.count)
    if operator.kind == "Mul":
        return Affine(other, zero)
    if operator.kind == "Div":
        return Affine(one / other, zero) if first and other.all() else None
    if operator.kind == "Add":
        return None if _of_matmul(graph, value) else Affine(one, other)
    return Affine(one, -other) if first else Affine(-one, other)


def _of_matmul(graph: Graph, value: str) -> bool:
    """Whether `value` is a matrix product, whose bias stays a sum."""
    producer = graph.producers.get(value)
    return producer is not None and producer.kind == "MatMul"
