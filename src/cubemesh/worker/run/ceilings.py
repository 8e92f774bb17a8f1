"""Ceilings in a worker: the program of a ceiling's operation, and its figures.

A framework multiplies and copies. Reading a disk needs no framework, so the worker does it for
every framework, except a simulated one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from cubemesh.data import disk
from cubemesh.frameworks.ceiling_search import Trial
from cubemesh.frameworks.contract.program import CeilingProgram
from cubemesh.measure.figures import figures
from cubemesh.schema.record import Figure, Window
from cubemesh.schema.spec import ProgramSettings, RunSpec
from cubemesh.schema.work import Ceiling
from cubemesh.worker.report.events import EventLog

RATES = {"FLOP/s": ("flops_per_s", "FLOP/s"), "byte/s": ("bytes_per_s", "B/s")}
"""Unit of a ceiling → suffix of its figures' names, and their unit."""

Build = Callable[[Ceiling, ProgramSettings, str, int], CeilingProgram]


def build(spec: RunSpec, by_framework: Build, device: str, threads: int) -> CeilingProgram:
    """The program of a ceiling."""
    work = cast(Ceiling, spec.work)
    if work.operation == "disk_read" and spec.program.script is None:
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
    if isinstance(program, disk.DiskRead):
        if (warning := program.doubt()) is not None:
            log.warning(warning)
        program.close()
