import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.measure.energy.energy import WHAT, Energy, counted, energy, integrated, stretches
from cubemesh.measure.energy.sensors import Need

HOPPER = Need(seconds=1.0, why="its power sensor needs 10 times 100 ms")
NO_RAPL = {"cpu_package_joules": "no powercap here", "dram_joules": "no powercap here"}


@st.composite
def readings(draw: st.DrawFn) -> list[tuple[float, float]]:
    """Power at rising times."""
    gaps = draw(st.lists(st.floats(0.01, 2.0), min_size=2, max_size=30))
    watts = draw(st.lists(st.floats(0, 1000), min_size=len(gaps), max_size=len(gaps)))
    times = [math.fsum(gaps[:n]) for n in range(len(gaps))]
    return list(zip(times, watts, strict=True))


def cut(points: list[tuple[float, float]], shares: list[float]) -> list[float]:
    """Rising moments within the readings, their two ends among them."""
    first, last = points[0][0], points[-1][0]
    return [first, *sorted(first + s * (last - first) for s in shares), last]


shares = st.lists(st.floats(0, 1), max_size=5)


@given(readings(), shares)
def test_the_integral_over_parts_is_that_over_the_whole(points, parts) -> None:
    moments = cut(points, parts)
    whole = integrated(points, [(moments[0], moments[-1])])
    trapezoids = math.fsum((b - a) * (v + w) / 2 for (a, v), (b, w) in pairwise(points))
    assert whole == pytest.approx(trapezoids, rel=1e-9, abs=1e-9)
    assert integrated(points, list(pairwise(moments))) == pytest.approx(whole, rel=1e-6, abs=1e-6)


@given(readings(), shares)
def test_energy_of_a_span_is_between_least_and_most_power(points, parts) -> None:
    moments = cut(points, parts)
    for start, end in pairwise(moments):
        joules = integrated(points, [(start, end)])
        assert joules is not None
        low, high = min(w for _, w in points), max(w for _, w in points)
        assert low * (end - start) - 1e-6 <= joules <= high * (end - start) + 1e-6


@given(st.floats(1, 1000), readings(), shares)
def test_at_constant_power_counter_and_integral_agree(watts, points, parts) -> None:
    moments = cut(points, parts)
    spans = [(moments[0], moments[-1])]
    level = [(t, watts) for t, _ in points]
    counter = [(t, 5e8 + watts * t) for t, _ in points]
    assert counted(counter, spans) == pytest.approx(
        integrated(level, spans), rel=1e-4, abs=1e-4 * watts
    )


@given(readings(), shares)
def test_the_growth_of_a_counter_adds_up(points, parts) -> None:
    total, grown = 0.0, []
    for t, joules in points:
        total += joules
        grown.append((t, total))
    moments = cut(points, parts)
    whole = counted(grown, [(moments[0], moments[-1])])
    assert whole == pytest.approx(grown[-1][1] - grown[0][1], abs=1e-6)
    assert counted(grown, list(pairwise(moments))) == pytest.approx(whole, abs=1e-6)


def test_the_integral_of_a_ramp() -> None:
    ramp = [(0.0, 0.0), (10.0, 100.0)]
    assert integrated(ramp, [(0.0, 10.0)]) == 500.0
    assert integrated(ramp, [(0.0, 5.0)]) == 125.0
    assert integrated(ramp, [(2.0, 4.0), (6.0, 8.0)]) == pytest.approx(60.0 + 140.0)


@pytest.mark.parametrize("span", [(-1.0, 5.0), (5.0, 11.0), (20.0, 30.0)])
def test_outside_the_readings_there_is_no_energy(span: tuple[float, float]) -> None:
    points = [(0.0, 1.0), (10.0, 2.0)]
    assert integrated(points, [span]) is None
    assert counted(points, [span]) is None
    assert counted([], [(0.0, 1.0)]) is None
    assert integrated(points[:1], [(0.0, 0.0)]) is None


def test_windows_milliseconds_apart_are_one_stretch() -> None:
    spans = [(0.0, 1.0), (1.002, 2.0), (3.0, 4.0)]
    assert stretches(spans) == [(0.0, 2.0), (3.0, 4.0)]


def gpu_run(
    seconds: float, *, counter: float = 400.0, power: float = 400.0, every_s: float = 0.5
) -> Energy:
    """A run on a GPU that was read for ten seconds more than its `seconds` of one stretch."""
    times = [every_s * n for n in range(round((seconds + 10) / every_s))]
    sampled = {
        "gpu_energy_joules": [(t, 7e6 + counter * t) for t in times],
        "gpu_power_watts": [(t, power) for t in times],
    }
    spans = [(4.0 + seconds * n / 10, 4.0 + seconds * (n + 1) / 10) for n in range(10)]
    return energy(sampled, spans, 1000, gpu_needs=HOPPER, every_s=every_s, missing=NO_RAPL)


def test_a_gpu_by_counter_and_by_integration() -> None:
    found = gpu_run(5.0)
    assert found.figures["mean_power_watts"].value == pytest.approx(400.0)
    assert found.figures["gpu_power_watts"].value == pytest.approx(400.0)
    assert found.figures["energy_joules_per_sample"].value == pytest.approx(2.0)
    assert found.figures["samples_per_joule"].value == pytest.approx(0.5)
    assert found.figures["gpu_energy_joules"].value == pytest.approx(2000.0)
    assert found.figures["gpu_energy_integrated_joules"].value == pytest.approx(2000.0)
    method = found.figures["energy_joules_per_sample"].method
    covered, _, absent = method.partition(";")
    assert covered == "GPU board (energy counter)"
    assert "CPU package, DRAM" in absent
    assert found.warnings == ()


def test_the_counter_is_used_and_a_mismatch_gives_a_warning() -> None:
    found = gpu_run(5.0, power=360.0)
    assert found.figures["mean_power_watts"].value == pytest.approx(400.0)
    (warning,) = found.warnings
    assert warning.code == "energy-mismatch"
    assert "10.0 % less" in warning.cause
    assert not gpu_run(5.0, power=385.0).warnings


@pytest.mark.parametrize("seconds", [0.02, 0.3, 0.9])
def test_a_stretch_too_short_for_the_sensor_is_not_measurable(seconds: float) -> None:
    found = gpu_run(seconds, every_s=0.1)
    assert not found.figures
    (unmeasured,) = found.unmeasured
    assert unmeasured.what == WHAT
    assert "10 times 100 ms" in unmeasured.why


def test_without_a_sensor_each_reason_is_given_once() -> None:
    found = energy({}, [(0.0, 5.0)], 10, gpu_needs=None, every_s=0.5, missing=NO_RAPL)
    assert not found.figures
    (unmeasured,) = found.unmeasured
    assert unmeasured.what == WHAT
    assert unmeasured.why.endswith(f"CPU: {NO_RAPL['dram_joules']}")
    assert unmeasured.why.count(NO_RAPL["dram_joules"]) == 1


def test_processors_and_memory_by_rapl() -> None:
    times = [0.5 * n for n in range(20)]
    sampled = {
        "cpu_package_joules": [(t, 80.0 * t) for t in times],
        "dram_joules": [(t, 20.0 * t) for t in times],
    }
    found = energy(sampled, [(1.0, 6.0)], 50, gpu_needs=None, every_s=0.5, missing={})
    assert found.figures["mean_power_watts"].value == pytest.approx(100.0)
    assert found.figures["cpu_package_watts"].value == pytest.approx(80.0)
    assert found.figures["dram_watts"].value == pytest.approx(20.0)
    assert found.figures["energy_joules_per_sample"].value == pytest.approx(10.0)
    assert "CPU package (RAPL) + DRAM (RAPL)" in found.figures["samples_per_joule"].method


def test_a_gpu_run_without_the_gpus_energy_has_no_total() -> None:
    times = [0.5 * n for n in range(20)]
    sampled = {"cpu_package_joules": [(t, 80.0 * t) for t in times]}
    missing = {"gpu_power_watts": "this GPU or driver does not support it", "dram_joules": "none"}
    found = energy(sampled, [(1.0, 6.0)], 50, gpu_needs=HOPPER, every_s=0.5, missing=missing)
    assert list(found.figures) == ["cpu_package_watts"]
    assert "does not support" in found.unmeasured[0].why


def test_a_program_with_its_own_clock_has_no_energy() -> None:
    times = [1000.0 + n for n in range(20)]
    sampled = {"gpu_power_watts": [(t, 100.0) for t in times]}
    found = energy(sampled, [(0.0, 5.0)], 5, gpu_needs=HOPPER, every_s=0.5, missing={})
    assert not found.figures
    assert "outside the readings" in found.unmeasured[0].why


def test_without_samples_there_is_only_power() -> None:
    times = [0.5 * n for n in range(20)]
    sampled = {"gpu_power_watts": [(t, 100.0) for t in times]}
    found = energy(sampled, [(1.0, 6.0)], None, gpu_needs=HOPPER, every_s=0.5, missing={})
    assert found.figures["mean_power_watts"].value == pytest.approx(100.0)
    assert "energy_joules_per_sample" not in found.figures
    assert "integrated power" in found.figures["mean_power_watts"].method


def test_a_sensor_that_stopped_during_the_windows_has_no_energy() -> None:
    times = [0.5 * n for n in range(40) if not 3 < 0.5 * n < 8]
    sampled = {"gpu_power_watts": [(t, 100.0) for t in times]}
    found = energy(sampled, [(1.0, 15.0)], 5, gpu_needs=HOPPER, every_s=0.5, missing={})
    assert not found.figures
    assert "stopped answering" in found.unmeasured[0].why
    before = energy(sampled, [(0.5, 2.5)], 5, gpu_needs=HOPPER, every_s=0.5, missing={})
    assert before.figures["mean_power_watts"].value == pytest.approx(100.0)


def test_each_stretch_between_evaluations_must_be_long_enough() -> None:
    times = [0.1 * n for n in range(1000)]
    sampled = {"gpu_power_watts": [(t, 100.0) for t in times]}
    short = [(2.0 * n, 2.0 * n + 0.4) for n in range(1, 20)]
    found = energy(sampled, short, 5, gpu_needs=HOPPER, every_s=0.1, missing={})
    assert not found.figures
    assert "400 ms; 1 s" in found.unmeasured[0].why


@pytest.mark.parametrize(("restart_s", "watts"), [(2.0, None), (0.5, 100.0), (5.5, 100.0)], ids=str)
def test_a_restarted_counter_has_a_figure_only_outside_the_windows(restart_s, watts) -> None:
    counter = [(t / 2, 100.0 * t / 2) for t in range(13)]
    counter = [(t, math.nan if t == restart_s else v) for t, v in counter]
    found = energy(
        {"cpu_package_joules": counter},
        [(1.0, 5.0)],
        10,
        gpu_needs=None,
        every_s=0.5,
        missing=NO_RAPL,
    )
    assert [w.code for w in found.warnings] == ([] if watts else ["counter-restarted"])
    assert bool(found.unmeasured) is not bool(watts)
    assert ("cpu_package_watts" in found.figures) is bool(watts)
    if watts:
        assert found.figures["mean_power_watts"].value == pytest.approx(watts)
