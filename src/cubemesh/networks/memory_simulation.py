"""Simulation of the memory allocations in a training step.

A step is a sequence of allocations by category, in the order in which an eager framework makes and
frees them, without weights, optimizer state and the input batch. The gradient of a value has the
value's size: `Add` passes its own to both inputs, `Concat` a slice to each, a view to its one.
`memory.py` uses the result.

Of a recomputed segment the forward pass saves only the values that it reads; in the backward pass,
before the gradients of its last layer, it is computed again and saves what it would have saved. Of
several micro-batches the last is simulated, in which the gradients of all weights exist.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, get_args

from cubemesh.networks.activation_memory import GradientFlow, SavedTensor, log_probabilities
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import (
    Add,
    ClassToken,
    Concat,
    Convolution,
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
    ) -> None:
        self.flow = flow
        self.network = flow.network
        self.batch = batch
        self.width = width
        self.training = training
        self.workspaces = workspaces
        self.accumulates = accumulates and training
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
        if self.accumulates:
            for parameter, spec in self.network.parameters.items():
                size = math.prod(spec.shape) * max(self.width, 4)
                self._allocate(f"d {parameter}", size, "gradients")
        self._forward()
        if self.training:
            self._backward()
        return self.peak

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
            segment = self.segments.get(node.name)
            if segment is not None and segment not in recomputed:
                recomputed.add(segment)
                self._recompute(segment)
            own = gradients.pop(node.name)
            arrived = self._gradients_of_inputs(node, own)
            if arrived:
                self._run_library(node, "data_gradient")
            if self.width >= 4:
                self._gradients_of_parameters(node)
            else:
                self._low_precision_gradients(node)
            self._run_library(node, "weight_gradient")
            for activation in self.freed[node.name]:  # the first to save it is the last to use it
                self._free(activation)
            for parameter in self._low_precision_weights(node):
                self._free(f"low-precision {parameter}")
            self._free_unused(own, *gradients.values(), *(array for _, array in arrived))
            if self.width < 4:  # converted to fp32 after the layer's arrays are freed
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
        return tuple(node.parameters.values()) if multiplies and self.width < 4 else ()

    def _low_precision_gradients(self, node: Node) -> None:
        for parameter in node.parameters.values():
            size = math.prod(self.network.parameters[parameter].shape) * self.width
            self._allocate(f"d low-precision {parameter}", size)

    def _gradients_of_parameters(self, node: Node) -> None:
        for parameter in node.parameters.values():
            size = math.prod(self.network.parameters[parameter].shape) * max(self.width, 4)
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


def _read_by(network: Network, segment: Sequence[str]) -> list[str]:
    """The values that a segment reads and does not compute."""
    own = set(segment)
    read = (v for node in network.nodes if node.name in own for v in node.inputs)
    return [value for value in dict.fromkeys(read) if value not in own]
