"""Reading ONNX files of other people: graphs of the operators in `READABLE`, within limits.

A file is data from outside. Everything it claims is checked before memory is taken for it, and what
cannot be read is refused in one sentence, with the operator's name.
"""

from __future__ import annotations

import math
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import DataError, UsageError
from cubemesh.onnx.graph import Attribute, Graph, Operator, Value, in_execution_order
from cubemesh.onnx.library import import_onnx
from cubemesh.onnx.writer import MOST_BYTES, one_line, value_of
from cubemesh.untrusted import clean, quoted, shown_path

_READABLE = {
    "products and convolutions": "Conv ConvTranspose Einsum Gemm GRU LSTM MatMul RNN",
    "normalization": "BatchNormalization InstanceNormalization LayerNormalization LRN",
    "pooling": "AveragePool GlobalAveragePool GlobalMaxPool MaxPool",
    "activations": """
        Celu Clip Elu Erf Gelu HardSigmoid HardSwish LeakyRelu LogSoftmax Mish PRelu Relu Selu
        Sigmoid Softmax Softplus Softsign Tanh
    """,
    "arithmetic": """
        Abs Add Ceil Cos Div Exp Floor Log Max Mean Min Mod Mul Neg Pow Reciprocal Round Sign Sin
        Sqrt Sub Sum
    """,
    "reductions": """
        ArgMax ArgMin CumSum ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum TopK
    """,
    "comparison and logic": """
        And Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Not Or Where Xor
    """,
    "shapes and indices": """
        Cast Concat Constant ConstantOfShape DepthToSpace Dropout Expand Flatten Gather
        GatherElements GatherND Identity OneHot Pad Range Reshape Resize ScatterElements ScatterND
        Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze
    """,
    "8-bit integers": "DequantizeLinear QuantizeLinear",
}
READABLE = frozenset(kind for kinds in _READABLE.values() for kind in kinds.split())
"""Operators of the standard domain that are read."""
OLDEST_OPSET, NEWEST_OPSET = 13, 23
"""Versions of the operators that are read as they are; older ones are converted to the oldest."""
OLDEST_CONVERTED = 7
MOST_OPERATORS = 20_000
MOST_AXES = 16


def read(path: str | Path) -> Graph:
    """The graph of a file. UsageError where it cannot be opened, DataError where it is damaged or
    has what is not supported."""
    source = Path(path)
    try:
        status = source.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{shown_path(path)} is not a file.")
        if status.st_size > MOST_BYTES:
            raise UsageError(
                f"{shown_path(path)} has {status.st_size:,} bytes; ONNX files have at most "
                f"{MOST_BYTES:,}."
            )
        content = source.read_bytes()
    except OSError as error:
        raise UsageError(f"{shown_path(path)} cannot be read: {error.strerror}.") from error
    try:
        return parse(content, source.stem)
    except ValueError as error:
        raise DataError(f"{shown_path(path)} cannot be used: {clean(str(error))}") from error


def parse(content: bytes, name: str = "network") -> Graph:
    """The graph of the content of a file; ValueError, a sentence, where there is none."""
    onnx = import_onnx()
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # DecodeError, of a module that differs between versions
        raise ValueError("it is not an ONNX model, or is damaged.") from error
    if not model.HasField("graph") or not model.graph.output:
        raise ValueError("it is not an ONNX model, or is damaged: it has no graph with a result.")
    if len(model.graph.node) > MOST_OPERATORS:
        raise ValueError(
            f"it has {len(model.graph.node):,} operators; at most {MOST_OPERATORS:,} are read."
        )
    _check_names(model.graph)
    _check_form(model)
    return _graph(_current(model), name)


def _check_names(graph: Any) -> None:
    """ValueError for names that are not Unicode, which protocol buffers return as bytes."""
    names = [graph.name, *(a.name for a in graph.initializer)]
    names += [value.name for value in (*graph.input, *graph.output)]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [attribute.name for attribute in node.attribute]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("it is damaged: it has names that are not Unicode.")


def _check_form(model: Any) -> None:
    """ValueError for what is not supported, before anything is computed from it."""
    onnx = import_onnx()
    graph = model.graph
    if model.functions:
        raise ValueError(
            "it defines functions. Inline them with onnx.inliner.inline_local_functions."
        )
    if graph.sparse_initializer:
        raise ValueError("it has sparse weights, which are not supported.")
    for tensor in graph.initializer:
        _check_tensor(tensor)
    lacking: Counter[str] = Counter()
    example: dict[str, str] = {}
    for node in graph.node:
        foreign = node.domain not in ("", "ai.onnx")
        if foreign or node.op_type not in READABLE:
            kind = f"{node.domain}.{node.op_type}" if foreign else node.op_type
            lacking[kind] += 1
            example.setdefault(kind, node.name or next(iter(node.output), ""))
        for attribute in node.attribute:
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                raise ValueError(f"operator {quoted(node.name)} contains a graph: not supported.")
            if attribute.type == onnx.AttributeProto.TENSOR:
                _check_tensor(attribute.t)
    if lacking:
        shown = ", ".join(
            f"{clean(kind, 60)} ({count} ×, first {quoted(example[kind])})"
            for kind, count in lacking.most_common(5)
        )
        more = f" and {len(lacking) - 5} others" if len(lacking) > 5 else ""
        raise ValueError(f"it needs operators that are not supported: {shown}{more}.")


def _check_tensor(tensor: Any) -> None:
    """ValueError where an array is elsewhere, or its content is not as long as its shape says."""
    onnx = import_onnx()
    name = quoted(tensor.name)
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise ValueError(
            f"the weights {name} are in another file. Write one file with "
            "onnx.save(onnx.load(FILE), NEW_FILE)."
        )
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the array {name} has an unknown data type.") from None
    if dtype.kind not in "fiub" or tensor.data_type not in NUMPY_TYPES:
        raise ValueError(f"the array {name} is of type {dtype.name}, which is not supported.")
    if len(tensor.dims) > MOST_AXES or any(length < 0 for length in tensor.dims):
        raise ValueError(f"the array {name} has an impossible shape.")
    size = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        have = len(tensor.raw_data) // dtype.itemsize
        exact = len(tensor.raw_data) == size * dtype.itemsize
    else:
        have = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
        exact = have == size
    if not exact:
        raise ValueError(
            f"the array {name} should have {_count(size)} elements and has {have:,}: the file is "
            "damaged."
        )


NUMPY_TYPES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})
"""Numbers of the data types that NumPy has: floats of 16 to 64 bits, integers, truth values."""


def _count(size: int) -> str:
    return f"{size:,}" if size < 1 << 63 else "more than 2^63"


def _current(model: Any) -> Any:
    """The model in a version of the operators that is read."""
    onnx = import_onnx()
    opset = max((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), default=0)
    if OLDEST_OPSET <= opset <= NEWEST_OPSET:
        return model
    if opset > NEWEST_OPSET or opset < OLDEST_CONVERTED:
        raise ValueError(
            f"its operators are of opset {opset}; {OLDEST_CONVERTED} to {NEWEST_OPSET} are read."
        )
    try:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:  # whatever the converter's C++ raises for what it lacks
        raise ValueError(
            f"its operators are of opset {opset} and cannot be converted to {OLDEST_OPSET}: "
            f"{one_line(str(error))} Export it again with opset {OLDEST_OPSET} or later."
        ) from error


def _graph(model: Any, name: str) -> Graph:
    onnx = import_onnx()
    proto = model.graph
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # ValidationError, or what the C++ library raises
        raise ValueError(f"it is no valid ONNX model: {one_line(str(error))}") from error
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.initializer}
    operators = []
    for node in proto.node:
        attributes = {a.name: _attribute(a) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(node.name, attributes)
            continue
        operators.append(
            Operator(
                kind=node.op_type,
                inputs=tuple(node.input),
                outputs=tuple(node.output),
                attributes=attributes,
                node=clean(node.name, 120),
            )
        )
    inputs = tuple(_value(v) for v in proto.input if v.name not in constants)
    known = [*(v.name for v in inputs), *constants]
    try:
        ordered = in_execution_order(operators, known)
    except ValueError as error:
        raise ValueError(
            f"operator {quoted(str(error))} needs its own result: the graph has a cycle."
        ) from error
    have = {*known, *(n for o in ordered for n in o.outputs)}
    for wanted in (*(n for o in ordered for n in o.inputs), *(v.name for v in proto.output)):
        if wanted and wanted not in have:
            raise ValueError(f"the value {quoted(wanted)} is used, and nothing computes it.")
    opset = max(i.version for i in model.opset_import if i.domain in ("", "ai.onnx"))
    graph = Graph(
        name=clean(proto.name, 80) or name,
        opset=opset,
        inputs=inputs,
        outputs=tuple(_value(v) for v in proto.output),
        operators=tuple(ordered),
        constants=constants,
    )
    return graph.with_operators(graph.operators)


def _value(info: Any) -> Value:
    found = value_of(info)
    if found is None:
        raise ValueError(f"the type of {quoted(info.name)} is missing or not supported.")
    if any(isinstance(length, int) and length < 0 for length in found.shape):
        raise ValueError(f"{quoted(info.name)} has an impossible shape.")
    return found


def _attribute(attribute: Any) -> Attribute:
    onnx = import_onnx()
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == onnx.AttributeProto.TENSOR:
        array: Array = onnx.numpy_helper.to_array(value)
        return array
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (int, float)):
        return value
    try:
        items = tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
    except TypeError:
        items = (None,)
    if not all(isinstance(item, (int, float, str)) for item in items):
        raise ValueError(f"the attribute {quoted(attribute.name)} is of an unsupported type.")
    return items


def _constant(name: str, attributes: dict[str, Attribute]) -> Array:
    """The array of a `Constant` operator."""
    kind, value = next(iter(attributes.items()), ("", ""))
    if kind in ("value_float", "value_floats"):
        return np.array(value, np.float32)
    if kind in ("value_int", "value_ints"):
        return np.array(value, np.int64)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"the constant {quoted(name)} is of an unsupported type.")
    return value
