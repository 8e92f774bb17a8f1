"""Design of scaling experiments: scaling modes, settings, runs, and the curves of their records.

For each network, batch size, framework and number of devices there are runs of

    one device                            the baseline of efficiency
    N devices, for each strategy          the point itself, with its attribution
    N devices without synchronization     what N devices reach that do not train together

A *device* of a CPU is a fixed number of cores, the same for one device as for several, and its
process is pinned to them. The mode decides the batch size of each device:

| mode | constant | batch size of each of N devices | global batch size |
|---|---|---|---|
| `weak` | batch size per device | b | N · b |
| `strong` | global batch size | B / N | B |
| `constant-batch` | batch size per host | B / devices per host | B · hosts |

With `samples` each point trains the same number of samples: its steps are that number over the
global batch size, and its training time is that of all of them (paper 003: batch sizes grow with
the GPUs, iterations shrink). With `cpu` the host's CPU is measured too, all its cores as one
device, for the ratio of CPU to devices (003, figure 2).

Weak scaling is in the papers 001, 002 and 004 (section 5.4), strong scaling in 004 (section 5.3),
constant-batch in 003: `batch-size` of MXNet's GoogLeNet is that of a host's process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.experiments.core import cpu_defaults
from cubemesh.experiments.core.experiment import Context, Plan, Scale
from cubemesh.frameworks import entry
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import (
    Budget,
    NetworkWork,
    Placement,
    ProgramSettings,
    RunRecord,
    RunSpec,
    TrainSteps,
)
from cubemesh.schema.spec import Device, Pinning

NO_SYNC = "none"
"""The strategy without synchronization."""
MAX_DEVICES = 8
"""Largest default number of devices: that of the papers' systems."""

PLACED = {"pinning": "threads", "numa_node": "threads"}
"""Fields of a placement that a scaling sets → the setting to use instead."""
VARIES = {
    "network": "networks",
    "framework": "frameworks",
    "sync": "strategies",
    "trace": "attribution",
    **PLACED,
}
"""Spec fields that a scaling sets → the setting to use instead."""


class ScalingMode(StrEnum):
    """What is constant while devices are added."""

    WEAK = "weak"
    STRONG = "strong"
    CONSTANT_BATCH = "constant-batch"

    @property
    def constant(self) -> str:
        """The batch size that is constant."""
        if self is ScalingMode.STRONG:
            return "global batch size"
        return f"batch size per {'device' if self is ScalingMode.WEAK else 'host'}"


def batch_per_device(mode: ScalingMode, batch: int, devices: int, hosts: int = 1) -> int | None:
    """The batch size of each of `devices` on `hosts`, from the constant one; None if it cannot be
    divided evenly."""
    if mode is ScalingMode.WEAK:
        return batch
    sharing = devices if mode is ScalingMode.STRONG else devices // hosts
    each, left = divmod(batch, sharing)
    return None if left or each < 1 else each


def constant_batch(mode: ScalingMode, batch_per_device: int, devices: int, hosts: int = 1) -> int:
    """The constant batch size, from that of each device."""
    if mode is ScalingMode.WEAK:
        return batch_per_device
    return batch_per_device * (devices if mode is ScalingMode.STRONG else devices // hosts)


class ScalingCase(NamedTuple):
    """A network with its constant batch size."""

    network: str
    batch: int
    image_size: int | None = None
    """Height and width in pixels; None is the network's own."""


class CurveKey(NamedTuple):
    """What is the same along a curve over devices."""

    network: str
    image_size: int | None
    batch: int
    """The constant batch size."""
    framework: str
    threads: int | None
    """Cores per device on a CPU."""


@dataclass(frozen=True, kw_only=True)
class MultiDeviceSettings:
    """Settings of experiments that train on several devices."""

    networks: tuple[str, ...] = ()
    """Networks to train. Default: the papers'; on a CPU little-cnn."""
    frameworks: tuple[str, ...] = ("pytorch",)
    """Frameworks to train them with."""
    strategies: tuple[str, ...] = ("all-reduce",)
    """Gradient synchronization strategies."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; one is always included. Default: powers of two up to the machine's, at
    most 8, on each host."""
    device: Device = "auto"
    """Kind of device: a GPU (`cuda`) or a group of cores (`cpu`)."""
    threads: tuple[int, ...] = (1,)
    """Cores per device on a CPU."""
    attribution: bool = True
    """Whether to profile the steps, to break down the overhead."""

    def __post_init__(self) -> None:
        if NO_SYNC in self.strategies:
            raise UsageError(
                "strategies=none trains without synchronization; weak-scaling measures that with "
                "independent=true. Name strategies that synchronize, such as all-reduce."
            )
        if any(n < 1 for n in (*self.devices, *self.threads)) or not self.threads:
            raise UsageError("devices and threads must be 1 or more.")


@dataclass(frozen=True, kw_only=True)
class ScalingSettings(MultiDeviceSettings):
    """Settings of all scaling experiments."""

    independent: bool = True
    """Whether to measure the devices at the same time without synchronization, too."""


@dataclass(frozen=True, kw_only=True)
class CurveSettings(ScalingSettings):
    """Settings of weak and strong scaling."""

    samples: int | None = None
    """Number of samples that every point trains, however many devices it has; its steps are that
    number over the global batch size. Default: as many steps as the budget asks for."""
    cpu: bool = False
    """Whether to measure the host's CPU too, all its cores as one device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples is None:
            return
        if self.samples < 1:
            raise UsageError(f"samples={self.samples}: it must be 1 or more.")
        if free := [s for s in self.strategies if strategy(s).free_running]:
            raise UsageError(
                f"samples={self.samples} fixes the steps of every device, and with "
                f"strategies={free[0]} each makes as many as it can. Leave one of the two out."
            )


def specs(
    settings: ScalingSettings,
    mode: ScalingMode,
    cases: Sequence[ScalingCase],
    context: Context,
    counts: Sequence[int] = (),
) -> Plan:
    """All runs of a scaling, curve by curve, at `counts` devices, by default `device_counts`."""
    counts = counts or device_counts(settings, context)
    yield [
        spec
        for case in dict.fromkeys(cases)
        for framework in dict.fromkeys(settings.frameworks)
        for threads in dict.fromkeys(settings.threads)
        for spec in _curve_specs(settings, mode, case, framework, threads, counts, context)
    ] + [
        _cpu_spec(settings, mode, case, framework, context)
        for case in dict.fromkeys(cases if _measures_cpu(settings) else ())
        for framework in dict.fromkeys(settings.frameworks)
    ]


def _curve_specs(
    settings: ScalingSettings,
    mode: ScalingMode,
    case: ScalingCase,
    framework: str,
    threads: int,
    counts: Sequence[int],
    context: Context,
) -> Iterator[RunSpec]:
    """The runs of one curve, without those whose batch size cannot be divided evenly."""
    unit = _common_samples(mode, case.batch, counts, context)
    for devices in counts:
        hosts = context.hosts if devices >= context.hosts else 1
        batch = batch_per_device(mode, case.batch, devices, hosts)
        if batch is None:
            continue
        base = budget_of(settings, context, batch * devices, unit)
        together = settings.strategies if devices > 1 else (NO_SYNC,)
        independent = (NO_SYNC,) if devices > 1 and settings.independent else ()
        for sync in (*dict.fromkeys(together), *independent):
            profiled = entry(framework).profiles and strategy(sync).profiled
            profiled = settings.attribution and profiled and (devices == 1 or sync != NO_SYNC)
            yield RunSpec(
                work=TrainSteps(
                    network=case.network, batch_per_device=batch, image_size=case.image_size
                ),
                placement=placement(settings.device, threads, devices, context),
                program=ProgramSettings(
                    framework=framework, layout=entry(framework).layout, sync=sync
                ),
                budget=replace(base, attribution=True) if profiled else base,
            )


def _cpu_spec(
    settings: ScalingSettings,
    mode: ScalingMode,
    case: ScalingCase,
    framework: str,
    context: Context,
) -> RunSpec:
    """The run of a case on all cores of the host's CPU."""
    batch = batch_per_device(mode, case.batch, 1)
    assert batch is not None
    return RunSpec(
        work=TrainSteps(network=case.network, batch_per_device=batch, image_size=case.image_size),
        placement=Placement(device="cpu"),
        program=ProgramSettings(framework=framework, layout=entry(framework).layout),
        budget=budget_of(settings, context, batch, batch),
    )


def _measures_cpu(settings: ScalingSettings) -> bool:
    return isinstance(settings, CurveSettings) and settings.cpu


def on_all_cores(record: RunRecord) -> bool:
    """Whether a record is that of the whole CPU, rather than of a point of a curve."""
    place = record.spec.placement
    return place.device == "cpu" and place.devices == 1 and place.threads is None


def _common_samples(mode: ScalingMode, batch: int, counts: Sequence[int], context: Context) -> int:
    """The least number of samples that is a whole number of steps of every point of a curve."""
    found = [1]
    for devices in counts:
        hosts = context.hosts if devices >= context.hosts else 1
        found.append(devices * (batch_per_device(mode, batch, devices, hosts) or 0) or 1)
    return math.lcm(*found)


def budget_of(settings: ScalingSettings, context: Context, global_batch: int, unit: int) -> Budget:
    """The budget of a point; with a number of samples, exactly its steps. UsageError where they are
    no whole number; multiples of `unit` are one for every point."""
    samples = settings.samples if isinstance(settings, CurveSettings) else None
    if samples is None:
        return context.budget
    steps, left = divmod(samples, global_batch)
    if left or not steps:
        raise UsageError(
            f"samples={samples} is not a whole number of steps of {global_batch} samples, "
            f"a global batch size of this scaling. Set samples={-(-samples // unit) * unit} or "
            f"another multiple of {unit}."
        )
    return replace(context.budget, steps=steps, exact_steps=True, seconds=0.0, target_ci=None)


def on_cpu(device: Device, context: Context) -> bool:
    """Whether a device is a group of cores."""
    return device == "cpu" or (device == "auto" and not context.has_gpu)


def placement(device: Device, threads: int, devices: int, context: Context) -> Placement:
    """The placement of `devices`, on a CPU of `threads` cores each. A single device of a CPU is
    pinned to its cores, as each of several is."""
    if not on_cpu(device, context):
        return Placement(device=device, devices=devices)
    pinning: Pinning = "cores" if devices == 1 else "none"
    return Placement(device=device, devices=devices, threads=threads, pinning=pinning)


def device_counts(settings: MultiDeviceSettings, context: Context) -> list[int]:
    """The numbers of devices to measure, including one; on several hosts, those of this host times
    the number of hosts."""
    if settings.devices:
        return sorted({1, *settings.devices})
    cores = context.machine.cpu.usable_cores
    available = min(len(context.machine.gpus), cores)
    if on_cpu(settings.device, context):
        available = cores // max(settings.threads)
    most = min(max(1, available), MAX_DEVICES if context.scale is not Scale.QUICK else 2)
    each = [2**n for n in range(most.bit_length())]
    return each if context.hosts == 1 else [1, *(context.hosts * n for n in each)]


def is_small(device: Device, context: Context) -> bool:
    """Whether the papers' networks would take too long here as the default."""
    quick, full = context.scale is Scale.QUICK, context.scale is Scale.FULL
    return quick or (on_cpu(device, context) and not full)


def chosen_cases(
    settings: ScalingSettings,
    batch_sizes: Sequence[int],
    published: Sequence[ScalingCase],
    small: Sequence[ScalingCase],
    context: Context,
) -> list[ScalingCase]:
    """The cases to measure. Networks: the given ones, else the papers', or the small ones if those
    take too long. Batch sizes: the given ones, else the papers' (their smallest for any other
    network), reduced on a CPU."""
    defaults = small if is_small(settings.device, context) else published
    least = min(case.batch for case in published)
    found = []
    for network in dict.fromkeys(settings.networks or (case.network for case in defaults)):
        own = [c for c in defaults if c.network == network]
        if not own:
            known = [c for c in published if c.network == network] or [ScalingCase(network, least)]
            own = [_reduced(case, context) for case in known]
        if batch_sizes:
            own = [own[0]._replace(batch=batch) for batch in batch_sizes]
        found += own
    return found


def _reduced(case: ScalingCase, context: Context) -> ScalingCase:
    return ScalingCase(
        case.network,
        cpu_defaults.batch(case.batch, context),
        cpu_defaults.image_size(case.network, context, case.image_size),
    )


ScalingGroup = Group[tuple[int, str]]
"""The runs of one point, by number of devices and strategy."""


@dataclass(frozen=True)
class ScalingCurve:
    """The points of one curve."""

    key: CurveKey
    groups: tuple[ScalingGroup, ...]

    def at(self, devices: int, sync: str) -> ScalingGroup | None:
        """The runs on `devices` with a strategy."""
        return next((g for g in self.groups if g.key == (devices, sync)), None)

    @property
    def one(self) -> ScalingGroup | None:
        """The runs on one device."""
        return self.at(1, NO_SYNC)

    @property
    def together(self) -> tuple[ScalingGroup, ...]:
        """The points of several devices that synchronize."""
        return tuple(g for g in self.groups if g.key[0] > 1 and g.key[1] != NO_SYNC)

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies of several devices."""
        return tuple(dict.fromkeys(g.key[1] for g in self.together))


def curves(records: Sequence[RunRecord], mode: ScalingMode) -> list[ScalingCurve]:
    """The curves of records of training steps, in order of first occurrence."""
    found: dict[CurveKey, list[RunRecord]] = {}
    for record in records:
        if isinstance(record.spec.work, TrainSteps) and not on_all_cores(record):
            found.setdefault(curve_key(record, mode), []).append(record)
    return [ScalingCurve(key, tuple(group_by(own, _point))) for key, own in found.items()]


def curve_key(record: RunRecord, mode: ScalingMode) -> CurveKey:
    """The curve that a run belongs to."""
    work, spec = record.spec.work, record.spec
    assert isinstance(work, NetworkWork)
    devices, hosts = spec.placement.devices, max(1, len(spec.placement.hosts))
    constant = constant_batch(mode, work.batch_per_device, devices, hosts)
    return CurveKey(
        work.network, work.image_size, constant, spec.program.framework, spec.placement.threads
    )


def _point(record: RunRecord) -> tuple[int, str]:
    return record.spec.placement.devices, record.spec.program.sync
