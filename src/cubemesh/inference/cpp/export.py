"""C++ export: a network of images as a file for C++ programs, with the header that runs it.

    NETWORK.cmnet            operators after the passes of a plan, and weights
    cubemesh_network.hpp     class `cubemesh::Network`: C++17, the standard library alone
    example.cpp              a program that prints the scores of raw images

The file is little-endian: `CMNET001`, the name, the number of values; constants (value, 0 for
float32 or 1 for int64, shape, data); operators (kind, inputs, output, integer attributes, float
attributes); the input with its shape, -1 where any length is allowed; the output. Numbers are
int64, texts and lists have their length before them. The header checks each length against the size
of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

import numpy as np

from cubemesh.batches import Array
from cubemesh.durable_files import replace_file
from cubemesh.errors import UsageError
from cubemesh.inference.passes import optimize
from cubemesh.networks.graph import Network
from cubemesh.onnx.export import graph_of
from cubemesh.onnx.graph import Graph, Operator
from cubemesh.units import format_list

HEADER, EXAMPLE = "cubemesh_network.hpp", "example.cpp"
MAGIC = b"CMNET001"
OPERATORS = frozenset(
    (
        *("Add", "AveragePool", "BatchNormalization", "Concat", "Conv", "Div", "Expand"),
        *("Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "HardSwish", "Identity"),
        *("LRN", "LayerNormalization", "MatMul", "MaxPool", "Mul", "Pow", "Relu", "Reshape"),
        *("Shape", "Sigmoid", "Softmax", "Sqrt", "Sub", "Tanh", "Transpose", "Unsqueeze"),
    )
)
"""Those that the header computes."""


def export_cpp(network: Network, weights: Mapping[str, Array], folder: Path) -> int:
    """Write the three files into `folder`, which is made where it is missing; the size of the
    network's file in bytes. UsageError for a network that the header does not run, or where they
    cannot be written."""
    content = serialized(network, weights)
    package = resources.files("cubemesh.inference.cpp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{Path(network.name).name}.cmnet", content)
        for name in (HEADER, EXAMPLE):
            replace_file(folder / name, package.joinpath(name).read_bytes())
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}.") from error
    return len(content)


def serialized(network: Network, weights: Mapping[str, Array]) -> bytes:
    """The network's file. UsageError for one that the header does not run."""
    if len(network.inputs) != 1 or network.inputs[0].dtype != "float":
        raise UsageError(
            f"{network.name} does not take an image alone, and --cpp exports networks of images. "
            "Leave --cpp out for an ONNX file."
        )
    graph, _ = optimize(graph_of(network, weights))
    others = sorted({o.kind for o in graph.operators} - OPERATORS)
    if others:
        raise UsageError(
            f"{network.name} has operators that the C++ header does not compute: "
            f"{format_list(others)}. Leave --cpp out for an ONNX file."
        )
    return _Writer(graph).content(network.name)


class _Writer:
    """The file of a graph; values are numbered in the order in which they first occur."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        names = (
            *(i.name for i in graph.inputs),
            *graph.constants,
            *(name for o in graph.operators for name in (*o.inputs, o.name)),
        )
        self._ids = {name: n for n, name in enumerate(dict.fromkeys(filter(None, names)))}

    def content(self, name: str) -> bytes:
        """All bytes."""
        graph = self._graph
        (given,), (result,) = graph.inputs, graph.outputs
        constants, operators = graph.constants, graph.operators
        return b"".join(
            (
                MAGIC,
                _text(name),
                _number(len(self._ids)),
                _number(len(constants)),
                *(self._constant(name, array) for name, array in constants.items()),
                _number(len(operators)),
                *map(self._operator, operators),
                _number(self._ids[given.name]),
                _numbers(n if isinstance(n, int) else -1 for n in given.shape),
                _number(self._ids[result.name]),
            )
        )

    def _constant(self, name: str, array: Array) -> bytes:
        whole = np.issubdtype(array.dtype, np.integer)
        data = np.ascontiguousarray(array, dtype="<i8" if whole else "<f4")
        head = _number(self._ids[name]) + _number(int(whole)) + _numbers(array.shape)
        return head + data.tobytes()

    def _operator(self, operator: Operator) -> bytes:
        integers: dict[str, tuple[int, ...]] = {}
        reals: dict[str, float] = {}
        for key, value in operator.attributes.items():
            if isinstance(value, float):
                reals[key] = value
            elif isinstance(value, int):
                integers[key] = (value,)
            elif isinstance(value, tuple) and all(isinstance(v, int) for v in value):
                integers[key] = tuple(int(v) for v in value)
            elif key == "approximate" and operator.kind == "Gelu":
                integers["tanh"] = (int(value == "tanh"),)
            else:
                raise UsageError(f"{operator.kind} has {key}={value}, which --cpp does not write.")
        used = [name for name in operator.outputs[1:] if self._graph.consumers.get(name)]
        if used:
            raise UsageError(f"{operator.kind} has a second result, which --cpp does not write.")
        return b"".join(
            (
                _text(operator.kind),
                _numbers(self._ids[name] if name else -1 for name in operator.inputs),
                _number(self._ids[operator.name]),
                _number(len(integers)),
                *(_text(key) + _numbers(values) for key, values in integers.items()),
                _number(len(reals)),
                *(_text(key) + struct.pack("<f", value) for key, value in reals.items()),
            )
        )


def _number(value: int) -> bytes:
    return struct.pack("<q", value)


def _numbers(values: Iterable[int]) -> bytes:
    found = list(values)
    return _number(len(found)) + b"".join(map(_number, found))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _number(len(encoded)) + encoded
