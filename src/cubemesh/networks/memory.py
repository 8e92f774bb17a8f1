"""Memory forecast: the memory that training needs, and the largest batch size that fits.

A forecast for an eager framework that frees every array after its last reader (PyTorch), by
simulating the step (`memory_simulation.py`): the forward pass computes values and saves some
(`activation_memory.py`), the backward pass computes gradients and frees what it has used, the
update has temporaries. The forecast is the peak of that simulation, by category. Permanent memory:

    weights      4 bytes a parameter (fp64: 8), the running statistics
    optimizer    SGD with momentum, LARS and RMSprop one array as large as the weights, Adam and
                 AdamW two
    input        the images in fp32 (fp64: 8 bytes), tokens and labels in int64

Gradients have the precision of the weights. They are computed one by one during the backward pass
and freed before the next step, so in a deep network few exist while all activations do. In mixed
precision the forward pass makes low-precision copies of the weights of convolutions and matrix
products; the backward pass frees each after its layer, and converts its gradient to fp32.

On a GPU the libraries' workspaces are included (`workspaces.py`). Not included: what a framework
allocates at start (a CUDA context), workspaces on a CPU, and allocator overhead.
"""

from __future__ import annotations

import math
from typing import Literal, TypedDict

from cubemesh.errors import UsageError
from cubemesh.networks.activation_memory import (
    ELEMENT_BYTES,
    INPUT_BYTES,
    LABEL_BYTES,
    GradientFlow,
)
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Convolution
from cubemesh.networks.memory_simulation import StepSimulation
from cubemesh.networks.workspaces import Workspaces, convolution_workspaces, library_bytes
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import Layout, Precision, RunSpec
from cubemesh.schema.work import ForwardBackward, Optimizer, Training

OPTIMIZER_ARRAYS: dict[Optimizer, int] = {"sgd": 1, "rmsprop": 1, "adam": 2, "adamw": 2, "lars": 1}
"""Arrays of the weights' size that each optimizer stores."""

DeviceKind = Literal["cpu", "cuda"]


def forecast(
    network: Network,
    batch: int,
    precision: Precision = "fp32",
    optimizer: Optimizer | None = "sgd",
    training: bool = True,
    *,
    device: DeviceKind = "cpu",
    layout: Layout = "nchw",
) -> MemoryForecast:
    """Bytes one device needs for steps of `batch` samples, at the peak of a step.

    `layout` matters on a GPU only, where convolutions transpose other layouts. Without `training`
    it is the forward pass and the loss only, which save nothing; without an optimizer a step ends
    after the backward pass. UsageError for a batch below 1.
    """
    if batch < 1:
        raise UsageError(f"batch={batch} is too small: a batch has 1 sample or more.")
    width = ELEMENT_BYTES[precision]
    master = max(width, 4)
    parameter_bytes = network.parameter_count * master
    state_bytes = sum(math.prod(s.shape) for s in network.state.values()) * master
    workspaces = _workspaces(network, batch, precision, layout) if device == "cuda" else {}
    step = StepSimulation(GradientFlow(network), batch, width, training, workspaces)
    fullest = step.fullest()
    # RMSprop's square roots; LARS works in the gradients' own arrays, others are one fused kernel.
    update_bytes = parameter_bytes if optimizer == "rmsprop" else 0
    if training and sum(fullest.values()) < parameter_bytes + update_bytes:
        fullest = dict.fromkeys(fullest, 0)
        fullest |= {"gradients": parameter_bytes, "workspace": update_bytes}
    return MemoryForecast(
        weight_bytes=parameter_bytes + state_bytes + fullest["weights"],
        gradient_bytes=fullest["gradients"],
        optimizer_bytes=OPTIMIZER_ARRAYS[optimizer] * parameter_bytes
        if training and optimizer
        else 0,
        activation_bytes=fullest["activations"],
        workspace_bytes=fullest["workspace"],
        input_bytes=batch * _sample_bytes(network, width),
        library_bytes=library_bytes(training) if device == "cuda" else 0,
    )


def largest_batch(
    network: Network,
    limit_bytes: int,
    precision: Precision = "fp32",
    optimizer: Optimizer | None = "sgd",
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
    """The settings of a spec, besides network and batch size, that determine its memory."""

    precision: Precision
    optimizer: Optimizer | None
    training: bool
    device: DeviceKind
    layout: Layout


def memory_settings(spec: RunSpec, device: str) -> MemorySettings:
    """Those of `spec` on `device` (`cpu`, `cuda:0`), as keywords of the functions above."""
    work = spec.work
    return MemorySettings(
        precision=spec.program.precision,
        optimizer=work.optimizer if isinstance(work, Training) else None,
        training=isinstance(work, Training | ForwardBackward),
        device="cuda" if device.startswith("cuda") else "cpu",
        layout=spec.program.layout,
    )


def _workspaces(
    network: Network, batch: int, precision: Precision, layout: Layout
) -> dict[str, Workspaces]:
    """Node → workspaces of its convolution."""
    return {
        node.name: convolution_workspaces(
            node.layer, network.shapes[node.inputs[0]], node.shape, batch, precision, layout
        )
        for node in network.nodes
        if isinstance(node.layer, Convolution)
    }


def _sample_bytes(network: Network, width: int) -> int:
    inputs = sum(
        math.prod(i.shape) * (LABEL_BYTES if i.dtype == "integer" else max(width, INPUT_BYTES))
        for i in network.inputs
    )
    return inputs + sum(math.prod(t.shape) for t in network.targets) * LABEL_BYTES
