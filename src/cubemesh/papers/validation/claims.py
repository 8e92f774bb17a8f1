"""The papers' claims about links, clusters and scaling, compared with forecasts.

The forecasts follow from links, datasheets and the model alone; none is calibrated with a figure of
the paper. Speed-ups and efficiencies are of the paper's network, devices and batch size (64 if none
is given); "NVLink over PCIe" is `--what-if link=pcie`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

from cubemesh import networks
from cubemesh.forecast.calibration import defaults
from cubemesh.forecast.request import Forecast, ForecastRequest
from cubemesh.forecast.step import predict
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.machines.topology import NETWORKS, Design, fat_tree, find_rings, hops, shared_rates
from cubemesh.networks.graph import Network
from cubemesh.papers.published import claims
from cubemesh.schema import Claim
from cubemesh.schema.spec import Precision

GB, US = 1e9, 1e-6


@dataclass(frozen=True, kw_only=True)
class ClaimForecast:
    """A claim with forecasts of its values, in its unit."""

    claim: Claim
    forecasts: tuple[float, ...]


def checked_claims() -> tuple[ClaimForecast, ...]:
    """Every claim that has a forecast, in the order of the papers."""
    return tuple(
        ClaimForecast(claim=claim, forecasts=FORECASTS[claim.id]())
        for claim in claims()
        if claim.id in FORECASTS
    )


def _forecast(
    network: str | Network,
    machine: str,
    devices: tuple[int, ...],
    batch: int = 64,
    precision: Precision = "fp32",
    /,
    **changes: str,
) -> Forecast:
    request = ForecastRequest(
        network=networks.build(network) if isinstance(network, str) else network,
        system=load_system(machine),
        batch_per_device=batch,
        precision=precision,
    )
    return predict(request, devices, defaults(), None, changes)


def _speed_up(network: str, machine: str, devices: int) -> tuple[float]:
    return (devices * _forecast(network, machine, (devices,)).points[0].efficiency,)


def _efficiency(machine: str) -> tuple[float, ...]:
    """Efficiency of ResNet-50 on eight devices at batch sizes 32 and 64."""
    return tuple(
        100 * _forecast("resnet-50", machine, (8,), batch).points[0].efficiency
        for batch in (32, 64)
    )


def _over_pcie(network: str | Network, batch: int, precision: Precision = "fp32") -> float:
    found = _forecast(network, "dgx1-v100", (8,), batch, precision, link="pcie")
    return found.before[0].samples_per_s / found.points[0].samples_per_s


def _translator(hidden: int) -> Network:
    return networks.entry("translator").make(50, 32000, hidden)


def _ethernet() -> tuple[float]:
    found = _forecast("googlenet", "c4130-g-edr", (16,), 64, "fp32", network="10gbe")
    return (found.points[0].samples_per_s / found.before[0].samples_per_s,)


def _design(name: str, ports: int) -> Design:
    network = NETWORKS[name]
    used = 32 if name == "edr" else None
    return Design(
        network=network,
        ports_per_system=ports,
        switch_ports=network.switch_ports,
        ports_used=used,
    )


def _contention() -> tuple[float]:
    topology = load_system("pcie-tree-4").topology
    right = shared_rates(topology, [("gpu0", "gpu1"), ("gpu2", "gpu3")])[0]
    return (right / shared_rates(topology, [("gpu0", "gpu2"), ("gpu1", "gpu3")])[0],)


def _hops() -> tuple[float]:
    topology = load_system("dgx1-p100").topology
    names = [gpu.name for gpu in topology.gpus]
    return (float(max(hops(topology, a, b) or 0 for a, b in combinations(names, 2))),)


def _rings(machine: str) -> tuple[float]:
    return (find_rings(load_system(machine).topology).bandwidth_bytes_per_s / GB,)


FORECASTS: dict[str, Callable[[], tuple[float, ...]]] = {
    "002-2": lambda: (100 * (_over_pcie("inception-v3", 128, "fp16") - 1),),
    "002-3": lambda: (100 * (_over_pcie(_translator(512), 256) - 1),),
    "002-4": lambda: (_over_pcie(_translator(2048), 64),),
    "002-6": lambda: _rings("dgx1-v100"),
    "002-7": lambda: _rings("dual-root-pcie"),
    "002-8": lambda: (fat_tree(124, _design("10gbe", 2)).bisection_bytes_per_s / GB,),
    "002-9": lambda: (fat_tree(124, _design("edr", 4)).bisection_bytes_per_s / GB,),
    "002-10": lambda: (fat_tree(124, _design("edr", 4)).latency_s / US,),
    "002-11": lambda: (float(_design("edr", 4).most_systems(2)),),
    "002-16": _contention,
    "003-3": lambda: _speed_up("googlenet", "c4130-g", 4),
    "003-4": lambda: _speed_up("inception-v3", "c4130-g", 4),
    "003-5": lambda: _speed_up("googlenet", "c4130-g-edr", 16),
    "003-6": lambda: _speed_up("inception-bn", "c4130-g-edr", 16),
    "003-7": lambda: (100 * _speed_up("inception-bn", "c4130-g-edr", 12)[0] / 12,),
    "003-8": _ethernet,
    "004-1": lambda: _efficiency("dgx1-p100"),
    "004-2": lambda: _efficiency("knl-aries"),
    "004-10": lambda: (4 * networks.build("alexnet").parameter_count / 1e6,),
    "004-18": _hops,
}
"""Claim id → forecast of its values."""
