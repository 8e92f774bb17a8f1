"""Which networks context parallelism divides by positions, and where their keys are gathered.

Each device has a part of the positions of every sequence, and all parameters. Most layers of a
transformer compute each position alone; an attention reads the keys and values of all positions,
which are gathered before it (Llama 3's way: Grattafiori et al., arXiv:2407.21783, section 3.3.2):

    layer norm ─ q, k, v ─ gather k, v ─▶ attention of the own queries ─ projection ─ add

A causal attention reads earlier positions only, so a device with the last positions would have most
to do. Each has two parts of 2 n instead: device 0 the first and the last, device 1 the second and
the last but one.
"""

from __future__ import annotations

from dataclasses import replace

from cubemesh.frameworks.contract.divided_network import DividedSequence, GatheredKeys
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import (
    GELU,
    Activation,
    Add,
    Attention,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Multiply,
    PositionEmbedding,
    ReLU,
    RMSNorm,
    RotaryEmbedding,
    Scale,
    Sigmoid,
    Tanh,
)

_BY_POSITION = (
    *(Activation, Add, Dropout, Embedding, GELU, LayerNorm, Linear, Multiply),
    *(PositionEmbedding, ReLU, RMSNorm, RotaryEmbedding, Scale, Sigmoid, Tanh),
)
"""Layers that compute each position of a sequence from that position alone."""


def divide_sequence(network: Network, devices: int) -> DividedSequence:
    """`network` with its sequences over so many devices. Unsupported, with the layer and the
    remedy, where it has no attention, another layer reads several positions, or the positions do
    not divide."""
    attentions = [(n, n.layer) for n in network.nodes if isinstance(n.layer, Attention)]
    if not attentions:
        raise Unsupported(
            f"sync=context-parallel: {network.name} has no attention, so it has no long sequences "
            "to divide. Set sync=all-reduce."
        )
    packed = [node for node, layer in attentions if layer.documents]
    if packed:
        raise Unsupported(
            f"sync=context-parallel: with packing=documents {packed[0].name} of {network.name} "
            "reads a mask of all positions, which is not divided. Leave packing out, or set "
            "sync=all-reduce."
        )
    length = attentions[0][0].shape[0]
    _check_layers(network, length)
    causal = any(layer.causal for _, layer in attentions)
    parts = 2 * devices if causal else devices
    if length % parts:
        below = length // parts * parts
        near = [str(n) for n in (below, below + parts) if n]
        why = ", two of each device," if causal else ""
        raise Unsupported(
            f"sync=context-parallel: the {length} positions of a sequence of {network.name} do not "
            f"divide into {parts} parts{why} for context_parallel_size={devices}. Set "
            f"sequence_length to {' or '.join(near)}, or another context_parallel_size."
        )
    return DividedSequence(
        network=_with_gathers(network), devices=devices, length=length, causal=causal
    )


def _check_layers(network: Network, length: int) -> None:
    """Unsupported where a layer but the attentions reads several positions."""
    for given in network.inputs:
        if given.shape != (length,):
            _refuse(network, f"its input {given.name} is not a sequence of {length} tokens")
    for node in network.nodes:
        layer = node.layer
        if not isinstance(layer, (*_BY_POSITION, Attention)):
            _refuse(
                network, f"{node.name} ({type(layer).__name__}) reads several positions at once"
            )
        if len(node.shape) != 2 or node.shape[0] != length:
            _refuse(network, f"{node.name} does not have the {length} positions of the attention")
        if isinstance(layer, Dropout) and layer.per_sample:
            _refuse(network, f"{node.name} drops whole samples, and devices would drop others")
    for head in network.heads:
        if head.loss != "cross_entropy":
            _refuse(network, f"its loss of {head.value} is a mean over all positions")


def _refuse(network: Network, why: str) -> None:
    raise Unsupported(f"sync=context-parallel: {network.name}: {why}. Set sync=all-reduce.")


def _with_gathers(network: Network) -> Network:
    """The network with the keys and values of each attention gathered."""
    nodes: list[Node] = []
    gathers: dict[str, str] = {}
    taken = set(network.shapes)
    for node in network.nodes:
        if isinstance(node.layer, Attention):
            own, *others = node.inputs
            name = f"{node.name}.gather"
            while name in taken:
                name += "_"
            taken.add(name)
            width = network.shapes[others[0]][-1] if others else node.shape[-1]
            nodes.append(
                Node(
                    name=name,
                    layer=GatheredKeys(packed=not others),
                    inputs=tuple(others) or (own,),
                    shape=(node.shape[0], 2 * width),
                    segment=node.segment,
                )
            )
            gathers[node.name] = name
            node = replace(node, inputs=(own, name))
        nodes.append(node)
    segments = tuple(
        replace(
            segment,
            nodes=tuple(
                name
                for node in segment.nodes
                for name in ((gathers[node], node) if node in gathers else (node,))
            ),
        )
        for segment in network.segments
    )
    return replace(network, nodes=tuple(nodes), segments=segments)
