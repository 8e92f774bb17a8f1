"""The chart and the table of layers under their roof, from a scripted record."""

import dataclasses
from itertools import pairwise

import pytest

from cubemesh.experiments.analysis.roofline_chart import (
    lookup_finding,
    roofline,
    roofline_table,
    rooflines,
)
from cubemesh.exports.record_json import record_json
from cubemesh.networks import build
from cubemesh.networks.cost import costs
from cubemesh.schema import Breakdown, Figure, Outcome, Rank, RunSpec, Status, TimeRow, TrainSteps
from cubemesh.views.charts.vega import vega_lite


@pytest.fixture
def timed(record_of):
    """LittleCNN on an H200 whose first layer takes a hundred times its share."""
    return timed_record(record_of, "little-cnn")


def timed_record(record_of, name):
    spec = RunSpec(work=TrainSteps(network=name, batch_per_device=64))
    record = record_of(spec)
    network = build(name)
    counted = costs(network, 64)
    rows = [
        TimeRow(name=n.name, seconds=1e-6 + counted[n.name].total.moved_bytes / 2e12, calls=1.0)
        for n in network.nodes
    ]
    rows[0] = dataclasses.replace(rows[0], seconds=100 * rows[0].seconds)
    ok = Outcome(status=Status.OK)
    rank = Rank(rank=0, host="h", device="cuda:0", device_name="NVIDIA H200", outcome=ok)
    known = {
        "model_flops_per_s": Figure(value=1e12, unit="FLOP/s"),
        "ceiling_mfu_percent": Figure(value=2.0, unit="%"),
        "model_bytes_per_s": Figure(value=1e12, unit="B/s"),
        "ceiling_memory_use_percent": Figure(value=25.0, unit="%"),
    }
    return dataclasses.replace(
        record,
        ranks=(rank,),
        breakdowns=(Breakdown(name="layer", rows=tuple(rows), method="profiled"),),
        figures={**record.figures, **known},
    )


def test_categories_are_points_and_roofs_are_lines(timed):
    chart = roofline(timed)
    roles = {line.name.partition(":")[0]: line.role for line in chart.lines}
    assert roles["convolution"] == "measured"
    assert roles["measured"] == "reference"
    assert roles["datasheet"] == "published"
    assert (chart.x.scale, chart.y.scale) == ("log10", "log10")
    measured = next(line for line in chart.lines if line.role == "reference")
    assert measured.name == "measured: 50 TFLOP/s, 4 TB/s"
    assert max(p.y for p in measured.points) == 5e13
    assert measured.points[0].y == pytest.approx(measured.points[0].x * 4e12)
    datasheet = next(line for line in chart.lines if line.role == "published")
    assert max(p.y for p in datasheet.points) == 66.9e12


def test_the_layer_with_the_largest_loss_is_labelled(timed):
    chart, first = roofline(timed), build("little-cnn").nodes[0].name
    labels = [p.label for line in chart.lines for p in line.points if p.label]
    assert first in labels
    assert len(labels) <= 4
    table = roofline_table(timed)
    assert table.rows[0][0].text == first
    assert table.rows[0][4].value == pytest.approx(table.rows[0][2].value - table.rows[0][3].value)


def test_without_ceilings_there_is_no_roof_and_a_reason(timed):
    bare = dataclasses.replace(timed, figures={}, ranks=())
    assert {line.role for line in roofline(bare).lines} == {"measured"}
    assert "ceilings" in roofline_table(bare).rows[0][3].reason


def test_a_record_without_layers_has_neither(record_of):
    plain = record_of(RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8)))
    assert roofline(plain) is None
    assert roofline_table(plain) is None
    assert rooflines([plain]) == ()
    assert record_json(plain)["roofline"] == []


def test_json_has_every_point(timed):
    points = record_json(timed)["roofline"]
    assert points[0]["layer"] == build("little-cnn").nodes[0].name
    assert points[0]["lost_s"] == pytest.approx(points[0]["seconds"] - points[0]["floor_s"])
    assert len(points) >= 8


def test_both_axes_are_logarithmic(timed):
    pytest.importorskip("altair")
    spec = vega_lite(roofline(timed))
    scales = [
        layer["encoding"][axis]["scale"]["type"]
        for layer in spec["layer"]
        for axis in ("x", "y")
        if "scale" in layer["encoding"].get(axis, {})
    ]
    assert set(scales) == {"log"}
    ticks = spec["layer"][0]["encoding"]["y"]["axis"]["values"]
    assert all(tick in {10.0**power for power in range(20)} for tick in ticks)


def test_labels_have_room_one_above_the_other(timed):
    rates = sorted(
        p.y for line in roofline(timed).lines for p in line.points if p.label and p.y is not None
    )
    assert len(rates) > 1
    assert all(b / a > 10**0.25 for a, b in pairwise(rates))


def test_lookups_are_bound_by_memory_and_mostly_by_the_dense_gradient(record_of, timed):
    record = timed_record(record_of, "dlrm-small")
    found = lookup_finding(record)
    moved = costs(build("dlrm-small"), 64)["embeddings"].total.moved_bytes
    gradient = 4 * 119_889 * 16
    for words in ("memory-bound", f"{100 * gradient / moved:.0f} % of it the dense gradient"):
        assert words in found.text
    assert found.remedy
    assert 0 < found.value < 100
    work = dataclasses.replace(record.spec.work, momentum=0.0, embedding_gradients="sparse")
    sparse = dataclasses.replace(record, spec=dataclasses.replace(record.spec, work=work))
    found = lookup_finding(sparse)
    assert "memory-bound: 0 operations" in found.text
    assert "gradient of the tables is sparse" in found.text
    assert not found.remedy
    assert lookup_finding(timed) is None  # has no tables
    assert lookup_finding(dataclasses.replace(record, figures={})) is None
