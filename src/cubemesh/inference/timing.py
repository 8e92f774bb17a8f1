"""Latencies of candidates, interleaved on this device, and the record of earlier trials.

Every round each candidate runs for a window, in an order drawn for the round, so that a machine
that becomes slower delays all alike. A candidate that is surely slower than the best one leaves.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cubemesh.durable_files import replace_file
from cubemesh.errors import DataError, UsageError
from cubemesh.schema.serialization import from_plain, to_plain
from cubemesh.statistics import median
from cubemesh.untrusted import clean, parse_json, shown_path

WINDOW_S = 0.05
"""Longest window; shorter ones where the fewest rounds would take longer than asked for."""
FEWEST_ROUNDS, MOST_ROUNDS = 7, 25
TIE = 1.02
"""Candidates closer than this are equal: the first in the given order is chosen."""
MOST_RECORD = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds of one run: the median over windows with its 95 % interval. The ratio to the fastest
    one is the median over rounds, in which both ran under the same conditions."""

    seconds: float
    low: float
    high: float
    ratio: float = 1.0
    ratio_low: float = 1.0
    ratio_high: float = 1.0


@dataclass
class TimingRecord:
    """Latencies by key. With a file, those of earlier builds are not measured again, so a build
    from the same record makes the same choices."""

    path: Path | None = None
    latencies: dict[str, Latency] = field(default_factory=dict)
    kernels: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    """Key of a latency on a GPU → the tilings of its kernels."""

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        shown = shown_path(self.path)
        try:
            if self.path.stat().st_size > MOST_RECORD:
                raise ValueError(f"it is longer than {MOST_RECORD:,} bytes")
            plain = parse_json(self.path.read_bytes())
            found = plain["latencies"] if isinstance(plain, dict) else None
            if not isinstance(found, dict):
                raise ValueError("it has no latencies")
            self.latencies.update({key: from_plain(Latency, one) for key, one in found.items()})
            tilings = from_plain(dict[str, dict[str, tuple[int, ...]]], plain.get("kernels", {}))
            self.kernels.update(tilings)
        except OSError as error:
            raise UsageError(f"{shown} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError) as error:
            raise DataError(
                f"{shown} is not a timing record: {clean(str(error), 200)}. Name another file or "
                "delete it: the latencies are then measured again."
            ) from error

    def add(
        self,
        found: Mapping[str, Latency],
        kernels: Mapping[str, dict[str, tuple[int, ...]]] | None = None,
    ) -> None:
        """Add latencies and tilings, and save them where there is a file. UsageError where it
        cannot be written."""
        self.latencies.update(found)
        self.kernels.update(kernels or {})
        if self.path is None or not found:
            return
        plain = {"latencies": to_plain(self.latencies)}
        if self.kernels:
            plain["kernels"] = to_plain(self.kernels)
        text = json.dumps(plain, sort_keys=True, indent=1)
        try:
            replace_file(self.path, text.encode())
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}.") from error


def interleaved_latencies(
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 10.0,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Latency]:
    """The latency of each candidate, measured for at most about `seconds` in all."""
    windows: dict[str, list[float]] = {name: [] for name in candidates}
    remaining = list(candidates)
    order = random.Random(seed)
    for name in remaining:  # the first run of an engine allocates
        candidates[name]()
        candidates[name]()
    window_s = min(WINDOW_S, seconds / (FEWEST_ROUNDS * len(remaining)))
    begin = clock()
    for done in range(MOST_ROUNDS):
        enough = done >= FEWEST_ROUNDS
        if enough:
            remaining = _possibly_fastest(remaining, windows)
            if clock() - begin >= seconds or len(remaining) == 1:
                break
        order.shuffle(remaining)
        for name in remaining:
            windows[name].append(_window(candidates[name], window_s, clock))
    fastest = windows[min(windows, key=lambda name: median(windows[name]))]
    return {name: _latency(own, fastest) for name, own in windows.items()}


def _window(run: Callable[[], object], window_s: float, clock: Callable[[], float]) -> float:
    """Seconds of a run, the mean over a window; the run before it warms the caches."""
    run()
    begin, runs = clock(), 0
    while True:
        run()
        runs += 1
        elapsed = clock() - begin
        if elapsed >= window_s:
            return elapsed / runs


def _possibly_fastest(names: list[str], windows: Mapping[str, list[float]]) -> list[str]:
    """Candidates that may be the fastest: of the ratios to the best one in the same rounds, the
    interval begins below the tie."""
    best = windows[min(names, key=lambda name: median(windows[name]))]
    return [name for name in names if _latency(windows[name], best).ratio_low < TIE]


def _latency(values: list[float], fastest: list[float]) -> Latency:
    seconds = _interval(values)
    ratios = [own / other for own, other in zip(values, fastest, strict=False)]
    ratio = _interval(ratios) if values is not fastest else (1.0, 1.0, 1.0)
    return Latency(
        seconds=seconds[0],
        low=seconds[1],
        high=seconds[2],
        ratio=ratio[0],
        ratio_low=ratio[1],
        ratio_high=ratio[2],
    )


def _interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and the order statistics between which the true one is in 95 % of cases."""
    ordered = sorted(values)
    beyond = values_beyond(len(ordered))
    return median(ordered), ordered[beyond], ordered[-1 - beyond]


def values_beyond(count: int) -> int:
    """How many values at either end an interval of the median leaves out: the probability that
    so few of `count` are on one side of it is at most 2.5 % (binomial)."""
    probability, beyond = 0.0, 0
    while beyond < (count - 1) // 2:
        probability += math.comb(count, beyond) / 2**count
        if probability > 0.025:
            break
        beyond += 1
    return max(0, beyond - 1)


def choose(latencies: Mapping[str, Latency]) -> str:
    """The fastest; of those that are equal within `TIE`, the first in order."""
    best = min(latency.seconds for latency in latencies.values())
    return next(n for n, latency in latencies.items() if latency.seconds <= best * TIE)
