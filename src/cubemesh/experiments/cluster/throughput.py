"""Forecast training throughput of a cluster, for `cluster`.

Weak scaling with all-reduce on 1, 2, 4, … devices of one system, then on 1, 2, 4, … whole systems,
over each of the networks (forecast/step.py has the model). Without a measured rate of one device
the throughput is only known within a band; the efficiency is more reliable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cubemesh import networks
from cubemesh.errors import UsageError
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.request import ForecastRequest, Point
from cubemesh.forecast.step import predict
from cubemesh.machines.catalogue.system import Cluster, System
from cubemesh.machines.topology import Design
from cubemesh.networks import rate_unit
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Table
from cubemesh.schema import Point as Dot
from cubemesh.schema.spec import Precision
from cubemesh.units import format_number


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A training on the cluster."""

    network: str
    batch_per_device: int
    precision: Precision
    rate: float | None
    """Measured samples/s of one device."""
    max_devices: int

    @property
    def name(self) -> str:
        """Network, batch size and precision, for a file name."""
        return f"{self.network}-{self.batch_per_device}-{self.precision}"


def device_counts(system: System, most: int) -> tuple[int, ...]:
    """1, 2, 4, … devices of one system, then 1, 2, 4, … whole systems, up to `most`."""
    powers = [2**n for n in range(most.bit_length())]
    below = [n for n in powers if n < system.devices]
    return (*below, *(n * system.devices for n in powers if n * system.devices <= most))


Forecasts = Mapping[str, tuple[Point, ...] | str]
"""Forecast points by name of the network, or the reason why there are none."""


def forecasts(system: System, designs: Mapping[str, Design], job: ClusterJob) -> Forecasts:
    """The forecasts of a training on a cluster with each network."""
    found: dict[str, tuple[Point, ...] | str] = {}
    counts = device_counts(system, job.max_devices)
    for name, design in designs.items():
        cluster = Cluster(
            systems=-(-job.max_devices // system.devices),
            network=design.network,
            ports_per_system=design.ports_per_system,
            switch_ports=design.switch_ports,
            oversubscription=design.oversubscription,
            links_between_groups=design.links_between_groups,
        )
        request = ForecastRequest(
            network=networks.build(job.network),
            system=replace(system, cluster=cluster),
            batch_per_device=job.batch_per_device,
            precision=job.precision,
        )
        measured = {} if job.rate is None else {1: job.rate}
        try:
            found[name] = predict(request, counts, defaults(), measured).points
        except UsageError as error:
            found[name] = str(error)
    return found


def table(found: Forecasts, job: ClusterJob) -> Table:
    """A row for each number of devices and network."""
    rows: list[tuple[Cell, ...]] = []
    for name, points in found.items():
        if isinstance(points, str):
            rows.append((Cell(text=name), *[Cell(reason=points)] * 4))
            continue
        rows += [
            (
                Cell(text=name),
                Cell(value=p.devices),
                Cell(value=p.samples_per_s, low=p.low, high=p.high),
                Cell(value=100 * p.efficiency),
                Cell(text=p.limit),
            )
            for p in points
        ]
    source = "the datasheet" if job.rate is None else "the measured rate of one device"
    return Table(
        title=f"Forecast of {job.network}, {job.precision}, batch size {job.batch_per_device} per "
        f"device, from {source}",
        columns=(
            Column(name="network"),
            Column(name="devices"),
            Column(name="throughput", unit=rate_unit(job.network)),
            Column(name="efficiency", unit="%"),
            Column(name="limit"),
        ),
        rows=tuple(rows),
    )


def findings(found: Forecasts, job: ClusterJob) -> Iterator[Finding]:
    """Throughput on the largest number of devices, and where the network becomes the limit."""
    unit = rate_unit(job.network)
    for name, points in found.items():
        if isinstance(points, str):
            continue
        last = points[-1]
        low, high = format_number(last.low), format_number(last.high)
        text = (
            f"Forecast for {job.network} on {last.devices:,} devices with {name}: "
            f"{format_number(last.samples_per_s)} {unit} ({low} to {high}), efficiency "
            f"{100 * last.efficiency:.0f} %"
        )
        limited = next((p for p in points if ": " in p.limit), None)
        where = f"; limited by {last.limit}"
        if limited:
            link = limited.limit.partition(": ")[2]
            where = f"; limited by {link} from {limited.devices} devices"
        yield Finding(
            code="forecast-throughput",
            text=f"{text}{where}.",
            value=last.samples_per_s,
            unit=unit,
            low=last.low,
            high=last.high,
        )


def chart(found: Forecasts, job: ClusterJob, *, several: bool) -> Chart:
    """Throughput over devices, a line per network, with linear scaling."""
    lines = []
    for name, points in found.items():
        if isinstance(points, str):
            continue
        dots = tuple(Dot(x=p.devices, y=p.samples_per_s, low=p.low, high=p.high) for p in points)
        lines.append(Line(name=name, points=dots, role="forecast"))
        one = points[0].samples_per_s
        ideal = tuple(Dot(x=p.devices, y=one * p.devices) for p in points)
        if len(lines) == 1:
            lines.append(Line(name="linear scaling", points=ideal, role="reference"))
    return Chart(
        name=f"cluster-throughput-{job.name}" if several else "cluster-throughput",
        title=f"Forecast throughput of {job.network} by number of devices",
        kind="line",
        x=Axis(name="devices", scale="log2"),
        y=Axis(name="throughput", unit=rate_unit(job.network), scale="log10"),
        lines=tuple(lines),
    )
