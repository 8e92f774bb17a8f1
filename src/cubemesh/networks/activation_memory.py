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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cubemesh.networks import layers
from cubemesh.networks.graph import Head, Network, Node
from cubemesh.networks.layers import Layer, Shape
from cubemesh.networks.opaque import Opaque
from cubemesh.schema.spec import Precision

ELEMENT_BYTES: dict[Precision, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Width of the values that flow between layers."""
INPUT_BYTES = 4
"""Least width of a network's inputs."""
LABEL_BYTES = 8
INDEX_BYTES = 8
MASK_BYTES = 1
Item = Literal["value", "fp32", "index", "mask"]


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """One array saved by the forward pass."""

    name: str
    """The value it is, or the node it belongs to and its role: `pool1:indices`."""
    elements: int
    """Per sample, or altogether where not `per_sample`."""
    item: Item = "value"
    """`fp32` has at least 4 bytes, in mixed precision as well."""
    per_sample: bool = True
    is_input: bool = False
    """Whether it is an input of the network."""

    def size_bytes(self, batch: int, element_bytes: int) -> int:
        """Bytes it adds to memory, at `element_bytes` a value."""
        if self.is_input and element_bytes >= INPUT_BYTES:
            return 0
        width = {
            "value": element_bytes,
            "fp32": max(element_bytes, 4),
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
    own: Callable[[Any, Node], list[SavedTensor]] | None = None
    """(layer, node) → arrays."""
    by_inputs: Callable[[Any, Node, Sequence[Shape]], list[SavedTensor]] | None = None
    """The same from the shapes of the inputs as well."""


def _statistics(layer: layers.BatchNorm, node: Node) -> list[SavedTensor]:
    """Mean and inverse deviation of each channel over the batch."""
    return [_own(node, "statistics", 2 * node.shape[0], "fp32", per_sample=False)]


def _lrn_parts(layer: layers.LocalResponseNorm, node: Node) -> list[SavedTensor]:
    """The squares that are averaged, the sum raised to a power, and that power.

    Across channels the squares are padded by size − 1 channels of zeros.
    """
    channels, *area = node.shape
    padding = layer.size - 1 if layer.region == "across" else 0
    values = math.prod(node.shape)
    squares = _own(node, "squares", (channels + padding) * math.prod(area))
    return [squares, _own(node, "base", values), _own(node, "power", values)]


def _mask(layer: layers.Dropout, node: Node) -> list[SavedTensor]:
    if layer.per_sample:
        return [_own(node, "mask", 1)]
    return [_own(node, "mask", math.prod(node.shape), "mask")]


def _indices(layer: layers.MaxPool, node: Node) -> list[SavedTensor]:
    """The position of the maximum of each window."""
    return [_own(node, "indices", math.prod(node.shape), "index")]


def _moments(layer: layers.LayerNorm, node: Node) -> list[SavedTensor]:
    """Mean and inverse deviation of each position."""
    return [_own(node, "statistics", 2 * math.prod(node.shape[:-1]), "fp32")]


def _sigmoids(layer: layers.Activation, node: Node) -> list[SavedTensor]:
    """Of x · σ(1.702 x), which is no operator of its own."""
    if layer.function != "quick-gelu":
        return []
    return [_own(node, "sigmoid", math.prod(node.shape))]


def _scales(layer: layers.RMSNorm, node: Node) -> list[SavedTensor]:
    """The inverse root of the mean square of each position."""
    return [_own(node, "scales", math.prod(node.shape[:-1]), "fp32")]


def _log_sums(layer: layers.Attention, node: Node) -> list[SavedTensor]:
    """The logarithm of each row's sum of exponentials, in each head; a fused kernel saves no
    scores, but a mask of documents as values that it adds to them."""
    sums = _own(node, "log_sums", layer.heads * node.shape[0], "fp32")
    return [sums, _own(node, "mask", node.shape[0] ** 2)] if layer.documents else [sums]


def _turns(layer: layers.RotaryEmbedding, node: Node) -> list[SavedTensor]:
    """Of documents, a row of the tables for each position; else they are the network's."""
    values = node.shape[0] * node.shape[1] // layer.heads
    return [_own(node, "tables", values)] if layer.documents else []


RECURRENT_VALUES: dict[type[layers.Recurrence], int] = {
    layers.LSTM: 5,
    layers.GRU: 4,
    layers.RNN: 0,
}
"""Values saved for each h: four gates and the cell; three gates and R h + c; none."""


def _recurrent(layer: layers.Recurrence, node: Node) -> list[SavedTensor]:
    """The h of every position, which are the output unless two directions are added, and what they
    were computed from."""
    values = node.shape[0] * layer.hidden * layer.ways
    is_output = layer.directions != "sum"
    h = SavedTensor(name=node.name if is_output else f"{node.name}:h", elements=values)
    gates = RECURRENT_VALUES[type(layer)] * values
    return [h, _own(node, "gates", gates)] if gates else [h]


def decoder_values(layer: layers.InputFeedingDecoder, inputs: Sequence[Shape]) -> int:
    """Values saved at each position apart from the LSTMs': the word with what is fed back, the
    query, the shares, and the mean with the last h."""
    (_, features), _, (positions, hidden) = inputs
    return features + hidden + hidden + positions + 2 * hidden


def _decoder(
    layer: layers.InputFeedingDecoder, node: Node, inputs: Sequence[Shape]
) -> list[SavedTensor]:
    """Each LSTM's h, gates and cell, and what its attention and readout read; the words are saved
    in a copy, side by side with what is fed back."""
    length = node.shape[0]
    each = length * layer.depth * layer.hidden
    return [
        _own(node, "h", each),
        _own(node, "gates", RECURRENT_VALUES[layers.LSTM] * each),
        _own(node, "attention", length * decoder_values(layer, inputs)),
    ]


def _weights(layer: layers.Mix, node: Node) -> list[SavedTensor]:
    """The softmax of the scores."""
    return [_own(node, "weights", node.shape[0] * layer.keys)]


def _expert_values(layer: layers.Experts, node: Node, inputs: Sequence[Shape]) -> list[SavedTensor]:
    """For each chosen expert of a position: its input, the two hidden products, silu of one, their
    product and the result; its share, and two numbers of its place."""
    rows = node.shape[0] * layer.active
    return [
        _own(node, "rows", 2 * rows * node.shape[1]),
        _own(node, "hidden", 4 * rows * layer.ffn),
        _own(node, "shares", 2 * rows, "fp32"),
        _own(node, "places", 3 * rows, "index"),
    ]


def _bag_indices(layer: layers.EmbeddingBags, node: Node) -> list[SavedTensor]:
    """Of bags of several indices, those of each feature in an array of its own, with begin and size
    of each bag; single indices are in memory as the batch."""
    if layer.indices == 1:
        return []
    return [_own(node, "indices", len(layer.rows) * (layer.indices + 2), "index")]


def _vectors(
    layer: layers.DotInteraction, node: Node, inputs: Sequence[Shape]
) -> list[SavedTensor]:
    """All vectors side by side, which are both operands of the product; and which of the products
    are used."""
    pairs = node.shape[0] - inputs[0][0]
    return [
        _own(node, "vectors", sum(map(math.prod, inputs))),
        _own(node, "places", pairs, "index", per_sample=False),
    ]


def _probabilities(
    layer: layers.LoadBalance, node: Node, inputs: Sequence[Shape]
) -> list[SavedTensor]:
    """Of every expert."""
    return [_own(node, "probabilities", sum(map(math.prod, inputs)), "fp32")]


def _own(
    node: Node, role: str, elements: int, item: Item = "value", per_sample: bool = True
) -> SavedTensor:
    return SavedTensor(
        name=f"{node.name}:{role}", elements=elements, item=item, per_sample=per_sample
    )


SAVED_TENSOR_RULES: dict[type[Layer], SavedTensorRule] = {
    layers.Convolution: SavedTensorRule(input=True),
    layers.Linear: SavedTensorRule(input=True),
    layers.BatchNorm: SavedTensorRule(input=True, own=_statistics),
    layers.LocalResponseNorm: SavedTensorRule(input=True, own=_lrn_parts),
    layers.ReLU: SavedTensorRule(output=True),
    layers.Add: SavedTensorRule(),
    layers.Concat: SavedTensorRule(),
    layers.Dropout: SavedTensorRule(own=_mask),
    layers.Flatten: SavedTensorRule(),
    layers.MaxPool: SavedTensorRule(input=True, own=_indices),
    layers.AveragePool: SavedTensorRule(
        input=True
    ),  # only for its shape, but autograd saves the array
    layers.GlobalAveragePool: SavedTensorRule(),
    layers.LayerNorm: SavedTensorRule(input=True, own=_moments),
    layers.GELU: SavedTensorRule(input=True),
    layers.Attention: SavedTensorRule(input=True, output=True, own=_log_sums),
    layers.Tokens: SavedTensorRule(),
    layers.ClassToken: SavedTensorRule(),
    layers.Embedding: SavedTensorRule(),  # its tokens are in memory as the batch
    layers.PositionEmbedding: SavedTensorRule(),
    layers.SelectPosition: SavedTensorRule(),
    layers.Tanh: SavedTensorRule(output=True),
    layers.LSTM: SavedTensorRule(input=True, own=_recurrent),
    layers.GRU: SavedTensorRule(input=True, own=_recurrent),
    layers.RNN: SavedTensorRule(input=True, own=_recurrent),
    layers.InputFeedingDecoder: SavedTensorRule(last_input=True, output=True, by_inputs=_decoder),
    layers.Columns: SavedTensorRule(),
    layers.PairSum: SavedTensorRule(),
    layers.PairProduct: SavedTensorRule(input=True),
    layers.Mix: SavedTensorRule(last_input=True, own=_weights),
    layers.RMSNorm: SavedTensorRule(input=True, own=_scales),
    layers.RotaryEmbedding: SavedTensorRule(own=_turns),
    layers.DocumentMask: SavedTensorRule(),
    layers.ToImage: SavedTensorRule(),
    layers.Transpose: SavedTensorRule(),
    layers.SelectChannels: SavedTensorRule(),
    layers.PixelShuffle: SavedTensorRule(),
    layers.Sigmoid: SavedTensorRule(output=True),
    layers.Activation: SavedTensorRule(input=True, own=_sigmoids),
    layers.Multiply: SavedTensorRule(input=True),
    layers.Scale: SavedTensorRule(input=True),
    layers.Experts: SavedTensorRule(by_inputs=_expert_values),
    layers.LoadBalance: SavedTensorRule(by_inputs=_probabilities),
    layers.EmbeddingBags: SavedTensorRule(own=_bag_indices),
    layers.DotInteraction: SavedTensorRule(by_inputs=_vectors),
    layers.BinaryScores: SavedTensorRule(),
}


class GradientFlow:
    """Which values of a network need a gradient, and which are one array in memory."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.needs_gradient = self._needs_gradient()
        self.storage = self._storage()
        """Value → the value whose memory it uses; only a view uses another's."""
        self.accumulated = self._accumulated()
        """Node → values per sample that its data gradient adds to a gradient already there."""

    def saved(self, node: Node) -> list[SavedTensor]:
        """Everything `node` saves, whether or not other nodes save it too."""
        if node.name not in self.needs_gradient:
            return []
        if isinstance(node.layer, Opaque):
            return [_own(node, "saved", node.layer.saved_values)]
        rule = SAVED_TENSOR_RULES[type(node.layer)]
        values = [*(node.inputs if rule.input else ()), *((node.name,) if rule.output else ())]
        values += node.inputs[-1:] if rule.last_input else ()
        own = rule.own(node.layer, node) if rule.own else []
        if rule.by_inputs:
            own += rule.by_inputs(node.layer, node, [self.network.shapes[i] for i in node.inputs])
        return [*map(self._value, values), *own]

    def _value(self, name: str) -> SavedTensor:
        name = self.storage[name]
        elements = math.prod(self.network.shapes[name])
        is_input = any(name == i.name for i in self.network.inputs)
        return SavedTensor(name=name, elements=elements, is_input=is_input)

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
    """What the loss of `head` saves: the logarithm of each class's probability, or of a detection
    the difference of each value and its label; of a mean nothing."""
    classes = head.loss != "mean"
    return SavedTensor(
        name=f"{head.value}:log_probabilities",
        elements=math.prod(network.shapes[head.value]) if classes else 0,
        item="fp32",
    )


def saved_tensors(flow: GradientFlow) -> dict[str, tuple[SavedTensor, ...]]:
    """For each node, in order, the arrays it is the first to save; the losses save more, see
    `log_probabilities`."""
    seen: set[str] = set()
    found = {}
    for node in flow.network.nodes:
        new = {array.name: array for array in flow.saved(node) if array.name not in seen}
        seen |= new.keys()
        found[node.name] = tuple(new.values())
    return found
