"""ONNX graph while its operators become modules: its constants, the results for samples, and which
operators are merged into another one's module.

Operators of constants alone, such as those of a mask, are computed here, unless their results are
too large. Merged are an attention that is written as several operators (onnx_attention.py), the sum
of a product and a vector, and a square root that only one quotient reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.frameworks.pytorch.own.onnx_attention import find_attentions
from cubemesh.frameworks.pytorch.own.values import Untraceable
from cubemesh.onnx.graph import Graph, Operator, Value
from cubemesh.onnx.library import import_reference
from cubemesh.onnx.writer import infer_types, to_node

MOST_COMPUTED = 1 << 26
"""Elements of constants that one operator computes, such as masks."""
MOST_COMPUTED_IN_ALL = 1 << 28
"""Those of all operators of a graph."""


class Building:
    """A graph whose operators become modules one after another, run on samples."""

    def __init__(self, graph: Graph, given: dict[str, Tensor]) -> None:
        self.graph = graph
        self.values = given
        """Results for the samples."""
        self._constants: dict[str, Array] = dict(graph.constants)
        self._parameters: dict[tuple[tuple[int, ...], bytes], nn.Parameter] = {}
        self._left = MOST_COMPUTED_IN_ALL
        self.merged: set[str] = set()
        """Operators that are part of another one's module."""
        for operator in graph.operators:
            if self.is_constant(operator):
                with contextlib.suppress(Exception):  # whatever is raised for what does not fit
                    _compute(self, operator)
        self.attentions, inner = find_attentions(self)
        self.merged |= inner
        self.biases = _biases(self)
        self.roots = _roots(self)

    @cached_property
    def types(self) -> Mapping[str, Value]:
        """The types of values, as far as they follow from the inputs."""
        try:
            return infer_types(self.graph)
        except UsageError:
            return {}

    def constant(self, name: str) -> Array | None:
        """The array of a constant."""
        return self._constants.get(name)

    def set_constant(self, name: str, array: Array) -> None:
        """The result of an operator of constants."""
        self._constants[name] = array

    def may_compute(self, size: int) -> bool:
        """Whether an operator may compute constants of `size` elements, which then count."""
        if size > min(MOST_COMPUTED, self._left):
            return False
        self._left -= size
        return True

    def is_constant(self, operator: Operator) -> bool:
        """Whether all its inputs are constants."""
        names = [name for name in operator.inputs if name]
        return bool(names) and all(name in self._constants for name in names)

    def array(self, operator: Operator, position: int) -> Array:
        """A constant input. Untraceable for a computed one."""
        name = operator.inputs[position] if position < len(operator.inputs) else ""
        found = self.constant(name)
        if found is None:
            raise Untraceable(f"its input {position} is not a constant")
        return found

    def optional(self, operator: Operator, position: int) -> Array | None:
        """A constant input that may be left out."""
        if position >= len(operator.inputs) or not operator.inputs[position]:
            return None
        return self.array(operator, position)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a value, with the samples."""
        return tuple(self.values[name].shape)

    def parameter(self, array: Array) -> nn.Parameter:
        """Weights. A matrix with the same values is the same one: exporters write a table that is
        also a product's weight twice."""
        tensor = torch.from_numpy(np.array(array, np.float32, order="C"))
        if tensor.dim() < 2 or bool((tensor == tensor.flatten()[0]).all()):
            return nn.Parameter(tensor)
        key = tuple(tensor.shape), hashlib.sha256(tensor.numpy().tobytes()).digest()
        return self._parameters.setdefault(key, nn.Parameter(tensor))

    def scalar(self, name: str) -> float | None:
        """A constant of one element."""
        found = self.constant(name)
        return float(found.reshape(())) if found is not None and found.size == 1 else None

    def sole(self, name: str, *kinds: str) -> Operator | None:
        """The operator of one of `kinds` that computes a value which one operator alone reads."""
        found = self.graph.producers.get(name)
        if found is None or found.kind not in kinds or self.graph.sole_consumer(name) is None:
            return None
        return found


def _compute(b: Building, operator: Operator) -> None:
    """Set the results of an operator of constants, such as a mask, unless they are too large: by
    NumPy without a copy, or by the standard's reference."""
    if operator.kind == "Expand":  # without copies
        lengths = tuple(int(n) for n in b.array(operator, 1))
        array = b.array(operator, 0)
        shape = np.broadcast_shapes(array.shape, lengths)
        if math.prod(shape) <= MOST_COMPUTED:
            b.set_constant(operator.name, np.broadcast_to(array, shape))
        return
    if operator.kind == "GatherElements":  # which the reference refuses for an axis of length 1
        axis = integer(operator, "axis", 0)
        array, places = b.array(operator, 0), b.array(operator, 1)
        result = list(array.shape)
        result[axis] = places.shape[axis]
        if b.may_compute(math.prod(np.broadcast_shapes(tuple(result), places.shape))):
            b.set_constant(operator.name, np.take_along_axis(array, places, axis))
        return
    names = [name for name in operator.outputs if name]
    shapes = [b.types[name].shape for name in names if name in b.types]
    lengths = tuple(n for shape in shapes for n in shape if isinstance(n, int))
    known = len(shapes) == len(names) and len(lengths) == sum(map(len, shapes))
    if not known or not b.may_compute(sum(math.prod(map(int, shape)) for shape in shapes)):
        return
    inputs = {name: np.asarray(b.constant(name)) for name in operator.inputs if name}
    reference = import_reference()(to_node(operator), opsets={"": b.graph.opset})
    results = [np.asarray(array) for array in reference.run(None, inputs)]
    for name, array in zip(names, results, strict=False):
        b.set_constant(name, array)


def _biases(b: Building) -> dict[str, Operator]:
    """Product with a weight → the sum of it and a vector."""
    found = {}
    for operator in b.graph.operators:
        weight = b.constant(operator.inputs[1]) if operator.kind == "MatMul" else None
        after = b.graph.sole_consumer(operator.name)
        if weight is None or weight.ndim != 2 or after is None or after.kind != "Add":
            continue
        vector = next((a for n in after.inputs if (a := b.constant(n)) is not None), None)
        if vector is not None and vector.shape == weight.shape[1:]:
            found[operator.name] = after
            b.merged.add(after.name)
    return found


def _roots(b: Building) -> dict[str, Operator]:
    """Quotient of a value or of 1, or reciprocal → the square root that it divides by, and that
    nothing else reads."""
    found = {}
    for operator in b.graph.operators:
        if operator.kind not in ("Div", "Reciprocal") or b.is_constant(operator):
            continue
        *over, below = operator.inputs
        root = b.sole(below, "Sqrt")
        if root is None or b.constant(below) is not None:
            continue
        if all(b.constant(name) is None or b.scalar(name) == 1 for name in over):
            found[operator.name] = root
            b.merged.add(root.name)
    return found


def integer(operator: Operator, name: str, default: int) -> int:
    """An attribute that may be left out."""
    found = operator.attributes.get(name, default)
    return int(found) if isinstance(found, (int, float)) else default
