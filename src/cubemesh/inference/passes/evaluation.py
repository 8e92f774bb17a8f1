"""Operators that do nothing in evaluation: identities, dropout, and conversions, reshapes, slices
and pads that give what they get.

To add a kind: write a function that says which input the result equals, and add a line to `NO_OPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cubemesh.inference.passes.rewrite import (
    Inferred,
    integer,
    integers,
    optional_input,
    scalar,
    text,
    with_replaced_values,
)
from cubemesh.onnx.graph import Graph, Operator

NoOp = Callable[[Inferred, Operator], bool]
"""Whether the first output of an operator equals its first input, type included."""


def remove_no_ops(graph: Graph) -> Graph:
    """The graph without operators that do nothing, and without unused outputs."""
    graph = _without_unused(graph)
    inferred = Inferred(graph)
    replaced = {
        operator.outputs[0]: operator.inputs[0]
        for operator in graph.operators
        if operator.kind in NO_OPS
        and operator.outputs[0]
        and not any(operator.outputs[1:])
        and operator.inputs[0]
        and NO_OPS[operator.kind](inferred, operator)
    }
    return with_replaced_values(graph, replaced)


OPTIONAL_OUTPUTS = frozenset({"Dropout", "MaxPool", "LayerNormalization", "LSTM", "GRU", "RNN"})
"""Operators whose outputs other than the first may be left out."""


def _without_unused(graph: Graph) -> Graph:
    used = {*graph.consumers, *graph.output_names}
    operators = []
    for operator in graph.operators:
        if not used.intersection(operator.outputs):
            continue
        outputs = list(operator.outputs)
        if operator.kind in OPTIONAL_OUTPUTS:
            outputs[1:] = [name if name in used else "" for name in outputs[1:]]
            while len(outputs) > 1 and not outputs[-1]:
                outputs.pop()
        same = tuple(outputs) == operator.outputs
        operators.append(operator if same else replace(operator, outputs=tuple(outputs)))
    same = len(operators) == len(graph.operators) and all(map(_is, operators, graph.operators))
    return graph if same else graph.with_operators(operators)


def _is(one: object, other: object) -> bool:
    return one is other


def _always(inferred: Inferred, operator: Operator) -> bool:
    return True


def _one_input(inferred: Inferred, operator: Operator) -> bool:
    return len(operator.inputs) == 1


def _dropout(inferred: Inferred, operator: Operator) -> bool:
    training = optional_input(operator, 2)
    array = inferred.graph.constant(training)
    return not training or (array is not None and not array.any())


def _cast(inferred: Inferred, operator: Operator) -> bool:
    before, after = inferred.dtype(operator.inputs[0]), inferred.dtype(operator.outputs[0])
    return before is not None and before == after


def _same_fixed_shape(inferred: Inferred, operator: Operator) -> bool:
    before = inferred.fixed_shape(operator.inputs[0])
    return before is not None and before == inferred.fixed_shape(operator.outputs[0])


def _reshape(inferred: Inferred, operator: Operator) -> bool:
    """Whether at most one length is not surely that of the input: it follows from the others."""
    wanted, shape = inferred.integers(operator.inputs[1]), inferred.shape(operator.inputs[0])
    if wanted is None or shape is None or len(wanted) != len(shape) or 0 in shape:
        return False
    if integer(operator, "allowzero", 0) and 0 in wanted:
        return False
    return sum(new not in (0, old) for new, old in zip(wanted, shape, strict=True)) <= 1


def _flatten(inferred: Inferred, operator: Operator) -> bool:
    rank = inferred.rank(operator.inputs[0])
    return rank == 2 and integer(operator, "axis", 1) in (1, -1)


def _transpose(inferred: Inferred, operator: Operator) -> bool:
    rank = inferred.rank(operator.inputs[0])
    if rank is None:
        return False
    order = integers(operator, "perm", tuple(reversed(range(rank))))
    return order == tuple(range(rank))


def _pad(inferred: Inferred, operator: Operator) -> bool:
    widths = inferred.integers(operator.inputs[1])
    return widths is not None and not any(widths)


def _slice(inferred: Inferred, operator: Operator) -> bool:
    """Whether each axis is sliced from its begin to its end, forwards."""
    starts, ends = (inferred.integers(name) for name in operator.inputs[1:3])
    shape = inferred.shape(operator.inputs[0])
    if starts is None or ends is None or shape is None or len(starts) > len(shape):
        return False
    given_axes, given_steps = optional_input(operator, 3), optional_input(operator, 4)
    axes = inferred.integers(given_axes) if given_axes else tuple(range(len(starts)))
    steps = inferred.integers(given_steps) if given_steps else (1,) * len(starts)
    if axes is None or steps is None or any(step != 1 for step in steps):
        return False
    every_axis = range(-len(shape), len(shape))
    if not len(axes) == len(steps) == len(starts) == len(ends) or not {*axes} <= {*every_axis}:
        return False
    for axis, start, end in zip(axes, starts, ends, strict=True):
        length = shape[axis]
        most = np.iinfo(np.int32).max if isinstance(length, str) else length
        begins = start == 0 or (isinstance(length, int) and start <= -length)
        if not begins or end < most:
            return False
    return True


def _tile(inferred: Inferred, operator: Operator) -> bool:
    repeats = inferred.integers(operator.inputs[1])
    return repeats is not None and set(repeats) <= {1}


def _same_rank(inferred: Inferred, operator: Operator) -> bool:
    before = inferred.rank(operator.inputs[0])
    return before is not None and before == inferred.rank(operator.outputs[0])


def _split(inferred: Inferred, operator: Operator) -> bool:
    return len(operator.outputs) == 1


def _pool(inferred: Inferred, operator: Operator) -> bool:
    return (
        set(integers(operator, "kernel_shape", (0,))) == {1}
        and set(integers(operator, "strides")) <= {1}
        and set(integers(operator, "pads")) <= {0}
        and text(operator, "auto_pad", "NOTSET") == "NOTSET"
    )


def _by_one(inferred: Inferred, operator: Operator) -> bool:
    """Whether the second input is a one that does not broadcast the first."""
    own, other = (inferred.rank(name) for name in operator.inputs[:2])
    return (
        scalar(inferred.graph, operator.inputs[1]) == 1
        and own is not None
        and other is not None
        and other <= own
    )


NO_OPS: dict[str, NoOp] = {
    "AveragePool": _pool,
    "Cast": _cast,
    "Clip": lambda inferred, operator: not any(operator.inputs[1:]),
    "Concat": _one_input,
    "Div": _by_one,
    "Dropout": _dropout,
    "Expand": _same_fixed_shape,
    "Flatten": _flatten,
    "Identity": _always,
    "Max": _one_input,
    "MaxPool": _pool,
    "Mean": _one_input,
    "Min": _one_input,
    "Mul": _by_one,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _same_rank,
    "Sum": _one_input,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _same_rank,
}
"""Kind → whether an operator of it does nothing."""
