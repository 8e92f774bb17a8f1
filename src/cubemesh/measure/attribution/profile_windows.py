"""Which steps are profiled, and when, so that their attribution is that of the measured steps?

    host        W P W P W P …  L         W  measured window: stamps, no profiler
    device      W W W W … (w P)×3  L     P  the same under the profiler
                                         w  without it, to see what the profiler costs
                                         L  a few steps with every layer annotated

A program that computes on the host is profiled between its measured windows, so that whatever else
the machine does meets both alike. One that runs ahead of a device is profiled after them, because
a GPU's profiler leaves launches slower than it found them; there only the device's own times are
taken from the profile. Each window, measured or profiled, that follows a start or stop of the
profiler comes after some steps that count for nothing, which use up caches gone cold and
minibatches made ahead meanwhile. Profiles are read when all windows are over. Windows P and L count
for nothing else.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cubemesh.frameworks.api.program import SupportsProfiling
from cubemesh.measure.attribution.attribution import OTHER, mean_step_s, on_device, on_host
from cubemesh.measure.attribution.breakdown import by_category, by_layer, by_runtime_call, occupancy
from cubemesh.measure.attribution.timeline import record, talking
from cubemesh.measure.attribution.transfers import Waited, last_arrivals, waited
from cubemesh.measure.log import Log
from cubemesh.measure.timing.step_timestamps import StampedSteps, StampedWindow
from cubemesh.measure.timing.timer import Stopwatch
from cubemesh.schema.profile import Profile
from cubemesh.schema.record import Breakdown, Figure, Part, TimeRow, Window
from cubemesh.schema.warning import warn

EVENTS_PER_WINDOW = 6_000
"""Events that one profiled window may record: reading them takes some tenths of a second."""
MOST_EVENTS = 120_000
MOST_SHARED = 20_000
"""Transfers whose times the ranks tell one another."""
ROUNDS = 3
"""Profiled windows of a program that runs ahead."""
LAYER_STEPS = 3
SETTLING_STEPS = 4
"""Between a profiled window and the next measured one; no more than a window has."""
MOST_OTHER = 0.05
"""The share of the step that may stay without a name before that is a warning."""


_NOTHING_SEEN = warn(
    "unattributed",
    "The framework's profiler recorded no work of the device, so the step has no parts.",
    "End other tools that profile the same GPU (nsys, ncu, dcgm), and measure again.",
)


def _itself(decision: Any) -> Any:
    return decision


class Profiled(SupportsProfiling, Protocol):
    """What is asked of a program here."""

    device: str

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def clock(self) -> float:
        """Seconds."""


@dataclass
class StepProfiler:
    """The profiled side of one measurement: `beside` it while it runs, `finish` it after."""

    program: Profiled
    steps: StampedSteps
    samples_per_step: int
    log: Log
    fed: bool = True
    """Whether each step takes a batch from the feed."""
    trace: str | None = None
    """The file to keep a trace in."""
    agree: Callable[[Any], Any] = _itself
    """Of what each rank decides, what all of them do (`Group.agree`)."""
    share: Callable[[Any], list[Any]] | None = None
    """What each rank says, by rank (`Group.share`); None where one is alone."""
    _windows: list[StampedWindow] = field(default_factory=list)
    _recorded: list[tuple[StampedWindow, Callable[[], Profile]]] = field(default_factory=list)
    _profiled: list[tuple[StampedWindow, Profile]] = field(default_factory=list)
    _events_per_step: float = 0.0

    @property
    def on_host(self) -> bool:
        """Whether the program computes where it is called from."""
        return self.program.device == "cpu"

    def after_window(self, window: Window) -> None:
        """Take the stamps of a measured window; profile another like it, where that is on time."""
        self._windows.append(self.steps.cut(window))
        recorded = sum(len(w.stamps) for w, _ in self._recorded) * self._events_per_step
        if self.on_host and self.agree(recorded < MOST_EVENTS):
            self._profile(window.steps)
            self._plain(min(SETTLING_STEPS, window.steps))

    def finish(self) -> None:
        """Profile what is left to profile, and tell the log all that was found."""
        unprofiled = self._windows
        if not self.on_host:
            steps = len(self._windows[0].stamps)
            unprofiled = []
            for _ in range(ROUNDS):
                unprofiled.append(self._plain(steps))
                self._profile(steps)
        self._profiled = [(window, read()) for window, read in self._recorded]
        self._say_cost(unprofiled)
        self._say_parts()
        self._say_exchanged()
        profiles = [profile for _, profile in self._profiled]
        count = sum(len(window.stamps) for window, _ in self._profiled)
        self.log.breakdown(self._with_input(by_category(profiles, count)))
        calls = by_runtime_call(profiles, count)
        if calls is not None:
            self.log.breakdown(calls)
        occupied = occupancy(profiles)
        if occupied is not None:
            self.log.figure("occupancy_percent", occupied)
        self._layers()

    def _profile(self, steps: int) -> None:
        """Profile a window of `steps`, or as many as record no more than is read in good time."""
        if not self._events_per_step:
            # The first profile of a process pays for its start: it only tells how much is recorded.
            _, read = self._record(1)
            self._events_per_step = max(1, len(read().events))
        fit = math.floor(EVENTS_PER_WINDOW / self._events_per_step)
        self._recorded.append(self._record(self.agree(max(1, min(steps, fit)))))

    def _record(
        self, steps: int, *, layers: bool = False, trace: str | None = None
    ) -> tuple[StampedWindow, Callable[[], Profile]]:
        windows: list[StampedWindow] = []

        def run() -> None:
            self._plain(1)
            windows.append(self._plain(steps))

        read = self.program.profile(run, layers=layers, trace=trace)
        (window,) = windows
        if self.on_host:
            return window, lambda: read().between(window.start_s, window.end_s)
        # Read at once: of a GPU's work that one profile holds, the next leaves only the beginning.
        profile = read().between(window.start_s, window.end_s)
        return window, lambda: profile

    def _plain(self, steps: int) -> StampedWindow:
        watch = Stopwatch(
            step=self.steps,
            synchronize=self.program.synchronize,
            clock=self.program.clock,
            samples_per_step=self.samples_per_step,
            log=self.log,
        )
        return self.steps.cut(watch.window("profile", steps))

    def _say_cost(self, unprofiled: list[StampedWindow]) -> None:
        recorded = mean_step_s([window for window, _ in self._profiled])
        bare = mean_step_s(unprofiled)
        self.log.figure(
            "profiled_step_s",
            Figure(
                value=recorded,
                unit="s",
                n=len(self._profiled),
                method=f"mean step under the profiler; {bare:.6g} s without it, in turn",
            ),
        )

    def _say_exchanged(self) -> None:
        """How much a step hands over to be exchanged, where it does."""
        sizes = [t.size_bytes for w in self._windows for t in w.transfers]
        if sizes:
            steps = sum(len(w.stamps) for w in self._windows)
            method = "bytes of all arrays handed over in the measured steps, a step in the mean"
            figure = Figure(value=math.fsum(sizes) / steps, unit="B", n=steps, method=method)
            self.log.figure("exchanged_bytes", figure)

    def _say_parts(self) -> None:
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
        self._doubt(parts)

    def _waited(self) -> Waited | None:
        """What a step waited for the exchange and the other ranks; None where there was none."""
        if self.share is None:
            return None
        transfers = sum(len(w.transfers) for w in self._windows)
        if not transfers:
            return None
        kept = self._windows[:: max(1, math.ceil(transfers / MOST_SHARED))]
        own = [w.transfers for w in kept]
        arrivals = self._together([[t.issued for t in found] for found in own])
        return waited(own, arrivals, sum(len(w.stamps) for w in kept))

    def _arrivals(self) -> list[list[float] | None] | None:
        """Of each profiled window, when the last rank began each communication kernel."""
        if self.share is None:
            return None
        begun = [[e.start_s for e in talking(profile)] for _, profile in self._profiled]
        return self._together(begun)

    def _together(self, begun: list[list[float]]) -> list[list[float] | None]:
        """Of each window, when the last rank came to each collective that this one began there;
        None where the ranks have different hosts, and so clocks, or collectives."""
        assert self.share is not None
        ranks = self.share({"host": socket.gethostname(), "begun": begun})
        alike = len({(rank["host"], len(rank["begun"])) for rank in ranks}) == 1
        if not alike:
            return [None] * len(begun)
        return [last_arrivals([rank["begun"][i] for rank in ranks]) for i in range(len(begun))]

    def _doubt(self, parts: tuple[Part, ...]) -> None:
        step_s = math.fsum(part.seconds for part in parts)
        other = next(part.seconds for part in parts if part.name == OTHER)
        if abs(other) > MOST_OTHER * step_s:
            cause = (
                f"The measured parts of the step come to {100 * (1 - other / step_s):.0f} % of it, "
                f"not to 95 to 105 %: {100 * abs(other) / step_s:.0f} % is other."
            )
            remedy = "Stop other programs and measure longer (seconds), or profile with trace=true."
            self.log.warning(warn("unattributed", cause, remedy))

    def _with_input(self, breakdown: Breakdown) -> Breakdown:
        """With the host's wait for batches as a line of its own, where there are batches."""
        if not self.fed:
            return breakdown
        stamps = [stamp for window in self._windows for stamp in window.stamps]
        seconds = math.fsum(s.place - s.feed for s in stamps) / len(stamps)
        rows = (*breakdown.rows, TimeRow(name="input", seconds=seconds, calls=1.0))
        method = f"{breakdown.method}; input: the host's stamps around the taking of a batch"
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
