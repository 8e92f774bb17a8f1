import math
import re
from dataclasses import replace

import pytest

from cubemesh.schema import Phase, RunRecord, Series
from cubemesh.views.charts.thinning import most_points
from cubemesh.views.facts.run import throttle_text
from cubemesh.views.report.timeline import HEIGHT, WIDTH, timeline

TIMES = (0.0, 1.0, 2.0, 3.0, 4.0)


@pytest.fixture
def run(made) -> RunRecord:
    """A run whose steps were measured in its second half."""
    phases = (
        Phase(name="warm-up", start_s=0.0, elapsed_s=2.0),
        Phase(name="measure", start_s=2.0, elapsed_s=2.0),
    )
    return replace(made.record(64), phases=phases)


def one(name: str, *values: float, device: str = "gpu") -> Series:
    return Series(name=name, device=device, times_s=TIMES[: len(values)], values=values)


def test_series_of_one_kind_share_a_panel(run) -> None:
    shown = timeline(
        run,
        [
            one("gpu_power_watts", 100, 200, 300, 300, 300),
            one("gpu_utilization_percent", 0, 50, 99, 98, 97),
            one("cpu_utilization_percent", 10, 20, 30, 30, 30, device="host"),
            one("queue_depth", 1, 2, 3, 4, 5),
        ],
    )
    assert shown is not None
    assert [p.title for p in shown.panels] == ["utilization", "power", "queue depth"]
    assert [k.name for k in shown.panels[0].keys] == ["GPU", "CPU, this run"]
    assert shown.panels[1].keys[0].note == "mean 300 W, 100 W to 300 W"
    assert (shown.panels[0].top, shown.panels[1].top) == ("100 %", "300 W")
    assert (shown.start, shown.end, shown.measured) == ("0 s", "4 s", "2 s to 4 s")


def test_the_measured_phase_is_shaded(run) -> None:
    shown = timeline(run, [one("gpu_power_watts", 100, 200, 300, 300, 300)])
    assert shown is not None
    found = re.search(r'class="measured" x="([\d.]+)" y="0" width="([\d.]+)"', shown.panels[0].svg)
    assert found is not None
    left, width = map(float, found.groups())
    assert left == pytest.approx(WIDTH / 2, abs=1)
    assert left + width == pytest.approx(WIDTH, abs=3)


def test_points_stand_at_their_time_and_value(run) -> None:
    shown = timeline(run, [one("gpu_power_watts", 0, 100, 100, 50, 0)])
    assert shown is not None
    path = re.search(r' d="M([^"]+)"', shown.panels[0].svg)
    assert path is not None
    points = [tuple(map(float, p.split())) for p in path[1].split("L")]
    assert [x for x, _ in points] == pytest.approx([2, 66, 130, 194, 258], abs=0.1)
    assert [y for _, y in points] == pytest.approx(
        [HEIGHT - 2, 2, 2, HEIGHT / 2, HEIGHT - 2], abs=0.1
    )


def test_small_changes_of_a_clock_do_not_fill_its_panel(run) -> None:
    shown = timeline(run, [one("gpu_clock_sm_mhz", 1980, 1979, 1980, 1980, 1980)])
    assert shown is not None
    assert (shown.panels[0].top, shown.panels[0].bottom) == ("1,980 MHz", "1,782 MHz")


def test_constant_series_are_a_note(run) -> None:
    shown = timeline(
        run,
        [
            one("gpu_clock_memory_mhz", 3201, 3201, 3201),
            one("disk_read_bytes_per_s", 0, 0, 0, device="host"),
            one("disk_write_bytes_per_s", 0, 0, 0, device="host"),
            one("gpu_throttle_reasons", 0, 0, 4, 4, 68),
        ],
    )
    assert shown is not None
    assert shown.panels == ()
    throttled, constant = shown.notes
    assert throttle_text([4.0, 4.0, 68.0]) in throttled
    assert re.search(r"power cap \(100 %.*heat \(hardware\) \(33 %", throttled)
    assert re.search(r"memory clock \(3,201 MHz\).*disks \(0 B/s\)", constant)


def test_throttle_reasons_in_words() -> None:
    assert throttle_text([0.0, 0.0]) == "none"
    assert re.fullmatch(r"power cap \(50 %[^%,]*\)", throttle_text([4.0, 0.0]))


def test_nothing_sampled_nothing_drawn(run) -> None:
    assert timeline(run, []) is None
    assert timeline(run, [one("gpu_power_watts", 100.0)]) is None


def test_a_name_from_outside_cannot_steer_the_page(run) -> None:
    attack = '"><script>alert(1)</script>'
    shown = timeline(run, [one(attack, 1, 2, 3)])
    assert shown is not None
    assert "<script" not in shown.panels[0].svg


def test_a_stretch_without_numbers_is_a_gap(run) -> None:
    shown = timeline(run, [one("gpu_power_watts", 100, 200, math.nan, 200, 100)])
    assert shown is not None
    assert re.search(r' d="M2.0 [\d.]+L66.0 2.0M194.0 2.0L258.0 ', shown.panels[0].svg)
    assert shown.panels[0].keys[0].note == "mean 150 W, 100 W to 200 W"


def test_a_series_without_a_number_is_a_note(run) -> None:
    shown = timeline(run, [one("gpu_power_watts", math.nan, math.inf, math.nan)])
    assert shown is not None
    assert (shown.panels, shown.notes) == ((), ("Without a number: GPU power watts.",))


def test_the_mean_and_the_range_are_of_all_points_of_a_thinned_curve(run) -> None:
    times = tuple(i / 2500 for i in range(10_001))
    values = tuple(float(i % 10) for i in range(10_001))
    shown = timeline(run, [Series(name="gpu_power_watts", times_s=times, values=values)])
    assert shown is not None
    assert shown.panels[0].keys[0].note == "mean 4.5 W, 0 W to 9 W"
    assert len(re.findall("[ML]", shown.panels[0].svg)) <= most_points(WIDTH)
