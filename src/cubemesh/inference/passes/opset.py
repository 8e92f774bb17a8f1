"""Newer versions of the operators, which patterns need that older versions have no operator for."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.passes.rewrite import Names
from cubemesh.onnx.graph import Graph, Operator
from cubemesh.onnx.library import import_onnx

_EXTENDED = """
    Add AveragePool Cast ConstantOfShape CumSum DequantizeLinear Div Equal GRU GreaterOrEqual
    Identity IsNaN LSTM LeakyRelu LessOrEqual Mul PRelu Pad Pow QuantizeLinear RNN Relu
    Reshape ScatterElements ScatterND Shape Size Sub Where
"""
EXTENDED = frozenset(_EXTENDED.split())
"""Kinds of which every version from 13 to 20 takes what the versions before took, and means the
same by it."""
AXES_AS_INPUT = 18
"""The version in which reductions take their axes as an input, and splits the number of parts."""
REDUCTIONS = frozenset({"ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"})


def with_opset(graph: Graph, opset: int) -> Graph | None:
    """The graph with operators of version `opset`, at least; None where an operator has changed in
    another way than by extension."""
    if graph.opset >= opset:
        return graph
    names = Names(graph)
    constants: dict[str, Array] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        found = _converted(operator, graph.opset, opset, names, constants)
        if found is None:
            return None
        operators.append(found)
    return replace(graph, opset=opset).with_operators(operators, constants)


def _converted(
    operator: Operator, old: int, new: int, names: Names, constants: dict[str, Array]
) -> Operator | None:
    attributes = dict(operator.attributes)
    if operator.kind in EXTENDED or _version(operator.kind, old) == _version(operator.kind, new):
        return operator
    if operator.kind == "BatchNormalization":
        return None if any(operator.outputs[1:]) else operator
    if operator.kind in REDUCTIONS:
        axes = attributes.pop("axes", None) if old < AXES_AS_INPUT else None
        if axes is None:
            return operator
        name = names.new(f"{operator.name}/axes")
        constants[name] = np.array(axes, np.int64)
        return replace(operator, inputs=(*operator.inputs, name), attributes=attributes)
    if operator.kind == "Split":
        if not any(operator.inputs[1:]) and "num_outputs" not in attributes:
            attributes["num_outputs"] = len(operator.outputs)
        return replace(operator, attributes=attributes)
    return None


@functools.cache
def _version(kind: str, opset: int) -> int:
    """The version of the operator that graphs of `opset` have."""
    onnx = import_onnx()
    try:
        return int(onnx.defs.get_schema(kind, max_inclusive_version=opset).since_version)
    except onnx.defs.SchemaError:
        return -opset
