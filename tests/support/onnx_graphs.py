"""Graphs of ONNX operators in tests: made by hand, in other data types, evaluated."""

import functools
from dataclasses import replace

import numpy as np

from cubemesh.onnx.graph import Graph, Operator, Value
from cubemesh.onnx.library import import_reference
from cubemesh.onnx.writer import serialized, to_model

OPSET = 20
LARGE_BYTES = 1 << 14


class Sketch:
    """A graph in the making: operators are methods, `sketch.Conv(x, w, strides=(2, 2))`."""

    def __init__(self, opset=OPSET, **inputs):
        self.opset = opset
        self.inputs = {
            name: Value(name=name, dtype="float32", shape=shape)
            if isinstance(shape, tuple)
            else shape
            for name, shape in inputs.items()
        }
        self.operators, self.constants, self.count = [], {}, 0

    def constant(self, values, dtype=np.float32):
        self.count += 1
        name = f"c{self.count}"
        self.constants[name] = np.asarray(values, dtype)
        return name

    def integers(self, *values):
        return self.constant(values, np.int64)

    def __getattr__(self, kind):
        if kind.startswith("_"):
            raise AttributeError(kind)
        return functools.partial(self.call, kind)

    def call(self, kind, *inputs, result="", outputs=1, **attributes):
        names = []
        for given in inputs:
            names.append(given if isinstance(given, str) else self.constant(given))
        self.count += 1
        results = (result or f"v{self.count}",)
        if outputs > 1:
            results = tuple(f"{results[0]}.{n}" for n in range(outputs))
        self.operators.append(
            Operator(kind=kind, inputs=tuple(names), outputs=results, attributes=attributes)
        )
        return results if outputs > 1 else results[0]

    def graph(self, *outputs, rank=0, dtype="float32"):
        """`outputs` are names, or values where the rank is not `rank`."""
        values = [
            Value(name=o, dtype=dtype, shape=("",) * rank) if isinstance(o, str) else o
            for o in outputs
        ]
        return Graph(
            name="sketch",
            opset=self.opset,
            inputs=tuple(self.inputs.values()),
            outputs=tuple(values),
            operators=tuple(self.operators),
            constants=self.constants,
        )


def in_float64(graph):
    """The graph with every float32 as float64."""

    def wide(value):
        return replace(value, dtype="float64") if value.dtype == "float32" else value

    def cast(operator):
        if operator.kind != "Cast" or operator.attributes["to"] != 1:
            return operator
        return replace(operator, attributes={**operator.attributes, "to": 11})

    return replace(
        graph,
        inputs=tuple(map(wide, graph.inputs)),
        outputs=tuple(map(wide, graph.outputs)),
        operators=tuple(map(cast, graph.operators)),
        constants={
            name: array.astype(np.float64) if array.dtype == np.float32 else array
            for name, array in graph.constants.items()
        },
    )


def kinds(graph):
    return [operator.kind for operator in graph.operators]


def by_reference(graph, inputs):
    """The outputs by the standard's own implementation."""
    return import_reference()(to_model(graph)).run(None, inputs)


def session_of(content, optimized=True):
    """ONNX Runtime's session of a serialized model or its file, on one thread: others would wait
    for work in a loop."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def by_onnxruntime(graph, inputs):
    """The outputs by ONNX Runtime, which changes nothing of the graph."""
    # Large constants are inputs: a file of them would be written and read for each session.
    large = {n: a for n, a in graph.constants.items() if a.nbytes > LARGE_BYTES}
    moved = replace(
        graph,
        inputs=(
            *graph.inputs,
            *(Value(name=n, dtype=a.dtype.name, shape=a.shape) for n, a in large.items()),
        ),
        constants={n: a for n, a in graph.constants.items() if n not in large},
    )
    return session_of(serialized(moved), optimized=False).run(None, {**inputs, **large})


def side_by_side(one, other):
    """A graph with the outputs of both, which share inputs and constants."""
    inputs = {value.name for value in one.inputs}
    constants = dict(one.constants)
    names = {}
    own = {id(array): name for name, array in one.constants.items()}
    for name, array in other.constants.items():
        names[name] = own.get(id(array), f"other/{name}")
        constants[names[name]] = array

    def renamed(name):
        return name if not name or name in inputs else names.get(name, f"other/{name}")

    moved = (
        replace(o, inputs=tuple(map(renamed, o.inputs)), outputs=tuple(map(renamed, o.outputs)))
        for o in other.operators
    )
    return replace(
        one,
        outputs=(*one.outputs, *(replace(v, name=renamed(v.name)) for v in other.outputs)),
        operators=(*one.operators, *moved),
        constants=constants,
    )


def distance(found, wanted):
    """The largest difference, relative to the largest value."""
    return max(
        float(
            np.abs(f.astype(np.float64) - w).max(initial=0) / max(np.abs(w).max(initial=0), 1e-30)
        )
        for f, w in zip(found, wanted, strict=True)
    )


def cheap_weights(network):
    """Weights as after a training, of large arrays in little time: no statistic or bias has its
    initial value, and the spread of a layer's result is that of its input."""
    block = np.random.default_rng(1).standard_normal(65_537).astype(np.float32)
    weights = {}
    for number, (name, spec) in enumerate({**network.parameters, **network.state}.items()):
        found = np.resize(np.roll(block, 997 * number), spec.shape)
        if "variance" in name:
            weights[name] = 1 + 0.1 * np.tanh(found)
        elif len(spec.shape) < 2:
            weights[name] = 0.1 * found + (name.endswith("weight") and spec.shape != ())
        else:
            fan_in = int(np.prod(spec.shape[1:]))
            weights[name] = found * np.float32(np.sqrt(2 / fan_in))
    return {name: np.asarray(array, np.float32) for name, array in weights.items()}
