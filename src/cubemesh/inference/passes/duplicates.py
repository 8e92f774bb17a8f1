"""Common subexpressions: operators that compute the same, and constants that are equal, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import replace

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.passes.rewrite import with_replaced_values
from cubemesh.onnx.graph import Attribute, Graph, Operator

COMMUTATIVE = frozenset({"Add", "And", "Equal", "Mul", "Or", "Xor"})
"""Kinds whose two inputs can change places."""
NEVER = frozenset({"Identity", "Dropout"})
"""Kinds that are not merged: an identity is the name of an output, and dropout draws numbers."""


def merge_duplicates(graph: Graph) -> Graph:
    """The graph in which each value is computed and stored once."""
    return _merge_operators(_merge_constants(graph))


def _merge_constants(graph: Graph) -> Graph:
    alike: dict[Hashable, list[str]] = defaultdict(list)
    for name, array in graph.constants.items():
        if name not in graph.output_names:
            ends = array.flat[:16].tobytes(), array.flat[-16:].tobytes()
            alike[array.dtype.str, array.shape, ends].append(name)
    first: dict[str, str] = {}
    for names in alike.values():
        while len(names) > 1:
            one, *others = names
            content = graph.constants[one].tobytes()
            equal = [n for n in others if graph.constants[n].tobytes() == content]
            first.update(dict.fromkeys(equal, one))
            names = [n for n in others if n not in equal]
    if not first:
        return graph
    operators = []
    for operator in graph.operators:
        inputs = tuple(first.get(name, name) for name in operator.inputs)
        operators.append(replace(operator, inputs=inputs))
    return graph.with_operators(operators)


def _merge_operators(graph: Graph) -> Graph:
    replaced: dict[str, str] = {}
    seen: dict[Hashable, Operator] = {}
    for operator in graph.operators:
        if operator.kind in NEVER:
            continue
        inputs = tuple(replaced.get(name, name) for name in operator.inputs)
        if operator.kind in COMMUTATIVE:
            inputs = tuple(sorted(inputs))
        present = tuple(map(bool, operator.outputs))
        key = operator.kind, inputs, present, tuple(_settings(operator))
        first = seen.setdefault(key, operator)
        if first is not operator:
            pairs = zip(operator.outputs, first.outputs, strict=True)
            replaced.update({name: other for name, other in pairs if name})
    return with_replaced_values(graph, replaced)


def _settings(operator: Operator) -> Iterator[Hashable]:
    for name, value in sorted(operator.attributes.items()):
        yield name, _hashable(value)


def _hashable(value: Attribute | Array) -> Hashable:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return repr(value)
