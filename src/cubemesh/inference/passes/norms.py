"""Batch normalization: part of the product before it, otherwise a product and a sum.

In evaluation it is y = γ (x - μ) / √(σ² + ε) + β with constants (Ioffe and Szegedy, 2015): a scale
and a shift of each channel.
"""

from __future__ import annotations

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.passes.affine import (
    PRECISIONS,
    Affine,
    Channels,
    fold_into_products,
)
from cubemesh.inference.passes.rewrite import Inferred, Names, integer, number
from cubemesh.onnx.graph import Graph, Operator

EPSILON = 1e-5
"""The standard's default."""


def fold_norms(graph: Graph) -> Graph:
    """The graph in which batch normalization is part of the convolution or product before it."""
    return fold_into_products(graph, _affine, frozenset({"BatchNormalization"}))


def write_norms(graph: Graph) -> Graph:
    """The graph in which batch normalization is a product and a sum with constants."""
    if not any(operator.kind == "BatchNormalization" for operator in graph.operators):
        return graph
    inferred, names = Inferred(graph), Names(graph)
    operators: list[Operator] = []
    constants: dict[str, Array] = {}
    for operator in graph.operators:
        affine = affine_of_norm(graph, operator)
        rank = inferred.rank(operator.inputs[0]) if affine else None
        if affine is None or rank is None or rank < 2:
            operators.append(operator)
            continue
        dtype = graph.constants[operator.inputs[1]].dtype
        shape = (-1, *[1] * (rank - 2))
        scale, shift, scaled = (
            names.new(f"{operator.name}/{part}") for part in ("scale", "shift", "scaled")
        )
        constants[scale] = affine.scale.astype(dtype).reshape(shape)
        constants[shift] = affine.shift.astype(dtype).reshape(shape)
        operators += [
            Operator(kind="Mul", inputs=(operator.inputs[0], scale), outputs=(scaled,)),
            Operator(kind="Add", inputs=(scaled, shift), outputs=(operator.name,)),
        ]
    return graph.with_operators(operators, constants) if constants else graph


def affine_of_norm(graph: Graph, operator: Operator) -> Affine | None:
    """The scale and shift of a batch normalization whose parameters are constant; None for others,
    and where its variance is not above zero."""
    if operator.kind != "BatchNormalization" or any(operator.outputs[1:]):
        return None
    if integer(operator, "training_mode", 0):
        return None
    arrays = [a for name in operator.inputs[1:5] if (a := graph.constant(name)) is not None]
    forms = {(a.dtype.name, a.shape) for a in arrays}
    if len(arrays) < 4 or len(forms) > 1 or arrays[0].ndim != 1:
        return None
    if arrays[0].dtype.name not in PRECISIONS:
        return None
    scale, shift, mean, variance = (a.astype(np.float64) for a in arrays)
    spread = variance + number(operator, "epsilon", EPSILON)
    if not (spread > 0).all():
        return None
    scale = scale / np.sqrt(spread)
    affine = Affine(scale, shift - mean * scale)
    return affine if affine.finite else None


def _affine(graph: Graph, operator: Operator, value: str, channels: Channels) -> Affine | None:
    found = affine_of_norm(graph, operator)
    fits = channels.axis == 1 and value == operator.inputs[0]
    return found if found and fits and len(found.scale) == channels.count else None
