"""Rates and lost time of layers, by hand."""

import dataclasses

import pytest

from cubemesh.forecast.passes import roofline_s
from cubemesh.forecast.roofline import layer_points, measured_roof, points_of
from cubemesh.forecast.utilization import Limits
from cubemesh.networks import build
from cubemesh.networks.builder import NetworkBuilder
from cubemesh.networks.cost import costs
from cubemesh.schema import (
    Breakdown,
    Figure,
    Forward,
    Outcome,
    Rank,
    RunKey,
    RunRecord,
    RunSpec,
    Status,
    TimeRow,
    TrainSteps,
)

ROOF = Limits(flops_per_s=1e12, bytes_per_s=1e10)


@pytest.fixture(scope="module")
def small():
    net = NetworkBuilder("small")
    x = net.conv(net.input("image", (3, 16, 16)), 8, kernel=3, padding=1, name="conv")
    net.classify(net.linear(net.flatten(net.relu(x, name="relu"), name="flat"), 10, name="fc"))
    return net.build()


def test_a_layer_is_placed_by_its_operations_over_bytes_and_over_time(small):
    (point,) = layer_points(small, 4, {"conv": 0.5}, ROOF)
    cost = costs(small, 4)["conv"].total
    assert (point.layer, point.category) == ("conv", "convolution")
    assert point.intensity == cost.flops / cost.moved_bytes
    assert point.flops_per_s == cost.flops / 0.5
    assert point.lost_s == pytest.approx(0.5 - point.floor_s)


def test_a_floor_by_hand():
    # 16 → 10 on 8 samples: forward and weight gradient; the input needs no gradient.
    net = NetworkBuilder("one")
    net.classify(net.linear(net.flatten(net.input("image", (1, 4, 4))), 10, name="fc"))
    roof = Limits(flops_per_s=1e6, bytes_per_s=1e12)
    (point,) = layer_points(net.build(), 8, {"fc": 1.0}, roof)
    assert point.floor_s == pytest.approx(2 * (2 * 8 * 16 * 10) / 1e6)


def test_each_pass_takes_the_longer_of_operations_and_bytes(small):
    layer = costs(small, 4)["conv"]
    passes = (layer.forward, layer.data_gradient, layer.weight_gradient)
    total = layer.total
    assert roofline_s(passes, 1e3, 1e18) == pytest.approx(total.matrix_flops / 1e3)
    assert roofline_s(passes, 1e18, 1e3) == pytest.approx(total.moved_bytes / 1e3)
    compute_s, memory_s = total.matrix_flops / 1e9, total.moved_bytes / 1e8
    floor_s = roofline_s(passes, 1e9, 1e8)
    assert max(compute_s, memory_s) * 0.999 <= floor_s <= (compute_s + memory_s) * 1.001


def test_those_that_lose_most_come_first_and_what_computes_nothing_has_no_place(small):
    points = layer_points(small, 4, {"conv": 0.1, "relu": 0.3, "flat": 9.0, "gone": 9.0}, ROOF)
    assert [p.layer for p in points] == ["relu", "conv"]


def test_above_the_roof_nothing_is_lost_and_without_a_roof_everything(small):
    (fast,) = layer_points(small, 4, {"conv": 1e-12}, ROOF)
    assert fast.lost_s == 0
    (bare,) = layer_points(small, 4, {"conv": 0.5}, Limits(flops_per_s=1e12))
    assert bare.floor_s is None
    assert bare.lost_s == 0.5


def record(work, breakdowns=(), figures=None):
    ok = Outcome(status=Status.OK)
    return RunRecord(
        run_id="r",
        spec=RunSpec(work=work),
        key=RunKey(spec_id="s", machine_id="m", software_id="s", code_version="c"),
        started_utc="2026-01-01T00:00:00+00:00",
        elapsed_s=1.0,
        outcome=ok,
        ranks=(Rank(rank=0, host="h", device="cpu", outcome=ok),),
        breakdowns=breakdowns,
        figures=figures or {},
    )


def test_only_training_steps_whose_layers_were_timed_have_points():
    work = TrainSteps(network="little-cnn", batch_per_device=8)
    rows = (TimeRow(name="conv1", seconds=0.01, calls=2.0),)
    timed = Breakdown(name="layer", rows=rows, method="")
    names = [n.name for n in build("little-cnn").nodes]
    assert points_of(record(work), ROOF) == ()
    other = dataclasses.replace(timed, name="category")
    assert points_of(record(work, (other,)), ROOF) == ()
    assert (
        points_of(record(Forward(network="little-cnn", batch_per_device=8), (timed,)), ROOF) == ()
    )
    own = dataclasses.replace(timed, rows=(dataclasses.replace(rows[0], name=names[0]),))
    (point,) = points_of(record(work, (own,)), ROOF)
    assert point.layer == names[0]


def test_the_measured_roof_is_computed_from_the_figures_of_a_record():
    figures = {
        "model_flops_per_s": Figure(value=2e11, unit="FLOP/s"),
        "ceiling_mfu_percent": Figure(value=40.0, unit="%"),
        "model_bytes_per_s": Figure(value=3e9, unit="B/s"),
    }
    roof = measured_roof(record(TrainSteps(network="little-cnn", batch_per_device=8), (), figures))
    assert roof.flops_per_s == pytest.approx(5e11)
    assert roof.bytes_per_s is None
