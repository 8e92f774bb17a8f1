"""How is a step stamped and profiled that would otherwise only be timed?

The step of a worker takes a batch from the feed, hands it over and queues the work. For an
attribution these three are called one by one, so that the clock can be read between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from cubemesh.data.feed import Feed
from cubemesh.frameworks.base import Profiles, Program, Unsupported
from cubemesh.measure.base import Log
from cubemesh.measure.profiled import Attributed
from cubemesh.measure.stamps import StampedSteps
from cubemesh.model.spec import RunSpec

TRACE_FILE = "trace.json"


def attribute(
    spec: RunSpec,
    program: Program,
    feed: Feed,
    queue: Callable[[Any], None],
    log: Log,
    folder: str,
) -> Attributed | None:
    """What stamps and profiles the steps of `spec`; None where no attribution is asked for.
    Unsupported where the framework has no profiler that cubemesh reads, and on several devices."""
    if not (spec.effort.attribution or spec.effort.trace):
        return None
    if spec.placement.devices > 1:
        # Each rank would profile as many steps as its own events allow, and then wait for ranks
        # that make fewer.
        raise Unsupported(
            f"devices={spec.placement.devices}: a step is taken apart on one device. Leave "
            "attribution and trace out, or set devices=1."
        )
    if not isinstance(program, Profiles):
        raise Unsupported(
            f"cubemesh reads no profile of {spec.program.framework}, and an attribution needs one. "
            "Leave attribution out, or set framework=pytorch or pytorch-compiled."
        )
    place: Callable[[Any], Any] = program.place
    take: Callable[[], Any] = feed.__next__
    fed = spec.program.data_on == "host"
    if not fed:
        placed = program.place(next(feed))
        feed.close()
        take, place = lambda: placed, lambda batch: batch
    return Attributed(
        program=program,
        steps=StampedSteps(take=take, place=place, queue=queue, clock=program.clock),
        samples_per_step=spec.batch_per_device or 1,
        log=log,
        fed=fed,
        trace=os.path.join(folder, TRACE_FILE) if spec.effort.trace else None,
    )
