"""NVML, NVIDIA's management library, through its Python binding pynvml (package nvidia-ml-py).

A worker may run without the binding: `start` then raises `NvmlUnavailable` with the reason, as
where there is no driver. Nothing here changes a setting of a GPU. Source: NVML API reference, and
nvml.h for the numbers of fields, which older bindings lack.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field of links: the sum over all of them (nvml.h)."""
FIELDS = {
    "nvlink_tx_kib": 138,
    "nvlink_rx_kib": 139,
    "power_average_mw": 185,
    "power_instant_mw": 186,
    "pcie_tx_bytes": 197,
    "pcie_rx_bytes": 198,
}
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX/_RX, _POWER_AVERAGE, _POWER_INSTANT,
_PCIE_COUNT_TX_BYTES/_RX_BYTES."""
GENERATIONS = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
}
"""NVML_DEVICE_ARCH_*."""
_KINDS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
_UNSIGNED_32 = 1
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


class NvmlUnavailable(Exception):
    """There is no NVML to ask; the message is the reason."""


def preload() -> None:
    """Import the binding where there is a driver, so that forked workers need not."""
    if any(file.exists() for file in _DRIVER_FILES):
        with suppress(ImportError):
            import pynvml  # noqa: F401


def start() -> Any:
    """The module pynvml, initialized. NvmlUnavailable where it is not installed or NVML does not
    start."""
    try:
        import pynvml
    except ImportError:
        raise NvmlUnavailable("the Python package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(f"NVML does not start: {error}") from error
    return pynvml


def field_value(nvml: Any, handle: Any, name: str, scope: int = 0) -> tuple[float, bool]:
    """A field of `FIELDS`, and whether it is a 32-bit number, which a counter overflows."""
    (found,) = nvml.nvmlDeviceGetFieldValues(handle, [(FIELDS[name], scope)])
    if found.nvmlReturn:
        raise nvml.NVMLError(found.nvmlReturn)
    part = _KINDS.get(found.valueType, "ullVal")
    return float(getattr(found.value, part)), found.valueType == _UNSIGNED_32
