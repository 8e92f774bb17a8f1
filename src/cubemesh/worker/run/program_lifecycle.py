"""Lifecycle of a program: build, compile, load weights, run, report its peak memory, close.

Peak memory is the framework's own count where the device has one. On the CPU it is the peak of the
process from the loading of the weights on, less what the process held before the program was built
and what compiling has left; the kernel counts it (memory.py), so nothing is slowed down. Freed
memory is returned to the kernel before: otherwise the step would reuse it and seem to need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import cast

from cubemesh.batches import Batch
from cubemesh.data.feed import Feed
from cubemesh.frameworks.contract.program import (
    BuildRequest,
    Framework,
    OutOfMemory,
    Program,
    ReportsMemoryByKind,
    ReportsPrecision,
    SupportsCapture,
    SupportsCompilation,
    SupportsDecoding,
    SupportsLossScaling,
    SupportsMemoryRelease,
    Unsupported,
)
from cubemesh.networks.graph import Network
from cubemesh.networks.memory import (
    forecast,
    memory_settings,
    recomputable_segments,
    recomputed_flops,
    recomputed_segments,
)
from cubemesh.parallel import pipeline, staleness, strategies
from cubemesh.schema.record import Figure
from cubemesh.schema.warning import warn
from cubemesh.schema.work import ForwardBackward, NetworkWork, Train, TrainSteps
from cubemesh.units import format_bytes
from cubemesh.worker.report import memory
from cubemesh.worker.report.events import EventLog
from cubemesh.worker.run.task import Task


@contextmanager
def program_for(task: Task, network: Network, feed: Feed) -> Iterator[Program]:
    """A program of `network` for the batches of `feed`, which it decodes where the spec says so.
    The feed is closed at the end."""
    with (
        closing(feed),
        ready_program(task, network, lambda: next(feed.epoch(0))) as program,
        closing(feed),  # before the program
    ):
        if task.spec.program.decode_location == "device":
            assert isinstance(program, SupportsDecoding), "check_supported requires it"
            feed.decode_by(program)
        yield program


@contextmanager
def ready_program(task: Task, network: Network, sample: Callable[[], Batch]) -> Iterator[Program]:
    """A program of `network` with its initial weights, compiled for `sample()` if it compiles. Logs
    its peak memory at the end. After an error it is not closed: the process ends."""
    spec, framework, log = task.spec, task.framework, task.log
    work = cast(NetworkWork, spec.work)
    before_bytes = _held_bytes(framework)
    sync = strategies.make(spec.program.sync, task.group, spec.program.bucket_bytes)
    sync.configure(spec.program)
    recomputed = _recomputed(task, network)
    with log.phase("build"):
        request = BuildRequest(
            network=network,
            work=work,
            placement=spec.placement,
            program=spec.program,
            sync=sync,
            device=task.device,
            threads=task.threads,
            recomputed=recomputed,
            group=task.group,
        )
        program = framework.build(request)
    if isinstance(framework, ReportsPrecision) and (other := framework.other_precision(request)):
        remedy = (
            "State it where the figure is quoted, or set precision=fp16 and loss_scale=1024, which "
            "scales the loss."
        )
        log.warning(warn("precision-mismatch", other, remedy))
    if work.own_network is not None and work.own_network.untraced:
        log.warning(
            warn(
                "no-graph",
                f"{network.name} runs as it is: {work.own_network.untraced}.",
                "Ignore it where its total is what you want to know. A graph would add costs, time "
                "and memory by layer, fused kernels, other frameworks and plans.",
            )
        )
    if isinstance(program, SupportsCompilation):
        compiling_bytes = _compile(framework, program, sample, log)
        before_bytes = None if before_bytes is None else before_bytes + compiling_bytes
    if isinstance(program, SupportsCapture) and log.rank == 0:
        _log_implementations(program, log)
    with log.phase("weights"):
        program.load(network.draw(work.seed))
    since = "the weights were loaded" if memory.reset_peak() else "the process began"
    yield program
    _log_loss_scale(program, log)
    if isinstance(program, SupportsCapture) and program.missing_kernels:
        log.warning(
            warn(
                "missing-kernels",
                f"Some kernels were not used. {program.missing_kernels}",
                "Install a C++ compiler that works (apt install g++) or set CXX to one, or what "
                "the cause names, and run the same command again.",
            )
        )
    if isinstance(program, SupportsCapture) and program.not_captured:
        remedy = "Set framework=pytorch, or change what prevents the capture."
        if task.device == "cpu":
            remedy = (
                "Ignore it to use the fused operations of a CPU's step, or set framework=pytorch."
            )
        log.warning(
            warn("not-captured", f"The step is not captured: {program.not_captured}.", remedy)
        )
    peak = _peak_memory(program, before_bytes, since)
    if peak is not None:
        log.figure("peak_memory_bytes", peak)
        if isinstance(program, ReportsMemoryByKind) and isinstance(work, TrainSteps | Train):
            _log_memory_by_kind(program, peak, log)
            _log_memory_forecast(task, network, recomputed)
        _check_limit(peak, spec.budget.memory_limit_bytes)
    program.close()
    staleness.log_staleness(sync, log)
    pipeline.log_pipeline(sync, task.group, log)


def _log_memory_forecast(task: Task, network: Network, recomputed: tuple[str, ...]) -> None:
    """Log the memory of a training as it is forecast."""
    spec = task.spec
    kind = strategies.strategy(spec.program.sync)
    chosen = spec.program.checkpoint_activations != "none"
    if chosen and (kind.same_samples or kind.needs == "hybrid-by-layer"):
        return  # segments of the whole network are chosen, of which each rank has a part
    if chosen:
        settings = memory_settings(spec, task.device, network, kind.sharding(spec))
        settings["recomputed"] = recomputed
        needed = forecast(network, spec.batch_per_device or 1, **settings)
    else:
        needed = kind.memory(spec, network, task.device)
    task.log.figure("forecast_memory_bytes", Figure(value=needed.total_bytes, unit="B"))


def _recomputed(task: Task, network: Network) -> tuple[str, ...]:
    """The segments whose activations are computed again; logs them, with the operations that this
    takes. Ranks of different memory use the same."""
    spec = task.spec
    has_backward = isinstance(spec.work, TrainSteps | Train | ForwardBackward)
    if spec.program.checkpoint_activations == "none" or not has_backward:
        return ()
    if not recomputable_segments(network):
        raise Unsupported(
            f"checkpoint_activations={spec.program.checkpoint_activations}: {network.name} has no "
            "segment before its last that can be computed again. Leave it out."
        )
    limits = task.group.all_gather_object(task.limit_bytes)
    limit_bytes = min((limit for limit in limits if limit is not None), default=None)
    sharding = strategies.strategy(spec.program.sync).sharding(spec)
    chosen = recomputed_segments(network, spec, task.device, limit_bytes, sharding)
    again, whole = recomputed_flops(network, chosen)
    method = f"forward passes computed again, of the segments {', '.join(chosen)}"
    if not chosen:
        method = "the forecast of the memory is within the limit, so nothing is computed again"
        if limit_bytes is None:
            method = "the memory of the device is not known, so nothing is computed again"
    value = 100 * again / whole if whole else 0.0
    task.log.figure("recomputed_percent", Figure(value=value, unit="%", method=method))
    return chosen


def _log_implementations(program: SupportsCapture, log: EventLog) -> None:
    """Log the implementation of each segment, where several were tried."""
    if (chosen := program.implementations) is not None:
        log.breakdown(chosen)


def _log_loss_scale(program: Program, log: EventLog) -> None:
    """Log the final loss scale, for a program that scales the loss."""
    if isinstance(program, SupportsLossScaling) and (scaled := program.loss_scale()) is not None:
        value, method = scaled
        log.figure("loss_scale", Figure(value=value, unit="", method=method))


def _check_limit(peak: Figure, limit_bytes: int | None) -> None:
    """The kernel's limit counts whole mappings, with room for stacks; a requested limit is
    exact."""
    if limit_bytes is not None and peak.value > limit_bytes:
        raise OutOfMemory(
            f"peak memory {format_bytes(peak.value)} exceeds {format_bytes(limit_bytes)}"
        )


def _log_memory_by_kind(program: ReportsMemoryByKind, peak: Figure, log: EventLog) -> None:
    """Log what the peak consists of: arrays that exist between steps, and the rest."""
    kinds = program.memory_by_kind()
    for kind, size in kinds.items():
        figure = Figure(value=size, unit="B", method="the sizes of one device's arrays")
        log.figure(f"memory_{kind}_bytes", figure)
    method = "the peak less weights and optimizer state: activations, gradients, temporary arrays"
    held = kinds["weights"] + kinds["optimizer"]
    rest = Figure(value=max(0.0, peak.value - held), unit="B", method=method)
    log.figure("memory_activations_bytes", rest)
    if (lost := program.fragmentation_bytes()) is not None:
        method = "the allocator's peak less that of the arrays"
        log.figure("memory_fragmentation_bytes", Figure(value=lost, unit="B", method=method))


def _compile(
    framework: Framework, program: Program, sample: Callable[[], Batch], log: EventLog
) -> int:
    """Compile a program; the growth of the process's memory in bytes."""
    assert isinstance(program, SupportsCompilation)
    with log.phase("compile") as phase:
        placed = program.place(sample())
        before_bytes = _held_bytes(framework)
        phase.cached = program.compile(placed)
    after_bytes = _held_bytes(framework)
    if before_bytes is None or after_bytes is None:
        return 0
    return max(0, after_bytes - before_bytes)


def _held_bytes(framework: Framework) -> int | None:
    """Bytes that the process holds and uses."""
    if isinstance(framework, SupportsMemoryRelease):
        framework.release_freed_memory()
    memory.release_freed_memory()
    return memory.held_bytes()


def _peak_memory(program: Program, before_bytes: int | None, since: str) -> Figure | None:
    counted = program.peak_memory_bytes()
    if counted is not None:
        return Figure(value=counted, unit="B", method="the framework's own count")
    held_bytes = memory.peak_held_bytes()
    if held_bytes is None or before_bytes is None:
        return None
    method = f"peak of the process since {since}, less what it held before building"
    if isinstance(program, SupportsCompilation):
        method += " and what compiling left"
    return Figure(value=max(0, held_bytes - before_bytes), unit="B", method=method)
