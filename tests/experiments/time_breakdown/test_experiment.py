"""Breakdown of the step time, from simulated records."""

import dataclasses

import pytest

from answers import in_order
from cubemesh.experiments.registry import Context, Scale
from cubemesh.experiments.time_breakdown.experiment import EXPERIMENT, PAPER_POINTS, Settings
from cubemesh.schema import Breakdown, Figure, Part, RunSpec, Status, TimeRow, TrainSteps


def profiled(record_of, network="little-cnn", batch=8, step_s=0.01, calls=(), **shares):
    """A record whose step is `shares` (in percent) and other; layers share its compute."""
    record = record_of(RunSpec(work=TrainSteps(network=network, batch_per_device=batch)))
    known = {name: share / 100 * step_s for name, share in shares.items()}
    known["unattributed"] = step_s - sum(known.values())
    rows = tuple(TimeRow(name=f"layer{i}", seconds=(20 - i) * 1e-4, calls=1) for i in range(12))
    breakdowns = [
        Breakdown(
            name="category",
            rows=(
                TimeRow(name="convolution", seconds=0.6 * step_s, calls=4),
                TimeRow(name="unnamed", seconds=0.1 * step_s, calls=1),
            ),
            method="",
        ),
        Breakdown(name="layer", rows=rows, method=""),
    ]
    if calls:
        call_rows = tuple(TimeRow(name=n, seconds=s, calls=1) for n, s in calls)
        breakdowns.append(Breakdown(name="runtime call", rows=call_rows, method=""))
    figure = Figure(value=1.2 * step_s, unit="s")
    return dataclasses.replace(
        record,
        parts=tuple(Part(name=n, seconds=s, method="") for n, s in known.items()),
        breakdowns=tuple(breakdowns),
        figures={**record.figures, "profiled_step_s": figure},
    )


def table(answer, title):
    return next(t for t in answer.tables if title in t.title)


def test_full_runs_the_papers_points(machine, play, record_of):
    full = Context(machine=machine, scale=Scale.FULL)
    planned, _ = play(EXPERIMENT.plan(Settings(ceiling=False), full), record_of)
    points = [(s.work.network, s.batch_per_device) for s in planned]
    assert points == [("little-cnn", 8), *PAPER_POINTS]
    assert all(s.budget.attribution for s in planned)
    assert all(s.work.image_size is None for s in planned)


def test_a_cpu_runs_less_with_a_warning(machine, play, record_of):
    planned, sent = play(
        EXPERIMENT.plan(Settings(ceiling=False), Context(machine=machine)), record_of
    )
    assert ("alexnet", 32) in [(s.work.network, s.batch_per_device) for s in planned]
    (reduced,) = [w for w in EXPERIMENT.answer(Settings(), sent).warnings if w.code == "reduced"]
    assert in_order(reduced.cause, "resnet-50", "8", "64")


def test_quick_runs_one_small_network_and_settings_override(machine, play, record_of):
    quick = Context(machine=machine, scale=Scale.QUICK)
    planned, _ = play(EXPERIMENT.plan(Settings(ceiling=False), quick), record_of)
    assert [(s.work.network, s.batch_per_device) for s in planned] == [("little-cnn", 8)]
    settings = Settings(networks=("vgg16",), batch_sizes=(1, 256), ceiling=False)
    planned, _ = play(EXPERIMENT.plan(settings, quick), record_of)
    assert [(s.work.network, s.batch_per_device) for s in planned] == [("vgg16", 1), ("vgg16", 256)]


def test_each_point_has_a_row_and_its_largest_overhead(record_of):
    gaps = profiled(record_of, compute=60, launch_gaps=31, input_stall=1, host=5)
    full = profiled(record_of, "resnet-50", 64, 0.1, compute=99.5, host=0.4)
    answer = EXPERIMENT.answer(Settings(), [gaps, full])
    first, second = answer.findings
    assert (first.code, first.value) == ("largest-overhead", pytest.approx(31))
    assert first.unit == "% launch gaps"
    assert first.remedy
    assert first.question
    assert (second.code, second.value, second.remedy) == ("largest-overhead", None, "")
    sums = table(answer, "Breakdown")
    row = {c.name: cell for c, cell in zip(sums.columns, sums.rows[0], strict=True)}
    assert row["step"].value == pytest.approx(10)
    assert row["launch gaps"].value == pytest.approx(31)
    assert row["unattributed"].value == pytest.approx(3)
    assert row["profiled step"].value == pytest.approx(1.2)
    assert "exposed communication" not in row
    (chart,) = answer.charts
    assert chart.stacked
    assert [line.name for line in chart.lines] == [
        *("compute", "input stall", "launch gaps", "host", "unattributed"),
    ]
    heights = [sum(line.points[i].y for line in chart.lines) for i in (0, 1)]
    assert heights == pytest.approx([100, 100])


def test_work_by_category_layer_and_runtime_call(record_of):
    calls = (("synchronize", 0.009), ("launch", 0.001))
    answer = EXPERIMENT.answer(Settings(), [profiled(record_of, compute=100, calls=calls)])
    assert [row[0].text for row in table(answer, "category").rows] == ["convolution", "unnamed"]
    layers = table(answer, "longest layers, 10 of 12")
    assert [row[0].text for row in layers.rows] == [f"layer{i}" for i in range(10)]
    assert [row[1].value for row in table(answer, "Runtime").rows] == pytest.approx([9, 1])


def test_the_implementation_of_each_segment_is_named(record_of):
    record = profiled(record_of, compute=100)
    rows = (
        TimeRow(name="h0: Inductor", seconds=0.002, calls=1),
        TimeRow(name="loss: fused loss", seconds=0.001, calls=1),
    )
    chosen = Breakdown(name="segment", rows=rows, method="")
    record = dataclasses.replace(record, breakdowns=(chosen, *record.breakdowns))
    found = table(EXPERIMENT.answer(Settings(), [record]), "Implementation of each segment")
    assert [row[0].text for row in found.rows] == ["h0: Inductor", "loss: fused loss"]
    assert [row[1].value for row in found.rows] == pytest.approx([2, 1])


def test_a_point_without_attribution_has_a_reason(record_of):
    spec = RunSpec(work=TrainSteps(network="little-cnn", batch_per_device=8))
    refused = record_of(spec, status=Status.UNSUPPORTED, message="reads no profile of jax")
    plain = record_of(
        dataclasses.replace(spec, work=TrainSteps(network="vgg16", batch_per_device=8))
    )
    answer = EXPERIMENT.answer(Settings(), [refused, plain])
    assert [f.code for f in answer.findings] == ["no-attribution"] * 2
    assert "reads no profile of jax" in answer.findings[0].text
    assert answer.charts == ()
    assert all(cell.reason for row in table(answer, "Breakdown").rows for cell in row[2:])


def test_parts_that_exceed_the_step_give_no_verdict(record_of):
    exceeding = profiled(record_of, compute=126, launch_gaps=1)
    answer = EXPERIMENT.answer(Settings(), [exceeding, profiled(record_of, batch=64, compute=90)])
    assert [f.code for f in answer.findings] == ["largest-overhead", "no-attribution"]
    assert "27 %" in answer.findings[1].text
    bad, good = table(answer, "Breakdown").rows
    assert all("27 %" in cell.reason for cell in bad[2:])
    assert good[2].value is not None
    assert [p.x for line in answer.charts[0].lines for p in line.points] == ["little-cnn, 64"] * 2


def test_ceilings_run_first(machine, play, record_of):
    quick = Context(machine=machine, scale=Scale.QUICK)
    planned, sent = play(EXPERIMENT.plan(Settings(), quick), record_of)
    assert [getattr(s.work, "operation", "") for s in planned] == ["matrix_product", "copy", ""]
    answer = EXPERIMENT.answer(Settings(), sent)
    assert len(answer.run_ids) == 3
    assert answer.findings[-1].code == "no-attribution"
