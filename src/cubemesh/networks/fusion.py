"""Layer fusion: neighbouring layers that can be computed as one, found in the graph.

    batch norm                        without another layer
    batch norm ─ ReLU                 if only the ReLU reads the normalized value
    batch norm ─ add ─ (ReLU)         if only the sum reads it, and only the ReLU the sum
    ReLU ─ max pooling                in either order, because the maximum of rectified values is
    max pooling ─ ReLU                the rectified maximum
    convolution ─ ReLU                if the ReLU is in none of these
    convolution ─ ReLU ─ max pooling  in place of the last three, where a kernel computes all
    sum of pairs ─ tanh ─ product     if the product has one output per pair: the scores of additive
                                      attention, without an array of all pairs

Intermediate values are never stored, so no other node and no head may read them. A fusion runs in
place of its last layer, when all its inputs have been computed. If both terms of a sum are batch
normalizations, the later one is fused with the sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import (
    Add,
    BatchNorm,
    Convolution,
    Linear,
    MaxPool,
    PairSum,
    ReLU,
    Tanh,
)


@dataclass(frozen=True, kw_only=True)
class NormFusion:
    """A batch normalization of images, and what follows it."""

    norm: Node
    last: Node
    """The layer whose value the fusion makes; the norm itself where nothing follows."""
    nodes: tuple[str, ...]
    """All of its layers, in the order they ran."""
    residual: str | None = None
    """The value that is added, if one is."""
    relu: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Its inputs: the value to normalize, then what is added."""
        return (self.norm.inputs[0], *([self.residual] if self.residual is not None else []))


@dataclass(frozen=True, kw_only=True)
class ReluFusion:
    """A max pooling or a convolution with its neighbouring ReLU."""

    main: Node
    """The layer other than the ReLU."""
    first: Node
    last: Node

    @property
    def nodes(self) -> tuple[str, ...]:
        """Both layers, in the order they ran."""
        return (self.first.name, self.last.name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Its inputs."""
        return self.first.inputs


@dataclass(frozen=True, kw_only=True)
class ConvFusion:
    """A convolution with its ReLU, and the max pooling after it."""

    conv: Node
    last: Node
    """The layer whose value the fusion makes."""
    nodes: tuple[str, ...]
    """All of its layers, in the order they ran."""
    pool: Node | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Its input."""
        return self.conv.inputs


@dataclass(frozen=True, kw_only=True)
class ScoreFusion:
    """The scores of additive attention: a perceptron of one hidden layer on each pair of a query
    and a key."""

    pairs: Node
    tanh: Node
    last: Node
    """The product with the perceptron's weights."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its layers, in the order they ran."""
        return (self.pairs.name, self.tanh.name, self.last.name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Its inputs: queries, then keys."""
        return self.pairs.inputs


Fusion = NormFusion | ReluFusion | ConvFusion | ScoreFusion
Step = Node | Fusion
"""A unit of execution: a layer, or several as one."""
Relus = Literal["none", "pairs", "chains"]
"""Fusions of ReLUs outside those of normalizations: none, with a max pooling or else a convolution
(`ReluFusion`), or of a convolution with its ReLU and max pooling (`ConvFusion`)."""


def norm_fusions(network: Network) -> tuple[NormFusion, ...]:
    """All that training can use, in the order their normalizations run; no layer is in two."""
    nodes = network.needed()
    readers = _readers(network, nodes)
    fused: set[str] = set()
    found = {}
    for node in reversed(nodes):  # the later term of a sum comes first
        if isinstance(node.layer, BatchNorm) and len(node.shape) == 3:
            found[node.name] = fusion = _following(node, readers, fused)
            fused.update(fusion.nodes)
    return tuple(found[node.name] for node in nodes if node.name in found)


def relu_fusions(network: Network) -> tuple[ReluFusion, ...]:
    """Each ReLU outside the batch-norm fusions, with its neighbouring max pooling or else
    convolution, in execution order; no layer is in two."""
    nodes = network.needed()
    readers = _readers(network, nodes)
    fused = {name for fusion in norm_fusions(network) for name in fusion.nodes}
    found: dict[str, ReluFusion] = {}
    for kind in (MaxPool, Convolution):
        for node in nodes:
            after = _only(readers[node.name], fused)
            if node.name in fused or after is None:
                continue
            layers = (type(node.layer), type(after.layer))
            if layers == (kind, ReLU) or (kind is MaxPool and layers == (ReLU, kind)):
                main = after if isinstance(node.layer, ReLU) else node
                found[node.name] = fusion = ReluFusion(main=main, first=node, last=after)
                fused.update(fusion.nodes)
    return tuple(found[node.name] for node in nodes if node.name in found)


def conv_fusions(network: Network) -> tuple[ConvFusion, ...]:
    """Each convolution with a bias that only a ReLU reads, with the max pooling if only that reads
    the ReLU, in execution order."""
    nodes = network.needed()
    readers = _readers(network, nodes)
    found = []
    for node in nodes:
        relu = _only(readers[node.name], set())
        with_bias = isinstance(node.layer, Convolution) and node.layer.bias
        if not with_bias or relu is None or not isinstance(relu.layer, ReLU):
            continue
        pool = _only(readers[relu.name], set())
        if pool is not None and not isinstance(pool.layer, MaxPool):
            pool = None
        layers = (node, relu) if pool is None else (node, relu, pool)
        names = tuple(layer.name for layer in layers)
        found.append(ConvFusion(conv=node, last=layers[-1], nodes=names, pool=pool))
    return tuple(found)


def score_fusions(network: Network) -> tuple[ScoreFusion, ...]:
    """All that training can use, in the order they run."""
    nodes = network.needed()
    readers = _readers(network, nodes)
    found = []
    for pairs in nodes:
        tanh = _only(readers[pairs.name], set()) if isinstance(pairs.layer, PairSum) else None
        if tanh is None or not isinstance(tanh.layer, Tanh):
            continue
        last = _only(readers[tanh.name], set())
        if last is None or not isinstance(last.layer, Linear):
            continue
        if last.layer.features == 1 and not last.layer.bias:
            found.append(ScoreFusion(pairs=pairs, tanh=tanh, last=last))
    return tuple(found)


def fused_steps(network: Network, *, relus: Relus = "none") -> tuple[Step, ...]:
    """What all heads depend on, in the order it runs, fused where it can be."""
    fusions: tuple[Fusion, ...] = (*norm_fusions(network), *score_fusions(network))
    if relus == "pairs":
        fusions += relu_fusions(network)
    if relus == "chains":
        fusions += conv_fusions(network)
    inside = {name for fusion in fusions for name in fusion.nodes}
    last = {fusion.last.name: fusion for fusion in fusions}
    steps: list[Step] = []
    for node in network.needed():
        if node.name in last:
            steps.append(last[node.name])
        elif node.name not in inside:
            steps.append(node)
    return tuple(steps)


def reads(network: Network, steps: tuple[Step, ...]) -> Counter[str]:
    """Value → how often a step or a head reads it."""
    counted = Counter(value for step in steps for value in step.inputs)
    counted.update(head.value for head in network.heads)
    return counted


def _readers(network: Network, nodes: tuple[Node, ...]) -> dict[str, list[Node]]:
    """Value → the nodes that read it, once for each time. A head's value has no single reader."""
    readers: dict[str, list[Node]] = {node.name: [] for node in nodes}
    for node in nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    for head in network.heads:
        readers[head.value] = []
    return readers


def _following(norm: Node, readers: dict[str, list[Node]], fused: set[str]) -> NormFusion:
    """The longest fusion that starts with `norm` and has none of the `fused` layers."""
    nodes, residual = [norm], None
    after = _only(readers[norm.name], fused)
    if after is not None and isinstance(after.layer, Add) and len(after.inputs) == 2:
        (residual,) = (value for value in after.inputs if value != norm.name)
        nodes.append(after)
        after = _only(readers[after.name], fused)
    relu = after is not None and isinstance(after.layer, ReLU)
    if after is not None and relu:
        nodes.append(after)
    names = tuple(node.name for node in nodes)
    return NormFusion(norm=norm, last=nodes[-1], nodes=names, residual=residual, relu=relu)


def _only(readers: list[Node], fused: set[str]) -> Node | None:
    """The only reader, if there is one and it is in no other fusion."""
    return readers[0] if len(readers) == 1 and readers[0].name not in fused else None
