"""Constant folding: operators whose inputs are constants, and lengths of axes that are known.

What an operator gives has its size inferred before it is computed, because files of other people
can ask for 10¹² elements. Each run of the pass has a budget of operators, of bytes that it adds and
of bytes that it reads; what does not fit stays an operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from cubemesh.batches import Array
from cubemesh.inference.passes.rewrite import (
    MOST_ADDED_BYTES,
    Inferred,
    Names,
    integer,
    optional_input,
)
from cubemesh.onnx.graph import Graph, Operator
from cubemesh.onnx.library import import_reference
from cubemesh.onnx.writer import to_node

MOST_READ_BYTES = 1 << 30
MOST_OPERATORS = 4_000
MOST_PRODUCTS = 1 << 24
"""Multiplications of a matrix product that is folded."""
MOST_ELEMENTS_LOOPED = 4_096
"""Elements where the reference loops in Python."""
MOST_REPEATED_BYTES = 64 << 10
"""What only repeats elements is stored up to this size: to repeat is cheap, and broadcasting needs
no copies."""

_BY_ARRAY = """
    Abs Add And ArgMax ArgMin Cast Ceil Clip Concat Cos CumSum Div Equal Exp Flatten Floor Gather
    GatherElements Greater GreaterOrEqual IsNaN Less LessOrEqual Log Max Min Mod Mul Neg Not Or Pad
    Pow Range Reciprocal ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape
    Round Sigmoid Sign Sin Slice Softmax Split Sqrt Squeeze Sub Sum Tanh Transpose Trilu Unsqueeze
    Where Xor
"""
_REPEATING = "ConstantOfShape Expand Tile"
_BY_ELEMENT = "Erf GatherND Mean OneHot ScatterElements ScatterND TopK"
_PRODUCTS = "Gemm MatMul"
REPEATING = frozenset(_REPEATING.split())
BY_ELEMENT = frozenset(_BY_ELEMENT.split())
PRODUCTS = frozenset(_PRODUCTS.split())
FOLDED = frozenset(_BY_ARRAY.split()) | REPEATING | BY_ELEMENT | PRODUCTS
"""Kinds that are computed while the graph is optimized. Constants in 8-bit integers stay as they
are: `DequantizeLinear` says how they are meant."""


def fold_constants(graph: Graph) -> Graph:
    """The graph without operators whose results are known."""
    if not any(o.kind in LENGTHS or _only_constants(graph, o) for o in graph.operators):
        return graph
    folding = _Folding(graph)
    kept = [new for operator in graph.operators for new in folding.fold(operator)]
    return graph.with_operators(kept, folding.made) if folding.made else graph


def _only_constants(graph: Graph, operator: Operator) -> bool:
    return operator.kind in FOLDED and all(n in graph.constants for n in operator.inputs if n)


@dataclass
class _Folding:
    """One run: the constants that it made, and what is left of the budget."""

    graph: Graph
    known: dict[str, Array] = field(default_factory=dict)
    made: dict[str, Array] = field(default_factory=dict)
    """New constants: what is known, an output under another name."""

    def __post_init__(self) -> None:
        self.operators = MOST_OPERATORS
        self.added_bytes = MOST_ADDED_BYTES
        self.read_bytes = MOST_READ_BYTES
        self.inferred = Inferred(self.graph)
        self.names = Names(self.graph)

    def fold(self, operator: Operator) -> tuple[Operator, ...]:
        """What remains of `operator`: nothing, the names of outputs, or all of it."""
        if not self.operators:
            return (operator,)
        found = self._length(operator) or self._computed(operator)
        if found is None:
            return (operator,)
        self.operators -= 1
        identities = []
        for name, array in found.items():
            self.known[name] = array
            if name in self.graph.output_names:
                stored = self.names.new(f"{name}/constant")
                identities.append(Operator(kind="Identity", inputs=(stored,), outputs=(name,)))
                self.made[stored] = array
            else:
                self.made[name] = array
        return tuple(identities)

    def _length(self, operator: Operator) -> Mapping[str, Array] | None:
        if operator.kind not in LENGTHS:
            return None
        lengths = LENGTHS[operator.kind](self.inferred, operator)
        return None if lengths is None else {operator.name: np.array(lengths, np.int64)}

    def _array(self, name: str) -> Array | None:
        found = self.known.get(name)
        return self.graph.constant(name) if found is None else found

    def _computed(self, operator: Operator) -> Mapping[str, Array] | None:
        names = [name for name in operator.inputs if name]
        inputs = {name: array for name in names if (array := self._array(name)) is not None}
        if operator.kind not in FOLDED or not names or len(inputs) < len({*names}):
            return None
        types = [self.inferred.types.get(name) for name in operator.outputs if name]
        sizes = [
            math.prod(shape) * np.dtype(type_.dtype).itemsize
            for type_ in types
            if type_ is not None
            and (shape := self.inferred.fixed_shape(type_.name)) is not None
            and np.dtype(type_.dtype).kind in "fiub"
        ]
        if len(sizes) < len(types) or not self._affordable(operator, inputs, sum(sizes)):
            return None
        arrays = _evaluated(operator, self.graph.opset, inputs)
        if arrays is None:
            return None
        for type_, array in zip(types, arrays, strict=True):
            if type_ is None or (array.dtype.name, array.shape) != (type_.dtype, type_.shape):
                return None
        self.read_bytes -= sum(array.nbytes for array in inputs.values()) + sum(sizes)
        self.added_bytes -= max(0, self._growth(inputs, sum(sizes)))
        return dict(zip(filter(None, operator.outputs), arrays, strict=True))

    def _growth(self, inputs: Mapping[str, Array], size: int) -> int:
        """Bytes that folding adds: constants that nothing else uses go."""
        sole = self.graph.sole_consumer
        return size - sum(a.nbytes for name, a in inputs.items() if sole(name) is not None)

    def _affordable(self, operator: Operator, inputs: Mapping[str, Array], size: int) -> bool:
        given = sum(array.nbytes for array in inputs.values())
        elements = sum(array.size for array in inputs.values())
        if operator.kind in REPEATING and size > max(given, MOST_REPEATED_BYTES):
            return False
        if operator.kind in BY_ELEMENT and max(elements, size) > MOST_ELEMENTS_LOOPED:
            return False
        if operator.kind in PRODUCTS and _products(inputs, size) > MOST_PRODUCTS:
            return False
        most = max(given, MOST_ADDED_BYTES)
        return (
            size <= most
            and given + size <= self.read_bytes
            and self._growth(inputs, size) <= self.added_bytes
        )


def _products(inputs: Mapping[str, Array], size: int) -> int:
    """An upper bound of the multiplications of a product: each element of the result sums over one
    axis."""
    return size * max((max(array.shape, default=1) for array in inputs.values()), default=1)


def _evaluated(
    operator: Operator, opset: int, inputs: Mapping[str, Array]
) -> tuple[Array, ...] | None:
    """The outputs that are wanted, by the reference of the standard; None where it fails."""
    reference = import_reference()
    try:
        with np.errstate(all="ignore"):
            found = reference(to_node(operator), opsets={"": opset}).run(None, dict(inputs))
        arrays = [np.asarray(array, order="C") for array in found]  # views hold what they show
        return tuple(a for name, a in zip(operator.outputs, arrays, strict=True) if name)
    except Exception:  # whatever the reference raises for inputs that do not fit
        return None


def _shape_lengths(inferred: Inferred, operator: Operator) -> tuple[int, ...] | None:
    """Of `Shape`, the part that is asked for."""
    shape = inferred.shape(operator.inputs[0])
    if shape is None:
        return None
    rank = len(shape)
    part = shape[slice(integer(operator, "start", 0), integer(operator, "end", rank))]
    lengths = tuple(length for length in part if isinstance(length, int))
    return lengths if len(lengths) == len(part) else None


def _size(inferred: Inferred, operator: Operator) -> int | None:
    shape = inferred.fixed_shape(operator.inputs[0])
    return None if shape is None else math.prod(shape)


def _length_of_axis(inferred: Inferred, operator: Operator) -> int | None:
    """Of the `Gather` of one length from a `Shape`, where other axes may be free."""
    before = inferred.graph.producers.get(operator.inputs[0])
    index = inferred.graph.constant(optional_input(operator, 1))
    if before is None or before.kind != "Shape" or index is None or index.shape:
        return None
    shape = inferred.shape(before.inputs[0])
    if shape is None:
        return None
    part = shape[slice(integer(before, "start", 0), integer(before, "end", len(shape)))]
    place = int(index)
    length = part[place] if -len(part) <= place < len(part) else None
    return length if isinstance(length, int) else None


LENGTHS: dict[str, Callable[[Inferred, Operator], int | tuple[int, ...] | None]] = {
    "Gather": _length_of_axis,
    "Shape": _shape_lengths,
    "Size": _size,
}
"""Kind → the lengths of axes that it gives, where they are known."""
