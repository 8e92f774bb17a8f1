"""Latencies: percentiles of one run are in order, and its throughput bounds them.

A fraction 1 − q of all requests takes at least the q-th quantile, so no quantile exceeds the mean
divided by 1 − q. The mean is the batch size over the throughput.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cubemesh.audit.evidence import Evidence, name_of
from cubemesh.audit.inconsistency import Inconsistency, inconsistency
from cubemesh.measure.latencies import PERCENTILES
from cubemesh.schema import Infer, InferLoad
from cubemesh.units import format_number

SLOWEST = "latency_max_s"
TOLERANCE = 0.02
"""The interpolation of a percentile between two requests."""
_AGAIN = "Measure again: cubemesh run inference --no-cache. If it persists, report it."


def in_order(evidence: Evidence) -> Iterator[Inconsistency]:
    """Runs with a percentile above a higher one, or above what their throughput allows."""
    for record in evidence.records:
        if not isinstance(record.spec.work, Infer | InferLoad):
            continue
        found = [(n, v) for n in (*PERCENTILES, SLOWEST) if (v := record.figure(n)) is not None]
        for (lower, low_s), (higher, high_s) in itertools.pairwise(found):
            if low_s > high_s * (1 + 1e-9):
                yield inconsistency(
                    "latencies-contradict",
                    f"{name_of(record)}: {lower} {format_number(1e3 * low_s)} ms is above {higher} "
                    f"{format_number(1e3 * high_s)} ms.",
                    evidence.place(record.run_id),
                    _AGAIN,
                )
        rate = record.figure("throughput_per_s")
        if not rate or isinstance(record.spec.work, InferLoad):  # its requests wait in a queue
            continue
        mean_s = record.spec.work.batch_per_device / rate
        for name, latency_s in found:
            beyond = 1 - PERCENTILES.get(name, 100) / 100
            if beyond > 0 and latency_s * beyond > mean_s * (1 + TOLERANCE):
                yield inconsistency(
                    "latencies-contradict",
                    f"{name_of(record)}: {name} {format_number(1e3 * latency_s)} ms is impossible "
                    f"at a mean of {format_number(1e3 * mean_s)} ms, by its throughput.",
                    evidence.place(record.run_id),
                    _AGAIN,
                )
