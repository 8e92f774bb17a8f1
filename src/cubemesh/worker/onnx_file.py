"""ONNX file of a user: its graph with fixed lengths, in the operators that layers are made of.

Constants are folded, and layer normalizations and activations that are written out are found, by
the passes of the builder of plans (inference/passes/). Passes that change weights are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cubemesh.batches import Array
from cubemesh.errors import CubemeshError
from cubemesh.frameworks.contract.own_module import SAMPLES, DescriptionRequest
from cubemesh.inference.passes import PASSES, optimize
from cubemesh.onnx.graph import Graph, Value
from cubemesh.onnx.reader import read
from cubemesh.user_code import UserCodeError

SIMPLER = {
    name: PASSES[name] for name in ("evaluation", "constants", "layer norms", "gelu", "hard swish")
}


def simplified(request: DescriptionRequest) -> tuple[DescriptionRequest, Graph]:
    """The request with the input of the file, and the graph of its first output for `SAMPLES`
    samples. UserCodeError where the file cannot be read, or its input is not known."""
    short = request.named.short
    try:
        graph = read(request.named.source)
    except CubemeshError as error:
        raise UserCodeError(f"{short}: {error}") from error
    if len(graph.inputs) != 1:
        names = ", ".join(value.name for value in graph.inputs) or "none"
        raise UserCodeError(f"{short} has the inputs {names}; a network of one input is needed.")
    (given,) = graph.inputs
    request = _with_input(request, graph, given)
    request.check_size()
    graph = replace(
        graph,
        inputs=(replace(given, shape=(SAMPLES, *request.shape)),),
        outputs=(replace(graph.outputs[0], shape=("",) * len(graph.outputs[0].shape)),),
        constants=_for_samples(graph, given),
    )
    try:
        return request, optimize(graph.with_operators(graph.operators), SIMPLER)[0]
    except CubemeshError as error:
        raise UserCodeError(f"{short}: {error}") from error


def _with_input(request: DescriptionRequest, graph: Graph, given: Value) -> DescriptionRequest:
    """The request with the lengths and the vocabulary of the file, where none are given."""
    short, rest = request.named.short, given.shape[1:]
    integers = np.dtype(given.dtype).kind in "iu"
    shown = "×".join(map(str, given.shape))
    if len(rest) != (1 if integers else 3):
        raise UserCodeError(
            f"{short} has the input {given.name} of shape {shown}; batches of images (batch, "
            "channels, height, width) or of tokens (batch, length) are needed."
        )
    if request.input_shape is not None:
        fits = len(request.input_shape) == len(rest) and all(
            isinstance(own, str) or own == length
            for own, length in zip(rest, request.input_shape, strict=True)
        )
        if not fits or integers != (request.vocabulary is not None):
            raise UserCodeError(
                f"{short} has the input {given.name} of shape {shown}, which {request.shown_input} "
                "do not fit. Leave input_shape out, or give its free lengths."
            )
        return request
    side = request.image_size
    free = [request.sequence_length] if integers else [None, side, side]
    sizes = [own if isinstance(n, str) else n for n, own in zip(rest, free, strict=True)]
    lengths = tuple(n for n in sizes if n is not None)
    vocabulary = _vocabulary(graph, given.name) if integers else None
    if len(lengths) < len(rest) or (integers and vocabulary is None):
        how = "LENGTH:VOCABULARY" if integers else "CHANNELSxHEIGHTxWIDTH"
        lacks = (
            "sizes it leaves free" if len(lengths) < len(rest) else "vocabulary it does not state"
        )
        raise UserCodeError(
            f"{short} has the input {given.name} of shape {shown}, whose {lacks}. Set "
            f"input_shape={how}."
        )
    return replace(request, input_shape=lengths, vocabulary=vocabulary)


def _vocabulary(graph: Graph, name: str) -> int | None:
    """The rows of the table that tokens are looked up in; None where there is none."""
    waiting, seen = [name], set[int]()
    while waiting:
        for operator in graph.consumers.get(waiting.pop(), ()):
            if id(operator) in seen:
                continue
            seen.add(id(operator))
            table = graph.constant(operator.inputs[0]) if operator.kind == "Gather" else None
            if table is not None and table.ndim == 2:
                return int(table.shape[0])
            if operator.kind in ("Cast", "Identity", "Reshape"):
                waiting += operator.outputs
    return None


def _for_samples(graph: Graph, given: Value) -> Mapping[str, Array]:
    """The constants; lengths of reshapes that begin with the fixed batch of the file begin with
    `SAMPLES`."""
    batch = given.shape[0]
    if isinstance(batch, str):
        return graph.constants
    shapes = {o.inputs[1] for o in graph.operators if o.kind in ("Reshape", "Expand")}
    found = dict(graph.constants)
    for name in shapes & found.keys():
        lengths = found[name]
        if lengths.ndim == 1 and lengths.size > 1 and lengths[0] == batch:
            found[name] = np.concatenate([[SAMPLES], lengths[1:]]).astype(lengths.dtype)
    return found
