"""Forecast request and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cubemesh.errors import UsageError
from cubemesh.forecast.attained import EAGER, Software
from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.communication import Library
from cubemesh.machines.catalogue.system import System
from cubemesh.networks.graph import Network
from cubemesh.schema.spec import Precision

ScalingMode = Literal["weak", "strong"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A forecast for one number of devices."""

    devices: int
    batch_per_device: int
    samples_per_s: float
    low: float
    high: float
    efficiency: float
    """Throughput over that of as many single devices at the same batch size per device."""
    limit: str
    parts_s: Mapping[str, float]
    """`forward`, `backward`, `launch`, `slowdown`, `exposed`, `update`, `sharing`, `waiting`; they
    sum to the step."""
    communication_s: float
    """All transfers of gradients and weights, hidden or not."""
    exchanged_bytes: int

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.parts_s.values())


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast points and their basis."""

    points: tuple[Point, ...]
    before: tuple[Point, ...] = ()
    """The same without what was changed; empty where nothing was."""
    calibration: Calibration
    device_source: str
    """Where one device's speed is from."""


@dataclass(frozen=True, kw_only=True)
class OtherRate:
    """What one device of the same kind trains of another network, or at another batch size."""

    name: str
    """`vgg16@64`."""
    network: Network
    batch_per_device: int
    samples_per_s: float
    software: Software


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Measured rates of a processor with the threads that train."""

    flops_per_s: float
    """Of a matrix product in the precision that trains."""
    bytes_per_s: float
    """Of a copy."""
    source: str


@dataclass(frozen=True, kw_only=True)
class ForecastRequest:
    """What is to be trained, on what."""

    network: Network
    system: System
    batch_per_device: int
    """Of each device in weak scaling; in strong scaling of one device that has it all."""
    precision: Precision = "fp32"
    mode: ScalingMode = "weak"
    sync: str = "all-reduce"
    """One of `COSTS` (forecast/gradient_sync.py) or `WITHIN_LAYERS`
    (forecast/strategies/divided.py)."""
    group_size: int | None = None
    """Devices that divide each sequence in context parallelism; None for all."""
    style: str = ""
    """One of `STYLES` (forecast/styles.py), instead of the transfers of `sync`; empty where what
    the framework does is unknown."""
    input_limit: float | None = None
    """Samples/s that a system reads and decodes; inf where it never waits; None if unknown."""
    software: Software = EAGER
    """What trains, for a forecast from a datasheet."""
    ceilings: Ceilings | None = None
    """Of a processor, from which its step is forecast."""
    peer_access: bool = True
    """Whether GPUs of a system reach one another's memory; else the host's memory is between."""

    @property
    def unknown(self) -> str:
        """What of the program is not given, in words; empty where all is. A strategy other than the
        default was chosen, so that its transfers are known."""
        style = not self.style and self.sync == "all-reduce"
        missing = ["style"] * style + ["input"] * (self.input_limit is None)
        return " and ".join(missing)

    @property
    def library(self) -> Library:
        """Processors talk through gloo."""
        return "nccl" if self.system.topology.gpus else "gloo"

    @property
    def computed_on(self) -> str:
        """The device and the precision, in words: what a measured rate holds for."""
        return f"{self.system.device or self.system.name} in {self.precision}"

    def batch(self, devices: int) -> int:
        """The batch size per device; UsageError if the global one cannot be divided."""
        if self.mode == "weak":
            return self.batch_per_device
        if self.batch_per_device % devices:
            raise UsageError(
                f"A global batch of {self.batch_per_device} cannot be divided among {devices} "
                f"devices. Give a multiple of {devices}."
            )
        return self.batch_per_device // devices
