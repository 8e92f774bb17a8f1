"""How is a GPU's driver asked? NVML's C functions, called directly.

A worker has no binding for NVML, so the library is loaded with ctypes: six forms of call are all
that telemetry needs. What the driver refuses is raised as `Refused` with its reason in words; the
reader decides what to leave out. Nothing here changes a setting of a GPU. ctypes releases the
interpreter lock during a call. Source: NVML API reference, and nvml.h for the numbers of fields.
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
ALL_LINKS = 0xFFFFFFFF
"""As the scope of a field of links: the sum over all of them (nvml.h)."""
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
CLOCK_SM, CLOCK_MEMORY = 1, 2
PCIE_TX, PCIE_RX = 0, 1
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
_ERRORS = {
    1: "NVML was not started",
    2: "NVML calls the question invalid",
    3: "this GPU or driver does not support it",
    4: "no permission",
    6: "there is no such GPU",
    9: "NVIDIA's driver is not loaded",
    13: "the driver is too old to know the question",
    15: "the GPU is lost",
    18: "driver and library are of different versions",
    999: "NVML gives no reason",
}
_NO_FUNCTION = 13
_KINDS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
_UNSIGNED_32 = 1


class Refused(Exception):
    """The driver did not answer; the message says why, and `code` is NVML's own."""

    def __init__(self, code: int) -> None:
        super().__init__(_ERRORS.get(code, f"NVML answers with error {code}"))
        self.code = code


class _Utilisation(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Value(ctypes.Union):
    """nvmlValue_t."""

    _fields_ = (
        ("dVal", ctypes.c_double),
        ("uiVal", ctypes.c_uint),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong),
        ("siVal", ctypes.c_int),
    )


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("fieldId", ctypes.c_uint32),
        ("scopeId", ctypes.c_uint32),
        ("timestamp", ctypes.c_int64),
        ("latencyUsec", ctypes.c_int64),
        ("valueType", ctypes.c_uint32),
        ("nvmlReturn", ctypes.c_uint32),
        ("value", _Value),
    )


class Device:
    """One GPU, by its UUID. `nvml` is the loaded library, or what answers as it does.

    `Refused` where NVML does not start or does not know the GPU.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))

    def number(self, function: str, *arguments: int, wide: bool = False) -> int:
        """The one whole number that a function gives; `wide` is for those of 64 bits."""
        found = ctypes.c_ulonglong() if wide else ctypes.c_uint()
        asked = (ctypes.c_uint(a) for a in arguments)
        self._call(function, self._handle, *asked, ctypes.byref(found))
        return found.value

    def name(self) -> str:
        """What its maker calls it."""
        text = ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", self._handle, text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def utilisation_percent(self) -> int:
        """Percent of the past sample period in which a kernel was executing."""
        found = _Utilisation()
        self._call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(found))
        return int(found.gpu)

    def memory_used_bytes(self) -> int:
        """Memory allocated by all processes, and what the driver keeps."""
        return int(self._memory().used)

    def memory_bytes(self) -> int:
        """All the memory it has."""
        return int(self._memory().total)

    def _memory(self) -> _Memory:
        found = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(found))
        return found

    def field(self, name: str, scope: int = 0) -> tuple[float, bool]:
        """A field of `FIELDS`, and whether it is a number of 32 bits, which a counter outgrows."""
        asked = (FieldValue * 1)(FieldValue(fieldId=FIELDS[name], scopeId=scope))
        self._call("nvmlDeviceGetFieldValues", self._handle, ctypes.c_int(1), asked)
        if asked[0].nvmlReturn:
            raise Refused(asked[0].nvmlReturn)
        kind = asked[0].valueType
        return float(getattr(asked[0].value, _KINDS.get(kind, "ullVal"))), kind == _UNSIGNED_32

    def _call(self, function: str, *arguments: object) -> None:
        _call(self._nvml, function, *arguments)


def listed(nvml: Any) -> list[str]:
    """The UUIDs of all GPUs, in NVML's order; `Refused` where NVML does not tell."""
    _call(nvml, "nvmlInit_v2")
    count = ctypes.c_uint()
    _call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    found = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        _call(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        text = ctypes.create_string_buffer(96)
        _call(nvml, "nvmlDeviceGetUUID", handle, text, ctypes.c_uint(len(text)))
        found.append(text.value.decode())
    return found


def _call(nvml: Any, function: str, *arguments: object) -> None:
    try:
        known = getattr(nvml, function)
    except AttributeError:
        raise Refused(_NO_FUNCTION) from None
    code = known(*arguments)
    if code:
        raise Refused(code)
