"""Export of a network with its weights as an ONNX model, for evaluation.

Heads that only training uses are left out; batch normalization uses its running statistics. Inputs
and scores are float32, tokens int64; the batch size is free. Other tools fold and fuse, so nothing
is folded here: a layer is its operators (operators.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cubemesh.batches import Array
from cubemesh.durable_files import replace_file
from cubemesh.errors import UsageError
from cubemesh.networks.graph import Network
from cubemesh.onnx.graph import BATCH, Graph, Operator, Value
from cubemesh.onnx.library import import_onnx
from cubemesh.onnx.operators import OPERATORS, write_layer
from cubemesh.onnx.writer import to_model

OPSET = 20
"""Version of the operators: the first with Gelu."""
SCORES = "scores"


def graph_of(network: Network, weights: Mapping[str, Array], batch: int | None = None) -> Graph:
    """The operators of the evaluation of `network`, for any batch size or for `batch`; UsageError
    for a layer type without operators."""
    nodes = network.needed(network.output)
    missing = sorted({type(n.layer).__name__ for n in nodes} - {t.__name__ for t in OPERATORS})
    if missing:
        raise UsageError(f"{network.name} has no ONNX form: {', '.join(missing)} has no operators.")
    operators: list[Operator] = []
    constants: dict[str, Array] = {}
    for node in nodes:
        written = write_layer(node, tuple(network.shapes[i] for i in node.inputs), weights)
        operators += written.operators
        constants.update(written.constants)
    length = batch or BATCH
    return Graph(
        name=network.name,
        opset=OPSET,
        inputs=tuple(
            Value(
                name=i.name,
                dtype="int64" if i.dtype == "integer" else "float32",
                shape=(length, *i.shape),
            )
            for i in network.inputs
        ),
        outputs=(
            Value(name=SCORES, dtype="float32", shape=(length, *network.shapes[network.output])),
        ),
        operators=(
            *operators,
            Operator(kind="Identity", inputs=(network.output,), outputs=(SCORES,)),
        ),
        constants=constants,
    )


def model(network: Network, weights: Mapping[str, Array], batch: int | None = None) -> Any:
    """The `onnx.ModelProto` of the evaluation of `network`; UsageError for a layer type without
    operators, or weights above 2 GiB."""
    onnx = import_onnx()
    made = to_model(graph_of(network, weights, batch))
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
