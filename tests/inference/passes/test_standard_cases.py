"""The standard's own test cases of each operator: optimized graphs give the results it states."""

import warnings

import numpy as np
import pytest

from cubemesh.inference.passes import OPTIONAL, PASSES, optimize
from cubemesh.onnx import reader
from onnx_graphs import by_reference

onnx = pytest.importorskip("onnx")

MOST_BYTES = 300_000
RANDOM = ("dropout", "bernoulli")
"""Cases whose results are drawn."""


@pytest.fixture(scope="module")
def cases():
    """Graph, inputs and stated outputs of each case with operators that are read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        every = collect_testcases(None)
    found = {}
    for case in every:
        if case.model.ByteSize() > MOST_BYTES or any(word in case.name for word in RANDOM):
            continue
        try:
            graph = reader.parse(case.model.SerializeToString())
        except ValueError:
            continue  # needs an operator or a data type that is not read
        (data,) = case.data_sets[:1]
        names = [value.name for value in case.model.graph.input]
        inputs = dict(zip(names, map(np.asarray, data[0]), strict=False))
        found[case.name] = graph, inputs, data[1]
    return found


def with_constants(graph, inputs, known):
    """The graph in which some inputs are constants."""
    from dataclasses import replace

    return replace(
        graph,
        inputs=tuple(v for v in graph.inputs if v.name not in known),
        constants={**graph.constants, **{name: inputs[name] for name in known if name in inputs}},
    )


def differences(cases, known_of):
    """Cases whose optimized graphs give other results, and how many operators went."""
    wrong, removed = [], 0
    for name, (graph, inputs, wanted) in cases.items():
        known = known_of(list(inputs))
        made = with_constants(graph, inputs, known)
        optimized, _ = optimize(made, {**PASSES, **OPTIONAL})
        assert optimize(optimized, {**PASSES, **OPTIONAL})[0] is optimized, name
        if optimized is made:
            continue
        removed += len(made.operators) - len(optimized.operators)
        removed += sum(o.kind == "Identity" for o in optimized.operators)
        given = {n: a for n, a in inputs.items() if n not in known}
        try:
            found = by_reference(optimized, given)
        except Exception as error:
            wrong.append((name, repr(error)))
            continue
        for one, other in zip(found, wanted, strict=True):
            other = np.asarray(other)
            close = one.dtype == other.dtype and one.shape == other.shape
            if not close or not np.allclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True):
                wrong.append((name, one, other))
    return wrong, removed


def test_with_inputs_unknown(cases):
    assert len(cases) > 500
    wrong, _ = differences(cases, lambda names: [])
    assert wrong == []


def test_with_settings_as_constants(cases):
    """Weights, shapes, axes and pads, which follow the first input, are constants."""
    wrong, removed = differences(cases, lambda names: names[1:])
    assert wrong == []
    assert removed > 20


def test_with_all_inputs_as_constants(cases):
    wrong, removed = differences(cases, lambda names: names)
    assert wrong == []
    assert removed > 250
