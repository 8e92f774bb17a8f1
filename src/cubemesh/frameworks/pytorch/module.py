"""How does a graph become a PyTorch module that reads and runs as if written by hand?

The forward pass is written out as Python, one line a layer, and compiled. Each layer is a name of
its own in it, so nothing is looked up while it runs, and each value is given up after its last
reader, so no array lives longer than in handwritten code:

    conv1 = run_conv1(image); del image
    relu1 = run_relu1(conv1); del conv1

The layers hang in modules nested as their names read (`layer1.0.conv1`), so that `print`,
`state_dict` and hooks find them. (`torch.fx` writes much the same, but fetches each layer through
`self` and wraps each call; benchmarks/LOG.md has the cost.)
"""

from __future__ import annotations

import keyword
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cubemesh.batches import Array
from cubemesh.frameworks.api.validation import check_layers, check_weights
from cubemesh.frameworks.pytorch.lowerings import (
    ATTRIBUTES,
    LOWERINGS,
    LSTM_ATTRIBUTES,
    lower,
    may_overwrite,
)
from cubemesh.networks.graph import Head, Network, Node
from cubemesh.networks.layers import Add

Values = tuple[Tensor, ...]
_RESERVED = frozenset({*keyword.kwlist, "torch"})


class NetworkModule(nn.Module):
    """Layers under their names, and a forward pass from the inputs to one value for each head."""

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
            _hang(self, node.name, layers[node.name])
        names = identifiers(network)
        results = [head.value for head in heads]
        fed = [i.name for i in network.inputs]
        self.code = write_forward(names, fed, nodes, results, layer_types)
        """The forward pass as Python."""
        called: dict[str, Any] = {f"run_{names[n.name]}": layers[n.name] for n in nodes}
        called["torch"] = torch
        self._run: Callable[[Tensor], Values] = define(self.code, self._title, called)["forward"]

    def forward(self, *inputs: Tensor) -> Values:
        """Images (batch, channels, height, width), or what else the network's inputs are → each
        head's value, (batch, classes)."""
        return self._run(*inputs)

    def _get_name(self) -> str:
        return self._title


@dataclass(frozen=True, kw_only=True)
class Built:
    """A network as PyTorch modules; both run the same layers with the same arrays."""

    network: Network
    layers: Mapping[str, nn.Module]
    """By node."""
    layer_types: Mapping[str, torch.dtype]
    """Node → type its product is computed in, for those that have one of their own."""
    training: NetworkModule
    """With every head."""
    evaluation: NetworkModule
    """With the head that is judged, and nothing that only the others need."""
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
    layer_types: Mapping[str, torch.dtype] = MappingProxyType({}),
    replace: Callable[[nn.Module], nn.Module] = lambda layer: layer,
) -> Built:
    """The modules of `network`; their arrays hold nothing until `load`.

    `overwrite` lets a layer write over its input where nobody needs it any more. Four-dimensional
    arrays lie in `memory_format`. `layer_types` names nodes whose products are computed in a type
    of their own, under an autocast to another. `replace` gives the module to use for one that was
    lowered. Unsupported for a layer that is not.
    """
    check_layers(network, LOWERINGS, "pytorch")

    def empty(shape: tuple[int, ...]) -> Tensor:
        layout = memory_format if len(shape) == 4 else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)

    parameters = {n: nn.Parameter(empty(p.shape)) for n, p in network.parameters.items()}
    state = {n: empty(s.shape) for n, s in network.state.items()}
    overwriting = may_overwrite(network) if overwrite else frozenset[str]()
    if layer_types:  # the terms of a sum may be of two types, and neither need be its own
        overwriting -= {n.name for n in network.nodes if isinstance(n.layer, Add)}
    layers = _layers(network, {**parameters, **state}, overwriting, replace)
    judged = tuple(h for h in network.heads if not h.train_only)[-1:]
    return Built(
        network=network,
        layers=layers,
        layer_types=layer_types,
        training=NetworkModule(network, network.heads, layers, layer_types),
        evaluation=NetworkModule(network, judged, layers, layer_types),
        parameters=parameters,
        state=state,
    )


def _layers(
    network: Network,
    arrays: Mapping[str, Tensor],
    overwriting: frozenset[str],
    replace: Callable[[nn.Module], nn.Module],
) -> dict[str, nn.Module]:
    """Node name → module that holds the network's own arrays."""
    shapes = {i.name: i.shape for i in network.inputs} | {n.name: n.shape for n in network.nodes}
    layers = {}
    for node in network.nodes:
        module = replace(lower(node, shapes[node.inputs[0]], node.name in overwriting))
        attributes = LSTM_ATTRIBUTES if isinstance(module, nn.LSTM) else ATTRIBUTES
        for role, name in {**node.parameters, **node.state}.items():
            setattr(module, attributes.get(role, role), arrays[name])
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # one piece of memory, as cuDNN wants it
        layers[node.name] = module
    return layers


def _hang(root: nn.Module, name: str, layer: nn.Module) -> None:
    """Make `layer` the submodule called `name`, in containers for the parts before its dots."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, layer)


def write_forward(
    names: Mapping[str, str],
    inputs: Sequence[str],
    nodes: Sequence[Node],
    results: Sequence[str],
    layer_types: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> str:
    """A function `forward` from the values `inputs` to the tuple of the values `results`, in
    Python; it calls a node's layer as `run_` and the node's identifier, which `names` has. A node
    of `layer_types` is computed in that type, whatever the autocast around it says."""
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
    """`line`, which reads the value `read`, under an autocast of its own. A narrow type converts
    input and weights; float32 is no autocast at all, so its input is converted here."""
    if dtype == torch.float32:
        around = f"torch.autocast({read}.device.type, enabled=False)"
        line = line.replace(f"({read})", f"({read}.float())")
    else:
        around = f"torch.autocast({read}.device.type, {dtype})"
    return f"    with {around}:\n    {line}"


def define(code: str, title: str, scope: Mapping[str, Any]) -> dict[str, Any]:
    """What `code` defines, by name, where it finds the names of `scope`; a traceback through it
    shows its lines."""
    filename = f"<forward of {title}>"
    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
    defined = dict(scope)
    exec(compile(code, filename, "exec"), defined)
    return defined


def identifiers(network: Network) -> dict[str, str]:
    """Name of each input and node → a Python identifier that reads like it, no two alike."""
    found: dict[str, str] = {}
    for value in (*(i.name for i in network.inputs), *(n.name for n in network.nodes)):
        name = re.sub(r"\W", "_", value)
        if not name.isidentifier() or name in _RESERVED or name.startswith("run_"):
            name = f"_{name}"
        while name in found.values():
            name += "_"
        found[value] = name
    return found
