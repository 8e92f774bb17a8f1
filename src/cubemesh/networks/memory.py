"""How much memory does training need, and what is the largest batch that fits?

A forecast for an eager framework that frees every array with its last reader (PyTorch), by walking
through the step as it runs: the forward pass makes values and keeps some (`saved.py`), the backward
pass makes gradients and lets go of what it has used, the update has temporaries of its own. The
forecast is the fullest moment of that walk, taken apart. Beside it stand, all the time:

    weights      4 bytes a parameter (fp64: 8), the running statistics
    optimizer    SGD with momentum, LARS and RMSprop one array as large as the weights, Adam and
                 AdamW two
    input        the images in fp32 (fp64: 8 bytes), tokens and labels in int64

Gradients are as wide as the weights. They come one by one during the backward pass and are dropped
before the next step, so in a deep network few of them exist while the activations are all there. In
mixed precision the forward pass makes narrow copies of what convolutions and matrix products
multiply by; the backward pass lets go of each after its layer, and then widens its gradient.

Not in it: what a framework takes before it does anything (a CUDA context, libraries), the
workspaces of its convolution algorithms, and the rounding and gaps of its allocator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from cubemesh.errors import UsageError
from cubemesh.model.forecast import MemoryForecast
from cubemesh.model.spec import Optimizer, Precision
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import Add, Concat, Convolution, Linear
from cubemesh.networks.saved import (
    ELEMENT_BYTES,
    FED_BYTES,
    LABEL_BYTES,
    Flow,
    log_probabilities,
    saved,
)
from cubemesh.networks.sequence_layers import ClassToken, PositionEmbedding, SelectPosition

OPTIMIZER_ARRAYS: dict[Optimizer, int] = {
    "sgd": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
    "lars": 1,
}
"""Arrays as large as the weights that each optimizer keeps."""
_UPDATE_ARRAYS: dict[Optimizer, int] = {
    "sgd": 0,
    "rmsprop": 1,
    "adam": 0,
    "adamw": 0,
    "lars": 0,
}
"""Arrays as large as the weights that live during the update: RMSprop's square roots. LARS works
in the gradients' own arrays, the others are one fused kernel."""

_HAND_ON = (Add, Concat, ClassToken, PositionEmbedding)
"""Layers that hand the gradient of their result on as it is, whole or in slices."""

_Group = Literal["weights", "activations", "gradients", "workspace"]
"""What lives for a part of the step; `weights` are the narrow copies alone."""


def forecast(
    network: Network,
    batch: int,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    training: bool = True,
) -> MemoryForecast:
    """Bytes one device needs for steps of `batch` samples, at the fullest moment of a step.

    Without `training` it is the forward pass and the loss alone, which keep nothing. Raises
    UsageError for a batch below 1.
    """
    if batch < 1:
        raise UsageError(f"batch={batch} is too small: a batch has 1 sample or more.")
    width = ELEMENT_BYTES[precision]
    master = max(width, 4)
    parameter_bytes = network.parameter_count * master
    state_bytes = sum(math.prod(s.shape) for s in network.state.values()) * master
    fullest = _Walk(Flow(network), batch, width, training).fullest()
    update_bytes = _UPDATE_ARRAYS[optimizer] * parameter_bytes
    if training and sum(fullest.values()) < parameter_bytes + update_bytes:
        fullest = dict.fromkeys(fullest, 0)
        fullest |= {"gradients": parameter_bytes, "workspace": update_bytes}
    return MemoryForecast(
        weight_bytes=parameter_bytes + state_bytes + fullest["weights"],
        gradient_bytes=fullest["gradients"],
        optimizer_bytes=OPTIMIZER_ARRAYS[optimizer] * parameter_bytes if training else 0,
        activation_bytes=fullest["activations"],
        workspace_bytes=fullest["workspace"],
        input_bytes=batch * _sample_bytes(network, width),
    )


def largest_batch(
    network: Network,
    limit_bytes: int,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    training: bool = True,
) -> int:
    """The largest batch whose forecast stays within `limit_bytes`; 0 when not even one fits."""

    def fits(batch: int) -> bool:
        needed = forecast(network, batch, precision, optimizer, training)
        return needed.total_bytes <= limit_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _sample_bytes(network: Network, width: int) -> int:
    fed = sum(
        math.prod(i.shape) * (LABEL_BYTES if i.dtype == "integer" else max(width, FED_BYTES))
        for i in network.inputs
    )
    return fed + sum(math.prod(t.shape) for t in network.targets) * LABEL_BYTES


class _Walk:
    """A step as a sequence of allocations, by what they are for.

    Weights, optimizer state and the fed batch are not in it. The gradient of a value is an array as
    the value is: `Add` hands its own to both inputs, `Concat` a slice of its own to each, a view to
    its one.
    """

    def __init__(self, flow: Flow, batch: int, width: int, training: bool) -> None:
        self.flow = flow
        self.network = flow.network
        self.batch = batch
        self.width = width
        self.training = training
        self.alive: dict[str, tuple[_Group, int]] = {}
        self.held: dict[_Group, int] = dict.fromkeys(get_args(_Group), 0)
        self.peak = dict(self.held)

    def fullest(self) -> dict[_Group, int]:
        """Bytes of each group at the moment of the step when most are alive."""
        self._forward()
        if self.training:
            self._backward()
        return self.peak

    def _allocate(self, name: str, size: int, group: _Group = "workspace") -> None:
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

    def _value_bytes(self, value: str) -> int:
        return self.batch * math.prod(self.network.shapes[value]) * self.width

    def _forward(self) -> None:
        storage, nodes, heads = self.flow.storage, self.network.nodes, self.network.heads
        readers = Counter(storage[i] for node in nodes for i in node.inputs)
        readers.update(storage[h.value] for h in heads)
        kept = saved(self.network, self.flow) if self.training else {}
        activations = {k.name for arrays in kept.values() for k in arrays}

        def read(value: str) -> None:
            readers[storage[value]] -= 1
            if not readers[storage[value]] and storage[value] not in activations:
                self._free(storage[value])

        for node in nodes:
            if storage[node.name] == node.name:
                group: _Group = "activations" if node.name in activations else "workspace"
                self._allocate(node.name, self._value_bytes(node.name), group)
            for array in kept.get(node.name, ()):
                size = array.size_bytes(self.batch, self.width)
                self._allocate(array.name, size, "activations")
            for parameter in self._narrowed(node):
                size = math.prod(self.network.parameters[parameter].shape) * self.width
                self._allocate(f"narrow {parameter}", size, "weights")
            for value in node.inputs:
                read(value)
        for head in heads:
            array = log_probabilities(self.network, head)
            group = "activations" if self.training else "workspace"
            self._allocate(array.name, array.size_bytes(self.batch, self.width), group)
            read(head.value)

    def _backward(self) -> None:
        gradients: dict[str, str] = {}
        """Value → array its gradient lies in, until the value's own node has used it."""
        for head in self.network.heads:
            logs = log_probabilities(self.network, head)
            self._allocate("d logs", logs.size_bytes(self.batch, self.width))
            self._allocate(f"d {head.value}", self._value_bytes(head.value))
            gradients[head.value] = f"d {head.value}"
            self._free("d logs")
            self._free(logs.name)
        kept = saved(self.network, self.flow)
        for node in reversed(self.network.nodes):
            if node.name not in gradients:
                continue
            own = gradients.pop(node.name)
            arrived = self._gradients_of_inputs(node, own)
            if self.width >= 4:
                self._gradients_of_parameters(node)
            else:
                self._narrow_gradients(node)
            for activation in kept[node.name]:  # the first to keep it is the last to use it
                self._free(activation.name)
            for parameter in self._narrowed(node):
                self._free(f"narrow {parameter}")
            self._free_unused(own, *gradients.values(), *(array for _, array in arrived))
            if self.width < 4:  # widened when the layer has let go of what it kept
                self._gradients_of_parameters(node)
            for value, array in arrived:
                self._accumulate(gradients, value, array)

    def _gradients_of_inputs(self, node: Node, own: str) -> list[tuple[str, str]]:
        """(value, array its gradient from `node` lies in), for each input that needs one."""
        handed_on = isinstance(node.layer, _HAND_ON) or (
            node.layer.category == "view" and not isinstance(node.layer, SelectPosition)
        )
        arrived = []
        for value in node.inputs:
            if value in self.flow.needs_gradient:
                array = own if handed_on else f"d {value} from {node.name}"
                self._allocate(array, self._value_bytes(value))
                arrived.append((value, array))
        return arrived

    def _narrowed(self, node: Node) -> Sequence[str]:
        """Its parameters that are multiplied by in half precision, as copies of the fp32 weights"""
        multiplies = isinstance(node.layer, (Convolution, Linear))
        return tuple(node.parameters.values()) if multiplies and self.width < 4 else ()

    def _narrow_gradients(self, node: Node) -> None:
        for parameter in node.parameters.values():
            size = math.prod(self.network.parameters[parameter].shape) * self.width
            self._allocate(f"d narrow {parameter}", size)

    def _gradients_of_parameters(self, node: Node) -> None:
        for parameter in node.parameters.values():
            size = math.prod(self.network.parameters[parameter].shape) * max(self.width, 4)
            if f"d {parameter}" in self.alive:  # shared: the second is added to the first
                self._allocate("again", size)
            self._allocate(f"d {parameter}", size, "gradients")
            self._free("again")
            self._free(f"d narrow {parameter}")

    def _accumulate(self, gradients: dict[str, str], value: str, array: str) -> None:
        """The first gradient of a value is taken as it is; a sum is a new array, because either of
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
