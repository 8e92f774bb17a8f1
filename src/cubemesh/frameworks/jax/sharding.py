"""On which of a program's devices does each array lie?

    one device      all arrays on it
    several         weights, state, optimizer, loss   on every device, alike
                    a minibatch                       in equal parts, one a device

One process drives all devices. The step is the one-device step: XLA divides its work by where the
batch lies and sums gradients over all devices (GSPMD: Xu et al. 2021, arXiv:2105.04663). So it
computes what one device would with the global minibatch; but for a batch normalisation over each
device's own samples (`batch_norm=device`), which takes the minibatch in the parts that lie there.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cubemesh.frameworks.api.program import BuildRequest, Unsupported
from cubemesh.schema.work import Input, Train, TrainSteps

_AXIS = "batch"


class Layout:
    """Where the arrays of a program lie."""

    def __init__(self, devices: list[jax.Device]) -> None:
        self.devices = devices
        mesh = Mesh(np.array(devices), (_AXIS,))
        several = len(devices) > 1
        self.everywhere: Any = NamedSharding(mesh, PartitionSpec()) if several else devices[0]
        """For arrays that every device has."""
        self._parts = NamedSharding(mesh, PartitionSpec(_AXIS)) if several else devices[0]
        self.results: dict[str, Any] = {"out_shardings": self.everywhere} if several else {}
        """How a function is compiled whose results are to lie on every device."""

    def of_batch(self, samples: int) -> Any:
        """For an array of so many samples: in parts, where they are equal."""
        return self.everywhere if samples % len(self.devices) else self._parts


def devices_of(request: BuildRequest) -> int:
    """How many devices the program of `request` takes. Unsupported where each is to train alone."""
    if isinstance(request.work, Input):
        return 1
    devices, trains = request.placement.devices, isinstance(request.work, (TrainSteps, Train))
    if devices > 1 and trains and request.sync.name == "none":
        raise Unsupported(
            f"devices={devices} in jax are driven by one process and train one network together. "
            "Set sync=all-reduce, or devices=1."
        )
    return devices
