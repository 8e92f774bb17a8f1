"""Networks of the zoo: their sizes, and one layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.networks import NETWORKS, build
from cubemesh.networks.describe import LayerRow, NetworkSummary, layer_rows, summary


@dataclass(frozen=True, kw_only=True)
class NetworkLayers:
    """A network with a row for each layer."""

    summary: NetworkSummary
    layers: tuple[LayerRow, ...]


def list_networks() -> tuple[NetworkSummary, ...]:
    """Every network that can be trained."""
    return tuple(map(summary, NETWORKS))


def network_layers(name: str) -> NetworkLayers:
    """One network layer by layer; UsageError naming the nearest for an unknown one."""
    found = summary(name)
    return NetworkLayers(summary=found, layers=tuple(layer_rows(build(found.name))))
