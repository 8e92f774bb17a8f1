"""A product of two matrices and the bias that is added to it: one `Gemm`."""

from __future__ import annotations

from cubemesh.inference.passes.affine import PRECISIONS
from cubemesh.inference.passes.rewrite import Inferred
from cubemesh.onnx.graph import Graph, Operator


def join_biases(graph: Graph) -> Graph:
    """The graph in which an `Add` of a vector to a `MatMul` of two matrices is a `Gemm`."""
    inferred = Inferred(graph)
    joined = {
        operator.name: found
        for operator in graph.operators
        if operator.kind == "Add" and (found := _gemm(inferred, operator)) is not None
    }
    if not joined:
        return graph
    return graph.with_operators(joined.get(o.name, o) for o in graph.operators)


def _gemm(inferred: Inferred, operator: Operator) -> Operator | None:
    graph = inferred.graph
    for value, bias in (operator.inputs, reversed(operator.inputs)):
        product = graph.producers.get(value)
        if product is None or product.kind != "MatMul" or graph.sole_consumer(value) is None:
            continue
        ranks = [inferred.rank(name) for name in product.inputs]
        columns, shape = inferred.shape(product.inputs[1]), inferred.shape(bias)
        if ranks != [2, 2] or not columns or inferred.dtype(value) not in PRECISIONS:
            continue
        if isinstance(columns[1], int) and shape in ((columns[1],), (1, columns[1])):
            inputs = (*product.inputs, bias)
            return Operator(kind="Gemm", inputs=inputs, outputs=operator.outputs)
    return None
