"""Concatenations of concatenations, and of the parts of a split: nothing is copied twice."""

from __future__ import annotations

from dataclasses import replace

from cubemesh.inference.passes.rewrite import Inferred, with_replaced_values
from cubemesh.onnx.graph import Graph, Operator


def join_concats(graph: Graph) -> Graph:
    """The graph in which a `Concat` takes what the ones before it concatenate, and what a `Split`
    splits in place of its parts; and in which a `Split` gives what a `Concat` has put together."""
    if not any(operator.kind == "Concat" for operator in graph.operators):
        return graph
    inferred = Inferred(graph)
    replaced: dict[str, str] = {}
    for operator in graph.operators:
        if operator.kind == "Split":
            replaced.update(_parts_of_concat(inferred, operator))
    if replaced:
        return with_replaced_values(graph, replaced)
    joined = {
        operator.name: replace(operator, inputs=inputs)
        for operator in graph.operators
        if operator.kind == "Concat" and (inputs := _joined(inferred, operator)) != operator.inputs
    }
    if not joined:
        return graph
    return graph.with_operators(joined.get(o.name, o) for o in graph.operators)


def _joined(inferred: Inferred, operator: Operator) -> tuple[str, ...]:
    """The inputs of a concatenation, with other concatenations and splits along its axis undone."""
    graph = inferred.graph
    axis = inferred.axis(operator, operator.outputs[0], 0)
    flat: list[str] = []
    for name in operator.inputs:
        before = graph.producers.get(name)
        alike = before is not None and before.kind == "Concat" and axis is not None
        alone = graph.sole_consumer(name) is not None
        if before and alike and alone and inferred.axis(before, name, 0) == axis:
            flat += before.inputs
        else:
            flat.append(name)
    joined: list[str] = []
    place = 0
    while place < len(flat):
        split = graph.producers.get(flat[place])
        parts = list(split.outputs) if split is not None and split.kind == "Split" else []
        whole = split is not None and bool(parts) and flat[place : place + len(parts)] == parts
        if split and whole and inferred.axis(split, split.inputs[0], 0) == axis is not None:
            joined.append(split.inputs[0])
            place += len(parts)
        else:
            joined.append(flat[place])
            place += 1
    return tuple(joined)


def _parts_of_concat(inferred: Inferred, operator: Operator) -> dict[str, str]:
    """The parts of a split of a concatenation, and what was concatenated, where the lengths are the
    same."""
    concat = inferred.graph.producers.get(operator.inputs[0])
    if concat is None or concat.kind != "Concat" or not all(operator.outputs):
        return {}
    axis = inferred.axis(operator, operator.inputs[0], 0)
    if axis is None or axis != inferred.axis(concat, concat.outputs[0], 0):
        return {}
    given, taken = (
        [inferred.length(name, axis) for name in names]
        for names in (concat.inputs, operator.outputs)
    )
    same = given == taken and None not in given
    return dict(zip(operator.outputs, concat.inputs, strict=True)) if same else {}
