"""How is a step stamped and profiled that would otherwise only be timed?

The step of a worker takes a batch from the feed, hands it over and queues the work. For an
attribution these three are called one by one, so that the clock can be read between them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from cubemesh.data.feed import Feed
from cubemesh.frameworks.api.group import Group
from cubemesh.frameworks.api.program import Program, SupportsProfiling, Unsupported
from cubemesh.measure.attribution.profile_windows import StepProfiler
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.measure.log import Log
from cubemesh.measure.timing.step_timestamps import StampedSteps
from cubemesh.parallel.strategies import STRATEGIES, strategy
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.schema.spec import RunSpec


def attribute(
    spec: RunSpec,
    program: Program,
    feed: Feed,
    queue: Callable[[Any], None],
    log: Log,
    folder: str,
    group: Group,
    transfers: Transfers,
) -> StepProfiler | None:
    """What stamps and profiles the steps of `spec`; None where no attribution is asked for.
    Unsupported where the framework has no profiler that cubemesh reads, or where what travels
    cannot be stamped. On several devices each rank tells its own, and `transfers` are what it
    exchanges."""
    if not is_attributed(spec):
        return None
    sync = spec.program.sync
    if group.size > 1 and not strategy(sync).profiled:
        raise Unsupported(
            f"sync={sync}: a step is taken apart whose ranks keep step and wait in "
            f"collectives: {', '.join(n for n, s in STRATEGIES.items() if s.profiled)}. "
            "Leave attribution and trace out."
        )
    if not isinstance(program, SupportsProfiling):
        raise Unsupported(
            f"cubemesh reads no profile of {spec.program.framework}, and an attribution needs one. "
            "Leave attribution out, or set framework=pytorch or pytorch-compiled."
        )
    place: Callable[[Any], Any] = program.place
    take: Callable[[], Any] = feed.__next__
    fed = spec.program.data_location == "host"
    if not fed:
        placed = program.place(next(feed))
        feed.close()
        take, place = lambda: placed, lambda batch: batch
    return StepProfiler(
        program=program,
        steps=StampedSteps(
            take=take, place=place, queue=queue, clock=program.clock, exchanged=transfers.cut
        ),
        samples_per_step=spec.batch_per_device or 1,
        log=log,
        fed=fed,
        trace=os.path.join(folder, trace_file(group.rank)) if spec.budget.trace else None,
        agree=group.broadcast_object,
        share=group.all_gather_object if group.size > 1 else None,
    )


def is_attributed(spec: RunSpec) -> bool:
    """Whether an attribution of its steps is asked for."""
    return spec.budget.attribution or spec.budget.trace


def stamped(spec: RunSpec, group: Group) -> tuple[Group, Transfers]:
    """The group that the steps of `spec` exchange through, and what is told of it: nothing, where
    they are not taken apart or there is nobody to exchange with."""
    transfers = Transfers(clock=time.perf_counter)
    if group.size == 1 or not is_attributed(spec):
        return group, transfers
    return TimedGroup(group, transfers), transfers


def trace_file(rank: int) -> str:
    """The file that a rank's trace is kept in, in the folder of the run."""
    return f"trace-{rank}.json" if rank else "trace.json"
