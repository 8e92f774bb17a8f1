"""Which of two programs is faster, when both run in one process?

Short windows of the two alternate, in an order drawn for each pair, so that whatever else happens
on the machine meets both alike. Of each pair the ratio of throughputs is taken, of the ratios the
median, and its 95 % interval by resampling the pairs. Equal programs in one process can differ by a
percent, by where their arrays happen to lie: so several instances of each are compared, in turn.

Nothing here knows a framework: a side brings its step and its way of waiting for the device.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cubemesh.frameworks import entry
from cubemesh.frameworks.base import Batch, BuildRequest, Compiles
from cubemesh.networks.graph import Network
from cubemesh.statistics import FEWEST_FOR_INTERVAL, bootstrap_interval, mad, median

WINDOW_S = 0.15
"""Length of a window at least; a longer step has a window of its own."""
WARMUP_PAIRS = 12
"""Pairs that are not counted, or fewer where they take more than a quarter of the time."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: a training step that may return before the device is done, and a wait."""

    step: Callable[[], None]
    synchronize: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How the second side's throughput stands to the first's."""

    pairs: int
    steps_per_window: int
    first_step_ms: float
    first_step_mad_ms: float
    second_step_ms: float
    second_step_mad_ms: float
    ratio: float
    """Second over first; more than 1 means that the second is faster."""
    low: float
    high: float


def compare(both: Sequence[tuple[Side, Side]], seconds: float) -> Comparison:
    """Alternate the sides of `both`, instances of (first, second), for about `seconds`, and for six
    pairs at least: fewer cannot bound their median."""
    once = min(window_s(side, 3) / 3 for pair in both for side in pair)
    steps = max(1, math.ceil(WINDOW_S / once))
    order = random.Random(0)
    start = time.perf_counter()
    warm, counted = 0, []
    while len(counted) < FEWEST_FOR_INTERVAL or time.perf_counter() - start < seconds:
        first, second = both[(warm + len(counted)) % len(both)]
        if order.random() < 0.5:
            one = window_s(first, steps)
            pair = one, window_s(second, steps)
        else:
            two = window_s(second, steps)
            pair = window_s(first, steps), two
        is_warm = warm >= WARMUP_PAIRS or time.perf_counter() - start > seconds / 4
        if is_warm and warm >= len(both):
            counted.append(pair)
        else:
            warm += 1
    return sum_up(np.array(counted), steps)


def sum_up(pairs: np.ndarray, steps: int) -> Comparison:
    """The comparison that windows (pairs, 2) of `steps` steps make, in seconds."""
    ratios = pairs[:, 0] / pairs[:, 1]
    interval = bootstrap_interval(ratios, median)
    per_step_ms = pairs / steps * 1e3
    return Comparison(
        pairs=len(pairs),
        steps_per_window=steps,
        first_step_ms=median(per_step_ms[:, 0]),
        first_step_mad_ms=mad(per_step_ms[:, 0]),
        second_step_ms=median(per_step_ms[:, 1]),
        second_step_mad_ms=mad(per_step_ms[:, 1]),
        ratio=median(ratios),
        low=interval.low,
        high=interval.high,
    )


def window_s(side: Side, steps: int) -> float:
    """Seconds that `steps` steps take, the device having finished before and after."""
    side.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        side.step()
    side.synchronize()
    return time.perf_counter() - start


def random_batch(network: Network, samples: int) -> Batch:
    """Images and labels drawn for `network`, always the same."""
    rng = np.random.default_rng(0)
    return Batch(
        images=rng.random((samples, *network.inputs[0].shape), dtype=np.float32),
        labels=rng.integers(0, network.targets[0].classes or 1, samples),
    )


def cubemesh_side(framework: str, request: BuildRequest, batch: Batch) -> Side:
    """What cubemesh's measuring loop does for each step: place a batch, train on it."""
    program = entry(framework).load().build(request)
    if isinstance(program, Compiles):
        program.compile(program.place(batch))
    program.load(request.network.draw(0))

    def step() -> None:
        program.train_step(program.place(batch))

    return Side(step=step, synchronize=program.synchronize)
