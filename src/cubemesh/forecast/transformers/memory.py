"""Memory per device of a transformer's training, of the stage of the pipeline that needs most.

For each parameter, in mixed precision with Adam, 2 bytes of weight, 2 or 4 of gradient (as the
style sums them) and 12 of optimizer states: 32-bit weight, momentum and variance. ZeRO stage 1
divides the states, stage 2 the gradients too, stage 3 the weights too (S. Rajbhandari et al.,
arXiv:1910.02054); then two layers' weights are gathered at a time, in a pipeline all of a stage's
weights and gradients.

Of activations, a layer saves for each token of h hidden values (V. Korthikanti et al.,
arXiv:2205.05198, equations 1, 2, 4 and 6, for any f, k d and number of heads a)

    GPT, BERT            12 h + 4 k d + 4 f bytes
    Llama                10 h + 4 k d + 6 f bytes
    unfused attention    2 h more for the masks of dropout, and 5 a s for scores
    full recomputation   2 h, and one layer's all at a time
    selective            no scores, or by style half of the layer's

Tensor-parallel devices divide them, but each has 8 h (Llama: 6 h) and 2 h of masks whole without
sequence parallelism.

A stage has as many micro-batches in flight as stages follow it and itself, and with v interleaved
parts (1 + (p - 1) / (p v)) times as much. The last stage has the logits besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cubemesh.forecast.transformers.factors import STYLES
from cubemesh.forecast.transformers.layout import RECOMPUTE, TrainingPlan

STATE_BYTES = 12
WEIGHT_BYTES = 2
LIBRARY_BYTES = 3e9
"""CUDA's context, NCCL's buffers and workspaces: an assumption."""


@dataclass(frozen=True, kw_only=True)
class LayoutMemory:
    """Bytes of one device."""

    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    library_bytes: float = LIBRARY_BYTES

    @property
    def total_bytes(self) -> float:
        """The sum of all."""
        states = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return states + self.activation_bytes + self.library_bytes


def stage_parameters(plan: TrainingPlan, layers: int, first: bool, last: bool) -> float:
    """Parameters of one device of a stage; a tied output matrix is in the first and the last."""
    network, tp = plan.network, plan.layout.tp
    count = float(layers * network.layer_parameters)
    if first:
        count += network.embedding_parameters(plan.sequence_length)
    if last and not (first and network.tied):
        count += network.vocabulary * network.hidden
    return count / tp


def layer_activation_bytes(plan: TrainingPlan) -> float:
    """That a layer saves of a micro-batch on one device, without recomputation."""
    network, layout = plan.network, plan.layout
    h, kv, f = network.hidden, network.kv_width, network.ffn
    if network.gated:
        every, shared = 6 * h, 4 * h + 4 * kv + 6 * f
    else:
        masks = 2 * h if plan.attention == "unfused" else 0
        every, shared = 8 * h + masks, 4 * h + 4 * kv + 4 * f
    shared += _score_bytes(plan)
    return plan.tokens * (every / (layout.tp if layout.sp else 1) + shared / layout.tp)


def _score_bytes(plan: TrainingPlan) -> int:
    selected = plan.recompute == "selective" and not STYLES[plan.style].selective_per_op
    kept = plan.attention == "unfused" and not selected
    return 5 * plan.network.heads * plan.sequence_length if kept else 0


def memory(plan: TrainingPlan) -> LayoutMemory:
    """Of the stage that needs most."""
    layout = plan.layout
    if layout.pp == 1:
        return _stage(plan, plan.network.layers, 0)
    stages = (
        _stage(plan, plan.stage_layers, 0),
        _stage(plan, plan.last_layers, layout.pp - 1),
    )
    return max(stages, key=lambda stage: stage.total_bytes)


def least_recomputation(plan: TrainingPlan, memory_bytes: float) -> TrainingPlan:
    """The plan with as little recomputation as fits the memory: none, selective, or of as few
    layers as possible; of all where even that does not fit."""

    def fits(candidate: TrainingPlan) -> bool:
        return memory(candidate).total_bytes <= memory_bytes

    def recomputing(layers: int) -> TrainingPlan:
        return replace(plan, recompute="full", recompute_layers=layers)

    for recompute in RECOMPUTE[:2]:
        candidate = replace(plan, recompute=recompute)
        if fits(candidate):
            return candidate
    low, high = 0, plan.network.layers
    while high - low > 1 and fits(recomputing(high)):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(recomputing(middle)) else (middle, high)
    return recomputing(high)


def _stage(plan: TrainingPlan, layers: int, index: int) -> LayoutMemory:
    network, layout, style = plan.network, plan.layout, STYLES[plan.style]
    first, last = index == 0, index == layout.pp - 1
    parameters = stage_parameters(plan, layers, first, last)
    by_zero = [layout.sharded if layout.zero >= stage else 1 for stage in (1, 2, 3)]
    gathered = 0.0
    if layout.zero == 3 and layout.pp > 1:  # gathered and summed once a step
        gathered = (WEIGHT_BYTES + style.gradient_bytes) * parameters
    elif layout.zero == 3:
        gathered = 2 * WEIGHT_BYTES * network.layer_parameters / layout.tp
    whole = layer_activation_bytes(plan)
    inputs = 2 * network.hidden * plan.tokens / (layout.tp if layout.sp else 1)
    share = plan.recomputed_share
    kept = 0.5 if plan.recompute == "selective" and style.selective_per_op else 1.0
    saved = layers * (share * inputs + (1 - share) * kept * whole)
    in_flight: float = min(plan.micro_batches, layout.pp - index)
    if layout.vp > 1 and first:
        in_flight *= 1 + (layout.pp - 1) / (layout.pp * layout.vp)
    at_once = whole if share or kept < 1 else 0.0
    if last:
        at_once += style.logit_bytes * plan.tokens * network.vocabulary / layout.tp
    return LayoutMemory(
        weight_bytes=WEIGHT_BYTES * parameters / by_zero[2] + gathered,
        gradient_bytes=style.gradient_bytes * parameters / by_zero[1],
        optimizer_bytes=STATE_BYTES * parameters / by_zero[0],
        activation_bytes=in_flight * saved + at_once,
    )
