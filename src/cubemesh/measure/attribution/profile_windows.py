"""Profiled windows: which steps are profiled, and when, to attribute the measured steps.

    host        W P W P W P …  L         W  measured window: timestamps, no profiler
    device      W W W W … (w P)×3  L     P  the same under the profiler
                                         w  without it, to measure the profiler's overhead
                                         L  a few steps with every layer annotated

A program that computes on the host is profiled between its measured windows, so that interference
by the machine affects both alike. One that runs ahead of a device is profiled after them, because a
GPU's profiler leaves later launches slower; only the device's own times of that profile
are used. A few uncounted steps follow each start or stop of the profiler, to warm caches and use up
prefetched batches. Profiles are read when all windows are over.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cubemesh.frameworks.contract.program import SupportsProfiling
from cubemesh.measure.attribution.attribution import UNATTRIBUTED, mean_step_s, on_device, on_host
from cubemesh.measure.attribution.breakdown import (
    by_category,
    by_layer,
    by_operator,
    by_runtime_call,
    occupancy,
)
from cubemesh.measure.attribution.timeline import communication_kernels, record
from cubemesh.measure.attribution.transfers import Waited, last_arrivals, waited
from cubemesh.measure.log import Log
from cubemesh.measure.timing.step_timestamps import StampedSteps, StampedWindow
from cubemesh.measure.timing.timer import Stopwatch
from cubemesh.schema.profile import Profile
from cubemesh.schema.record import Breakdown, Figure, Part, TimeRow, Window
from cubemesh.schema.warning import warn

EVENTS_PER_WINDOW = 6_000
"""Limit on the events of one profiled window: reading them takes some tenths of a second."""
MOST_EVENTS = 120_000
MOST_SHARED = 20_000
"""Limit on the transfers whose times the ranks share."""
ROUNDS = 3
"""Profiled windows of a program that runs ahead of a device."""
LAYER_STEPS = 3
SETTLING_STEPS = 4
"""Steps between a profiled window and the next measured one; at most those of a window."""
MOST_UNATTRIBUTED = 0.02
"""Fraction of the step that may be unattributed without a warning."""


_NOTHING_SEEN = warn(
    "unattributed",
    "The framework's profiler recorded no work of the device, so the step has no parts.",
    "Stop other tools that profile the same GPU (nsys, ncu, dcgm), and measure again.",
)


def _itself(decision: Any) -> Any:
    return decision


class Profiled(SupportsProfiling, Protocol):
    """What a program needs to be profiled here."""

    device: str

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def clock(self) -> float:
        """Seconds."""


@dataclass
class StepProfiler:
    """Profiles the steps of one measurement: call `after_window` during it and `finish` after
    it."""

    program: Profiled
    steps: StampedSteps
    samples_per_step: int
    log: Log
    fed: bool = True
    """Whether each step takes a batch from the feed."""
    operators: bool = False
    """Whether to log the time by operator as well."""
    trace: str | None = None
    """File for the trace; None for no trace."""
    agree: Callable[[Any], Any] = _itself
    """Broadcasts rank 0's decision (`Group.broadcast_object`)."""
    share: Callable[[Any], list[Any]] | None = None
    """Gathers a value from each rank (`Group.all_gather_object`); None on a single device."""
    _windows: list[StampedWindow] = field(default_factory=list)
    _recorded: list[tuple[StampedWindow, Callable[[], Profile]]] = field(default_factory=list)
    _profiled: list[tuple[StampedWindow, Profile]] = field(default_factory=list)
    _events_per_step: float = 0.0

    @property
    def on_host(self) -> bool:
        """Whether the program computes on the host."""
        return self.program.device == "cpu"

    def after_window(self, window: Window) -> None:
        """Take the timestamps of a measured window; on the host, profile another like it."""
        self._windows.append(self.steps.cut(window))
        recorded = sum(len(w.stamps) for w, _ in self._recorded) * self._events_per_step
        if self.on_host and self.agree(recorded < MOST_EVENTS):
            self._profile(window.steps)
            self._unprofiled(min(SETTLING_STEPS, window.steps))

    def finish(self) -> None:
        """Profile the rest, and log the results."""
        unprofiled = self._windows
        if not self.on_host:
            steps = len(self._windows[0].stamps)
            unprofiled = []
            for _ in range(ROUNDS):
                unprofiled.append(self._unprofiled(steps))
                self._profile(steps)
        self._profiled = [(window, read()) for window, read in self._recorded]
        self._log_overhead(unprofiled)
        self._log_parts()
        self._log_communicated()
        profiles = [profile for _, profile in self._profiled]
        count = sum(len(window.stamps) for window, _ in self._profiled)
        self.log.breakdown(self._with_input(by_category(profiles, count)))
        if self.operators:
            self.log.breakdown(by_operator(profiles, count))
        calls = by_runtime_call(profiles, count)
        if calls is not None:
            self.log.breakdown(calls)
        occupied = occupancy(profiles)
        if occupied is not None:
            self.log.figure("occupancy_percent", occupied)
        self._layers()

    def _profile(self, steps: int) -> None:
        """Profile a window of `steps`, or of fewer where they would record too many events."""
        if not self._events_per_step:
            # The first profile of a process includes its start-up: it only counts the events.
            _, read = self._record(1)
            self._events_per_step = max(1, len(read().events))
        fit = math.floor(EVENTS_PER_WINDOW / self._events_per_step)
        self._recorded.append(self._record(self.agree(max(1, min(steps, fit)))))

    def _record(
        self, steps: int, *, layers: bool = False, trace: str | None = None
    ) -> tuple[StampedWindow, Callable[[], Profile]]:
        windows: list[StampedWindow] = []

        def run() -> None:
            self._unprofiled(1)
            windows.append(self._unprofiled(steps))

        read = self.program.profile(run, layers=layers, trace=trace)
        (window,) = windows
        if self.on_host:
            return window, lambda: read().between(window.start_s, window.end_s)
        # Read at once: the next profile truncates the GPU events of this one.
        profile = read().between(window.start_s, window.end_s)
        return window, lambda: profile

    def _unprofiled(self, steps: int) -> StampedWindow:
        watch = Stopwatch(
            step=self.steps,
            synchronize=self.program.synchronize,
            clock=self.program.clock,
            samples_per_step=self.samples_per_step,
            log=self.log,
        )
        return self.steps.cut(watch.window("profile", steps))

    def _log_overhead(self, unprofiled: list[StampedWindow]) -> None:
        recorded = mean_step_s([window for window, _ in self._profiled])
        bare = mean_step_s(unprofiled)
        self.log.figure(
            "profiled_step_s",
            Figure(
                value=recorded,
                unit="s",
                n=len(self._profiled),
                method=f"mean step under the profiler; {bare:.6g} s without it, interleaved",
            ),
        )

    def _log_communicated(self) -> None:
        """Log the bytes that a step communicates, if any."""
        sizes = [t.size_bytes for w in self._windows for t in w.transfers]
        if sizes:
            steps = sum(len(w.stamps) for w in self._windows)
            method = "bytes of all buffers communicated in the measured steps, mean per step"
            figure = Figure(value=math.fsum(sizes) / steps, unit="B", n=steps, method=method)
            self.log.figure("exchanged_bytes", figure)

    def _log_parts(self) -> None:
        arrivals = None if self.on_host else self._arrivals()
        if self.on_host:
            parts = on_host(self._windows, self._profiled, self._waited())
        elif not any(profile.on_device for _, profile in self._profiled):
            self.log.warning(_NOTHING_SEEN)
            return
        else:
            recorded = record(self._profiled, arrivals)
            parts, busy = on_device(self._windows, recorded)
            method = "time with a kernel or copy on the device, of the measured time"
            figure = Figure(value=100 * busy, unit="%", n=len(self._windows), method=method)
            self.log.figure("device_busy_percent", figure)
        for part in parts:
            self.log.part(part)
        self._check_unattributed(parts)

    def _waited(self) -> Waited | None:
        """Mean wait of a step for communication and stragglers; None without transfers."""
        if self.share is None:
            return None
        transfers = sum(len(w.transfers) for w in self._windows)
        if not transfers:
            return None
        sampled = self._windows[:: max(1, math.ceil(transfers / MOST_SHARED))]
        own = [w.transfers for w in sampled]
        arrivals = self._last_arrivals([[t.issued for t in found] for found in own])
        return waited(own, arrivals, sum(len(w.stamps) for w in sampled))

    def _arrivals(self) -> list[list[float] | None] | None:
        """For each profiled window, when the last rank began each communication kernel."""
        if self.share is None:
            return None
        begun = [
            [e.start_s for e in communication_kernels(profile)] for _, profile in self._profiled
        ]
        return self._last_arrivals(begun)

    def _last_arrivals(self, begun: list[list[float]]) -> list[list[float] | None]:
        """For each window, when the last rank arrived at each collective; None where the ranks are
        on different hosts, with clocks of their own, or ran different collectives."""
        assert self.share is not None
        ranks = self.share({"host": socket.gethostname(), "begun": begun})
        alike = len({(rank["host"], len(rank["begun"])) for rank in ranks}) == 1
        if not alike:
            return [None] * len(begun)
        return [last_arrivals([rank["begun"][i] for rank in ranks]) for i in range(len(begun))]

    def _check_unattributed(self, parts: tuple[Part, ...]) -> None:
        step_s = math.fsum(part.seconds for part in parts)
        rest_s = next(part.seconds for part in parts if part.name == UNATTRIBUTED)
        if abs(rest_s) > MOST_UNATTRIBUTED * step_s:
            cause = (
                f"The measured parts add up to {100 * (1 - rest_s / step_s):.1f} % of the step, "
                f"outside 98 to 102 %: {100 * abs(rest_s) / step_s:.1f} % is unattributed."
            )
            remedy = "Stop other programs and measure longer (seconds), or profile with trace=true."
            self.log.warning(warn("unattributed", cause, remedy))

    def _with_input(self, breakdown: Breakdown) -> Breakdown:
        """Adds the host's wait for batches as a row, where the step takes batches."""
        if not self.fed:
            return breakdown
        stamps = [stamp for window in self._windows for stamp in window.stamps]
        seconds = math.fsum(s.place - s.feed for s in stamps) / len(stamps)
        rows = (*breakdown.rows, TimeRow(name="input", seconds=seconds, calls=1.0))
        method = f"{breakdown.method}; input: timestamps around taking a batch"
        return Breakdown(
            name=breakdown.name,
            rows=tuple(sorted(rows, key=lambda row: -row.seconds)),
            method=method,
        )

    def _layers(self) -> None:
        steps = min(LAYER_STEPS, len(self._profiled[0][0].stamps))
        window, read = self._record(steps, layers=True, trace=self.trace)
        profile = read()
        if profile.by_layer:
            self.log.breakdown(by_layer([profile], len(window.stamps)))
