"""Step time forecast: the throughput of several devices, and what limits it.

A step on n devices takes

    forward + backward + launch + slowdown + exposed + update + sharing + waiting + input

`launch` is the time a device waits for its host (`launch_overhead.py`), which some strategies give
more to do (`strategies/`). Gradients are synchronized
in buckets as the backward pass completes them (`gradient_sync.py`, `communication.py`): what has
not finished with the backward pass is exposed; what overlaps slows it (`overlap_slowdown`). Two
GPUs of a K80 share their board and its power (`sharing`). All devices wait for the slowest of n:
the expected maximum of n normal step times (G. Blom, 1958), whose spread is that of a device and,
in recurrent networks, of the sentence lengths, in proportion to 1 / batch size. `input` is what a
step is longer because a system reads no more samples in a second (`input_limit`). One device's
passes come from its datasheet, or from a measured step (`passes.py`). Weak scaling fixes the batch
size per device, strong scaling the global one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, hypot, inf, log
from statistics import NormalDist

from cubemesh.errors import UsageError
from cubemesh.forecast.attained import DatasheetStep
from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.fabric import Fabric, fabric
from cubemesh.forecast.gradient_sync import COSTS, SyncTime, style_time, sync_time
from cubemesh.forecast.launch_overhead import NO_WORK, HostWork, host_s, stall_s, times_for
from cubemesh.forecast.passes import PROPORTIONS, Passes, datasheet_forecast, passes, speed
from cubemesh.forecast.request import Forecast, ForecastRequest, OtherRate, Point
from cubemesh.forecast.strategies.divided import (
    WITHIN_LAYERS,
    by_layer_host_work,
    by_layer_time,
    context_time,
    copy_rate,
)
from cubemesh.forecast.strategies.sharded import sharded_host_work
from cubemesh.forecast.styles import STYLES
from cubemesh.forecast.transformers.groups import group_fabric
from cubemesh.forecast.what_if import apply_changes
from cubemesh.frameworks.contract.program import Unsupported
from cubemesh.networks.graph import follows_weights
from cubemesh.networks.layers import Recurrence
from cubemesh.parallel.hybrid_by_layer import HybridByLayer

GOOD = 0.9
"""From this efficiency on a device's own speed is named as the limit."""
NOISE = 0.03
"""So much more than as many single devices several may reach by chance."""
ONE = Fabric(devices_per_system=1)
BOARDS_OF_TWO = {"k80"}
"""Devices of which two share a board."""


def predict(
    request: ForecastRequest,
    devices: Sequence[int],
    calibration: Calibration,
    measured: Mapping[int, float] | None = None,
    what_if: Mapping[str, str] | None = None,
    others: Sequence[OtherRate] = (),
) -> Forecast:
    """Forecasts for each of `devices`; `measured` are samples per second on so many devices.

    With a measured point of one device its step is that long; what several devices lose is fitted
    to the largest other one, and where there is one of a system and one of several systems, what
    is lost inside and between them to each; with only such a point the device's step is. Without
    any the step is that of the datasheet, corrected by `others` on the same device. `what_if` is
    changed after that fit: the points are those of the changed machine or program. UsageError
    for device counts that the system does not have, rates that are not above 0, or a device
    with neither a datasheet nor a measured point.
    """
    model = _Model(request, calibration, dict(measured or {}), others)
    model.fit()
    before = tuple(model.point(n) for n in devices) if what_if else ()
    if what_if:
        model = model.with_changes(what_if)
    return Forecast(
        points=tuple(model.point(n) for n in devices),
        before=before,
        calibration=model.known,
        device_source=model.source,
    )


def predict_with(
    request: ForecastRequest,
    devices: Sequence[int],
    calibrations: Sequence[Calibration],
    measured: Mapping[int, float],
) -> tuple[tuple[Point, ...], ...]:
    """The points of `predict` by each of some calibrations, which differ in what devices exchange
    only; the device's step is that of the first."""
    model = _Model(request, calibrations[0], dict(measured))
    model.fit()
    found = []
    for known in calibrations:
        model.known = known
        found.append(tuple(model.point(n) for n in devices))
    return tuple(found)


def slowest(devices: int) -> float:
    """Expected maximum of so many standard normal values (Blom's approximation); 0 for one."""
    if devices == 1:
        return 0.0
    return NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


class _Model:
    """One device's speed, and what is lost on several."""

    def __init__(
        self,
        request: ForecastRequest,
        known: Calibration,
        measured: dict[int, float],
        others: Sequence[OtherRate] = (),
        *,
        foreign: bool = False,
    ) -> None:
        """`foreign`: the rates were measured on another machine."""
        for devices, rate in measured.items():
            if not 0 < rate < float("inf"):
                raise UsageError(f"measured {devices}={rate}: samples per second are above 0.")
            if not foreign:
                systems = fabric(request.system, devices).systems
                most = (request.input_limit or inf) * systems
                if rate > most:
                    raise UsageError(
                        f"measured {devices}={rate:g} is more than the input of {systems} systems "
                        f"({most:g} samples/s). Raise the input limit or check the rate."
                    )
        found = speed(request.system, request.precision, known)
        if found is None and not measured and request.ceilings is None:
            raise UsageError(
                f"Unknown: how fast a device of {request.system.name} trains in "
                f"{request.precision}: no datasheet has its peak. Give what was measured: "
                "--measured 1=SAMPLES_PER_S."
            )
        self.asked, self.known, self.measured, self.others = request, known, measured, others
        self.at, self.scale = found or PROPORTIONS, 1 / known["device_speed"]
        self.source = self.at.source
        self.launch_s = known["launch_layer_s"] if request.library == "nccl" else 0.0
        sheet = self._datasheet(request.batch(1))
        if sheet is not None:
            self.source = sheet.source
            captured = request.software.captured or request.ceilings is not None
            self.launch_s = 0.0 if captured else known["host_layer_s"]
        if others and (sheet is None or request.ceilings is not None):
            raise UsageError(
                f"{', '.join(other.name for other in others)}: rates of other networks correct a "
                f"forecast from the datasheet of a GPU. Give either these, or rates of "
                f"{request.network.name} itself."
            )
        self.fabrics: dict[int, Fabric] = {1: ONE}
        self.known_passes: dict[int, Passes] = {}
        self._scaled: dict[int, tuple[float, Passes]] = {}
        """Batch size → the last scale, and the passes at it."""
        self.units: HostWork | None = None
        """Of the host for the units of sharded data parallelism, counted once."""
        self.single_rate: float | None = None
        """The forecast rate of one device, computed once."""
        self.fitted: set[int] = set()
        """The numbers of devices whose measured rate the model passes through."""
        self.elsewhere = False
        """Whether the rates were measured on another kind of device, or in another precision."""

    def fit(self) -> None:
        """Make the model pass through the measured points."""
        each = self.asked.system.devices
        inside = max((n for n in self.measured if 1 < n <= each), default=0)
        beyond = max((n for n in self.measured if n > each), default=0)
        if 1 in self.measured:
            self._fit_step(self.asked.batch(1) / self.measured[1])
            self.source = "its measured rate"
            self.fitted = {n for n in (1, inside, beyond) if n}
            if inside:
                self._fit_loss(inside, "overhead_scale")
            if beyond:
                self._fit_loss(beyond, "overhead_between" if inside else "overhead_scale")
        elif inside or beyond:
            self.fitted = {beyond or inside}
            self._fit_scale(beyond or inside)

    def with_changes(self, changes: Mapping[str, str]) -> _Model:
        """The same on a changed machine or with a changed program, with nothing fitted anew."""
        request, known = apply_changes(self.asked, self.known, changes)
        before, after = self.asked.computed_on, request.computed_on
        others = self.others if before == after else ()
        if self.asked.ceilings is not None and before != after:
            raise UsageError(
                f"{self.asked.ceilings.source}: ceilings of {before} do not hold for {after}. Ask "
                "without --what-if, with its own ceilings."
            )
        model = _Model(request, known, self.measured, others, foreign=True)
        model.elsewhere = before != after
        if model.elsewhere and PROPORTIONS in (self.at, model.at):
            unknown = before if self.at == PROPORTIONS else after
            raise UsageError(
                f"{before} and {after} cannot be compared: no datasheet has the peak of {unknown}. "
                "Ask without --what-if, with a rate that was measured there."
            )
        model.scale *= self.scale * self.known["device_speed"]
        if self.measured:
            carried = f", carried to {after} by datasheets" if model.elsewhere else ""
            model.source = self.source + carried
        if "launch_us" in changes and request.library == "nccl":
            model.launch_s = known["launch_layer_s"]
        elif self.asked.library == request.library == "nccl":
            model.launch_s = self.launch_s  # none where the measured step showed none
        return model

    def _fit_step(self, step_s: float) -> None:
        """Passes so long that with the launches the step is; a step shorter than its launches
        shows that they were captured or compiled away."""
        if host_s(self.passes(1), self.launch_s) >= step_s:
            self.launch_s = 0.0
        self.scale *= times_for(self.passes(1), self.launch_s, step_s)

    def _fit_scale(self, devices: int) -> None:
        """The device's step that gives the measured rate on several, by bisection."""
        low, high = 1e-6, 1e6
        for _ in range(80):
            self.scale = (low * high) ** 0.5
            if self._rate(devices) > self.measured[devices]:
                low = self.scale
            else:
                high = self.scale
        if abs(self._rate(devices) / self.measured[devices] - 1) > 1e-3:
            raise UsageError(
                f"measured {devices}={self.measured[devices]:g}: the links of "
                f"{self.asked.system.name} do not let {devices} devices exchange gradients so "
                "fast, however fast each is. Check the rate, the batch size or the machine."
            )
        self.source = f"fitted to what was measured on {devices} devices"

    def _fit_loss(self, devices: int, factor: str) -> None:
        """The factor of a loss with which the step takes what was measured; its interval is of
        rates as far off as a measured one may be."""

        def step_s(value: float) -> float:
            known = self.known
            self.known = known.with_factor(factor, value, "fitted", "trial")
            parts = self.parts(devices)
            self.known = known
            return sum(parts.values()) - parts["input"]

        rate = self.measured[devices]
        least_s, off = step_s(0.0), self.known["band_one_device"]
        lost_s = step_s(1.0) - least_s
        measured_s = devices * self.asked.batch(devices) / rate
        if lost_s < 1e-9 * least_s:
            raise UsageError(
                f"measured {devices}={rate:g}: so many devices are expected to lose nothing"
                + (" more between systems" if factor == "overhead_between" else "")
                + ", so no loss can be fitted to it. Leave this rate out."
            )
        own = self.passes(devices)
        if measured_s < (own.step_s + stall_s(own, self.launch_s)) / (1 + NOISE):
            raise UsageError(
                f"measured {devices}={rate:g} is more than {devices} times what one device "
                "reached. Give rates of the same batch size, precision and program."
            )
        low, value, high = (
            max(0.0, (measured_s * times - least_s) / lost_s) for times in (1 / off, 1.0, off)
        )
        source = f"what was measured on {devices} devices"
        self.known = self.known.with_factor(factor, value, "fitted", source, (low, high))

    def passes(self, devices: int) -> Passes:
        """Of a device among so many."""
        asked, batch = self.asked, self.asked.batch(devices)
        if batch not in self.known_passes:
            found, sheet = (
                passes(asked.network, batch, asked.precision, self.at),
                self._datasheet(batch),
            )
            times = 1.0 if sheet is None else sheet.device_s / found.step_s
            self.known_passes[batch] = found.scaled(times)
        scale, scaled = self._scaled.get(batch, (None, None))
        if scaled is None or scale != self.scale:
            scaled = self.known_passes[batch].scaled(self.scale)
            self._scaled[batch] = self.scale, scaled
        return scaled

    def _datasheet(self, batch: int) -> DatasheetStep | None:
        """One device's step by its datasheet; None where there is none, or rates were measured."""
        if self.measured:
            return None
        return datasheet_forecast(self.asked, batch, self.known, self.others)

    def parts(
        self, devices: int, own: Passes | None = None, found: SyncTime | None = None
    ) -> dict[str, float]:
        """The parts of a step, in seconds; of these passes and this synchronization where they
        are given."""
        known = self.known
        own = own or self.passes(devices)
        found = found or self.sync(devices, own)
        more = known["overhead_scale"]
        stall, work = stall_s(own, self.launch_s), self._host_work(devices)
        several = known["launch_several"] if devices > 1 else 1.0
        beyond = known["overhead_between"]
        one = found if beyond == 1 else self._sync_of_one_system(devices, own) or found
        launched = stall_s(own, several * self.launch_s, more=work.scaled(several))
        found_s = {
            "forward": own.forward_s,
            "backward": own.backward_s,
            "launch": stall + (launched - stall) * more,
            "slowdown": (one.slowdown_s + (found.slowdown_s - one.slowdown_s) * beyond) * more,
            "exposed": (one.exposed_s + (found.exposed_s - one.exposed_s) * beyond) * more,
            "update": own.update_s * found.update_share,
            "sharing": self._sharing(devices) * own.step_s * more,
            "waiting": self._spread(devices) * found.waiting * own.step_s * more,
        }
        step_s = sum(found_s.values())
        read_s = devices * self.asked.batch(devices) / self._input(devices)
        return found_s | {"input": max(0.0, read_s - step_s)}

    def _input(self, devices: int) -> float:
        """Samples/s that the systems of so many devices read."""
        return (self.asked.input_limit or inf) * self.fabric(devices).systems

    def sync(self, devices: int, own: Passes | None = None) -> SyncTime:
        """The time of gradient synchronization on so many devices."""
        if self.asked.style:
            return style_time(
                STYLES[self.asked.style],
                self.fabric(devices),
                own or self.passes(devices),
                self.known,
                self.asked.library,
                low_precision=self._low_precision,
            )
        if self.asked.sync in WITHIN_LAYERS:
            return self._divided_sync(devices, own or self.passes(devices))
        return sync_time(
            self.asked.sync,
            self.fabric(devices),
            own or self.passes(devices),
            self.known,
            self.asked.library,
            low_precision=self._low_precision and follows_weights(self.asked.network),
            bytes_per_s=self._copy_rate(devices),
        )

    @property
    def _unpublished(self) -> bool:
        """Whether the strategy is of those that no published row has."""
        if self.asked.style:
            return False
        sync = self.asked.sync
        return sync in WITHIN_LAYERS or COSTS[sync].pattern in ("sharded", "host-server")

    @property
    def _low_precision(self) -> bool:
        return self.asked.precision in ("bf16", "fp16")

    def _divided_sync(self, devices: int, own: Passes) -> SyncTime:
        """Where devices divide sequences or layers; UsageError where they cannot."""
        asked, on = self.asked, self.fabric(devices)
        what = asked.network, asked.batch(devices), asked.precision
        try:
            if asked.sync == HybridByLayer.name:
                return by_layer_time(
                    *what,
                    on=on,
                    own=own,
                    known=self.known,
                    library=asked.library,
                    bytes_per_s=self._copy_rate(devices),
                )
            return context_time(
                *what,
                group=group_fabric(asked.system, asked.group_size or devices, 1),
                on=on,
                own=own,
                known=self.known,
                library=asked.library,
                bytes_per_s=self._copy_rate(devices),
            )
        except Unsupported as error:
            raise UsageError(str(error)) from None

    def _copy_rate(self, devices: int) -> float:
        """Bytes/s that a device among so many copies in its memory."""
        on, device = self.fabric(devices), self.at.bytes_per_s * self.known["device_speed"]
        return copy_rate(on, self.known, self.asked.library, device)

    def _host_work(self, devices: int) -> HostWork:
        """What the strategy has the host of GPUs do besides launching layers."""
        asked = self.asked
        if devices == 1 or asked.style or asked.library != "nccl":
            return NO_WORK
        if asked.sync == HybridByLayer.name:
            try:
                return by_layer_host_work(asked.network, devices, self.known)
            except Unsupported as error:
                raise UsageError(str(error)) from None
        cost = COSTS.get(asked.sync)
        if cost is None or cost.pattern != "sharded":
            return NO_WORK
        if self.units is None:
            self.units = sharded_host_work(asked.network, cost.gathers + 1, self.known)
        return self.units

    def fabric(self, devices: int) -> Fabric:
        """What joins so many devices."""
        if devices not in self.fabrics:
            asked = self.asked
            self.fabrics[devices] = fabric(asked.system, devices, asked.peer_access)
        return self.fabrics[devices]

    def _sync_of_one_system(self, devices: int, own: Passes) -> SyncTime | None:
        """What the devices of one system exchange by themselves; None where they are in one."""
        each = self.asked.system.devices
        return self.sync(each, own) if devices > each else None

    def _sharing(self, devices: int) -> float:
        """The fraction by which a device's step grows next to others."""
        shared = devices > 1 and self.asked.system.device in BOARDS_OF_TWO
        return self.known["board_share"] if shared else 0.0

    def _spread(self, devices: int) -> float:
        """What the slowest of so many takes more, over a device's own step."""
        spread = self.known["step_spread"]
        if any(isinstance(node.layer, Recurrence) for node in self.asked.network.nodes):
            spread = hypot(spread, self.known["length_spread"] / self.asked.batch(devices))
        return max(spread * slowest(devices), self.known["straggler"] - 1 if devices > 1 else 0.0)

    def _rate(self, devices: int) -> float:
        return devices * self.asked.batch(devices) / sum(self.parts(devices).values())

    def point(self, devices: int) -> Point:
        """The forecast for so many devices."""
        own = self.passes(devices)
        found = self.sync(devices, own)
        parts = self.parts(devices, own, found)
        rate = devices * self.asked.batch(devices) / sum(parts.values())
        if self.single_rate is None:
            self.single_rate = self._rate(1)
        efficiency = rate / devices / self.single_rate
        band = self._band(devices)
        return Point(
            devices=devices,
            batch_per_device=self.asked.batch(devices),
            samples_per_s=rate,
            low=rate / band,
            high=rate * band,
            efficiency=efficiency,
            limit=_limit(
                parts, own, efficiency, found.limit, self.asked.unknown if devices > 1 else ""
            ),
            parts_s=parts,
            communication_s=found.busy_s,
            exchanged_bytes=found.bytes,
        )

    def _band(self, devices: int) -> float:
        """By which factor a forecast may be off, up or down."""
        sheet = self._datasheet(self.asked.batch(devices))
        if self.elsewhere or (sheet is None and not self.measured):  # by two datasheets
            return self.known["band_uncalibrated"]
        if sheet is not None and devices == 1:
            return sheet.band
        if devices in self.fitted:
            return self.known["band_one_device"]
        where = "one_system" if self.fabrics[devices].systems == 1 else "systems"
        band = self.known[f"band_{where}"]
        if self.asked.unknown:
            band *= self.known[f"band_unknown_{where}"]
        if self._unpublished:
            band = max(band, self.known["band_unpublished"])
        return band if sheet is None else exp(hypot(log(band), log(sheet.band)))


def _limit(
    parts: Mapping[str, float], own: Passes, efficiency: float, link: str, unknown: str
) -> str:
    if parts["input"] > 0.05 * sum(parts.values()):
        return "input: samples that a system reads"
    if efficiency >= GOOD and unknown:
        return f"unknown: {unknown} not given"
    if efficiency >= GOOD:
        return "memory bandwidth of a device" if own.memory_bound else "operations of a device"
    losses = {
        f"exchange: {link}": parts["exposed"] + parts["slowdown"],
        "waiting for the slowest device": parts["waiting"],
        "launches by the host": parts["launch"],
        "two GPUs on a board": parts["sharing"],
    }
    worst = max(losses, key=lambda name: losses[name])
    if losses[worst] > 0.05 * sum(parts.values()):
        return worst
    return "small batch size per device"
