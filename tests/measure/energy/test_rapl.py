import itertools
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubemesh.measure.energy.rapl import RaplReader, grown


def zone(folder: Path, name: str, energy_uj: int, range_uj: int = 1000) -> Path:
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return folder / "energy_uj"


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**6 - 1), max_size=20))
def test_a_counter_that_wraps_loses_nothing(start: int, steps: list[int]) -> None:
    # The counter goes through 0 … range; a step is less than once around.
    range_uj, value, total = 10**6, start, 0
    for step in steps:
        after = value + step
        now = after if after <= range_uj else after - range_uj
        total += grown(value, now, range_uj)
        value = now
    assert total == sum(steps)


def test_packages_and_their_memory_are_summed_up(tmp_path: Path) -> None:
    files = [
        zone(tmp_path / "intel-rapl:0", "package-0", 100),
        zone(tmp_path / "intel-rapl:1", "package-1", 900),
        zone(tmp_path / "intel-rapl:0:0", "core", 5),
        zone(tmp_path / "intel-rapl:0:1", "dram", 10),
    ]
    zone(tmp_path / "intel-rapl-mmio:0", "package-0", 100)  # the first package once more
    reader = RaplReader(tmp_path)
    assert reader.missing == {}
    assert reader.read() == {"cpu_package_joules": 0.0, "dram_joules": 0.0}
    for file, now in zip(files, (300, 50, 999, 40), strict=True):
        file.write_text(str(now))
    values = reader.read()
    assert values["cpu_package_joules"] == pytest.approx((200 + 150) / 1e6)
    assert values["dram_joules"] == pytest.approx(30 / 1e6)


def test_a_counter_that_cannot_be_read_for_a_moment_is_left_out(tmp_path: Path) -> None:
    file = zone(tmp_path / "intel-rapl:0", "package-0", 100)
    reader = RaplReader(tmp_path)
    file.unlink()
    assert reader.read() == {}
    file.write_text("400")
    assert reader.read() == {"cpu_package_joules": pytest.approx(300 / 1e6)}


def test_missing_counters_have_reasons(tmp_path: Path) -> None:
    none = RaplReader(tmp_path / "absent")
    assert none.read() == {}
    assert "does not exist" in none.missing["cpu_package_joules"]
    zone(tmp_path / "amd" / "intel-rapl:0", "package-0", 7)
    amd = RaplReader(tmp_path / "amd")
    assert list(amd.read()) == ["cpu_package_joules"]
    assert "named dram" in amd.missing["dram_joules"]
    (tmp_path / "amd" / "intel-rapl:0" / "energy_uj").write_text("much")
    assert "cannot be read" in RaplReader(tmp_path / "amd").missing["cpu_package_joules"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_counter_for_root_only_has_that_reason(tmp_path: Path) -> None:
    zone(tmp_path / "intel-rapl:0", "package-0", 7).chmod(0)
    why = RaplReader(tmp_path).missing["cpu_package_joules"]
    assert "root" in why.split()
    assert why.endswith(f"{tmp_path}/intel-rapl:0/energy_uj")


def test_a_counter_that_restarts_has_no_value_then_and_goes_on(tmp_path: Path) -> None:
    seconds = itertools.count()  # a second between two readings
    file = zone(tmp_path / "intel-rapl:0", "package-0", 90_000_000_000, range_uj=262_143_000_000)
    reader = RaplReader(tmp_path, clock=lambda: float(next(seconds)))
    read = []
    for now in (90_100_000_000, 5_000_000, 105_000_000):
        file.write_text(str(now))
        read.append(reader.read()["cpu_package_joules"])
    assert read[0] == pytest.approx(100.0)
    assert math.isnan(read[1]), "172 kJ in a second is no wrap"
    assert read[2] == pytest.approx(200.0)


def test_a_wrap_at_a_plausible_power_is_counted(tmp_path: Path) -> None:
    seconds = itertools.count()
    file = zone(tmp_path / "intel-rapl:0", "package-0", 262_100_000_000, range_uj=262_143_000_000)
    reader = RaplReader(tmp_path, clock=lambda: float(next(seconds)))
    file.write_text("57000000")
    assert reader.read()["cpu_package_joules"] == pytest.approx(43.0 + 57.0)


def test_a_reading_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    file = zone(tmp_path / "intel-rapl:0", "package-0", 100)
    reader = RaplReader(tmp_path)
    file.write_text("much\n")
    assert reader.read() == {}
    file.write_text("400")
    assert reader.read() == {"cpu_package_joules": pytest.approx(300 / 1e6)}
