"""What a worker does for each kind of work: a table of tasks, built from the other rooms' parts.

    train_steps, forward   data ─ build ─ weights ─ warm-up ─ measure      (measure/timing/timer.py)
                           weights ─ losses, where asked                   (first_losses.py)
                           ─ profile, with attribution                     (profile_windows.py)
    train                  data ─ build ─ weights ─ epochs, evaluations    (training/loop.py)
    first_steps            data ─ build ─ weights ─ steps ─ evaluate       (training/first_steps.py)
    input                  data ─ warm-up ─ measure                        (worker/run/inputs.py)
    ceiling                build ─ warm-up ─ measure                       (measure/timing/timer.py)
    collective             build ─ measure                                 (collectives.py)

Between build and weights, a program that compiles does so, with one batch, in phase compile. A task
says what it finds to its log and raises what ends it (worker/report/outcomes.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import cast

from cubemesh.data.feed import Feed, placed_batches
from cubemesh.data.text.sequences import Sequences
from cubemesh.frameworks.api.program import Program
from cubemesh.frameworks.ceilings import REST_S, try_out
from cubemesh.measure.telemetry.telemetry import Telemetry
from cubemesh.measure.validity import window_warnings
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.work import FirstSteps, Input, NetworkWork, Stage, Train, TrainSteps
from cubemesh.training.first_steps import first_steps as look_at_first_steps
from cubemesh.training.loop import train as train_epochs
from cubemesh.worker.report.machine_warnings import log_machine_warnings
from cubemesh.worker.run import ceilings, collectives, inputs
from cubemesh.worker.run import checkpointing as checkpointing
from cubemesh.worker.run.attribution_setup import attribute, stamped
from cubemesh.worker.run.loss_probe import log_losses
from cubemesh.worker.run.step_figures import tokens
from cubemesh.worker.run.task import Task, check_loss, network_of, program_for, start_meters, timed


def train_steps(task: Task) -> None:
    """Measure training steps: forward, backward, update."""
    _steps(task, lambda program: program.train_step)


def forward(task: Task) -> None:
    """Measure forward passes with the loss."""
    _steps(task, lambda program: program.forward)


def train(task: Task) -> None:
    """Train over epochs, with an evaluation after each."""
    work, log = cast(Train, task.spec.work), task.log
    meters = start_meters(task)
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        validation = inputs.open_split(task.spec, network, "validation")
        begin = checkpointing.beginning(task.spec, task.group, log)
        feed = inputs.feed(
            task.spec,
            source,
            task.usable_cores,
            epochs=work.epochs,
            group=task.group,
            start=begin.history.done,
        )

    with program_for(task, network, feed) as program:
        begin.restore(program, log)
        writer = checkpointing.training_writer(task.spec, task.group)
        with Telemetry(log, task.usable_cores, meters=meters) as telemetry:
            started = time.perf_counter()
            windows = train_epochs(
                program,
                feed,
                validation,
                work,
                log,
                task.spec.program.data_location,
                group=task.group,
                devices=task.spec.placement.devices,
                writer=writer,
                history=begin.history,
                same_weights=strategy(task.spec.program.sync).same_weights,
            )
            ended = time.perf_counter()
        log_machine_warnings(telemetry, task.gpu_processes, log, started, ended)
        if windows:  # none where it went on from its very end
            telemetry.keep_energy(windows, sum(w.samples for w in windows))
        inputs.log_images(log, (source, feed.tried), (validation, None))
        for warning in window_warnings(windows) if windows else ():
            log.warning(warning)


def first_steps(task: Task) -> None:
    """Look at the first steps of a training."""
    work, log = cast(FirstSteps, task.spec.work), task.log
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        validation = inputs.open_split(task.spec, network, "validation")
        feed = inputs.feed(task.spec, source, task.usable_cores, group=task.group)
    with program_for(task, network, feed) as program:
        look_at_first_steps(program, feed, validation, work, log, task.group)


def input_stage(task: Task) -> None:
    """Measure one stage of what feeds a network: a step is a minibatch going through it."""
    work, log = cast(Input, task.spec.work), task.log
    meters = start_meters(task)
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_stage(task.spec, network)
        feed = inputs.feed(task.spec, source, task.usable_cores)
        inputs.log_files(log, source, feed.threads)
    samples = work.batch_per_device
    if work.stage == "copy" or task.spec.program.decode_location == "device":
        with program_for(task, network, feed) as program:
            host, step = inputs.Host(program.synchronize), _placing(program, feed, work.stage)
            timed(task, meters, host, step, samples)
    else:
        with closing(feed):
            timed(task, meters, inputs.Host(), lambda: inputs.discard(next(feed)), samples)
    if work.stage != "copy":
        inputs.log_images(log, (source, feed.tried))
        inputs.warn_if_still_cached(task.spec, log, source)


def _placing(program: Program, feed: Feed, stage: Stage) -> Callable[[], None]:
    """A step that places the same minibatch again, or of decoding the next one."""
    if stage == "copy":
        batch = next(feed)
        return lambda: inputs.discard(program.place(batch))
    return lambda: inputs.discard(program.place(next(feed)))


def ceiling(task: Task) -> None:
    """Measure the rate of one elementary operation: at its fastest, in the first moments, and as
    it goes on."""
    meters = start_meters(task)
    with task.log.phase("build"):
        program = ceilings.build(task.spec, task.framework.build_ceiling, task.device, task.threads)
        trial = try_out(program, 0.0 if task.device == "cpu" else REST_S)
    measured, telemetry = timed(task, meters, program, program.call, samples_per_step=1)
    telemetry.keep_energy(measured.windows, None)
    ceilings.log_rates(task.log, program, trial, measured.windows)


def collective(task: Task) -> None:
    """Measure one operation between all devices, at each of its sizes."""
    meters = start_meters(task)
    with task.log.phase("build"):
        program = collectives.build(
            task.spec, task.framework, task.group, task.device, task.threads, task.limit_bytes
        )
    task.log.library(program.library)
    with Telemetry(task.log, task.usable_cores, meters=meters) as telemetry:
        started, ended = collectives.sweep(task.spec, program, task.group, task.log)
    log_machine_warnings(telemetry, task.gpu_processes, task.log, started, ended)
    telemetry.keep_utilisation(started, ended)


TASKS: dict[str, Callable[[Task], None]] = {
    "train_steps": train_steps,
    "forward": forward,
    "train": train,
    "first_steps": first_steps,
    "input": input_stage,
    "ceiling": ceiling,
    "collective": collective,
}
"""Kind of work → its task: one for each of `WORK_KINDS`."""


def _steps(task: Task, step_of: Callable[[Program], Callable[[object], None]]) -> None:
    work, log = cast(NetworkWork, task.spec.work), task.log
    meters = start_meters(task)
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        feed = inputs.feed(task.spec, source, task.usable_cores, group=task.group)
        inputs.log_files(log, source, feed.threads)
    group, transfers = stamped(task.spec, task.group)
    exchanging = replace(task, group=group)
    with program_for(exchanging, network, feed) as program:
        queue = step_of(program)
        if isinstance(work, TrainSteps) and work.losses:
            with log.phase("losses"):
                log_losses(program, next(feed.epoch(0)), work.losses, log)
        attributed = attribute(
            task.spec, program, feed, queue, log, task.folder, task.group, transfers
        )
        if attributed is None:
            batches = placed_batches(program, feed, task.spec.program.data_location)

            def step() -> None:
                queue(next(batches))

            measured, telemetry = timed(task, meters, program, step, feed.samples_per_step)
        else:
            measured, telemetry = timed(
                task, meters, program, attributed.steps, feed.samples_per_step, attributed
            )
            with log.phase("profile"):
                attributed.finish()
            if attributed.trace is not None:
                log.artifact(_trace_name(task.group.rank), attributed.trace)
        telemetry.keep_energy(measured.windows, sum(w.samples for w in measured.windows))
        if task.spec.program.data_location == "host" and attributed is None:
            log.figure("input_wait_s", inputs.wait(measured, feed))
        inputs.log_images(log, (source, feed.tried))
        inputs.warn_if_still_cached(task.spec, log, source)
        if isinstance(feed.source, Sequences):
            log.figure("tokens_per_s", tokens(measured, feed.source))
        # Once, at the end: reading a loss waits for the device, and a loss that has stopped being
        # a number does not become one again.
        check_loss(program)


def _trace_name(rank: int) -> str:
    return f"trace of rank {rank}" if rank else "trace"
