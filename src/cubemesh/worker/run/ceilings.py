"""Ceilings in a worker: the program of a ceiling's operation, and its figures.

A framework multiplies and copies. Reading and writing a disk needs no framework, so the worker does
it for every framework, except a simulated one. Operations on links have no program: the framework
measures each pair of devices (`measure_links`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from cubemesh.data import disk
from cubemesh.frameworks.ceiling_search import Trial
from cubemesh.frameworks.contract.program import (
    CeilingProgram,
    Framework,
    SupportsLinks,
    Unsupported,
)
from cubemesh.measure.figures import figures
from cubemesh.measure.telemetry.gpu_set import pci_addresses
from cubemesh.schema.collective import LinkRate
from cubemesh.schema.machine import Unknown
from cubemesh.schema.record import Figure, Window
from cubemesh.schema.spec import ProgramSettings, RunSpec
from cubemesh.schema.work import DISK_OPERATIONS, Ceiling
from cubemesh.worker.launch.pinning import near_gpu
from cubemesh.worker.report.events import EventLog

RATES = {"FLOP/s": ("flops_per_s", "FLOP/s"), "byte/s": ("bytes_per_s", "B/s")}
"""Unit of a ceiling → suffix of its figures' names, and their unit."""

Build = Callable[[Ceiling, ProgramSettings, str, int], CeilingProgram]


def build(spec: RunSpec, by_framework: Build, device: str, threads: int) -> CeilingProgram:
    """The program of a ceiling."""
    work = cast(Ceiling, spec.work)
    if work.operation in DISK_OPERATIONS and spec.program.script is None:
        return disk.build(work)
    return by_framework(work, spec.program, device, threads)


def log_rates(
    log: EventLog, program: CeilingProgram, trial: Trial, windows: Sequence[Window]
) -> None:
    """Log the sustained rate over `windows` and the fastest of them and of the trial before; for a
    disk, a warning where the page cache affected them."""
    calls = figures(windows, wall_s=0.0)["throughput_per_s"]
    name, unit = RATES[program.unit]
    work = program.work_per_call
    best_s = min(trial.call_s, *(w.step_s for w in windows))
    n = trial.groups + len(windows)
    fastest = Figure(value=work / best_s, unit=unit, n=n, method=program.what)
    log.figure(f"rate_{name}", calls.scaled(work, unit, program.what))
    log.figure(f"fastest_{name}", fastest)
    if isinstance(program, disk.DiskProgram):
        if (warning := program.doubt()) is not None:
            log.warning(warning)
        program.close()


def measure_links(
    spec: RunSpec, framework: Framework, device: str, gpu_uuids: Sequence[str], log: EventLog
) -> None:
    """Measure and log each pair of devices; the number of devices is the spec's."""
    work = cast(Ceiling, spec.work)
    if not isinstance(framework, SupportsLinks):
        raise Unsupported(
            f"{spec.program.framework} does not measure {work.operation}. Set framework=pytorch."
        )
    kind = device.split(":")[0]
    devices = [f"{kind}:{n}" for n in range(spec.placement.devices)]
    pairs = enumerate(framework.measure_links(work, devices, list(_near(len(devices), gpu_uuids))))
    for number, found in pairs:
        if isinstance(found, LinkRate):
            log.link_rate(found)
            log.progress("measure", number, None, None, f"{found.source} to {found.target}")
        elif isinstance(found, Unknown):
            log.unmeasured(found)
        else:
            log.warning(found)


def _near(devices: int, gpu_uuids: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Processors next to each GPU; none where that is not known."""
    addresses = pci_addresses(gpu_uuids[:devices]) if len(gpu_uuids) >= devices else ()
    allowed = os.sched_getaffinity(0)
    for number in range(devices):
        yield near_gpu(addresses, number, allowed)
