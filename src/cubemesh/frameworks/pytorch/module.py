"""How does a graph become a PyTorch module that reads and runs as if written by hand?

`torch.fx` writes the forward pass: one line of Python a node, each value given up after its last
reader, so that nothing is looked up in tables while it runs and no array lives longer than in
handwritten code. The modules keep the network's names (`layer1.0.conv1` nests as it reads), so
`print`, `state_dict` and a profiler's module hierarchy show them. `print(module)` ends with the
generated code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, fx, nn

from cubemesh.frameworks.base import Array, Unsupported, check_weights
from cubemesh.frameworks.pytorch.lowerings import ATTRIBUTES, lower, may_overwrite
from cubemesh.networks.graph import Head, Network


@dataclass(frozen=True, kw_only=True)
class Built:
    """A network as PyTorch modules; both run the same layers with the same arrays."""

    network: Network
    training: fx.GraphModule
    """images → one value for each head."""
    evaluation: fx.GraphModule
    """images → the scores, computing nothing that only training needs."""
    parameters: dict[str, nn.Parameter]
    """By the graph's names, shared ones once."""
    state: dict[str, Tensor]

    def load(self, weights: Mapping[str, Array]) -> None:
        """Copy `weights` (the graph's names and layout) into the arrays; UsageError if they are not
        this network's."""
        check_weights(weights, self.network)
        with torch.no_grad():
            for name, array in {**self.parameters, **self.state}.items():
                array.copy_(torch.tensor(weights[name]))

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
) -> Built:
    """The modules of `network`; their arrays hold nothing until `load`.

    Four-dimensional arrays lie in `memory_format`. Unsupported when the network is not one of
    images and labels.
    """
    if len(network.inputs) != 1 or len(network.targets) != 1:
        raise Unsupported(
            f"pytorch feeds a network images and labels; {network.name} takes "
            f"{', '.join(i.name for i in (*network.inputs, *network.targets))}."
        )

    def empty(shape: tuple[int, ...]) -> Tensor:
        layout = memory_format if len(shape) == 4 else torch.contiguous_format
        return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)

    parameters = {n: nn.Parameter(empty(p.shape)) for n, p in network.parameters.items()}
    state = {n: empty(s.shape) for n, s in network.state.items()}
    layers = _layers(network, {**parameters, **state})
    title = "".join(word.capitalize() for word in network.name.split("-"))
    judged = tuple(h for h in network.heads if not h.train_only)
    return Built(
        network=network,
        training=fx.GraphModule(layers, _trace(network, network.heads), title),
        evaluation=fx.GraphModule(layers, _trace(network, judged[-1:]), title),
        parameters=parameters,
        state=state,
    )


def _layers(network: Network, arrays: Mapping[str, Tensor]) -> dict[str, nn.Module]:
    """Node name → module that holds the network's own arrays."""
    shapes = {i.name: i.shape for i in network.inputs} | {n.name: n.shape for n in network.nodes}
    overwriting = may_overwrite(network)
    layers = {}
    for node in network.nodes:
        module = lower(node, shapes[node.inputs[0]], node.name in overwriting)
        for role, name in {**node.parameters, **node.state}.items():
            setattr(module, ATTRIBUTES.get(role, role), arrays[name])
        layers[node.name] = module
    return layers


def _trace(network: Network, heads: tuple[Head, ...]) -> fx.Graph:
    """The nodes that `heads` need, as a graph from images to a tuple of the heads' values."""
    graph = fx.Graph()
    values = {i.name: graph.placeholder(i.name) for i in network.inputs}
    for node in network.nodes:
        values[node.name] = graph.call_module(node.name, tuple(values[i] for i in node.inputs))
    graph.output(tuple(values[h.value] for h in heads))
    # What no head needs goes; fx's own elimination keeps modules, which might have side effects.
    for line in reversed(list(graph.nodes)):
        if line.op == "call_module" and not line.users:
            graph.erase_node(line)
    return graph
