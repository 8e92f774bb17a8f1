"""Groups: the records of one point of an answer, pooled.

Repeats of one spec on one machine are pooled: throughput is all their samples over all their
seconds, and the interval is over runs, because processes differ by more than the windows of one. A
group without a measurement has the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, TypeVar

from cubemesh.experiments.analysis.caveats import noise_codes
from cubemesh.experiments.analysis.ratios import reciprocal
from cubemesh.networks import rate_unit
from cubemesh.schema import (
    Cell,
    Figure,
    NetworkWork,
    Placement,
    Point,
    ProgramSettings,
    RunRecord,
    Window,
)
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.statistics import FEWEST_FOR_INTERVAL, Spread, median, nested_throughput_interval
from cubemesh.store.run_statistics import run_windows
from cubemesh.units import format_bytes

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Group(Generic[K]):
    """All records of one point."""

    key: K
    records: tuple[RunRecord, ...]

    @property
    def ok(self) -> tuple[RunRecord, ...]:
        """The records of successful runs."""
        return tuple(r for r in self.records if r.ok)

    @property
    def run_id(self) -> str:
        """The first successful run, else the first."""
        return (self.ok or self.records)[0].run_id

    @property
    def caveats(self) -> tuple[str, ...]:
        """Codes of the warnings of its runs that forbid comparing them closely."""
        return noise_codes(self.ok)

    @property
    def ending(self) -> str:
        """`why` in two or three words: "out of memory"."""
        return STATUS_WORDS[self.records[0].outcome.status]

    @property
    def why(self) -> str:
        """Why there is no figure: "out of memory: needs 27 GiB, 24 GiB here; 96 fits"."""
        what, message = self.ending, self.records[0].outcome.message
        why = message if what in message.lower() else f"{what}: {message}"
        return why.rstrip(": .")

    @cached_property
    def throughput(self) -> Figure | None:
        """Samples per second with its 95 % interval; None without a successful run."""
        return self.throughput_with(None)

    def throughput_with(self, prior: Spread | None) -> Figure | None:
        """The same with the spread between processes of earlier measurements; without it, a single
        run has the interval of its windows."""
        if len(self.ok) == 1 and prior is None:
            return self.ok[0].figures.get("throughput_per_s")
        runs = [window_pairs(run_windows(r)) for r in self.ok]
        return pooled(runs, prior) if any(runs) else None

    @property
    def step_ms(self) -> Figure | None:
        """Milliseconds a step takes on average, elapsed time over steps, with its interval."""
        figure, batch = self.throughput, self.records[0].spec.batch_per_device
        return reciprocal(figure, 1e3 * batch, "ms") if figure and batch else None

    def median_of(self, name: str) -> float | None:
        """The median of a figure over the successful runs."""
        values = [v for r in self.ok if (v := r.figure(name)) is not None]
        return median(values) if values else None

    def cell(self, figure: Figure | None) -> Cell:
        """A table's cell for one of this point's figures."""
        if figure is None:
            return Cell(reason=self.why, run_id=self.run_id)
        return Cell.of(figure, run_id=self.run_id)

    def point(self, x: float | str, figure: Figure | None) -> Point:
        """A chart's point for one of this point's figures."""
        if figure is None:
            return Point(x=x, reason=self.why, run_id=self.run_id)
        return Point(x=x, y=figure.value, low=figure.low, high=figure.high, run_id=self.run_id)


def window_pairs(windows: Iterable[Window]) -> list[tuple[float, float]]:
    """Windows as (samples, seconds)."""
    return [(w.samples, w.elapsed_s) for w in windows]


def pooled(runs: Sequence[Sequence[tuple[float, float]]], prior: Spread | None = None) -> Figure:
    """The throughput of runs of one spec together, from their windows (samples, seconds); no
    interval from fewer than six. `prior`, the spread between processes of earlier measurements,
    counts as so many runs as it has degrees of freedom.
    """
    windows = [w for run in runs for w in run]
    value = sum(s for s, _ in windows) / math.fsum(t for _, t in windows)
    n = len(runs) if len(runs) > 1 else len(windows)
    if prior is not None:
        n = len(runs) + round(prior.freedom)
    if len(windows) < FEWEST_FOR_INTERVAL:
        return Figure(value=value, unit="samples/s", n=n)
    interval = nested_throughput_interval(runs, prior=prior)
    return Figure(value=value, unit="samples/s", low=interval.low, high=interval.high, n=n)


def caveats(*groups: Group[Any]) -> tuple[str, ...]:
    """The caveats of all of them, each once."""
    return tuple(dict.fromkeys(code for group in groups for code in group.caveats))


def throughput_unit(records: Iterable[RunRecord]) -> str:
    """The unit of the throughput of runs: `images/s` or `sequences/s`, `samples/s` if they train
    both."""
    works = (record.spec.work for record in records)
    return rate_unit(*(work.network for work in works if isinstance(work, NetworkWork)))


def group_by(records: Iterable[RunRecord], key: Callable[[RunRecord], K]) -> list[Group[K]]:
    """Records that share a key, each group in order of first occurrence."""
    groups: dict[K, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return [Group(k, tuple(r)) for k, r in groups.items()]


_LABELS = {
    "batch_per_device": "batch size {}",
    "compile_by": "compiled by {}",
    "data_location": "data on {}",
    "script": "simulated",
    "threads": "{} threads",
}
_BARE = ("framework", "precision", "layout", "device")


def conditions(records: Sequence[RunRecord]) -> str:
    """`bf16, nhwc, data on the device`: the settings of program and placement that all `records`
    share and that differ from the defaults."""
    words = []
    for part, usual in (("program", ProgramSettings()), ("placement", Placement())):
        for field in fields(usual):
            values = {getattr(getattr(r.spec, part), field.name) for r in records}
            if len(values) == 1 and (value := values.pop()) != getattr(usual, field.name):
                words.append(setting_label(field.name, value))
    return ", ".join(words)


def titled(title: str, records: Sequence[RunRecord]) -> str:
    """`title`, followed by the conditions of its records."""
    under = conditions(records)
    return f"{title} · {under}" if under else title


def setting_label(name: str, value: object) -> str:
    """A setting in words: `bf16`, `data on device`, `optimizer adam`."""
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    if name in _BARE:
        return str(value)
    if name == "bucket_bytes" and isinstance(value, int):
        return f"buckets of {format_bytes(value)}"
    if name == "threads" and value == 1:
        return "1 thread"
    return _LABELS.get(name, f"{name} {{}}").format(value)
