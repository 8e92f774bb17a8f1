"""Chains of reshapes and of transposes: one operator does the work of the chain."""

from __future__ import annotations

from dataclasses import replace

from cubemesh.inference.passes.rewrite import Inferred, integer, integers
from cubemesh.onnx.graph import Graph, Operator

VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that change the shape alone: the elements keep their order."""


def join_views(graph: Graph) -> Graph:
    """The graph in which a `Reshape` or `Transpose` of another one starts from that one's input."""
    inferred = Inferred(graph)
    joined = {
        operator.name: found
        for operator in graph.operators
        if (found := _joined(inferred, operator)) is not None
    }
    if not joined:
        return graph
    return graph.with_operators(joined.get(o.name, o) for o in graph.operators)


def _joined(inferred: Inferred, operator: Operator) -> Operator | None:
    before = inferred.graph.producers.get(operator.inputs[0]) if operator.inputs else None
    if before is None:
        return None
    rest = operator.inputs[1:]
    if operator.kind == "Reshape" and before.kind in VIEWS:
        wanted = inferred.integers(operator.inputs[1])
        if wanted is None or 0 in wanted or integer(operator, "allowzero", 0):
            return None  # a zero is a length of that one's result
        return replace(operator, inputs=(before.inputs[0], *rest))
    if operator.kind == before.kind == "Transpose":
        rank = inferred.rank(operator.inputs[0])
        if rank is None:
            return None
        reverse = tuple(reversed(range(rank)))
        first, second = (integers(o, "perm", reverse) for o in (before, operator))
        order = tuple(first[axis] for axis in second)
        return replace(operator, inputs=before.inputs, attributes={"perm": order})
    return None
