import json

import altair as alt

from cubemesh.schema import Axis, Chart, Line, Point
from cubemesh.views.charts.files import inline_svg
from cubemesh.views.charts.vega import missing_points, vega_lite
from cubemesh.views.report.page import drawn

REASON = "diverged: the loss became nan"


def grid(**more):
    rows = {
        "0.0001": (Point(x=16, y=76.0, low=74.0, high=78.0, run_id="a"), Point(x=256, y=50.0)),
        "0.001": (Point(x=16, reason=REASON), Point(x=256, y=70.0)),
    }
    return Chart(
        name="grid",
        title="Accuracy",
        kind="heat",
        x=Axis(name="minibatch", scale="category"),
        y=Axis(name="accuracy", unit="%"),
        lines=tuple(Line(name=name, points=points) for name, points in rows.items()),
        rows="learning rate",
        **more,
    )


def cells(spec):
    (rows,) = spec["datasets"].values()
    return {(row["row"], row["x"]): row for row in rows}


def test_every_value_is_a_cell_and_fuller_is_more():
    found = cells(vega_lite(grid()))
    assert len(found) == 4
    best, worst = found["0.0001", "16"], found["0.0001", "256"]
    assert best["opacity"] == 1.0
    assert 0 < worst["opacity"] < found["0.001", "256"]["opacity"] < 1
    assert best["label"] == "76"
    assert best["value"] == "76.0 ± 2.0 %"
    assert best["ink"] != worst["ink"]


def test_a_gap_has_its_reason():
    chart = grid()
    gap = cells(vega_lite(chart))["0.001", "16"]
    assert (gap["opacity"], gap["label"]) == (0.0, "×")
    assert "diverged" in gap["description"]
    assert missing_points(chart) == (("0.001", "16", REASON),)


def test_it_can_be_drawn_with_its_values_in_it():
    alt.LayerChart.from_dict(vega_lite(grid()))  # valid by altair's schema
    svg = inline_svg(vega_lite(grid()))
    for text in (">76<", ">50<", ">70<", ">0.001<", ">learning rate<"):
        assert text in svg
    assert json.dumps(vega_lite(grid()))


def test_a_page_holds_it_without_a_legend():
    chart = drawn(grid())
    assert chart["legend"] == ()
    assert "2 rows" in chart["summary"]
