"""Tracing of a module to a graph of layers, checked against the module.

`torch.export` records the operators of a training and of an evaluation pass, which must be the same
ones. Each operator becomes a layer (operators.py). Operators that only move values (views,
transpositions, slices) are followed by what they do to the positions of the values: a value is a
node of the graph and the position in it that each of its elements comes from. So whatever way a
module writes a flattening or the heads of an attention, it is recognized by its effect.

The graph is used only if its outputs equal the module's, with the module's weights, in evaluation
and, without dropout, in training.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from cubemesh.errors import CubemeshError
from cubemesh.frameworks.pytorch.module import build_modules
from cubemesh.frameworks.pytorch.own.arrangement import by_elements
from cubemesh.frameworks.pytorch.own.operators import DEFERRED, LAYERS, OF_CONSTANTS, VIEWS
from cubemesh.frameworks.pytorch.own.source import scores_of
from cubemesh.frameworks.pytorch.own.values import Expression, Rows, Symbolic, Untraceable, Value
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.graph import Network, Segment
from cubemesh.networks.layers import Attention, Dropout, Layer
from cubemesh.untrusted import clean

TOLERANCE = 1e-5
"""Largest difference of outputs, relative to the largest output, or to 1 if all are smaller."""
__all__ = ["Traced", "Untraceable", "trace"]


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A graph and the module's own initial values."""

    network: Network
    arrays: dict[str, Tensor]
    """By the graph's names of parameters and state."""
    difference: float = 0.0
    """Largest of an output from the module's, relative as in `TOLERANCE`."""


def trace(
    name: str, module: nn.Module, given: Tensor, input_name: str, vocabulary: int | None
) -> Traced:
    """The graph of `module` for samples like `given`. Untraceable with the reason."""
    with _quiet(), _restored(module):
        module.eval()
        evaluation = _operators(_export(module, given))
        module.train()
        exported = _export(module, given)
        if _operators(exported) != evaluation:
            raise Untraceable("it computes other operators in training than in evaluation")
        try:
            tracer = Tracer(name, exported, module, given, input_name, vocabulary)
            traced = tracer.trace()
            traced = replace(traced, difference=_difference(traced, module, given))
        except Untraceable:
            raise
        except Exception as error:  # of an operator in a form that is not foreseen
            words = clean(" ".join(str(error).split()), 160).rstrip(".")
            raise Untraceable(f"its operators have no graph ({words})") from None
    return traced


class Tracer:
    """Follows an exported program and adds a layer for each operator."""

    def __init__(
        self,
        name: str,
        exported: Any,
        module: nn.Module,
        given: Tensor,
        input_name: str,
        vocabulary: int | None,
    ) -> None:
        self.net = NetworkBuilder(name)
        self.batch = len(given)
        self.arrays: dict[str, Tensor] = {}
        self._exported = exported
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._buffers = dict(module.named_buffers(remove_duplicate=False))
        self._leaves = {n for n, part in module.named_modules() if not any(part.children())}
        self._owner: dict[int, str] = {}
        """Array, by its id → its name in the graph."""
        self._alive: list[Tensor] = []
        """The arrays, so that no id is used again."""
        self._values: dict[fx.Node, Any] = {}
        self._names: Counter[str] = Counter([input_name])
        self._used = _reachable(exported)
        self._settled: dict[fx.Node, Value] = {}
        """The last operator of an expression → its value."""
        self.net.input(input_name, tuple(given.shape[1:]), vocabulary=vocabulary)
        self._input = self.whole(input_name)

    def trace(self) -> Traced:
        """The graph of the whole program."""
        signature = self._exported.graph_signature
        arrays = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants = signature.inputs_to_lifted_tensor_constants
        for node in self._exported.graph.nodes:
            if node.op == "placeholder":
                if node.name in arrays:
                    found = arrays[node.name]
                    self._values[node] = self._parameters.get(found, self._buffers.get(found))
                elif node.name in constants:
                    self._values[node] = self._exported.constants[constants[node.name]]
                else:
                    self._values[node] = self._input
            elif node.op == "get_attr":  # what a part runs in another mode
                self._values[node] = getattr(self._exported.graph_module, str(node.target))
            elif node.op == "call_function" and node in self._used:
                try:
                    self._values[node] = self._call(node)
                except Untraceable as reason:
                    reason.place = _module_of(node)[0]
                    raise
        value = self.settled(self._values[_output(self._exported)])
        if not isinstance(value, Value) or not self.is_whole(value):
            raise Untraceable("its scores are not the result of a layer")
        if value.name == self._input.name:
            raise Untraceable("its scores are its input")
        self.net.classify(value.name)
        network = _in_segments(self.net.build())
        return Traced(network=network, arrays=self.arrays)

    def whole(self, name: str) -> Value:
        """A node's values, each in its place."""
        return Value(name, (self.batch, *self.net.shape(name)))

    def is_whole(self, value: Value) -> bool:
        """Whether it is all values of its node, each in its place."""
        if value.moved is None:
            return True
        return tuple(value.moved.shape) == value.shape and value.in_order

    def settled(self, value: Any) -> Any:
        """A node's value for an expression; what is none as it is."""
        if not isinstance(value, Expression):
            return value
        if value.node not in self._settled:
            layer = value.layer()
            if layer is None:
                return value.value
            self._settled[value.node] = by_elements(self, value.node, value.value, layer)
        return self._settled[value.node]

    def add(self, node: fx.Node, layer: Layer, *inputs: str, **arrays: Tensor | None) -> str:
        """Add a layer for `node`; `arrays` are its parameters and state by role."""
        shapes = [self.net.shape(i) for i in inputs]
        own = {role: array for role, array in arrays.items() if array is not None}
        state = layer.state(*shapes)
        specs = {**layer.parameters(*shapes), **state}
        if {role: tuple(a.shape) for role, a in own.items()} != {
            role: spec.shape for role, spec in specs.items()
        }:
            raise Untraceable(f"the arrays of {_where(node)} have other shapes than the layer's")
        share = {r: self._owner[id(a)] for r, a in own.items() if id(a) in self._owner}
        if any(role in state for role in share):
            raise Untraceable(f"{_where(node)} shares running statistics with another layer")
        name = self.net.add_layer(layer, *inputs, name=self._name(node), share=share)
        self._alive += own.values()
        for role, array in own.items():
            if role not in share:
                self._owner[id(array)] = f"{name}.{role}"
                self.arrays[f"{name}.{role}"] = array.detach().clone()
        return name

    def _call(self, node: fx.Node) -> Any:
        name = str(node.target)
        if name in VIEWS or getattr(node.target, "__name__", "") == "getitem":
            return self._moved(node)
        constant = not any(isinstance(self._values.get(i), Symbolic) for i in node.all_input_nodes)
        if constant and name not in OF_CONSTANTS:
            return self._computed(node)
        if name not in LAYERS:
            raise Untraceable(f"there is no layer type for {name} ({_where(node)})")
        arguments = _arguments(node, self._values)
        if name not in DEFERRED:
            arguments = {key: self.settled(value) for key, value in arguments.items()}
        try:
            result = LAYERS[name](self, node, **arguments)
        except CubemeshError as error:
            raise Untraceable(f"{_where(node)}: {error}") from None
        if _in_place(node):  # later readers of the input see the result
            self._values[node.all_input_nodes[0]] = result
        return result

    def _moved(self, node: fx.Node) -> Any:
        """The result of an operator that only moves values."""
        given = self._values[node.all_input_nodes[0]]
        factor = given if isinstance(given, Expression) and given.factor is not None else None
        given = given.value if factor is not None else self.settled(given)
        if isinstance(given, Rows):  # added to each position, however they are arranged
            return given

        def run(places: Any) -> Any:
            rest = [self._values[a] if isinstance(a, fx.Node) else a for a in node.args[1:]]
            return node.target(places, *rest, **node.kwargs)  # type: ignore[operator]

        if isinstance(given, Value):
            moved = run(given.places)
            if factor is not None and isinstance(moved, Tensor):
                return replace(factor, value=given.at(moved))
            if factor is not None:
                return [replace(factor, value=given.at(places)) for places in moved]
            if isinstance(moved, Tensor):
                return given.at(moved)
            return [given.at(places) for places in moved]
        return run(given)

    def _computed(self, node: fx.Node) -> Any:
        """The result of an operator without inputs of the network, such as `arange`."""
        inputs = [self._values.get(i) for i in node.all_input_nodes]
        if any(isinstance(i, nn.Parameter) for i in inputs):
            raise Untraceable(f"it computes weights by {node.target} ({_where(node)})")
        arguments = fx.map_arg((node.args, node.kwargs), lambda n: self._values[n])
        return node.target(*arguments[0], **arguments[1])  # type: ignore[operator]

    def _name(self, node: fx.Node) -> str:
        path, kind = _module_of(node)
        operator = str(node.target).split(".")[1].strip("_")  # of aten
        is_leaf = kind.startswith("torch.nn.") and path in self._leaves
        name = path if path and is_leaf else f"{path}.{operator}".strip(".")
        self._names[name] += 1
        number = self._names[name]
        return name if number == 1 else f"{name}_{number}"


def _export(module: nn.Module, given: Tensor) -> Any:
    try:
        return torch.export.export(module, (given,), strict=False)
    except Exception as error:
        words = clean(" ".join(str(error).split()), 160).rstrip(".")
        raise Untraceable(
            f"torch.export cannot trace it ({type(error).__name__}: {words})"
        ) from None


def _output(exported: Any) -> fx.Node:
    """The scores among the results: the first, or those of a `logits`."""
    names = exported.graph_signature.user_outputs
    nodes: dict[str, fx.Node] = {node.name: node for node in exported.graph.nodes}
    context = exported.call_spec.out_spec
    keys = list(getattr(context, "context", None) or [])
    keys = keys if all(isinstance(key, str) for key in keys) and len(keys) == len(names) else []
    found = names[keys.index("logits")] if "logits" in keys else names[0]
    if found not in nodes:
        raise Untraceable("its scores are a constant")
    return nodes[found]


def _reachable(exported: Any) -> set[fx.Node]:
    """The nodes that the scores depend on."""
    found: set[fx.Node] = set()
    todo = [_output(exported)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    # An operator in place changes a value that others read: it belongs to what they depend on.
    for node in exported.graph.nodes:
        if _in_place(node) and node.args[0] in found and node.args[0].op != "placeholder":
            found.add(node)
    return found


def _in_place(node: fx.Node) -> bool:
    """Whether an operator writes its result over its first input: `aten.relu_.default`."""
    return node.op == "call_function" and str(node.target).partition(".")[2].partition(".")[
        0
    ].endswith("_")


def _operators(exported: Any) -> list[str]:
    """The operators of the scores, without copies and the random numbers of stochastic depth."""
    used = _reachable(exported) - _sample_noise(exported)
    names = [str(n.target) for n in exported.graph.nodes if n.op == "call_function" and n in used]
    return [name for name in names if name not in _COPIES]


_COPIES = frozenset(f"aten.{name}.default" for name in ("contiguous", "clone", "alias", "detach"))


def _sample_noise(exported: Any) -> set[fx.Node]:
    """The operators that draw a factor for each sample, and those that multiply by it."""
    noise = {n for n in exported.graph.nodes if str(n.target) == "aten.bernoulli_.float"}
    noise |= {n.args[0] for n in noise}
    factors: set[fx.Node] = set()
    for node in exported.graph.nodes:
        inputs = set(node.all_input_nodes)
        if inputs and inputs <= noise:
            noise.add(node)
        elif inputs & noise and str(node.target).startswith("aten.mul"):
            factors.add(node)
    return noise | factors


def _arguments(node: fx.Node, values: dict[fx.Node, Any]) -> dict[str, Any]:
    """Arguments of an operator by the names of its schema, with its defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    found = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            value: Any = node.args[position]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        else:
            value = argument.default_value if argument.has_default_value() else None
        if isinstance(value, fx.Node):
            value = values[value]
        elif isinstance(value, (list, tuple)):
            value = [values[v] if isinstance(v, fx.Node) else v for v in value]
        found["x" if argument.name in ("self", "input") else argument.name] = value
    return found


def _module_of(node: fx.Node) -> tuple[str, str]:
    """Path and class of the innermost module that called an operator."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", ""
    path, kind = stack[-1][:2]
    return str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"


def _where(node: fx.Node) -> str:
    path, _ = _module_of(node)
    return path or node.name


def _in_segments(network: Network) -> Network:
    """The nodes of each submodule of the whole as a segment, where they follow one another."""
    segments: list[tuple[str, list[str]]] = []
    for node in network.nodes:
        name = node.name.partition(".")[0]
        if not segments or segments[-1][0] != name:
            segments.append((name, []))
        segments[-1][1].append(node.name)
    names = [name for name, _ in segments]
    if len(set(names)) < len(names):
        return network
    of = {node: name for name, nodes in segments for node in nodes}
    return replace(
        network,
        nodes=tuple(replace(node, segment=of[node.name]) for node in network.nodes),
        segments=tuple(Segment(name=name, nodes=tuple(nodes)) for name, nodes in segments),
    )


def _difference(traced: Traced, module: nn.Module, given: Tensor) -> float:
    """Largest difference of the graph's outputs from the module's; Untraceable above the
    tolerance."""
    built = build_modules(traced.network)
    built.load({name: array.numpy() for name, array in traced.arrays.items()})
    random = any(
        (isinstance(n.layer, Dropout) and n.layer.rate)
        or (isinstance(n.layer, Attention) and n.layer.dropout)
        for n in traced.network.nodes
    )
    differences = []
    for training in (False, True) if not random else (False,):
        module.train(training)
        built.training.train(training)
        with torch.no_grad():
            expected = scores_of(module(given))
            (found,) = built.training(given)
        largest = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        if not largest <= TOLERANCE:
            mode = "training" if training else "evaluation"
            raise Untraceable(f"its graph differs from it by {largest:.2g} in {mode}")
        differences.append(largest)
    return max(differences)


@contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """Buffers are written back at the end."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in before and before[name].shape == buffer.shape:
                    buffer.copy_(before[name])


@contextmanager
def _quiet() -> Iterator[None]:
    """Attention is traced as one operator also in evaluation; warnings are for developers."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.backends.mha.set_fastpath_enabled(fast)
