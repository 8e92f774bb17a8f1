"""How much memory does training need, and what is the largest batch that fits?

A forecast for an eager framework that frees every array with its last reader (PyTorch), by walking
the step as it runs: the forward pass makes values and keeps some (`saved.py`), the backward pass
makes gradients and lets go of what it has used. The largest sum seen on the way, beyond what is
kept, is the workspace. The rest is arithmetic over the parameters:

    weights      4 bytes a parameter (fp64: 8), the running statistics; in mixed precision also
                 the narrow copies of what convolutions and matrix products multiply by
    gradients    as wide as the weights
    optimizer    SGD with momentum and RMSprop one array as large as the weights, Adam two
    input        the images in fp32 and the labels in int64

Not in it: what a framework takes before it does anything (a CUDA context, libraries), the
workspaces of its convolution algorithms, and the rounding and gaps of its allocator.
"""

from __future__ import annotations

import math
from collections import Counter

from cubemesh.errors import UsageError
from cubemesh.model.forecast import MemoryForecast
from cubemesh.model.spec import Optimizer, Precision
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import Add, Convolution, Linear
from cubemesh.networks.saved import (
    ELEMENT_BYTES,
    FED_BYTES,
    LABEL_BYTES,
    Flow,
    Kept,
    log_probabilities,
    saved,
)

OPTIMIZER_ARRAYS: dict[Optimizer, int] = {"sgd": 1, "rmsprop": 1, "adam": 2}
"""Arrays as large as the weights that each optimizer keeps."""
_UPDATE_ARRAYS: dict[Optimizer, int] = {"sgd": 0, "rmsprop": 1, "adam": 1}
"""Arrays as large as the weights that live during the update: the square root of a mean square."""


def forecast(
    network: Network,
    batch: int,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    training: bool = True,
) -> MemoryForecast:
    """Bytes one device needs for steps of `batch` samples.

    Without `training` it is the forward pass and the loss alone, which keep nothing. Raises
    UsageError for a batch below 1.
    """
    if batch < 1:
        raise UsageError(f"batch={batch} is too small: a batch has 1 sample or more.")
    width = ELEMENT_BYTES[precision]
    master = max(width, 4)
    parameter_bytes = network.parameter_count * master
    state_bytes = sum(math.prod(s.shape) for s in network.state.values()) * master
    flow = Flow(network)
    walk = _Walk(flow, batch, width, keeping=training)
    kept_bytes = walk.run()
    workspace = walk.peak_bytes - kept_bytes
    if training:
        update_bytes = _UPDATE_ARRAYS[optimizer] * parameter_bytes
        workspace = max(workspace, update_bytes - kept_bytes)
    return MemoryForecast(
        weight_bytes=parameter_bytes + state_bytes + _narrow_copies(network, width),
        gradient_bytes=parameter_bytes if training else 0,
        optimizer_bytes=OPTIMIZER_ARRAYS[optimizer] * parameter_bytes if training else 0,
        activation_bytes=kept_bytes,
        workspace_bytes=workspace,
        input_bytes=batch * _sample_bytes(network),
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


def _narrow_copies(network: Network, width: int) -> int:
    """Bytes of the half-precision copies made of fp32 weights for each step."""
    if width >= 4:
        return 0
    multiplied = {
        name
        for node in network.nodes
        if isinstance(node.layer, (Convolution, Linear))
        for name in node.parameters.values()
    }
    return sum(math.prod(network.parameters[name].shape) for name in multiplied) * width


def _sample_bytes(network: Network) -> int:
    images = sum(math.prod(i.shape) for i in network.inputs) * FED_BYTES
    return images + sum(math.prod(t.shape) for t in network.targets) * LABEL_BYTES


class _Walk:
    """A step as a sequence of allocations; `peak_bytes` is the most alive at once.

    Weights, persistent gradients, optimizer state and the fed batch are not in it. A gradient is an
    array as a value is: `Add` hands its own to both inputs, a view to its one.
    """

    def __init__(self, flow: Flow, batch: int, width: int, keeping: bool) -> None:
        self.flow = flow
        self.network = flow.network
        self.batch = batch
        self.width = width
        self.keeping = keeping
        self.alive: dict[str, int] = {}
        self.alive_bytes = 0
        self.peak_bytes = 0

    def run(self) -> int:
        """Walk through the step; returns the bytes kept between the passes."""
        kept = self._forward()
        if self.keeping:
            self._backward()
        return kept

    def _allocate(self, name: str, size: int) -> None:
        if name not in self.alive:
            self.alive[name] = size
            self.alive_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.alive_bytes)

    def _free(self, name: str) -> None:
        self.alive_bytes -= self.alive.pop(name, 0)

    def _value_bytes(self, value: str) -> int:
        return self.batch * math.prod(self.network.shapes[value]) * self.width

    def _keep(self, kept: Kept) -> None:
        self._allocate(kept.name, kept.size_bytes(self.batch, self.width))

    def _forward(self) -> int:
        storage, nodes, heads = self.flow.storage, self.network.nodes, self.network.heads
        readers = Counter(storage[i] for node in nodes for i in node.inputs)
        readers.update(storage[h.value] for h in heads)
        kept = saved(self.network, self.flow) if self.keeping else {}
        kept_names = {k.name for arrays in kept.values() for k in arrays}
        for node in nodes:
            if storage[node.name] == node.name:
                self._allocate(node.name, self._value_bytes(node.name))
            for array in kept.get(node.name, ()):
                self._keep(array)
            for value in node.inputs:
                readers[storage[value]] -= 1
                if not readers[storage[value]] and storage[value] not in kept_names:
                    self._free(storage[value])
        for head in heads:
            self._keep(log_probabilities(self.network, head))
            if storage[head.value] not in kept_names:
                self._free(storage[head.value])
        return self.alive_bytes if self.keeping else 0

    def _backward(self) -> None:
        gradients: dict[str, str] = {}
        """Value → array its gradient lies in, until the value's own node has used it."""
        first_keeper: dict[str, str] = {}
        for node in self.network.nodes:
            for array in self.flow.kept(node):
                first_keeper.setdefault(array.name, node.name)
        last_use: dict[str, list[str]] = {}
        for name, keeper in first_keeper.items():
            last_use.setdefault(keeper, []).append(name)
        for head in self.network.heads:
            self._allocate(f"d {head.value}", self._value_bytes(head.value))
            gradients[head.value] = f"d {head.value}"
            self._free(log_probabilities(self.network, head).name)
        for node in reversed(self.network.nodes):
            if node.name in gradients:
                self._backward_node(node, gradients)
            for name in last_use.get(node.name, ()):
                self._free(name)

    def _backward_node(self, node: Node, gradients: dict[str, str]) -> None:
        own = gradients.pop(node.name)
        for value in node.inputs:
            if value not in self.flow.needs_gradient:
                continue
            handed_on = isinstance(node.layer, Add) or node.layer.category == "view"
            arriving = own if handed_on else f"d {value} from {node.name}"
            self._allocate(arriving, self._value_bytes(value))
            if value in gradients:
                # Summed into a new array: either one may be another value's gradient as well.
                before, summed = gradients[value], f"d {value} with {node.name}"
                self._allocate(summed, self._value_bytes(value))
                gradients[value] = summed
                self._free_unused(gradients, before, arriving)
            else:
                gradients[value] = arriving
        # A fresh weight gradient lives until it is added to the one that persists.
        fresh = f"dw {node.name}"
        shapes = [self.network.parameters[p].shape for p in node.parameters.values()]
        self._allocate(fresh, sum(math.prod(s) for s in shapes) * max(self.width, 4))
        self._free(fresh)
        self._free_unused(gradients, own)

    def _free_unused(self, gradients: dict[str, str], *names: str) -> None:
        for name in names:
            if name not in gradients.values():
                self._free(name)
