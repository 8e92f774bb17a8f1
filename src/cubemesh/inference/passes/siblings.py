"""Sibling products: several convolutions or matrix products of one input, computed as one.

One product of all channels and a split of its result; where each part goes through the same
activation, that too is applied once. Whether it pays differs between machines and engines, so this
pass is optional: the builder tries it by time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.passes.affine import PRECISIONS
from cubemesh.inference.passes.rewrite import Inferred, Names, integer, number, optional_input
from cubemesh.onnx.graph import Graph, Operator

_ACTIVATIONS = """
    Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Selu Sigmoid Softplus Tanh
"""
ACTIVATIONS = frozenset(_ACTIVATIONS.split())
"""Functions of each element, with one input."""


def merge_siblings(graph: Graph) -> Graph:
    """The graph in which products of one input with constant weights of the same form are one."""
    merging = _Merging(graph)
    families: dict[Hashable, list[Operator]] = defaultdict(list)
    for operator in graph.operators:
        family = merging.family(operator)
        if family is not None:
            families[family].append(operator)
    for members in families.values():
        if len(members) > 1:
            merging.merge(members)
    if not merging.merged:
        return graph
    return graph.with_operators(
        (new for o in graph.operators for new in merging.merged.get(o.name, (o,))),
        merging.constants,
    )


@dataclass
class _Merging:
    graph: Graph
    merged: dict[str, tuple[Operator, ...]] = field(default_factory=dict)
    """What takes the place of an operator."""
    constants: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inferred = Inferred(self.graph)
        self.names = Names(self.graph)

    def family(self, operator: Operator) -> Hashable | None:
        """What operators that can be one have in common; None for others."""
        if operator.kind not in ("Conv", "Gemm", "MatMul"):
            return None
        weights = self.graph.constant(operator.inputs[1])
        if weights is None or weights.dtype.name not in PRECISIONS:
            return None
        settings = [(name, repr(value)) for name, value in sorted(operator.attributes.items())]
        bias = optional_input(operator, 2)
        array = self.graph.constant(bias) if bias else None
        if bias and (array is None or array.shape != (self._channels(operator),)):
            return None
        if operator.kind == "Conv":
            if integer(operator, "group", 1) != 1:
                return None
            form: Hashable = weights.shape[1:]
        else:
            rank = self.inferred.rank(operator.inputs[0])
            if weights.ndim != 2 or rank is None or rank < 2:
                return None
            if number(operator, "beta", 1.0) != 1.0:
                return None
            form = weights.shape[1 - self._axis(operator)]
        return operator.kind, operator.inputs[0], weights.dtype.name, form, tuple(settings)

    def _axis(self, operator: Operator) -> int:
        """The axis of the channels of the result, in the weights."""
        if operator.kind == "Conv" or integer(operator, "transB", 0):
            return 0
        return 1

    def _channels(self, operator: Operator) -> int:
        weights = self.graph.constants[operator.inputs[1]]
        return int(weights.shape[self._axis(operator)])

    def merge(self, members: Sequence[Operator]) -> None:
        """Compute `members` as one."""
        first = members[0]
        axis = self._axis(first)
        weights = [self.graph.constants[o.inputs[1]] for o in members]
        inputs = [
            first.inputs[0],
            self._constant(f"{first.name}/siblings.weight", np.concatenate(weights, axis=axis)),
        ]
        if any(optional_input(o, 2) for o in members):
            biases = [
                self.graph.constants[o.inputs[2]]
                if optional_input(o, 2)
                else np.zeros(self._channels(o), weights[0].dtype)
                for o in members
            ]
            inputs.append(self._constant(f"{first.name}/siblings.bias", np.concatenate(biases)))
        value = self.names.new(f"{first.name}/siblings")
        made = [replace(first, inputs=tuple(inputs), outputs=(value,))]
        outputs = [o.outputs[0] for o in members]
        activations = self._activations(members)
        if activations:
            before, value = value, self.names.new(f"{first.name}/siblings.activation")
            made.append(replace(activations[0], inputs=(before,), outputs=(value,)))
            outputs = [o.outputs[0] for o in activations]
            self.merged.update({o.name: () for o in activations})
        lengths = self._constant(
            f"{first.name}/siblings.lengths",
            np.array([self._channels(o) for o in members], np.int64),
        )
        made.append(
            Operator(
                kind="Split",
                inputs=(value, lengths),
                outputs=tuple(outputs),
                attributes={"axis": 1 if first.kind == "Conv" else -1},
            )
        )
        self.merged.update({o.name: () for o in members})
        self.merged[first.name] = tuple(made)

    def _activations(self, members: Sequence[Operator]) -> list[Operator]:
        """The activations of the results, where all are the same and the only use."""
        users = [self.graph.sole_consumer(o.outputs[0]) for o in members]
        found = [user for user in users if user is not None and user.kind in ACTIVATIONS]
        alike = {(user.kind, repr(sorted(user.attributes.items()))) for user in found}
        return found if len(found) == len(members) and len(alike) == 1 else []

    def _constant(self, base: str, array: Array) -> str:
        name = self.names.new(base)
        self.constants[name] = array
        return name
