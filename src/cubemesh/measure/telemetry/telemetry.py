"""Telemetry: utilization, memory, clocks, power and I/O, sampled in a thread during a run.

The thread reads the processors' counters (`host.py`) twice a second, and with them its meters: the
GPU (`gpu.py`), RAPL (`rapl.py`), disks, network and memory (`io_counters.py`). It logs them as
series (`counter_series.py`); docs/measuring.md lists their names.

A percentage or rate belongs to the span that ends at its time. There is a reading at the start and
one at the end, however short the run. The thread measures its own CPU time and logs it as
`telemetry_cpu_share`, in cores (0.001 is a thousandth of one), and as `telemetry_cpu_percent` of
the CPU time of the whole run. Utilization in the measured part becomes figures, as do joules and
watts (`energy.py`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol

from cubemesh.measure.energy.energy import energy
from cubemesh.measure.energy.rapl import RaplReader
from cubemesh.measure.energy.sensors import Need
from cubemesh.measure.log import Log
from cubemesh.measure.telemetry.counter_series import (
    Points,
    cpu_percent,
    curve_since,
    others_share,
    percent_series,
    series_of,
)
from cubemesh.measure.telemetry.gpu import POWER, GpuReader
from cubemesh.measure.telemetry.gpu import UTILIZATION as GPU
from cubemesh.measure.telemetry.host import HostReader, Reader, Reading
from cubemesh.measure.telemetry.io_counters import IoCounterReader
from cubemesh.measure.validity import busy_host
from cubemesh.schema.record import Figure, Window
from cubemesh.schema.series import Series

EVERY_S = 0.5
CHUNK = 10
"""Readings that are logged together."""
CPU = "cpu_utilization_percent"


class Meter(Protocol):
    """A source of readings, sampled with the processors."""

    device: str
    """`gpu` or `host`."""
    missing: dict[str, str]
    """Name of a missing quantity → reason."""

    def read(self) -> Mapping[str, float]:
        """Current values by name; a quantity that does not answer is left out."""

    def needs(self) -> Need | None:
        """How long a GPU's power sensor must be sampled; None for other meters."""


def open_meters(gpu_uuid: str | None) -> tuple[Meter, ...]:
    """The meters of a run: the GPU with this UUID, if any, and this machine."""
    gpus = () if gpu_uuid is None else (GpuReader(gpu_uuid),)
    return (*gpus, RaplReader(), IoCounterReader())


def idle_power(meters: Sequence[Meter]) -> Figure | None:
    """Power of an idle GPU; None where it is busy or does not report its power."""
    for meter in meters:
        if meter.device == "gpu":
            now = meter.read()
            if POWER in now and now.get(GPU) == 0:
                return Figure(value=now[POWER], unit="W", method="before the run, GPU at 0 %")
    return None


class Telemetry:
    """Samples the machine during a `with` block.

    `usable_cores` is 100 % of `cpu_utilization_percent`: the CPU time that the process is granted,
    which a control group may limit below its number of cores. An error in the thread is raised at
    the end of the block.
    """

    def __init__(
        self,
        log: Log,
        usable_cores: float,
        *,
        every_s: float = EVERY_S,
        reader: Reader | None = None,
        meters: Sequence[Meter] = (),
    ) -> None:
        self.readings: list[Reading] = []
        self.sampled: dict[str, list[tuple[float, float]]] = {}
        """Readings of the meters, by name, as (reading of `time.perf_counter()`, value)."""
        self.meters = tuple(meters)
        self._devices: dict[str, str] = {}
        self._log = log
        self._usable_cores = usable_cores
        self._every_s = every_s
        self._reader = reader or HostReader()
        self._sent = 0
        self._sent_of: dict[str, int] = {}
        self._sampled_at = 0.0
        self.cost_s = 0.0
        """CPU time of sampling."""
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def __enter__(self) -> Telemetry:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            if error is None:
                raise self._failure
            error.add_note(f"telemetry failed before: {self._failure!r}")
            return
        # A last span of some milliseconds would mostly show the kernel's clock ticks; the meters
        # are read in any case, so that the end of the run is between two readings.
        late = time.perf_counter() - self._sampled_at > self._every_s / 5
        self._sample(processors=late or len(self.readings) < 2)
        self._send()
        self._log_cost()

    def points(self, name: str, start: float, end: float) -> Points:
        """Readings of a quantity between two readings of `time.perf_counter()`."""
        return [(t, v) for t, v in self.sampled.get(name, ()) if start <= t <= end]

    def check_host(self, start: float, end: float) -> float | None:
        """Fraction of the processors that other programs used between two readings of
        `time.perf_counter()`, with a warning in the log where it is too large. Call it after the
        block. None where the block took no time."""
        share = others_share(self.readings, self._reader.cores, start, end)
        warning = None if share is None else busy_host(share)
        if warning is not None:
            self._log.warning(warning)
        return share

    def log_utilization(self, start: float, end: float) -> None:
        """Log the utilization of the processors and the GPU between two readings of
        `time.perf_counter()`, and the GPU's power over time. Call it after the block."""
        cpu = cpu_percent(self.readings, self._usable_cores, start, end)
        if cpu is None:
            return
        self._log.figure(CPU, Figure(value=cpu, unit="%", method="processor seconds over cores"))
        gpu = [(t, p) for t, p in self.sampled.get(GPU, ()) if start < t <= end]
        if gpu:
            mean = math.fsum(p for _, p in gpu) / len(gpu)
            self._log.figure(GPU, Figure(value=mean, unit="%", n=len(gpu), method="NVML"))
        power = self.points(POWER, start, end)
        if power:
            self._log.curve(curve_since(POWER, power, start))
        if gpu:
            self._log.curve(curve_since(GPU, gpu, start))
            return
        times = [r.time_s for r in self.readings]
        used = [r.tree_cpu_s for r in self.readings]
        series = percent_series(CPU, times, used, self._usable_cores)
        pairs = zip(series.times_s, series.values, strict=True)
        within = [(t, v) for t, v in pairs if start < t <= end]
        self._log.curve(curve_since(CPU, within, start))

    def log_energy(self, windows: Sequence[Window], samples: int | None) -> None:
        """Log the energy and power of `windows`, whose `start_s` are readings of
        `time.perf_counter()`, with `samples` samples (None where samples are not counted). Call it
        after the block."""
        gpu = self._gpu
        found = energy(
            self.sampled,
            [(w.start_s, w.start_s + w.elapsed_s) for w in windows],
            samples,
            gpu_needs=gpu.needs() if gpu else None,
            every_s=self._every_s,
            missing={k: v for meter in self.meters for k, v in meter.missing.items()},
        )
        for name, figure in found.figures.items():
            self._log.figure(name, figure)
        for unmeasured in found.unmeasured:
            self._log.unmeasured(unmeasured)
        for warning in found.warnings:
            self._log.warning(warning)

    @property
    def _gpu(self) -> Meter | None:
        return next((m for m in self.meters if m.device == "gpu"), None)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self._sample()
                if len(self.readings) - self._sent >= CHUNK:
                    self._send()
        except Exception as error:  # raised again by __exit__, in the thread that can act on it
            self._failure = error

    def _sample(self, *, processors: bool = True) -> None:
        before = time.thread_time()
        self._sampled_at = time.perf_counter()
        if processors:
            self.readings.append(self._reader.read())
        for meter in self.meters:
            now = time.perf_counter()
            for name, value in meter.read().items():
                self.sampled.setdefault(name, []).append((now, value))
                self._devices[name] = meter.device
        self.cost_s += time.thread_time() - before

    def _send(self) -> None:
        """Log the readings since the last chunk; spans begin at the last reading of that chunk."""
        before = time.thread_time()
        new = self.readings[self._sent :]
        spans = self.readings[max(0, self._sent - 1) :]
        self._sent = len(self.readings)
        times = [r.time_s for r in spans]
        for name, counter, cores in (
            (CPU, [r.tree_cpu_s for r in spans], self._usable_cores),
            ("host_cpu_percent", [r.host_busy_s for r in spans], self._reader.host_cores),
        ):
            series = percent_series(name, times, counter, cores)
            if series.times_s:
                self._log.series(series)
        if new:
            self._log.series(
                Series(
                    name="resident_bytes",
                    times_s=tuple(r.time_s for r in new),
                    values=tuple(float(r.resident_bytes) for r in new),
                )
            )
        for name, points in self.sampled.items():
            fresh = len(points) - self._sent_of.get(name, 0)
            self._sent_of[name] = len(points)
            if not fresh:
                continue
            one = series_of(
                name,
                points,
                fresh,
                device=self._devices[name],
                first=points[0][1],
                least_s=self._every_s / 5,
            )
            if one is not None:
                self._log.series(one)
        self.cost_s += time.thread_time() - before

    def _log_cost(self) -> None:
        first, last = self.readings[0], self.readings[-1]
        n = len(self.readings)
        if last.time_s > first.time_s:
            share = self.cost_s / (last.time_s - first.time_s)
            self._log.figure("telemetry_cpu_share", Figure(value=share, unit="cores", n=n))
        used_s = last.tree_cpu_s - first.tree_cpu_s
        if used_s > 0:
            percent = Figure(
                value=100 * self.cost_s / used_s,
                unit="%",
                n=n,
                method=f"of the run's CPU time, one reading every {self._every_s:g} s",
            )
            self._log.figure("telemetry_cpu_percent", percent)
