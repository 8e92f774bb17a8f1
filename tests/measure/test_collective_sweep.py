"""What all ranks found of a collective is one point for each size."""

import pytest

from cubemesh.measure.collective_sweep import (
    bus_bandwidth,
    merge_points,
    sweep_figures,
    wrong_results,
)
from cubemesh.schema import SweepPoint


def point(size=1000, seconds=(1e-6,), wrong=0, **fields):
    return SweepPoint(size_bytes=size, count=size // 4, seconds=seconds, wrong=wrong, **fields)


def test_times_are_the_mean_over_ranks_and_wrong_elements_their_sum():
    points = [(0, point(seconds=(1.0, 2.0), wrong=1)), (1, point(seconds=(3.0, 4.0), wrong=2))]
    (found,) = merge_points(points, 2)
    assert found.seconds == (2.0, 3.0)
    assert found.wrong == 3


def test_a_size_that_a_rank_lacks_is_left_out_but_pairs_need_two():
    pair = {"pair": (0, 2), "seconds": (1.0,)}
    points = [(0, point()), (0, point(**pair)), (2, point(**pair)), (1, point(size=8))]
    assert [p.pair for p in merge_points(points, 3)] == [(0, 2)]


def test_in_place_and_out_of_place_are_two_points():
    points = [(r, point(in_place=way)) for r in (0, 1) for way in (False, True)]
    assert [p.in_place for p in merge_points(points, 2)] == [False, True]


def test_unchecked_points_have_no_count_of_wrong_elements():
    points = [(0, point(wrong=None)), (1, point(wrong=None))]
    assert merge_points(points, 2)[0].wrong is None
    assert "wrong_elements" not in sweep_figures(merge_points(points, 2), "all-reduce", 2)


def test_figures_are_the_best_bandwidth_and_the_time_of_the_smallest_size():
    points = [
        point(1000, (1e-6,) * 6),
        point(4000, (2e-6,) * 6),
        point(9000, (9e-6,), in_place=True),
    ]
    found = sweep_figures(points, "all-reduce", 4)
    assert found["bus_bytes_per_s"].value == pytest.approx(4000 / 2e-6 * 1.5)
    assert found["bus_bytes_per_s"].low == pytest.approx(found["bus_bytes_per_s"].value)
    assert found["bus_bytes_per_s"].method == "all-reduce of 3.91 KiB"
    assert found["latency_s"].value == pytest.approx(1e-6)
    assert found["wrong_elements"].value == 0


def test_bus_bandwidth_of_a_pair_is_its_own():
    alone = point(4000, (2e-6,), pair=(0, 1))
    assert bus_bandwidth(alone, "send-receive", 8).value == pytest.approx(2e9)


def test_the_interval_includes_the_value():
    seconds = (1e-6, 1.2e-6, 0.9e-6, 1.1e-6, 1e-6, 1.3e-6)
    found = bus_bandwidth(point(seconds=seconds), "all-reduce", 2)
    assert found.low < found.value < found.high


def test_wrong_elements_give_a_warning():
    assert wrong_results([point()], "all-reduce", "gloo") is None
    found = wrong_results([point(), point(1 << 20, wrong=12)], "all-reduce", "nccl 2.27.5")
    assert found.code == "wrong-results"
    for value in ("12 elements", "all-reduce", "nccl 2.27.5", "1 MiB"):
        assert value in found.cause
