"""Forecast of a transformer's training by layout of parallelism, and search of the fastest one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cubemesh.errors import UsageError, unknown_name
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.transformers.factors import BAND, BAND_CALIBRATED, STYLE_NAMES, StyleName
from cubemesh.forecast.transformers.groups import Groups
from cubemesh.forecast.transformers.layout import (
    ATTENTION,
    RECOMPUTE,
    Attention,
    Layout,
    Recompute,
    TrainingPlan,
    check_plan,
    read_layout,
)
from cubemesh.forecast.transformers.memory import least_recomputation
from cubemesh.forecast.transformers.search import LayoutSearch, search_layouts
from cubemesh.forecast.transformers.step import (
    MEMORY_MARGIN,
    LayoutForecast,
    calibrated_rates,
    device_rates,
    forecast_layout,
)
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks.transformer_sizes import transformer
from cubemesh.parallel.context_parallel import ContextParallel
from cubemesh.parallel.tensor_parallel import TensorParallel
from cubemesh.units import format_quantity

DIVIDING: Mapping[str, tuple[Literal["tp", "cp"], str]] = {
    TensorParallel.name: ("tp", "layer"),
    ContextParallel.name: ("cp", "sequence"),
}
"""Strategies that are a layout of a transformer → its key, and what its devices divide."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LayoutPrediction:
    """A transformer's step, with the other layouts of a search."""

    forecast: LayoutForecast
    band: float
    """The step takes from `step_s / band` to `step_s × band` in nine of ten cases."""
    search: LayoutSearch | None = field(default=None)
    measured: Mapping[int, float] = field(default_factory=dict)
    """Devices → sequences/s that the device's speed was fitted to."""

    def __repr__(self) -> str:
        found, plan = self.forecast, self.forecast.plan
        return (
            f"LayoutPrediction({plan.network.name} on {plan.layout.devices} devices of "
            f"{plan.system.name}, {plan.layout}: {found.step_s:.3g} s per step, "
            f"{found.tokens_per_s:,.0f} tokens/s, MFU {100 * found.utilization:.0f} %)"
        )


def predict_layout(
    network: str,
    machine: str,
    *,
    global_batch: int,
    layout: str = "",
    devices: int | None = None,
    search: bool = False,
    sync: str = "",
    micro_batch: int | None = None,
    sequence_length: int | None = None,
    precision: str = "bf16",
    recompute: Recompute | Literal["auto"] = "auto",
    attention: Attention = "flash",
    style: StyleName = "nemo",
    measured: Mapping[int | str, float] | None = None,
) -> LayoutPrediction:
    """Predict a training step of a transformer on many devices of a machine.

    `network` is a name (`gpt3-175b`) or sizes (`gpt:hidden=4096,layers=32,heads=32`), `layout` is
    `tp=8,pp=8,dp=16` (docs/transformers.md). With `search`, the fastest layout and micro-batch of
    so many `devices` that fit their memory are found instead. Batches count sequences, of all
    devices; recomputation `auto` is as little as fits. With `sync`, which can be `tensor-parallel`
    or `context-parallel`, the layout is that strategy over all `devices`, or with the `tp` or `cp`
    and the `dp` of `layout`, and `micro_batch` is by default all sequences of a replica, elsewhere
    1. `measured` maps a number of devices to sequences/s of the same layout with as many
    data-parallel groups and a batch in proportion.

    UsageError for what is not possible, and for a layout that does not fit the memory.
    """
    for name, value, allowed in (
        ("recomputation", recompute, (*RECOMPUTE, "auto")),
        ("attention", attention, ATTENTION),
        ("style of transformers", style, STYLE_NAMES),
    ):
        if value not in allowed:
            raise unknown_name(name, value, allowed, plural=f"choices of {name}")
    sizes, system = transformer(network), load_system(machine)
    length = sequence_length or sizes.sequence_length
    shape = read_layout(layout) if layout else Layout()
    if sync:
        shape = _layout_of(sync, layout, shape, devices, search, length)
    if layout and search:
        raise UsageError(f"layout {layout}: a search chooses the layout itself; give one of both.")
    rates_of = {count: rate for count, rate in (measured or {}).items() if isinstance(count, int)}
    if len(rates_of) < len(measured or {}):
        raise UsageError("A layout is measured on a number of devices, such as 8=1.2 sequences/s.")
    if measured and search:
        raise UsageError("A measured rate is of one layout; give it without search.")
    if not layout and not search and not sync:
        raise UsageError(
            f"{network}: give a layout, such as tp=8,pp=8,dp=16, or search for the fastest."
        )
    count = devices if devices is not None else shape.devices
    if count < 1 or (search and devices is None):
        raise UsageError(f"devices={count}: give the number of devices, 1 or more.")
    if micro_batch is None:
        micro_batch = max(1, global_batch // shape.dp) if sync else 1
    plan = TrainingPlan(
        network=sizes,
        system=system,
        layout=shape,
        micro_batch=micro_batch,
        global_batch=global_batch,
        sequence_length=length,
        precision=precision,
        recompute="none" if recompute == "auto" else recompute,
        attention=attention,
        style=style,
    )
    _check_devices(plan, count)
    groups = Groups(system, defaults())
    if search:
        found = search_layouts(plan, count, groups, recompute == "auto")
        return LayoutPrediction(forecast=found.fastest, band=BAND, search=found)
    check_plan(plan, count)
    rates = device_rates(system, precision)
    if recompute == "auto":
        plan = least_recomputation(plan, rates.memory_bytes)
    if rates_of:
        rates = calibrated_rates(plan, groups, rates, rates_of)
    forecast = forecast_layout(plan, groups, rates)
    _check_memory(forecast)
    band = BAND_CALIBRATED if rates_of else BAND
    return LayoutPrediction(forecast=forecast, band=band, measured=rates_of)


def _layout_of(
    sync: str, text: str, given: Layout, devices: int | None, search: bool, length: int
) -> Layout:
    """The layout of a gradient synchronization strategy, with the sizes of a given one."""
    if sync not in DIVIDING:
        raise UsageError(
            f"sync={sync}: of a transformer with a layout only {' and '.join(DIVIDING)} are "
            "forecast. Leave it out: dp in the layout is data parallel by all-reduce."
        )
    key, divided = DIVIDING[sync]
    if search or (not text and devices is None):
        raise UsageError(
            f"sync={sync}: give the devices that divide each {divided}, as in --devices 2 or "
            f"--layout {key}=2,dp=2."
        )
    shape = given if text else replace(Layout(), **{key: devices or 1})
    others = [getattr(shape, other) for other in ("pp", "vp", "tp", "cp") if other != key]
    own = ("tp", "dp", "sp") if key == "tp" else ("cp", "dp")
    foreign = any(word in text for word in {"sp", "zero", "shard"}.difference(own))
    if foreign or any(size != 1 for size in others):
        raise UsageError(
            f"layout {text}: sync={sync} has {', '.join(own[:-1])} and {own[-1]} only. Leave the "
            "other keys out."
        )
    return replace(shape, zero=0, sp=shape.sp if length % shape.tp == 0 else 0)


def _check_devices(plan: TrainingPlan, devices: int) -> None:
    system = plan.system
    most = system.devices * (1 if system.cluster is None else system.cluster.systems)
    if devices > most:
        raise UsageError(
            f"devices={devices}: {system.name} has {most}. Name a larger cluster, such as eos or "
            "selene, or a file of one (docs/topology.md)."
        )


def _check_memory(found: LayoutForecast) -> None:
    """UsageError where the memory is too small by more than the margin, with the remedies."""
    needed, room = found.memory.total_bytes, found.device_memory_bytes
    if needed <= MEMORY_MARGIN * room:
        return
    plan, layout = found.plan, found.plan.layout
    remedies = list(_remedies(plan))
    raise UsageError(
        f"{layout} does not fit: {format_quantity(needed, 'B')} per device, "
        f"{format_quantity(needed - room, 'B')} more than {plan.system.device} has. "
        f"Try {', '.join(remedies[:-1])}{' or ' if len(remedies) > 1 else ''}{remedies[-1]}."
    )


def _remedies(plan: TrainingPlan) -> Iterable[str]:
    layout = plan.layout
    if plan.recompute != "full":
        yield "full recomputation"
    if plan.micro_batch > 1:
        yield "a smaller micro-batch"
    if layout.zero < 3 and layout.replicas > 1:
        yield f"zero={3 if layout.pp == 1 else layout.zero + 1}"
    if layout.tp * 2 <= plan.system.devices and plan.network.kv_heads % (layout.tp * 2) == 0:
        yield f"tp={layout.tp * 2}"
    yield "more pp, or a search"
