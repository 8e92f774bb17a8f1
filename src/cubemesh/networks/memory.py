"""Memory forecast: the memory that training needs, and the largest batch size that fits.

A forecast for an eager framework that frees every array with its last reader (PyTorch), by walking
through the step as it runs (`step_walk.py`): the forward pass makes values and keeps some
(`saved.py`), the backward pass makes gradients and lets go of what it has used, the update has
temporaries of its own. The forecast is the fullest moment of that walk, taken apart. Beside it
stand, all the time:

    weights      4 bytes a parameter (fp64: 8), the running statistics
    optimizer    SGD with momentum, LARS and RMSprop one array as large as the weights, Adam and
                 AdamW two
    input        the images in fp32 (fp64: 8 bytes), tokens and labels in int64

Gradients are as wide as the weights. They come one by one during the backward pass and are dropped
before the next step, so in a deep network few of them exist while the activations are all there. In
mixed precision the forward pass makes narrow copies of what convolutions and matrix products
multiply by; the backward pass lets go of each after its layer, and then widens its gradient.

On a GPU the libraries' own workspaces are in it (`workspaces.py`). Not in it: what a framework
takes before it does anything (a CUDA context), workspaces on a CPU, and the rounding and gaps of an
allocator.
"""

from __future__ import annotations

import math
from typing import Literal, TypedDict

from cubemesh.errors import UsageError
from cubemesh.networks.activation_memory import ELEMENT_BYTES, FED_BYTES, LABEL_BYTES, GradientFlow
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Convolution
from cubemesh.networks.memory_simulation import StepSimulation
from cubemesh.networks.workspaces import Workspaces, convolution_workspaces, library_bytes
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import Layout, Precision, RunSpec
from cubemesh.schema.work import Optimizer, Training

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

DeviceKind = Literal["cpu", "cuda"]


def forecast(
    network: Network,
    batch: int,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    training: bool = True,
    *,
    device: DeviceKind = "cpu",
    layout: Layout = "nchw",
) -> MemoryForecast:
    """Bytes one device needs for steps of `batch` samples, at the fullest moment of a step.

    `layout` counts on a GPU alone, where convolutions turn what does not lie as they want it.
    Without `training` it is the forward pass and the loss alone, which keep nothing. Raises
    UsageError for a batch below 1.
    """
    if batch < 1:
        raise UsageError(f"batch={batch} is too small: a batch has 1 sample or more.")
    width = ELEMENT_BYTES[precision]
    master = max(width, 4)
    parameter_bytes = network.parameter_count * master
    state_bytes = sum(math.prod(s.shape) for s in network.state.values()) * master
    taken = _workspaces(network, batch, precision, layout) if device == "cuda" else {}
    fullest = StepSimulation(GradientFlow(network), batch, width, training, taken).fullest()
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
        library_bytes=library_bytes(training) if device == "cuda" else 0,
    )


def largest_batch(
    network: Network,
    limit_bytes: int,
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    training: bool = True,
    *,
    device: DeviceKind = "cpu",
    layout: Layout = "nchw",
) -> int:
    """The largest batch whose forecast stays within `limit_bytes`; 0 when not even one fits."""

    def fits(batch: int) -> bool:
        needed = forecast(
            network, batch, precision, optimizer, training, device=device, layout=layout
        )
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


class MemorySettings(TypedDict):
    """What of a spec, but for the network and its minibatch, decides the memory it needs."""

    precision: Precision
    optimizer: Optimizer
    training: bool
    device: DeviceKind
    layout: Layout


def memory_settings(spec: RunSpec, device: str) -> MemorySettings:
    """Those of `spec` on `device` (`cpu`, `cuda:0`), as keywords of the functions above."""
    work = spec.work
    trains = isinstance(work, Training)
    return MemorySettings(
        precision=spec.program.precision,
        optimizer=work.optimizer if isinstance(work, Training) else "sgd",
        training=trains,
        device="cuda" if device.startswith("cuda") else "cpu",
        layout=spec.program.layout,
    )


def _workspaces(
    network: Network, batch: int, precision: Precision, layout: Layout
) -> dict[str, Workspaces]:
    """Node → what its convolution takes while it computes."""
    return {
        node.name: convolution_workspaces(
            node.layer, network.shapes[node.inputs[0]], node.shape, batch, precision, layout
        )
        for node in network.nodes
        if isinstance(node.layer, Convolution)
    }


def _sample_bytes(network: Network, width: int) -> int:
    fed = sum(
        math.prod(i.shape) * (LABEL_BYTES if i.dtype == "integer" else max(width, FED_BYTES))
        for i in network.inputs
    )
    return fed + sum(math.prod(t.shape) for t in network.targets) * LABEL_BYTES
