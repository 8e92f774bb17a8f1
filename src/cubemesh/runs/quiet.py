"""Foreign load: what other programs use of this machine, before anything is measured.

Load is sampled between two readings of the counters that also judge a run (busy-host), and from the
list of processes with a context on a GPU (shared-gpu).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cubemesh.measure.telemetry.counter_series import others_share
from cubemesh.measure.telemetry.gpu_processes import GpuProcessWatch
from cubemesh.measure.telemetry.host import HostReader, Reader
from cubemesh.measure.validity import BUSY_SHARE
from cubemesh.runs.progress import Observer
from cubemesh.schema import Gpu
from cubemesh.units import format_list, format_seconds

SAMPLE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ForeignLoad:
    """Load by other programs."""

    cpu_share: float
    """Fraction of the processors this process may use."""
    gpus: tuple[int, ...] = ()
    """Indices of GPUs that other processes use."""

    @property
    def quiet(self) -> bool:
        """Whether it is too little to disturb a measurement."""
        return self.cpu_share <= BUSY_SHARE and not self.gpus

    @property
    def text(self) -> str:
        """`Other programs use 45 % of the processors and GPU 0.`"""
        parts = []
        if self.cpu_share > BUSY_SHARE:
            parts.append(f"{100 * self.cpu_share:.0f} % of the processors")
        parts += [f"GPU {index}" for index in self.gpus]
        return f"Other programs use {format_list(parts or ['nothing'])}."


def foreign_load(
    gpus: Sequence[Gpu],
    *,
    reader: Reader | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> ForeignLoad:
    """The load during one second."""
    counters = reader or HostReader()
    first = counters.read()
    sleep(SAMPLE_S)
    last = counters.read()
    share = others_share((first, last), counters.cores, first.time_s, last.time_s)
    used = tuple(gpu.index for gpu in gpus if GpuProcessWatch(gpu.uuid).others())
    return ForeignLoad(cpu_share=share or 0.0, gpus=used)


def check_quiet(
    gpus: Sequence[Gpu],
    observer: Observer,
    *,
    wait_s: float = 0.0,
    sample: Callable[[Sequence[Gpu]], ForeignLoad] = foreign_load,
    clock: Callable[[], float] = time.monotonic,
) -> ForeignLoad:
    """The load before a measurement, after waiting up to `wait_s` seconds for a quiet machine; the
    observer gets a message where it is not quiet."""
    started = clock()
    load = sample(gpus)
    if not load.quiet and wait_s > 0:
        observer.message(f"{load.text} Waiting up to {format_seconds(wait_s)} for them to end.")
    while not load.quiet and clock() - started < wait_s:
        load = sample(gpus)
    if not load.quiet:
        advice = "Stop them" if wait_s else "Stop them, or wait for them with --wait-quiet 10m"
        observer.message(f"{load.text} The results will be noisy, and take longer. {advice}.")
    return load
