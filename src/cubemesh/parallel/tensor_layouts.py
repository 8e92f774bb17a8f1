"""Which layers of a network tensor parallelism divides, and which part of a value a device has.

Pairs of linear layers are divided (Shoeybi et al., Megatron-LM, arXiv:1909.08053): the first by
columns, so that each device has some features of its result, the second by rows, so that each has
a part of a sum over all features. What is between them, an activation or an attention over the
device's own heads, is computed on those features alone:

    layer norm ─ gather ─▶ q, k, v  ─▶ attention ─▶ projection ─ reduce ─▶ add
                           columns     own heads    rows
    layer norm ─ gather ─▶ fc1 ─▶ GELU ─▶ fc2 ─ reduce ─▶ add          both pairs of a block

The embedding and the output matrix are divided by the vocabulary; the loss reads the device's own
scores. Outside the pairs the values of a block are divided by positions (sequence parallel,
Korthikanti et al., arXiv:2205.05198), where the sequence length allows: `gather` and `reduce` are
an all-gather and a reduce-scatter. Otherwise every device computes all positions, and both are an
all-reduce, of the gradients and of the values.

The pairs are found in the graph: from a linear layer back to other linear layers through layers
that treat each feature, or each head, alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cubemesh.frameworks.contract.divided_network import (
    DividedNetwork,
    Redistribution,
    Style,
    ValueLayout,
)
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
    Shape,
    Sigmoid,
    Tanh,
)

BY_VALUE = (ReLU, GELU, Tanh, Sigmoid, Activation, Dropout)
_BY_FEATURE = (*BY_VALUE, Multiply, Attention, RotaryEmbedding)
"""Layers that may be between the two of a pair."""
_BY_POSITION = (LayerNorm, RMSNorm, PositionEmbedding, Scale)
"""Layers with parameters that treat each position alone."""


def divide(network: Network, devices: int, sequence: bool | None = None) -> DividedNetwork:
    """`network` over so many devices; `sequence`: whether positions are divided outside of the
    pairs, None where they can be. Unsupported, with the layer and the numbers that are possible,
    where a layer cannot be divided."""
    pairs = _pairs(network)
    if not pairs:
        raise Unsupported(
            f"sync=tensor-parallel: {network.name} has no pair of linear layers with only "
            "activations or an attention between them, so there is nothing to divide. Set "
            "sync=all-reduce."
        )
    styles: dict[str, Style] = {}
    packed: dict[str, int] = {}
    inside: set[str] = set()
    for pair in pairs:
        styles |= dict.fromkeys((node.name for node in pair.columns), "columns")
        styles[pair.rows.name] = "rows"
        inside |= {node.name for node in pair.between}
        packed |= pair.packed()
        pair.check(network, devices)
    styles |= _by_vocabulary(network, devices)
    _check_shared(network, styles)
    lengths = _lengths(network, styles)
    undivided = [name for name, length in lengths.items() if length % devices]
    if sequence and undivided:
        name = undivided[0]
        raise Unsupported(
            f"sequence_parallel=true: the {lengths[name]} positions of {name} in {network.name} do "
            f"not divide over tensor_parallel_size={devices}. Set it to one of "
            f"{divisors(lengths[name])}, or sequence_parallel=false."
        )
    in_positions = bool(lengths) and not undivided if sequence is None else sequence
    return Divider(network, devices, styles, inside, packed, in_positions).divided()


@dataclass(frozen=True, kw_only=True)
class _Pair:
    columns: tuple[Node, ...]
    between: tuple[Node, ...]
    rows: Node

    def packed(self) -> dict[str, int]:
        """See `DividedNetwork.packed`."""
        found: dict[str, int] = {}
        for node in self.between:
            if isinstance(node.layer, Attention) and len(node.inputs) == 1:
                (source,) = self.columns
                found |= dict.fromkeys(source.parameters.values(), 3)
        return found

    def check(self, network: Network, devices: int) -> None:
        """Unsupported where heads or features do not divide."""
        for node in self.between:
            layer = node.layer
            if not isinstance(layer, Attention):
                continue
            shared = layer.key_value_heads or layer.heads
            if shared % devices:
                what = "heads" if shared == layer.heads else "key-value heads"
                raise Unsupported(
                    f"sync=tensor-parallel: the {shared} {what} of {node.name} in {network.name} "
                    f"do not divide over tensor_parallel_size={devices}. Set it to one of "
                    f"{divisors(shared)}."
                )
        for node in self.columns:
            features = node.shape[-1]
            if features % devices:
                raise Unsupported(
                    f"sync=tensor-parallel: the {features} features of {node.name} in "
                    f"{network.name} do not divide over tensor_parallel_size={devices}. Set it to "
                    f"one of {divisors(features)}."
                )


def _pairs(network: Network) -> list[_Pair]:
    """The pairs of linear layers that can be divided, in execution order."""
    nodes = {node.name: node for node in network.nodes}
    readers: dict[str, set[str]] = {}
    for node in network.nodes:
        for value in node.inputs:
            readers.setdefault(value, set()).add(node.name)
    for head in network.heads:
        readers.setdefault(head.value, set()).add("")
    found: list[_Pair] = []
    taken: set[str] = set()
    for last in network.nodes:
        if not isinstance(last.layer, Linear) or last.name in taken:
            continue
        walked = _back(last, nodes, network.shapes)
        if walked is None:
            continue
        columns, between = walked
        own = {node.name for node in (*columns, *between)}
        only_read_here = all(readers[name] <= own | {last.name} for name in own)
        if own & taken or not only_read_here or not _attends_alone(between, columns):
            continue
        taken |= own | {last.name}
        found.append(_Pair(columns=tuple(columns), between=tuple(between), rows=last))
    return found


def _attends_alone(between: Sequence[Node], columns: Sequence[Node]) -> bool:
    """Whether an attention that reads queries, keys and values from one layer is fed by it
    directly: its parts lie side by side there."""
    return all(
        len(columns) == 1 and node.inputs == (columns[0].name,)
        for node in between
        if isinstance(node.layer, Attention) and len(node.inputs) == 1
    )


def _back(
    last: Node, nodes: Mapping[str, Node], shapes: Mapping[str, Shape]
) -> tuple[list[Node], list[Node]] | None:
    """The linear layers from which `last` is computed, and the layers between; None where other
    layers or inputs of the network are among them."""
    columns: dict[str, Node] = {}
    between: dict[str, Node] = {}
    waiting = list(last.inputs)
    while waiting:
        node = nodes.get(waiting.pop())
        if node is None:
            return None
        if isinstance(node.layer, Linear):
            columns[node.name] = node
        elif isinstance(node.layer, _BY_FEATURE):
            if node.name not in between:
                between[node.name] = node
                waiting += node.inputs
        else:
            return None
        if isinstance(node.layer, Multiply) and len({shapes[v] for v in node.inputs}) > 1:
            return None
    return list(columns.values()), list(between.values())


def _by_vocabulary(network: Network, devices: int) -> dict[str, Style]:
    """Embeddings, and output matrices: linear layers whose result a loss and no layer reads."""
    read = {value for node in network.nodes for value in node.inputs}
    judged = {head.value for head in network.heads} - read
    found: dict[str, Style] = {}
    for node in network.nodes:
        if isinstance(node.layer, Embedding) and fills(node.layer.vocabulary, devices):
            found[node.name] = "vocabulary"
        elif (
            isinstance(node.layer, Linear)
            and node.name in judged
            and fills(node.layer.features, devices)
        ):
            found[node.name] = "columns"
    return found


def fills(rows: int, devices: int) -> bool:
    """Whether each device has some of so many rows."""
    return -(-rows // devices) * (devices - 1) < rows


def _check_shared(network: Network, styles: Mapping[str, Style]) -> None:
    """Unsupported where a parameter is shared by layers that are divided in different ways."""
    seen: dict[str, tuple[str, str]] = {}
    for node in network.nodes:
        style = styles.get(node.name, "")
        kind = "columns" if style == "vocabulary" else style
        for name in node.parameters.values():
            before, other = seen.setdefault(name, (node.name, kind))
            if kind != other:
                raise Unsupported(
                    f"sync=tensor-parallel: {before} and {node.name} of {network.name} share "
                    f"'{name}' and would divide it in different ways. Set sync=all-reduce."
                )


def _lengths(network: Network, styles: Mapping[str, Style]) -> dict[str, int]:
    """Positions of each sequence that would be divided, by node: what the pairs and the layers of
    single positions compute."""
    return {
        node.name: node.shape[0]
        for node in network.nodes
        if len(node.shape) == 2
        and (styles.get(node.name) == "rows" or isinstance(node.layer, (*_BY_POSITION, Embedding)))
    }


def divisors(number: int) -> str:
    """For a message."""
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


class Divider:
    """Writes the divided network, node by node, from the layout that each reads and writes."""

    def __init__(
        self,
        network: Network,
        devices: int,
        styles: dict[str, Style],
        inside: set[str],
        packed: dict[str, int],
        sequence: bool,
    ) -> None:
        self._network, self._devices = network, devices
        self._styles, self._inside, self._packed = styles, inside, packed
        self._sequence = sequence
        self._stream: ValueLayout = "positions" if sequence else "whole"
        self._users = Counter(p for n in network.nodes for p in n.parameters.values())
        self._layouts: dict[str, ValueLayout] = {i.name: "whole" for i in network.inputs}
        self._results: dict[str, str] = {}
        """Value of the network → its name here, where it is redistributed at once."""
        self._made: dict[tuple[str, Redistribution], str] = {}
        self._nodes: list[Node] = []
        self._segments: dict[str, list[str]] = {s.name: [] for s in network.segments}

    def divided(self) -> DividedNetwork:
        """The whole."""
        for node in self._network.nodes:
            self._add(node)
        heads = []
        for head in self._network.heads:
            value = self._results.get(head.value, head.value)
            layout = self._layouts[value]
            if layout == "positions" or (layout == "features" and value not in self._styles):
                value = self._redistributed(value, "whole", self._segment_of(value))
            heads.append(replace(head, value=value))
        network = replace(
            self._network,
            nodes=tuple(self._nodes),
            heads=tuple(heads),
            segments=tuple(
                replace(s, nodes=tuple(self._segments[s.name])) for s in self._network.segments
            ),
        )
        return DividedNetwork(
            network=network,
            devices=self._devices,
            styles=self._styles,
            layouts=self._layouts,
            sequence=self._sequence,
            packed=self._packed,
        )

    def _add(self, node: Node) -> None:
        style = self._styles.get(node.name)
        target = self._reads(node, style)
        if target == "positions" and node.parameters:
            self._styles[node.name] = style = "positions"
        inputs = []
        for value in node.inputs:
            value = self._results.get(value, value)
            if target == "features":
                inputs.append(value)
            elif style == "columns":
                inputs.append(self._redistributed(value, "whole", node.segment, multiplied=True))
            elif self._layouts[value] != target:
                inputs.append(self._redistributed(value, target, node.segment))
            else:
                inputs.append(value)
        self._put(replace(node, inputs=tuple(inputs)))
        self._layouts[node.name] = self._writes(target, style)
        if self._layouts[node.name] == "sum":
            stream = self._stream if len(node.shape) == 2 else "whole"
            self._results[node.name] = self._redistributed(node.name, stream, node.segment)

    def _reads(self, node: Node, style: Style | None) -> ValueLayout:
        """The layout in which the layer reads its inputs."""
        if style == "rows" or node.name in self._inside:
            return "features"
        shared = any(self._users[name] > 1 for name in node.parameters.values())
        if style is not None or shared or len(node.shape) != 2:
            return "whole"  # of all uses of a shared parameter, so that their gradients add up
        if isinstance(node.layer, _BY_POSITION) and len(node.inputs) == 1:
            return self._stream  # DTensor's style passes one input: not the places of documents
        given = {self._layouts[self._results.get(value, value)] for value in node.inputs}
        lengths = {self._network.shapes[value][0] for value in node.inputs}
        alone = isinstance(node.layer, (*BY_VALUE, Add, Multiply, Linear)) and len(lengths) == 1
        return "positions" if alone and "positions" in given else "whole"

    def _writes(self, target: ValueLayout, style: Style | None) -> ValueLayout:
        if style in ("rows", "vocabulary"):
            return "sum"
        return "features" if style == "columns" else target

    def _redistributed(
        self, value: str, target: ValueLayout, segment: str, *, multiplied: bool = False
    ) -> str:
        """The name of `value` in another layout."""
        source = self._layouts[value]
        layer = Redistribution(source=source, target=target, multiplied=multiplied)
        if (value, layer) not in self._made:
            ending = {"sum": "reduce", "whole": "copy"}.get(source, "gather")
            if source == "whole" and target == "positions":
                ending = "split"
            name = f"{value}.{ending}"
            while name in self._layouts:
                name += "_"
            self._made[value, layer] = name
            shape = self._network.shapes.get(value) or self._shape(value)
            self._put(Node(name=name, layer=layer, inputs=(value,), shape=shape, segment=segment))
            self._layouts[name] = target
        return self._made[value, layer]

    def _shape(self, value: str) -> tuple[int, ...]:
        return next(node.shape for node in self._nodes if node.name == value)

    def _segment_of(self, value: str) -> str:
        return next(node.segment for node in self._nodes if node.name == value)

    def _put(self, node: Node) -> None:
        self._nodes.append(node)
        if node.segment in self._segments:
            self._segments[node.segment].append(node.name)
