"""Simulation of the memory allocations in a training step.

A step is a sequence of allocations by category, in the order in which an eager framework makes and
frees them, without weights, optimizer state and the input batch. The gradient of a value has the
value's size: `Add` passes its own to both inputs, `Concat` a slice to each, a view to its one.
`memory.py` uses the result.

Of a recomputed segment the forward pass saves only the values that it reads; in the backward pass,
before the gradients of its last layer, it is computed again and saves what it would have saved. Of
several micro-batches the last is simulated, in which the gradients of all weights exist.

Of weights that are divided over ranks (`Sharding`) a unit is gathered before its passes, through a
buffer of its size, while in the backward pass the next one arrives; after its backward pass its
gradients are added up through a buffer too, and each rank has its part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cubemesh.networks.activation_memory import (
    INDEX_BYTES,
    GradientFlow,
    SavedTensor,
    log_probabilities,
)
from cubemesh.networks.graph import Network, Node, ShardedUnit, follows_weights, sharded_units
from cubemesh.networks.layers import (
    Add,
    ClassToken,
    Concat,
    Convolution,
    EmbeddingBags,
    Experts,
    Linear,
    PositionEmbedding,
    SelectPosition,
)
from cubemesh.networks.workspaces import Workspaces

_PASS_ON = (Add, Concat, ClassToken, PositionEmbedding)
"""Layers that pass the gradient of their result on without a copy, whole or in slices."""

_Pass = Literal["forward", "data_gradient", "weight_gradient"]
Group = Literal["weights", "activations", "gradients", "workspace"]
"""What lives for a part of the step; `weights` are the low-precision copies only."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How data-parallel ranks divide what each would hold whole."""

    ranks: int
    zero_stage: int = 0
    """As `Strategy.zero_stage`; 0: gradients are whole, in buckets that are never freed."""
    unit_bytes: int | None = None
    """As of `sharded_units`."""

    @property
    def divides_weights(self) -> bool:
        """Whether a rank has a part of the weights between two steps."""
        return self.zero_stage > 1 and self.ranks > 1

    def part(self, size: float, stage: int) -> int:
        """Bytes of `size` that a rank has of what is divided from `stage` on."""
        return math.ceil(size / self.ranks) if self.zero_stage >= stage else math.ceil(size)


def gradient_bytes(network: Network, parameter: str, batch: int, width: int) -> int:
    """Of a parameter's gradient with values of `width` bytes; of a sparse one the rows that `batch`
    samples select, and their indices."""
    shape = network.parameters[parameter].shape
    rows = network.sparse_gradients.get(parameter)
    if rows is None:
        return math.prod(shape) * width
    return batch * rows * (math.prod(shape[1:]) * width + INDEX_BYTES)


class StepSimulation:
    """A step of `batch` samples, values `width` bytes wide, with the `workspaces` of each node."""

    def __init__(
        self,
        flow: GradientFlow,
        batch: int,
        width: int,
        training: bool,
        workspaces: Mapping[str, Workspaces],
        *,
        recomputed: Collection[str] = (),
        accumulates: bool = False,
        sharding: Sharding | None = None,
    ) -> None:
        self.flow = flow
        self.network = flow.network
        self.batch = batch
        self.width = width
        self.training = training
        self.workspaces = workspaces
        divided = sharding is not None and sharding.divides_weights
        buckets = sharding is not None and sharding.ranks > 1 and not divided
        self.accumulates = (accumulates or buckets) and training and not divided
        self.low_precision = width < 4 and not (divided and follows_weights(flow.network))
        """Whether layers copy fp32 weights to 16 bits and gradients back."""
        self.units = _Units(self, sharding, bool(recomputed)) if divided and sharding else None
        self.segments = {
            node: segment.nodes
            for segment in self.network.segments
            if training and segment.name in recomputed
            for node in segment.nodes
        }
        """Node → the nodes of its segment, of those that are recomputed."""
        self.saved, self.freed = self._saved_tensors() if training else ({}, {})
        self.alive: dict[str, tuple[Group, int]] = {}
        self.held: dict[Group, int] = dict.fromkeys(get_args(Group), 0)
        self.peak = dict(self.held)

    def fullest(self) -> dict[Group, int]:
        """Bytes of each group at the moment of the step when most are alive."""
        if self.units:
            self.units.begin()
        if self.accumulates:
            for parameter, spec in self.network.parameters.items():
                size = math.prod(spec.shape) * max(self.width, 4)
                self._allocate(f"d {parameter}", size, "gradients")
        self._forward()
        if self.training:
            self._backward()
            if self.units:
                self.units.end()
        return self.peak

    @property
    def gradient_width(self) -> int:
        """Bytes of a value of a gradient of weights."""
        return self.width if self.width < 4 and not self.low_precision else max(self.width, 4)

    def elements(self, parameter: str) -> int:
        """Values of a parameter."""
        return math.prod(self.network.parameters[parameter].shape)

    def _saved_tensors(self) -> tuple[dict[str, list[SavedTensor]], dict[str, list[str]]]:
        """Node → arrays that it saves first, and node → arrays that its backward pass frees; of a
        recomputed segment the arrays of its second forward pass."""
        flow, storage = self.flow, self.flow.storage
        saved: dict[str, list[SavedTensor]] = {}
        freed: dict[str, list[str]] = {}
        seen: set[str] = set()
        within: dict[tuple[str, ...], set[str]] = {}
        for node in self.network.nodes:
            segment = self.segments.get(node.name)
            if segment is None:
                known = seen
            elif segment in within:
                known = within[segment]
            else:
                read = {storage[value] for value in _read_by(self.network, segment)}
                read -= {i.name for i in self.network.inputs}  # in memory as the batch
                held = [name for name in read if name not in seen]
                freed[node.name] = held
                seen.update(held)
                known = within[segment] = read
            new = {a.name: a for a in flow.saved(node) if a.name not in known}
            known.update(new)
            saved[node.name] = list(new.values())
            own = [self._again(name, node.name) for name in new]
            freed.setdefault(node.name, []).extend(own)
        return saved, freed

    def _again(self, array: str, node: str) -> str:
        """The name of an array that `node` saves: another in the second forward pass."""
        return f"{array}, again" if node in self.segments else array

    def _recompute(self, segment: tuple[str, ...]) -> None:
        """The second forward pass of a segment, up to the last array that is saved."""
        nodes = [node for node in self.network.nodes if node.name in segment]
        storage = self.flow.storage
        readers = Counter(storage[value] for node in nodes for value in node.inputs)
        kept = {array.name for node in nodes for array in self.saved[node.name]}
        for node in nodes:
            name = storage[node.name]
            if name == node.name and (name in kept or readers[name]):
                group: Group = "activations" if name in kept else "workspace"
                self._allocate(f"{name}, again", self._value_bytes(name), group)
            for array in self.saved[node.name]:
                size = array.size_bytes(self.batch, self.width)
                self._allocate(f"{array.name}, again", size, "activations")
            self._copy_weights(node)
            self._run_library(node, "forward")
            for value in node.inputs:
                readers[storage[value]] -= 1
                if not readers[storage[value]] and storage[value] not in kept:
                    self._free(f"{storage[value]}, again")

    def _copy_weights(self, node: Node) -> None:
        for parameter in self._low_precision_weights(node):
            size = math.prod(self.network.parameters[parameter].shape) * self.width
            self._allocate(f"low-precision {parameter}", size, "weights")

    def _allocate(self, name: str, size: int, group: Group = "workspace") -> None:
        if name in self.alive:
            return
        self.alive[name] = group, size
        self.held[group] += size
        if sum(self.held.values()) > sum(self.peak.values()):
            self.peak = dict(self.held)

    def _free(self, name: str) -> None:
        if name in self.alive:
            group, size = self.alive.pop(name)
            self.held[group] -= size

    def _run_library(self, node: Node, which: _Pass) -> None:
        """Allocate and free the workspace of a node's pass."""
        if node.name in self.workspaces:
            self._allocate("library", getattr(self.workspaces[node.name], which))
            self._free("library")

    def _value_bytes(self, value: str) -> int:
        return self.batch * math.prod(self.network.shapes[value]) * self.width

    def _forward(self) -> None:
        storage, nodes, heads = self.flow.storage, self.network.nodes, self.network.heads
        readers = Counter(storage[i] for node in nodes for i in node.inputs)
        readers.update(storage[h.value] for h in heads)
        saved = {n: arrays for n, arrays in self.saved.items() if n not in self.segments}
        activations = {name for names in self.freed.values() for name in names}

        def read(value: str) -> None:
            readers[storage[value]] -= 1
            if not readers[storage[value]] and storage[value] not in activations:
                self._free(storage[value])

        for node in nodes:
            if self.units:
                self.units.forward(node.name)
            if storage[node.name] == node.name:
                group: Group = "activations" if node.name in activations else "workspace"
                self._allocate(node.name, self._value_bytes(node.name), group)
            for array in saved.get(node.name, ()):
                size = array.size_bytes(self.batch, self.width)
                self._allocate(array.name, size, "activations")
            self._copy_weights(node)
            self._run_library(node, "forward")
            for value in node.inputs:
                read(value)
        for head in heads:
            array = log_probabilities(self.network, head)
            group = "activations" if self.training else "workspace"
            self._allocate(array.name, array.size_bytes(self.batch, self.width), group)
            read(head.value)
        for node in nodes:  # autocast's cache ends
            if node.name in self.segments:
                for parameter in self._low_precision_weights(node):
                    self._free(f"low-precision {parameter}")

    def _backward(self) -> None:
        gradients: dict[str, str] = {}
        """Value → array of its gradient, until the value's own node has used it."""
        for head in self.network.heads:
            logs = log_probabilities(self.network, head)
            self._allocate("d logs", logs.size_bytes(self.batch, self.width))
            self._allocate(f"d {head.value}", self._value_bytes(head.value))
            gradients[head.value] = f"d {head.value}"
            self._free("d logs")
            self._free(logs.name)
        recomputed: set[tuple[str, ...]] = set()
        for node in reversed(self.network.nodes):
            if node.name not in gradients:
                continue
            if self.units:
                self.units.backward(node.name)
            segment = self.segments.get(node.name)
            if segment is not None and segment not in recomputed:
                recomputed.add(segment)
                self._recompute(segment)
            own = gradients.pop(node.name)
            arrived = self._gradients_of_inputs(node, own)
            if arrived:
                self._run_library(node, "data_gradient")
            if not self.low_precision:
                self._gradients_of_parameters(node)
            else:
                self._low_precision_gradients(node)
            self._run_library(node, "weight_gradient")
            for activation in self.freed[node.name]:  # the first to save it is the last to use it
                self._free(activation)
            for parameter in self._low_precision_weights(node):
                self._free(f"low-precision {parameter}")
            self._free_unused(own, *gradients.values(), *(array for _, array in arrived))
            if self.low_precision:  # converted to fp32 after the layer's arrays are freed
                self._gradients_of_parameters(node)
            for value, array in arrived:
                self._accumulate(gradients, value, array)

    def _gradients_of_inputs(self, node: Node, own: str) -> list[tuple[str, str]]:
        """(value, array of its gradient from `node`), for each input that needs one."""
        passed_on = isinstance(node.layer, _PASS_ON) or (
            node.layer.category == "view" and not isinstance(node.layer, SelectPosition)
        )
        arrived = []
        for value in node.inputs:
            if value in self.flow.needs_gradient:
                array = own if passed_on else f"d {value} from {node.name}"
                self._allocate(array, self._value_bytes(value))
                arrived.append((value, array))
        return arrived

    def _low_precision_weights(self, node: Node) -> Sequence[str]:
        """Its parameters that have a copy in low precision."""
        multiplies = isinstance(node.layer, (Convolution, Linear, Experts))
        return tuple(node.parameters.values()) if multiplies and self.low_precision else ()

    def _low_precision_gradients(self, node: Node) -> None:
        if isinstance(node.layer, EmbeddingBags):  # looked up in fp32
            return
        for parameter in node.parameters.values():
            size = math.prod(self.network.parameters[parameter].shape) * self.width
            self._allocate(f"d low-precision {parameter}", size)

    def _gradients_of_parameters(self, node: Node) -> None:
        for parameter in node.parameters.values():
            size = gradient_bytes(self.network, parameter, self.batch, self.gradient_width)
            if f"d {parameter}" in self.alive:  # shared: the second is added to the first
                self._allocate("again", size)
            self._allocate(f"d {parameter}", size, "gradients")
            self._free("again")
            self._free(f"d low-precision {parameter}")

    def _accumulate(self, gradients: dict[str, str], value: str, array: str) -> None:
        """The first gradient of a value is used as it is; a sum is a new array, because either of
        its terms may be another value's gradient as well."""
        before = gradients.get(value)
        if before is None:
            gradients[value] = array
            return
        gradients[value] = f"{array}, summed"
        self._allocate(gradients[value], self._value_bytes(value))
        self._free_unused(before, *gradients.values())
        self._free_unused(array, *gradients.values())

    def _free_unused(self, array: str, *used: str) -> None:
        if array not in used:
            self._free(array)


class _Units:
    """The arrays of a step whose weights are divided: FSDP's, in the order in which it makes and
    frees them."""

    def __init__(self, step: StepSimulation, sharding: Sharding, by_segment: bool) -> None:
        self.step, self.sharding = step, sharding
        units = sharded_units(step.network, sharding.unit_bytes, by_segment=by_segment)
        self.own = [unit for unit in units if unit.parameters and not unit.shares]
        self.root = [name for unit in units if unit.shares for name in unit.parameters]
        self.of_node = {node: unit for unit in self.own for node in unit.nodes}
        self.current: ShardedUnit | None = None
        self.buffer = ""

    def begin(self) -> None:
        """What units share is gathered for the whole step."""
        if self.root:
            self._gather("root", self.root)

    def forward(self, node: str) -> None:
        """Before a node's forward pass."""
        unit = self.of_node.get(node)
        if unit is self.current:
            return
        self._leave()
        self.current = unit
        if unit is not None:
            self._gather(unit.name, unit.parameters)

    def backward(self, node: str) -> None:
        """Before a node's backward pass."""
        unit = self.of_node.get(node)
        if unit is self.current and unit is not None and f"gathered {unit.name}" in self.step.alive:
            return
        if unit is not self.current:
            self._reduce(self.current)
        self.current = unit
        if unit is not None:
            self._gather(unit.name, unit.parameters)
            self._drop_buffer()
            before = self.own[: self.own.index(unit)]
            if before and f"gathered {before[-1].name}" not in self.step.alive:
                self._receive(before[-1].name, before[-1].parameters)

    def end(self) -> None:
        """After the last backward pass."""
        self._reduce(self.current)
        if self.root:
            self._average("root", self.root)

    def _leave(self) -> None:
        """After a unit's forward pass; the last is not freed, as its backward pass follows."""
        last = self.current is None or self.current is self.own[-1]
        if self.current is not None and self.sharding.zero_stage == 3 and not last:
            self.step._free(f"gathered {self.current.name}")

    def _reduce(self, unit: ShardedUnit | None) -> None:
        if unit is not None:
            self._average(unit.name, unit.parameters)

    def _receive(self, name: str, parameters: Collection[str]) -> None:
        """The buffer of an all-gather; that of the one before is freed when it is there."""
        if self.buffer == f"buffer {name}":
            return
        self.step._allocate(f"buffer {name}", self._bytes(parameters))
        self._drop_buffer()
        self.buffer = f"buffer {name}"

    def _drop_buffer(self) -> None:
        self.step._free(self.buffer)
        self.buffer = ""

    def _gather(self, name: str, parameters: Collection[str]) -> None:
        if f"gathered {name}" not in self.step.alive:
            self._receive(name, parameters)
            self.step._allocate(f"gathered {name}", self._bytes(parameters), "weights")

    def _average(self, name: str, parameters: Collection[str]) -> None:
        step = self.step
        step._free(f"gathered {name}")
        step._free("reduce-scatter")
        values = sum(map(step.elements, parameters))
        master = max(step.width, 4)
        step._allocate("reduce-scatter", values * master)
        step._allocate(f"part of d {name}", self.sharding.part(values * master, 2), "gradients")
        for parameter in parameters:
            step._free(f"d {parameter}")

    def _bytes(self, parameters: Collection[str]) -> int:
        return sum(map(self.step.elements, parameters)) * self.step.gradient_width


def _read_by(network: Network, segment: Sequence[str]) -> list[str]:
    """The values that a segment reads and does not compute."""
    own = set(segment)
    read = (v for node in network.nodes if node.name in own for v in node.inputs)
    return [value for value in dict.fromkeys(read) if value not in own]
