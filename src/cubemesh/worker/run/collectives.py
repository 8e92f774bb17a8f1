"""Collective sweep: the time of a collective at each size, with a check of its result.

At each size, in each placement that the framework offers (out of place, in place):

    allocate ─ warm-up calls ─ wait │ group: barrier ─ call · … · call ─ wait │ group … │ check

A group is timed on every rank from the barrier until its own calls are done; the mean over ranks is
what nccl-tests reports (its `-a 1`). Rank 0 decides after each group whether another follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from cubemesh.frameworks.contract.collectives import (
    CollectiveProgram,
    Extent,
    SupportsCollectives,
    extent,
    needs_bytes,
)
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import Framework, OutOfMemory, Unsupported
from cubemesh.measure.log import Log
from cubemesh.schema.collective import Collective, SweepPoint
from cubemesh.schema.spec import Budget, RunSpec
from cubemesh.units import format_bytes

Step = tuple[Extent, bool, tuple[int, int] | None]
"""(size, in place, pair of ranks)."""


def build(
    spec: RunSpec,
    framework: Framework,
    group: Group,
    device: str,
    threads: int,
    limit_bytes: int | None,
) -> CollectiveProgram:
    """The program of a collective. OutOfMemory where its arrays cannot fit into `limit_bytes`,
    before anything is allocated."""
    work = cast(Collective, spec.work)
    if not isinstance(framework, SupportsCollectives):
        raise Unsupported(f"{spec.program.framework} has no collectives to measure.")
    largest = extent(work, max(work.sizes_bytes), group.size)
    needed = needs_bytes(work, largest, device == "cpu")
    if limit_bytes is not None and needed > limit_bytes:
        raise OutOfMemory(f"arrays of {format_bytes(largest.size_bytes)} need {needed} bytes")
    return framework.build_collective(work, device, threads, largest)


def sweep(spec: RunSpec, program: CollectiveProgram, group: Group, log: Log) -> tuple[float, float]:
    """Measure and log every size; readings of `time.perf_counter()` at begin and end."""
    work = cast(Collective, spec.work)
    steps = list(_steps(work, program.places, group.size))
    started = time.perf_counter()
    with log.phase("measure"):
        for number, (of, in_place, pair) in enumerate(steps, start=1):
            program.lay_out(of, in_place, pair)
            for _ in range(work.warmup_iterations):
                program.call()
            program.synchronize()
            seconds = _groups(program, spec.budget, group.broadcast_object)
            point = SweepPoint(
                size_bytes=of.size_bytes,
                count=of.count,
                in_place=in_place,
                pair=pair,
                iterations=spec.budget.steps,
                seconds=tuple(seconds),
                wrong=_wrong(program, work),
            )
            if pair is None or group.rank in pair:
                log.point(point)
            log.progress("measure", number, point.time_s, number / len(steps))
    return started, time.perf_counter()


def _steps(work: Collective, places: tuple[bool, ...], ranks: int) -> Iterator[Step]:
    """Every size in every placement; for send-receive also every pair, at the largest size."""
    sizes = dict.fromkeys(extent(work, size, ranks) for size in sorted(work.sizes_bytes))
    for of in sizes:
        for in_place in places:
            yield of, in_place, None
    if work.collective == "send-receive":
        for first in range(ranks):
            for last in range(ranks):
                if first != last:
                    yield list(sizes)[-1], False, (first, last)


def _groups(program: CollectiveProgram, budget: Budget, agree: Callable[[Any], Any]) -> list[float]:
    """Seconds of one operation in each group."""
    seconds: list[float] = []
    begin = program.clock()
    while True:
        program.barrier()
        start = program.clock()
        for _ in range(budget.steps):
            program.call()
        program.synchronize()
        end = program.clock()
        seconds.append((end - start) / budget.steps)
        if agree(len(seconds) >= budget.windows or end - begin >= budget.seconds):
            return seconds


def _wrong(program: CollectiveProgram, work: Collective) -> int | None:
    """Wrong elements of this rank, over all checks."""
    if not work.checks:
        return None
    found = 0
    for repetition in range(1, work.checks + 1):
        program.fill(repetition)
        program.barrier()
        program.call()
        program.synchronize()
        found += program.wrong(repetition)
    return found
