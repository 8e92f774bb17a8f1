"""Assembly of a network: named nodes, their shapes and parameters, heads and segments.

Each node computes its shape and parameters from its inputs when it is added, and later nodes refer
to it by name. Errors are raised at the line that causes them. `builder.py` has a method for each
common layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count, groupby
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.networks import layers
from cubemesh.networks.graph import (
    BOX_COLUMNS,
    MAX_BOXES,
    Head,
    Input,
    Network,
    Node,
    Segment,
)
from cubemesh.networks.layers import Layer, ParameterSpec, Shape

_SHORT = {
    layers.Convolution: "conv",
    layers.Linear: "fc",
    layers.BatchNorm: "bn",
    layers.LocalResponseNorm: "lrn",
    layers.MaxPool: "pool",
    layers.AveragePool: "pool",
    layers.GlobalAveragePool: "pool",
}
"""Node names by layer; other nodes have the name of their layer type."""


class Assembly:
    """Collects nodes; `build()` gives the finished `Network`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inputs: list[Input] = []
        self._targets: list[Input] = []
        self._nodes: dict[str, Node] = {}
        self._parameters: dict[str, ParameterSpec] = {}
        self._state: dict[str, ParameterSpec] = {}
        self._heads: list[Head] = []
        self._shapes: dict[str, Shape] = {}
        self._counts: dict[str, int] = {}
        self._segment = ""

    def input(self, name: str, shape: Shape, *, vocabulary: int | None = None) -> str:
        """An input; `shape` is that of one sample. With a `vocabulary` its values are integers
        below that."""
        dtype: Literal["float", "integer"] = "float" if vocabulary is None else "integer"
        return self._add_input(Input(name=name, shape=shape, dtype=dtype, classes=vocabulary))

    def categories(self, name: str, vocabularies: Sequence[int]) -> str:
        """An input of integers, each below the size of its own vocabulary."""
        return self._add_input(
            Input(
                name=name,
                shape=(len(vocabularies),),
                dtype="integer",
                classes=max(vocabularies),
                vocabularies=tuple(vocabularies),
            )
        )

    def _add_input(self, given: Input) -> str:
        self._inputs.append(given)
        self._shapes[given.name] = given.shape
        return given.name

    def shape(self, value: str) -> Shape:
        """Shape of one sample of a value defined so far; KeyError if there is none."""
        return self._shapes[value]

    @contextmanager
    def segment(self, name: str) -> Iterator[None]:
        """Nodes added inside belong to one segment: the unit of compilation and synchronization."""
        before, self._segment = self._segment, name
        try:
            yield
        finally:
            self._segment = before

    def add_layer(
        self,
        layer: Layer,
        *inputs: str,
        name: str | None = None,
        share: Mapping[str, str] | None = None,
    ) -> str:
        """Append a node. `share` maps roles to existing parameters (tied weights).

        UsageError for an unknown input, a duplicate name, or shapes that do not match.
        """
        name = name or self._next_name(type(layer))
        if name in self._shapes:
            raise UsageError(f"{self.name}: two nodes are called '{name}'.")
        missing = [i for i in inputs if i not in self._shapes]
        if missing:
            raise UsageError(f"{self.name}: '{name}' reads '{missing[0]}', which does not exist.")
        shapes = [self._shapes[i] for i in inputs]
        output = layer.output_shape(*shapes)
        self._nodes[name] = Node(
            name=name,
            layer=layer,
            inputs=inputs,
            shape=output,
            parameters=self._own(name, layer.parameters(*shapes), self._parameters, share or {}),
            state=self._own(name, layer.state(*shapes), self._state, {}),
            segment=self._segment,
        )
        self._shapes[name] = output
        return name

    def classify(self, x: str, *, weight: float = 1.0, train_only: bool = False) -> None:
        """End in a softmax cross-entropy of `x` (one score a class) against the labels: one a
        sample, or one a position where `x` is a sequence."""
        *positions, classes = self._shapes[x]
        if not any(t.name == "label" for t in self._targets):
            label = Input(name="label", shape=tuple(positions), dtype="integer", classes=classes)
            self._targets.append(label)
        self._heads.append(Head(value=x, target="label", weight=weight, train_only=train_only))

    def detect(self, x: str) -> None:
        """End in the detection of objects: `x` has for each cell of a square grid a coverage by
        class, 0 to 1, and four corners, (cells, classes + 4)."""
        cells, columns = self._shapes[x]
        shape = (cells + MAX_BOXES, BOX_COLUMNS)
        target = Input(name="label", shape=shape, dtype="integer", classes=columns - 4)
        self._targets.append(target)
        self._heads.append(Head(value=x, target="label", loss="detection"))

    def penalize(self, x: str, weight: float) -> None:
        """Add `weight` times the mean of `x` over the batch to the loss of training."""
        head = Head(value=x, target="label", loss="mean", weight=weight, train_only=True)
        self._heads.append(head)

    def build(self) -> Network:
        """The finished network.

        UsageError without a head for evaluation, or with a segment in several pieces.
        """
        if all(h.train_only for h in self._heads):
            raise UsageError(
                f"{self.name} has no head that is there in evaluation: end it with classify() or "
                "detect()."
            )
        return Network(
            name=self.name,
            inputs=tuple(self._inputs),
            targets=tuple(self._targets),
            nodes=tuple(self._nodes.values()),
            parameters=dict(self._parameters),
            state=dict(self._state),
            heads=tuple(self._heads),
            segments=tuple(self._segments()),
        )

    def _segments(self) -> Iterator[Segment]:
        done = set()
        for name, nodes in groupby(self._nodes.values(), key=lambda node: node.segment):
            if name in done:
                raise UsageError(
                    f"{self.name}: segment '{name}' continues after another one began. Give the "
                    "later part a name of its own."
                )
            done.add(name)
            yield Segment(name=name, nodes=tuple(node.name for node in nodes))

    def _next_name(self, kind: type[Layer]) -> str:
        short = _SHORT.get(kind, kind.__name__.lower())
        self._counts[short] = self._counts.get(short, 0) + 1
        return f"{short}{self._counts[short]}"

    def _own(
        self,
        node: str,
        wanted: Mapping[str, ParameterSpec],
        table: dict[str, ParameterSpec],
        share: Mapping[str, str],
    ) -> dict[str, str]:
        stray = [role for role in share if role not in wanted]
        if stray:
            raise UsageError(
                f"{self.name}: '{node}' has no '{stray[0]}' to share; it has "
                f"{', '.join(wanted) or 'no parameters'}."
            )
        names = {}
        for role, spec in wanted.items():
            names[role] = share.get(role, f"{node}.{role}")
            if role in share and (
                names[role] not in table or table[names[role]].shape != spec.shape
            ):
                raise UsageError(
                    f"{self.name}: '{node}' would share '{names[role]}', which does not exist or "
                    f"is not of shape {spec.shape}."
                )
            table.setdefault(names[role], spec)
        return names


_BY_POSITION = (
    *(layers.Linear, layers.Embedding, layers.LayerNorm, layers.RMSNorm, layers.GELU, layers.Add),
    *(layers.ReLU, layers.Tanh, layers.Sigmoid, layers.Activation, layers.Multiply),
    *(layers.Dropout, layers.Scale, layers.SelectChannels, layers.Experts, layers.LoadBalance),
)
"""Layers that compute each position by itself."""


def of_documents(network: Network) -> Network:
    """The network for rows of several documents: positions attend to their own document alone, and
    places count from its begin, by a second input. The parameters are the same.

    UsageError for a network that does not take one sequence of tokens, or whose positions meet
    outside of attention.
    """
    (given, *more) = network.inputs
    if more or given.dtype != "integer" or network.targets[0].shape != given.shape:
        raise UsageError(
            f"packing=documents: {network.name} does not predict a token at each position of one "
            "sequence. Leave packing out, or choose a network such as gpt2 or llama-125m."
        )
    (length,) = given.shape
    taken = set(network.shapes)
    places = _free_name("positions", taken)
    nodes: list[Node] = []
    masks: dict[bool, str] = {}
    for node in network.nodes:
        layer, inputs = node.layer, node.inputs
        if isinstance(layer, layers.Attention):
            if layer.causal not in masks:
                masks[layer.causal] = _free_name("document_mask", taken)
                nodes.append(
                    Node(
                        name=masks[layer.causal],
                        layer=layers.DocumentMask(causal=layer.causal),
                        inputs=(places,),
                        shape=(length, length),
                        segment=node.segment,
                    )
                )
            layer, inputs = replace(layer, documents=True), (*inputs, masks[layer.causal])
        elif isinstance(layer, layers.PositionEmbedding) and layer.shared:
            pass
        elif isinstance(layer, layers.PositionEmbedding | layers.RotaryEmbedding):
            layer, inputs = replace(layer, documents=True), (*inputs, places)
        elif not isinstance(layer, _BY_POSITION):
            raise UsageError(
                f"packing=documents: '{node.name}' of {network.name} reads several positions, and "
                "only attention can be limited to a document. Leave packing out."
            )
        nodes.append(replace(node, layer=layer, inputs=inputs))
    if not masks:
        raise UsageError(f"packing=documents: {network.name} has no attention. Leave packing out.")
    positions = Input(name=places, shape=(length,), dtype="integer", classes=length)
    in_segments = {
        node.segment: tuple(n.name for n in nodes if n.segment == node.segment) for node in nodes
    }
    return replace(
        network,
        inputs=(given, positions),
        nodes=tuple(nodes),
        segments=tuple(replace(s, nodes=in_segments[s.name]) for s in network.segments),
    )


def with_sparse_gradients(network: Network) -> Network:
    """The network whose embedding tables have sparse gradients. UsageError without such tables."""
    nodes = tuple(
        replace(node, layer=replace(node.layer, sparse=True))
        if isinstance(node.layer, layers.EmbeddingBags)
        else node
        for node in network.nodes
    )
    if nodes == network.nodes:
        raise UsageError(
            f"embedding_gradients=sparse: {network.name} has no tables of categories. Leave it "
            "out, or choose a network such as dlrm-small."
        )
    return replace(network, nodes=nodes)


def takes_documents(network: Network) -> bool:
    """Whether `network` is for rows of several documents, as `of_documents` returns it."""
    return any(isinstance(node.layer, layers.DocumentMask) for node in network.nodes)


def _free_name(wanted: str, taken: set[str]) -> str:
    """A name for a value that no other has; it is `taken` from then on."""
    numbered = (f"{wanted}_{number}" for number in count(2))
    name = next(n for n in chain([wanted], numbered) if n not in taken)
    taken.add(name)
    return name
