"""Attained share of peak and bandwidth: a training step of one device, from its datasheet alone.

A step takes the time of its operations, of its bytes and of its kernels, one after the other:

    operations / (share · peak) + bytes / (share · bandwidth) + kernels · s + depth · s

Operations and bytes are those of each layer's passes (`networks/cost.py`) and of the update. Shares
differ by unit (vector units, tensor cores) and kind of layer. Convolutions of 3 × 3 with stride 1
have one of their own on vector units, which Winograd's algorithm may take above 1: it saves up to
2.25 of the multiplications (A. Lavin, S. Gray, CVPR 2016; cuDNN 5). Tensor cores convolve images in
NHWC; in NCHW at 16 bits, arrays are transposed. The depth of a layer is what each of its results
sums up, one term after another, however few results there are. Where the host takes longer to
launch the layers, the step takes that time. All factors are fitted to published rates (`FITTED`).

Measured rates of other networks on the same device correct the forecast. Each factor is taken to
differ from device to device by a normal error of its logarithm (`FACTOR_SPREAD`), all of them by
one in common (`DEVICE_SPREAD`), and a rate by its own (`RATE_SPREAD`). The correction is the
expected error given those that were measured, so a network counts the more, the more alike both
spend their time (C. Rasmussen, C. Williams, Gaussian Processes for Machine Learning, 2006, 2.2).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cubemesh.machines.catalogue.datasheet import Datasheet
from cubemesh.networks.cost import costs
from cubemesh.networks.graph import Network, Node
from cubemesh.networks.layers import Convolution
from cubemesh.schema.spec import Layout, Precision

Unit = Literal["vector", "wide-vector", "tensor", "first-tensor", "kepler"]

SHARES = (
    *("conv_share", "winograd_share", "few_channels_share", "product_share"),
    *("wide_conv_share", "wide_winograd_share"),
    *("kepler_share", "kepler_winograd_share"),
    *("tensor_conv_share", "tensor_few_channels_share", "tensor_product_share"),
    *("first_tensor_share", "memory_share", "old_memory_share", "fused_share", "transpose_share"),
)
"""Factors by which an ideal time is divided."""
COUNTS = ("kernel_s", "old_kernel_s", "depth_s", "tensor_depth_s")
"""Factors by which an amount is multiplied."""
CEILING_SHARE = "ceiling_share"
"""Share of measured ceilings, of operations and of bytes."""
LAUNCH = "host_layer_s"
"""Seconds in which the host launches a layer's passes in a step."""
FACTORS = (*SHARES, *COUNTS, LAUNCH)

FITTED: dict[str, tuple[float, str]] = {
    "conv_share": (0.983, "convolutions in fp32 on vector units, over the peak"),
    "winograd_share": (1.67, "the same of 3 × 3 with stride 1, which Winograd's algorithm takes"),
    "few_channels_share": (0.196, "the same of images, which have three channels"),
    "product_share": (0.796, "matrix products in fp32 on vector units, over the peak"),
    "wide_conv_share": (0.537, "operations on vector units from Ampere on, over the peak"),
    "wide_winograd_share": (1.11, "the same of 3 × 3 convolutions with stride 1"),
    "kepler_share": (0.264, "operations on Kepler, over the peak"),
    "kepler_winograd_share": (0.887, "3 × 3 convolutions with stride 1 on Kepler, over the peak"),
    "tensor_conv_share": (1.0, "convolutions on tensor cores, over the peak"),
    "tensor_few_channels_share": (0.341, "the same of images"),
    "tensor_product_share": (0.781, "matrix products on tensor cores, over the peak"),
    "first_tensor_share": (0.258, "operations on tensor cores with libraries of 2017"),
    "memory_share": (0.651, "bytes moved from Volta on, over the bandwidth"),
    "old_memory_share": (0.522, "bytes moved before Volta, over the bandwidth"),
    "fused_share": (0.899, "bytes of element-wise layers that a compiler fuses"),
    "transpose_share": (0.647, "bytes transposed for tensor cores, images in NCHW at 16 bits"),
    "kernel_s": (1.42e-05, "time of a kernel from Volta on, added to its operations and bytes"),
    "old_kernel_s": (2.37e-05, "the same before Volta"),
    "depth_s": (1.72e-08, "time of an operation of a result, one after another"),
    "tensor_depth_s": (9.89e-10, "the same on tensor cores"),
    LAUNCH: (0.000156, "host time to launch a layer in a step, of one device alone"),
}
"""Factor → value and meaning."""
FITTED_TO = "406 published steps of one GPU (benchmarks/one_device_accuracy.py)"

DEVICE_SPREAD, FACTOR_SPREAD, RATE_SPREAD = 0.1, 0.8, 0.1
"""Of logarithms; the best of 27 for forecasts of devices that were left out."""
NINE_IN_TEN = 1.645
"""Standard deviations, up and down, that contain nine of ten normal values."""

FEW_CHANNELS = 4
"""Images have so many channels at most; a convolution of them fills no vector or matrix unit."""
WINOGRAD_SINCE = 2016
"""Year of cuDNN 5."""
TENSOR_LIBRARIES_SINCE = 2018
"""Before, few passes of a framework ran on tensor cores."""
TENSOR_PRECISIONS = ("tf32", "bf16", "fp16", "fp8")
OLD = {"Kepler", "Maxwell", "Pascal"}
"""Architectures before tensor cores, whose kernels take longer and use less of the memory."""
WIDE = {"Ampere", "Ada Lovelace", "Hopper", "Blackwell"}
"""Architectures with twice the vector units for each byte a second of their shared memory (NVIDIA
Ampere GA102 GPU architecture, 2021); of Ampere the A100 and A30 have as many as Volta."""
JUDGED = {*OLD, "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper"}
"""Architectures of the published rates."""
VALUE_BYTES = 4
UPDATE_ACCESSES = 5
"""Of a value each, in SGD with momentum."""


@dataclass(frozen=True, kw_only=True)
class Software:
    """What of a program decides how fast one device trains."""

    layout: Layout = "nchw"
    fused: bool = False
    """Whether a compiler fuses element-wise layers."""
    captured: bool = False
    """Whether the step is launched at once."""
    year: int = 2024
    """Of the vendor's libraries."""


EAGER = Software()
"""PyTorch, eager, with images in NCHW."""


@dataclass(frozen=True, kw_only=True)
class IdealStep:
    """What a step takes of each factor: seconds at the full rate for shares, counts for others."""

    amounts: Mapping[str, float]
    launches: float
    """Layers that the host launches; 0 where the step is launched at once."""

    def parts_s(self, factors: Mapping[str, float]) -> dict[str, float]:
        """Seconds of the device by factor."""
        return {
            name: amount * factors[name] if name in COUNTS else amount / factors[name]
            for name, amount in self.amounts.items()
        }

    def host_s(self, factors: Mapping[str, float]) -> float:
        """Seconds in which the host launches it."""
        return self.launches * factors[LAUNCH]

    def composition(self, factors: Mapping[str, float]) -> dict[str, float]:
        """Share of the step that is in proportion to each factor."""
        parts = self.parts_s(factors)
        device_s = sum(parts.values())
        if self.host_s(factors) > device_s:
            return {LAUNCH: 1.0}
        return {name: seconds / device_s for name, seconds in parts.items()}


@dataclass(frozen=True, kw_only=True)
class DatasheetStep:
    """A forecast step of one device."""

    device_s: float
    host_s: float
    """In which the host launches it; 0 where it is launched at once."""
    band: float
    """Factor, up and down, that contains nine of ten rates."""
    source: str

    @property
    def step_s(self) -> float:
        """Of the longer one."""
        return max(self.device_s, self.host_s)


def datasheet_step(
    ideal: IdealStep,
    factors: Mapping[str, float],
    band: float,
    source: str,
    others: Sequence[tuple[IdealStep, float]] = (),
) -> DatasheetStep:
    """The forecast step; corrected by `others`, steps of other networks on the same device and the
    seconds that they took. `band` is that without them."""
    log_error, spread = correction(ideal, factors, others)
    return DatasheetStep(
        device_s=sum(ideal.parts_s(factors).values()) * math.exp(log_error),
        host_s=ideal.host_s(factors) * math.exp(log_error),
        band=min(band, math.exp(NINE_IN_TEN * spread)) if others else band,
        source=source,
    )


def correction(
    ideal: IdealStep, factors: Mapping[str, float], others: Sequence[tuple[IdealStep, float]]
) -> tuple[float, float]:
    """(expected logarithm of measured over forecast, its standard deviation) given the seconds of
    `others`."""
    steps = [ideal, *(other for other, _ in others)]
    shares = [step.composition(factors) for step in steps]
    alike = np.array(
        [[sum(a[name] * b.get(name, 0.0) for name in a) for b in shares] for a in shares]
    )
    covariance = DEVICE_SPREAD**2 + FACTOR_SPREAD**2 * alike
    own, to_others, among = covariance[0, 0], covariance[0, 1:], covariance[1:, 1:]
    errors = [math.log(seconds / _step_s(other, factors)) for other, seconds in others]
    weights = np.linalg.solve(among + RATE_SPREAD**2 * np.eye(len(others)), to_others)
    variance = own - weights @ to_others + RATE_SPREAD**2
    return float(weights @ np.array(errors)), math.sqrt(variance)


def _step_s(ideal: IdealStep, factors: Mapping[str, float]) -> float:
    return max(sum(ideal.parts_s(factors).values()), ideal.host_s(factors))


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """Passes of a network that take the same way."""

    layer: Literal["convolution", "3x3", "few-channels", "product", "other"]
    matrix_flops: float
    moved_bytes: float
    depth: float
    """Operations for each result; 0 for those that are summed over the batch."""
    count: int


def is_judged(sheet: Datasheet, network: Network) -> bool:
    """Whether forecasts of such networks on such devices were compared with published rates."""
    convolutional = any(isinstance(node.layer, Convolution) for node in network.nodes)
    return convolutional and sheet.architecture in JUDGED


def ideal_step(
    network: Network,
    batch: int,
    precision: Precision,
    sheet: Datasheet,
    software: Software,
    *,
    update: bool = True,
) -> IdealStep | None:
    """A step of forward and backward pass, with the update or without; None where the datasheet
    lacks the peak or the bandwidth."""
    peak, bandwidth = sheet.peak(precision), sheet.value("memory_bytes_per_s")
    if peak is None or bandwidth is None:
        return None
    old = sheet.architecture in OLD
    tensor = peak.computed_in in TENSOR_PRECISIONS and not old
    unit: Unit = "vector"
    if tensor:
        unit = "tensor" if software.year >= TENSOR_LIBRARIES_SINCE else "first-tensor"
    elif sheet.architecture == "Kepler":
        unit = "kepler"
    elif sheet.architecture in WIDE:
        unit = "wide-vector"
    memory = "old_memory_share" if old else "memory_share"
    transposed = tensor and precision in ("bf16", "fp16") and software.layout == "nchw"
    amounts: dict[str, float] = defaultdict(float)
    for one in _passes(network, batch, precision):
        ideal_s = one.matrix_flops / peak.flops_per_s
        if ideal_s:
            amounts[_operations(one, unit, software)] += ideal_s
            amounts["tensor_depth_s" if tensor else "depth_s"] += one.depth
        where = "fused_share" if software.fused and one.layer == "other" else memory
        amounts[where] += one.moved_bytes / bandwidth
        if transposed and one.layer in ("convolution", "3x3", "few-channels"):
            amounts["transpose_share"] += one.moved_bytes / bandwidth
        if not (software.fused and one.layer == "other"):
            amounts["old_kernel_s" if old else "kernel_s"] += one.count
    if update:
        amounts[memory] += UPDATE_ACCESSES * VALUE_BYTES * network.parameter_count / bandwidth
    layers = len(network.nodes) + len(network.heads)
    return IdealStep(amounts=dict(amounts), launches=0.0 if software.captured else layers)


def ideal_step_of_ceilings(
    network: Network, batch: int, precision: Precision, flops_per_s: float, bytes_per_s: float
) -> IdealStep:
    """A step at the measured rates of a matrix product and of a copy, one after the other."""
    passes = _passes(network, batch, precision)
    moved = sum(one.moved_bytes for one in passes)
    moved += UPDATE_ACCESSES * VALUE_BYTES * network.parameter_count
    ideal_s = sum(one.matrix_flops for one in passes) / flops_per_s + moved / bytes_per_s
    return IdealStep(amounts={CEILING_SHARE: ideal_s}, launches=0.0)


def _operations(one: _Pass, unit: Unit, software: Software) -> str:
    """Which share its operations have."""
    fast = one.layer == "3x3" and software.year >= WINOGRAD_SINCE
    if unit == "kepler":
        return "kepler_winograd_share" if fast else "kepler_share"
    if unit == "first-tensor":
        return "first_tensor_share"
    if unit == "wide-vector":
        return "wide_winograd_share" if fast else "wide_conv_share"
    if unit == "tensor":
        kinds = {"few-channels": "tensor_few_channels_share", "product": "tensor_product_share"}
        return kinds.get(one.layer, "tensor_conv_share")
    if fast:
        return "winograd_share"
    kinds = {"few-channels": "few_channels_share", "product": "product_share"}
    return kinds.get(one.layer, "conv_share")


def _passes(network: Network, batch: int, precision: Precision) -> tuple[_Pass, ...]:
    """The passes of a step, those of a kind together."""
    nodes = {node.name: node for node in network.nodes}
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for name, cost in costs(network, batch, precision).items():
        node = nodes.get(name)
        each = (cost.forward, cost.data_gradient, cost.weight_gradient)
        layer = _layer(network, node, bool(cost.forward.matrix_flops))
        for passed, summed in zip(each, (False, False, True), strict=True):
            if passed.matrix_flops or passed.moved_bytes:
                results = batch * math.prod(node.shape) if node else 1
                depth = 0.0 if summed else passed.matrix_flops / results
                found[layer].append((passed.matrix_flops, passed.moved_bytes, depth))
    return tuple(
        _Pass(
            layer=layer,  # type: ignore[arg-type]
            matrix_flops=sum(p[0] for p in those),
            moved_bytes=sum(p[1] for p in those),
            depth=sum(p[2] for p in those),
            count=len(those),
        )
        for layer, those in found.items()
    )


def _layer(network: Network, node: Node | None, matrix: bool) -> str:
    if node is None or not matrix:
        return "other"
    if not isinstance(node.layer, Convolution):
        return "product"
    if network.parameters[node.parameters["weight"]].shape[1] <= FEW_CHANNELS:
        return "few-channels"
    plain = node.layer.stride == node.layer.dilation == (1, 1)
    return "3x3" if plain and node.layer.kernel == (3, 3) else "convolution"
