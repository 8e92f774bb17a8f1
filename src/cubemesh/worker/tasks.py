"""What a worker does for each kind of work: a table of tasks, built from the other rooms' parts.

    train_steps, forward   build ─ weights ─ data ─ (warm-up ─ measure: measure/timer.py)
    train                  build ─ weights ─ data ─ (epochs: training/loop.py)
    ceiling                build ─ (warm-up ─ measure)

A task says what it finds to its log and raises what ends it (worker/outcomes.py).

Peak memory is the program's own count where its device keeps one. On the CPU it is the most that
was resident from the loading of the weights on, less what was resident before the program was
built; the kernel counts it (worker/memory.py), so nothing is slowed down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import cast

from cubemesh import networks
from cubemesh.data import Source, open_source
from cubemesh.data.base import Split
from cubemesh.data.feed import Feed, placed_batches
from cubemesh.frameworks.base import BuildRequest, CeilingProgram, Diverged, Program
from cubemesh.measure.timer import measure
from cubemesh.model.record import Figure
from cubemesh.model.spec import Ceiling, NetworkWork, RunSpec, Train
from cubemesh.networks.graph import Network
from cubemesh.parallel import exchanges
from cubemesh.training.loop import train as train_epochs
from cubemesh.worker import memory
from cubemesh.worker.events import EventLog


@dataclass(frozen=True, kw_only=True)
class Task:
    """A supported spec, and with what it is to be done."""

    spec: RunSpec
    framework: ModuleType
    device: str
    threads: int
    log: EventLog


def train_steps(task: Task) -> None:
    """Measure training steps: forward, backward, update."""
    _steps(task, lambda program: program.train_step)


def forward(task: Task) -> None:
    """Measure forward passes with the loss."""
    _steps(task, lambda program: program.forward)


def train(task: Task) -> None:
    """Train over epochs, with an evaluation after each."""
    work = cast(Train, task.spec.work)
    with _built(task) as (network, program):
        with task.log.phase("data"):
            train_source = _open(work, network, "train")
            validation_source = _open(work, network, "validation")
        with _peak_memory(task, program):
            train_epochs(program, train_source, validation_source, work, task.log)


def ceiling(task: Task) -> None:
    """Measure the rate of one elementary operation."""
    work = cast(Ceiling, task.spec.work)
    with task.log.phase("build"):
        program: CeilingProgram = task.framework.build_ceiling(
            work, task.spec.program, task.device, task.threads
        )
    measured = measure(
        program.call,
        program.synchronize,
        program.clock,
        samples_per_step=1,
        effort=task.spec.effort,
        log=task.log,
    )


TASKS: dict[str, Callable[[Task], None]] = {
    "train_steps": train_steps,
    "forward": forward,
    "train": train,
    "ceiling": ceiling,
}
"""Kind of work → its task: one for each of `WORK_KINDS`."""


def _steps(task: Task, step_of: Callable[[Program], Callable[[object], None]]) -> None:
    work, log = cast(NetworkWork, task.spec.work), task.log
    with _built(task) as (network, program):
        with log.phase("data"):
            source = _open(work, network, "train")
            feed = Feed(source, work.batch_per_device, work.seed)
            batches = placed_batches(program, feed, task.spec.program.data_on)
        queue = step_of(program)

        def step() -> None:
            queue(next(batches))

        with _peak_memory(task, program):
            # A network whose first loss is not a number is not worth warming up.
            step()
            _check_loss(program)
            measure(
                step,
                program.synchronize,
                program.clock,
                samples_per_step=work.batch_per_device,
                effort=task.spec.effort,
                log=log,
            )
        _check_loss(program)


@contextmanager
def _built(task: Task) -> Iterator[tuple[Network, Program]]:
    """The spec's network and a program of it that holds its initial weights."""
    work, spec = cast(NetworkWork, task.spec.work), task.spec
    with task.log.phase("build"):
        network = networks.build(work.network, work.image_size, work.classes)
        request = BuildRequest(
            network=network,
            work=work,
            placement=spec.placement,
            program=spec.program,
            exchange=exchanges.make(spec.program.exchange),
            device=task.device,
            threads=task.threads,
        )
        program: Program = task.framework.build(request)
    with task.log.phase("weights"):
        program.load(network.draw(work.seed))
    yield network, program
    program.close()


def _open(work: NetworkWork, network: Network, split: Split) -> Source:
    channels, height, width = network.inputs[0].shape
    classes = network.targets[0].classes
    assert classes is not None
    return open_source(
        work.data,
        work.data_path,
        split,
        shape=(channels, height, width),
        classes=classes,
        seed=work.seed,
        samples_needed=work.batch_per_device,
    )


def _check_loss(program: Program) -> None:
    loss = program.loss()
    if not math.isfinite(loss):
        raise Diverged(
            f"the loss became {loss}: the steps are still timed, but they train nothing. Lower "
            "learning_rate."
        )
