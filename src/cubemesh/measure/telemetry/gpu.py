"""What does a GPU draw, hold and do at this moment? As NVML tells it, and nvidia-smi shows it.

Utilisation is the "percent of time over the past sample period during which one or more kernels was
executing" (NVML API reference, nvmlUtilization_t): documents 001 to 004 mean this by it. A single
small kernel counts as much as one that fills the GPU.

Power is the field NVML_FI_DEV_POWER_INSTANT where the GPU has it. Elsewhere it is
nvmlDeviceGetPowerUsage, which on Ampere (but GA100) and later is the mean over a second; `power`
says which. Both are of the whole board.

Questions that were refused once, with the reason in `missing`, are not asked again. Each is timed
once, and those that take the processor long, but for power, energy and utilisation, are asked at
every tenth reading only. PCIe traffic comes from byte counters where the driver has wide ones.
Where it has not, nvmlDeviceGetPcieThroughput watches the bus for 20 ms a direction: that is asked
as rarely.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any

from cubemesh.measure.energy.sensors import Need, needed
from cubemesh.measure.telemetry.nvml import (
    ALL_LINKS,
    CLOCK_MEMORY,
    CLOCK_SM,
    GENERATIONS,
    LIBRARY,
    PCIE_RX,
    PCIE_TX,
    Device,
    Refused,
)

UTILISATION, POWER, ENERGY = "gpu_utilisation_percent", "gpu_power_watts", "gpu_energy_joules"
RARELY, FIRST_RARE = 10, 3
"""Readings from one of a slow sensor to the next, and the first that asks it: a run of two seconds
has one, and the one that looks for idle power does not wait for it."""
DEAR_S = 0.0005
"""Processor time of a question that is asked rarely: a thousandth of the usual interval."""
_ALWAYS = frozenset({UTILISATION, POWER, ENERGY})
THROTTLE_REASONS: Mapping[int, str] = {
    0x001: "idle",
    0x002: "clocks set by a user",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "synchronised boost",
    0x020: "heat (software)",
    0x040: "heat (hardware)",
    0x080: "external power brake",
    0x100: "display clocks",
}
"""Bit of `gpu_throttle_reasons` → in words (nvml.h, nvmlClocksEventReasons)."""

_GA100 = {"A100", "A30", "A800"}

Ask = Callable[[], float]


class GpuReader:
    """Reads one GPU. `nvml` is the loaded library, or what answers as it does."""

    device = "gpu"

    def __init__(self, nvml: Any, uuid: str) -> None:
        self.missing: dict[str, str] = {}
        self.name = ""
        self.generation = ""
        """`hopper`; empty where not known."""
        self.power = ""
        """`instant` or `average`; empty where there is no reading of power."""
        self._asks: dict[str, Ask] = {}
        self._rare: dict[str, Ask] = {}
        self._turn = 0
        try:
            self._gpu = Device(nvml, uuid)
        except Refused as refusal:
            self.missing["gpu"] = str(refusal)
            return
        self._find()

    def read(self) -> dict[str, float]:
        """What the GPU says now, by name. Joules and bytes of links are counters that only grow."""
        rare = self._rare if self._turn % RARELY == FIRST_RARE else {}
        self._turn += 1
        found = {}
        for name, ask in (*self._asks.items(), *rare.items()):
            try:
                found[name] = ask()
            except Refused:  # for the moment: it answered at the start
                continue
        return found

    def needs(self) -> Need:
        """How long its power sensor must be watched."""
        return needed(self.name, self.generation, self.power)

    def costs(self) -> dict[str, Ask]:
        """Every question that is asked, so that a benchmark may time each."""
        return {**self._asks, **self._rare}

    def _find(self) -> None:
        gpu = self._gpu
        self.name = self._once("name", gpu.name) or ""
        arch = self._once("generation", lambda: gpu.number("nvmlDeviceGetArchitecture"))
        self.generation = GENERATIONS.get(arch or 0, "")
        self._find_power()
        for name, ask in {
            ENERGY: lambda: gpu.number("nvmlDeviceGetTotalEnergyConsumption", wide=True) / 1e3,
            UTILISATION: lambda: float(gpu.utilisation_percent()),
            "gpu_memory_bytes": lambda: float(gpu.memory_used_bytes()),
            "gpu_clock_sm_mhz": lambda: float(gpu.number("nvmlDeviceGetClockInfo", CLOCK_SM)),
            "gpu_clock_memory_mhz": lambda: float(
                gpu.number("nvmlDeviceGetClockInfo", CLOCK_MEMORY)
            ),
            "gpu_temperature_celsius": lambda: float(gpu.number("nvmlDeviceGetTemperature", 0)),
            # The name that old drivers know too.
            "gpu_throttle_reasons": lambda: float(
                gpu.number("nvmlDeviceGetCurrentClocksThrottleReasons", wide=True)
            ),
            "nvlink_tx_bytes": lambda: 1024 * gpu.field("nvlink_tx_kib", ALL_LINKS)[0],
            "nvlink_rx_bytes": lambda: 1024 * gpu.field("nvlink_rx_kib", ALL_LINKS)[0],
        }.items():
            self._try(name, ask)
        for way, place in (("tx", PCIE_TX), ("rx", PCIE_RX)):
            self._find_pcie(way, place)

    def _find_power(self) -> None:
        gpu = self._gpu
        if self._try(POWER, lambda: gpu.field("power_instant_mw")[0] / 1e3):
            self.power = "instant"
        elif self._try(POWER, lambda: gpu.number("nvmlDeviceGetPowerUsage") / 1e3):
            # GA100 and everything before Ampere gives what it draws at the moment.
            before = ("kepler", "maxwell", "pascal", "volta", "turing")
            momentary = self.generation in before or bool(_GA100 & set(_words(self.name)))
            self.power = "instant" if momentary else "average"
            self.missing.pop(POWER, None)

    def _find_pcie(self, way: str, place: int) -> None:
        gpu, counter = self._gpu, f"pcie_{way}_bytes"
        found = self._once(counter, lambda: gpu.field(counter))
        if found is not None and not found[1]:
            self._asks[counter] = lambda: gpu.field(counter)[0]
            return
        # Half a second of a fast copy makes a counter of 32 bits pass its end more than once.
        self.missing.pop(counter, None)
        self._try(
            f"pcie_{way}_bytes_per_s",
            lambda: 1024.0 * gpu.number("nvmlDeviceGetPcieThroughput", place),
            rare=True,
        )

    def _try(self, name: str, ask: Ask, *, rare: bool = False) -> bool:
        if self._once(name, ask) is None:  # may have to wake something up: it is not timed
            return False
        if not rare and name not in _ALWAYS:
            before = time.thread_time()
            self._once(name, ask)
            rare = time.thread_time() - before > DEAR_S
        (self._rare if rare else self._asks)[name] = ask
        return True

    def _once(self, name: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Refused as refusal:
            self.missing[name] = str(refusal)
            return None


def open_gpu(uuid: str | None) -> GpuReader | None:
    """A reader of the GPU with this UUID; None for none, or where there is no NVML."""
    if uuid is None:
        return None
    try:
        return GpuReader(ctypes.CDLL(LIBRARY), uuid)
    except OSError:
        return None


def _words(name: str) -> list[str]:
    return name.replace("-", " ").split()


def throttle_words(reasons: float) -> tuple[str, ...]:
    """The reasons that a value of `gpu_throttle_reasons` stands for, in words."""
    return tuple(words for bit, words in THROTTLE_REASONS.items() if int(reasons) & bit)
