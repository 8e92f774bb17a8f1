"""Export of a network with its weights as an ONNX model, for evaluation.

Heads that only training uses are left out; batch normalization uses its running statistics. Inputs
and scores are float32, tokens int64; the batch size is free. Other tools fold and fuse, so nothing
is folded here: a layer is its operators (operators.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cubemesh.batches import Array
from cubemesh.durable_files import replace_file
from cubemesh.errors import UsageError
from cubemesh.networks.graph import Network
from cubemesh.onnx.operators import OPERATORS, write_layer

OPSET = 20
"""Version of the operators: the first with Gelu."""
IR_VERSION = 9
"""Version of the file format of that time, which older runtimes read."""
SCORES = "scores"
BATCH = "batch"
MOST_BYTES = (1 << 31) - (1 << 20)
"""Protocol buffers have at most 2 GiB."""


def model(network: Network, weights: Mapping[str, Array], batch: int | None = None) -> Any:
    """The `onnx.ModelProto` of the evaluation of `network`, for any batch size or for `batch`;
    UsageError for a layer type without operators, or weights above 2 GiB."""
    onnx = import_onnx()
    make, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes = network.needed(network.output)
    missing = sorted({type(n.layer).__name__ for n in nodes} - {t.__name__ for t in OPERATORS})
    if missing:
        raise UsageError(f"{network.name} has no ONNX form: {', '.join(missing)} has no operators.")
    calls, constants = [], {}
    for node in nodes:
        written = write_layer(node, tuple(network.shapes[i] for i in node.inputs), weights)
        calls += written.calls
        constants.update(written.constants)
    size_bytes = sum(array.nbytes for array in constants.values())
    if size_bytes > MOST_BYTES:
        raise UsageError(
            f"The weights of {network.name} have {size_bytes:,} bytes, and an ONNX file holds at "
            f"most {MOST_BYTES:,}. Export a smaller network."
        )
    graph = make.make_graph(
        [
            *(
                make.make_node(
                    call.operator,
                    call.inputs,
                    call.outputs,
                    name=call.outputs[0],
                    **{name: _plain(value) for name, value in call.attributes.items()},
                )
                for call in calls
            ),
            make.make_node("Identity", [network.output], [SCORES], name=SCORES),
        ],
        network.name,
        [
            make.make_tensor_value_info(
                i.name,
                onnx.TensorProto.INT64 if i.dtype == "integer" else onnx.TensorProto.FLOAT,
                [batch or BATCH, *i.shape],
            )
            for i in network.inputs
        ],
        [
            make.make_tensor_value_info(
                SCORES, onnx.TensorProto.FLOAT, [batch or BATCH, *network.shapes[network.output]]
            )
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    made = make.make_model(
        graph,
        opset_imports=[make.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="cubemesh",
    )
    onnx.checker.check_model(made, full_check=True)
    return made


def export(network: Network, weights: Mapping[str, Array], path: Path) -> int:
    """Write the model to `path`, whole or not at all; its size in bytes. UsageError where it cannot
    be written."""
    content: bytes = model(network, weights).SerializeToString()
    try:
        replace_file(path, content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return len(content)


def import_onnx() -> Any:
    """The package onnx; UsageError with the installation command where it is missing."""
    try:
        onnx = importlib.import_module("onnx")
        for name in ("checker", "helper", "numpy_helper"):
            importlib.import_module(f"onnx.{name}")
    except ImportError as error:
        raise UsageError(
            "ONNX files need the package onnx: pip install 'cubemesh[onnx]'"
        ) from error
    return onnx


def _plain(value: Any) -> Any:
    """Lists and scalars, as protocol buffers take them."""
    return list(value) if isinstance(value, tuple) else value
