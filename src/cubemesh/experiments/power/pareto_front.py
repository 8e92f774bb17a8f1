"""Pareto front of throughput and power over the settings of a network.

A setting is on the *Pareto front* if no other is at least as fast for no more power. Settings are
compared within one network and one coverage: the power of a GPU's board is never compared with that
of packages and DRAM. On several devices it is the sum over their boards, or that of their hosts'
packages and DRAM.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cubemesh.experiments.analysis.groups import Group
from cubemesh.experiments.analysis.ratios import plus_minus
from cubemesh.experiments.scaling.analysis import efficiency
from cubemesh.experiments.scaling.design import ScalingMode, constant_batch
from cubemesh.networks import rate_unit
from cubemesh.schema import Figure, NetworkWork, RunRecord
from cubemesh.units import format_devices, format_number

_SUMMED = re.compile(r", summed over \d+")
"""In the method of a figure of several devices, which covers the same parts as that of one."""


@dataclass(frozen=True, order=True)
class PowerSetting:
    """One setting of a network."""

    network: str
    batch: int
    """Per device, or of all devices where that is constant."""
    precision: str
    threads: int | None
    devices: int = 1
    device: str = ""
    """Name of the device, in an answer about several machines."""

    @property
    def words(self) -> str:
        """`batch size 64, fp32`."""
        return f"batch size {self.batch}, {self.variant}"

    @property
    def name(self) -> str:
        """`alexnet at batch size 64, fp32`."""
        return f"{self.network} at {self.words}"

    @property
    def variant(self) -> str:
        """Without the batch size: `fp32`, `fp32, 2 threads`, `fp32, 4 devices`."""
        words = [self.device] if self.device else []
        words.append(self.precision)
        if self.threads is not None:
            words.append(f"{self.threads} {'thread' if self.threads == 1 else 'threads'}")
        if self.devices > 1:
            words.append(format_devices(self.devices))
        return ", ".join(words)

    @property
    def curve(self) -> PowerSetting:
        """The same on one device: what is constant along a curve over devices."""
        return replace(self, devices=1)


def key_of(
    record: RunRecord, mode: ScalingMode = ScalingMode.WEAK, device: str = ""
) -> PowerSetting:
    """The setting of a record, on `device` in an answer about several machines."""
    work, devices = record.spec.work, record.spec.placement.devices
    assert isinstance(work, NetworkWork)
    cpu_threads = (rank.threads for rank in record.ranks if rank.device == "cpu")
    return PowerSetting(
        network=work.network,
        batch=constant_batch(mode, work.batch_per_device, devices),
        precision=record.spec.program.precision,
        threads=record.spec.placement.threads or next(cpu_threads, None),
        devices=devices,
        device=device,
    )


def device_name(record: RunRecord) -> str:
    """The vendor's name of the device of a record, else its host."""
    rank = record.ranks[0]
    return rank.device_name or f"{rank.device.partition(':')[0]} of {rank.host}"


@dataclass(frozen=True)
class PowerPoint:
    """A setting with its throughput and power."""

    group: Group[PowerSetting]
    throughput: Figure
    watts: float
    covered: str
    """Parts of the machine that the power covers."""

    @property
    def words(self) -> str:
        """`1,234 ± 5 images/s at 250 W`."""
        unit = rate_unit(self.group.key.network)
        return f"{plus_minus(self.throughput)} {unit} at {format_number(self.watts)} W"

    @property
    def joules(self) -> float:
        """Energy per sample."""
        return self.watts / self.throughput.value


def measured(group: Group[PowerSetting]) -> PowerPoint | None:
    """Throughput and power of a group; None if one is missing."""
    throughput, watts = group.throughput, group.median_of("mean_power_watts")
    if throughput is None or not watts:
        return None
    figures = (r.figures.get("mean_power_watts") for r in group.ok)
    covered = _SUMMED.sub("", next(f.method for f in figures if f is not None))
    return PowerPoint(group, throughput, watts, covered)


def pareto_front(points: Sequence[PowerPoint]) -> list[PowerPoint]:
    """Points that no other matches in speed for no more power, by rising power."""
    best: list[PowerPoint] = []
    for one in sorted(points, key=lambda m: (m.watts, -m.throughput.value)):
        if not best or one.throughput.value > best[-1].throughput.value:
            best.append(one)
    return best


@dataclass(frozen=True)
class PowerData:
    """All measurements, by setting."""

    groups: tuple[Group[PowerSetting], ...]

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """Networks, in the order of the runs."""
        return tuple(dict.fromkeys(g.key.network for g in self.groups))

    @cached_property
    def measured(self) -> tuple[PowerPoint, ...]:
        """Settings with known power, of the most common coverage."""
        found = [m for g in self.groups if (m := measured(g)) is not None]
        kinds = [m.covered for m in found]
        usual = max(dict.fromkeys(kinds), key=kinds.count, default="")
        return tuple(m for m in found if m.covered == usual)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Numbers of devices, in rising order."""
        return tuple(sorted({g.key.devices for g in self.groups}))

    def one(self, group: Group[PowerSetting]) -> Group[PowerSetting] | None:
        """The same setting on one device; None if that was not run."""
        return next((g for g in self.groups if g.key == group.key.curve), None)

    def efficiency(self, group: Group[PowerSetting]) -> Figure | None:
        """Throughput of N devices over N times that of one, in percent."""
        one = self.one(group)
        return None if one is None else efficiency(group, one)

    def of(self, network: str) -> list[PowerPoint]:
        """Settings of a network with known power."""
        return [m for m in self.measured if m.group.key.network == network]

    @cached_property
    def on_front(self) -> frozenset[PowerSetting]:
        """Settings on the Pareto fronts of their networks."""
        return frozenset(m.group.key for n in self.networks for m in pareto_front(self.of(n)))
