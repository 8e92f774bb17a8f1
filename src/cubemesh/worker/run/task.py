"""Task: a supported spec with its framework, device and log, and the parts that all tasks share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cubemesh import networks
from cubemesh.errors import DataError
from cubemesh.frameworks.contract.group import Group, SingleProcessGroup
from cubemesh.frameworks.contract.program import (
    CeilingProgram,
    Diverged,
    Framework,
    Program,
    Unsupported,
)
from cubemesh.measure.attribution.profile_windows import StepProfiler
from cubemesh.measure.energy.ranks import IDLE
from cubemesh.measure.log import Log
from cubemesh.measure.telemetry.gpu import SM_CLOCK, THROTTLE
from cubemesh.measure.telemetry.gpu_processes import GpuProcessWatch
from cubemesh.measure.telemetry.telemetry import Meter, Telemetry, idle_power, open_meters
from cubemesh.measure.timing.timer import FreeRunning, Lockstep, Measured, Pace, measure
from cubemesh.measure.validity import (
    CLOCK_LOSS,
    changing_clock,
    clock_loss,
    shared_gpu,
    throttled,
)
from cubemesh.networks.graph import Network
from cubemesh.parallel.strategies import strategy
from cubemesh.parallel.waits import WaitingGroup, Waits
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.work import AccumulatedWork, Forward, NetworkWork, Train, TrainSteps
from cubemesh.worker.report.events import EventLog
from cubemesh.worker.run import inputs


@dataclass(frozen=True, kw_only=True)
class Task:
    """A supported spec and everything needed to run it."""

    spec: RunSpec
    framework: Framework
    device: str
    threads: int
    usable_cores: float
    """CPU time that this process is granted, in cores."""
    gpu_uuid: str | None = None
    """The GPU to sample; None on the CPU."""
    gpu_uuids: tuple[str, ...] = ()
    """The GPUs of all devices, where known."""
    gpu_processes: GpuProcessWatch = field(default_factory=lambda: GpuProcessWatch(None))
    """Other processes on that GPU."""
    log: EventLog
    group: Group = field(default_factory=SingleProcessGroup)
    """The ranks of this run."""
    waited: Callable[[], float | None] | None = None
    """Takes the seconds for which this rank waited for others; None where that is not measured."""
    pause_file: str | None = None
    """A training pauses when this file exists."""
    folder: str = ""
    """Folder for files that are stored with the record."""
    limit_bytes: int | None = None
    """Memory limit of the run, where known."""


def waiting_group(
    spec: RunSpec, group: Group, device: str
) -> tuple[Group, Callable[[], float | None] | None]:
    """The group of the ranks of `spec`, which measures how long this rank waits for others, and the
    function that takes the seconds. `group` and None where waits cannot be measured: of a GPU,
    which waits without its host, and of a strategy that does not wait in collectives alone."""
    sync = strategy(spec.program.sync)
    steps = isinstance(spec.work, (TrainSteps, Forward, Train))
    hidden = sync.blocking and device != "cpu"
    if group.size == 1 or not steps or not sync.profiled or hidden:
        return group, None
    waits = Waits(blocking=sync.blocking)
    return WaitingGroup(group, waits), waits.take


def start_meters(task: Task) -> tuple[Meter, ...]:
    """The meters of the run. Logs the GPU's idle power, read before the run uses it."""
    meters = open_meters(task.gpu_uuid)
    idle = idle_power(meters)
    if idle is not None:
        task.log.figure(IDLE, idle)
    return meters


def time_steps(
    task: Task,
    meters: Sequence[Meter],
    program: Program | CeilingProgram | inputs.HostClock,
    step: Callable[[], None],
    samples_per_step: int,
    attributed: StepProfiler | None = None,
) -> tuple[Measured, Telemetry]:
    """Time `step`, with telemetry."""
    with Telemetry(task.log, task.usable_cores, meters=meters) as telemetry:
        measured = measure(
            step,
            program.synchronize,
            program.clock,
            samples_per_step=samples_per_step,
            budget=task.spec.budget,
            log=task.log,
            after_window=None if attributed is None else attributed.after_window,
            pace=_pace(task),
            waited=task.waited,
        )
    log_machine_warnings(telemetry, task.gpu_processes, task.log, measured.started, measured.ended)
    telemetry.log_utilization(measured.started, measured.ended)
    return measured, telemetry


def log_machine_warnings(
    telemetry: Telemetry, gpu_processes: GpuProcessWatch, log: Log, started: float, ended: float
) -> None:
    """Log warnings about the machine between two readings of `time.perf_counter()`: a busy host, a
    shared GPU, throttling, changing clocks; and the clock that throttling took. Call it after the
    telemetry's block, while the run still holds its context on the GPU."""
    telemetry.check_host(started, ended)

    reasons = dict(telemetry.points(THROTTLE, started, ended))
    mhz = dict(telemetry.points(SM_CLOCK, started, ended))
    for warning in (
        shared_gpu(gpu_processes.others() or ()),
        throttled(list(reasons.values())),
        changing_clock(list(mhz.values())),
    ):
        if warning is not None:
            log.warning(warning)
    highest = max((value for _, value in telemetry.sampled.get(SM_CLOCK, ())), default=0.0)
    lost = clock_loss(reasons, mhz, highest)
    if lost is not None:
        log.figure(CLOCK_LOSS, lost)


def _pace(task: Task) -> Pace:
    """Pace of the ranks: lockstep or free-running."""
    if strategy(task.spec.program.sync).free_running:
        return FreeRunning(task.group.rank, task.group.poll_flag)
    return Lockstep(task.group.broadcast_object)


def network_of(work: NetworkWork) -> Network:
    """The network of a work; Unsupported where its batch is too small, DataError for an own network
    that cannot be run."""
    network = networks.build_for(work)
    if work.own_network is not None and work.own_network.fault:
        raise DataError(work.own_network.fault)
    small = network.smallest_batch
    if isinstance(work, AccumulatedWork) and work.micro_batch < small <= work.batch_per_device:
        raise Unsupported(
            f"accumulation_steps={work.accumulation_steps} makes micro-batches of "
            f"{work.micro_batch} of batch_per_device={work.batch_per_device}, and {network.name} "
            f"needs {small}: its batch normalization has one position per sample. "
            "Set fewer steps, or a larger batch size."
        )
    if work.batch_per_device < network.smallest_batch:
        raise Unsupported(
            f"batch_per_device={work.batch_per_device} is too small for {network.name} on images "
            f"of {network.inputs[0].shape[-1]} pixels, where batch normalization has one position "
            f"per sample. Set batch_per_device={network.smallest_batch} or more."
        )
    return network


def check_loss(program: Program) -> None:
    """Diverged where the loss is not finite."""
    loss = program.loss()
    if not math.isfinite(loss):
        raise Diverged(
            f"the loss became {loss}: the steps were timed, but the training diverged. Lower "
            "learning_rate."
        )
