"""The sharding of a program's arrays over its devices.

    one device      all arrays on it
    several         weights, state, optimizer, loss   replicated on every device
                    a minibatch                       in equal parts, one a device

One process drives all devices. The step is the single-device step: XLA partitions it by the
sharding of the batch and sums gradients over all devices (GSPMD: Xu et al. 2021, arXiv:2105.04663).
So it computes what one device would with the global batch, except that `batch_norm=device`
normalizes each device's part separately.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cubemesh.frameworks.contract.program import BuildRequest, Unsupported
from cubemesh.schema.work import Input, Training

_AXIS = "batch"


class DeviceSharding:
    """The shardings of a program's arrays."""

    def __init__(self, devices: list[jax.Device]) -> None:
        self.devices = devices
        mesh = Mesh(np.array(devices), (_AXIS,))
        several = len(devices) > 1
        self.everywhere: Any = NamedSharding(mesh, PartitionSpec()) if several else devices[0]
        """For replicated arrays."""
        self._parts = NamedSharding(mesh, PartitionSpec(_AXIS)) if several else devices[0]
        self.results: dict[str, Any] = {"out_shardings": self.everywhere} if several else {}
        """Arguments of `jax.jit` for replicated results."""

    def of_batch(self, samples: int) -> Any:
        """For an array of so many samples: split where they divide equally, else replicated."""
        return self.everywhere if samples % len(self.devices) else self._parts


def devices_of(request: BuildRequest) -> int:
    """The number of devices of the program. Unsupported for several without synchronization."""
    if isinstance(request.work, Input):
        return 1
    devices, trains = request.placement.devices, isinstance(request.work, Training)
    if devices > 1 and trains and request.sync.needs is None:
        raise Unsupported(
            f"devices={devices} in jax: one process drives all devices, which train one network. "
            "Set sync=all-reduce, or devices=1."
        )
    return devices
