"""What do the processors and the memory do while a network is trained?

A thread beside the run reads counters (`host.py`) twice a second and makes series of them:

    cpu_utilisation_percent   this process tree's processor time, of the cores it may use
    host_cpu_percent          everyone's, of all cores of the machine
    resident_bytes            memory of this process tree
    gpu_utilisation_percent   share of the time in which the GPU had work (`gpu.py`)

A percentage belongs to the span that ends at its time. There is one reading at the start and one at
the end, however short the run. The thread adds up its own processor time and says it as
`telemetry_cpu_share`, in cores: 0.001 is a thousandth of one core.

What fell into the measured part becomes figures of the same names, and a curve of the device that
trained: for processors the growth of a counter over exactly that part, for a GPU the mean reading.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType

import numpy as np

from cubemesh.measure.base import Log
from cubemesh.measure.gpu import GpuReader
from cubemesh.measure.host import HostReader, Reader, Reading
from cubemesh.measure.validity import busy_host
from cubemesh.model.record import Curve, Figure
from cubemesh.model.series import Series

EVERY_S = 0.5
CHUNK = 10
"""Readings that are sent to the log together."""
CPU, GPU = "cpu_utilisation_percent", "gpu_utilisation_percent"
MOST_IN_CURVE = 240
"""A curve of more points than this is thinned to means of neighbours."""


class Telemetry:
    """Samples the host for as long as the `with` block lasts.

    `usable_cores` is what 100 % of `cpu_utilisation_percent` means: the cores' worth of time the
    process is granted, which a control group may make smaller than the cores it may run on. What
    goes wrong in the thread is raised at the end of the block.
    """

    def __init__(
        self,
        log: Log,
        usable_cores: float,
        *,
        every_s: float = EVERY_S,
        reader: Reader | None = None,
        gpu: GpuReader | None = None,
    ) -> None:
        self.readings: list[Reading] = []
        self._gpu = gpu
        self._gpu_percent: list[float | None] = []  # one for each reading
        self._log = log
        self._usable_cores = usable_cores
        self._every_s = every_s
        self._reader = reader or HostReader()
        self._sent = 0
        self._sampled = 0.0
        self._cost_s = 0.0
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
            error.add_note(f"telemetry had failed before: {self._failure!r}")
            return
        # A last span of some milliseconds would show little but the ticks the kernel counts in.
        if len(self.readings) < 2 or time.perf_counter() - self._sampled > self._every_s / 5:
            self._sample()
        self._send()
        first, last = self.readings[0], self.readings[-1]
        if last.time_s > first.time_s:
            share = self._cost_s / (last.time_s - first.time_s)
            figure = Figure(value=share, unit="cores", n=len(self.readings))
            self._log.figure("telemetry_cpu_share", figure)

    def check_host(self, start: float, end: float) -> float | None:
        """Share of the processors that others used between two readings of `time.perf_counter()`,
        with a warning in the log where it is too large. To be asked after the block.
        None where the block took no time."""
        share = others_share(self.readings, self._reader.cores, start, end)
        warning = None if share is None else busy_host(share)
        if warning is not None:
            self._log.warning(warning)
        return share

    def keep_utilisation(self, start: float, end: float) -> None:
        """Log how busy the processors and the GPU were between two readings of
        `time.perf_counter()`. To be asked after the block."""
        cpu = cpu_percent(self.readings, self._usable_cores, start, end)
        if cpu is None:
            return
        self._log.figure(CPU, Figure(value=cpu, unit="%", method="processor seconds over cores"))
        times = [r.time_s for r in self.readings]
        pairs = zip(times, self._gpu_percent, strict=True)
        gpu = [(t, p) for t, p in pairs if p is not None and start < t <= end]
        if gpu:
            mean = math.fsum(p for _, p in gpu) / len(gpu)
            self._log.figure(GPU, Figure(value=mean, unit="%", n=len(gpu), method="NVML"))
        if self._gpu is not None:
            self._log.curve(utilisation_curve(GPU, gpu, start))
            return
        used = [r.tree_cpu_s for r in self.readings]
        series = percent_series(CPU, times, used, self._usable_cores)
        points = zip(series.times_s, series.values, strict=True)
        within = [(t, v) for t, v in points if start < t <= end]
        self._log.curve(utilisation_curve(CPU, within, start))

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self._sample()
                if len(self.readings) - self._sent >= CHUNK:
                    self._send()
        except Exception as error:  # raised again by __exit__, in the thread that can act on it
            self._failure = error

    def _sample(self) -> None:
        before = time.thread_time()
        self._sampled = time.perf_counter()
        self.readings.append(self._reader.read())
        self._gpu_percent.append(self._gpu.percent() if self._gpu else None)
        self._cost_s += time.thread_time() - before

    def _send(self) -> None:
        """What has been read since the last chunk; spans begin at the chunk's predecessor."""
        before = time.thread_time()
        new = self.readings[self._sent :]
        if not new:
            return
        spans = self.readings[max(0, self._sent - 1) :]
        gpu = list(zip(new, self._gpu_percent[self._sent :], strict=True))
        self._sent = len(self.readings)
        own = [r.tree_cpu_s for r in spans], self._usable_cores
        everyone = [r.host_busy_s for r in spans], self._reader.host_cores
        times = [r.time_s for r in spans]
        for name, (counter, cores) in (
            (CPU, own),
            ("host_cpu_percent", everyone),
        ):
            series = percent_series(name, times, counter, cores)
            if series.times_s:
                self._log.series(series)
        known = [(r.time_s, p) for r, p in gpu if p is not None]
        if known:
            self._log.series(
                Series(
                    name=GPU,
                    device="gpu",
                    times_s=tuple(t for t, _ in known),
                    values=tuple(p for _, p in known),
                )
            )
        self._log.series(
            Series(
                name="resident_bytes",
                times_s=tuple(r.time_s for r in new),
                values=tuple(float(r.resident_bytes) for r in new),
            )
        )
        self._cost_s += time.thread_time() - before


def percent_series(
    name: str, times_s: Sequence[float], counter_s: Sequence[float], cores: float
) -> Series:
    """The growth of a counter of processor seconds as a percentage of `cores`, a value for each
    span between neighbouring readings at the time of its end; spans of no length are left out."""
    points = [
        (end, 100 * max(0.0, b - a) / (end - start) / cores)
        for (start, end), (a, b) in zip(pairwise(times_s), pairwise(counter_s), strict=True)
        if end > start
    ]
    return Series(
        name=name, times_s=tuple(t for t, _ in points), values=tuple(v for _, v in points)
    )


def cpu_percent(
    readings: Sequence[Reading], cores: float, start: float, end: float
) -> float | None:
    """Processor time of this process tree between `start` and `end` as a percentage of `cores`;
    the counter is interpolated between readings. None for a span of no length."""
    times = [r.time_s for r in readings]
    start, end = max(start, times[0]), min(end, times[-1])
    if end <= start:
        return None
    first, last = np.interp([start, end], times, [r.tree_cpu_s for r in readings])
    return max(0.0, 100 * float(last - first) / (end - start) / cores)


def utilisation_curve(name: str, points: Sequence[tuple[float, float]], start: float) -> Curve:
    """A percentage against the seconds since `start`, as means of neighbours where there are more
    points than anyone can see."""
    several = max(1, -(-len(points) // MOST_IN_CURVE))
    groups = [points[i : i + several] for i in range(0, len(points), several)]
    return Curve(
        name=name,
        x_name="seconds",
        x=tuple(g[-1][0] - start for g in groups),
        y=tuple(math.fsum(v for _, v in g) / len(g) for g in groups),
    )


def others_share(readings: Sequence[Reading], cores: int, start: float, end: float) -> float | None:
    """Share (0 to 1) of `cores` processors that was not this process tree's work, yet work, between
    `start` and `end`; counters are interpolated between readings. None for a span of no length."""
    times = [r.time_s for r in readings]
    start, end = max(start, times[0]), min(end, times[-1])
    if end <= start:
        return None
    others = [r.cores_busy_s - r.tree_cpu_s for r in readings]
    first, last = np.interp([start, end], times, others)
    return max(0.0, float(last - first) / (end - start) / cores)
