from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import altair as alt
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from cubemesh.schema import Axis, Chart, Line, Point
from cubemesh.views.charts.files import inline_svg
from cubemesh.views.charts.vega import missing_points, vega_lite
from cubemesh.views.theme import line_styles


def chart(*lines: Line, kind: Any = "line", x: str = "log2", y: str = "linear") -> Chart:
    return Chart(
        name="c",
        title="A chart",
        kind=kind,
        x=Axis(name="minibatch", scale=x),  # type: ignore[arg-type]
        y=Axis(name="throughput", unit="images/s", scale=y),  # type: ignore[arg-type]
        lines=lines,
    )


def line(*ys: float | None, role: Any = "measured", name: str = "here", spread: float = 0) -> Line:
    points = tuple(
        Point(x=2**i, y=y, low=y - spread, high=y + spread)
        if y is not None and spread
        else Point(x=2**i, y=y, reason="" if y is not None else "out of memory")
        for i, y in enumerate(ys)
    )
    return Line(name=name, points=points, role=role)


def marks(spec: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [layer for layer in spec["layer"] if layer["mark"]["type"] == kind]


def rows(spec: dict[str, Any], layer: dict[str, Any]) -> list[dict[str, Any]]:
    name = layer.get("data", spec.get("data"))["name"]
    found: list[dict[str, Any]] = spec["datasets"][name]
    return found


def test_log_axis_has_the_values_that_were_run_as_ticks():
    spec = vega_lite(chart(line(10.0, 20.0, None, 40.0)))
    x = spec["layer"][0]["encoding"]["x"]
    assert x["axis"]["values"] == [1, 2, 4, 8]
    assert x["scale"] == {"type": "log", "base": 2, "nice": False, "padding": 16}
    svg = inline_svg(spec)
    assert all(f">{value}</text>" in svg for value in (1, 2, 4, 8))


@pytest.mark.parametrize("kind", ["line", "bar", "scatter"])
def test_a_specification_is_valid(kind):
    """By altair's schema, which `vega_lite` does not ask while it draws."""
    lines = (
        line(10.0, 20.0, None, 40.0, spread=1),
        line(12.0, 22.0, 32.0, 42.0, role="forecast", name="forecast", spread=2),
        line(9.0, 18.0, role="published", name="there"),
        line(50.0, role="reference", name="roof"),
    )
    spec = vega_lite(chart(*lines, kind=kind), caption="of a test")
    alt.LayerChart.from_dict(spec)


def test_missing_point_is_a_cross_on_the_baseline_with_its_reason():
    drawn = chart(line(10.0, None))
    spec = vega_lite(drawn)
    crosses = [m for m in marks(spec, "point") if "M-1,-1" in str(m["mark"].get("shape"))]
    assert len(crosses) == 1
    assert crosses[0]["encoding"]["y"] == {"value": "height"}
    assert rows(spec, crosses[0])[0]["reason"] == "out of memory"
    assert missing_points(drawn) == (("here", "2", "out of memory"),)


def test_a_value_that_is_not_a_number_is_a_missing_point():
    drawn = chart(line(10.0, math.nan, math.inf))
    nan, infinite = missing_points(drawn)
    assert nan[:2] == ("here", "2")
    assert "not a number" in nan[2]
    assert infinite[:2] == ("here", "4")
    assert "infinite" in infinite[2]
    json.dumps(vega_lite(drawn), allow_nan=False)


def test_ticks_are_the_measured_places_not_the_published_ones():
    published = Line(name="there", points=(Point(x=3, y=1.0),), role="published")
    x = vega_lite(chart(line(1, 2, 3), published))["layer"][0]["encoding"]["x"]
    assert x["axis"]["values"] == [1, 2, 4]


def test_zero_on_a_logarithmic_axis_is_a_missing_point():
    drawn = chart(Line(name="l", points=(Point(x=0, y=1.0), Point(x=4, y=2.0))))
    ((line, x, reason),) = missing_points(drawn)
    assert (line, x) == ("l", "0")
    assert "logarithmic" in reason
    assert vega_lite(drawn)["layer"][0]["encoding"]["x"]["axis"]["values"] == [4]


def test_roles_differ_in_dash_and_colour():
    spec = vega_lite(
        chart(
            line(1.0, 2.0, name="mine"),
            line(1.0, 2.0, name="theirs", role="published"),
            line(1.0, 2.0, name="ahead", role="forecast", spread=0.2),
        )
    )
    encoding = marks(spec, "line")[0]["encoding"]
    assert encoding["color"]["scale"]["range"] == ["var(--c1)", "var(--published)", "var(--c2)"]
    assert encoding["strokeDash"]["scale"]["range"] == [[1, 0], [5, 4], [1, 4]]
    assert len(marks(spec, "area")) == 1, "a forecast's interval is a band"


def test_a_program_has_one_colour_in_every_chart():
    def colours(*names):
        return [look.colour for look in line_styles([Line(name=n, points=()) for n in names])]

    eager, compiled, captured = colours("PyTorch eager", "torch.compile", "pytorch-captured")
    assert len({eager, compiled, captured}) == 3
    assert colours("pytorch-captured", "pytorch") == [captured, eager]
    assert colours("batch size 8", "pytorch-captured") == colours("a", "b")


def test_measured_interval_is_a_bar_with_its_ends():
    spec = vega_lite(chart(line(10.0, 20.0, spread=1.0)))
    rule = marks(spec, "rule")[0]
    assert rule["encoding"]["y"]["field"] == "low"
    assert rule["encoding"]["y2"]["field"] == "high"
    assert len(marks(spec, "tick")) == 2
    assert [row["interval"] for row in rows(spec, rule)] == ["9 to 11", "19 to 21"]


def test_single_reference_point_is_a_level():
    level = Line(name="peak", role="reference", points=(Point(x=1, y=30.0),))
    spec = vega_lite(chart(line(10.0, 20.0), level))
    rule = marks(spec, "rule")[0]
    assert "x" not in rule["encoding"]
    assert rule["encoding"]["y"]["field"] == "y"


@pytest.mark.parametrize(
    ("values", "from_zero"), [((10.0, 20.0), True), ((15.0, 20.0), False), ((0.0, 1.0), True)]
)
def test_value_axis_starts_at_zero_unless_values_share_the_upper_half(values, from_zero):
    scale = vega_lite(chart(line(*values)))["layer"][0]["encoding"]["y"]["scale"]
    assert (scale.get("domainMin") == 0) is from_zero


def test_a_single_point_is_above_zero():
    scale = vega_lite(chart(line(13.0, spread=2.0)))["layer"][0]["encoding"]["y"]["scale"]
    assert scale["domainMin"] == 0


def test_bars_always_start_at_zero():
    scale = vega_lite(chart(line(19.0, 20.0), kind="bar"))["layer"][0]["encoding"]["y"]["scale"]
    assert scale["domainMin"] == 0


def test_bars_with_long_names_lie_on_their_side():
    long = Line(name="l", points=(Point(x="DGX-1, 1 V100, minibatch 1024", y=3.0),))
    spec = vega_lite(chart(long, kind="bar", x="category"))
    assert spec["layer"][0]["encoding"]["x"]["field"] == "y"
    svg = inline_svg(spec)
    assert "DGX-1, 1 V100," in svg
    assert "minibatch 1024" in svg


@pytest.mark.parametrize(("networks", "along"), [(4, "x"), (7, "y")])
def test_every_bar_has_its_name_in_half_of_a_page(networks, along):
    names = ("alexnet", "overfeat", "vgg16", "googlenet", "resnet-50", "resnet-101", "resnet-152")
    points = tuple(Point(x=name, y=1.0) for name in names[:networks])
    spec = vega_lite(chart(Line(name="pytorch", points=points), kind="bar", x="category"))
    assert spec["layer"][0]["encoding"][along]["type"] in ("nominal", "ordinal")
    svg = inline_svg(spec)
    assert all(f">{name}</text>" in svg for name in names[:networks])


def test_bars_of_lines_that_share_a_category_stand_side_by_side():
    grouped = vega_lite(chart(line(1.0), line(None, 2.0, name="b"), kind="bar"))
    assert all("xOffset" in m["encoding"] for m in marks(grouped, "bar"))
    single = vega_lite(chart(line(1.0), Line(name="b", points=(Point(x="z", y=1.0),)), kind="bar"))
    assert not any("xOffset" in m["encoding"] for m in marks(single, "bar"))


def test_text_as_x_makes_categories():
    texts = Line(name="l", points=(Point(x="a", y=1.0), Point(x="b", y=2.0)))
    assert vega_lite(chart(texts))["layer"][0]["encoding"]["x"]["type"] == "nominal"


def test_lines_of_one_name_are_numbered():
    spec = vega_lite(chart(line(1.0, 2.0), line(2.0, 3.0)))
    domain = marks(spec, "line")[0]["encoding"]["color"]["scale"]["domain"]
    assert domain == ["here", "here (2)"]


THIN = {
    "no lines": chart(),
    "no points": chart(line()),
    "one point": chart(line(3.0)),
    "all missing": chart(line(None, None)),
    "bar missing": chart(line(None), kind="bar"),
}


@pytest.mark.parametrize("empty", THIN.values(), ids=THIN)
def test_thin_charts_still_draw(empty):
    svg = inline_svg(vega_lite(empty))
    assert svg.startswith("<svg")
    assert "NaN" not in svg


def test_many_points_go_without_marks():
    spec = vega_lite(chart(line(*[float(i) for i in range(50)]), x="linear"))
    assert marks(spec, "point") == []
    assert len(marks(spec, "line")) == 1


def test_bytes_get_binary_ticks():
    memory = Chart(
        name="m",
        title="",
        kind="line",
        x=Axis(name="n"),
        y=Axis(name="memory", unit="bytes"),
        lines=(Line(name="l", points=(Point(x=1, y=1e9), Point(x=2, y=4e9))),),
    )
    assert "GiB</text>" in inline_svg(vega_lite(memory))


values = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True, width=32))
points = st.builds(
    Point,
    x=st.one_of(st.floats(-1e6, 1e6), st.text(max_size=12)),
    y=values,
    low=values,
    high=values,
    reason=st.text(max_size=8),
)
lines = st.builds(
    Line,
    name=st.text(max_size=8),
    points=st.lists(points, max_size=4).map(tuple),
    role=st.sampled_from(["measured", "published", "forecast", "reference"]),
)
scales = st.sampled_from(["linear", "log2", "log10", "category"])


@settings(max_examples=12, deadline=None)
@given(
    st.builds(
        Chart,
        name=st.just("c"),
        title=st.text(max_size=8),
        kind=st.sampled_from(["line", "bar"]),
        x=st.builds(Axis, name=st.text(max_size=5), scale=scales),
        y=st.builds(Axis, name=st.text(max_size=5), scale=scales),
        lines=st.lists(lines, max_size=3).map(tuple),
    )
)
def test_any_chart_is_json_that_vega_lite_compiles(any_chart):
    spec = vega_lite(any_chart)
    json.dumps(spec, allow_nan=False)
    assert "marks" in vl_convert.vegalite_to_vega(spec)


def test_many_upright_bars_go_without_their_values() -> None:
    def bars(count: int) -> dict[str, Any]:
        points = tuple(Point(x=f"n{i}", y=1.0 + i) for i in range(count))
        lines = tuple(Line(name=name, points=points) for name in ("a", "b"))
        y = Axis(name="time", unit="ms")
        chart = Chart(name="b", title="", kind="bar", x=Axis(name="network"), y=y, lines=lines)
        return vega_lite(chart)

    def marks(spec: dict[str, Any]) -> set[str]:
        return {layer["mark"]["type"] for layer in spec["layer"]}

    assert "text" in marks(bars(7))
    assert "text" not in marks(bars(8))
    assert "bar" in marks(bars(8))


def test_a_scatter_chart_of_categories_may_have_a_logarithmic_axis() -> None:
    points = tuple(Point(x=name, y=1e-9) for name in ("one", "two"))
    chart = Chart(
        name="c",
        title="Distances",
        kind="scatter",
        x=Axis(name="training", scale="category"),
        y=Axis(name="distance", scale="log10"),
        lines=(Line(name="distance", points=points),),
    )
    assert inline_svg(vega_lite(chart)).count("training") >= 1


def test_stacked_bars_are_one_layer_that_ends_at_the_highest_sum():
    parts = (line(60.0, 90.0, name="compute"), line(40.0, 5.0, name="gaps"))
    stacked = dataclasses.replace(chart(*parts, kind="bar"), stacked=True)
    spec = vega_lite(stacked)
    (layer,) = spec["layer"]
    assert layer["encoding"]["y"]["stack"] == "zero"
    assert layer["encoding"]["y"]["scale"]["domainMax"] == 100.0
    assert {row["line"] for row in rows(spec, layer)} == {"compute", "gaps"}
    assert "xOffset" not in layer["encoding"]
    assert "<svg" in inline_svg(spec)


def test_a_scatter_chart_joins_the_front_alone_and_labels_its_points():
    points = tuple(
        Point(x=x, y=y, label=label, run_id=f"r{label}")
        for x, y, label in ((300.0, 400.0, "32"), (400.0, 640.0, "64"), (450.0, 600.0, "128"))
    )
    front = Line(
        name="Pareto front",
        points=(Point(x=300.0, y=400.0), Point(x=400.0, y=640.0)),
        role="reference",
    )
    drawn = Chart(
        name="power",
        title="power",
        kind="scatter",
        x=Axis(name="power", unit="W"),
        y=Axis(name="throughput", unit="samples/s"),
        lines=(Line(name="fp32", points=points), front),
    )
    spec = vega_lite(drawn)
    (joined,) = marks(spec, "line")
    assert [row["x"] for row in rows(spec, joined)] == [300.0, 400.0]
    (mark,) = marks(spec, "point")
    assert len(rows(spec, mark)) == 3
    (label,) = marks(spec, "text")
    assert label["encoding"]["text"]["field"] == "label"
    assert [row["label"] for row in rows(spec, label)] == ["32", "64", "128"]
    assert rows(spec, mark)[0]["title"] == "fp32 · 32 · power 300 W"
    svg = inline_svg(spec)
    assert all(f">{text}</text>" in svg for text in ("32", "64", "128", "Pareto front", "300"))


def test_the_label_of_a_point_is_clear_of_its_interval():
    points = tuple(Point(x=x, y=9.0, low=4.0, high=14.0, label="32") for x in (1.0, 2.0))
    drawn = dataclasses.replace(chart(Line(name="fp32", points=points)), kind="scatter")
    (label,) = marks(vega_lite(drawn), "text")
    assert label["encoding"]["y"]["field"] == "low"


def test_long_categories_below_an_axis_are_wrapped_to_their_room():
    names = [f"resnet-18, 16, {precision}, 2 devices" for precision in ("fp32", "fp64", "bf16")]
    points = tuple(Point(x=name, y=1.0) for name in names)
    few = vega_lite(dataclasses.replace(chart(Line(name="a", points=points)), kind="scatter"))
    wrapped = "resnet-18, 16, fp32, 2\ndevices"
    (mark,) = marks(few, "point")
    assert rows(few, mark)[0]["x"] == wrapped
    assert mark["encoding"]["x"]["sort"][0] == wrapped
    assert "split(datum.label" in mark["encoding"]["x"]["axis"]["labelExpr"]
    svg = inline_svg(few)
    assert "devices</tspan>" in svg
    assert "…" not in svg


@pytest.mark.parametrize("epochs", [2, 3, 6])
def test_a_few_integers_have_a_tick_each_and_nothing_between(epochs):
    points = tuple(Point(x=1.0 + i, y=70.0 + i) for i in range(epochs))
    svg = inline_svg(vega_lite(chart(Line(name="top-1", points=points), x="linear")))
    for number in range(1, epochs + 1):
        assert svg.count(f">{number}</text>") == 1, number


def test_labels_at_the_ends_of_an_axis_are_inside():
    (mark, *_) = marks(vega_lite(chart(line(1.0, 2.0))), "line")
    assert mark["encoding"]["x"]["axis"]["labelFlush"] >= 10


@pytest.mark.parametrize(("unit", "tick"), [("", "1e-9"), ("FLOP/s", "1n")])
def test_a_value_without_a_unit_has_no_prefix(unit, tick):
    points = tuple(Point(x=x, y=1e-9) for x in (1.0, 2.0))
    drawn = dataclasses.replace(
        chart(Line(name="distance", points=points)),
        kind="scatter",
        y=Axis(name="distance", unit=unit, scale="log10"),
    )
    assert tick in inline_svg(vega_lite(drawn)).replace("\u2212", "-")
