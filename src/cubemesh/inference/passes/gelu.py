"""GELU written out (Hendrycks and Gimpel, 2016): ½ x (1 + erf(x / √2)), and its approximation
½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), as one `Gelu`."""

from __future__ import annotations

import math

from cubemesh.inference.passes.algebra import close, inner, of_one_type, product_of, sum_of
from cubemesh.inference.passes.opset import with_opset
from cubemesh.inference.passes.rewrite import Inferred
from cubemesh.onnx.graph import Graph, Operator

OPSET = 20
"""The first version with `Gelu`."""
CUBE = 0.044715


def find_gelu(graph: Graph) -> Graph:
    """The graph with an operator for each GELU that is written out, in a newer version of the
    operators where that is needed and means the same."""
    if not any(operator.kind in ("Erf", "Tanh") for operator in graph.operators):
        return graph
    inferred = Inferred(graph)
    found = {
        operator.name: gelu
        for operator in graph.operators
        if operator.kind in ("Mul", "Div") and (gelu := _gelu(inferred, operator)) is not None
    }
    current = with_opset(graph, OPSET) if found else None
    if current is None:
        return graph
    return current.with_operators(found.get(o.name, o) for o in current.operators)


def _gelu(inferred: Inferred, operator: Operator) -> Operator | None:
    graph = inferred.graph
    product = product_of(graph, operator.name)
    if len(product.factors) != 2:
        return None
    for x, other in (product.factors, product.factors[::-1]):
        dtype = of_one_type(inferred, operator.name, x)
        one = sum_of(graph, other) if inner(graph, other, "Add") else None
        if dtype is None or one is None or one.constant != 1 or len(one.terms) != 1:
            continue
        if not close(product.coefficient, 0.5, dtype):
            continue
        for form, approximation in (("Erf", "none"), ("Tanh", "tanh")):
            curve = inner(graph, one.terms[0], form)
            matches = _of_erf if form == "Erf" else _of_tanh
            if curve is not None and matches(graph, curve.inputs[0], x, dtype):
                return Operator(
                    kind="Gelu",
                    inputs=(x,),
                    outputs=operator.outputs,
                    attributes={"approximate": approximation},
                )
    return None


def _of_erf(graph: Graph, value: str, x: str, dtype: str) -> bool:
    """Whether `value` is x / √2."""
    found = product_of(graph, value)
    return found.factors == (x,) and close(found.coefficient, math.sqrt(0.5), dtype)


def _of_tanh(graph: Graph, value: str, x: str, dtype: str) -> bool:
    """Whether `value` is √(2/π) (x + 0.044715 x³), or √(2/π) x (1 + 0.044715 x²)."""
    found = product_of(graph, value)
    if not close(found.coefficient, math.sqrt(2 / math.pi), dtype):
        return False
    others = [factor for factor in found.factors if factor != x]
    if len(others) != 1 or len(found.factors) > 2 or not inner(graph, others[0], "Add"):
        return False
    total = sum_of(graph, others[0])
    terms = [term for term in total.terms if term != x]
    if len(terms) != 1:
        return False
    power = product_of(graph, terms[0])
    if not close(power.coefficient, CUBE, dtype):
        return False
    if len(found.factors) == 1:  # (x + 0.044715 x³)
        return total.constant == 0 and len(total.terms) == 2 and power.factors == (x,) * 3
    return total.constant == 1 and len(total.terms) == 1 and power.factors == (x,) * 2
