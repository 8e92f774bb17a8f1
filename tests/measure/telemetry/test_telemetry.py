import json
import math
import os
import subprocess
import sys
import time

import pytest

from cubemesh.measure.telemetry.counter_series import (
    curve_since,
    others_share,
    percent_series,
    series_of,
)
from cubemesh.measure.telemetry.host import HostReader, Reading
from cubemesh.measure.telemetry.telemetry import Telemetry, idle_power, open_meters
from cubemesh.schema.record import Window
from in_memory_log import InMemoryLog
from patience import PATIENCE_S, wait_until
from trace_replay import Replay, ReplayedMeter


def reading(t: float, tree: float, cores: float, host: float, resident: int = 1000) -> Reading:
    return Reading(
        time_s=t, tree_cpu_s=tree, resident_bytes=resident, cores_busy_s=cores, host_busy_s=host
    )


# Two of four cores may be used. The run uses one throughout; another program joins on the second
# of them at t = 2 and, after it, one elsewhere.
RECORDED = [
    reading(0.0, 5.0, 20.0, 50.0, 100),
    reading(1.0, 6.0, 21.0, 51.0, 200),
    reading(2.0, 7.0, 22.0, 52.0, 300),
    reading(3.0, 8.0, 24.0, 55.0, 400),
]


def wait_for_readings(telemetry: Telemetry, wanted: int) -> None:
    wait_until(lambda: len(telemetry.readings) >= wanted, f"{wanted} readings")


def test_series_of_a_recorded_host() -> None:
    log = InMemoryLog()
    with Telemetry(
        log, 2, every_s=0.001, reader=Replay(RECORDED, cores=2, host_cores=4)
    ) as telemetry:
        wait_for_readings(telemetry, 4)
    own, host = log.joined("cpu_utilization_percent"), log.joined("host_cpu_percent")
    assert own.times_s == (1.0, 2.0, 3.0)
    assert own.values == (50.0, 50.0, 50.0)
    assert host.values == (25.0, 25.0, 75.0)
    assert log.joined("resident_bytes").values[:4] == (100.0, 200.0, 300.0, 400.0)
    assert log.joined("resident_bytes").times_s[:4] == (0.0, 1.0, 2.0, 3.0)


def test_chunks_join_without_a_gap() -> None:
    steady = [reading(float(n), float(n), 2.0 * n, 2.0 * n) for n in range(37)]
    log = InMemoryLog()
    with Telemetry(log, 2, every_s=0.0005, reader=Replay(steady, 2, 2)) as telemetry:
        wait_for_readings(telemetry, 37)
    assert len([c for c in log.chunks if c.name == "resident_bytes"]) >= 3
    assert log.joined("cpu_utilization_percent").times_s == tuple(map(float, range(1, 37)))
    assert set(log.joined("cpu_utilization_percent").values) == {50.0}


def test_the_fraction_that_other_programs_used() -> None:
    assert others_share(RECORDED, 2, 0.0, 2.0) == 0.0
    assert others_share(RECORDED, 2, 2.0, 3.0) == 0.5
    assert others_share(RECORDED, 2, 1.0, 3.0) == 0.25
    assert others_share(RECORDED, 2, 2.5, 3.0) == 0.5
    assert others_share(RECORDED, 2, -5.0, 10.0) == pytest.approx(1 / 6)
    assert others_share(RECORDED, 2, 3.0, 3.0) is None


def test_a_busy_host_gives_a_warning() -> None:
    log = InMemoryLog()
    with Telemetry(log, 2, every_s=0.001, reader=Replay(RECORDED, 2, 4)) as telemetry:
        wait_for_readings(telemetry, 4)
    assert telemetry.check_host(0.0, 2.0) == 0.0
    assert log.warnings == []
    assert telemetry.check_host(2.0, 3.0) == 0.5
    assert [w.code for w in log.warnings] == ["busy-host"]


def test_a_counter_that_falls_gives_no_negative_percentage() -> None:
    series = percent_series("x_percent", [0, 1, 1, 2], [5.0, 4.0, 4.0, 5.0], 2)
    assert series.times_s == (1, 2)
    assert series.values == (0.0, 50.0)


def test_a_short_run_has_a_reading_at_either_end() -> None:
    log = InMemoryLog()
    with Telemetry(log, 1, every_s=60):
        _work(0.05)
    assert len(log.joined("resident_bytes").values) == 2
    assert len(log.joined("cpu_utilization_percent").values) == 1
    assert log.joined("resident_bytes").values[0] > 1_000_000


def test_the_cost_of_sampling_is_relative_to_elapsed_time_and_to_cpu_time_of_the_run() -> None:
    log = InMemoryLog()
    used_half = [reading(0.0, 5.0, 20.0, 50.0), reading(4.0, 7.0, 24.0, 55.0)]
    with Telemetry(log, 1, every_s=60, reader=Replay(used_half)) as telemetry:
        pass
    share, percent = log.figures["telemetry_cpu_share"], log.figures["telemetry_cpu_percent"]
    assert (share.value, share.unit) == (telemetry.cost_s / 4, "cores")
    assert (percent.value, percent.unit) == (100 * telemetry.cost_s / 2, "%")
    assert "every 60 s" in percent.method


def test_a_failure_in_the_thread_is_raised_at_the_end() -> None:
    class Broken(Replay):
        def read(self) -> Reading:
            if self._next == 1:
                raise OSError("the kernel's files are gone")
            return super().read()

    with (
        pytest.raises(OSError, match="are gone"),
        Telemetry(InMemoryLog(), 1, every_s=0.001, reader=Broken(RECORDED)) as telemetry,
    ):
        telemetry._thread.join(PATIENCE_S)


# The kernel may count in ticks of 10 ms, rounded down for each process: half is what must be seen.
USED_S = 0.3
SEEN_S = USED_S / 2


def test_the_host_counts_this_process() -> None:
    reader = HostReader()
    first = reader.read()
    _work(USED_S)
    second = reader.read()
    assert reader.cores == len(os.sched_getaffinity(0)) <= reader.host_cores
    assert second.time_s > first.time_s
    assert second.tree_cpu_s - first.tree_cpu_s >= SEEN_S
    assert second.host_busy_s >= second.cores_busy_s >= first.cores_busy_s


def test_the_host_counts_children_and_theirs() -> None:
    # A child that starts a child that works; both are alive while they are counted.
    grandchild = f"import sys, time\nwhile time.process_time() < {USED_S}: pass\n"
    grandchild += "print('done', flush=True)\nsys.stdin.read()"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])"
    reader = HostReader()
    before = reader.read()
    with subprocess.Popen(
        [sys.executable, "-c", child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        during = reader.read()
        os.killpg(process.pid, 9)
    assert during.tree_cpu_s - before.tree_cpu_s >= SEEN_S
    assert during.resident_bytes - before.resident_bytes > 2_000_000


READINGS = """
import dataclasses, json, sys
from cubemesh.measure.telemetry.host import HostReader

reader = HostReader()
first = reader.read()
print("ready", flush=True)
sys.stdin.readline()
readings = [dataclasses.asdict(r) for r in (first, reader.read())]
print(json.dumps({"readings": readings, "cores": reader.cores}), flush=True)
"""


def test_work_of_another_process_counts_as_that_of_others() -> None:
    # Not a child of the counting process: its work is the machine's, not the tree's.
    with subprocess.Popen(
        [sys.executable, "-c", READINGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as counting:
        assert counting.stdout is not None
        assert counting.stdout.readline() == "ready\n"
        _work(USED_S)
        output = json.loads(counting.communicate("\n")[0])
    first, second = (Reading(**reading) for reading in output["readings"])
    others = others_share([first, second], output["cores"], first.time_s, second.time_s)
    assert others is not None
    assert others * output["cores"] * (second.time_s - first.time_s) >= SEEN_S
    assert second.tree_cpu_s - first.tree_cpu_s < SEEN_S


def _work(seconds: float) -> None:
    """Use that many processor seconds."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_utilization_covers_only_the_measured_part() -> None:
    log = InMemoryLog()
    with Telemetry(log, 2, every_s=0.001, reader=Replay(RECORDED, 2, 4)) as telemetry:
        wait_for_readings(telemetry, 4)
    telemetry.log_utilization(0.5, 2.5)
    assert log.figures["cpu_utilization_percent"].value == pytest.approx(50.0)
    curve = log.curves["cpu_utilization_percent"]
    assert (curve.x, curve.y) == ((0.5, 1.5), (50.0, 50.0))
    telemetry.log_utilization(9.0, 10.0)  # without readings
    assert "gpu_utilization_percent" not in log.figures


def test_utilization_of_a_gpu_is_the_mean_of_its_readings() -> None:
    values = [{"gpu_utilization_percent": p, "gpu_power_watts": 4 * p} for p in (0.0, 80.0, 90.0)]
    meter = ReplayedMeter([*values, {}], device="gpu")
    log = InMemoryLog()
    with Telemetry(
        log,
        2,
        every_s=0.001,
        reader=Replay(RECORDED, 2, 4),
        meters=[meter],
    ) as telemetry:
        wait_for_readings(telemetry, 4)
    assert log.joined("gpu_utilization_percent").values == (0.0, 80.0, 90.0)
    times = [t for t, _ in telemetry.sampled["gpu_utilization_percent"]]
    start, end = times[0] - 3.0, times[-1] + 3.0
    telemetry.readings[0] = reading(start, 5.0, 20.0, 50.0)
    telemetry.readings[-1] = reading(end, 8.0, 24.0, 55.0)
    telemetry.log_utilization(start, end)
    figure = log.figures["gpu_utilization_percent"]
    assert (figure.value, figure.n) == (pytest.approx(170 / 3), 3)
    assert log.curves["gpu_utilization_percent"].y == (0.0, 80.0, 90.0)
    assert "cpu_utilization_percent" not in log.curves
    assert log.curves["gpu_power_watts"].y == (0.0, 320.0, 360.0)


def test_a_long_curve_is_averaged() -> None:
    points = [(float(i), float(i % 2)) for i in range(1, 1001)]
    curve = curve_since("x_percent", points, start=0.0)
    assert len(curve.x) == 200
    assert curve.x[-1] == 1000.0
    assert set(curve.y) <= {0.4, 0.6}


def test_counters_become_rates_and_the_energy_counter_begins_at_zero() -> None:
    values = [
        {"gpu_energy_joules": 1e6 + 60.0 * n, "disk_read_bytes": 2e6 * n, "dram_joules": 5.0 * n}
        for n in range(5)
    ]
    log = InMemoryLog()
    gpu = ReplayedMeter(
        [{"gpu_energy_joules": s["gpu_energy_joules"]} for s in values], device="gpu"
    )
    host = ReplayedMeter([{k: v for k, v in s.items() if "gpu" not in k} for s in values])
    with Telemetry(
        log, 2, every_s=0.002, reader=Replay(RECORDED, 2, 4), meters=[gpu, host]
    ) as telemetry:
        wait_for_readings(telemetry, 5)
    energy = [c for c in log.chunks if c.name == "gpu_energy_joules"]
    assert {c.device for c in energy} == {"gpu"}
    assert log.joined("gpu_energy_joules").values[:5] == (0.0, 60.0, 120.0, 180.0, 240.0)
    watts, rate = log.joined("dram_watts"), log.joined("disk_read_bytes_per_s")
    times = [t for t, _ in telemetry.sampled["dram_joules"]]
    assert watts.times_s[:4] == tuple(times[1:5])
    assert watts.values[0] == pytest.approx(5.0 / (times[1] - times[0]))
    assert rate.values[0] == pytest.approx(2e6 / (times[1] - times[0]))
    assert "dram_joules" not in {c.name for c in log.chunks}


def test_the_end_of_a_run_is_between_two_readings_of_the_meters() -> None:
    meter = ReplayedMeter([{"gpu_power_watts": 100.0}], device="gpu")
    with Telemetry(InMemoryLog(), 1, every_s=60, meters=[meter]) as telemetry:
        inside = time.perf_counter()
    assert telemetry.sampled["gpu_power_watts"][-1][0] >= inside


def test_energy_of_the_windows_from_replayed_readings() -> None:
    values = [{"gpu_energy_joules": 500.0 * n, "gpu_power_watts": 100.0} for n in range(3)]
    meter = ReplayedMeter(
        values, device="gpu", name="Tesla P100", generation="pascal", power="instant"
    )
    log = InMemoryLog()
    with Telemetry(log, 1, every_s=60, meters=[meter]) as telemetry:
        pass
    # As if five seconds were between the readings.
    for name, points in telemetry.sampled.items():
        telemetry.sampled[name] = [(5.0 * n, v) for n, (_, v) in enumerate(points)]
    telemetry._every_s = 1.0
    telemetry.log_energy([Window(start_s=0.5, elapsed_s=4.0, steps=8, samples=80)], 80)
    assert log.figures["mean_power_watts"].value == pytest.approx(100.0)
    assert log.figures["energy_joules_per_sample"].value == pytest.approx(5.0)
    assert log.figures["samples_per_joule"].value == pytest.approx(0.2)
    assert log.unknown == []
    assert log.warnings == []


def test_idle_power_is_read_from_an_idle_gpu_only() -> None:
    def gpu(percent: float) -> ReplayedMeter:
        values = {"gpu_utilization_percent": percent, "gpu_power_watts": 71.0}
        return ReplayedMeter([values], device="gpu")

    idle = idle_power([gpu(0.0)])
    assert idle is not None
    assert idle.value == 71.0
    assert idle_power([gpu(3.0)]) is None
    assert idle_power([ReplayedMeter([{}])]) is None


def test_meters_of_this_machine_have_a_value_or_a_reason() -> None:
    rapl, traffic = open_meters(None)
    for meter, names in (
        (rapl, ("cpu_package_joules", "dram_joules")),
        (traffic, ("disk_read_bytes", "network_receive_bytes", "memory_used_bytes")),
    ):
        values = meter.read()
        for name in names:
            assert (name in values) != (name in meter.missing)


def test_a_rate_from_or_to_a_restarted_counter_is_left_out() -> None:
    points = [(0.0, 0.0), (0.5, 100.0), (1.0, math.nan), (1.5, 300.0), (2.0, 400.0)]
    rates = series_of("dram_joules", points, 5, device="host", first=0.0, least_s=0.1)
    assert rates is not None
    assert (rates.times_s, rates.values) == ((0.5, 2.0), (200.0, 200.0))


def test_a_rate_over_the_last_milliseconds_is_left_out() -> None:
    points = [(0.0, 0.0), (0.5, 100.0), (1.0, 200.0), (1.002, 260.0)]
    rates = series_of("dram_joules", points, 4, device="host", first=0.0, least_s=0.1)
    assert rates is not None
    assert (rates.name, rates.times_s, rates.values) == ("dram_watts", (0.5, 1.0), (200.0, 200.0))
    assert series_of("dram_joules", points, 1, device="host", first=0.0, least_s=0.1) is None
    level = series_of("gpu_energy_joules", points, 2, device="gpu", first=100.0, least_s=0.1)
    assert level is not None
    assert level.values == (100.0, 160.0)
