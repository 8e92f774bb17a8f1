"""Activation memory: the tensors that the forward pass saves for the backward pass, each once.

The table `SAVED_TENSOR_RULES` says for each layer type what an eager framework saves (PyTorch's
autograd; its derivatives.yaml): a convolution its input, a ReLU its output, batch normalization its
input and the batch's statistics. The output of a ReLU is mostly the input of the next convolution:
two nodes save it, memory holds it once. `GradientFlow` knows which values share memory and which
need a gradient; `saved_tensors` assigns every array to the first node that saves it, so that the
bytes of all nodes add up to the memory used.

An input sample is in memory anyway, so saving it costs nothing, unless the program computes in less
than 4 bytes: then its low-precision copy is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cubemesh.networks.graph import Head, Network, Node
from cubemesh.networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Concat,
    Convolution,
    Dropout,
    Flatten,
    GlobalAveragePool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    ReLU,
)
from cubemesh.networks.recurrent_layers import LSTM, Mix, PairProduct, PairSum, Tanh
from cubemesh.networks.sequence_layers import (
    GELU,
    Attention,
    ClassToken,
    Embedding,
    LayerNorm,
    PositionEmbedding,
    SelectPosition,
    Tokens,
)
from cubemesh.schema.spec import Precision

ELEMENT_BYTES: dict[Precision, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Width of the values that flow between layers."""
FED_BYTES = 4
"""Width of the images a network is fed, at least."""
LABEL_BYTES = 8
INDEX_BYTES = 8
MASK_BYTES = 1


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """One array saved by the forward pass."""

    name: str
    """The value it is, or the node it belongs to and its role: `pool1:indices`."""
    elements: int
    """Per sample, or altogether where not `per_sample`."""
    item: Literal["value", "wide", "index", "mask"] = "value"
    """`wide` has at least 4 bytes, in mixed precision as well."""
    per_sample: bool = True
    fed: bool = False
    """An input of the network."""

    def size_bytes(self, batch: int, element_bytes: int) -> int:
        """Bytes it adds to memory, at `element_bytes` a value."""
        if self.fed and element_bytes >= FED_BYTES:
            return 0
        width = {
            "value": element_bytes,
            "wide": max(element_bytes, 4),
            "index": INDEX_BYTES,
            "mask": MASK_BYTES,
        }[self.item]
        return self.elements * width * (batch if self.per_sample else 1)


@dataclass(frozen=True, kw_only=True)
class SavedTensorRule:
    """What a layer type saves: its input, its output, and arrays of its own by role."""

    input: bool = False
    last_input: bool = False
    """Only the last of several inputs."""
    output: bool = False
    own: Callable[[Any, Node], dict[str, SavedTensor]] | None = None
    """(layer, node) → role and array."""


def _statistics(layer: BatchNorm, node: Node) -> dict[str, SavedTensor]:
    """Mean and inverse deviation of each channel over the batch."""
    channels = node.shape[0]
    return {"statistics": _own(node, "statistics", 2 * channels, "wide", per_sample=False)}


def _lrn_parts(layer: LocalResponseNorm, node: Node) -> dict[str, SavedTensor]:
    """The squares that are averaged, the sum raised to a power, and that power.

    Across channels the squares are padded by size − 1 channels of zeros.
    """
    channels, *area = node.shape
    padding = layer.size - 1 if layer.region == "across" else 0
    squares = (channels + padding) * math.prod(area)
    return {
        "squares": _own(node, "squares", squares),
        "base": _own(node, "base", math.prod(node.shape)),
        "power": _own(node, "power", math.prod(node.shape)),
    }


def _mask(layer: Dropout, node: Node) -> dict[str, SavedTensor]:
    return {"mask": _own(node, "mask", math.prod(node.shape), "mask")}


def _indices(layer: MaxPool, node: Node) -> dict[str, SavedTensor]:
    """The position of the maximum of each window."""
    return {"indices": _own(node, "indices", math.prod(node.shape), "index")}


def _moments(layer: LayerNorm, node: Node) -> dict[str, SavedTensor]:
    """Mean and inverse deviation of each position."""
    positions = math.prod(node.shape[:-1])
    return {"statistics": _own(node, "statistics", 2 * positions, "wide")}


def _log_sums(layer: Attention, node: Node) -> dict[str, SavedTensor]:
    """The logarithm of each row's sum of exponentials, in each head; a fused kernel saves no
    scores."""
    return {"log_sums": _own(node, "log_sums", layer.heads * node.shape[0], "wide")}


def _gates(layer: LSTM, node: Node) -> dict[str, SavedTensor]:
    """Four gates and the cell, at every position."""
    return {"gates": _own(node, "gates", 5 * math.prod(node.shape))}


def _shares(layer: Mix, node: Node) -> dict[str, SavedTensor]:
    """The softmax of the scores."""
    return {"shares": _own(node, "shares", node.shape[0] * layer.keys)}


def _own(
    node: Node,
    role: str,
    elements: int,
    item: Literal["value", "wide", "index", "mask"] = "value",
    per_sample: bool = True,
) -> SavedTensor:
    return SavedTensor(
        name=f"{node.name}:{role}", elements=elements, item=item, per_sample=per_sample
    )


SAVED_TENSOR_RULES: dict[type[Layer], SavedTensorRule] = {
    Convolution: SavedTensorRule(input=True),
    Linear: SavedTensorRule(input=True),
    BatchNorm: SavedTensorRule(input=True, own=_statistics),
    LocalResponseNorm: SavedTensorRule(input=True, own=_lrn_parts),
    ReLU: SavedTensorRule(output=True),
    Add: SavedTensorRule(),
    Concat: SavedTensorRule(),
    Dropout: SavedTensorRule(own=_mask),
    Flatten: SavedTensorRule(),
    MaxPool: SavedTensorRule(input=True, own=_indices),
    AveragePool: SavedTensorRule(input=True),  # for its shape alone, but autograd holds the array
    GlobalAveragePool: SavedTensorRule(),
    LayerNorm: SavedTensorRule(input=True, own=_moments),
    GELU: SavedTensorRule(input=True),
    Attention: SavedTensorRule(input=True, output=True, own=_log_sums),
    Tokens: SavedTensorRule(),
    ClassToken: SavedTensorRule(),
    Embedding: SavedTensorRule(),  # its tokens lie in memory as the batch
    PositionEmbedding: SavedTensorRule(),
    SelectPosition: SavedTensorRule(),
    Tanh: SavedTensorRule(output=True),
    LSTM: SavedTensorRule(input=True, output=True, own=_gates),
    PairSum: SavedTensorRule(),
    PairProduct: SavedTensorRule(input=True),
    Mix: SavedTensorRule(last_input=True, own=_shares),
}


class GradientFlow:
    """Which values of a network need a gradient, and which are one array in memory."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.fed = frozenset(i.name for i in network.inputs)
        self.needs_gradient = self._needs_gradient()
        self.storage = self._storage()
        """Value → the value whose memory it uses; only a view uses another's."""
        self.accumulated = self._accumulated()
        """Node → values per sample that its data gradient adds to a gradient already there."""

    def kept(self, node: Node) -> list[SavedTensor]:
        """Everything `node` saves, whether or not other nodes save it too."""
        if node.name not in self.needs_gradient:
            return []
        rule = SAVED_TENSOR_RULES[type(node.layer)]
        values = [*(node.inputs if rule.input else ()), *((node.name,) if rule.output else ())]
        values += node.inputs[-1:] if rule.last_input else ()
        own = rule.own(node.layer, node) if rule.own else {}
        return [*map(self._value, values), *own.values()]

    def _value(self, name: str) -> SavedTensor:
        name = self.storage[name]
        elements = math.prod(self.network.shapes[name])
        return SavedTensor(name=name, elements=elements, fed=name in self.fed)

    def _needs_gradient(self) -> frozenset[str]:
        found: set[str] = set()
        for node in self.network.nodes:
            if node.parameters or not found.isdisjoint(node.inputs):
                found.add(node.name)
        return frozenset(found)

    def _storage(self) -> Mapping[str, str]:
        found = {i.name: i.name for i in self.network.inputs}
        for node in self.network.nodes:
            is_view = node.layer.category == "view"
            found[node.name] = found[node.inputs[0]] if is_view else node.name
        return found

    def _accumulated(self) -> Mapping[str, int]:
        """A value read by several nodes gets a gradient from each; the first, from the node that
        runs last, is used as it is, the others are added to it."""
        arrived = {h.value for h in self.network.heads}
        found = {}
        for node in reversed(self.network.nodes):
            added = 0
            for value in node.inputs:
                if value in self.needs_gradient:
                    added += math.prod(self.network.shapes[value]) if value in arrived else 0
                    arrived.add(value)
            found[node.name] = added
        return found


def log_probabilities(network: Network, head: Head) -> SavedTensor:
    """What the loss of `head` saves: the logarithm of each class's probability."""
    return SavedTensor(
        name=f"{head.value}:log_probabilities",
        elements=math.prod(network.shapes[head.value]),
        item="wide",
    )


def saved_tensors(
    network: Network, flow: GradientFlow | None = None
) -> dict[str, tuple[SavedTensor, ...]]:
    """For each node, in order, the arrays it is the first to save; the losses save more, see
    `log_probabilities`."""
    flow = flow or GradientFlow(network)
    seen: set[str] = set()
    found = {}
    for node in network.nodes:
        new = {k.name: k for k in flow.kept(node) if k.name not in seen}
        seen |= new.keys()
        found[node.name] = tuple(new.values())
    return found
