"""GPU telemetry: utilization, power, energy, memory, clocks, throttling, PCIe and NVLink bytes.

Utilization is NVML's "percent of time over the past sample period during which one or more kernels
was executing" (nvmlUtilization_t), which nvidia-smi shows: a single small kernel counts as much as
one that fills the GPU.

Power is NVML_FI_DEV_POWER_INSTANT where the GPU has it, else nvmlDeviceGetPowerUsage, which on
Ampere (except GA100) and later is the mean over a second; `power` says which. Both are of the whole
board.

Queries that fail at the start are listed in `missing` with the reason and not repeated. Each is
timed once; slow ones, except power, energy and utilization, are read at every tenth reading only.
PCIe traffic comes from 64-bit byte counters where the driver has them, else from
nvmlDeviceGetPcieThroughput, which watches the bus for 20 ms a direction, at every tenth reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cubemesh.measure.energy.sensors import Need, needed
from cubemesh.measure.telemetry.nvml import (
    ALL_LINKS,
    GENERATIONS,
    NvmlUnavailable,
    field_value,
    start,
)

UTILIZATION, POWER, ENERGY = "gpu_utilization_percent", "gpu_power_watts", "gpu_energy_joules"
SM_CLOCK, THROTTLE = "gpu_clock_sm_mhz", "gpu_throttle_reasons"
RARELY, FIRST_RARE = 10, 3
"""Readings between two of a slow sensor, and the first that includes it: a run of two seconds has
one, and the reading of idle power does not wait for it."""
SLOW_S = 0.0005
"""CPU time of a query that counts as slow: a thousandth of the usual interval."""
_ALWAYS = frozenset({UTILIZATION, POWER, ENERGY})
THROTTLE_REASONS: Mapping[int, str] = {
    0x001: "idle",
    0x002: "clocks set by a user",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "synchronized boost",
    0x020: "heat (software)",
    0x040: "heat (hardware)",
    0x080: "external power brake",
    0x100: "display clocks",
}
"""Bit of `gpu_throttle_reasons` → reason (nvml.h, nvmlClocksEventReasons)."""

_GA100 = {"A100", "A30", "A800"}

Query = Callable[[], float]


class GpuReader:
    """Reads the GPU with this UUID. `nvml` starts NVML and returns pynvml, or a test double."""

    device = "gpu"

    def __init__(self, uuid: str, nvml: Callable[[], Any] = start) -> None:
        self.missing: dict[str, str] = {}
        self.name = ""
        self.generation = ""
        """`hopper`; empty where unknown."""
        self.power = ""
        """`instant` or `average`; empty where power cannot be read."""
        self._queries: dict[str, Query] = {}
        self._rare: dict[str, Query] = {}
        self._turn = 0
        try:
            self._nvml = nvml()
        except NvmlUnavailable as error:
            self.missing["gpu"] = str(error)
            return
        self._gpu = self._once("gpu", lambda: self._nvml.nvmlDeviceGetHandleByUUID(uuid))
        if "gpu" not in self.missing:
            self._find()

    def read(self) -> dict[str, float]:
        """Readings by name. Joules and bytes are counters that only grow; a sensor that does not
        answer is left out."""
        rare = self._rare if self._turn % RARELY == FIRST_RARE else {}
        self._turn += 1
        found = {}
        for name, query in (*self._queries.items(), *rare.items()):
            try:
                found[name] = query()
            except self._nvml.NVMLError:  # for the moment: it answered at the start
                continue
        return found

    def needs(self) -> Need:
        """How long its power sensor must be watched."""
        return needed(self.name, self.generation, self.power)

    def costs(self) -> dict[str, Query]:
        """Every query in use, so that a benchmark can time each."""
        return {**self._queries, **self._rare}

    def _find(self) -> None:
        nvml, gpu = self._nvml, self._gpu
        self.name = self._once("name", lambda: nvml.nvmlDeviceGetName(gpu)) or ""
        arch = self._once("generation", lambda: nvml.nvmlDeviceGetArchitecture(gpu))
        self.generation = GENERATIONS.get(arch or 0, "")
        self._find_power()
        for name, query in {
            ENERGY: lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
            UTILIZATION: lambda: float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
            "gpu_memory_bytes": lambda: float(nvml.nvmlDeviceGetMemoryInfo(gpu).used),
            SM_CLOCK: lambda: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),
            "gpu_clock_memory_mhz": lambda: float(
                nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)
            ),
            "gpu_temperature_celsius": lambda: float(
                nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
            ),
            # The name that old drivers know too.
            THROTTLE: lambda: float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
            "nvlink_tx_bytes": lambda: 1024 * self._field("nvlink_tx_kib", ALL_LINKS)[0],
            "nvlink_rx_bytes": lambda: 1024 * self._field("nvlink_rx_kib", ALL_LINKS)[0],
        }.items():
            self._try(name, query)
        self._find_pcie("tx", nvml.NVML_PCIE_UTIL_TX_BYTES)
        self._find_pcie("rx", nvml.NVML_PCIE_UTIL_RX_BYTES)

    def _field(self, name: str, scope: int = 0) -> tuple[float, bool]:
        return field_value(self._nvml, self._gpu, name, scope)

    def _find_power(self) -> None:
        nvml, gpu = self._nvml, self._gpu
        if self._try(POWER, lambda: self._field("power_instant_mw")[0] / 1e3):
            self.power = "instant"
        elif self._try(POWER, lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3):
            # GA100 and everything before Ampere reports instantaneous power.
            before = ("kepler", "maxwell", "pascal", "volta", "turing")
            momentary = self.generation in before or bool(_GA100 & set(_words(self.name)))
            self.power = "instant" if momentary else "average"
            self.missing.pop(POWER, None)

    def _find_pcie(self, way: str, counter_of_nvml: int) -> None:
        nvml, gpu, counter = self._nvml, self._gpu, f"pcie_{way}_bytes"
        found = self._once(counter, lambda: self._field(counter))
        if found is not None and not found[1]:
            self._queries[counter] = lambda: self._field(counter)[0]
            return
        # Half a second of a fast copy overflows a 32-bit counter more than once.
        self.missing.pop(counter, None)
        self._try(
            f"pcie_{way}_bytes_per_s",
            lambda: 1024.0 * nvml.nvmlDeviceGetPcieThroughput(gpu, counter_of_nvml),
            rare=True,
        )

    def _try(self, name: str, query: Query, *, rare: bool = False) -> bool:
        if self._once(name, query) is None:  # may have to wake something up: it is not timed
            return False
        if not rare and name not in _ALWAYS:
            before = time.thread_time()
            self._once(name, query)
            rare = time.thread_time() - before > SLOW_S
        (self._rare if rare else self._queries)[name] = query
        return True

    def _once(self, name: str, query: Callable[[], Any]) -> Any:
        try:
            return query()
        except self._nvml.NVMLError as error:
            self.missing[name] = f"NVML: {error}"
            return None


def _words(name: str) -> list[str]:
    return name.replace("-", " ").split()


def throttle_words(reasons: float) -> tuple[str, ...]:
    """Names of the reasons in a value of `gpu_throttle_reasons`."""
    return tuple(words for bit, words in THROTTLE_REASONS.items() if int(reasons) & bit)
