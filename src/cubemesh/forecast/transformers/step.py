"""Time of a transformer's training step, by layout: its parts, and what the step uses of the peak.

Per micro-batch of n tokens on a device, each matrix product of a layer takes its operations at the
attained share of the peak, and its operands' bytes at that of the memory's bandwidth; fused
attention its operations (half of them where it is causal) at a share of its own, unfused attention
13 bytes of scores for each pair of tokens and head; norms, activations and additions
their bytes. Backward takes twice as much, fused attention 2.5 times; recomputation adds a forward.

    tensor     four all-reduces of a layer's 2 n h bytes (six with full recomputation), as reduce-
               scatters and all-gathers under sequence parallelism, of which a share is exposed
    context    the keys and values of the other devices, three times, likewise
    pipeline   what sending to the next stage takes longer than the layers between two sends
    bubble     (p - 1) / v micro-batches of a stage, for p stages of v interleaved parts
    data       gradients reduced, and weights gathered where they are sharded: a share is exposed,
               and what a micro-batch is too short for. Sharded weights (zero=3) are gathered twice
               per micro-batch, or twice per step in a pipeline.
    update     30 bytes for each parameter that a device updates, and a time of its own

The slowest stage, often the one with the output matrix, sets the pace of all micro-batches.
Collectives are those of `forecast/communication.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cubemesh.errors import UsageError, unknown_name
from cubemesh.forecast.transformers.factors import (
    BYTES_SHARE,
    STYLES,
    fitted_values,
    generation,
)
from cubemesh.forecast.transformers.groups import Groups
from cubemesh.forecast.transformers.layout import TrainingPlan, check_plan
from cubemesh.forecast.transformers.memory import (
    WEIGHT_BYTES,
    LayoutMemory,
    memory,
    stage_parameters,
)
from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.datasheet import Datasheet
from cubemesh.machines.catalogue.system import System

PRECISIONS = ("bf16", "fp16", "fp8")
ADAM_BYTES = 30
"""Read and written for a parameter: gradient, 32-bit weight, momentum and variance, and the 16-bit
weight."""
SCORE_BYTES = 13
"""Six and a half accesses of two bytes: product, softmax in and out, dropout in and out with its
mask, and the second product."""
UNFUSED_LLAMA = 18, 10, 5
"""Accesses of two bytes per value of RMSNorm and of rotary embedding, which PyTorch computes in 32
bits, and of a gated activation, operation by operation; fused 2, 2 and 3."""
MEMORY_MARGIN = 1.15
"""Above so many times the memory a layout is refused: published runs fit up to there."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Peaks of a device, and its memory."""

    peak_flops_per_s: float
    """Of the datasheet; the next two at the clock that its power limit allows."""
    matrix_flops_per_s: float
    flops16_per_s: float
    bytes_per_s: float
    memory_bytes: float
    generation: str
    source: str

    def faster(self, times: float) -> Rates:
        """Of a device that computes and moves so many times as fast."""
        return replace(
            self,
            matrix_flops_per_s=times * self.matrix_flops_per_s,
            flops16_per_s=times * self.flops16_per_s,
            bytes_per_s=times * self.bytes_per_s,
        )


@dataclass(frozen=True, kw_only=True)
class DirectionWork:
    """Forward work of a layer or of the output matrix per micro-batch, in seconds at the peaks."""

    matrix_s: float
    attention_s: float
    operands_s: float
    elementwise_s: float
    scores_s: float


@dataclass(frozen=True, kw_only=True)
class PlanWork:
    """A plan's work and communication, before any fitted factor."""

    layer: DirectionWork
    output: DirectionWork
    tensor_s: float
    """Of a layer's two collectives of one direction."""
    context_s: float
    send_s: float
    """From a stage to the next, forward and backward."""
    reduce_s: float
    gather_s: float
    """Of all weights of a stage."""
    replicate_s: float
    """Sum of gradients over the groups that shard."""
    update_s: float


@dataclass(frozen=True, kw_only=True)
class LayoutForecast:
    """A step of one plan."""

    plan: TrainingPlan
    parts_s: Mapping[str, float]
    memory: LayoutMemory
    device_memory_bytes: float
    peak_flops_per_s: float
    peak_source: str

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.parts_s.values())

    @property
    def samples_per_s(self) -> float:
        """Sequences, of all devices."""
        return self.plan.global_batch / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Of all devices."""
        return self.samples_per_s * self.plan.sequence_length

    @property
    def model_flops_per_s(self) -> float:
        """Of one device, without recomputation."""
        each = self.tokens_per_s / self.plan.layout.devices
        return each * self.plan.network.token_flops(self.plan.sequence_length)

    @property
    def utilization(self) -> float:
        """Model FLOPs utilization (MFU): of the dense peak of the precision."""
        return self.model_flops_per_s / self.peak_flops_per_s

    @property
    def fits(self) -> bool:
        """Whether a device's memory is enough."""
        return self.memory.total_bytes <= self.device_memory_bytes

    @property
    def limit(self) -> str:
        """The largest loss, or the device where each is below 5 % of the step."""
        losses = {key: value for key, value in self.parts_s.items() if key not in _COMPUTED}
        worst = max(losses, key=lambda key: losses[key])
        return worst if losses[worst] > LOSS_SHARE * self.step_s else "operations of a device"


_COMPUTED = ("forward", "backward")
LOSS_SHARE = 0.05


def device_rates(system: System, precision: str) -> Rates:
    """Of a system's device; UsageError for another precision or a device without such peaks."""
    if precision not in PRECISIONS:
        raise unknown_name("precision of transformers", precision, PRECISIONS, plural="precisions")
    sheet = datasheets().get(system.device)
    peak = None if sheet is None else sheet.peak(precision)
    peak16 = None if sheet is None else sheet.peak("bf16" if precision == "fp8" else precision)
    moved, room = (
        None if sheet is None else sheet.value(figure)
        for figure in ("memory_bytes_per_s", "memory_bytes")
    )
    if sheet is None or peak is None or peak16 is None or moved is None or room is None:
        raise UsageError(
            f"{system.name}: the catalogue has no peak in {precision}, or no memory, of "
            f"{system.device or 'its devices'}. Choose another precision or machine."
        )
    clock = _power_limited_clock(sheet)
    return Rates(
        peak_flops_per_s=peak.flops_per_s,
        matrix_flops_per_s=clock * peak.flops_per_s,
        flops16_per_s=clock * peak16.flops_per_s,
        bytes_per_s=moved,
        memory_bytes=room,
        generation=generation(sheet.architecture),
        source=f"{sheet.name}: dense {peak.computed_in}, {peak.source}",
    )


def _power_limited_clock(sheet: Datasheet) -> float:
    """Clock of matrix products, over that of the form of this processor with the highest power
    limit: the cube root of their ratio, as power grows with the clock and the voltage squared."""
    own = sheet.value("power_watts")
    alike = [
        watts
        for other in datasheets().values()
        if other.architecture == sheet.architecture
        if other.value("bf16") == sheet.value("bf16")
        if (watts := other.value("power_watts")) is not None
    ]
    return 1.0 if own is None else float((own / max(alike)) ** (1 / 3))


def forecast_layout(
    plan: TrainingPlan,
    groups: Groups,
    rates: Rates | None = None,
    factors: Mapping[str, float] | None = None,
) -> LayoutForecast:
    """The step of a plan that `check_plan` accepts."""
    at = rates or device_rates(plan.system, plan.precision)
    return LayoutForecast(
        plan=plan,
        parts_s=step_parts(plan, plan_work(plan, groups, at), at, factors or fitted_values()),
        memory=memory(plan),
        device_memory_bytes=at.memory_bytes,
        peak_flops_per_s=at.peak_flops_per_s,
        peak_source=at.source,
    )


def calibrated_rates(
    plan: TrainingPlan, groups: Groups, rates: Rates, measured: Mapping[int, float]
) -> Rates:
    """Rates of a device with which the plan on so many devices gives the measured sequences/s; of
    several the one with most devices counts. The plan differs in data-parallel size only, with a
    global batch in proportion.

    UsageError for devices that the layout cannot fill, or a rate that no device's speed gives.
    """
    devices, per_s = max(measured.items())
    smaller = _on_devices(plan, devices)
    if not (math.isfinite(per_s) and per_s > 0):
        raise UsageError(f"measured {devices}={per_s:g}: the rate must be above 0 sequences/s.")
    low, high = 0.01, 100.0
    for _ in range(60):
        speed = math.sqrt(low * high)
        found = forecast_layout(smaller, groups, rates.faster(speed))
        low, high = (speed, high) if found.samples_per_s < per_s else (low, speed)
    if abs(found.samples_per_s / per_s - 1) > 1e-3:
        raise UsageError(
            f"measured {devices}={per_s:g}: no speed of {plan.system.device} gives this rate with "
            f"{smaller.layout}; communication alone gives {found.samples_per_s:.3g} sequences/s. "
            "Check rate, layout and batch."
        )
    return rates.faster(speed)


def _on_devices(plan: TrainingPlan, devices: int) -> TrainingPlan:
    """The plan with another number of data-parallel groups."""
    each = plan.layout.devices // plan.layout.dp
    batch, rest = divmod(plan.global_batch * devices, plan.layout.devices)
    if devices < 1 or devices % each or rest:
        raise UsageError(
            f"measured on {devices} devices: the layout needs a multiple of {each}, and a global "
            f"batch of {plan.global_batch} per {plan.layout.devices} devices a whole number there."
        )
    layout = replace(plan.layout, dp=devices // each, shard=0)
    smaller = replace(plan, layout=layout, global_batch=batch)
    check_plan(smaller, devices)
    return smaller


def plan_work(plan: TrainingPlan, groups: Groups, at: Rates) -> PlanWork:
    """Operations, bytes and communication of a plan, at the device's peaks."""
    layout, style = plan.layout, STYLES[plan.style]
    h, tp, n = plan.network.hidden, layout.tp, plan.tokens
    updated = stage_parameters(plan, plan.stage_layers, first=True, last=layout.pp == 1)
    members = layout.shard or layout.replicas
    gather_s = replicate_s = 0.0
    if layout.zero == 0:
        reduced = style.reduced_bytes * updated
        reduce_s = groups.seconds("all-reduce", reduced, layout.replicas, tp)
    else:  # a layer at a time
        layer, count = updated / plan.stage_layers, plan.stage_layers
        reduced = style.reduced_bytes * layer
        reduce_s = count * groups.seconds("reduce-scatter", reduced, members, tp)
        gather_s = count * groups.seconds("all-gather", WEIGHT_BYTES * layer, members, tp)
        replicate_s = groups.seconds(
            "all-reduce",
            style.reduced_bytes * updated / members,
            layout.replicas // members,
            tp * members,
        )
    stage = tp * layout.cp * layout.dp
    keys = 4 * n * layout.cp * plan.network.kv_width / tp
    return PlanWork(
        layer=_layer_work(plan, at),
        output=_output_work(plan, at),
        tensor_s=2 * groups.seconds("all-reduce", 2 * n * h, tp, 1),
        context_s=groups.seconds("all-gather", keys, layout.cp, tp),
        send_s=2 * groups.send_s(2 * n * h / tp, stage) if layout.pp > 1 else 0.0,
        reduce_s=reduce_s,
        gather_s=gather_s,
        replicate_s=replicate_s,
        update_s=ADAM_BYTES * updated / layout.sharded / at.bytes_per_s,
    )


def _layer_work(plan: TrainingPlan, at: Rates) -> DirectionWork:
    network, tp, n, style = plan.network, plan.layout.tp, plan.tokens, STYLES[plan.style]
    h, f, kv = network.hidden, network.ffn, network.kv_width
    gates = 2 if network.gated else 1
    products = ((h, (h + 2 * kv) / tp), (h / tp, h), (h, gates * f / tp), (f / tp, h))
    fused = plan.attention != "unfused"
    seen = plan.sequence_length / (2 if network.causal and fused else 1)
    norm, rotary, gate = (2, 2, 3) if plan.network.biases or style.fused else UNFUSED_LLAMA
    norms = (2 * norm + 6) * h / (tp if plan.layout.sp else 1)
    inner = (rotary * (h + kv) + (gate if network.gated else 2) * f) / tp
    scores = 0.0 if fused else SCORE_BYTES * n * plan.sequence_length * network.heads / tp
    return DirectionWork(
        matrix_s=sum(2 * n * a * b for a, b in products) / at.matrix_flops_per_s,
        attention_s=4 * n * seen * h / tp / at.flops16_per_s,
        operands_s=sum(2 * (n * a + a * b + n * b) for a, b in products) / at.bytes_per_s,
        elementwise_s=2 * n * (norms + inner) / at.bytes_per_s,
        scores_s=scores / at.bytes_per_s,
    )


def _output_work(plan: TrainingPlan, at: Rates) -> DirectionWork:
    h, n, v = plan.network.hidden, plan.tokens, plan.network.vocabulary / plan.layout.tp
    return DirectionWork(
        matrix_s=2 * n * h * v / at.flops16_per_s,
        attention_s=0.0,
        operands_s=(2 * (n * h + h * v + n * v) + 12 * n * v) / at.bytes_per_s,
        elementwise_s=0.0,
        scores_s=0.0,
    )


def step_parts(
    plan: TrainingPlan, work: PlanWork, at: Rates, factors: Mapping[str, float]
) -> dict[str, float]:
    """The parts of a step in seconds, with the fitted factors."""
    layout, style = plan.layout, STYLES[plan.style]
    fused = plan.attention != "unfused"
    of_peak16 = factors[f"{at.generation}_16"]
    of_peak = factors.get(f"{at.generation}_8", of_peak16) if plan.precision == "fp8" else of_peak16
    of_attention = of_peak16
    if fused:
        plain = factors[f"{at.generation}_attention"]
        of_attention = factors.get(f"{at.generation}_{style.attention}", plain)
        if plan.attention == "flash-v1":
            of_attention = plain * factors["flash_v1"]
    passes = factors[style.elementwise]
    layer = work.layer
    attention_s = layer.attention_s / of_attention
    moved_s = (layer.operands_s + passes * layer.elementwise_s + layer.scores_s) / BYTES_SHARE
    rest_s = layer.matrix_s / of_peak + moved_s
    forward_s = rest_s + attention_s
    backward_s = 2 * rest_s + (2.5 if fused else 2) * attention_s
    again_s = plan.recomputed_share * forward_s
    if plan.recompute == "selective" and style.selective_per_op:
        products_s = layer.matrix_s / of_peak + layer.operands_s / BYTES_SHARE
        again_s = products_s / 2 + passes * layer.elementwise_s / BYTES_SHARE
    elif plan.recompute == "selective" and not fused:
        again_s = attention_s + layer.scores_s / BYTES_SHARE
    output_s = work.output.matrix_s / of_peak16 + work.output.operands_s / BYTES_SHARE
    exposed = factors["exposed_tensor"]
    tensor_s = exposed * (2 + plan.recomputed_share) * work.tensor_s
    context_s = exposed * 3 * work.context_s
    layer_s = forward_s + backward_s + again_s + tensor_s + context_s
    send_s = layout.vp * max(0.0, work.send_s - plan.chunk_layers * layer_s)
    middle_s = plan.stage_layers * layer_s
    last = layout.pp == 1 or plan.last_layers * layer_s + 3 * output_s >= middle_s
    layers = plan.last_layers if last else plan.stage_layers
    output_s = output_s if last else 0.0
    stage_forward_s = layers * forward_s + output_s
    stage_backward_s = layers * (backward_s + again_s) + 2 * output_s
    micro = plan.global_batch / (plan.micro_batch * layout.dp)
    return {
        "forward": micro * stage_forward_s,
        "backward": micro * (layers * backward_s + 2 * output_s),
        "recompute": micro * layers * again_s,
        "tensor": micro * layers * tensor_s,
        "context": micro * layers * context_s,
        "pipeline": micro * send_s,
        "bubble": (layout.pp - 1) * (middle_s + send_s) / layout.vp,
        "data": _data_s(plan, work, factors, stage_forward_s, stage_backward_s),
        "update": work.update_s / BYTES_SHARE + factors["step_s"],
    }


def _data_s(
    plan: TrainingPlan,
    work: PlanWork,
    factors: Mapping[str, float],
    forward_s: float,
    backward_s: float,
) -> float:
    """Exposed communication of data-parallel devices; a stage's passes can hide the rest."""
    share = factors["exposed_data"]
    gather_s, reduce_s = work.gather_s, work.reduce_s
    if plan.layout.zero == 3 and plan.layout.pp == 1:
        of_pass = factors["exposed_fsdp"]
        longer = max(0.0, gather_s - forward_s) + max(0.0, gather_s + reduce_s - backward_s)
        each = of_pass * (2 * gather_s + reduce_s) + (1 - of_pass) * longer
        return plan.micro_batches * each + share * work.replicate_s
    times = 2 if plan.layout.zero == 3 else 1
    total = reduce_s + times * gather_s + work.replicate_s
    return share * total + max(0.0, (1 - share) * total - forward_s - backward_s)
