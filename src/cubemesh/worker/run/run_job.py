"""Run of one job in one process; any error becomes an outcome, the last event.

The phases in order: `import` the framework (milliseconds if the server has done it), then those of
the work (work_kinds.py), under the memory limit from the first array on.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from cubemesh.data import input_threads
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.program import Capabilities, SupportsProcessSetup, Unsupported
from cubemesh.measure.telemetry.gpu_processes import GpuProcessWatch
from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.work import Ceiling, NetworkWork, Train
from cubemesh.worker.launch import ranks
from cubemesh.worker.launch.cpu_caches import cache_bytes
from cubemesh.worker.launch.memory_policy import apply_memory_settings
from cubemesh.worker.launch.pinning import pin, whole_cores
from cubemesh.worker.report.events import EventLog, events_path
from cubemesh.worker.report.heartbeat import heartbeat
from cubemesh.worker.report.limits import MemoryLimit
from cubemesh.worker.report.links import log_link
from cubemesh.worker.report.memory import available_bytes, private_writable_bytes
from cubemesh.worker.report.outcomes import outcome_from_error
from cubemesh.worker.run.alternation import alternate_programs
from cubemesh.worker.run.job_file import Job
from cubemesh.worker.run.task import Task, waiting_group
from cubemesh.worker.run.work_kinds import TASKS
from cubemesh.worker.validation import check_supported


def run_job(job: Job) -> Outcome:
    """Run `job` and write its events, the outcome last; returns the outcome."""
    origin = time.perf_counter() if job.origin is None else job.origin
    log = EventLog(events_path(Path(job.folder), job.rank), job.rank, origin)
    known = _Known()
    try:
        with heartbeat(log) if _is_watched(job.spec) else nullcontext():
            _run(job, log, known)
    except (Exception, SystemExit) as error:
        outcome = outcome_from_error(
            error,
            job.spec,
            limit_bytes=known.limit_bytes,
            is_out_of_memory=known.is_out_of_memory,
            device=known.device,
        )
        if outcome.status is Status.CRASHED and ranks.rank_from_env().ranks > 1:
            time.sleep(ranks.LOST_S)
    else:
        outcome = Outcome(status=Status.OK)
    log.outcome(outcome)
    log.close()
    return outcome


def _is_watched(spec: RunSpec) -> bool:
    """Whether the runner checks heartbeats: where ranks wait for one another, and where no time
    limit ends a hang."""
    return spec.placement.devices > 1 or isinstance(spec.work, Train)


@dataclass
class _Known:
    """State that the outcome of an error needs."""

    limit_bytes: int | None = None
    is_out_of_memory: Callable[[BaseException], bool] = lambda error: False
    device: str = "cpu"


def _run(job: Job, log: EventLog, known: _Known) -> None:
    spec = job.spec
    gpu_processes = GpuProcessWatch(job.gpu_uuid)  # before the framework uses the GPU
    with log.phase("import"):
        framework = entry(spec.program.framework).load()
        known.is_out_of_memory = framework.is_out_of_memory
        _set_up_process(spec)
        able = framework.capabilities()
    check_supported(spec, able)
    own = ranks.rank_from_env()
    device = choose_device(spec, able)
    kind = device.split(":")[0]
    here = own.local_ranks if own.ranks > 1 else spec.placement.devices
    needed = own.local_rank + 1 if own.ranks > 1 else here
    devices = ranks.devices_here(kind, needed, sum(d.startswith("cuda") for d in able.devices))
    driven = devices if own.ranks == 1 < here else ()
    if own.ranks > 1:
        device = devices[-1] if kind == "cuda" else "cpu"
    known.device = device
    shared_out = ranks.processors_of(job, on_cpu=device == "cpu")
    bound = len(shared_out) < here and ranks.bound_by_launcher(own)
    alone = dataclasses.replace(own, local_rank=0, local_ranks=1) if bound else own
    ranks.check_devices(1 if bound else here, len(shared_out), spec.placement.oversubscribe)
    if not bound and (warning := ranks.shared_cores(spec, len(shared_out))) is not None:
        log.warning(warning)
    usable_cores: float = job.usable_cores or len(os.sched_getaffinity(0))
    threads = spec.placement.threads or int(usable_cores)
    if max(own.ranks, len(driven)) > 1 and device == "cpu":
        processors = _cores(spec, alone, len(driven), shared_out)
        os.sched_setaffinity(0, processors)
        usable_cores = threads = len(processors)
        if isinstance(spec.work, Ceiling):  # is measured on one device
            threads //= max(1, len(driven))
    elif device != "cpu" and (processors := ranks.cores_near_gpu(job, own)):
        os.sched_setaffinity(0, processors)
        usable_cores = min(int(usable_cores), len(whole_cores(processors)))
        threads = spec.placement.threads or usable_cores
    else:
        processors = pin(spec.placement, threads)
    apply_memory_settings(spec.placement)
    log.started(
        host=socket.gethostname(),
        device=device,
        threads=threads,
        processors=processors,
        caches=cache_bytes(os.sched_getaffinity(0)) if device == "cpu" else None,
        devices=driven,
    )
    stacks = threads + _input_threads(spec, usable_cores)
    known.limit_bytes, limited = _memory_limit(job, device, stacks)
    with limited:
        group = ranks.join(framework, device, own, spec.placement.link)
        if group.size > 1 and not spec.placement.oversubscribe:
            ranks.check_bindings(group, processors if bound and device == "cpu" else ())
        waiting, waited = waiting_group(spec, group, device)
        task = Task(
            spec=spec,
            framework=framework,
            device=device,
            threads=threads,
            usable_cores=usable_cores,
            gpu_uuid=None if device == "cpu" else job.gpu_uuid,
            gpu_uuids=job.gpu_uuids,
            gpu_processes=gpu_processes if device != "cpu" else GpuProcessWatch(None),
            log=log,
            pause_file=job.pause_file,
            folder=job.folder,
            limit_bytes=known.limit_bytes,
            group=waiting,
            waited=waited,
        )
        (alternate_programs if spec.against else TASKS[spec.work.kind])(task)
        log_link(group, log)
        group.close()


def _set_up_process(spec: RunSpec) -> None:
    """Set the process up for each of its programs, before any queries devices."""
    programs = [spec.program]
    if spec.against is not None:
        programs.append(spec.against.program)
    for program in programs:
        framework = entry(program.framework).load()
        if isinstance(framework, SupportsProcessSetup):
            framework.setup_process(program)


def _input_threads(spec: RunSpec, usable_cores: float) -> int:
    """Maximum number of input threads: evaluation starts them again, and one may decode."""
    if not isinstance(spec.work, NetworkWork):
        return 0
    program = spec.program
    threads = input_threads(
        spec.work.data, program.input_threads, usable_cores, program.decode_location
    )
    return (program.decode_location == "device") + 2 * threads


def _cores(
    spec: RunSpec, own: ranks.RankInfo, driven: int, cores: tuple[int, ...]
) -> tuple[int, ...]:
    """The `cores` of this process: of its rank, or of all devices it drives."""
    if not driven:
        return ranks.own_cores(spec, own, cores)
    each = (
        ranks.RankInfo(rank=n, local_rank=n, ranks=driven, local_ranks=driven)
        for n in range(driven)
    )
    return tuple(sorted({core for one in each for core in ranks.own_cores(spec, one, cores)}))


def choose_device(spec: RunSpec, able: Capabilities) -> str:
    """Device of a supported spec: the framework's best of the requested kind."""
    wanted = spec.placement.device
    return next(d for d in able.devices if wanted in ("auto", d.split(":")[0]))


def _memory_limit(
    job: Job, device: str, stacks: int
) -> tuple[int | None, AbstractContextManager[None]]:
    """Memory limit of the run, where known, and its enforcement.

    A GPU refuses allocations by itself; on the CPU the kernel would kill the process. The stacks of
    `stacks` threads are allowed in addition.
    """
    asked = job.spec.budget.memory_limit_bytes
    if device.split(":")[0] != "cpu":
        return job.gpu_memory_bytes, nullcontext()
    if private_writable_bytes() is None:
        if asked is not None:
            raise Unsupported(
                f"memory_limit_bytes={asked}: this kernel does not report VmData in "
                "/proc/self/status, so memory cannot be limited. Leave it out."
            )
        return None, nullcontext()
    # A limit above the free memory would end with a kill, not with an error.
    free_bytes = available_bytes() // ranks.rank_from_env().local_ranks
    limit_bytes = free_bytes if asked is None else min(asked, free_bytes)
    return limit_bytes, MemoryLimit(limit_bytes, stacks)
