import ctypes
import time

import pytest

from cubemesh.measure.telemetry.gpu import DEAR_S, GpuReader, open_gpu, throttle_words
from cubemesh.measure.telemetry.nvml import ALL_LINKS, FIELDS, LIBRARY, FieldValue
from cubemesh.measure.telemetry.telemetry import open_meters

NOT_SUPPORTED = 3
DOUBLE, UNSIGNED, WIDE = 0, 1, 3


class Library:
    """Answers as NVML does, with return codes; arguments come as ctypes passes them. `numbers` are
    what functions of one number give, `fields` a value and its kind by name; all else is
    refused."""

    def __init__(
        self,
        numbers: dict[str, int] | None = None,
        fields: dict[str, tuple[float, int]] | None = None,
        *,
        starts: int = 0,
        knows: int = 0,
        name: bytes = b"NVIDIA H200",
    ) -> None:
        self.codes = starts, knows
        self.numbers, self.name = numbers or {}, name
        self.fields = {FIELDS[k]: v for k, v in (fields or {}).items()}
        self.asked: list[str] = []
        self.scopes: list[int] = []

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.codes[0]

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:  # noqa: N802
        self.asked.append(uuid.decode())
        return self.codes[1]

    def nvmlDeviceGetName(self, handle: object, text: object, size: object) -> int:  # noqa: N802
        text.value = self.name  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: object, read: object) -> int:  # noqa: N802
        return self._number("utilisation", read, ctypes.c_uint)

    def nvmlDeviceGetMemoryInfo(self, handle: object, read: object) -> int:  # noqa: N802
        if "memory" not in self.numbers:
            return NOT_SUPPORTED
        ctypes.cast(read, ctypes.POINTER(ctypes.c_ulonglong))[2] = self.numbers["memory"]
        return 0

    def nvmlDeviceGetFieldValues(  # noqa: N802
        self, handle: object, count: object, values: list[FieldValue]
    ) -> int:
        (one,) = values
        self.asked.append(f"field {one.fieldId}")
        if one.fieldId not in self.fields:
            one.nvmlReturn = NOT_SUPPORTED
            return 0
        self.scopes.append(one.scopeId)
        value, one.valueType = self.fields[one.fieldId]
        part = {DOUBLE: "dVal", UNSIGNED: "uiVal", WIDE: "ullVal"}[one.valueType]
        setattr(one.value, part, value)
        return 0

    def __getattr__(self, function: str):
        if not function.startswith("nvmlDeviceGet"):
            raise AttributeError(function)

        def answer(handle: object, *arguments: object) -> int:
            self.asked.append(function)
            place = f"{function}({', '.join(str(a.value) for a in arguments[:-1])})"  # type: ignore[attr-defined]
            wide = "Energy" in function or "Reasons" in function
            kind = ctypes.c_ulonglong if wide else ctypes.c_uint
            return self._number(place, arguments[-1], kind)

        return answer

    def _number(self, name: str, read: object, kind: type) -> int:
        if name not in self.numbers:
            return NOT_SUPPORTED
        ctypes.cast(read, ctypes.POINTER(kind))[0] = self.numbers[name]
        return 0


NUMBERS = {
    "utilisation": 93,
    "memory": 17 << 30,
    "nvmlDeviceGetArchitecture()": 9,
    "nvmlDeviceGetTotalEnergyConsumption()": 123_456_789_012,
    "nvmlDeviceGetClockInfo(1)": 1980,
    "nvmlDeviceGetClockInfo(2)": 3201,
    "nvmlDeviceGetTemperature(0)": 61,
    "nvmlDeviceGetCurrentClocksThrottleReasons()": 0x4 | 0x40,
}
ALL_FIELDS = {
    "power_instant_mw": (612_500, UNSIGNED),
    "pcie_tx_bytes": (5_000_000_000, WIDE),
    "pcie_rx_bytes": (7_000_000_000, WIDE),
    "nvlink_tx_kib": (1000, WIDE),
    "nvlink_rx_kib": (2000, WIDE),
}


def test_everything_that_a_current_gpu_says() -> None:
    library = Library(NUMBERS, ALL_FIELDS)
    gpu = GpuReader(library, "GPU-1")
    assert library.asked[0] == "GPU-1"
    assert (gpu.name, gpu.generation, gpu.power) == ("NVIDIA H200", "hopper", "instant")
    assert gpu.missing == {}
    assert gpu.read() == {
        "gpu_power_watts": 612.5,
        "gpu_energy_joules": 123_456_789.012,
        "gpu_utilisation_percent": 93.0,
        "gpu_memory_bytes": float(17 << 30),
        "gpu_clock_sm_mhz": 1980.0,
        "gpu_clock_memory_mhz": 3201.0,
        "gpu_temperature_celsius": 61.0,
        "gpu_throttle_reasons": 68.0,
        "nvlink_tx_bytes": 1024_000.0,
        "nvlink_rx_bytes": 2048_000.0,
        "pcie_tx_bytes": 5e9,
        "pcie_rx_bytes": 7e9,
    }
    assert set(library.scopes) == {0, ALL_LINKS}


@pytest.mark.parametrize(
    ("architecture", "name", "power"),
    [
        (9, b"NVIDIA H100 PCIe", "average"),
        (7, b"NVIDIA A100-SXM4-40GB", "instant"),
        (7, b"NVIDIA A30", "instant"),
        (7, b"NVIDIA RTX A3000", "average"),
        (7, b"NVIDIA GeForce RTX 3090", "average"),
        (4, b"Tesla P100", "instant"),
    ],
)
def test_without_the_field_power_is_what_the_generation_gives(
    architecture: int, name: bytes, power: str
) -> None:
    numbers = {"nvmlDeviceGetArchitecture()": architecture, "nvmlDeviceGetPowerUsage()": 250_000}
    gpu = GpuReader(Library(numbers, name=name), "GPU-1")
    assert gpu.power == power
    assert gpu.read() == {"gpu_power_watts": 250.0}
    assert "gpu_power_watts" not in gpu.missing


def test_what_was_refused_is_said_and_not_asked_again() -> None:
    library = Library({"utilisation": 5})
    gpu = GpuReader(library, "GPU-1")
    library.asked.clear()
    assert gpu.read() == {"gpu_utilisation_percent": 5.0}
    assert library.asked == []
    assert "does not support" in gpu.missing["gpu_power_watts"]
    assert gpu.power == ""


def test_narrow_byte_counters_are_left_for_the_slow_question_asked_rarely() -> None:
    narrow = {"pcie_tx_bytes": (5, UNSIGNED), "pcie_rx_bytes": (7, UNSIGNED)}
    numbers = {"nvmlDeviceGetPcieThroughput(0)": 10, "nvmlDeviceGetPcieThroughput(1)": 20}
    gpu = GpuReader(Library(numbers, narrow), "GPU-1")
    said = [gpu.read() for _ in range(14)]
    told = {"pcie_tx_bytes_per_s": 10_240.0, "pcie_rx_bytes_per_s": 20_480.0}
    assert [bool(s) for s in said] == [n in (3, 13) for n in range(14)]
    assert said[3] == said[13] == told


def test_what_takes_the_processor_long_is_asked_rarely_but_for_power_and_energy() -> None:
    class Slow(Library):
        def __getattr__(self, function: str):
            answer = super().__getattr__(function)

            def slowly(*arguments: object) -> int:
                end = time.thread_time() + 2 * DEAR_S
                while time.thread_time() < end:
                    pass
                return answer(*arguments)

            return slowly if "Temperature" in function or "Energy" in function else answer

    gpu = GpuReader(Slow(NUMBERS), "GPU-1")
    said = [gpu.read() for _ in range(4)]
    assert ["gpu_temperature_celsius" in s for s in said] == [False, False, False, True]
    assert all("gpu_energy_joules" in s for s in said)


def test_a_gpu_that_falls_silent_is_left_out_for_the_moment() -> None:
    library = Library({"utilisation": 5})
    gpu = GpuReader(library, "GPU-1")
    library.numbers.clear()
    assert gpu.read() == {}


@pytest.mark.parametrize(("codes", "why"), [({"starts": 9}, "driver"), ({"knows": 6}, "no such")])
def test_what_does_not_answer_has_no_reading(codes: dict[str, int], why: str) -> None:
    gpu = GpuReader(Library(NUMBERS, **codes), "GPU-1")
    assert gpu.read() == {}
    assert why in gpu.missing["gpu"]


def test_a_function_that_an_old_library_lacks_is_a_refusal() -> None:
    class Old:
        def nvmlInit_v2(self) -> int:  # noqa: N802
            return 0

    assert "too old" in GpuReader(Old(), "GPU-1").missing["gpu"]


def test_no_gpu_no_reader() -> None:
    assert open_gpu(None) is None


def test_throttle_reasons_in_words() -> None:
    assert throttle_words(0.0) == ()
    assert throttle_words(float(0x4 | 0x40)) == ("power cap", "heat (hardware)")


@pytest.mark.gpu
def test_a_real_gpu_tells_power_and_energy() -> None:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        pytest.skip("no NVIDIA driver")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU that PyTorch can use")
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    gpu = next(m for m in open_meters(uuid) if m.device == "gpu")
    first, power = gpu.read(), getattr(gpu, "power", "")
    assert power in ("instant", "average")
    assert 5 < first["gpu_power_watts"] < 2000
    a = torch.rand(4096, 4096, device="cuda")
    for _ in range(300):
        a = (a @ a).clamp(0, 1)
    torch.cuda.synchronize()
    second = gpu.read()
    assert second["gpu_energy_joules"] >= first["gpu_energy_joules"]
    assert second["gpu_memory_bytes"] >= 4096 * 4096 * 4
    assert 0 <= second["gpu_utilisation_percent"] <= 100
    assert 100 < second["gpu_clock_sm_mhz"] < 5000
