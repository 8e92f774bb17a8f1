"""Timed training and forward steps: throughput, first losses, attribution, tokens per second.

    data ─ build ─ weights ─ (losses) ─ warm-up ─ measure ─ (profile)

The first losses come from repeated steps on one batch from the initial weights: if the arithmetic
is right they fall within a few steps for any data, and two programs agree on them closely.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from cubemesh.batches import Batch
from cubemesh.data.feed import Feed, placed_batches
from cubemesh.frameworks.contract.group import Group
from cubemesh.frameworks.contract.program import (
    Program,
    SupportsProfiling,
    Unsupported,
    monotonic_s,
)
from cubemesh.measure.attribution.contention import CompetitionReader
from cubemesh.measure.attribution.profile_windows import StepProfiler
from cubemesh.measure.attribution.transfers import Transfers
from cubemesh.measure.figures import figures
from cubemesh.measure.log import Log
from cubemesh.measure.telemetry.run_queue import OwnThread
from cubemesh.measure.timing.step_timestamps import StampedSteps
from cubemesh.measure.timing.timer import Measured
from cubemesh.parallel.timed_group import TimedGroup
from cubemesh.schema.record import FIRST_LOSSES, Figure
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.work import NetworkWork, TrainSteps
from cubemesh.training.first_steps import finite_loss
from cubemesh.training.history import by_step
from cubemesh.worker.run import inputs
from cubemesh.worker.run.job_file import trace_file, trace_name
from cubemesh.worker.run.program_lifecycle import program_for
from cubemesh.worker.run.task import (
    Task,
    check_loss,
    network_of,
    start_meters,
    time_steps,
)


def measure_steps(task: Task, step_of: Callable[[Program], Callable[[object], None]]) -> None:
    """Time the steps of a program, `step_of` giving the one that is timed; log its first losses and
    attribute its step time, where the spec asks for them."""
    work, log = cast(NetworkWork, task.spec.work), task.log
    meters = start_meters(task)
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        feed = inputs.feed(task.spec, source, task.usable_cores, group=task.group)
        inputs.log_files(log, source, feed.threads)
    group, transfers = timed_group(task.spec, task.group)
    with program_for(replace(task, group=group), network, feed) as program:
        queue = step_of(program)
        if isinstance(work, TrainSteps) and work.losses:
            with log.phase("losses"):
                log_losses(program, next(feed.epoch(0)), work.losses, log)
        attributed = attribute(task, program, feed, queue, transfers)
        step: Callable[[], None]
        if attributed is None:
            batches = placed_batches(program, feed, task.spec.program.data_location)
            step = lambda: queue(next(batches))  # noqa: E731
        else:
            step = attributed.steps
        measured, telemetry = time_steps(
            task, meters, program, step, feed.samples_per_step, attributed
        )
        if attributed is not None:
            with log.phase("profile"):
                attributed.finish()
            if attributed.trace is not None:
                log.artifact(trace_name(task.group.rank), trace_file(task.group.rank))
        telemetry.log_energy(measured.windows, sum(w.samples for w in measured.windows))
        if task.spec.program.data_location == "host" and attributed is None:
            log.figure("input_wait_s", inputs.wait(measured, feed))
        inputs.log_images(log, (source, feed.tried))
        inputs.warn_if_still_cached(task.spec, log, source)
        each = getattr(feed.source, "tokens_per_sample", None)
        if each is not None:
            log.figure("tokens_per_s", tokens(measured, each))
            log.figure("tokens_per_sample", Figure(value=each, unit="tokens"))
        # Once, at the end: reading a loss waits for the device, and NaN stays NaN.
        check_loss(program)


def attribute(
    task: Task, program: Program, feed: Feed, queue: Callable[[Any], None], transfers: Transfers
) -> StepProfiler | None:
    """The profiler of the steps of a task; None where no attribution is requested. On several
    devices each rank has its own, and `transfers` are its transfers. Unsupported where cubemesh
    reads no profile of the framework, or where communication cannot be timestamped.

    The step calls its three parts one by one, so that the clock can be read between them: take a
    batch from the feed, place it, queue the work."""
    spec, group = task.spec, task.group
    if not is_attributed(spec):
        return None
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
    thread = own_thread(program.clock)
    return StepProfiler(
        program=program,
        steps=StampedSteps(
            take=take,
            place=place,
            queue=queue,
            clock=program.clock,
            exchanged=transfers.cut,
            thread=None if thread is None else thread.read,
            compete=None
            if thread is None
            else CompetitionReader(task.threads, fed=fed and feed.threads > 0).read,
            runs_ahead=program.device != "cpu",
        ),
        samples_per_step=spec.batch_per_device or 1,
        log=task.log,
        fed=fed,
        trace=os.path.join(task.folder, trace_file(group.rank)) if spec.budget.trace else None,
        agree=group.broadcast_object,
        share=group.all_gather_object if group.size > 1 else None,
    )


def own_thread(clock: Callable[[], float]) -> OwnThread | None:
    """The counters of this thread; None where the kernel has none, and for a simulated `clock`, to
    which they do not belong."""
    thread = OwnThread()
    return thread if clock is monotonic_s and thread.counts_delay else None


def is_attributed(spec: RunSpec) -> bool:
    """Whether its steps are profiled and attributed."""
    return spec.budget.attribution or spec.budget.trace


def timed_group(spec: RunSpec, group: Group) -> tuple[Group, Transfers]:
    """The group through which the steps of `spec` communicate, and the transfers it records: none
    without attribution or on a single device."""
    transfers = Transfers(clock=time.perf_counter)
    if group.size == 1 or not is_attributed(spec):
        return group, transfers
    return TimedGroup(group, transfers), transfers


def log_losses(program: Program, batch: Batch, steps: int, log: Log) -> None:
    """Make `steps` steps on `batch` and log the loss of each as a curve. Diverged where a loss is
    not finite."""
    placed = program.place(batch)
    losses: dict[int, float] = {}
    for step in range(1, steps + 1):
        program.train_step(placed)
        losses[step] = finite_loss(program, step)
    log.curve(by_step(FIRST_LOSSES, losses))


def tokens(measured: Measured, each: float) -> Figure:
    """Tokens per second that count in the loss: samples per second × mean tokens of `each`."""
    rate = figures(measured.windows, wall_s=0.0)["throughput_per_s"]
    return rate.scaled(each, "tokens/s", rate.method)
