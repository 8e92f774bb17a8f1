"""What-if analysis: changes to the machine or the program (`--what-if`).

A change is a key and a value. It is applied after the model was fitted to measurements, so a
measured device keeps its speed while links, network or strategy change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from cubemesh.errors import UsageError, unknown_name
from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.gradient_sync import PREDICTED, check_cost
from cubemesh.forecast.request import ForecastRequest
from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.system import Cluster
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.topology import NETWORKS, Link, Node, Topology
from cubemesh.machines.topology.speeds import NVLINK_LATENCY_S
from cubemesh.schema.spec import Precision

LINKS = ("pcie", "nvlink", "host")
WAYS = ("machine", "link", "network", "network_gbit_per_s", "network_latency_us", "ports")
"""Keys after which collectives that were measured no longer hold."""


@dataclass(frozen=True, kw_only=True)
class ChangeKey:
    """What can be changed, and how."""

    means: str
    values: str
    """What may be given, in words."""
    request: Callable[[ForecastRequest, str], ForecastRequest] | None = None
    factor: str = ""
    """Or else the factor of the calibration that it sets, times `unit`."""
    unit: float = 1.0
    least: float = 0.0


def read_changes(texts: Sequence[str]) -> dict[str, str]:
    """Key → value of the changes typed as key=value; UsageError for another form, an unknown key,
    or a duplicate."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if key not in KEYS:
            raise unknown_name("key of --what-if", key, KEYS, plural="keys")
        if not equals or not value:
            raise UsageError(f"--what-if {text}: give it as {key}=VALUE, with {KEYS[key].values}.")
        if key in found:
            raise UsageError(f"--what-if {key} is given twice; once is enough.")
        found[key] = value
    return found


def apply_changes(
    request: ForecastRequest, known: Calibration, changes: Mapping[str, str]
) -> tuple[ForecastRequest, Calibration]:
    """The request and the factors with these changes, in the order of `KEYS`; UsageError for an
    invalid value."""
    if changes.keys() & set(WAYS):
        known = replace(known, sweeps=())
    for key, entry in KEYS.items():
        if key not in changes:
            continue
        if entry.request is not None:
            request = entry.request(request, changes[key])
        else:
            value = _number(key, changes[key], entry.least) * entry.unit
            known = known.with_factor(entry.factor, value, "assumed", f"--what-if {key}")
    if "bucket_mib" in changes and request.style:
        raise UsageError(
            f"--what-if bucket_mib: style {request.style} has its own buckets. Leave the style out."
        )
    if "launch_us" in changes and not request.system.topology.gpus:
        raise UsageError(f"--what-if launch_us: {request.system.name} has no GPUs to launch on.")
    return request, known


def _number(key: str, text: str, least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    above = value > least if not least else value >= least
    if not (math.isfinite(value) and above):
        bound = f"of {least:g} or more" if least else "above 0"
        raise UsageError(f"--what-if {key}={text}: it must be a number {bound}.")
    return value


def _whole(key: str, text: str) -> int:
    value = _number(key, text, 1)
    if value != int(value):
        raise UsageError(f"--what-if {key}={text}: it must be a whole number.")
    return int(value)


def _machine(request: ForecastRequest, name: str) -> ForecastRequest:
    return replace(request, system=load_system(name))


def _device(request: ForecastRequest, device: str) -> ForecastRequest:
    if device not in datasheets():
        raise unknown_name("device", device, datasheets())
    nodes = tuple(
        replace(node, device=device) if node in request.system.topology.devices else node
        for node in request.system.topology.nodes
    )
    topology = Topology(
        name=request.system.topology.name, nodes=nodes, links=request.system.topology.links
    )
    return replace(request, system=replace(request.system, device=device, topology=topology))


def _link(request: ForecastRequest, link: str) -> ForecastRequest:
    """GPUs joined over PCIe only; all to all, with the NVLink bandwidth of their datasheet; or
    without peer access."""
    if link not in LINKS:
        raise unknown_name("link", link, LINKS)
    system, old = request.system, request.system.topology
    if not old.gpus:
        raise UsageError(f"--what-if link={link}: {system.name} has no GPUs.")
    if link == "host" and not old.of_kind("cpu"):
        raise UsageError(
            f"--what-if link=host: {system.name} has no processors, so nothing tells the way to "
            "its memory. Add [cpus] to its file."
        )
    request = replace(request, peer_access=link != "host")
    if link == "host":
        return request
    nodes = tuple(node for node in old.nodes if node.kind != "nvswitch")
    links = tuple(x for x in old.links if x.kind != "nvlink")
    if link == "nvlink":
        sheet = datasheets().get(system.device)
        rate = None if sheet is None else sheet.value("link_bytes_per_s")
        if rate is None:
            raise UsageError(
                f"--what-if link=nvlink: no datasheet says how fast NVLink of "
                f"{system.device or 'an unknown device'} is. Change the device as well: device=…"
            )
        nodes = (*nodes, Node(name="nvswitch", kind="nvswitch"))
        links += tuple(_switched(gpu.name, rate) for gpu in old.gpus)
    topology = Topology(name=old.name, nodes=nodes, links=links)
    return replace(request, system=replace(system, topology=topology))


def _switched(gpu: str, rate: float) -> Link:
    return Link(
        first=gpu,
        second="nvswitch",
        kind="nvlink",
        bandwidth_bytes_per_s=rate,
        latency_s=NVLINK_LATENCY_S / 2,
        name="NVLink",
    )


def _cluster(request: ForecastRequest, key: str) -> Cluster:
    if request.system.cluster is None:
        raise UsageError(
            f"--what-if {key}: {request.system.name} is a single system, without a network. "
            "Name a cluster, such as dgx1-v100-edr, or a file of your own with [cluster]."
        )
    return request.system.cluster


def _with(request: ForecastRequest, cluster: Cluster) -> ForecastRequest:
    return replace(request, system=replace(request.system, cluster=cluster))


def _network(request: ForecastRequest, name: str) -> ForecastRequest:
    if name not in NETWORKS:
        raise unknown_name("network", name, NETWORKS)
    network = NETWORKS[name]
    cluster = _cluster(request, f"network={name}")
    other = replace(
        cluster,
        network=network,
        switch_ports=network.switch_ports,
        oversubscription=1.0,
        links_between_groups=None,
    )
    return _with(request, other)


def _gbit_per_s(request: ForecastRequest, text: str) -> ForecastRequest:
    rate = _number("network_gbit_per_s", text)
    cluster = _cluster(request, f"network_gbit_per_s={text}")
    network = replace(cluster.network, gbit_per_s=rate, name=f"{rate:g} Gb/s network")
    if "Ethernet" in cluster.network.name:
        network = replace(network, name=f"{rate:g} Gb Ethernet")
    return _with(request, replace(cluster, network=network))


def _latency_us(request: ForecastRequest, text: str) -> ForecastRequest:
    cluster = _cluster(request, f"network_latency_us={text}")
    latency_s = _number("network_latency_us", text) * 1e-6
    network = replace(cluster.network, latency_s=latency_s, hop_latency_s=0.0)
    return _with(request, replace(cluster, network=network))


def _ports(request: ForecastRequest, text: str) -> ForecastRequest:
    cluster = _cluster(request, f"ports={text}")
    return _with(request, replace(cluster, ports_per_system=_whole("ports", text)))


def _sync(request: ForecastRequest, name: str) -> ForecastRequest:
    check_cost(name)
    return replace(request, sync=name, style="")


def _precision(request: ForecastRequest, name: str) -> ForecastRequest:
    if name not in get_args(Precision):
        raise unknown_name("precision", name, get_args(Precision), "", "precisions")
    return replace(request, precision=name)  # type: ignore[arg-type]


def _batch(request: ForecastRequest, text: str) -> ForecastRequest:
    return replace(request, batch_per_device=_whole("batch_per_device", text))


KEYS: dict[str, ChangeKey] = {
    "machine": ChangeKey(
        means="another machine with its devices",
        values="a system of the catalogue or a file",
        request=_machine,
    ),
    "device": ChangeKey(
        means="other devices on the same links",
        values="a device of the catalogue: v100-sxm2-16gb",
        request=_device,
    ),
    "link": ChangeKey(
        means="how the GPUs of a system are joined",
        values="pcie, nvlink (all to all, as fast as their datasheet says) or host (its memory)",
        request=_link,
    ),
    "network": ChangeKey(
        means="the network between systems",
        values=f"one of {', '.join(NETWORKS)}",
        request=_network,
    ),
    "network_gbit_per_s": ChangeKey(
        means="of one of its ports, one way", values="a number: 400", request=_gbit_per_s
    ),
    "network_latency_us": ChangeKey(
        means="from system to system", values="a number: 1.5", request=_latency_us
    ),
    "ports": ChangeKey(means="network ports of a system", values="a number: 8", request=_ports),
    "sync": ChangeKey(
        means="gradient synchronization strategy",
        values=f"one of {', '.join(PREDICTED)}",
        request=_sync,
    ),
    "precision": ChangeKey(
        means="precision of the computation",
        values=f"one of {', '.join(get_args(Precision))}",
        request=_precision,
    ),
    "batch_per_device": ChangeKey(
        means="batch size per device", values="a number: 128", request=_batch
    ),
    "device_speed": ChangeKey(
        means="how many times as fast each device computes",
        values="a number: 2",
        factor="device_speed",
    ),
    "straggler": ChangeKey(
        means="step time of the slowest device over that of the others",
        values="a number of 1 or more: 1.1",
        factor="straggler",
        least=1.0,
    ),
    "gradient_bytes": ChangeKey(
        means="bytes of a gradient that is sent",
        values="a number: 2",
        factor="gradient_scale",
        unit=1 / 4,
    ),
    "bucket_mib": ChangeKey(
        means="size of a bucket of gradients",
        values="a number: 100",
        factor="bucket_bytes",
        unit=float(1 << 20),
    ),
    "average_every": ChangeKey(
        means="steps between two averages of local-sgd",
        values="a number of 1 or more: 16",
        factor="average_every",
        least=1.0,
    ),
    "launch_us": ChangeKey(
        means="host time to launch a layer in a step",
        values="a number: 20",
        factor="launch_layer_s",
        unit=1e-6,
    ),
}
"""By what is typed before the equals sign, in the order in which they are made."""
