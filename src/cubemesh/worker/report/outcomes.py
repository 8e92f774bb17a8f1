"""Outcome of a run that ended with an exception.

| raised | outcome |
|---|---|
| `Unsupported`, `UsageError`: the spec cannot be run | unsupported |
| `OutOfMemory`, `MemoryError`, and the framework's own out-of-memory errors | oom |
| `BusyError` | unsupported, with the fact `in_use`: the runner ends with that error |
| `Paused` | unsupported, with the fact `paused`: the runner stores no record of it |
| `Diverged` | diverged |
| `NotInstalled`, and `ModuleNotFoundError` of the framework itself | not_installed |
| `DataError`: a fault of the files, not of the spec | crashed, with the error's message |
| `ReplicasDiffer`: a fault of the machine | the same |
| `UserCodeError`: a fault of the user's own code | the same, with the traceback of the code |
| anything else | crashed, with the last lines of the traceback |
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace

from cubemesh import networks
from cubemesh.errors import BusyError, DataError, UsageError
from cubemesh.frameworks import entry
from cubemesh.frameworks.contract.collectives import extent, needs_bytes
from cubemesh.frameworks.contract.program import (
    Diverged,
    NotInstalled,
    OutOfMemory,
    ReplicasDiffer,
    Unsupported,
)
from cubemesh.networks.memory import largest_batch
from cubemesh.parallel.strategies import strategy
from cubemesh.schema.collective import Collective
from cubemesh.schema.forecast import MemoryForecast
from cubemesh.schema.outcome import Outcome, Status
from cubemesh.schema.spec import RunSpec
from cubemesh.schema.work import AccumulatedWork, NetworkWork
from cubemesh.termination import PROCESS_LIMIT, can_start_threads
from cubemesh.training.pausing import Paused
from cubemesh.units import format_bytes
from cubemesh.user_code import UserCodeError

TRACEBACK_LINES = 12


def outcome_from_error(
    error: BaseException,
    spec: RunSpec,
    *,
    limit_bytes: int | None,
    is_out_of_memory: Callable[[BaseException], bool],
    device: str = "cpu",
) -> Outcome:
    """Outcome of `error`, raised while a worker ran `spec` on `device`. `limit_bytes` is the run's
    memory limit, None where unknown."""
    if isinstance(error, NotInstalled):
        return Outcome(status=Status.NOT_INSTALLED, message=str(error))
    if isinstance(error, (Unsupported, UsageError)):
        return Outcome(status=Status.UNSUPPORTED, message=str(error))
    if isinstance(error, BusyError):
        return Outcome(status=Status.UNSUPPORTED, message=str(error), facts={"in_use": True})
    if isinstance(error, Paused):
        return Outcome(status=Status.UNSUPPORTED, message=str(error), facts={"paused": True})
    if isinstance(error, Diverged):
        return Outcome(status=Status.DIVERGED, message=str(error))
    if isinstance(error, (OutOfMemory, MemoryError)) or is_out_of_memory(error):
        return _out_of_memory(error, spec, limit_bytes, device)
    framework = entry(spec.program.framework)
    if isinstance(error, ModuleNotFoundError) and error.name in framework.modules:
        return not_installed(spec.program.framework)
    if isinstance(error, UserCodeError):
        facts = {"traceback": _traceback(error)} if error.__cause__ else {}
        return Outcome(status=Status.CRASHED, message=str(error), facts=facts)
    if isinstance(error, (DataError, ReplicasDiffer)):
        return Outcome(status=Status.CRASHED, message=str(error))
    return _crashed(error)


def not_installed(framework: str) -> Outcome:
    """Outcome of a run without its framework, with the command that installs it."""
    return Outcome(
        status=Status.NOT_INSTALLED,
        message=f"{framework} is not installed. Install it with: {entry(framework).install}, or "
        f"set a Python that has it: --python {framework}=PATH",
    )


def _crashed(error: BaseException) -> Outcome:
    words = str(error).strip().splitlines()
    first = f": {words[0].rstrip('.')}" if words else ""
    limited = isinstance(error, (BlockingIOError, RuntimeError)) and not can_start_threads()
    remedy = f" {PROCESS_LIMIT}" if limited else ""
    return Outcome(
        status=Status.CRASHED,
        message=f"the worker stopped with {type(error).__name__}{first}.{remedy}",
        facts={"traceback": _traceback(error)},
    )


def _traceback(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error.__cause__ or error)).rstrip().splitlines()
    return "\n".join(lines[-TRACEBACK_LINES:])


def _out_of_memory(
    error: BaseException, spec: RunSpec, limit_bytes: int | None, device: str
) -> Outcome:
    """Gives the forecast of the run's memory, the limit, and the batch size that should fit."""
    facts: dict[str, object] = {"error": str(error)[:500]}
    had = ""
    if limit_bytes is not None:
        facts["limit_bytes"] = limit_bytes
        had = f"{format_bytes(limit_bytes)} here"
    work = spec.work
    if isinstance(work, Collective):
        return _arrays_too_large(work, spec.placement.devices, device, had, facts)
    if not isinstance(work, NetworkWork):
        message = f"out of memory: {had}." if had else "out of memory."
        return Outcome(status=Status.OOM, message=message, facts=facts)
    network = networks.build_for(work)
    sync = strategy(spec.program.sync)

    def needed(batch: int) -> MemoryForecast:
        other = replace(spec, work=replace(work, batch_per_device=batch))
        return sync.memory(other, network, device)

    forecast_bytes = needed(work.batch_per_device).total_bytes
    facts["forecast_bytes"] = forecast_bytes
    sentence = f"out of memory: the forecast is {format_bytes(forecast_bytes)}"
    if limit_bytes is None:
        return Outcome(status=Status.OOM, message=f"{sentence}.", facts=facts)
    steps = work.accumulation_steps if isinstance(work, AccumulatedWork) else 1
    fits = largest_batch(needed, limit_bytes, steps)
    if fits < work.batch_per_device:
        facts["largest_batch_that_fits"] = fits
        advice = f"batch size {fits} should fit" if fits else "not even batch size 1 should fit"
        return Outcome(status=Status.OOM, message=f"{sentence}, {had}; {advice}.", facts=facts)
    message = f"{sentence}, below the {had}, but it did not fit; try a smaller batch size."
    return Outcome(status=Status.OOM, message=message, facts=facts)


def _arrays_too_large(
    work: Collective, devices: int, device: str, had: str, facts: dict[str, object]
) -> Outcome:
    """Gives the memory of a sweep's arrays on one device, and the size that should fit."""
    on_cpu = device == "cpu"
    largest = extent(work, max(work.sizes_bytes), devices)
    needed = needs_bytes(work, largest, on_cpu)
    facts["forecast_bytes"] = needed
    sentence = (
        f"out of memory: arrays for {format_bytes(largest.size_bytes)} of {work.collective} take "
        f"{format_bytes(needed)} on each device"
    )
    limit = facts.get("limit_bytes")
    if not isinstance(limit, int):
        return Outcome(status=Status.OOM, message=f"{sentence}.", facts=facts)
    fits = largest.size_bytes * limit // needed
    advice = (
        f"sizes up to {format_bytes(fits)} should fit" if needed > limit else "try a smaller one"
    )
    return Outcome(status=Status.OOM, message=f"{sentence}, {had}; {advice}.", facts=facts)
