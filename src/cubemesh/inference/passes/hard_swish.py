"""HardSigmoid and HardSwish written out (Howard and others, 2019): clip(x + 3, 0, 6) / 6, and x
times that."""

from __future__ import annotations

import numpy as np

from cubemesh.inference.passes.algebra import close, inner, of_one_type, product_of, sum_of
from cubemesh.inference.passes.opset import with_opset
from cubemesh.inference.passes.rewrite import Inferred, number, optional_input, scalar
from cubemesh.onnx.graph import Graph, Operator

OPSET = 14
"""The first version with `HardSwish`."""
SIXTH = float(np.float32(1 / 6))
"""Slope; the attribute's default is another one."""


def find_hard_swish(graph: Graph) -> Graph:
    """The graph with an operator for each HardSwish and HardSigmoid that is written out."""
    if not any(operator.kind in ("Clip", "HardSigmoid") for operator in graph.operators):
        return graph
    inferred = Inferred(graph)
    found = {
        operator.name: curve
        for operator in graph.operators
        if operator.kind in ("Mul", "Div") and (curve := _curve(inferred, operator)) is not None
    }
    current = with_opset(graph, OPSET) if found else None
    if current is None:
        return graph
    return current.with_operators(found.get(o.name, o) for o in current.operators)


def _curve(inferred: Inferred, operator: Operator) -> Operator | None:
    graph = inferred.graph
    product = product_of(graph, operator.name)
    if not 1 <= len(product.factors) <= 2:
        return None
    for factor in product.factors:
        clipped = _clipped(graph, factor)
        x = clipped or _gated(graph, factor)
        if not x or of_one_type(inferred, operator.name, x) != "float32":
            continue
        if not close(product.coefficient, SIXTH if clipped else 1.0, "float32"):
            continue
        if product.factors == (factor,):
            slope = {"alpha": SIXTH, "beta": 0.5}
            swish = Operator(
                kind="HardSigmoid", inputs=(x,), outputs=operator.outputs, attributes=slope
            )
            return swish if clipped else None
        if x in product.factors:
            return Operator(kind="HardSwish", inputs=(x,), outputs=operator.outputs)
    return None


def _clipped(graph: Graph, value: str) -> str:
    """x, where `value` is clip(x + 3, 0, 6); '' otherwise."""
    clip = inner(graph, value, "Clip")
    if clip is None:
        return ""
    bounds = [scalar(graph, optional_input(clip, position)) for position in (1, 2)]
    total = sum_of(graph, clip.inputs[0]) if inner(graph, clip.inputs[0], "Add") else None
    fits = total is not None and total.constant == 3 and len(total.terms) == 1
    return total.terms[0] if total is not None and fits and bounds == [0, 6] else ""


def _gated(graph: Graph, value: str) -> str:
    """x, where `value` is HardSigmoid(x) of HardSwish's slope; '' otherwise."""
    gate = inner(graph, value, "HardSigmoid")
    if gate is None or not close(number(gate, "alpha", 0.2), SIXTH, "float32"):
        return ""
    return gate.inputs[0] if number(gate, "beta", 0.5) == 0.5 else ""
