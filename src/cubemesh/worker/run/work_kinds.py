"""Tasks: what a worker does for each kind of work.

    train_steps, forward,  data ─ build ─ weights ─ warm-up ─ measure      (steps.py)
    forward_backward
    train                  data ─ build ─ weights ─ epochs, evaluations    (training/loop.py)
    first_steps            data ─ build ─ weights ─ steps ─ evaluate       (training/first_steps.py)
    infer                  data ─ build ─ weights ─ warm-up ─ measure      (inference.py)
    infer_precision        data ─ build ─ weights ─ train ─ candidates     (precision_front.py)
    infer_load             data ─ build ─ weights ─ warm-up ─ measure      (load_test.py)
    input                  data ─ warm-up ─ measure                        (inputs.py)
    ceiling                build ─ warm-up ─ measure                       (ceilings.py)
    collective             build ─ measure                                 (collectives.py)
    own_step               build ─ warm-up ─ measure                       (own_step.py)

A program that compiles does so between build and weights, with one batch, in phase compile. A task
logs its results and raises what ends it early (worker/report/outcomes.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

from cubemesh.data.feed import Feed
from cubemesh.detection import detects
from cubemesh.detection.labels import grid_of
from cubemesh.frameworks.ceiling_search import REST_S, try_out
from cubemesh.frameworks.contract.program import Program, Unsupported
from cubemesh.measure.telemetry.telemetry import Telemetry
from cubemesh.measure.validity import window_warnings
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.work import LINK_OPERATIONS, Ceiling, FirstSteps, Input, Stage, Train
from cubemesh.training.first_steps import first_steps as record_first_steps
from cubemesh.training.loop import Training
from cubemesh.training.pausing import PauseRequest
from cubemesh.worker.run import ceilings, checkpointing, collectives, inputs
from cubemesh.worker.run.inference import infer
from cubemesh.worker.run.load_test import infer_load
from cubemesh.worker.run.own_step import own_step
from cubemesh.worker.run.program_lifecycle import program_for
from cubemesh.worker.run.steps import measure_steps
from cubemesh.worker.run.task import (
    Task,
    log_machine_warnings,
    network_of,
    start_meters,
    time_steps,
)


def train_steps(task: Task) -> None:
    """Measure training steps: forward, backward, update."""
    measure_steps(task, lambda program: program.train_step)


def forward(task: Task) -> None:
    """Measure forward passes with the loss."""
    measure_steps(task, lambda program: program.forward)


def forward_backward(task: Task) -> None:
    """Measure forward and backward passes without an update."""
    measure_steps(task, lambda program: program.forward_backward)


def train(task: Task) -> None:
    """Train over epochs, with an evaluation after each."""
    work, log = cast(Train, task.spec.work), task.log
    sync = strategy(task.spec.program.sync)
    meters = start_meters(task)
    network = network_of(work)
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        validation = inputs.open_split(task.spec, network, "validation")
        inputs.log_generated(log, source)
        begin = checkpointing.beginning(task.spec, task.group, log)
        checkpointing.save_vocabulary(task.spec, task.group, begin, source)
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
        writer = checkpointing.training_writer(task.spec, task.group, begin)
        own = (*meters, inputs.InputWaitMeter(feed))
        with Telemetry(log, task.usable_cores, meters=own) as telemetry:
            started = time.perf_counter()
            training = Training(
                program=program,
                feed=feed,
                validation=validation,
                work=work,
                log=log,
                group=task.group,
                waited=task.waited,
                devices=task.spec.placement.devices,
                writer=writer,
                history=begin.history,
                same_weights=sync.same_weights,
                one_model=sync.one_model(),
                grid=grid_of(network) if detects(network) else None,
                pause=PauseRequest(_path(task.pause_file), task.group),
            )
            windows = training.run()
            ended = time.perf_counter()
        log_machine_warnings(telemetry, task.gpu_processes, task.log, started, ended)
        if windows:  # none where it resumed at its end
            telemetry.log_energy(windows, sum(w.samples for w in windows))
        inputs.log_padding(log, source)
        inputs.log_images(log, (source, feed.tried), (validation, training.evaluated_samples()))
        for warning in window_warnings(windows) if windows else ():
            log.warning(warning)


def infer_precision(task: Task) -> None:
    """Train a network, then time and score it in every precision; the builder of plans, half of
    what a worker would import, is imported by this kind of work only."""
    from cubemesh.worker.run import precision_front

    precision_front.infer_precision(task)


def first_steps(task: Task) -> None:
    """Record the first steps of a training."""
    work, log = cast(FirstSteps, task.spec.work), task.log
    sync = strategy(task.spec.program.sync)
    network = network_of(work)
    if detects(network):
        raise Unsupported(
            f"Replicas are compared by right answers, and {network.name} detects boxes. Choose a "
            "network that classifies."
        )
    with log.phase("data"):
        source = inputs.open_split(task.spec, network, "train")
        validation = inputs.open_split(task.spec, network, "validation")
        feed = inputs.feed(task.spec, source, task.usable_cores, group=task.group)
    with program_for(task, network, feed) as program:
        record_first_steps(
            program,
            feed,
            validation,
            work,
            log,
            task.group,
            evaluates=sync.same_samples or sync.collective_passes,
        )


def input_stage(task: Task) -> None:
    """Measure one stage of the input pipeline; a step is a batch passing through it."""
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
            host, step = inputs.HostClock(program.synchronize), _placing(program, feed, work.stage)
            time_steps(task, meters, host, step, samples)
    else:

        def take() -> None:
            next(feed)

        with closing(feed):
            time_steps(task, meters, inputs.HostClock(), take, samples)
    if work.stage != "copy":
        inputs.log_images(log, (source, feed.tried))
        inputs.warn_if_still_cached(task.spec, log, source)


def _placing(program: Program, feed: Feed, stage: Stage) -> Callable[[], None]:
    """A step that places the same batch again, or the next one for decoding."""
    if stage == "copy":
        batch = next(feed)
        return lambda: program.place(batch)
    return lambda: program.place(next(feed))


def ceiling(task: Task) -> None:
    """Measure the fastest and the sustained rate of one elementary operation, or the links of all
    devices."""
    if cast(Ceiling, task.spec.work).operation in LINK_OPERATIONS:
        with task.log.phase("measure"):
            ceilings.measure_links(task.spec, task.framework, task.device, task.gpu_uuids, task.log)
        return
    meters = start_meters(task)
    with task.log.phase("build"):
        program = ceilings.build(task.spec, task.framework.build_ceiling, task.device, task.threads)
        trial = try_out(program, 0.0 if task.device == "cpu" else REST_S)
    measured, telemetry = time_steps(task, meters, program, program.call, samples_per_step=1)
    telemetry.log_energy(measured.windows, None)
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
    telemetry.log_utilization(started, ended)


TASKS: dict[str, Callable[[Task], None]] = {
    "train_steps": train_steps,
    "forward": forward,
    "forward_backward": forward_backward,
    "infer": infer,
    "infer_load": infer_load,
    "infer_precision": infer_precision,
    "train": train,
    "first_steps": first_steps,
    "input": input_stage,
    "ceiling": ceiling,
    "collective": collective,
    "own_step": own_step,
}
"""Kind of work → its task: one for each of `WORK_KINDS`."""


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
