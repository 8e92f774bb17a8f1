"""What of the machine made a run doubtful: others on its processors and GPU, clocks, throttling."""

from __future__ import annotations

from cubemesh.measure.log import Log
from cubemesh.measure.telemetry.gpu_processes import GpuProcessWatch
from cubemesh.measure.telemetry.telemetry import Telemetry
from cubemesh.measure.validity import changing_clock, shared_gpu, throttled


def log_machine_warnings(
    telemetry: Telemetry, gpu_processes: GpuProcessWatch, log: Log, started: float, ended: float
) -> None:
    """Log a warning for each doubt about what was measured between two readings of
    `time.perf_counter()`. To be asked after the telemetry's block, while the run still holds its
    context on the GPU."""
    telemetry.check_host(started, ended)

    def readings(name: str) -> list[float]:
        return [value for _, value in telemetry.points(name, started, ended)]

    for warning in (
        shared_gpu(gpu_processes.others() or ()),
        throttled(readings("gpu_throttle_reasons")),
        changing_clock(readings("gpu_clock_sm_mhz")),
    ):
        if warning is not None:
            log.warning(warning)
