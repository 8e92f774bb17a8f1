"""Forward and backward time of each layer on one device, and when each gradient is ready.

By the roofline (S. Williams, A. Waterman, D. Patterson, CACM 52(4), 2009): each layer's passes take
the longer of operations and bytes at the attainable rates of the device, a fraction of its
datasheet's peaks. A measured time of the whole
step scales all of them alike. The update reads weights, gradients and momenta and writes weights
and momenta. Weights and their gradients have four bytes in every precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from cubemesh.errors import UsageError
from cubemesh.forecast.attained import (
    DatasheetStep,
    datasheet_step,
    ideal_step,
    ideal_step_of_ceilings,
    is_judged,
)
from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.request import Ceilings, ForecastRequest, OtherRate
from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.system import System
from cubemesh.networks.cost import costs
from cubemesh.networks.graph import Network
from cubemesh.schema.cost import Cost
from cubemesh.schema.spec import Precision

VALUE_BYTES = 4
UPDATE_ACCESSES = 5
"""Of a value each, in SGD with momentum."""


@dataclass(frozen=True, kw_only=True)
class DeviceSpeed:
    """What a device attains."""

    flops_per_s: float
    bytes_per_s: float
    source: str


PROPORTIONS = DeviceSpeed(
    flops_per_s=10e12,
    bytes_per_s=500e9,
    source="no datasheet: layers in proportion as on a device of 20 operations a byte",
)
"""A placeholder for a device of which only the training speed is known: only the distribution of
time among layers is used."""


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """A layer's backward pass, in the order in which they run."""

    seconds: float
    gradient_bytes: int
    """Of the parameters whose gradient is complete after it."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """One device's step without synchronization."""

    forward: tuple[float, ...]
    """Seconds of each layer, in the order in which they run."""
    backward: tuple[Gradient, ...]
    update_s: float
    memory_bound: bool
    """Whether bytes take longer than operations."""

    @cached_property
    def forward_s(self) -> float:
        """Of all layers."""
        return sum(self.forward)

    @cached_property
    def backward_s(self) -> float:
        """Of all layers."""
        return sum(layer.seconds for layer in self.backward)

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.forward_s + self.backward_s + self.update_s

    @cached_property
    def gradient_bytes(self) -> int:
        """Of all parameters."""
        return sum(layer.gradient_bytes for layer in self.backward)

    def scaled(self, times: float) -> Passes:
        """The same, every pass so many times as long."""
        return replace(
            self,
            forward=tuple(seconds * times for seconds in self.forward),
            backward=tuple(
                Gradient(seconds=g.seconds * times, gradient_bytes=g.gradient_bytes)
                for g in self.backward
            ),
            update_s=self.update_s * times,
        )


def speed(system: System, precision: Precision, calibration: Calibration) -> DeviceSpeed | None:
    """What the device of a system attains in `precision`; None where its datasheet is not known."""
    sheet = datasheets().get(system.device)
    peak = None if sheet is None else sheet.peak(precision)
    bandwidth = None if sheet is None else sheet.value("memory_bytes_per_s")
    if sheet is None or peak is None or bandwidth is None:
        return None
    return DeviceSpeed(
        flops_per_s=peak.flops_per_s * calibration["attained_flops"],
        bytes_per_s=bandwidth * calibration["attained_bytes"],
        source=f"{sheet.name}: dense {peak.computed_in}, {peak.source}",
    )


def datasheet_forecast(
    asked: ForecastRequest, batch: int, known: Calibration, others: Sequence[OtherRate] = ()
) -> DatasheetStep | None:
    """The step of the device of a system on `batch` samples by its datasheet, corrected by `others`
    on the same device; None where it is no GPU of which the peak and the bandwidth are known. A
    processor's by its measured ceilings."""
    if asked.ceilings is not None:
        return _step_of_ceilings(asked, asked.ceilings, batch, known)
    sheet = datasheets().get(asked.system.device)
    if sheet is None or sheet.kind != "gpu":
        return None
    ideal = ideal_step(asked.network, batch, asked.precision, sheet, asked.software)
    if ideal is None:
        return None
    measured = [
        (step, other.batch_per_device / other.samples_per_s)
        for other in others
        if (
            step := ideal_step(
                other.network, other.batch_per_device, asked.precision, sheet, other.software
            )
        )
    ]
    names = ", ".join(other.name for other in others)
    return datasheet_step(
        ideal,
        {name: factor.value for name, factor in known.factors.items()},
        known["band_datasheet" if is_judged(sheet, asked.network) else "band_uncalibrated"],
        f"datasheet of {sheet.name}" + (f", corrected by measured {names}" if names else ""),
        measured,
    )


def _step_of_ceilings(
    asked: ForecastRequest, ceilings: Ceilings, batch: int, known: Calibration
) -> DatasheetStep:
    ideal = ideal_step_of_ceilings(
        asked.network, batch, asked.precision, ceilings.flops_per_s, ceilings.bytes_per_s
    )
    factors = {name: factor.value for name, factor in known.factors.items()}
    return datasheet_step(ideal, factors, known["band_ceilings"], ceilings.source)


def roofline_s(costs: Iterable[Cost], flops_per_s: float, bytes_per_s: float) -> float:
    """Least seconds of some passes, one after another: of each the longer of its matrix operations
    and its bytes at these rates."""
    return sum(max(c.matrix_flops / flops_per_s, c.moved_bytes / bytes_per_s) for c in costs)


def passes(network: Network, batch: int, precision: Precision, at: DeviceSpeed) -> Passes:
    """The passes on `batch` samples; UsageError for fewer than one."""
    if batch < 1:
        raise UsageError(f"batch_per_device={batch} must be 1 or more.")
    return _passes(_Same(network), batch, precision, at)


class _Same:
    """A network as a key of a cache: equal to itself only."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def __hash__(self) -> int:
        return id(self.network)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.network is self.network


@lru_cache(maxsize=1024)
def _passes(of: _Same, batch: int, precision: Precision, at: DeviceSpeed) -> Passes:
    network = of.network
    counted = costs(network, batch, precision)

    def seconds(*costs: Cost) -> float:
        return roofline_s(costs, at.flops_per_s, at.bytes_per_s)

    names = {node.name for node in network.nodes}
    losses = [layer.data_gradient for name, layer in counted.items() if name not in names]
    owner: dict[str, str] = {}
    for node in network.nodes:
        for parameter in node.parameters.values():
            owner.setdefault(parameter, node.name)  # shared ones are complete at the first use
    own = dict.fromkeys(names, 0)
    for parameter, name in owner.items():
        own[name] += VALUE_BYTES * math.prod(network.parameters[parameter].shape)
    backward = [Gradient(seconds=seconds(*losses), gradient_bytes=0)]
    for node in reversed(network.nodes):
        cost = counted[node.name]
        backward.append(
            Gradient(
                seconds=seconds(cost.data_gradient, cost.weight_gradient),
                gradient_bytes=own[node.name],
            )
        )
    weights = sum(g.gradient_bytes for g in backward)
    total = sum((layer.total for layer in counted.values()), start=Cost())
    return Passes(
        forward=tuple(seconds(layer.forward) for layer in counted.values()),
        backward=tuple(backward),
        update_s=UPDATE_ACCESSES * weights / at.bytes_per_s,
        memory_bound=total.moved_bytes / at.bytes_per_s > total.matrix_flops / at.flops_per_s,
    )
