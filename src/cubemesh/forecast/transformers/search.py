"""Search of the fastest layout of a transformer on a number of devices.

All layouts are forecast whose tensor-parallel size divides the heads and fits a system, with each
pipeline that the layers fill, each number of interleaved parts that divides a stage's layers,
context parallelism down to 4,096 tokens a device, powers of two as micro-batches, and ZeRO stages 1
and 3 (no other is faster in less memory). Each recomputes as little as its memory allows. Of those
that fit, the one with the shortest step is the fastest; of every other pair of tensor- and
pipeline-parallel sizes the best layout is compared with it part by part, or the memory that the
smallest one lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from cubemesh.errors import UsageError
from cubemesh.forecast.transformers.groups import Groups
from cubemesh.forecast.transformers.layout import Layout, TrainingPlan, check_plan
from cubemesh.forecast.transformers.memory import least_recomputation
from cubemesh.forecast.transformers.step import LayoutForecast, device_rates, forecast_layout
from cubemesh.units import format_quantity

ZERO_STAGES = (1, 3)
MOST_MICRO_BATCH = 64
LEAST_CONTEXT = 4096


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The best layout of a pair of tensor- and pipeline-parallel sizes."""

    forecast: LayoutForecast
    reason: str
    """Why it is not the fastest; empty for the one that is."""


@dataclass(frozen=True, kw_only=True)
class LayoutSearch:
    """The fastest layout, and the best of the others."""

    candidates: tuple[Candidate, ...]
    """The fastest first; those that do not fit last."""
    tried: int
    fitting: int

    @property
    def fastest(self) -> LayoutForecast:
        """The one with the shortest step."""
        return self.candidates[0].forecast


def search_layouts(
    plan: TrainingPlan, devices: int, groups: Groups, any_recompute: bool
) -> LayoutSearch:
    """The layouts of so many devices for the plan's network, batch and machine. With
    `any_recompute` each layout recomputes as little as it can.

    UsageError where no layout is possible, or none fits the memory.
    """
    rates = device_rates(plan.system, plan.precision)
    best: dict[tuple[int, int], LayoutForecast] = {}
    tried = fitting = 0
    for candidate in _plans(plan, devices):
        tried += 1
        if any_recompute:
            candidate = least_recomputation(candidate, rates.memory_bytes)
        found = forecast_layout(candidate, groups, rates)
        fitting += found.fits
        key = candidate.layout.tp, candidate.layout.pp
        if key not in best or _order(found) < _order(best[key]):
            best[key] = found
    if not best:
        raise UsageError(
            f"No layout of {devices} devices divides {plan.network.name} and a global batch of "
            f"{plan.global_batch}. Choose a number of devices that divides the batch times "
            f"{plan.network.layers} layers and {plan.network.heads} heads."
        )
    ranked = sorted(best.values(), key=_order)
    fastest = ranked[0]
    if not fastest.fits:
        smallest = min(ranked, key=lambda one: one.memory.total_bytes)
        raise UsageError(
            f"No layout of {plan.network.name} fits {devices} devices of {plan.system.name}: the "
            f"smallest, {smallest.plan.layout}, needs {_lacking(smallest)}. Use more devices, a "
            "smaller global batch or a machine with more memory."
        )
    return LayoutSearch(
        candidates=tuple(
            Candidate(forecast=one, reason=why_slower(one, fastest) if one is not fastest else "")
            for one in ranked
        ),
        tried=tried,
        fitting=fitting,
    )


def _order(found: LayoutForecast) -> tuple[bool, float]:
    return (False, found.step_s) if found.fits else (True, found.memory.total_bytes)


def _lacking(found: LayoutForecast) -> str:
    needed, room = found.memory.total_bytes, found.device_memory_bytes
    return f"{format_quantity(needed, 'B')} of {format_quantity(room, 'B')} per device"


def why_slower(one: LayoutForecast, fastest: LayoutForecast) -> str:
    """The part of the step that grows most, or the memory that is missing."""
    if not one.fits:
        return f"does not fit: {_lacking(one)}"
    more = dict.fromkeys(PART_NAMES.values(), 0.0)
    for part, seconds in one.parts_s.items():
        more[PART_NAMES[part]] += seconds - fastest.parts_s[part]
    worst = max(more, key=lambda part: more[part])
    return f"{worst}: {100 * more[worst] / fastest.step_s:+.0f} % of the fastest step"


PART_NAMES = {
    "forward": "computation of the slowest stage",
    "backward": "computation of the slowest stage",
    "recompute": "recomputation",
    "tensor": "tensor-parallel communication",
    "context": "context-parallel communication",
    "pipeline": "sending between stages",
    "bubble": "pipeline bubble",
    "data": "data-parallel communication",
    "update": "update of the weights",
}
"""Part of a step → what it is, in words."""


def _plans(plan: TrainingPlan, devices: int) -> Iterator[TrainingPlan]:
    """Every plan that is possible."""
    for tp, cp in product(_divisors(plan.system.devices), _contexts(plan.sequence_length)):
        if devices % (tp * cp):
            continue
        for pp in _divisors(devices // (tp * cp)):
            dp = devices // (tp * pp * cp)
            for vp in _divisors(-(-plan.network.layers // pp)) if pp > 1 else (1,):
                for zero in ZERO_STAGES:
                    layout = Layout(tp=tp, pp=pp, cp=cp, dp=dp, vp=vp, zero=zero)
                    yield from _batches(replace(plan, layout=layout), devices)


def _contexts(sequence_length: int) -> Iterator[int]:
    cp = 1
    while cp == 1 or sequence_length >= LEAST_CONTEXT * cp:
        yield cp
        cp *= 2


def _batches(plan: TrainingPlan, devices: int) -> Iterator[TrainingPlan]:
    micro = 1
    while micro <= MOST_MICRO_BATCH and plan.global_batch % (plan.layout.dp * micro) == 0:
        candidate = replace(plan, micro_batch=micro)
        in_turns = plan.layout.vp == 1 or candidate.micro_batches % plan.layout.pp == 0
        if in_turns and _possible(candidate, devices):
            yield candidate
        micro *= 2


def _possible(plan: TrainingPlan, devices: int) -> bool:
    try:
        check_plan(plan, devices)
    except UsageError:
        return False
    return True


def _divisors(of: int) -> list[int]:
    return [n for n in range(1, of + 1) if of % n == 0]
