"""ONNX graph as a module of PyTorch: a submodule for each operator, traced as any other module.

    graph of operators ──onnx_operators.py──▶ submodules ──torch.export──▶ tracing.py ──▶ layers

Constants that training adapts (weights, biases, tables) become parameters. An operator that has no
layer type is named by its node in the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cubemesh.frameworks.contract.own_module import DescriptionRequest, check_scores
from cubemesh.frameworks.pytorch.own.description import traced_description
from cubemesh.frameworks.pytorch.own.onnx_building import Building
from cubemesh.frameworks.pytorch.own.onnx_operators import build
from cubemesh.frameworks.pytorch.own.tracing import Traced, trace
from cubemesh.frameworks.pytorch.own.values import Untraceable
from cubemesh.onnx.graph import Graph, Operator
from cubemesh.schema.own_network import OwnNetwork
from cubemesh.untrusted import clean, quoted
from cubemesh.user_code import UserCodeError


def describe_graph(request: DescriptionRequest, graph: Graph) -> tuple[OwnNetwork, Traced]:
    """The description of a graph with fixed lengths, and its layers with their arrays.
    UserCodeError naming the node where it does not become a graph of layers."""
    named, given = request.named, torch.from_numpy(request.samples())
    try:
        module = OnnxModule(graph, given)
    except UnknownNode as reason:
        raise UserCodeError(f"{named.short}: {reason}") from reason
    check_scores(request, module.scores, floating=True)
    try:
        traced = trace(named.short, module, given, request.input_name, request.vocabulary)
    except Untraceable as reason:
        node = module.nodes.get(reason.place)
        where = f"node {quoted(node)} has no layer type: " if node else ""
        raise UserCodeError(f"{named.short}: {where}{reason}.") from reason
    return traced_description(request, traced), traced


class UnknownNode(Exception):
    """A node that has no layer type: a sentence with its name."""


class OnnxModule(nn.Module):
    """The operators of a graph of one input and one output. UnknownNode for one that cannot be
    run."""

    def __init__(self, graph: Graph, given: Tensor) -> None:
        super().__init__()
        self.eval()
        self.nodes: dict[str, str] = {}
        """Path of a submodule → name of its node in the file."""
        (self._input,), self._output = (v.name for v in graph.inputs), _before_softmax(graph)
        self._steps: list[tuple[nn.Module, tuple[str, ...], tuple[str, ...]]] = []
        building = Building(graph, {self._input: given})
        names = _Names(o for o in graph.operators if o.name not in building.merged)
        for operator in graph.operators:
            if operator.name in building.merged or self._output in building.values:
                continue
            try:
                with torch.no_grad():
                    step = build(building, operator)
            except Exception as error:  # of an operator in a form that is not foreseen
                kind, node = operator.kind, operator.node or operator.name
                reason = clean(" ".join(str(error).split()), 200).rstrip(".")
                raise UnknownNode(
                    f"node {quoted(node)} ({kind}) has no layer type: {reason}."
                ) from error
            if step is not None:
                path = names.add(operator)
                _add(self, path, step.module)
                self.nodes[path] = operator.node or operator.name
                self._steps.append((step.module, step.inputs, step.outputs))
        self.scores = tuple(building.values[self._output].shape)

    def forward(self, x: Tensor) -> Tensor:
        """The first output of the graph."""
        values = {self._input: x}
        for module, inputs, outputs in self._steps:
            found = module(*(values[name] for name in inputs))
            results = found if isinstance(found, (list, tuple)) else (found,)
            values.update(zip(outputs, results, strict=False))
        return values[self._output]


def _before_softmax(graph: Graph) -> str:
    """The output, or the scores before a softmax that ends the graph: the loss has its own."""
    name = graph.outputs[0].name
    while (last := graph.producers.get(name)) is not None and last.kind in ("Identity", "Softmax"):
        name = last.inputs[0]
        if last.kind == "Softmax":
            break
    return name


class _Names:
    """Paths of submodules, like those of the module that the file was exported from: the node
    `/layer1/layer1.0/conv1/Conv` is `layer1.0.conv1`."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self._paths = {o.name: _path(o) for o in operators}
        self._below = Counter(part for path in self._paths.values() for part in _outer(path))
        """Path → the operators below it."""
        self._used: set[str] = set()
        self._inner: set[str] = set()

    def add(self, operator: Operator) -> str:
        """A path that no other operator has."""
        whole = self._paths[operator.name]
        scope, _, last = whole.rpartition(".")
        alone = scope and self._below[scope] == 1 and last == operator.kind
        path = self._free(scope if alone else whole)
        self._used.add(path)
        self._inner.update(_outer(path))
        return path

    def _free(self, path: str) -> str:
        """A path that is no part of another one and has no operator in it."""
        found = ""
        for part in path.split("."):
            found = f"{found}.{part}" if found else part
            while found in self._used:
                found += "_"
        while found in self._inner or found in self._used:
            found += "_"
        return found


def _outer(path: str) -> list[str]:
    """`a` and `a.b` of `a.b.c`."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _path(operator: Operator) -> str:
    scopes = [part for part in (operator.node or operator.name).split("/") if part]
    kept = [
        scope
        for scope, following in zip(scopes, [*scopes[1:], ""], strict=True)
        if not following.startswith(f"{scope}.")
    ]
    parts = [re.sub(r"\W", "_", part) for scope in kept for part in scope.split(".") if part]
    parts = [f"{part}_" if part in _RESERVED else part for part in parts]
    return ".".join(parts) or operator.kind


_RESERVED = frozenset({*dir(nn.Module()), "nodes", "scores"})
"""Names that a submodule cannot have."""


def _add(root: nn.Module, path: str, module: nn.Module) -> None:
    """Add a submodule, in empty modules for the parts of its path."""
    *outer, last = path.split(".")
    for part in outer:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)
