"""PyTorch module from a network's graph, with a generated forward pass.

The forward pass is generated as Python, one line per layer, and compiled. Each layer is a local
name, so nothing is looked up at run time, and each value is deleted after its last reader, so no
array lives longer than in handwritten code:

    conv1 = run_conv1(image); del image
    relu1 = run_relu1(conv1); del conv1

Layers are submodules nested by their names (`layer1.0.conv1`), for `print`, `state_dict` and hooks.
(`torch.fx` generates similar code, but reads each layer through `self` and wraps each call;
benchmarks/LOG.md has the cost.)
"""

from __future__ import annotations

import keyword
import linecache
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cubemesh.batches import Array
from cubemesh.frameworks.contract.validation import check_layers, check_weights
from cubemesh.frameworks.pytorch.lowerings import (
    ATTRIBUTES,
    LOWERINGS,
    RECURRENT_ATTRIBUTES,
    lower,
    may_overwrite,
)
from cubemesh.frameworks.pytorch.own.as_layer import opaque_module
from cubemesh.frameworks.pytorch.precision.float8_linear import Float8Linear
from cubemesh.frameworks.pytorch.precision.layer_passes import PassTypes, set_pass_types
from cubemesh.networks.graph import Head, Network, Node
from cubemesh.networks.layers import Add
from cubemesh.networks.opaque import Opaque

Values = tuple[Tensor, ...]
_RESERVED = frozenset({*keyword.kwlist, "torch"})


class NetworkModule(nn.Module):
    """Layers by name, and a forward pass from the inputs to one value per head."""

    def __init__(
        self,
        network: Network,
        heads: tuple[Head, ...],
        layers: Mapping[str, nn.Module],
        layer_types: Mapping[str, torch.dtype] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._title = "".join(word.capitalize() for word in network.name.split("-"))
        nodes = network.needed(*(head.value for head in heads))
        for node in nodes:
            _add_layer(self, node.name, layers[node.name])
        names = identifiers(network)
        results = [head.value for head in heads]
        inputs = [i.name for i in network.inputs]
        self.code = write_forward(names, inputs, nodes, results, layer_types)
        """The forward pass as Python."""
        called: dict[str, Any] = {f"run_{names[n.name]}": layers[n.name] for n in nodes}
        called["torch"] = torch
        self.run: Callable[..., Values] = define(self.code, self._title, called)["forward"]
        """The function of that code, without hooks of the module itself."""

    def forward(self, *inputs: Tensor) -> Values:
        """The network's inputs, e.g. images (batch, channels, height, width) → the value of each
        head, (batch, classes)."""
        return self.run(*inputs)

    def _get_name(self) -> str:
        return self._title


@dataclass(frozen=True, kw_only=True)
class BuiltNetwork:
    """A network as PyTorch modules for training and evaluation, which share layers and arrays."""

    network: Network
    layers: Mapping[str, nn.Module]
    """By node."""
    layer_types: Mapping[str, torch.dtype]
    """Node → compute dtype of its product, where it differs from the program's."""
    training: NetworkModule
    """With every head."""
    evaluation: NetworkModule
    """With the evaluated head only, and the nodes that it needs."""
    parameters: dict[str, nn.Parameter]
    """By the graph's names, shared ones once."""
    state: dict[str, Tensor]

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy `weights` (the graph's names and layout) into the arrays; UsageError if they are not
        this network's."""
        check_weights(weights, self.network)
        with torch.no_grad():
            for name, array in {**self.parameters, **self.state}.items():
                array.copy_(torch.from_numpy(weights[name]))

    def arrays(self) -> dict[str, Array]:
        """A copy of every array, on the host, in the graph's names and layout."""
        own = {**self.parameters, **self.state}
        return {
            name: np.array(array.detach().cpu().numpy(), order="C") for name, array in own.items()
        }


def build_modules(
    network: Network,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
    overwrite: bool = True,
    not_overwriting: Collection[str] = (),
    layer_types: Mapping[str, torch.dtype] = MappingProxyType({}),
    float8: Collection[str] = (),
    layer_passes: Mapping[str, PassTypes] = MappingProxyType({}),
    replace: Callable[[nn.Module], nn.Module] = lambda layer: layer,
) -> BuiltNetwork:
    """The modules of `network`; their arrays are uninitialized until `load`.

    `overwrite` lets a layer write over its input where nothing reads it afterwards, but for the
    nodes `not_overwriting`.
    Four-dimensional arrays have `memory_format`. `layer_types`: compute dtypes of single nodes,
    under an autocast to another; products of the nodes `float8` are computed in FP8;
    `layer_passes`: compute dtypes of single nodes by pass. `replace` maps a lowered module to the
    one to use. Unsupported for a layer without a lowering."""
    check_layers(network, {*LOWERINGS, Opaque}, "pytorch")

    def empty(shape: tuple[int, ...]) -> Tensor:
        layout = memory_format if len(shape) == 4 else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)

    parameters = {n: nn.Parameter(empty(p.shape)) for n, p in network.parameters.items()}
    state = {n: empty(s.shape) for n, s in network.state.items()}
    overwriting = may_overwrite(network) if overwrite else frozenset[str]()
    overwriting -= frozenset(not_overwriting)
    if (
        layer_types or layer_passes
    ):  # terms of a sum may differ in dtype from each other and from the sum
        overwriting -= {n.name for n in network.nodes if isinstance(n.layer, Add)}
    arrays: dict[str, Tensor] = {**parameters, **state}
    opaque = {
        node.name: opaque_module(
            node, node.layer, arrays, device=device, dtype=dtype, memory_format=memory_format
        )
        for node in network.nodes
        if isinstance(node.layer, Opaque)
    }
    layers = _layers(network, arrays, overwriting, replace, opaque, float8)
    for name, types in layer_passes.items():
        set_pass_types(layers[name], types)
    evaluated = tuple(h for h in network.heads if not h.train_only)[-1:]
    return BuiltNetwork(
        network=network,
        layers=layers,
        layer_types=layer_types,
        training=NetworkModule(network, network.heads, layers, layer_types),
        evaluation=NetworkModule(network, evaluated, layers, layer_types),
        parameters=parameters,
        state=state,
    )


def _layers(
    network: Network,
    arrays: Mapping[str, Tensor],
    overwriting: frozenset[str],
    replace: Callable[[nn.Module], nn.Module],
    opaque: Mapping[str, nn.Module],
    float8: Collection[str],
) -> dict[str, nn.Module]:
    """Node name → module with the network's own arrays; `opaque` are complete."""
    layers = dict(opaque)
    for node in network.nodes:
        if node.name in opaque:
            continue
        module = replace(lower(node, network.shapes[node.inputs[0]], node.name in overwriting))
        if node.name in float8:
            assert isinstance(module, nn.Linear)
            module.__class__ = Float8Linear
        attributes = RECURRENT_ATTRIBUTES if isinstance(module, nn.RNNBase) else ATTRIBUTES
        for role, name in {**node.parameters, **node.state}.items():
            setattr(module, attributes.get(role, role), arrays[name])
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # contiguous, as cuDNN requires
        layers[node.name] = module
    return layers


def _add_layer(root: nn.Module, name: str, layer: nn.Module) -> None:
    """Make `layer` the submodule called `name`, in containers for the parts before its dots. One
    whose name continues that of another layer is inside of it."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    before = root._modules.get(last)
    root.add_module(last, layer)
    for part, inside in before.named_children() if before is not None else ():
        layer.add_module(part, inside)


def write_forward(
    names: Mapping[str, str],
    inputs: Sequence[str],
    nodes: Sequence[Node],
    results: Sequence[str],
    layer_types: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> str:
    """A function `forward` from the values `inputs` to the tuple of the values `results`, in
    Python; it calls a node's layer as `run_` and the node's identifier, which `names` has. A node
    of `layer_types` is computed in that type, inside any autocast."""
    last_reader = {value: node.name for node in nodes for value in node.inputs}
    lines = [f"def forward({', '.join(names[value] for value in inputs)}):"]
    for node in nodes:
        read = ", ".join(names[value] for value in node.inputs)
        line = f"    {names[node.name]} = run_{names[node.name]}({read})"
        if node.name in layer_types:
            line = _in_type(line, read, layer_types[node.name])
        done = [
            names[value]
            for value in dict.fromkeys(node.inputs)
            if last_reader[value] == node.name and value not in results
        ]
        lines.append(f"{line}; del {', '.join(done)}" if done else line)
    lines.append(f"    return ({', '.join(names[value] for value in results)},)")
    return "\n".join(lines) + "\n"


def _in_type(line: str, read: str, dtype: torch.dtype) -> str:
    """`line`, which reads the value `read`, under an autocast of its own. A 16-bit dtype casts
    input and weights; for float32 autocast is disabled, so the input is cast here."""
    if dtype == torch.float32:
        around = f"torch.autocast({read}.device.type, enabled=False)"
        line = line.replace(f"({read})", f"({read}.float())")
    else:
        around = f"torch.autocast({read}.device.type, {dtype})"
    return f"    with {around}:\n    {line}"


def define(code: str, title: str, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The names that `code` defines, executed with the names of `scope`; tracebacks show its
    lines."""
    filename = f"<forward of {title}>"
    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
    defined = dict(scope)
    exec(compile(code, filename, "exec"), defined)
    return defined


def identifiers(network: Network) -> dict[str, str]:
    """Name of each input and node → a unique Python identifier that resembles it."""
    found: dict[str, str] = {}
    for value in (*(i.name for i in network.inputs), *(n.name for n in network.nodes)):
        name = re.sub(r"\W", "_", value)
        if not name.isidentifier() or name in _RESERVED or name.startswith("run_"):
            name = f"_{name}"
        while name in found.values():
            name += "_"
        found[value] = name
    return found
