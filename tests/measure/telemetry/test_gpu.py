import sys
from types import SimpleNamespace

import pynvml
import pytest
from scripted_nvml import DOUBLE, UNSIGNED, WIDE, ScriptedNvml

from cubemesh.measure.telemetry import nvml
from cubemesh.measure.telemetry.gpu import SLOW_S, GpuReader, throttle_words
from cubemesh.measure.telemetry.nvml import ALL_LINKS, NvmlUnavailable
from cubemesh.measure.telemetry.telemetry import open_meters

NAME = "nvmlDeviceGetName"
USED = "nvmlDeviceGetUtilizationRates"
ANSWERS = {
    NAME: "NVIDIA H200",
    USED: SimpleNamespace(gpu=93, memory=40),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=17 << 30, total=141 << 30),
    "nvmlDeviceGetArchitecture": 9,
    "nvmlDeviceGetTotalEnergyConsumption": 123_456_789_012,
    f"nvmlDeviceGetClockInfo({pynvml.NVML_CLOCK_SM})": 1980,
    f"nvmlDeviceGetClockInfo({pynvml.NVML_CLOCK_MEM})": 3201,
    "nvmlDeviceGetTemperature(0)": 61,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40,
}
ALL_FIELDS = {
    "power_instant_mw": (612_500, UNSIGNED),
    "pcie_tx_bytes": (5_000_000_000, WIDE),
    "pcie_rx_bytes": (7_000_000_000, WIDE),
    "nvlink_tx_kib": (1000, WIDE),
    "nvlink_rx_kib": (2000.0, DOUBLE),
}


@pytest.fixture(autouse=True)
def cpu_time(monkeypatch):
    """The thread's CPU time, which only a slow query advances."""
    clock = SimpleNamespace(now=0.0)
    thread_time = SimpleNamespace(thread_time=lambda: clock.now)
    monkeypatch.setattr("cubemesh.measure.telemetry.gpu.time", thread_time)
    return clock


def test_everything_that_a_current_gpu_reports() -> None:
    library = ScriptedNvml(ANSWERS, ALL_FIELDS)
    gpu = GpuReader("GPU-1", library)
    assert library.asked[0] == "GPU-1"
    assert (gpu.name, gpu.generation, gpu.power) == ("NVIDIA H200", "hopper", "instant")
    assert gpu.missing == {}
    assert gpu.read() == {
        "gpu_power_watts": 612.5,
        "gpu_energy_joules": 123_456_789.012,
        "gpu_utilization_percent": 93.0,
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
        (9, "NVIDIA H100 PCIe", "average"),
        (7, "NVIDIA A100-SXM4-40GB", "instant"),
        (7, "NVIDIA A30", "instant"),
        (7, "NVIDIA RTX A3000", "average"),
        (7, "NVIDIA GeForce RTX 3090", "average"),
        (4, "Tesla P100", "instant"),
    ],
)
def test_without_the_field_power_is_what_the_generation_gives(
    architecture: int, name: str, power: str
) -> None:
    answers = {"nvmlDeviceGetArchitecture": architecture, "nvmlDeviceGetPowerUsage": 250_000}
    gpu = GpuReader("GPU-1", ScriptedNvml({**answers, NAME: name}))
    assert gpu.power == power
    assert gpu.read() == {"gpu_power_watts": 250.0}
    assert "gpu_power_watts" not in gpu.missing


def test_a_failing_query_is_noted_and_not_repeated() -> None:
    library = ScriptedNvml({USED: SimpleNamespace(gpu=5)})
    gpu = GpuReader("GPU-1", library)
    library.asked.clear()
    assert gpu.read() == {"gpu_utilization_percent": 5.0}
    assert library.asked == [USED]
    assert "gpu_power_watts" in gpu.missing
    assert gpu.power == ""


def test_32_bit_byte_counters_are_replaced_by_the_slow_query_made_rarely() -> None:
    narrow = {"pcie_tx_bytes": (5, UNSIGNED), "pcie_rx_bytes": (7, UNSIGNED)}
    numbers = {"nvmlDeviceGetPcieThroughput(0)": 10, "nvmlDeviceGetPcieThroughput(1)": 20}
    gpu = GpuReader("GPU-1", ScriptedNvml(numbers, narrow))
    values = [gpu.read() for _ in range(14)]
    traffic = {"pcie_tx_bytes_per_s": 10_240.0, "pcie_rx_bytes_per_s": 20_480.0}
    assert [bool(v) for v in values] == [n in (3, 13) for n in range(14)]
    assert values[3] == values[13] == traffic


def test_a_slow_query_is_repeated_rarely_unless_it_is_power_or_energy(cpu_time) -> None:
    def slowly() -> int:
        cpu_time.now += 2 * SLOW_S
        return 61_000

    slow = {"nvmlDeviceGetTemperature(0)": slowly, "nvmlDeviceGetTotalEnergyConsumption": slowly}
    gpu = GpuReader("GPU-1", ScriptedNvml({**ANSWERS, **slow}))
    values = [gpu.read() for _ in range(4)]
    assert ["gpu_temperature_celsius" in v for v in values] == [False, False, False, True]
    assert all("gpu_energy_joules" in v for v in values)


def test_a_query_that_fails_later_is_left_out_of_that_reading() -> None:
    library = ScriptedNvml({USED: SimpleNamespace(gpu=5)})
    gpu = GpuReader("GPU-1", library)
    library.answers.clear()
    assert gpu.read() == {}


def test_a_gpu_that_nvml_does_not_know_has_no_reading() -> None:
    error = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    gpu = GpuReader("GPU-1", ScriptedNvml({**ANSWERS, "GPU-1": error}))
    assert gpu.read() == {}
    assert str(error) in gpu.missing["gpu"]


def test_without_nvml_the_reason_is_noted() -> None:
    def start() -> None:
        raise NvmlUnavailable("not installed")

    gpu = GpuReader("GPU-1", start)
    assert gpu.read() == {}
    assert gpu.missing == {"gpu": "not installed"}


def test_a_missing_binding_or_driver_makes_nvml_unavailable(monkeypatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    with pytest.raises(NvmlUnavailable):
        nvml.start()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match="nvidia-ml-py"):
        nvml.start()


def test_no_gpu_no_reader() -> None:
    assert [m.device for m in open_meters(None)] == ["host", "host"]


def test_throttle_reasons_in_words() -> None:
    assert throttle_words(0.0) == ()
    assert throttle_words(float(0x4 | 0x40)) == ("power cap", "heat (hardware)")


@pytest.mark.gpu
def test_a_real_gpu_reports_power_and_energy() -> None:
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
    assert 0 <= second["gpu_utilization_percent"] <= 100
    assert 100 < second["gpu_clock_sm_mhz"] < 5000
