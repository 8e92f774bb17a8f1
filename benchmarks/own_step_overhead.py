"""Overhead of `cubemesh.measure` for a step of the caller: microseconds a step.

An empty step is called in the windows of `cubemesh.measure` and in a bare loop of as many steps,
interleaved, with the clock read around each. What a window costs more than the loop is the overhead
of calling steps, reading the clock and synchronizing; to it is added the CPU time of
telemetry and of storing windows while steps are measured, as if it delayed the steps by all of it.

    python benchmarks/own_step_overhead.py --step-ms 1
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import cubemesh
from cubemesh.statistics import median

GOAL = 0.01
ROUNDS = 7


def nothing() -> None:
    """The step."""


def busy(seconds: float) -> Callable[[], None]:
    """A step that computes for so long."""

    def step() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return step


def bare_us(steps: int) -> float:
    """Microseconds a step of a loop that calls `nothing`."""
    step, start = nothing, time.perf_counter()
    for _ in range(steps):
        step()
    return 1e6 * (time.perf_counter() - start) / steps


def called_us() -> tuple[float, float]:
    """Microseconds by which a step in a window exceeds one in a bare loop of as many steps: medians
    over windows of the step, and of the loop."""
    windows, loops = [], []
    for _ in range(ROUNDS):
        found = cubemesh.measure(nothing, seconds=0.2, warmup_seconds=0.0).record.measured
        windows += [1e6 * w.step_s for w in found]
        loops += [bare_us(w.steps) for w in found]
    return median(windows), median(loops)


def between_us(step_s: float, seconds: float) -> tuple[float, float]:
    """CPU time in microseconds a step that everything but the steps takes while they are measured:
    (of telemetry, of the time between windows)."""
    record = cubemesh.measure(busy(step_s), seconds=seconds, warmup_seconds=1.0).record
    windows = record.measured
    steps, spent_s = sum(w.steps for w in windows), sum(w.elapsed_s for w in windows)
    phase = next(p for p in record.phases if p.name == "measure")
    cores = record.figure("telemetry_cpu_share") or 0.0
    return 1e6 * cores * phase.elapsed_s / steps, 1e6 * (phase.elapsed_s - spent_s) / steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=1.0, help="of the step for telemetry")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring it")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    args = parser.parse_args()
    window, loop = called_us()
    telemetry, between = between_us(args.step_ms / 1e3, args.seconds)
    total = max(0.0, window - loop) + telemetry
    share = total / (1e3 * args.step_ms)
    print(f"calling a step: {window:.4f} us in a window, {loop:.4f} us in a bare loop")
    print(f"telemetry: {telemetry:.2f} us of CPU time a step of {args.step_ms:g} ms")
    print(f"between windows, outside their time: {between:.2f} us a step")
    print(f"overhead: {total:.2f} us a step, {100 * share:.2f} % (goal: {100 * GOAL:g} %)")
    if args.json:
        found = {
            "step_ms": args.step_ms,
            "window_us": window,
            "loop_us": loop,
            "telemetry_us": telemetry,
            "between_us": between,
            "overhead": share,
            "goal": GOAL,
            "reached": share <= GOAL,
        }
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
