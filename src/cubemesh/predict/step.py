"""How fast will several devices train a network, what will they lose, and to what?

A step on n devices takes

    forward + backward + slowdown + exposed + update + waiting

Gradients are exchanged in buckets as backward completes them, as DistributedDataParallel does, one
all-reduce after the other (`communication.py`). What has not ended when backward ends is exposed;
what runs beside it slows it (`overlap_slowdown`). Everybody waits for the slowest of n devices: the
expected maximum of n normal steps (G. Blom, 1958). One device's passes come from its datasheet, or
from a measured step (`passes.py`). Weak scaling keeps the minibatch of a device, strong scaling
that of all together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from cubemesh.errors import UsageError, unknown_name
from cubemesh.machines.catalogue.system import System
from cubemesh.model.spec import Precision
from cubemesh.networks.graph import Network
from cubemesh.predict.calibration import Calibration
from cubemesh.predict.communication import Library, collective
from cubemesh.predict.fabric import Fabric, fabric
from cubemesh.predict.passes import PROPORTIONS, Passes, passes, speed

Regime = Literal["weak", "strong"]
GOOD = 0.9
"""From this efficiency on a device's own speed is named as the limit."""
ONE = Fabric(devices_per_system=1)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A forecast for one number of devices."""

    devices: int
    batch_per_device: int
    samples_per_s: float
    low: float
    high: float
    efficiency: float
    """Throughput over that of as many single devices at the minibatch of one device."""
    limit: str
    parts_s: Mapping[str, float]
    """`forward`, `backward`, `slowdown`, `exposed`, `update`, `waiting`; they sum to the step."""
    communication_s: float
    """All exchanges together, hidden or not."""
    exchanged_bytes: int

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.parts_s.values())


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The points, and what they rest on."""

    points: tuple[Point, ...]
    calibration: Calibration
    device_source: str
    """Where one device's speed is from."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained, on what."""

    network: Network
    system: System
    batch_per_device: int
    """Of each device in weak scaling; in strong scaling of one device that has it all."""
    precision: Precision = "fp32"
    regime: Regime = "weak"

    @property
    def library(self) -> Library:
        """Processors talk through gloo."""
        return "nccl" if self.system.topology.gpus else "gloo"

    def batch(self, devices: int) -> int:
        """The minibatch of each device; UsageError where it cannot be shared out."""
        if self.regime == "weak":
            return self.batch_per_device
        if self.batch_per_device % devices:
            raise UsageError(
                f"A minibatch of {self.batch_per_device} cannot be shared by {devices} devices. "
                f"Give a multiple of {devices}."
            )
        return self.batch_per_device // devices


def predict(
    question: Question,
    devices: Sequence[int],
    calibration: Calibration,
    measured: Mapping[int, float] | None = None,
) -> Forecast:
    """Forecasts for each of `devices`; `measured` are samples per second on so many devices.

    With a measured point of one device its step is that long; with the largest other one what
    several devices lose is fitted to it; with only such a point the device's step is. UsageError
    for device counts that the system does not have, rates that are not above 0, or a device of
    which neither datasheet nor a measured point is known.
    """
    if question.regime not in ("weak", "strong"):
        raise unknown_name("regime", question.regime, ("weak", "strong"))
    model = _Model(question, calibration, dict(measured or {}))
    model.fit()
    return Forecast(
        points=tuple(model.point(n) for n in devices),
        calibration=model.known,
        device_source=model.source,
    )


def slowest(devices: int) -> float:
    """Expected maximum of so many standard normal values (Blom's approximation); 0 for one."""
    if devices == 1:
        return 0.0
    return NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


class _Model:
    """One device's speed, and what is lost on several."""

    def __init__(self, question: Question, known: Calibration, measured: dict[int, float]) -> None:
        for devices, rate in measured.items():
            if not 0 < rate < float("inf"):
                raise UsageError(f"measured {devices}={rate}: samples per second are above 0.")
            fabric(question.system, devices)
        found = speed(question.system, question.precision, known)
        if found is None and not measured:
            raise UsageError(
                f"Nothing tells how fast a device of {question.system.name} trains in "
                f"{question.precision}: no datasheet has its peak. Give what was measured: "
                "--measured 1=SAMPLES_PER_S."
            )
        self.asked, self.known, self.measured = question, known, measured
        self.at, self.scale = found or PROPORTIONS, 1.0
        self.source = self.at.source
        self.fabrics: dict[int, Fabric] = {1: ONE}
        self.known_passes: dict[int, Passes] = {}
        self.fitted: set[int] = set()
        """The numbers of devices whose measured rate the model passes through."""

    def fit(self) -> None:
        """Make the model pass through the measured points."""
        several = max((n for n in self.measured if n > 1), default=0)
        self.fitted = {n for n in (1, several) if n in self.measured}
        if 1 in self.measured:
            self.scale = self.asked.batch(1) / self.measured[1] / self.passes(1).step_s
            self.source = "measured on one device"
            if several:
                self._fit_overhead(several)
        elif several:
            self._fit_scale(several)

    def _fit_scale(self, devices: int) -> None:
        """The device's step that gives the measured rate on several, by bisection."""
        low, high = 1e-6, 1e6
        for _ in range(80):
            self.scale = (low * high) ** 0.5
            if self._rate(devices) > self.measured[devices]:
                low = self.scale
            else:
                high = self.scale
        self.source = f"fitted to what was measured on {devices} devices"

    def _fit_overhead(self, devices: int) -> None:
        parts = self.parts(devices)
        lost = parts["slowdown"] + parts["exposed"] + parts["waiting"]
        step_s = devices * self.asked.batch(devices) / self.measured[devices]
        own = sum(parts.values()) - lost
        source = f"what was measured on {devices} devices"
        self.known = self.known.with_factor(
            "overhead_scale", max(0.0, step_s - own) / lost, "fitted", source
        )

    def passes(self, devices: int) -> Passes:
        """Of a device among so many."""
        asked, batch = self.asked, self.asked.batch(devices)
        if batch not in self.known_passes:
            self.known_passes[batch] = passes(asked.network, batch, asked.precision, self.at)
        return self.known_passes[batch].scaled(self.scale)

    def parts(self, devices: int) -> dict[str, float]:
        """The parts of a step, in seconds."""
        own = self.passes(devices)
        slowdown, exposed, _, _ = self.exchange(devices, own)
        waiting = self.known["step_spread"] * slowest(devices) * own.step_s
        more = self.known["overhead_scale"]
        return {
            "forward": own.forward_s,
            "backward": own.backward_s,
            "slowdown": slowdown * more,
            "exposed": exposed * more,
            "update": own.update_s,
            "waiting": waiting * more,
        }

    def exchange(self, devices: int, own: Passes) -> tuple[float, float, float, str]:
        """(slowdown of backward, exposed, all exchanges together, what the last one waits for)."""
        if devices not in self.fabrics:
            self.fabrics[devices] = fabric(self.asked.system, devices)
        on = self.fabrics[devices]
        if devices == 1:
            return 0.0, 0.0, 0.0, ""
        ready_s, ended_s, busy_s, limit = 0.0, 0.0, 0.0, ""
        waiting, room, hidden = 0, self.known["first_bucket_bytes"], 0.0
        end_s = own.backward_s
        for i, layer in enumerate(own.backward):
            ready_s += layer.seconds
            waiting += layer.gradient_bytes
            if waiting and (waiting >= room or i == len(own.backward) - 1):
                one = collective(on, "all-reduce", waiting, self.known, self.asked.library)
                started = max(ready_s, ended_s)
                ended_s = started + one.seconds
                hidden += max(0.0, min(ended_s, end_s) - started)
                busy_s, limit = busy_s + one.seconds, one.limit
                waiting, room = 0, self.known["bucket_bytes"]
        slowdown = self.known["overlap_slowdown"] * hidden
        return slowdown, max(0.0, ended_s - end_s), busy_s, limit

    def _rate(self, devices: int) -> float:
        return devices * self.asked.batch(devices) / sum(self.parts(devices).values())

    def point(self, devices: int) -> Point:
        """The forecast for so many devices."""
        own = self.passes(devices)
        parts = self.parts(devices)
        _, _, busy_s, link = self.exchange(devices, own)
        rate = self._rate(devices)
        efficiency = rate / devices / self._rate(1)
        band = self._band(devices)
        return Point(
            devices=devices,
            batch_per_device=self.asked.batch(devices),
            samples_per_s=rate,
            low=rate / band,
            high=rate * band,
            efficiency=efficiency,
            limit=_limit(parts, own, efficiency, link),
            parts_s=parts,
            communication_s=busy_s,
            exchanged_bytes=sum(g.gradient_bytes for g in own.backward) if devices > 1 else 0,
        )

    def _band(self, devices: int) -> float:
        """By which factor a forecast may be off, up or down."""
        if not self.measured:
            return self.known["band_uncalibrated"]
        if devices in self.fitted:
            return self.known["band_one_device"]
        systems = self.fabrics[devices].systems
        return self.known["band_one_system" if systems == 1 else "band_systems"]


def _limit(parts: Mapping[str, float], own: Passes, efficiency: float, link: str) -> str:
    if efficiency >= GOOD:
        return "memory bandwidth of a device" if own.memory_bound else "operations of a device"
    losses = {
        f"exchange: {link}": parts["exposed"] + parts["slowdown"],
        "waiting for the slowest device": parts["waiting"],
    }
    worst = max(losses, key=lambda name: losses[name])
    if losses[worst] > 0.05 * sum(parts.values()):
        return worst
    return "small minibatch of a device"
