"""Rewriting a graph: attributes of operators, inferred types, new names, and replaced values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cubemesh.errors import UsageError
from cubemesh.onnx.graph import Graph, Length, Operator, Value
from cubemesh.onnx.writer import infer_types

MOST_ADDED_BYTES = 64 << 20
"""How much larger passes make the constants, at most: files of other people ask for any size."""


def integer(operator: Operator, name: str, default: int) -> int:
    """An attribute that is one integer."""
    found = operator.attributes.get(name, default)
    return int(found) if isinstance(found, (int, float)) else default


def integers(operator: Operator, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """An attribute that is a list of integers."""
    found = operator.attributes.get(name, default)
    return tuple(int(item) for item in found) if isinstance(found, tuple) else default


def number(operator: Operator, name: str, default: float) -> float:
    """An attribute that is one number; it has 32 bits, as in files."""
    found = operator.attributes.get(name, default)
    return float(np.float32(found if isinstance(found, (int, float)) else default))


def text(operator: Operator, name: str, default: str) -> str:
    """An attribute that is a string."""
    found = operator.attributes.get(name, default)
    return found if isinstance(found, str) else default


def optional_input(operator: Operator, position: int) -> str:
    """The name of an input; '' where it is left out."""
    return operator.inputs[position] if position < len(operator.inputs) else ""


@dataclass(frozen=True)
class Inferred:
    """A graph and the types of its values, which are inferred on first use. None where a type does
    not follow from the inputs."""

    graph: Graph

    @cached_property
    def types(self) -> Mapping[str, Value]:
        """The types that are known; those of inputs and constants where shapes contradict."""
        try:
            return infer_types(self.graph)
        except UsageError:
            constants = {
                name: Value(name=name, dtype=array.dtype.name, shape=array.shape)
                for name, array in self.graph.constants.items()
            }
            return {**constants, **{value.name: value for value in self.graph.inputs}}

    def dtype(self, value: str) -> str | None:
        """The data type of `value`."""
        return self.types[value].dtype if value in self.types else None

    def shape(self, value: str) -> tuple[Length, ...] | None:
        """The shape of `value`."""
        return self.types[value].shape if value in self.types else None

    def rank(self, value: str) -> int | None:
        """The number of axes of `value`."""
        return len(self.types[value].shape) if value in self.types else None

    def fixed_shape(self, value: str) -> tuple[int, ...] | None:
        """The shape of `value`, where every length is a number."""
        shape = self.shape(value) or ()
        lengths = tuple(length for length in shape if isinstance(length, int))
        return lengths if value in self.types and len(lengths) == len(shape) else None

    def length(self, value: str, axis: int) -> int | None:
        """The length of an axis of `value`, where it is a number."""
        shape = self.shape(value) or ()
        length = shape[axis] if axis < len(shape) else None
        return length if isinstance(length, int) else None

    def same_shape(self, one: str, other: str) -> bool:
        """Whether two values surely have the same shape."""
        a, b = self.shape(one), self.shape(other)
        return a is not None and a == b and not any(map(_anonymous, a))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The elements of a constant of integers."""
        array = self.graph.constant(name)
        if array is None or array.dtype.kind not in "iu" or array.size > 64:
            return None
        return tuple(int(item) for item in array.reshape(-1))

    def axis(self, operator: Operator, value: str, default: int) -> int | None:
        """The attribute `axis`, counted from the front of the axes of `value`."""
        axis, rank = integer(operator, "axis", default), self.rank(value)
        if axis >= 0 or rank is None:
            return axis if axis >= 0 else None
        return axis + rank


def _anonymous(length: Length) -> bool:
    """Whether a length is unknown, in which case its name means nothing (writer.value_of)."""
    return isinstance(length, str) and (not length or length.startswith("axis "))


class Names:
    """Names for new values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {*graph.constants, *(value.name for value in graph.inputs)}
        for operator in graph.operators:
            self._taken.update(operator.outputs)

    def new(self, base: str) -> str:
        """`base`, or `base.2` and so on where that name is in use."""
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base}.{number}"
        self._taken.add(name)
        return name


def scalar(graph: Graph, name: str) -> float | None:
    """The value of a constant of one element; None for other values, infinities and NaN."""
    array = graph.constant(name)
    if array is None or array.size != 1 or array.dtype.kind not in "fiu":
        return None
    found = float(array.reshape(()))
    return found if math.isfinite(found) else None


def with_replaced_values(graph: Graph, replacements: Mapping[str, str]) -> Graph:
    """The graph that uses the value `replacements[name]` wherever it used `name`, without the
    operators that compute the replaced values. All outputs of an operator are replaced, or none.

    A replaced output of the graph keeps its name: the value that replaces it is renamed; where that
    is an input, a constant or another output, an `Identity` remains. `graph` itself where nothing
    changes.
    """
    sources = _sources(replacements)
    renamed: dict[str, str] = {}
    for output in graph.outputs:
        source = sources.get(output.name)
        if source is None or source not in graph.producers:
            continue
        if source not in graph.output_names and source not in renamed:
            renamed[source] = output.name

    def final(name: str) -> str:
        source = sources.get(name, name)
        return renamed.get(source, source)

    operators: list[Operator] = []
    for operator in graph.operators:
        if operator.name not in sources:
            inputs = tuple(map(final, operator.inputs))
            outputs = tuple(renamed.get(name, name) for name in operator.outputs)
            same = inputs == operator.inputs and outputs == operator.outputs
            operators.append(
                operator if same else replace(operator, inputs=inputs, outputs=outputs)
            )
            continue
        for name in operator.outputs:
            if name in graph.output_names and final(name) != name:
                kept = operator.kind == "Identity" and operator.inputs == (final(name),)
                identity = Operator(kind="Identity", inputs=(final(name),), outputs=(name,))
                operators.append(operator if kept else identity)
    if len(operators) == len(graph.operators) and all(
        new is old for new, old in zip(operators, graph.operators, strict=True)
    ):
        return graph
    return graph.with_operators(operators)


def _sources(replacements: Mapping[str, str]) -> Mapping[str, str]:
    """What is left of each replaced value, where that is replaced too."""
    found: dict[str, str] = {}
    for name in replacements:
        chain = []
        while name in replacements and name not in found:
            chain.append(name)
            name = replacements[name]
        found.update(dict.fromkeys(chain, found.get(name, name)))
    return found
