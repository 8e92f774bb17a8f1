"""Forecasts of a CPU from measured ceilings, compared with stored steps of PyTorch.

A step takes its operations at the rate of a matrix product and its bytes at that of a copy, one
after the other, over one share. The share is fitted to the workloads of all other networks (least
mean absolute logarithm) and judged on those of each network in turn. Runs on a busy host are left
out, as are those with other threads than the ceilings.

    python benchmarks/cpu_ceiling_forecasts.py STORE...
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

from cubemesh.forecast.attained import CEILING_SHARE, ideal_step_of_ceilings
from cubemesh.networks import build_for
from cubemesh.schema import RunRecord
from cubemesh.schema.work import Ceiling, TrainSteps
from stored_runs import stored_runs

GRID = [i / 100 for i in range(20, 101)]
RATES = {"matrix_product": "rate_flops_per_s", "copy": "rate_bytes_per_s"}
Workload = tuple[str, str, float, float]
"""Network, batch size, measured seconds over ideal ones, measured seconds."""


def workloads(records: list[RunRecord]) -> list[Workload]:
    """The workloads of a store with both ceilings, each with the median of its runs."""
    ceilings, threads = {}, None
    for record in records:
        work = record.spec.work
        if isinstance(work, Ceiling) and record.spec.program.precision == "fp32":
            ceilings[str(work.operation)] = record.figure(RATES.get(work.operation, ""))
            threads = record.ranks[0].threads
    found = defaultdict(list)
    for record in records:
        work, program = record.spec.work, record.spec.program
        rate = record.figure("throughput_per_s")
        if not isinstance(work, TrainSteps) or not rate or record.spec.placement.devices != 1:
            continue
        if (program.framework, program.layout, program.precision) != ("pytorch", "nchw", "fp32"):
            continue
        busy = any(warning.code == "busy-host" for warning in record.warnings)
        if busy or record.ranks[0].threads != threads:
            continue
        flops, moved = (ceilings[operation] for operation in RATES)
        assert flops
        assert moved
        step = ideal_step_of_ceilings(build_for(work), work.batch_per_device, "fp32", flops, moved)
        seconds = work.batch_per_device / rate
        key = work.network, str(work.batch_per_device)
        found[key].append((seconds / step.amounts[CEILING_SHARE], seconds))
    return [
        (network, batch, median(r for r, _ in those), median(s for _, s in those))
        for (network, batch), those in found.items()
    ]


def fitted(seen: list[Workload]) -> float:
    """The share of the least mean absolute logarithm of forecast over measured."""
    return min(GRID, key=lambda share: fmean(abs(math.log(share * one[2])) for one in seen))


def main() -> int:
    """Fit without each network, judge and print."""
    found = []
    for path in sys.argv[1:]:
        with stored_runs(Path(path)) as store:
            usable = [r for r in store.records() if r.ok and r.ranks]
            found += workloads(usable)
    errors = []
    for network, batch, ratio, seconds in found:
        seen = [one for one in found if one[0] != network]
        share = fitted(seen)
        errors.append(share * ratio - 1)
        print(
            f"  {network:12} {batch:>4}  {seconds:8.3f} s  share {share:.2f} of {len(seen)}", end=""
        )
        print(f"  error of the rate {100 * errors[-1]:+.0f} %")
    sizes = [abs(error) for error in errors]
    print(
        f"{len(found)} workloads, share of all {fitted(found):.2f}; mean error {fmean(sizes):.0%}"
    )
    print(f"median {median(sizes):.0%}; goal 20 %")
    return int(fmean(sizes) > 0.2)


if __name__ == "__main__":
    sys.exit(main())
