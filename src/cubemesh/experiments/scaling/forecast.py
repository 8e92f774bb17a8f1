"""Forecast of throughput on several devices from a stored run on one.

The forecast uses the rate of one device, the network and the links between the devices, and nothing
measured on several. Groups of CPU cores communicate through gloo; GPUs are assumed to be in the
catalogue's system with that device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf

from cubemesh import networks
from cubemesh.errors import CubemeshError
from cubemesh.experiments.scaling.design import ScalingGroup
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.gradient_sync import COSTS
from cubemesh.forecast.request import ForecastRequest, Point
from cubemesh.forecast.step import predict
from cubemesh.forecast.strategies.divided import WITHIN_LAYERS
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.machines.catalogue import find
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import system, system_names
from cubemesh.machines.topology import Node, Topology
from cubemesh.machines.topology.speeds import smp
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import RunRecord
from cubemesh.schema.work import NetworkWork

MAX_GROUPS = 64
"""Most groups of cores that a host is assumed to have."""


def forecast_for(run: RunRecord, one: RunRecord, rate: float | None = None) -> Point | str:
    """The forecast for a run on several devices from that on one, or why there is none. `rate`
    replaces the rate of the one. If each of several has a smaller batch size, they share that of
    the one."""
    work, rate = one.spec.work, rate or one.figure("throughput_per_s")
    if not isinstance(work, NetworkWork) or rate is None:
        return "one device was not measured"
    if not one.ranks:
        return "the device of the single-device run is unknown"
    devices = run.spec.placement.devices
    sync = run.spec.program.sync
    if sync not in COSTS and sync not in WITHIN_LAYERS:
        return f"sync={sync} is not modelled"
    try:
        group = strategy(sync).ranks_per_sample(devices, run.spec.program)
    except Unsupported as error:
        return str(error)
    place = _unknown_link(run) or _place(one, devices)
    if isinstance(place, str):
        return place
    same = run.spec.batch_per_device == work.batch_per_device
    request = ForecastRequest(
        network=networks.build_for(work),
        system=place,
        batch_per_device=work.batch_per_device,
        precision=one.spec.program.precision,
        mode="weak" if same else "strong",
        sync=sync,
        group_size=group,
        style="ddp" if sync == "all-reduce" else "",
        input_limit=inf,
    )
    known = defaults()
    if FRAMEWORKS[one.spec.program.framework].one_launch:
        known = known.launched_at_once()
    try:
        return predict(request, [devices], known, {1: rate}).points[0]
    except CubemeshError as error:
        return str(error)


def forecast_points(
    one: ScalingGroup | None, together: Sequence[ScalingGroup]
) -> tuple[tuple[ScalingGroup, Point | str], ...]:
    """The points of several devices with their forecasts, or why there is none; `one` are the
    runs on one device."""
    if one is None or one.throughput is None:
        return ()
    rate = one.throughput.value
    return tuple(
        (group, forecast_for(group.records[0], one.records[0], rate)) for group in together
    )


def _unknown_link(run: RunRecord) -> str:
    """Why the devices of a run are not connected as in one system; empty if they are."""
    placement = run.spec.placement
    hosts = set(placement.hosts) or {rank.host for rank in run.ranks}
    if len(hosts) > 1:
        return f"it ran on {len(hosts)} hosts, with an unknown network between them"
    if placement.link != "auto":
        return f"link={placement.link} is not modelled"
    return ""


def _place(one: RunRecord, devices: int) -> System | str:
    """The system of devices like that of a run, or why there is none."""
    rank = one.ranks[0]
    return system_of(rank.device, rank.device_name, devices)


def system_of(device: str, device_name: str, devices: int) -> System | str:
    """The system of so many devices of a kind and name, or why there is none."""
    if device.startswith("cpu"):
        if devices > MAX_GROUPS:
            return f"{devices} groups of cores are more than the {MAX_GROUPS} of the model"
        return _groups_of_cores(devices)
    sheet = find(device_name)
    for name in system_names() if sheet else ():
        found = system(name)
        if sheet and found.device == sheet.id and found.cluster is None:
            return found
    return f"no system of the catalogue has {device_name or 'this device'}"


@cache
def _groups_of_cores(devices: int) -> System:
    """Processes on one host, each a device; the rates of gloo are in the calibration."""
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
