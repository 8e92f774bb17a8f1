import json
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


def test_series_of_a_recorded_host() -> None:
    log = InMemoryLog()
    with Telemetry(
        log, 2, every_s=0.001, reader=Replay(RECORDED, cores=2, host_cores=4)
    ) as telemetry:
        while len(telemetry.readings) < 4:
            time.sleep(0.001)
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
        while len(telemetry.readings) < 37:
            time.sleep(0.001)
    assert len([c for c in log.chunks if c.name == "resident_bytes"]) >= 3
    assert log.joined("cpu_utilization_percent").times_s == tuple(map(float, range(1, 37)))
    assert set(log.joined("cpu_utilization_percent").values) == {50.0}


def test_what_others_used() -> None:
    assert others_share(RECORDED, 2, 0.0, 2.0) == 0.0
    assert others_share(RECORDED, 2, 2.0, 3.0) == 0.5
    assert others_share(RECORDED, 2, 1.0, 3.0) == 0.25
    assert others_share(RECORDED, 2, 2.5, 3.0) == 0.5
    assert others_share(RECORDED, 2, -5.0, 10.0) == pytest.approx(1 / 6)
    assert others_share(RECORDED, 2, 3.0, 3.0) is None


def test_a_busy_host_is_warned_of() -> None:
    log = InMemoryLog()
    with Telemetry(log, 2, every_s=0.001, reader=Replay(RECORDED, 2, 4)) as telemetry:
        while len(telemetry.readings) < 4:
            time.sleep(0.001)
    assert telemetry.check_host(0.0, 2.0) == 0.0
    assert log.warnings == []
    assert telemetry.check_host(2.0, 3.0) == 0.5
    assert [w.code for w in log.warnings] == ["busy-host"]


def test_a_counter_that_falls_is_no_negative_use() -> None:
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


def test_its_own_cost_is_told_and_small() -> None:
    log = InMemoryLog()
    with Telemetry(log, 1, every_s=0.05):
        time.sleep(0.5)
    cost = log.figures["telemetry_cpu_share"]
    assert 0 < cost.value < 0.1
    assert cost.unit == "cores"


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
        telemetry._thread.join(10)


def test_the_host_counts_this_process() -> None:
    reader = HostReader()
    first = reader.read()
    used = _work(0.2)
    second = reader.read()
    assert reader.cores == len(os.sched_getaffinity(0)) <= reader.host_cores
    assert second.time_s > first.time_s
    assert second.tree_cpu_s - first.tree_cpu_s >= used * 0.9
    assert second.host_busy_s >= second.cores_busy_s >= first.cores_busy_s


def test_the_host_counts_children_and_theirs() -> None:
    # A child that starts a child that works; both are alive while they are counted.
    grandchild = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)"
    grandchild += "\ntime.sleep(30)"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])"
    reader = HostReader()
    before = reader.read()
    with subprocess.Popen(
        [sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        during = reader.read()
        os.killpg(process.pid, 9)
    assert during.tree_cpu_s - before.tree_cpu_s >= 0.3
    assert during.resident_bytes - before.resident_bytes > 2_000_000


READINGS = """
import dataclasses, json, sys, time
from cubemesh.measure.telemetry.host import HostReader

reader = HostReader()
reader.read()
print("ready", flush=True)
sys.stdin.readline()
first = reader.read()
time.sleep(0.5)
readings = [dataclasses.asdict(r) for r in (first, reader.read())]
print(json.dumps({"readings": readings, "cores": reader.cores}), flush=True)
"""


def test_another_process_is_another_use() -> None:
    # Not a child: its work is the machine's, not the tree's. Counted by a process of its own.
    counting = subprocess.Popen(
        [sys.executable, "-c", READINGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert counting.stdin is not None
    assert counting.stdout is not None
    assert counting.stdout.readline() == "ready\n"
    counting.stdin.write("\n")
    counting.stdin.flush()
    _work(0.6)
    said = json.loads(counting.communicate(timeout=60)[0])
    first, second = (Reading(**reading) for reading in said["readings"])
    others = others_share([first, second], said["cores"], first.time_s, second.time_s)
    assert others is not None
    assert second.tree_cpu_s - first.tree_cpu_s < 0.2
    assert others * said["cores"] > 0.2


def _work(seconds: float) -> float:
    """Use that many processor seconds; returns how many were really used."""
    start = time.process_time()
    while (used := time.process_time() - start) < seconds:
        pass
    return used


def test_utilization_of_the_measured_part_alone() -> None:
    log = InMemoryLog()
    with Telemetry(log, 2, every_s=0.001, reader=Replay(RECORDED, 2, 4)) as telemetry:
        while len(telemetry.readings) < 4:
            time.sleep(0.001)
    telemetry.log_utilization(0.5, 2.5)
    assert log.figures["cpu_utilization_percent"].value == pytest.approx(50.0)
    curve = log.curves["cpu_utilization_percent"]
    assert (curve.x, curve.y) == ((0.5, 1.5), (50.0, 50.0))
    telemetry.log_utilization(9.0, 10.0)  # nothing was read then: nothing is said
    assert "gpu_utilization_percent" not in log.figures


def test_utilization_of_a_gpu_is_the_mean_of_its_readings() -> None:
    said = [{"gpu_utilization_percent": p, "gpu_power_watts": 4 * p} for p in (0.0, 80.0, 90.0)]
    meter = ReplayedMeter([*said, {}], device="gpu")
    log = InMemoryLog()
    with Telemetry(
        log,
        2,
        every_s=0.001,
        reader=Replay(RECORDED, 2, 4),
        meters=[meter],
    ) as telemetry:
        while len(telemetry.readings) < 4:
            time.sleep(0.001)
    assert log.joined("gpu_utilization_percent").values == (0.0, 80.0, 90.0)
    first = telemetry.sampled["gpu_utilization_percent"][0][0]
    start, end = first - 3.0, first + 3.0
    telemetry.readings[0] = reading(start, 5.0, 20.0, 50.0)
    telemetry.readings[-1] = reading(end, 8.0, 24.0, 55.0)
    telemetry.log_utilization(start, end)
    figure = log.figures["gpu_utilization_percent"]
    assert (figure.value, figure.n) == (pytest.approx(170 / 3), 3)
    assert log.curves["gpu_utilization_percent"].y == (0.0, 80.0, 90.0)
    assert "cpu_utilization_percent" not in log.curves
    assert log.curves["gpu_power_watts"].y == (0.0, 320.0, 360.0)


def test_a_long_curve_is_thinned_to_means() -> None:
    points = [(float(i), float(i % 2)) for i in range(1, 1001)]
    curve = curve_since("x_percent", points, start=0.0)
    assert len(curve.x) == 200
    assert curve.x[-1] == 1000.0
    assert set(curve.y) <= {0.4, 0.6}


def test_counters_become_rates_and_the_energy_counter_begins_at_nought() -> None:
    said = [
        {"gpu_energy_joules": 1e6 + 60.0 * n, "disk_read_bytes": 2e6 * n, "dram_joules": 5.0 * n}
        for n in range(5)
    ]
    log = InMemoryLog()
    gpu = ReplayedMeter([{"gpu_energy_joules": s["gpu_energy_joules"]} for s in said], device="gpu")
    host = ReplayedMeter([{k: v for k, v in s.items() if "gpu" not in k} for s in said])
    with Telemetry(
        log, 2, every_s=0.002, reader=Replay(RECORDED, 2, 4), meters=[gpu, host]
    ) as telemetry:
        while len(telemetry.readings) < 5:
            time.sleep(0.001)
    energy = [c for c in log.chunks if c.name == "gpu_energy_joules"]
    assert {c.device for c in energy} == {"gpu"}
    assert log.joined("gpu_energy_joules").values[:5] == (0.0, 60.0, 120.0, 180.0, 240.0)
    watts, rate = log.joined("dram_watts"), log.joined("disk_read_bytes_per_s")
    times = [t for t, _ in telemetry.sampled["dram_joules"]]
    assert watts.times_s[:4] == tuple(times[1:5])
    assert watts.values[0] == pytest.approx(5.0 / (times[1] - times[0]))
    assert rate.values[0] == pytest.approx(2e6 / (times[1] - times[0]))
    assert "dram_joules" not in {c.name for c in log.chunks}


def test_the_end_of_a_run_lies_between_two_readings_of_the_meters() -> None:
    meter = ReplayedMeter([{"gpu_power_watts": 100.0}], device="gpu")
    with Telemetry(InMemoryLog(), 1, every_s=0.05, meters=[meter]) as telemetry:
        time.sleep(0.051)
        inside = time.perf_counter()
    assert telemetry.sampled["gpu_power_watts"][-1][0] >= inside


def test_energy_of_the_windows_from_played_readings() -> None:
    said = [{"gpu_energy_joules": 500.0 * n, "gpu_power_watts": 100.0} for n in range(3)]
    meter = ReplayedMeter(
        said, device="gpu", name="Tesla P100", generation="pascal", power="instant"
    )
    log = InMemoryLog()
    with Telemetry(log, 1, every_s=60, meters=[meter]) as telemetry:
        pass
    # The readings are moved apart, as if five seconds lay between them.
    for name, points in telemetry.sampled.items():
        telemetry.sampled[name] = [(5.0 * n, v) for n, (_, v) in enumerate(points)]
    telemetry._every_s = 1.0
    telemetry.log_energy([Window(start_s=0.5, elapsed_s=4.0, steps=8, samples=80)], 80)
    assert log.figures["mean_power_watts"].value == pytest.approx(100.0)
    assert log.figures["energy_joules_per_sample"].value == pytest.approx(5.0)
    assert log.figures["samples_per_joule"].value == pytest.approx(0.2)
    assert log.unknown == []
    assert log.warnings == []


def test_idle_power_is_that_of_a_gpu_without_work() -> None:
    def gpu(percent: float) -> ReplayedMeter:
        said = {"gpu_utilization_percent": percent, "gpu_power_watts": 71.0}
        return ReplayedMeter([said], device="gpu")

    idle = idle_power([gpu(0.0)])
    assert idle is not None
    assert idle.value == 71.0
    assert idle_power([gpu(3.0)]) is None
    assert idle_power([ReplayedMeter([{}])]) is None


def test_this_machine_without_a_gpu_has_meters_that_answer_or_say_why() -> None:
    rapl, traffic = open_meters(None)
    for meter, names in (
        (rapl, ("cpu_package_joules", "dram_joules")),
        (traffic, ("disk_read_bytes", "network_receive_bytes", "memory_used_bytes")),
    ):
        said = meter.read()
        for name in names:
            assert (name in said) != (name in meter.missing)


def test_its_cost_is_told_of_the_processor_time_of_the_run() -> None:
    log = InMemoryLog()
    with Telemetry(log, 1, every_s=0.05, meters=open_meters(None)):
        _work(0.3)
    assert 0 < log.figures["telemetry_cpu_percent"].value < 30
    assert "every 0.05 s" in log.figures["telemetry_cpu_percent"].method


def test_a_rate_over_the_last_milliseconds_is_no_rate() -> None:
    points = [(0.0, 0.0), (0.5, 100.0), (1.0, 200.0), (1.002, 260.0)]
    told = series_of("dram_joules", points, 4, device="host", first=0.0, least_s=0.1)
    assert told is not None
    assert (told.name, told.times_s, told.values) == ("dram_watts", (0.5, 1.0), (200.0, 200.0))
    assert series_of("dram_joules", points, 1, device="host", first=0.0, least_s=0.1) is None
    level = series_of("gpu_energy_joules", points, 2, device="gpu", first=100.0, least_s=0.1)
    assert level is not None
    assert level.values == (100.0, 160.0)
