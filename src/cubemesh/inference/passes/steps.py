"""Steps: the operators that one kernel computes together (vertical fusion).

A product takes the bias, residual, scale and activation that follow it; a pool or normalization,
the elementwise operators that follow it; other elementwise operators form chains. Nothing is
computed for views, for what depends on constants alone (it is computed when a plan is loaded), for
a concatenation whose producers write their slices of it, and for a split whose readers read theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cubemesh.inference.passes.rewrite import Inferred
from cubemesh.inference.passes.views import VIEWS
from cubemesh.onnx.graph import Graph, Operator

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_WHOLE = """
    AveragePool BatchNormalization GlobalAveragePool GlobalMaxPool InstanceNormalization LRN
    LayerNormalization LogSoftmax MaxPool ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum Softmax
"""
_ELEMENTWISE = """
    Abs Add And Cast Ceil Celu Clip Cos DequantizeLinear Div Elu Equal Erf Exp Floor Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod
    Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus
    Softsign Sqrt Sub Sum Tanh Where Xor
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
HEADS = PRODUCTS | frozenset(_WHOLE.split()) | ELEMENTWISE
"""Kinds whose kernel applies the elementwise operators that follow, before it stores."""
NOTHING = VIEWS | {"Dropout", "Identity"}
"""Kinds for which nothing is computed."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Operators that one kernel computes, in execution order. Only the last one's results are
    stored."""

    operators: tuple[Operator, ...]

    @property
    def kind(self) -> str:
        """The kinds of its operators: `Conv+Add+Relu`."""
        return "+".join(operator.kind for operator in self.operators)

    @property
    def name(self) -> str:
        """The name of its result."""
        return self.operators[-1].name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values that it reads, constants included, each once."""
        own = {name for operator in self.operators for name in operator.outputs}
        read = (name for operator in self.operators for name in operator.inputs)
        return tuple(dict.fromkeys(name for name in read if name and name not in own))


def steps(graph: Graph) -> tuple[Step, ...]:
    """The steps of `graph`, each after those whose results it reads."""
    grouping = _Grouping(graph)
    for operator in graph.operators:
        grouping.add(operator)
    return tuple(Step(operators=tuple(o)) for o in grouping.groups if o)


class _Grouping:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inferred = Inferred(graph)
        self.loaded = set(graph.constants)
        """Values that are known when a plan is loaded."""
        self.groups: list[list[Operator]] = []
        self.group_of: dict[str, int] = {}
        """Of the result of a group."""

    def add(self, operator: Operator) -> None:
        """Put an operator into the group of one of its inputs, or into one of its own."""
        if all(name in self.loaded for name in operator.inputs if name):
            self.loaded.update(operator.outputs)
            return
        if operator.kind in NOTHING or self._is_free_concat(operator):
            return
        if operator.kind == "Split" and self._is_free_split(operator):
            return
        joined = self._group_before(operator)
        group: list[Operator] = []
        if joined is not None:  # a group comes after all that any of its operators reads
            group, self.groups[joined] = self.groups[joined], group
        group.append(operator)
        self.group_of[operator.name] = len(self.groups)
        self.groups.append(group)

    def _group_before(self, operator: Operator) -> int | None:
        """The group that `operator` can join: a product rather than others, the last of several."""
        if operator.kind not in ELEMENTWISE:
            return None
        found = [
            self.group_of[name]
            for name in operator.inputs
            if name in self.group_of
            and self.groups[self.group_of[name]][0].kind in HEADS
            and self.graph.sole_consumer(name) is not None
            and self._keeps_shape(name, operator)
        ]
        products = [n for n in found if self.groups[n][0].kind in PRODUCTS]
        return max(products or found, default=None)

    def _keeps_shape(self, name: str, operator: Operator) -> bool:
        one_input = sum(map(bool, operator.inputs)) == 1
        return one_input or self.inferred.same_shape(name, operator.outputs[0])

    def _is_free_concat(self, operator: Operator) -> bool:
        """Whether each part of a concatenation is stored once, by a step, and where it belongs."""
        names = operator.inputs
        return (
            operator.kind == "Concat"
            and len({*names}) == len(names)
            and all(name in self.group_of for name in names)
            and not self.graph.output_names.intersection(names)
            and all(self._read_in_slices(name, allowed=operator) for name in names)
        )

    def _is_free_split(self, operator: Operator) -> bool:
        return all(
            name not in self.graph.output_names and self._read_in_slices(name)
            for name in operator.outputs
            if name
        )

    def _read_in_slices(self, name: str, allowed: Operator | None = None) -> bool:
        """Whether those that use a value can read it as a slice of a larger array."""
        users: Iterable[Operator] = self.graph.consumers.get(name, ())
        return all(o is allowed or o.kind not in {*NOTHING, "Concat", "Split"} for o in users)
