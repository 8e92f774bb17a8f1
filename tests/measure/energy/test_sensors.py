import pytest

from cubemesh.measure.energy.sensors import TIMES, needed, sensors


def test_the_table_has_the_measured_sensors() -> None:
    table = sensors()
    assert len(table) == 11
    assert {s.generation for s in table} == {
        *("kepler", "maxwell", "pascal", "volta", "ampere", "hopper")
    }
    a100 = next(s for s in table if s.gpu == "A100-PCIe-40GB")
    assert a100.longest_s == 0.1


@pytest.mark.parametrize(
    ("name", "generation", "reading", "seconds"),
    [
        ("NVIDIA H100 PCIe", "hopper", "instant", 1.0),
        ("NVIDIA H100 PCIe", "hopper", "average", 10.0),
        ("NVIDIA H200", "hopper", "instant", 1.0),
        ("Tesla V100-SXM2-16GB", "volta", "instant", 0.2),
        ("Tesla K80", "kepler", "instant", 4.8),
        ("Tesla K40m", "kepler", "instant", 0.9),
        ("NVIDIA B200", "blackwell", "instant", 10.0),
        ("", "", "", 10.0),
    ],
)
def test_minimum_length_of_a_stretch(
    name: str, generation: str, reading: str, seconds: float
) -> None:
    assert needed(name, generation, reading).seconds == pytest.approx(seconds)


def test_the_reason_names_the_sensor() -> None:
    why = needed("NVIDIA H100 PCIe", "hopper", "instant").why
    assert why.endswith(f" {TIMES} times 100 ms")
    assert "generation" not in why
    assert "such as that of H100-PCIe needs" in needed("NVIDIA H200", "hopper", "instant").why
    assert "unknown" in needed("NVIDIA B200", "blackwell", "instant").why
