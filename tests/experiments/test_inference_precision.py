import dataclasses

import pytest

from cubemesh.experiments.inference_precision import (
    EXPERIMENT,
    Settings,
    pareto,
    timed_candidates,
)
from cubemesh.experiments.registry import Context, Scale
from cubemesh.schema import Figure, InferPrecision, RunSpec, Status

WORK = InferPrecision(network="little-cnn", batch_per_device=1, data="digits")


def candidate(name, seconds, lost=None, *, samples=5000, right=4000, gained=0, method=""):
    """The figures of one candidate; without `lost` it is fp32."""
    found = {f"{name} seconds": Figure(value=seconds, unit="s", low=seconds, high=seconds)}
    found[f"{name} seconds"] = dataclasses.replace(found[f"{name} seconds"], method=method)
    if lost is None:
        return found
    counts = {"samples": samples, "reference right": right, "lost": lost, "gained": gained}
    accepted = (right - lost + gained) / right >= 0.99
    return {
        **found,
        f"{name} accepted": Figure(value=float(accepted), unit=""),
        **{f"{name} {what}": Figure(value=float(n), unit="") for what, n in counts.items()},
    }


FIGURES = {
    **candidate("fp32 fp32 openvino", 4e-3),
    **candidate("fp32 fp32 onnxruntime", 5e-3),
    **candidate("fp32 bf16 openvino", 3e-3, 2, gained=2),
    **candidate("int8 int8 openvino", 1e-3, 400, method="min-max"),
    **candidate("int8-products int8 openvino", 1.1e-3, 300, method="min-max"),
    **candidate("int8-mixed-2 int8 openvino", 2e-3, 4, method="min-max, 2 of 9 operators in fp32"),
    **candidate("int8-mse int8 onnxruntime", 2.5e-3, 6, gained=2, method="mse"),
}


@pytest.fixture
def record(record_of):
    def make(figures=FIGURES, **fields):
        own = record_of(RunSpec(work=WORK), **fields)
        return dataclasses.replace(own, windows=(), figures=figures if own.ok else {})

    return make


def test_each_network_and_batch_size_is_trained_once(machine):
    settings = Settings(networks=("little-cnn", "cifarnet"), batch_sizes=(1, 8), accuracy=0.95)
    (specs,) = list(EXPERIMENT.plan(settings, Context(machine=machine, scale=Scale.QUICK)))
    assert [(s.work.network, s.work.batch_per_device) for s in specs] == [
        *(("little-cnn", 1), ("little-cnn", 8)),
        *(("cifarnet", 1), ("cifarnet", 8)),
    ]
    assert {(s.work.epochs, s.work.data, s.work.accuracy) for s in specs} == {(2, "digits", 0.95)}
    assert {s.placement.device for s in specs} == {"cpu"}


def test_the_front_has_what_nothing_else_beats_in_both(record):
    front = pareto(timed_candidates([record()]))
    assert [one.model for one in front] == ["int8", "int8-products", "int8-mixed-2", "fp32"]
    assert front[-1].precision == "bf16"  # as accurate as fp32, and faster


def test_the_fastest_accurate_candidate_is_named(record):
    answer = EXPERIMENT.answer(Settings(), [record()])
    best = answer.findings[0]
    assert best.code == "fastest-accurate"
    assert best.value == pytest.approx(2.0)
    assert "int8 (min-max, 2 of 9 operators in fp32) in OpenVINO" in best.text
    assert "4 lost and 0 gained of 5,000: keeps 99.00%" in best.text
    codes = [f.code for f in answer.findings]
    assert codes == ["fastest-accurate", "accuracy-lost", "mixed-precision"]
    assert "2 of 6 candidates lose accuracy" in answer.findings[1].text
    rows = {row[0].text: row for row in answer.tables[0].rows}
    assert rows["int8 (min-max) in OpenVINO"][5].text == "loses"
    assert rows["fp32 in OpenVINO"][5].text == "reference"
    assert rows["int8 (mse) in ONNX Runtime"][6].text == "–"
    (chart,) = answer.charts
    assert [line.name for line in chart.lines] == ["int8", "bf16", "fp32", "front"]


def test_few_samples_cannot_tell_and_about_how_many_would(record):
    few = {
        **candidate("fp32 fp32 openvino", 4e-3),
        **candidate("int8 int8 openvino", 1e-3, 1, samples=100, right=95),
    }
    answer = EXPERIMENT.answer(Settings(), [record(few)])
    assert [f.code for f in answer.findings] == ["fastest-accurate", "too-few-samples"]
    verdict = answer.tables[0].rows[0][5].text
    assert verdict.startswith("cannot tell; about ")
    assert answer.findings[1].remedy


def test_a_failed_run_is_said(record):
    answer = EXPERIMENT.answer(Settings(), [record(status=Status.OOM, message="none")])
    assert [f.code for f in answer.findings] == ["failed-run"]
    assert answer.tables == ()
