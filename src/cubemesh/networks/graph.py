"""Network graph: nodes in execution order, their parameters, inputs, and losses.

Everything about a network comes from this one value: programs in every framework, counts of
operations and bytes, the memory forecast, drawings. Nodes *name* their parameters, so two nodes can
share one (tied weights). A network never changes; `networks/builder.py` makes one.
`sharded_units` groups its segments for sharded data parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from cubemesh.networks.layers import (
    Attention,
    BatchNorm,
    EmbeddingBags,
    Experts,
    InputFeedingDecoder,
    Layer,
    LocalResponseNorm,
    ParameterSpec,
    Recurrence,
    Shape,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MAX_BOXES = 128
"""Most labelled boxes of an image."""
BOX_COLUMNS = 6
"""Integers of each cell and each box of a detector's labels (`detection/labels.py`)."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input of a network: shape of one sample and type of values.

    For class labels `shape` is () or, with a label per position, (length,), or of a detector
    (cells + `MAX_BOXES`, `BOX_COLUMNS`); `classes` is their number. For tokens and categories
    `classes` is the size of the vocabulary.
    """

    name: str
    shape: Shape
    dtype: Literal["float", "integer"] = "float"
    classes: int | None = None
    vocabularies: tuple[int, ...] = ()
    """Of categories, the size of the vocabulary of each position; the largest is `classes`."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One layer in its place. Its name is also the name of the value it produces."""

    name: str
    layer: Layer
    inputs: tuple[str, ...]
    shape: Shape
    """Of one sample's result."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Role in the layer → name in `Network.parameters`."""
    state: Mapping[str, str] = field(default_factory=dict)
    """Role in the layer → name in `Network.state`."""
    segment: str = ""


@dataclass(frozen=True, kw_only=True)
class Head:
    """A loss: the mean over the batch of `loss`(value, target), times `weight`. A position whose
    target is -1 is padding and does not count. `mean` is the mean of the values themselves, padding
    included, whatever the target: a penalty. `detection` is the loss of coverage and boxes of each
    cell of a grid (`detection/labels.py`)."""

    value: str
    target: str
    loss: Literal["cross_entropy", "mean", "detection"] = "cross_entropy"
    weight: float = 1.0
    train_only: bool = False
    """An auxiliary head, left out when the network is evaluated."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Neighbouring nodes that are compiled, synchronized and timed as one."""

    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, complete: what any program, count or drawing is made from."""

    name: str
    inputs: tuple[Input, ...]
    targets: tuple[Input, ...]
    nodes: tuple[Node, ...]
    """In an order in which each node follows its inputs."""
    parameters: Mapping[str, ParameterSpec]
    """In the order they are first used, which is the order they are drawn in."""
    state: Mapping[str, ParameterSpec]
    heads: tuple[Head, ...]
    segments: tuple[Segment, ...]

    @property
    def parameter_count(self) -> int:
        """Values training adapts; a shared parameter counts once."""
        return sum(math.prod(p.shape) for p in self.parameters.values())

    @property
    def active_parameter_count(self) -> int:
        """Of `parameter_count` what one position is computed with: of a mixture of experts, those
        of the experts that it chooses."""
        idle = 0
        for node in self.nodes:
            if isinstance(node.layer, Experts):
                all_experts = sum(
                    math.prod(self.parameters[name].shape) for name in node.parameters.values()
                )
                of_one = all_experts // node.layer.experts
                idle += of_one * (node.layer.experts - node.layer.active)
        return self.parameter_count - idle

    @cached_property
    def sparse_gradients(self) -> Mapping[str, int]:
        """Parameter → rows of its gradient for each sample, of those with sparse gradients."""
        return {
            name: node.layer.indices
            for node in self.nodes
            if isinstance(node.layer, EmbeddingBags) and node.layer.sparse
            for name in node.parameters.values()
        }

    @property
    def output(self) -> str:
        """Name of the value the last head outside training-only ones judges."""
        return [h.value for h in self.heads if not h.train_only][-1]

    def needed(self, *values: str) -> tuple[Node, ...]:
        """The nodes that `values`, by default those of all heads, depend on, in execution order.

        Those of `output` are what an evaluation computes: auxiliary heads are not among them.
        """
        wanted = set(values or (head.value for head in self.heads))
        nodes = []
        for node in reversed(self.nodes):
            if node.name in wanted:
                wanted.update(node.inputs)
                nodes.append(node)
        return tuple(reversed(nodes))

    @property
    def evaluation_parameter_count(self) -> int:
        """Values an evaluation uses: `parameter_count` less what only auxiliary heads own."""
        used = {p for node in self.needed(self.output) for p in node.parameters.values()}
        return sum(math.prod(self.parameters[name].shape) for name in used)

    @property
    def smallest_batch(self) -> int:
        """Minimum samples of a training step: two if batch normalization has a single position
        per sample, because one value has no variance."""
        single = any(
            isinstance(node.layer, BatchNorm) and math.prod(node.shape[1:]) == 1
            for node in self.nodes
        )
        return 2 if single else 1

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of one sample of every input, target and node's result, by name."""
        shapes = {i.name: i.shape for i in (*self.inputs, *self.targets)}
        return shapes | {n.name: n.shape for n in self.nodes}

    def draw(self, seed: int = 0) -> dict[str, NDArray[np.float32]]:
        """Initial values of every parameter and state array, by name; the same on any machine.

        See `networks/weights.py`.
        """
        from cubemesh.networks.weights import draw

        return draw({**self.parameters, **self.state}, seed)


UNIT_BYTES = 25 * 2**20
"""Of fp32 weights from which a group of layers is a unit of its own."""
_NEED_FP32 = (BatchNorm, InputFeedingDecoder, LocalResponseNorm, Recurrence)
"""Layers that need fp32 weights or statistics beside 16-bit values."""


@dataclass(frozen=True, kw_only=True)
class ShardedUnit:
    """Neighbouring segments whose weights are gathered and divided together."""

    name: str
    segments: tuple[str, ...]
    nodes: tuple[str, ...]
    """Those that some head needs."""
    parameters: tuple[str, ...]
    shares: bool
    """Whether it shares a parameter with another unit, so that its weights are gathered for the
    whole step."""


def sharded_units(
    network: Network, unit_bytes: int | None = None, *, by_segment: bool = False
) -> tuple[ShardedUnit, ...]:
    """The units of sharded data parallelism, in order of execution: the segments of a network with
    attention (its blocks); of others, neighbouring segments with `unit_bytes` of fp32 weights or
    more, unless `by_segment`."""
    blocks = by_segment or any(isinstance(node.layer, Attention) for node in network.nodes)
    least = 0 if blocks else UNIT_BYTES if unit_bytes is None else unit_bytes
    needed = {node.name: node for node in network.needed()}
    groups = list(_grouped(network, needed, least))
    owners: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for segment in group:
            for name in _parameters(segment, needed):
                owners.setdefault(name, set()).add(number)
    units = []
    for number, group in enumerate(groups):
        names = dict.fromkeys(n for segment in group for n in _parameters(segment, needed))
        units.append(
            ShardedUnit(
                name="–".join(dict.fromkeys((group[0].name, group[-1].name))),
                segments=tuple(segment.name for segment in group),
                nodes=tuple(n for segment in group for n in segment.nodes if n in needed),
                parameters=tuple(name for name in names if min(owners[name]) == number),
                shares=any(len(owners[name]) > 1 for name in names),
            )
        )
    return tuple(units)


def follows_weights(network: Network) -> bool:
    """Whether every layer computes in the type of its weights and inputs, so that 16-bit copies
    of the weights suffice for mixed precision."""
    return not any(isinstance(node.layer, _NEED_FP32) for node in network.nodes)


def _grouped(
    network: Network, needed: Mapping[str, Node], least_bytes: int
) -> Iterator[list[Segment]]:
    """Neighbouring segments with at least so many bytes; the last may have fewer."""
    group: list[Segment] = []
    for segment in network.segments:
        if not any(name in needed for name in segment.nodes):
            continue
        group.append(segment)
        names = {name for one in group for name in _parameters(one, needed)}
        size = 4 * sum(math.prod(network.parameters[name].shape) for name in names)
        if size and size >= least_bytes:
            yield group
            group = []
    if group:
        yield group


def _parameters(segment: Segment, needed: Mapping[str, Node]) -> list[str]:
    names = (needed[n].parameters.values() for n in segment.nodes if n in needed)
    return list(dict.fromkeys(name for values in names for name in values))
