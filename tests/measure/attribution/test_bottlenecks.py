import pytest

from cubemesh.measure.attribution.attribution import PARTS
from cubemesh.measure.attribution.bottlenecks import largest_bottleneck
from cubemesh.schema import RunSpec, TrainSteps
from cubemesh.schema.record import Part

SPEC = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))


def parts(**ms):
    return [Part(name=name, seconds=value / 1e3, method="made up") for name, value in ms.items()]


def test_the_largest_overhead_has_a_fraction_and_a_remedy():
    found = largest_bottleneck(
        parts(compute=6.9, launch_gaps=3.1, host=0.5, unattributed=-0.5), SPEC
    )
    assert found.name == "launch_gaps"
    assert found.text.startswith("31 % ")
    assert found.text.endswith(" 8")
    assert "pytorch-compiled" in found.remedy
    assert found.share == pytest.approx(0.31)


def test_a_small_overhead_has_no_remedy():
    found = largest_bottleneck(parts(compute=99.6, host=0.2, unattributed=0.2), SPEC)
    assert (found.name, found.remedy) == ("", "")


def test_without_an_attribution_there_is_no_bottleneck():
    assert largest_bottleneck([], SPEC) is None


@pytest.mark.parametrize("name", [name for name in PARTS if name != "compute"])
def test_every_part_but_compute_has_a_remedy(name):
    assert largest_bottleneck(parts(compute=1, **{name: 9}), SPEC).remedy
