"""How fast would a cluster train, with more and more of its systems? Forecasts for `cluster`.

One job on 1, 2, 4, … devices of one system and then on 1, 2, 4, … whole systems (weak scaling,
all-reduce), joined by each network that is compared; forecast/step.py has the model. Without a
measured rate of one device only the band is known, so the efficiency says more than the rate.
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
from cubemesh.schema import Axis, Cell, Chart, Column, Finding, Line, Table
from cubemesh.schema import Point as Dot
from cubemesh.schema.spec import Precision
from cubemesh.units import format_number


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be trained on the cluster."""

    network: str
    batch_per_device: int
    precision: Precision
    rate: float | None
    """Samples per second of one device, where it was measured."""
    max_devices: int

    @property
    def name(self) -> str:
        """Network, batch size and precision, for a file name."""
        return f"{self.network}-{self.batch_per_device}-{self.precision}"


def device_counts(system: System, most: int) -> tuple[int, ...]:
    """1, 2, 4, … devices of one system, then 1, 2, 4, … whole systems, up to `most`."""
    counts = []
    count = 1
    while count < min(system.devices, most + 1):
        counts.append(count)
        count *= 2
    count = system.devices
    while count <= most:
        counts.append(count)
        count *= 2
    return tuple(counts)


def forecasts(
    system: System, designs: Mapping[str, Design], job: Job
) -> dict[str, tuple[Point, ...] | str]:
    """The points on each network, by its name; or why there are none."""
    found: dict[str, tuple[Point, ...] | str] = {}
    counts = device_counts(system, job.max_devices)
    for name, design in designs.items():
        cluster = Cluster(
            systems=-(-job.max_devices // system.devices),
            network=design.network,
            ports_per_system=design.ports_per_system,
            switch_ports=design.switch_ports,
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


def table(found: Mapping[str, tuple[Point, ...] | str], job: Job) -> Table:
    """A row for each number of devices and network."""
    rows: list[tuple[Cell, ...]] = []
    for name, points in found.items():
        if isinstance(points, str):
            rows.append((Cell(text=name), *(Cell(reason=points) for _ in range(4))))
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
    source = "its datasheet" if job.rate is None else "its measured rate"
    return Table(
        title=f"{job.network}, {job.precision}, minibatch {job.batch_per_device} of each device, "
        f"forecast from {source}",
        columns=(
            Column(name="network"),
            Column(name="devices"),
            Column(name="throughput", unit="samples/s"),
            Column(name="efficiency", unit="%"),
            Column(name="limit"),
        ),
        rows=tuple(rows),
    )


def findings(found: Mapping[str, tuple[Point, ...] | str], job: Job) -> Iterator[Finding]:
    """What the most devices reach on each network, and from where on the network limits."""
    for name, points in found.items():
        if isinstance(points, str):
            continue
        last = points[-1]
        low, high = format_number(last.low), format_number(last.high)
        text = (
            f"{last.devices:,} devices over {name} would train {job.network} at "
            f"{format_number(last.samples_per_s)} samples/s ({low} to {high}), "
            f"{100 * last.efficiency:.0f} % of as many single ones"
        )
        limited = next((p for p in points if p.limit.startswith("sync")), None)
        where = (
            f"; from {limited.devices} on {limited.limit.removeprefix('exchange: ')} limits"
            if limited
            else f"; {last.limit} limits"
        )
        yield Finding(text=f"{text}{where}.")


def chart(
    found: Mapping[str, tuple[Point, ...] | str], job: Job, *, several: bool = False
) -> Chart:
    """Throughput over devices, a line a network, with the ideal."""
    lines = []
    for name, points in found.items():
        if isinstance(points, str):
            continue
        dots = tuple(Dot(x=p.devices, y=p.samples_per_s, low=p.low, high=p.high) for p in points)
        lines.append(Line(name=name, points=dots, role="forecast"))
        one = points[0].samples_per_s
        ideal = tuple(Dot(x=p.devices, y=one * p.devices) for p in points)
        if len(lines) == 1:
            lines.append(Line(name="as many single devices", points=ideal, role="reference"))
    return Chart(
        name=f"cluster-throughput-{job.name}" if several else "cluster-throughput",
        title=f"Forecast throughput of {job.network} by number of devices",
        kind="line",
        x=Axis(name="devices", scale="log2"),
        y=Axis(name="throughput", unit="samples/s", scale="log10"),
        lines=tuple(lines),
    )
