"""Latencies of a plan: timed runs, their percentiles, and the times in the fields of trtexec."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from cubemesh.batches import Array
from cubemesh.inference.runtime import Plan
from cubemesh.schema.record import Figure
from cubemesh.statistics import percentile_interval
from cubemesh.statistics.typical import percentile

MOST_ITERATIONS = 1_000_000


def timed_runs(
    plan: Plan,
    inputs: Mapping[str, Array],
    duration: float,
    iterations: int | None,
    warm_up: float,
) -> list[tuple[float, float]]:
    """Begin and end of each run of a plan: so many, or for `duration` seconds, after `warm_up`
    seconds."""
    clock = time.perf_counter
    run = plan.bind(inputs)
    begin = clock()
    while clock() - begin < warm_up:
        run()
    runs: list[tuple[float, float]] = []
    begin = clock()
    while len(runs) < (iterations or MOST_ITERATIONS):
        before = clock()
        run()
        after = clock()
        runs.append((before, after))
        if iterations is None and after - begin >= duration:
            break
    return runs


def latency_figures(seconds: list[float], percentiles: Sequence[float]) -> dict[str, Figure]:
    """`min`, `mean`, `p50`, the given percentiles with their intervals, and `max`."""
    found = {
        "min": Figure(value=min(seconds), unit="s", n=len(seconds)),
        "mean": Figure(value=sum(seconds) / len(seconds), unit="s", n=len(seconds)),
    }
    for percent in sorted({50.0, *percentiles}):
        interval = percentile_interval(seconds, percent)
        found[f"p{percent:g}"] = Figure(
            value=percentile(seconds, percent),
            unit="s",
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            n=len(seconds),
        )
    return {**found, "max": Figure(value=max(seconds), unit="s", n=len(seconds))}


def trtexec_times(runs: Sequence[tuple[float, float]]) -> str:
    """The runs in the fields of `trtexec --exportTimes`, a line each, in milliseconds since the
    first one began. No copy is timed, so a run is all computation."""
    origin = runs[0][0]
    lines = []
    for begin, end in runs:
        first, last = 1e3 * (begin - origin), 1e3 * (end - origin)
        fields = {
            **dict.fromkeys(("startH2dMs", "endH2dMs", "startComputeMs"), first),
            **dict.fromkeys(("endComputeMs", "startD2hMs", "endD2hMs"), last),
            "h2dMs": 0.0,
            "computeMs": last - first,
            "d2hMs": 0.0,
            "latencyMs": last - first,
        }
        lines.append(json.dumps({name: round(value, 6) for name, value in fields.items()}))
    return "[\n" + ",\n".join(lines) + "\n]\n"
