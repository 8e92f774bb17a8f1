"""Graphs as ONNX models, and the types of all values of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import UsageError
from cubemesh.onnx.graph import Attribute, Graph, Length, Operator, Value
from cubemesh.onnx.library import import_onnx

IR_VERSION = 9
"""Version of the file format; older runtimes read it."""
MOST_BYTES = (1 << 31) - (1 << 20)
"""Protocol buffers have at most 2 GiB."""
SMALL_ELEMENTS = 1024
"""Constants up to this size can be shapes, axes or indices, which types depend on."""


def to_model(graph: Graph) -> Any:
    """The `onnx.ModelProto` of `graph`; UsageError above 2 GiB of constants."""
    if graph.constant_bytes > MOST_BYTES:
        raise UsageError(
            f"The weights of {graph.name} have {graph.constant_bytes:,} bytes, and an ONNX file "
            f"holds at most {MOST_BYTES:,}. Use a smaller network."
        )
    return _model(graph, graph.constants, ())


def serialized(graph: Graph) -> bytes:
    """The content of an ONNX file of `graph`."""
    content: bytes = to_model(graph).SerializeToString(deterministic=True)
    return content


def with_shapes(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph for inputs of `shapes`, by name. UsageError where an input has another number of
    axes or a fixed axis of another length, or does not exist."""
    known = {value.name: value for value in graph.inputs}
    for name, shape in shapes.items():
        if name not in known:
            raise UsageError(f"{graph.name} has no input {name!r}. Inputs: {', '.join(known)}.")
        own = known[name].shape
        fits = len(own) == len(shape) and all(
            isinstance(a, str) or a == b for a, b in zip(own, shape, strict=True)
        )
        if not fits or min(shape, default=1) < 1:
            raise UsageError(
                f"Input {name!r} of {graph.name} has the shape {_shown(own)}, was given "
                f"{_shown(shape)}."
            )
    return replace(
        graph,
        inputs=tuple(replace(v, shape=shapes.get(v.name, v.shape)) for v in graph.inputs),
        # Inferred again: the lengths of outputs follow from those of inputs.
        outputs=tuple(replace(v, shape=tuple("" for _ in v.shape)) for v in graph.outputs),
    )


def infer_types(graph: Graph) -> Mapping[str, Value]:
    """The type of every value whose type follows from the inputs, constants included. UsageError
    where shapes do not fit together."""
    found = _inferred(graph, propagate=False)
    return _inferred(graph, propagate=True) if _can_propagate(graph, found) else found


_SHAPE_INPUTS = {
    **dict.fromkeys(("Expand", "OneHot", "Pad", "Reshape", "Split", "Squeeze", "Tile"), (1,)),
    **dict.fromkeys(("TopK", "Unsqueeze"), (1,)),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
}
"""Kind → inputs whose values the shape of its result depends on."""
_LONG = {"ConstantOfShape": 2, "Expand": 2, "Pad": 4, "Range": 2, "Tile": 2}
"""Kinds that make long vectors of short ones → elements of the shape of what is no vector."""


_MOST_IN_VECTORS = 1 << 16


def _can_propagate(graph: Graph, types: Mapping[str, Value]) -> bool:
    """Whether the values of shapes are worth computing, and can be: onnx stores each element of
    every vector, and files of other people can ask for vectors of 10¹² elements."""
    computed = False
    for operator in graph.operators:
        for position in _SHAPE_INPUTS.get(operator.kind, ()):
            name = operator.inputs[position] if position < len(operator.inputs) else ""
            if not name or name in graph.constants:
                continue
            computed = True
            least = _LONG.get(operator.kind, 0)
            length = types[name].shape[:1] if name in types else ()
            if least and not (length and isinstance(length[0], int) and length[0] >= least):
                return False
    return computed and all(map(_moderate, types.values()))


def _moderate(value: Value) -> bool:
    elements = math.prod(length for length in value.shape if isinstance(length, int))
    return elements <= (_MOST_IN_VECTORS if len(value.shape) == 1 else MOST_BYTES)


def _inferred(graph: Graph, *, propagate: bool) -> Mapping[str, Value]:
    onnx = import_onnx()
    small = {n: a for n, a in graph.constants.items() if a.size <= SMALL_ELEMENTS}
    large = tuple(
        Value(name=n, dtype=a.dtype.name, shape=a.shape)
        for n, a in graph.constants.items()
        if n not in small
    )
    try:
        inferred = onnx.shape_inference.infer_shapes(
            _model(graph, small, large), check_type=True, strict_mode=True, data_prop=propagate
        )
    except Exception as error:  # InferenceError, or what a C++ library raises for bad models
        raise UsageError(
            f"{graph.name} has shapes that do not fit together: {one_line(str(error))}"
        ) from error
    found = {
        n: Value(name=n, dtype=a.dtype.name, shape=a.shape) for n, a in graph.constants.items()
    }
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        one = value_of(value)
        if one is not None:
            found[value.name] = one
    return found


def value_of(info: Any) -> Value | None:
    """The type that a `ValueInfoProto` states; None where it is no array or says no shape."""
    onnx = import_onnx()
    tensor = info.type.tensor_type
    if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    except (KeyError, TypeError, ValueError):
        return None
    lengths = tuple(_length(axis, n) for n, axis in enumerate(tensor.shape.dim))
    return Value(name=info.name, dtype=dtype, shape=lengths)


def one_line(text: str, most: int = 200) -> str:
    """An error message of a library as part of a sentence."""
    return " ".join(text.split())[:most].rstrip(" .:") + "."


def _length(axis: Any, number: int) -> Length:
    if axis.HasField("dim_value"):
        return int(axis.dim_value)
    return str(axis.dim_param) or f"axis {number}"


def _shown(shape: tuple[Length, ...]) -> str:
    return "×".join(map(str, shape)) or "a single number"


def _model(graph: Graph, constants: Mapping[str, Array], extra_inputs: tuple[Value, ...]) -> Any:
    onnx = import_onnx()
    make = onnx.helper
    proto = make.make_graph(
        [to_node(operator) for operator in graph.operators],
        graph.name,
        [_info(value) for value in (*graph.inputs, *extra_inputs)],
        [_info(value) for value in graph.outputs],
        [
            onnx.numpy_helper.from_array(np.ascontiguousarray(a).reshape(a.shape), name)
            for name, a in constants.items()
        ],
    )
    return make.make_model(
        proto,
        opset_imports=[make.make_opsetid("", graph.opset)],
        ir_version=IR_VERSION,
        producer_name="cubemesh",
    )


def to_node(operator: Operator) -> Any:
    """The `onnx.NodeProto` of `operator`."""
    onnx = import_onnx()
    return onnx.helper.make_node(
        operator.kind,
        operator.inputs,
        operator.outputs,
        name=operator.name,
        **{name: _plain(value) for name, value in operator.attributes.items()},
    )


def _info(value: Value) -> Any:
    onnx = import_onnx()
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    lengths = [None if length == "" else length for length in value.shape]
    return onnx.helper.make_tensor_value_info(value.name, kind, lengths)


def _plain(value: Attribute) -> Any:
    """Lists, scalars and tensors, as protocol buffers take them."""
    if isinstance(value, np.ndarray):
        return import_onnx().numpy_helper.from_array(value)
    return list(value) if isinstance(value, tuple) else value
