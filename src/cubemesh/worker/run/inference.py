"""Inference: the latency of requests one after another, or the throughput of queued batches.

    data ─ build ─ (compile) ─ weights ─ warm-up ─ measure

Requests repeat a few batches that are prepared before, so that reading and decoding samples is not
part of a latency. With `data_location=host` a request copies its batch to the device; its scores
are copied to the host in any case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

from cubemesh.data.feed import Feed
from cubemesh.frameworks.contract.program import Program, SupportsInference
from cubemesh.measure.latencies import LatencyRecorder
from cubemesh.schema.spec import DataLocation
from cubemesh.schema.work import Infer
from cubemesh.worker.run import inputs
from cubemesh.worker.run.program_lifecycle import program_for
from cubemesh.worker.run.task import Task, network_of, start_meters, time_steps

BATCHES = 8
"""Different batches that requests repeat."""


def infer(task: Task) -> None:
    """Measure inference."""
    work, log = cast(Infer, task.spec.work), task.log
    meters = start_meters(task)
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        feed = inputs.feed(task.spec, source, task.usable_cores)
    with program_for(task, network, feed) as program:
        step = request(program, feed, work, task.spec.program.data_location)
        recorder = LatencyRecorder(step, program.clock) if _waits(work) else None
        measured, telemetry = time_steps(
            task, meters, program, recorder or step, feed.samples_per_step
        )
        telemetry.log_energy(measured.windows, sum(w.samples for w in measured.windows))
        if recorder is not None:
            for name, figure in recorder.figures(measured.windows[0].start_s).items():
                log.figure(name, figure)


def request(
    program: Program, feed: Feed, work: Infer, location: DataLocation
) -> Callable[[], None]:
    """A function that makes the next request of `work`."""
    assert isinstance(program, SupportsInference), "its framework offers `infer`"
    infer, fetch, place = program.infer, program.fetch, program.place
    batches = list(itertools.islice(feed, BATCHES))
    feed.close()
    following = itertools.cycle(batches).__next__
    if location == "device":
        placed = place(batches[0])
        take: Callable[[], Any] = lambda: placed  # noqa: E731
    else:
        take = lambda: place(following())  # noqa: E731

    def wait() -> None:
        fetch(infer(take()))

    def queue() -> None:
        infer(take())

    return wait if _waits(work) else queue


def _waits(work: Infer) -> bool:
    return work.scenario == "single-stream"
