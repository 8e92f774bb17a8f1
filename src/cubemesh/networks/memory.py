"""Memory forecast: the memory that training needs, and the largest batch size that fits.

A forecast for an eager framework that frees every array after its last reader (PyTorch), by
simulating the step (`memory_simulation.py`): the forward pass computes values and saves some
(`activation_memory.py`), the backward pass computes gradients and frees what it has used, the
update has temporaries. The forecast is the peak of that simulation, by category. Permanent memory:

    weights      4 bytes a parameter (fp64: 8), the running statistics
    optimizer    SGD with momentum, LARS and RMSprop one array as large as the weights, Adam and
                 AdamW two; with 8-bit moments two bytes a weight and two scales a block
    input        the images in fp32 (fp64: 8 bytes), tokens and labels in int64

Gradients have the precision of the weights. They are computed one by one during the backward pass
and freed before the next step, so in a deep network few exist while all activations do. In mixed
precision the forward pass makes low-precision copies of the weights of convolutions and matrix
products; the backward pass frees each after its layer, and converts its gradient to fp32.

Of several micro-batches (`accumulation_steps`) one at a time has activations, and the gradients of
all weights exist. Segments whose activations are computed again in the backward pass save the
values that they read only (`recomputed`).

Of data-parallel devices (`sharding`) each has the gradients of all weights, in buckets that are
averaged, or a part of the optimizer's state, of the gradients and of the weights (ZeRO).

On a GPU the libraries' workspaces are included (`workspaces.py`). Not included: what a framework
allocates at start (a CUDA context), workspaces on a CPU, and allocator overhead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Literal, TypedDict

from cubemesh.errors import UsageError
from cubemesh.networks.activation_memory import (
    ELEMENT_BYTES,
    INPUT_BYTES,
    LABEL_BYTES,
    GradientFlow,
)
from cubemesh.networks.cost import costs
from cubemesh.networks.graph import Network
from cubemesh.networks.layers import Convolution
from cubemesh.networks.memory_simulation import Sharding, StepSimulation, gradient_bytes
from cubemesh.networks.opaque import Opaque
from cubemesh.networks.workspaces import Workspaces, convolution_workspaces, library_bytes
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.spec import Layout, Precision, RunSpec
from cubemesh.schema.work import AccumulatedWork, ForwardBackward, Optimizer, Training

OPTIMIZER_ARRAYS: dict[Optimizer, int] = {
    "sgd": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
    "adamw-8bit": 2,
    "lars": 1,
}
"""Arrays of the weights' size that each optimizer stores."""
EIGHT_BIT_BLOCK = 256
"""Values of an 8-bit moment that share a scale, of the weights' type."""
FEWEST_EIGHT_BIT_VALUES = 4096
"""Smaller arrays have moments of the weights' type (Dettmers et al. 2022)."""
EIGHT_BIT_CHUNK = 2**22
"""Values that an update of 8-bit moments computes at once."""
_EIGHT_BIT_TEMPORARIES = 8
"""Arrays of a chunk that exist at once, of the weights' type; 32-bit indices count as one."""

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
    accumulation_steps: int = 1,
    recomputed: Collection[str] = (),
    sharding: Sharding | None = None,
) -> MemoryForecast:
    """Bytes one device needs for steps of `batch` samples, at the peak of a step, in
    `accumulation_steps` micro-batches, of segments `recomputed` in the backward pass, as one of the
    ranks of `sharding`.

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
    micro = -(-batch // accumulation_steps)
    workspaces = _workspaces(network, micro, precision, layout) if device == "cuda" else {}
    step = StepSimulation(
        GradientFlow(network),
        micro,
        width,
        training,
        workspaces,
        recomputed=recomputed,
        accumulates=accumulation_steps > 1,
        sharding=sharding,
    )
    fullest = step.fullest()
    whole = sum(gradient_bytes(network, name, micro, master) for name in network.parameters)
    optimizer_bytes, all_gradients, weight_bytes = (
        of_all if sharding is None else sharding.part(of_all, stage)
        for of_all, stage in ((parameter_bytes, 1), (whole, 2), (parameter_bytes, 2))
    )  # weights are divided between two steps in stage 2 as well
    if sharding is not None and sharding.zero_stage == 1:  # each array is of one rank
        optimizer_bytes = max(optimizer_bytes, _largest(network) * master)
    # RMSprop's square roots; LARS works in the gradients' own arrays, others are one fused kernel.
    update_bytes = optimizer_bytes if optimizer == "rmsprop" else 0
    if optimizer == "adamw-8bit":
        update_bytes = _EIGHT_BIT_TEMPORARIES * min(EIGHT_BIT_CHUNK, _largest(network)) * master
    if training and sum(fullest.values()) < all_gradients + update_bytes:
        fullest = dict.fromkeys(fullest, 0)
        fullest |= {"gradients": all_gradients, "workspace": update_bytes}
    return MemoryForecast(
        weight_bytes=weight_bytes + state_bytes + fullest["weights"],
        gradient_bytes=fullest["gradients"],
        optimizer_bytes=_optimizer_bytes(network, optimizer, master)
        * optimizer_bytes
        // (parameter_bytes or 1)
        if training and optimizer
        else 0,
        activation_bytes=fullest["activations"],
        workspace_bytes=fullest["workspace"],
        input_bytes=batch * _sample_bytes(network, width),
        library_bytes=library_bytes(training) if device == "cuda" else 0,
    )


def largest_batch(
    needed: Callable[[int], MemoryForecast], limit_bytes: int, accumulation_steps: int = 1
) -> int:
    """The largest batch, of `accumulation_steps` micro-batches of equal size, whose forecast, as
    `needed` gives it, stays within `limit_bytes`; 0 when not even the smallest fits."""

    def fits(micro: int) -> bool:
        return needed(micro * accumulation_steps).total_bytes <= limit_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * accumulation_steps


def recomputable_segments(network: Network) -> tuple[str, ...]:
    """The segments whose activations can be computed again: all but the last, whose backward pass
    follows its forward pass. None of a module that runs as it is."""
    if any(isinstance(node.layer, Opaque) for node in network.nodes):
        return ()
    needed = {node.name for node in network.needed()}
    used = [s.name for s in network.segments if not needed.isdisjoint(s.nodes)]
    return tuple(used[:-1])


def recomputed_segments(
    network: Network,
    spec: RunSpec,
    device: str,
    limit_bytes: int | None,
    sharding: Sharding | None = None,
) -> tuple[str, ...]:
    """The segments that a run of `spec` on `device` recomputes. With
    `checkpoint_activations=auto`: none where the forecast is within `limit_bytes` or the limit is
    unknown; else one after another, those first that free most bytes for each operation, until it
    is."""
    able = recomputable_segments(network)
    asked = spec.program.checkpoint_activations
    if asked != "auto" or limit_bytes is None:
        return able if asked == "segments" else ()
    batch = spec.batch_per_device or 1
    settings = memory_settings(spec, device, network, sharding)

    def fits(chosen: Collection[str]) -> bool:
        needed = forecast(network, batch, **{**settings, "recomputed": tuple(chosen)})  # type: ignore[arg-type]
        return needed.total_bytes <= limit_bytes

    cost = costs(network, 1, spec.program.precision)
    gain = {}
    for segment in network.segments:
        forward = [cost[node].forward for node in segment.nodes]
        flops = sum(c.matrix_flops + c.other_flops for c in forward)
        gain[segment.name] = sum(c.saved_bytes for c in forward) / max(1.0, flops)
    order = sorted(able, key=lambda name: -gain[name])
    count = 0
    while count < len(order) and not fits(order[:count]):
        count += 1
    chosen = set(order[:count])
    return tuple(name for name in able if name in chosen)


def recomputed_flops(network: Network, recomputed: Collection[str]) -> tuple[float, float]:
    """Matrix operations of a sample that are computed a second time, and those of its step."""
    cost = costs(network)
    again = sum(
        cost[node].forward.matrix_flops
        for segment in network.segments
        if segment.name in recomputed
        for node in segment.nodes
    )
    return again, sum(layer.total.matrix_flops for layer in cost.values())


class MemorySettings(TypedDict):
    """The settings of a spec, besides network and batch size, that determine its memory."""

    precision: Precision
    optimizer: Optimizer | None
    training: bool
    device: DeviceKind
    layout: Layout
    accumulation_steps: int
    recomputed: tuple[str, ...]
    sharding: Sharding | None


def memory_settings(
    spec: RunSpec, device: str, network: Network, sharding: Sharding | None = None
) -> MemorySettings:
    """Those of `spec` on `device` (`cpu`, `cuda:0`), as keywords of `forecast`; `sharding`
    is that of its strategy. With `checkpoint_activations=auto` every segment is recomputed: it is
    what the run can do to fit."""
    work = spec.work
    recomputes = spec.program.checkpoint_activations != "none"
    return MemorySettings(
        precision=spec.program.precision,
        optimizer=work.optimizer if isinstance(work, Training) else None,
        training=isinstance(work, Training | ForwardBackward),
        device="cuda" if device.startswith("cuda") else "cpu",
        layout=spec.program.layout,
        accumulation_steps=work.accumulation_steps if isinstance(work, AccumulatedWork) else 1,
        recomputed=recomputable_segments(network) if recomputes else (),
        sharding=sharding,
    )


def _optimizer_bytes(network: Network, optimizer: Optimizer, master: int) -> int:
    """Of the optimizer's arrays, for weights of `master` bytes a value; with sparse gradients it is
    SGD without momentum, which has none."""
    if network.sparse_gradients:
        return 0

    def of_array(count: int) -> int:
        if optimizer == "adamw-8bit" and count >= FEWEST_EIGHT_BIT_VALUES:
            return count + -(-count // EIGHT_BIT_BLOCK) * master
        return count * master

    counts = (math.prod(p.shape) for p in network.parameters.values())
    return OPTIMIZER_ARRAYS[optimizer] * sum(map(of_array, counts))


def _largest(network: Network) -> int:
    return max((math.prod(p.shape) for p in network.parameters.values()), default=0)


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
