"""What was to be expected of several devices, from a run of one?

The forecast knows the rate of one device in a stored run, the network and how devices are joined,
and nothing of the several. Groups of a processor's cores exchange through gloo; GPUs are taken to
stand in the catalogue's system of that device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import median

from cubemesh import networks
from cubemesh.errors import CubemeshError
from cubemesh.experiments.analysis.groups import Group
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.gradient_sync import COSTS
from cubemesh.forecast.request import ForecastRequest, Point
from cubemesh.forecast.step import predict
from cubemesh.machines.catalogue import find
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import system, system_names
from cubemesh.machines.topology import Node, Topology
from cubemesh.machines.topology.make import smp
from cubemesh.schema import Cell, Column, Finding, RunRecord, Table
from cubemesh.schema.work import NetworkWork

ScalingGroup = Group[tuple[int, str]]
ForecastPoint = tuple[str, ScalingGroup, Point | str]
"""The name of a curve, a point of it, and its forecast or why there is none."""
MOST_GROUPS = 64


def forecast_for(run: RunRecord, one: RunRecord, rate: float | None = None) -> Point | str:
    """The forecast for a run of several devices from that of one; or why there is none. `rate`
    stands for what the one reached. Where a device of several has a smaller minibatch, all share
    that of the one."""
    work, rate = one.spec.work, rate or one.figure("throughput_per_s")
    if not isinstance(work, NetworkWork) or rate is None:
        return "one device was not measured"
    if not one.ranks:
        return "the run of one device does not say what it was on"
    devices = run.spec.placement.devices
    sync = run.spec.program.sync
    if sync not in COSTS:
        return f"sync={sync} is not modelled"
    place = _joined_otherwise(run) or _place(one, devices)
    if isinstance(place, str):
        return place
    same = run.spec.batch_per_device == work.batch_per_device
    request = ForecastRequest(
        network=networks.build_for(work),
        system=place,
        batch_per_device=work.batch_per_device,
        precision=one.spec.program.precision,
        regime="weak" if same else "strong",
        sync=sync,
    )
    try:
        return predict(request, [devices], defaults(), {1: rate}).points[0]
    except CubemeshError as error:
        return str(error)


def forecast_points(
    one: ScalingGroup | None, together: Sequence[ScalingGroup]
) -> tuple[tuple[ScalingGroup, Point | str], ...]:
    """The points of several devices that train together, each with its forecast or why there is
    none; `one` are the runs on one device."""
    if one is None or one.throughput is None:
        return ()
    rate = one.throughput.value
    return tuple(
        (group, forecast_for(group.records[0], one.records[0], rate)) for group in together
    )


def forecast_table(found: Sequence[ForecastPoint]) -> Table:
    """Forecast beside measured, a row for each number of several devices."""
    rows = []
    for name, group, point in found:
        devices, sync = group.key
        head = (Cell(text=name, run_id=group.run_id), Cell(value=devices), Cell(text=sync))
        figure = group.throughput
        measured = group.cell(figure)
        if isinstance(point, str):
            rows.append((*head, measured, *(Cell(reason=point) for _ in range(3))))
            continue
        off = None if figure is None else 100 * (point.samples_per_s / figure.value - 1)
        rows.append(
            (
                *head,
                measured,
                Cell(value=point.samples_per_s, low=point.low, high=point.high),
                group.cell(None) if off is None else Cell(value=off),
                Cell(text=point.limit),
            )
        )
    return Table(
        title="Forecast from one device, beside measured",
        columns=(
            Column(name="network, minibatch"),
            Column(name="devices"),
            Column(name="sync"),
            Column(name="measured", unit="samples/s"),
            Column(name="forecast", unit="samples/s"),
            Column(name="forecast off by", unit="%"),
            Column(name="forecast limit"),
        ),
        rows=tuple(rows),
    )


def forecast_finding(found: Sequence[ForecastPoint]) -> tuple[Finding, ...]:
    """How far forecasts were off; none where none could be held against a measurement."""
    off = [
        abs(point.samples_per_s / group.throughput.value - 1)
        for _, group, point in found
        if not isinstance(point, str) and group.throughput is not None
    ]
    if not off:
        return ()
    text = (
        f"Forecasts from one device's rate are off by {100 * median(off):.1f} % in the median and "
        f"{100 * max(off):.1f} % at most, over {len(off)} points of several devices."
    )
    return (Finding(text=text),)


def _joined_otherwise(run: RunRecord) -> str:
    """Why the devices of a run were not joined as those of one system are; empty where they were,
    as far as its record tells."""
    placement = run.spec.placement
    hosts = set(placement.hosts) or {rank.host for rank in run.ranks}
    if len(hosts) > 1:
        return f"it ran on {len(hosts)} hosts, and what joins them is not known"
    if placement.link != "auto":
        return f"link={placement.link} is not modelled"
    return ""


def _place(one: RunRecord, devices: int) -> System | str:
    """What joins devices like that of a run."""
    rank = one.ranks[0]
    if rank.device.startswith("cpu"):
        if devices > MOST_GROUPS:
            return f"{devices} groups of cores are more than a host is taken to have"
        return _groups_of_cores(devices)
    sheet = find(rank.device_name)
    for name in system_names() if sheet else ():
        found = system(name)
        if sheet and found.device == sheet.id and found.cluster is None:
            return found
    return f"{rank.device_name or 'this device'} stands in no system of the catalogue"


@cache
def _groups_of_cores(devices: int) -> System:
    """Processes on one host, each a device; what gloo attains between them is in the factors."""
    nodes = tuple(Node(name=f"cpu{i}", kind="cpu", index=i) for i in range(devices))
    links = tuple(smp(f"cpu{i}", f"cpu{i + 1}", "upi-16", 3) for i in range(devices - 1))
    if devices > 2:
        links += (smp(f"cpu{devices - 1}", "cpu0", "upi-16", 3),)
    return System(
        name="this host",
        title="groups of cores of one host",
        sources=("the runs themselves",),
        topology=Topology(name="this host", nodes=nodes, links=links),
    )
