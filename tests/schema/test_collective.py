"""How sizes and bandwidths of collectives are counted, and what cannot be asked for."""

import pytest

from cubemesh.errors import UsageError
from cubemesh.schema import Collective, SweepPoint
from cubemesh.schema.collective import COLLECTIVES, PARTED, REDUCING, ROOTED, bus_factor


def test_bus_factors_are_those_of_nccl_tests():
    assert {name: bus_factor(name, 8) for name in COLLECTIVES} == {
        "all-reduce": 2 * 7 / 8,
        "reduce-scatter": 7 / 8,
        "all-gather": 7 / 8,
        "broadcast": 1,
        "reduce": 1,
        "gather": 7 / 8,
        "scatter": 7 / 8,
        "all-to-all": 7 / 8,
        "send-receive": 1,
    }


def test_every_trait_is_of_a_collective_there_is():
    assert {*REDUCING, *ROOTED, *PARTED} <= set(COLLECTIVES)


def test_a_time_is_the_mean_of_its_groups():
    point = SweepPoint(size_bytes=4000, count=1000, seconds=(1e-6, 3e-6))
    assert point.time_s == pytest.approx(2e-6)
    assert point.algorithm_bytes_per_s == pytest.approx(2e9)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sizes_bytes": ()}, "sizes_bytes="),
        ({"sizes_bytes": (8, 0)}, "sizes_bytes=8,0"),
        ({"collective": "broadcast", "reduction": "max"}, "reduction=max"),
        ({"checks": -1}, "checks=-1"),
        ({"warmup_iterations": -1}, "warmup_iterations=-1"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields, words):
    with pytest.raises(UsageError, match=words):
        Collective(**fields)
