"""What a worker does for each kind of work: a table of tasks, built from the other rooms' parts.

    train_steps, forward   data ─ build ─ weights ─ warm-up ─ measure      (measure/timer.py)
    train                  data ─ build ─ weights ─ epochs, evaluations    (training/loop.py)
    ceiling                build ─ warm-up ─ measure                       (measure/timer.py)

Between build and weights, a program that compiles does so, with one batch, in phase compile. A task
says what it finds to its log and raises what ends it (worker/outcomes.py).

Peak memory is the program's own count where its device keeps one. On the CPU it is the most that
the process held from the loading of the weights on, less what it held, data and all, before the
program was built, and less what compiling it has left in the process; the kernel counts it
(worker/memory.py), so nothing is slowed down.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import cast

from cubemesh import networks
from cubemesh.data import Source, disk, input_threads, open_for
from cubemesh.data.base import Split
from cubemesh.data.feed import Feed, placed_batches
from cubemesh.data.sequences import Sequences
from cubemesh.frameworks.base import (
    Batch,
    BuildRequest,
    CeilingProgram,
    Compiles,
    Diverged,
    Framework,
    OutOfMemory,
    Program,
    ScalesLoss,
    Unsupported,
)
from cubemesh.frameworks.ceilings import try_out
from cubemesh.measure.figures import figures
from cubemesh.measure.telemetry import Meter, Telemetry, idle_power, open_meters
from cubemesh.measure.timer import Measured, measure
from cubemesh.measure.validity import judge
from cubemesh.model.record import Figure
from cubemesh.model.spec import Ceiling, NetworkWork, RunSpec, Train
from cubemesh.networks.graph import Network
from cubemesh.parallel import exchanges
from cubemesh.training.loop import train as train_epochs
from cubemesh.units import format_bytes
from cubemesh.worker import memory
from cubemesh.worker.events import EventLog

RATES = {"FLOP/s": ("rate_flops_per_s", "FLOP/s"), "byte/s": ("rate_bytes_per_s", "B/s")}
"""Unit of a ceiling → the name of its figure, and the figure's unit."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A supported spec, and with what it is to be done."""

    spec: RunSpec
    framework: Framework
    device: str
    threads: int
    usable_cores: float
    """Cores' worth of time this process is granted."""
    gpu_uuid: str | None = None
    """The GPU whose utilisation is sampled; None for none."""
    log: EventLog


def train_steps(task: Task) -> None:
    """Measure training steps: forward, backward, update."""
    _steps(task, lambda program: program.train_step)


def forward(task: Task) -> None:
    """Measure forward passes with the loss."""
    _steps(task, lambda program: program.forward)


def train(task: Task) -> None:
    """Train over epochs, with an evaluation after each."""
    work, log = cast(Train, task.spec.work), task.log
    meters = _meters(task)
    network = _network(work)
    with log.phase("data"):
        sources = _open(work, network, "train"), _open(work, network, "validation")

    def sample() -> Batch:
        return next(Feed(sources[0], work.batch_per_device, work.seed).epoch(0))

    with _built(task, network, sample) as program:
        with Telemetry(log, task.usable_cores, meters=meters) as telemetry:
            started = time.perf_counter()
            windows = train_epochs(
                program, *sources, work, log, task.spec.program.data_on, _input_threads(task)
            )
            ended = time.perf_counter()
        telemetry.check_host(started, ended)
        telemetry.keep_energy(windows, sum(w.samples for w in windows))
        for warning in judge(windows) if windows else ():
            log.warning(warning)


def ceiling(task: Task) -> None:
    """Measure the rate of one elementary operation: at its fastest, in the first moments, and as
    it goes on. Reading a disk takes no framework: a scripted program alone plays it."""
    work, program_settings = cast(Ceiling, task.spec.work), task.spec.program
    meters = _meters(task)
    with task.log.phase("build"):
        program: CeilingProgram
        if work.operation == "disk_read" and program_settings.script is None:
            program = disk.build(work)
        else:
            program = task.framework.build_ceiling(
                work, program_settings, task.device, task.threads
            )
        trial = try_out(program)
    measured, telemetry = _timed(task, meters, program, program.call, samples_per_step=1)
    telemetry.keep_energy(measured.windows, None)
    calls = figures(measured.windows, wall_s=0.0)["throughput_per_s"]
    name, unit = RATES[program.unit]
    rate = Figure(
        value=calls.value * program.work_per_call,
        unit=unit,
        low=None if calls.low is None else calls.low * program.work_per_call,
        high=None if calls.high is None else calls.high * program.work_per_call,
        n=calls.n,
        method=program.what,
    )
    task.log.figure(name, rate)
    best_s = min(trial.call_s, *(w.step_s for w in measured.windows))
    fastest = Figure(
        value=program.work_per_call / best_s,
        unit=unit,
        n=trial.groups + calls.n,
        method=program.what,
    )
    task.log.figure(name.replace("rate", "fastest"), fastest)
    if isinstance(program, disk.DiskRead):
        if (doubt := program.doubt()) is not None:
            task.log.warning(doubt)
        program.close()


TASKS: dict[str, Callable[[Task], None]] = {
    "train_steps": train_steps,
    "forward": forward,
    "train": train,
    "ceiling": ceiling,
}
"""Kind of work → its task: one for each of `WORK_KINDS`."""


def _steps(task: Task, step_of: Callable[[Program], Callable[[object], None]]) -> None:
    work, log = cast(NetworkWork, task.spec.work), task.log
    meters = _meters(task)
    network = _network(work)
    with log.phase("data"):
        source = _open(work, network, "train")
        threads = _input_threads(task)
        feed = Feed(source, work.batch_per_device, work.seed, threads=threads)
    with closing(feed), _built(task, network, lambda: next(feed.epoch(0))) as program:
        queue = step_of(program)
        batches = placed_batches(program, feed, task.spec.program.data_on)

        def step() -> None:
            queue(next(batches))

        measured, telemetry = _timed(
            task, meters, program, step, samples_per_step=work.batch_per_device
        )
        telemetry.keep_energy(measured.windows, sum(w.samples for w in measured.windows))
        if task.spec.program.data_on == "host":
            log.figure("input_wait_s", _input_wait(measured, feed))
        if isinstance(feed.source, Sequences):
            log.figure("tokens_per_s", _tokens(measured, feed.source))
        # Once, at the end: reading a loss waits for the device, and a loss that has stopped being
        # a number does not become one again.
        _check_loss(program)


def _input_threads(task: Task) -> int:
    """None are needed where one batch lies on the device for good."""
    work, program = cast(NetworkWork, task.spec.work), task.spec.program
    if program.data_on == "device":
        return 0
    return input_threads(work.data, program.input_threads, task.usable_cores)


def _input_wait(measured: Measured, feed: Feed) -> Figure:
    """What a step waited for its minibatch, in the mean; without threads, what making it took."""
    steps = sum(w.steps for w in measured.windows)
    waited_s = feed.waited_s(measured.started, measured.ended)
    method = f"by {feed.threads} threads ahead of the step" if feed.threads else "made in the step"
    return Figure(value=waited_s / steps, unit="s", n=steps, method=method)


def _tokens(measured: Measured, source: Sequences) -> Figure:
    """Positions that count a second: samples a second times those of a sample, in the mean."""
    rate, each = figures(measured.windows, wall_s=0.0)["throughput_per_s"], source.tokens_per_sample
    return Figure(
        value=rate.value * each,
        unit="tokens/s",
        low=None if rate.low is None else rate.low * each,
        high=None if rate.high is None else rate.high * each,
        n=rate.n,
    )


def _meters(task: Task) -> tuple[Meter, ...]:
    """What is read beside the run. A GPU's power is read here already, before the run touches it:
    where it has no work, that is its idle power."""
    meters = open_meters(task.gpu_uuid)
    idle = idle_power(meters)
    if idle is not None:
        task.log.figure("gpu_idle_watts", idle)
    return meters


def _timed(
    task: Task,
    meters: Sequence[Meter],
    program: Program | CeilingProgram,
    step: Callable[[], None],
    samples_per_step: int,
) -> tuple[Measured, Telemetry]:
    """Time `step`, with the machine watched beside it."""
    with Telemetry(task.log, task.usable_cores, meters=meters) as telemetry:
        measured = measure(
            step,
            program.synchronize,
            program.clock,
            samples_per_step=samples_per_step,
            effort=task.spec.effort,
            log=task.log,
        )
    telemetry.check_host(measured.started, measured.ended)
    telemetry.keep_utilisation(measured.started, measured.ended)
    return measured, telemetry


def _network(work: NetworkWork) -> Network:
    network = networks.build_for(work)
    if work.batch_per_device < network.smallest_batch:
        raise Unsupported(
            f"batch_per_device={work.batch_per_device} is too small for {network.name} on images "
            f"of {network.inputs[0].shape[-1]} pixels: a batch normalisation there sees a single "
            f"position of each sample. Set batch_per_device={network.smallest_batch} or more."
        )
    return network


@contextmanager
def _built(task: Task, network: Network, sample: Callable[[], Batch]) -> Iterator[Program]:
    """A program of `network` that holds its initial weights; one that compiles is compiled for
    `sample()`. The most memory it held until the end is said there. An error leaves it as it is,
    because the process ends with it."""
    spec, log = task.spec, task.log
    work = cast(NetworkWork, spec.work)
    before_bytes = memory.held_bytes()
    with log.phase("build"):
        request = BuildRequest(
            network=network,
            work=work,
            placement=spec.placement,
            program=spec.program,
            exchange=exchanges.make(spec.program.exchange),
            device=task.device,
            threads=task.threads,
        )
        program = task.framework.build(request)
    if isinstance(program, Compiles):
        compiling_bytes = _compile(program, sample, log)
        before_bytes = None if before_bytes is None else before_bytes + compiling_bytes
    with log.phase("weights"):
        program.load(network.draw(work.seed))
    since = "the weights were loaded" if memory.reset_peak() else "the process began"
    yield program
    _say_loss_scale(program, log)
    peak = _peak_memory(program, before_bytes, since)
    if peak is not None:
        log.figure("peak_memory_bytes", peak)
        _check_limit(peak, spec.effort.memory_limit_bytes)
    program.close()


def _say_loss_scale(program: Program, log: EventLog) -> None:
    """What the loss was multiplied by in the end, for a program that does so."""
    if isinstance(program, ScalesLoss) and (scaled := program.loss_scale()) is not None:
        value, method = scaled
        log.figure("loss_scale", Figure(value=value, unit="", method=method))


def _check_limit(peak: Figure, limit_bytes: int | None) -> None:
    """What the kernel refuses counts whole mappings, with room for stacks; a limit that was asked
    for holds to the byte."""
    if limit_bytes is not None and peak.value > limit_bytes:
        raise OutOfMemory(f"it held {format_bytes(peak.value)}, past {format_bytes(limit_bytes)}")


def _compile(program: Program, sample: Callable[[], Batch], log: EventLog) -> int:
    """Compile a program that offers it; how many bytes more the process holds after it."""
    assert isinstance(program, Compiles)
    before_bytes = memory.held_bytes()
    with log.phase("compile") as phase:
        phase.cached = program.compile(program.place(sample()))
    after_bytes = memory.held_bytes()
    if before_bytes is None or after_bytes is None:
        return 0
    return max(0, after_bytes - before_bytes)


def _peak_memory(program: Program, before_bytes: int | None, since: str) -> Figure | None:
    counted = program.peak_memory_bytes()
    if counted is not None:
        return Figure(value=counted, unit="B", method="the framework's own count")
    held_bytes = memory.peak_held_bytes()
    if held_bytes is None or before_bytes is None:
        return None
    method = f"most that the process held since {since}, less what it held before building"
    if isinstance(program, Compiles):
        method += " and what compiling has left"
    return Figure(value=max(0, held_bytes - before_bytes), unit="B", method=method)


def _open(work: NetworkWork, network: Network, split: Split) -> Source:
    return open_for(
        network,
        work.data,
        work.data_path,
        split,
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
