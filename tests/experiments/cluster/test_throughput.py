import pytest

from cubemesh.experiments.cluster.experiment import EXPERIMENT, Settings
from cubemesh.experiments.cluster.throughput import device_counts
from cubemesh.machines.catalogue.systems import load_system


def test_device_counts_fill_one_system_then_whole_systems() -> None:
    system = load_system("dgx1-v100")
    assert device_counts(system, 1024) == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert device_counts(system, 3) == (1, 2)
    assert device_counts(load_system("c4130-g"), 20) == (1, 2, 4, 8, 16)


def test_throughput_of_1024_devices_on_every_network() -> None:
    found = EXPERIMENT.answer(Settings(rate=367.0), [])
    table = found.tables[-1]
    rows = {(row[0].text, row[1].value): row for row in table.rows}
    fast, slow = (rows[name, 1024] for name in ("4 × InfiniBand EDR", "2 × 10 Gb Ethernet"))
    assert rows["4 × InfiniBand EDR", 1][2].value == pytest.approx(367)
    assert 1024 * 367 > fast[2].value > slow[2].value > 0.3 * 1024 * 367
    assert slow[4].text.endswith(": 10 Gb Ethernet")
    last = [f for f in found.findings if f.code == "forecast-throughput"]
    assert [f.value for f in last] == [fast[2].value, slow[2].value]
    assert [c.name for c in found.charts] == ["cluster-bisection", "cluster-throughput"]


def test_a_device_without_a_datasheet_says_why() -> None:
    found = EXPERIMENT.answer(Settings(system="dual-root-pcie"), [])
    assert all(row[1].value is None for row in found.tables[-1].rows)
    assert all("datasheet" in row[1].reason for row in found.tables[-1].rows)
