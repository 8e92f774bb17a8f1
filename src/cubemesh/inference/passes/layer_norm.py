"""Layer normalization written out (Ba and others, 2016): γ (x - μ) / √(mean (x - μ)² + ε) + β over
the last axes, as one `LayerNormalization`."""

from __future__ import annotations

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.passes.algebra import inner
from cubemesh.inference.passes.opset import with_opset
from cubemesh.inference.passes.rewrite import (
    Inferred,
    Names,
    integer,
    integers,
    optional_input,
    scalar,
)
from cubemesh.onnx.graph import Graph, Operator

OPSET = 17
"""The first version with `LayerNormalization`."""


def find_layer_norms(graph: Graph) -> Graph:
    """The graph with an operator for each layer normalization that is written out, in a newer
    version of the operators where that is needed and means the same."""
    if not any(operator.kind == "ReduceMean" for operator in graph.operators):
        return graph
    inferred, names = Inferred(graph), Names(graph)
    constants: dict[str, Array] = {}
    found: dict[str, Operator] = {}
    for operator in graph.operators:
        norm = _norm(inferred, operator, names, constants)
        if norm is not None:
            found[norm.name] = norm
    current = with_opset(graph, OPSET) if found else None
    if current is None:
        return graph
    return current.with_operators((found.get(o.name, o) for o in current.operators), constants)


def _norm(
    inferred: Inferred, operator: Operator, names: Names, constants: dict[str, Array]
) -> Operator | None:
    """The normalization whose quotient `operator` is, with the scale and shift behind it."""
    graph = inferred.graph
    parts = _quotient(graph, operator)
    if parts is None:
        return None
    difference, spread = parts
    added = inner(graph, spread, "Add")
    if added is None:
        return None
    epsilons = [scalar(graph, name) for name in added.inputs]
    variance = [n for n, e in zip(added.inputs, epsilons, strict=True) if e is None]
    epsilon = next((e for e in epsilons if e is not None), None)
    square = _mean_input(inferred, variance[0]) if len(variance) == 1 else None
    centred = graph.producers.get(difference)
    if square is None or epsilon is None or centred is None or centred.kind != "Sub":
        return None
    x, mean = centred.inputs
    of_mean = _mean_input(inferred, mean)
    if of_mean is None or of_mean[0] != x or of_mean[1] != square[1]:
        return None
    if not _is_square(graph, square[0], difference) or inferred.dtype(x) != "float32":
        return None
    shape, axis = inferred.shape(x) or (), square[1]
    lengths = tuple(length for length in shape[axis:] if isinstance(length, int))
    if len(lengths) != len(shape) - axis:
        return None
    scale, shift, result = _scale_and_shift(graph, operator, lengths)
    if not scale:
        scale = names.new(f"{result}/scale")
        constants[scale] = np.ones(lengths, np.float32)
    return Operator(
        kind="LayerNormalization",
        inputs=(x, scale, shift) if shift else (x, scale),
        outputs=(result,),
        attributes={"axis": axis - len(shape), "epsilon": epsilon},
    )


def _quotient(graph: Graph, operator: Operator) -> tuple[str, str] | None:
    """The names of d and v of d / √v, in one of its forms."""
    if operator.kind == "Div":
        root = _root(graph, operator.inputs[1])
        return (operator.inputs[0], root) if root else None
    if operator.kind != "Mul":
        return None
    for difference, other in (operator.inputs, operator.inputs[::-1]):
        inverse = graph.producers.get(other)
        if inverse is None or graph.sole_consumer(other) is None:
            continue
        if inverse.kind == "Pow" and scalar(graph, inverse.inputs[1]) == -0.5:
            return difference, inverse.inputs[0]
        reciprocal = inverse.kind == "Div" and scalar(graph, inverse.inputs[0]) == 1
        if inverse.kind == "Reciprocal" or reciprocal:
            root = _root(graph, inverse.inputs[-1])
            if root:
                return difference, root
    return None


def _root(graph: Graph, value: str) -> str | None:
    """v, where `value` is √v."""
    if (root := inner(graph, value, "Sqrt")) is not None:
        return root.inputs[0]
    power = inner(graph, value, "Pow")
    half = power is not None and scalar(graph, power.inputs[1]) == 0.5
    return power.inputs[0] if power is not None and half else None


def _mean_input(inferred: Inferred, value: str) -> tuple[str, int] | None:
    """What `value` is the mean of, and the first axis, where it is over the last axes and keeps
    them."""
    mean = inner(inferred.graph, value, "ReduceMean")
    if mean is None or not integer(mean, "keepdims", 1):
        return None
    given = optional_input(mean, 1)
    axes = inferred.integers(given) if given else integers(mean, "axes")
    rank = inferred.rank(mean.inputs[0])
    if not axes or rank is None:
        return None
    places = sorted(axis % rank for axis in axes)
    last = list(range(places[0], rank))
    return (mean.inputs[0], places[0]) if places == last else None


def _is_square(graph: Graph, value: str, of: str) -> bool:
    """Whether `value` is the square of `of`, and nothing but its mean uses it."""
    power, product = inner(graph, value, "Pow"), inner(graph, value, "Mul")
    if power is not None:
        return power.inputs[0] == of and scalar(graph, power.inputs[1]) == 2
    return product is not None and product.inputs == (of, of)


def _scale_and_shift(
    graph: Graph, operator: Operator, lengths: tuple[int, ...]
) -> tuple[str, str, str]:
    """The names of γ and β, '' where there is none, and of the result."""
    found = {"Mul": "", "Add": ""}
    result = operator.name
    for kind in found:
        user = graph.sole_consumer(result)
        if user is None or user.kind != kind:
            continue
        other = next((name for name in user.inputs if name != result), "")
        array = graph.constant(other)
        if array is None or array.shape != lengths:
            break
        found[kind], result = other, user.name
    return found["Mul"], found["Add"], result
