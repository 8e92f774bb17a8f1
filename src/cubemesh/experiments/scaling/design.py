"""What `weak-scaling` and `strong-scaling` have in common: the runs of a scaling, and its points.

For each network, minibatch, framework and number of devices:

    one device                            what efficiency is held against
    N devices, for each exchange          the point itself, with its attribution
    N devices, each alone, all at once    what the machine gives N that do not train together

A *device* of a CPU is a fixed number of cores, as many for one device as for several, to which its
process is bound in either case. regimes.py says what the minibatch is, efficiency.py how near N
devices come to N times one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from cubemesh.errors import UsageError
from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.experiments.core import cpu_defaults as reduction
from cubemesh.experiments.core.experiment import Context, Plan, Scale
from cubemesh.experiments.scaling.modes import ScalingMode, batch_per_device, fixed_batch
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
from cubemesh.schema.spec import Device

ALONE = "none"
"""The exchange of devices that train each by itself."""
MOST_DEVICES = 8
"""Of those that are chosen: what the documents' systems have."""


class ScalingCase(NamedTuple):
    """A network with what the regime keeps the same."""

    network: str
    batch: int
    image_size: int | None = None
    """Height and width in pixels; None is the network's own."""


class CurveKey(NamedTuple):
    """What stays the same along a curve over devices."""

    network: str
    image_size: int | None
    batch: int
    """The minibatch that the regime keeps."""
    framework: str


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """What can be set in a scaling besides the fields of its specs."""

    networks: tuple[str, ...] = ()
    """Networks to train; none given is the documents', LittleCNN alone on a CPU."""
    frameworks: tuple[str, ...] = ("pytorch",)
    """Frameworks to train them with."""
    strategies: tuple[str, ...] = ("all-reduce",)
    """How the devices come to the same weights: exchanges, side by side."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; one is always measured. None given doubles up to what the machine has,
    8 at most; of several hosts each has as many."""
    device: Device = "auto"
    """What a device is: a GPU (`cuda`) or a group of cores (`cpu`)."""
    threads: int = 1
    """Cores that a device on a CPU has, of its own."""
    independent: bool = True
    """Whether to measure the devices each by itself, all at once, too."""
    attribution: bool = True
    """Whether to take the steps apart, so that the answer can say what is lost to what."""

    def __post_init__(self) -> None:
        if ALONE in self.strategies:
            raise UsageError(
                "strategies=none trains without synchronisation: independent=true measures that. "
                "Name exchanges that train together, as all-reduce."
            )
        if any(n < 1 for n in self.devices) or self.threads < 1:
            raise UsageError("devices and threads are numbers of 1 or more.")


def specs(
    settings: ScalingSettings,
    regime: ScalingMode,
    wanted: Sequence[ScalingCase],
    context: Context,
    counts: Sequence[int] = (),
) -> Plan:
    """All runs of a scaling, curve by curve, from one device up; at `counts` devices, where given,
    else at those of `device_counts`."""
    counts = counts or device_counts(settings, context)
    yield [
        spec
        for want in dict.fromkeys(wanted)
        for framework in dict.fromkeys(settings.frameworks)
        for spec in _curve(settings, regime, want, framework, counts, context)
    ]


def _curve(
    settings: ScalingSettings,
    regime: ScalingMode,
    want: ScalingCase,
    framework: str,
    counts: Sequence[int],
    context: Context,
) -> Iterator[RunSpec]:
    """The runs of one curve. What cannot be shared out evenly among so many devices is left out."""
    for devices in counts:
        hosts = context.hosts if devices >= context.hosts else 1
        batch = batch_per_device(regime, want.batch, devices, hosts)
        if batch is None:
            continue
        together = settings.strategies if devices > 1 else (ALONE,)
        alone = (ALONE,) if devices > 1 and settings.independent else ()
        for sync in (*dict.fromkeys(together), *alone):
            apart = settings.attribution and entry(framework).profiles and strategy(sync).profiled
            apart = apart and (devices == 1 or sync != ALONE)
            yield RunSpec(
                work=TrainSteps(
                    network=want.network, batch_per_device=batch, image_size=want.image_size
                ),
                placement=placement(settings, devices, context),
                program=ProgramSettings(
                    framework=framework, layout=entry(framework).layout, sync=sync
                ),
                budget=_effort(context.budget, apart),
            )


def _effort(budget: Budget, attribution: bool) -> Budget:
    return replace(budget, attribution=True) if attribution else budget


PLACED = {"pinning": "threads", "numa_node": "threads"}
"""Fields of a placement that are set here → the setting to use instead."""


class HasDevice(Protocol):
    """Settings that say what a device is."""

    @property
    def device(self) -> Device:
        """A GPU (`cuda`) or a group of cores (`cpu`)."""


class SaysDevice(HasDevice, Protocol):
    """Settings with the cores of a device, too."""

    @property
    def threads(self) -> int:
        """Cores that a device on a CPU has, of its own."""


class DeviceSetting(NamedTuple):
    """What a device is, and its cores on a CPU."""

    device: Device
    threads: int


def on_cpu(settings: HasDevice, context: Context) -> bool:
    """Whether a device is a group of cores."""
    return settings.device == "cpu" or (settings.device == "auto" and not context.has_gpu)


def placement(settings: SaysDevice, devices: int, context: Context) -> Placement:
    """Where so many devices are. One device of a CPU is bound to its cores, as each of several is:
    a process that may wander is not the same device."""
    if not on_cpu(settings, context):
        return Placement(device=settings.device, devices=devices)
    return Placement(
        device=settings.device,
        devices=devices,
        threads=settings.threads,
        pinning="cores" if devices == 1 else "none",
    )


def device_counts(settings: ScalingSettings, context: Context) -> list[int]:
    """The numbers of devices to measure, one among them; of several hosts each has as many as this
    one would be given."""
    if settings.devices:
        return sorted({1, *settings.devices})
    cpu = on_cpu(settings, context)
    cores = context.machine.cpu.usable_cores
    there = cores // settings.threads if cpu else min(len(context.machine.gpus), cores)
    most = min(max(1, there), MOST_DEVICES if context.scale is not Scale.QUICK else 2)
    each = [2**n for n in range(most.bit_length())]
    return each if context.hosts == 1 else [1, *(context.hosts * n for n in each)]


def is_small(settings: ScalingSettings, context: Context) -> bool:
    """Whether the documents' networks would take too long here to be what is usual."""
    quick, full = context.scale is Scale.QUICK, context.scale is Scale.FULL
    return quick or (on_cpu(settings, context) and not full)


def chosen(
    settings: ScalingSettings,
    batches: Sequence[int],
    documented: Sequence[ScalingCase],
    small: Sequence[ScalingCase],
    context: Context,
) -> list[ScalingCase]:
    """Networks with what the regime keeps. Those named, else the documents', or the small ones
    where these would take too long; at the minibatches named, else at the documents' (those of
    their smallest, for a network they have not), reduced on a CPU."""
    usual = small if is_small(settings, context) else documented
    least = min(want.batch for want in documented)
    found = []
    for network in dict.fromkeys(settings.networks or (want.network for want in usual)):
        own = [w for w in usual if w.network == network]
        if not own:
            known = [w for w in documented if w.network == network] or [ScalingCase(network, least)]
            own = [_reduced(want, context) for want in known]
        if batches:
            own = [own[0]._replace(batch=batch) for batch in batches]
        found += own
    return found


def _reduced(want: ScalingCase, context: Context) -> ScalingCase:
    return ScalingCase(
        want.network,
        reduction.batch(want.batch, context),
        reduction.image_size(want.network, context, want.image_size),
    )


def curve_of(record: RunRecord, regime: ScalingMode) -> CurveKey:
    """The curve that a run stands on."""
    work, spec = record.spec.work, record.spec
    assert isinstance(work, NetworkWork)
    devices, hosts = spec.placement.devices, max(1, len(spec.placement.hosts))
    fixed = fixed_batch(regime, work.batch_per_device, devices, hosts)
    return CurveKey(work.network, work.image_size, fixed, spec.program.framework)


@dataclass(frozen=True)
class ScalingCurve:
    """The points of one curve."""

    curve: CurveKey
    groups: tuple[Group[tuple[int, str]], ...]
    """By number of devices and exchange."""

    def at(self, devices: int, sync: str) -> Group[tuple[int, str]] | None:
        """The runs of so many devices with this exchange; None where there are none."""
        return next((g for g in self.groups if g.key == (devices, sync)), None)

    @property
    def one(self) -> Group[tuple[int, str]] | None:
        """The runs on one device."""
        return self.at(1, ALONE)

    @property
    def together(self) -> tuple[Group[tuple[int, str]], ...]:
        """The points of several devices that train together."""
        return tuple(g for g in self.groups if g.key[0] > 1 and g.key[1] != ALONE)

    @property
    def exchanges(self) -> tuple[str, ...]:
        """Those of several devices."""
        return tuple(dict.fromkeys(g.key[1] for g in self.together))


def curves(records: Sequence[RunRecord], regime: ScalingMode) -> list[ScalingCurve]:
    """The curves that records stand on, in the order they first came."""
    found: dict[CurveKey, list[RunRecord]] = {}
    for record in records:
        if isinstance(record.spec.work, TrainSteps):
            found.setdefault(curve_of(record, regime), []).append(record)
    return [ScalingCurve(curve, tuple(group_by(own, _key))) for curve, own in found.items()]


def _key(record: RunRecord) -> tuple[int, str]:
    return record.spec.placement.devices, record.spec.program.sync
