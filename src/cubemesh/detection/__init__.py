"""Object detection: boxes, the labels and the loss of a grid of cells, mean average precision."""

from __future__ import annotations

from cubemesh.networks.graph import Network

__all__ = ["detects"]


def detects(network: Network) -> bool:
    """Whether `network` detects objects in images: its labels are boxes."""
    return any(head.loss == "detection" for head in network.heads)
